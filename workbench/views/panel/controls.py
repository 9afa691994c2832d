"""The controls of client and attack: widgets to settings and back, what makes no sense together, what it would take."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from threading import local
from typing import Any

import ipywidgets as widgets

from workbench.config import (
    COMBINATIONS,
    DEFENCES,
    DISTANCES,
    LABEL_ORDERS,
    MATCHINGS,
    METHODS,
    PRESETS,
    PRIOR_DISTANCES,
    SUMMARIES,
    AttackConfig,
    ClientConfig,
    DefenceConfig,
)
from workbench.errors import ConfigError
from workbench.federated.observation import Observation
from workbench.target import DATASETS, LABEL_SOURCES, NETWORKS, Target
from workbench.views.panel.settings import Settings

__all__ = ["STEERED", "Controls", "Settings"]

STEERED = ("update_weight", "prior_weight", "tv_weight", "clip_weight", "consensus_weight", "step_size")
"""What the sliders change on a running attack."""

_BUNDLED = ("glyphs", "photos")
_SEPARATE = ("ours_prior", "ours_no_prior")
_WARM = (*_SEPARATE, "shared")
_OWN_NETWORK = "for the data set"
_WIDE = {"width": "auto"}
_STYLE = {"description_width": "112px"}


class Controls:
    """All controls, by name in `fields`; `settings` reads them, `show` and `show_preset` set them.

    Args:
        changed: called with a name when a person changes a setting that needs a new session.
        steered: called with a name and a value when a person moves a slider of a weight or of the step size.
    """

    def __init__(self, changed: Callable[[str], None], steered: Callable[[str, float], None]) -> None:
        self._quiet = local()  # every thread its own: one may set what a person does not, while a person does
        self._extra = AttackConfig()  # fields that have no control
        self.observation: Observation | None = None
        self.knows_truth = True
        self.locked = ""  # why nothing can be changed at all
        self.locked_client = ""  # why the client cannot
        self.fields: dict[str, Any] = {**_client_fields(), **_attack_fields(), **_steering_fields()}
        self._tips = {name: field.tooltip or "" for name, field in self.fields.items()}
        self.derived = widgets.HTML()
        self.derived.add_class("wb-note")
        for name, field in self.fields.items():
            field.observe(lambda change, name=name: self._moved(name, change["new"], changed, steered), "value")
        self.show_preset("demo")
        self.update_abilities()

    def column(self) -> Any:
        """Client and attack, of which one is open at a time, and the steering below them, which always is."""
        attack = [name for name in self.fields if name not in (*_CLIENT_NAMES, *STEERED)]
        boxes = [widgets.VBox([self.fields[name] for name in names]) for names in (_CLIENT_NAMES, attack)]
        self.sections = widgets.Accordion(boxes, titles=("Client", "Attack"), selected_index=0)
        steering = widgets.Accordion(
            [widgets.VBox([self.fields[name] for name in STEERED])],
            titles=("Steering: acts at once",),
            selected_index=0,
        )
        return widgets.VBox([self.sections, self.derived, steering])

    # Reading

    def __getitem__(self, name: str) -> Any:
        return self.fields[name].value

    def settings(self) -> Settings:
        """What the controls say; a `ConfigError` says what cannot be."""
        target = self._target()
        source = self["label_source"]
        config = replace(
            self._extra,
            method=self["method"],
            steps=self["steps"],
            warm_start_steps=self["warm_start_steps"] if self["method"] in _WARM else 0,
            distance=self["distance"],
            prior=self["prior"],
            prior_distance=self["prior_distance"],
            label_method=self._extra.label_method if source == "known" else source,
            label_order=self["label_order"],
            match=self["match"],
            combine=self["combine"],
            epochs=self["believed_epochs"] or None,
            batch_size=self["believed_batch_size"] or None,
            **{name: self[name] for name in STEERED if name != "update_weight"},
        )
        num_images = target.num_images if target else self._observed().num_images
        if config.batch_size is not None and config.batch_size > num_images:
            raise ConfigError(
                f"believed batch size = {config.batch_size} must be at most the number of images, {num_images}."
            )
        if source == "known" and not self.knows_truth:
            raise ConfigError("label source = 'known' needs the truth; choose an estimator.")
        return Settings(target, config, source, self["update_weight"], self["seed"])

    def _target(self) -> Target | None:
        if self.observation is not None:
            return None
        name, dataset = self["defence"], self["dataset"]
        data = self["data"].strip()
        if dataset not in _BUNDLED and not data:
            raise ConfigError(f"data set = {dataset!r} needs the path of its files; the bundled ones do not.")
        defence = DefenceConfig(
            name, self["strength"] if name != "none" else 0.0, self["clip_norm"] if name == "dp_sgd" else None
        )
        client = ClientConfig(self["epochs"], self["batch_size"], self["learning_rate"], defence=defence)
        client.local_steps(self["num_images"])  # or batches would be larger than what there is
        return Target(
            dataset=dataset,
            data=None if dataset in _BUNDLED else Path(data).expanduser(),
            index=self["client"],
            num_clients=self["num_clients"],
            num_images=self["num_images"],
            client=client,
            network=None if self["network"] == _OWN_NETWORK else self["network"],
            seed=self["seed"],
        )

    def _observed(self) -> Observation:
        if self.observation is None:
            raise ConfigError("there is no update yet; build one first.")
        return self.observation

    # Setting

    @contextmanager
    def quietly(self) -> Iterator[None]:
        """Around changes that no person makes."""
        before, self._quiet.now = getattr(self._quiet, "now", False), True
        try:
            yield
        finally:
            self._quiet.now = before

    def show_preset(self, name: str) -> None:
        """Set the attack's controls to a preset for the chosen data set."""
        config = Target(dataset=self["dataset"]).config(name, {})
        with self.quietly():
            self.fields["preset"].value = name
            self.show_config(config, label_source=config.label_method)

    def show_config(self, config: AttackConfig, *, label_source: str) -> None:
        """Set the attack's controls."""
        self._extra = config
        shown = {
            "method": config.method,
            "steps": config.steps,
            "warm_start_steps": config.warm_start_steps,
            "distance": config.distance,
            "prior": config.prior,
            "prior_distance": config.prior_distance,
            "label_source": label_source,
            "label_order": config.label_order,
            "match": config.match,
            "combine": config.combine,
            "believed_epochs": config.epochs or 0,
            "believed_batch_size": config.batch_size or 0,
        }
        with self.quietly():
            for name, value in shown.items():
                self.fields[name].value = value
            weights = {name: getattr(config, name) for name in STEERED if name != "update_weight"}
            self.show_steering({**weights, "update_weight": 1.0})

    def show_steering(self, values: Mapping[str, float]) -> None:
        """Set the sliders to what acts now."""
        with self.quietly():
            for name in STEERED:
                if name in values and self[name] != values[name]:
                    _set_stop(self.fields[name], values[name])

    def show_observation(self, observation: Observation) -> None:
        """Set the client's controls to what the server was told; the rest is not known."""
        self.observation = observation
        with self.quietly():
            for name in ("num_images", "epochs", "batch_size", "learning_rate", "num_clients"):
                self.fields[name].value = getattr(observation, name)

    # What makes no sense together

    def reasons(self) -> dict[str, str]:
        """Why controls are switched off, by name."""
        if self.locked:
            return dict.fromkeys(self.fields, self.locked)
        reasons = dict.fromkeys(_CLIENT_NAMES, self.locked_client) if self.locked_client else {}
        reasons.pop("seed", None)
        method, defence = self["method"], self["defence"]
        if self["dataset"] in _BUNDLED:
            reasons.setdefault("data", f"{self['dataset']} is bundled: it needs no files.")
        if defence == "none":
            reasons.setdefault("strength", "There is no defence.")
        if defence != "dp_sgd":
            reasons.setdefault("clip_norm", "Only dp_sgd clips.")
        is_single = (self["believed_epochs"] or self["epochs"]) == 1
        if method != "ours_prior" or is_single:
            why = "One epoch has nothing to agree with." if is_single else f"{method} has no prior on the epochs."
            reasons |= dict.fromkeys(("prior", "prior_distance", "prior_weight"), why)
        if method not in _SEPARATE or is_single:
            why = "There is one epoch only." if is_single else f"{method} has one set of images: nothing to combine."
            reasons |= dict.fromkeys(("match", "combine", "consensus_weight"), why)
        if method not in _WARM:
            reasons["warm_start_steps"] = f"{method} is a baseline: starting from another method, it would be none."
        return reasons

    def update_abilities(self) -> None:
        """Enable and disable, with the reason as the tooltip."""
        reasons = self.reasons()
        for name, field in self.fields.items():
            reason = reasons.get(name, "")
            for trait, value in (("disabled", bool(reason)), ("tooltip", reason or self._tips[name])):
                if getattr(field, trait) != value:
                    setattr(field, trait, value)

    def _moved(
        self, name: str, value: Any, changed: Callable[[str], None], steered: Callable[[str, float], None]
    ) -> None:
        if getattr(self._quiet, "now", False):
            return
        if name in ("preset", "dataset"):
            self.show_preset(self["preset"])
        elif name in ("prior", "prior_distance"):
            pair = {"prior": self["prior"], "prior_distance": self["prior_distance"]}
            weight = Target(dataset=self["dataset"]).config(self["preset"], pair).prior_weight
            self.show_steering({"prior_weight": weight})
        self.update_abilities()
        if name in STEERED:
            steered(name, value)
        else:
            changed(name)


_CLIENT_NAMES = (
    *("dataset", "data", "client", "num_clients", "num_images", "epochs", "batch_size", "learning_rate", "network"),
    *("defence", "strength", "clip_norm", "seed"),
)


def _client_fields() -> dict[str, Any]:
    return {
        "dataset": _choice("Data set", DATASETS, "glyphs", "Where the pictures come from"),
        "data": _text("Files", "The path of a data set that is not bundled"),
        "client": _count("Client", 0, 0, "Which client, from 0"),
        "num_clients": _count("Clients", 1, 1, "The server sees the mean of so many clients' weights", most=64),
        "num_images": _count("Images N", 16, 1, "Of each client"),
        "epochs": _count("Epochs E", 4, 1, "Passes over the images in the local training"),
        "batch_size": _count("Batch size m", 4, 1, "Images in a local step"),
        "learning_rate": _number("Learning rate", 0.004, "Of the local training"),
        "network": _choice("Network", (_OWN_NETWORK, *NETWORKS), _OWN_NETWORK, "What is trained"),
        "defence": _choice("Defence", DEFENCES, "none", "What the client does to its gradients"),
        "strength": _number("Strength", 0.0, "Of the defence: of the noise, or the part that is pruned"),
        "clip_norm": _number("Clip norm", 1.0, "The largest gradient of one image"),
        "seed": _count("Seed", 0, 0, "Of the network, the batches and the attack"),
    }


def _attack_fields() -> dict[str, Any]:
    return {
        "preset": _choice("Preset", PRESETS, "demo", "demo: seconds; paper: as published; best: ours"),
        "method": _choice("Method", METHODS, "ours_prior", "How the client's training is simulated"),
        "steps": _count("Steps", 100, 1, "Of the optimisation, after the warm start"),
        "warm_start_steps": _count("Warm start", 0, 0, "Steps of the surrogate before them"),
        "prior": _choice("Prior g", SUMMARIES, "mean", "What summarises an epoch, whatever its order"),
        "prior_distance": _choice("Prior distance", PRIOR_DISTANCES, "l2", "How the summaries are compared"),
        "distance": _choice("Distance", DISTANCES, DISTANCES[0], "Between the observed and the simulated update"),
        "label_source": _choice(
            "Label counts",
            [("true counts" if source == "known" else source, source) for source in LABEL_SOURCES],
            "bias",
            "Where the attack has them from: the truth, or an estimator",
        ),
        "label_order": _choice("Label order", LABEL_ORDERS, "random", "How labels are assigned to batches"),
        "match": _choice("Match", MATCHINGS, "images", "Epochs by likeness alone, or only images of one label"),
        "combine": _choice("Combine", COMBINATIONS, "mean", "How matched epochs become one image"),
        "believed_epochs": _count("Believed E", 0, 0, "As the attacker believes it; 0 takes the true one"),
        "believed_batch_size": _count("Believed m", 0, 0, "As the attacker believes it; 0 takes the true one"),
    }


def _steering_fields() -> dict[str, Any]:
    return {
        "update_weight": _weight("Update", 1.0, "A factor on the weight of the update's distance", (1e-2, 1e2)),
        "prior_weight": _weight("Prior", 1000.0, "Weight of the epoch prior", (1e-1, 1e4)),
        "tv_weight": _weight("Smoothness", 0.001, "Weight of the total variation", (1e-5, 1e0)),
        "clip_weight": _weight("Pixel range", 2.0, "Weight of pixels outside the range", (1e-2, 1e2)),
        "consensus_weight": _weight("Consensus", 0.0, "Weight of agreeing with the other epochs", (1e-2, 1e2)),
        "step_size": _weight("Step size", 0.4, "Of Adam", (1e-4, 1e1), can_be_off=False),
    }


def _choice(label: str, options: Any, value: str, tip: str) -> Any:
    return widgets.Dropdown(
        options=list(options), value=value, description=label, tooltip=tip, layout=_WIDE, style=_STYLE
    )


def _text(label: str, tip: str) -> Any:
    return widgets.Text(description=label, tooltip=tip, layout=_WIDE, style=_STYLE)


def _count(label: str, value: int, least: int, tip: str, most: int = 10**6) -> Any:
    # Continuous, so that what is derived follows what is typed.
    return widgets.BoundedIntText(
        value, min=least, max=most, continuous_update=True, description=label, tooltip=tip, layout=_WIDE, style=_STYLE
    )


def _number(label: str, value: float, tip: str) -> Any:
    return widgets.FloatText(value, continuous_update=True, description=label, tooltip=tip, layout=_WIDE, style=_STYLE)


def _weight(label: str, value: float, tip: str, span: tuple[float, float], *, can_be_off: bool = True) -> Any:
    """A slider whose stops are 1, 2, 5, 10, ...: from an unnoticeable weight to an overwhelming one, and off."""
    low, high = (round(math.log10(end)) for end in span)
    stops = [digit * 10.0**power for power in range(low, high) for digit in (1, 2, 5)] + [10.0**high]
    stops = [0.0] * can_be_off + [float(f"{stop:.1g}") for stop in stops]
    slider = widgets.SelectionSlider(
        options=[(_stop_text(stop), stop) for stop in stops],
        value=stops[-1],
        description=label,
        tooltip=tip,
        layout=_WIDE,
        style={"description_width": "84px"},
        continuous_update=False,
    )
    _set_stop(slider, value)
    return slider


def _set_stop(slider: Any, value: float) -> None:
    """Move the slider, with a stop of its own where the value has none."""
    values = [stop for _, stop in slider.options]
    if value not in values:
        slider.options = [(_stop_text(stop), stop) for stop in sorted([*values, value])]
    slider.value = value


def _stop_text(value: float) -> str:
    return "off" if value == 0 else f"{value:g}"
