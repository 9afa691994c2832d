"""The controls of client and attack, made from the table of settings: widgets to settings and back."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, replace
from html import escape
from pathlib import Path
from threading import local
from typing import Any

import ipywidgets as widgets

from workbench.attack.methods import METHODS
from workbench.config import (
    LARGEST_STRENGTHS,
    PRESETS,
    USUAL_STRENGTHS,
    AttackConfig,
    ClientConfig,
    DefenceConfig,
    LocalTraining,
)
from workbench.errors import ConfigError
from workbench.federated.observation import Observation
from workbench.session.history import OBSERVED
from workbench.settings import Setting, settings_of
from workbench.target import Target
from workbench.views.panel.layout import question
from workbench.views.panel.scenarios import FIRST, Scenario
from workbench.views.panel.status import GIVEN
from workbench.views.panel.workspace import STEERED, Settings

__all__ = ["CLIENT", "STEERED", "STEERING", "Controls", "Settings"]

_ATTACK = settings_of(AttackConfig)
_FIXED = {name: known for name, known in _ATTACK.items() if known.slider is None}  # that need a new attack

# The settings of the client by the names of their controls.
CLIENT = {known.key: known for kind in (Target, ClientConfig, DefenceConfig) for known in settings_of(kind).values()}

_PRESET = Setting(
    "Preset",
    "Settings to start from: lesson shows matching and averaging, demo takes seconds, paper is as published, warm and "
    "best are ours.",
    choices=PRESETS,
    default="lesson",
)
_SHOWN = {**CLIENT, "preset": _PRESET, **{known.key: known for known in _ATTACK.values()}}
_BUNDLED = ("glyphs", "photos")
STEERING = "Steering: acts at once"
# What a menu shows for None. The value behind it is "": ipywidgets shows no entry for the value None.
_UNSET = {"model": "for the data set", "low_memory": "automatic", "noisy_method": "the same method"}


class Controls:
    """All controls, by name in `fields`; `settings` reads them, the methods ``show_...`` set them.

    Args:
        changed: called with a name when a person changes a setting that needs a new session.
        steered: called with a name and a value when a person moves a slider.
    """

    def __init__(self, changed: Callable[[str], None], steered: Callable[[str, float], None]) -> None:
        self._quiet = local()  # one flag per thread: a person may change a control while another thread sets some
        self.observation: Observation | None = None
        self.knows_truth = True
        self.locked = ""  # why nothing can be changed at all
        self.locked_client = ""  # why the client cannot
        self.fields: dict[str, Any] = {key: _control(known) for key, known in _SHOWN.items()}
        self.helps: dict[str, Any] = {key: widgets.HTML() for key in _SHOWN}
        self.rows: dict[str, Any] = {
            key: widgets.HBox([field, self.helps[key]]).add_class("wb-row") for key, field in self.fields.items()
        }
        self.client_text = widgets.HTML().add_class("wb-note")
        self.derived = widgets.HTML().add_class("wb-note")
        for name, field in self.fields.items():
            field.observe(lambda change, name=name: self._moved(name, change["new"], changed, steered), "value")
        self.show_scenario(FIRST)

    def sections(self) -> dict[str, Any]:
        """All controls by the titles of their sections; the last one acts at once."""
        keys = {
            "Client": [key for key, known in CLIENT.items() if not known.is_detail],
            "Client, details": [key for key, known in CLIENT.items() if known.is_detail],
            "Attack": ["preset", *(known.key for known in _FIXED.values() if not known.is_detail)],
            "Attack, details": [known.key for known in _FIXED.values() if known.is_detail],
            STEERING: [*STEERED],
        }
        boxes = {title: widgets.VBox([self.rows[name] for name in names]) for title, names in keys.items()}
        boxes["Client"].children = (self.client_text, *boxes["Client"].children)
        return boxes

    def column(self) -> Any:
        """Client, attack and details, of which one is open at a time, and the steering below, which always is."""
        boxes = self.sections()
        steering = widgets.Accordion([boxes.popitem()[1]], titles=(STEERING,), selected_index=0)
        choices = widgets.Accordion([*boxes.values()], titles=tuple(boxes), selected_index=0)
        return widgets.VBox([choices, self.derived, steering])

    def weights(self) -> dict[str, Any]:
        """The slider of every term's weight once more, with its help, to stand beside the term."""
        return {
            name.removesuffix("_weight"): widgets.HBox([self.fields[name], self.helps[name]]).add_class("wb-row")
            for name in STEERED
            if name.endswith("_weight")
        }

    # Reading

    def __getitem__(self, name: str) -> Any:
        return self.fields[name].value

    def _values(self, settings: Mapping[str, Setting]) -> dict[str, Any]:
        """The values of some settings, by field name."""
        return {name: _value(known, self[known.key]) for name, known in settings.items()}

    def settings(self) -> Settings:
        """What the controls say; a `ConfigError` says what cannot be."""
        known = self.observation or self._target()
        values = self._values(_ATTACK)
        source = values.pop("label_method")
        if source != "known":
            values["label_method"] = source
        elif not self.knows_truth:
            raise ConfigError("label source = 'known' needs the truth; choose an estimator.")
        if not METHODS[values["method"]].can_warm_start:
            values["warm_start_steps"] = 0
        factor = values.pop("update_weight")
        config = replace(self._config, **values)
        if config.batch_size is not None and config.batch_size > known.num_images:
            raise ConfigError(
                f"believed batch size = {config.batch_size} must be at most the number of images, {known.num_images}."
            )
        return Settings(known if isinstance(known, Target) else None, config, source, factor, self["seed"])

    def _target(self) -> Target:
        defence = self._values(settings_of(DefenceConfig))
        if defence["name"] == "none":
            defence["strength"] = 0.0
        if defence["name"] != "dp_sgd":
            defence["clip_norm"] = None
        trained = self._values(settings_of(ClientConfig))
        if trained["optimizer"] != "sgd":
            trained |= {"momentum": 0.0, "nesterov": False}
        client = ClientConfig(**trained, defence=DefenceConfig(**defence))
        values = self._values(settings_of(Target))
        if values["dataset"] in _BUNDLED:
            values["data"] = None
        elif values["data"] is None:
            raise ConfigError(f"data set = {values['dataset']!r} needs the path of its files; the bundled ones do not.")
        client.schedule(values["num_images"])
        return Target(**values, client=client)

    # Setting

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Around changes that no person makes."""
        before, self._quiet.now = getattr(self._quiet, "now", False), True
        try:
            yield
        finally:
            self._quiet.now = before

    def show_preset(self) -> None:
        """Set the attack's controls to the chosen preset for the chosen data set."""
        config = Target(dataset=self["dataset"]).config(self["preset"], {})
        self.show_config(config, label_source=config.label_method)

    def show_scenario(self, scenario: Scenario) -> None:
        """Set all controls to a scenario."""
        target, settings = scenario.target, scenario.settings
        client = target.client
        values = {
            known.key: _shown(known, getattr(record, name))
            for kind, record in ((Target, target), (ClientConfig, client), (DefenceConfig, client.defence))
            for name, known in settings_of(kind).items()
        }
        if client.defence.clip_norm is None:
            del values["clip_norm"]  # a number that is not used
        self.show_values({**values, "preset": scenario.preset})
        self.show_config(settings.config, label_source=settings.label_source)
        self.update_abilities()

    def show_config(self, config: AttackConfig, *, label_source: str) -> None:
        """Set the attack's controls."""
        self._config = config  # it holds the pair of update weights, for which there is no control but a factor
        values = {**asdict(config), "label_method": label_source}
        self.show_values({known.key: _shown(known, values[name]) for name, known in _FIXED.items()})
        self.show_steering({**values, "update_weight": 1.0})

    def show_steering(self, values: Mapping[str, float]) -> None:
        """Set the sliders to what acts now."""
        with self.quietly():
            for name in STEERED:
                if name in values and self[name] != values[name]:
                    slider = self.fields[name]
                    # In one message: new stops alone leave it without a value, which the page cannot show.
                    with slider.hold_sync():
                        # A value that is none of its stops becomes one.
                        slider.options = _stops([values[name], *(stop for _, stop in slider.options)])
                        slider.value = values[name]

    def show_values(self, values: Mapping[str, Any]) -> None:
        """Set those of the controls that are named."""
        with self.quietly():
            # In the order of the table: the defence bounds its strength.
            for name, field in self.fields.items():
                if name in values:
                    field.value = values[name]

    def lock_client(self, observation: Observation) -> None:
        """Set the client's controls to what the server knows, and lock them; the rest is not known."""
        self.observation = observation
        self.locked_client = GIVEN
        self.show_values({name: getattr(observation, name) for name in OBSERVED})
        training = settings_of(LocalTraining).items()
        self.show_values({known.key: _shown(known, getattr(observation.training, name)) for name, known in training})

    def describe_client(self, text: str) -> None:
        """Say in words whose update is shown, and hide what is not known of it; an empty text shows every control."""
        self.client_text.value = escape(text)
        observed = {*OBSERVED, "seed", *(known.key for known in settings_of(LocalTraining).values())}
        for name in CLIENT.keys() - observed:
            self.rows[name].layout.display = "none" if text else None

    # What makes no sense together

    def reasons(self) -> dict[str, str]:
        """Why controls are disabled, by name."""
        dataset, defence, method = self["dataset"], self["defence"], METHODS[self["method"]]
        is_single = (self["believed_epochs"] or self["epochs"]) == 1
        no_prior = "The prior compares epochs, and there is one." if is_single else f"{method.name} has no epoch prior."
        no_epochs = "There is only one epoch." if is_single else f"{method.name} has one set of images for all epochs."
        no_warm_start = f"{method.name} is a baseline: a warm start would make it no longer one."
        # Of several reasons for one control, the last is given.
        rules: list[tuple[Iterable[str], object, str]] = [
            (["data"], dataset in _BUNDLED, f"{dataset} is bundled: it needs no files."),
            (["strength", "independent"], defence == "none", "There is no defence."),
            (["clip_norm"], defence != "dp_sgd", "Only dp_sgd clips."),
            (["momentum", "nesterov"], self["optimizer"] != "sgd", "Only SGD has a momentum; Adam has beta 1."),
            (["beta1", "beta2", "epsilon"], self["optimizer"] == "sgd", "Only Adam has it."),
            (["prior", "prior_distance", "prior_weight"], is_single or not method.has_prior, no_prior),
            (["match", "combine", "consensus_weight"], is_single or not method.is_separate, no_epochs),
            (["warm_start_steps"], not method.can_warm_start, no_warm_start),
            (CLIENT.keys() - {"seed"}, self.locked_client, self.locked_client),
            (self.fields, self.locked, self.locked),
        ]
        return {name: why for names, applies, why in rules if applies for name in names}

    def update_abilities(self) -> None:
        """Enable and disable, with the reason as the tooltip."""
        reasons = self.reasons()
        for name, field in self.fields.items():
            field.disabled, field.tooltip = name in reasons, reasons.get(name, _SHOWN[name].help)
            self.helps[name].value = _help(_SHOWN[name], reasons.get(name, ""))

    def _moved(
        self, name: str, value: Any, changed: Callable[[str], None], steered: Callable[[str, float], None]
    ) -> None:
        if name == "defence":
            with self.quietly():
                self.fields["strength"].max = LARGEST_STRENGTHS[value]
        if getattr(self._quiet, "now", False):
            return
        if name in ("preset", "dataset"):
            self.show_preset()
        elif name == "defence" and value != "none":
            self.show_values({"strength": USUAL_STRENGTHS[value]})
        elif name in ("prior", "prior_distance"):
            pair = {"prior": self["prior"], "prior_distance": self["prior_distance"]}
            weight = Target(dataset=self["dataset"]).config(self["preset"], pair).prior_weight
            self.show_steering({"prior_weight": weight})
        self.update_abilities()
        if name in STEERED:
            steered(name, value)
        else:
            changed(name)


def _control(known: Setting) -> Any:
    """The widget of a setting: its label, its help as the tooltip, and its range."""
    look: dict[str, Any] = {"description": known.label, "tooltip": known.help}
    look["layout"] = {"width": "auto", "flex": "1 1 0", "min_width": "0"}
    look["style"] = {"description_width": "112px" if known.slider is None else "118px"}
    if known.slider is not None:
        return _slider(known, known.slider, look)
    if known.choices or (known.kind is bool and known.is_optional):
        named = {"true counts" if name == "known" else name: name for name in known.offered}
        unset = {_UNSET[known.key]: ""} if known.is_optional else {}
        options: dict[str, Any] = {**unset, **(named or {"on": True, "off": False})}
        return widgets.Dropdown(options=options, value=known.default or "", **look)
    if known.kind is bool:
        return widgets.Checkbox(known.default, **{**look, "indent": True})
    if known.kind is int:
        # 0 stands for None. Continuous, so that what is derived follows what is typed.
        least = 0 if known.is_optional else known.minimum
        return widgets.BoundedIntText(known.default or 0, min=least, max=10**6, continuous_update=True, **look)
    if known.key == "strength":
        return widgets.BoundedFloatText(0.0, min=0.0, max=0.0, step=0.01, continuous_update=True, **look)
    if known.kind is float:
        return widgets.FloatText(1.0 if known.default is None else known.default, continuous_update=True, **look)
    return widgets.Text(**look)


def _help(known: Setting, reason: str) -> str:
    """A question mark that opens what the table of settings says, and why the control is off where it is."""
    paper = " · ".join(part for part in (known.symbol and f"symbol {known.symbol}", known.section) if part)
    return question(known.label, reason and f"Off now: {reason}", known.help, paper)


def _value(known: Setting, shown: Any) -> Any:
    """The value of a setting from that of its widget."""
    if known.kind is Path:
        return Path(shown.strip()).expanduser() if shown.strip() else None
    is_unset = known.is_optional and shown == ("" if known.kind is not int else 0)
    return None if is_unset else shown


def _shown(known: Setting, value: Any) -> Any:
    """The value of a setting's widget from that of the setting."""
    if known.kind is list and value is not None:
        return ",".join(f"{number:g}" for number in value)
    return value if value is not None else 0 if known.kind is int else ""


def _slider(known: Setting, ends: tuple[float, float], look: dict[str, Any]) -> Any:
    """A slider whose stops are 1, 2, 5, 10, ...: from a negligible weight to an overwhelming one, and off."""
    low, high = (round(math.log10(end)) for end in ends)
    stops = [float(f"{digit}e{power}") for power in range(low, high) for digit in (1, 2, 5)]
    is_factor = known.kind is tuple  # on a pair of weights
    can_be_off = known.above is None or is_factor
    value = 1.0 if is_factor else known.default
    options = _stops([0.0] * can_be_off + stops + [float(f"1e{high}"), value])
    # Without its label, a slider that begins at the first of its stops has none.
    [(label, _)] = _stops([value])
    return widgets.SelectionSlider(options=options, value=value, label=label, continuous_update=False, **look)


def _stops(values: Iterable[float]) -> list[tuple[str, float]]:
    return [("off" if value == 0 else f"{value:g}", value) for value in sorted(set(values))]
