"""Two attacks on the same images: one client, one set of buttons, one timeline, every picture in one place."""

import threading
from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from workbench.data import Truth
from workbench.errors import ConfigError
from workbench.session import AttackSession, Recording
from workbench.views.figures import THEMES
from workbench.views.grid.widget import Comparison
from workbench.views.looks import looks_of
from workbench.views.panel.controls import CLIENT
from workbench.views.panel.layout import BUTTONS, STYLE, arranged, command_button, legend_html, make_toggles, row
from workbench.views.panel.linked import LinkedAttack
from workbench.views.panel.shell import Shell, answer_sender
from workbench.views.panel.status import Command, refusals, run_label
from workbench.views.panel.worker import Painter, wait_in_turn

__all__ = ["ComparePanel"]

_COMMANDS = (
    *(Command.BUILD, Command.RUN, Command.PAUSE, Command.STEP, Command.STOP, Command.RESET),
    Command.REWIND,
)
_LINES = tuple(map(str, range(len(THEMES["light"].lines))))  # the grid's script has these colours by their numbers


class ComparePanel(widgets.VBox):  # type: ignore[misc]
    """The settings of the client and of each attack on the left; buttons for both, and both in one view, on the right.

    Args:
        first: a session; None attacks a client that the controls name, with the prior.
        second: another on the same images; None, where the first is None, attacks the same client without the prior.
        truth: the clients; empty where they are not known.
        names: of the two attacks; empty names them by their methods.

    Every command has a button, by name, as in `AttackPanel`; it acts on both attacks where it is allowed.
    """

    def __init__(
        self, first: AttackSession | None, second: AttackSession | None, truth: Truth, names: Sequence[str] = ()
    ) -> None:
        _check_images([source for source in (first, second) if source is not None], truth)
        self._given_names = tuple(names)
        self._lock = threading.RLock()
        self._painter = Painter(
            self._paint,
            lambda message: self.attacks[0].controller.report(message),  # noqa: PLW0108 - they are made later
        )
        self.attacks = tuple(
            LinkedAttack(truth, self._painter.request, self._show_state, self._show_sources, share=0.5)
            for _ in range(2)
        )
        self.comparison = Comparison([attack.grid for attack in self.attacks])
        self._buttons = {
            command: command_button(command, lambda one=command: self._do(one), " both") for command in _COMMANDS
        }
        for command, button in self._buttons.items():
            setattr(self, f"{command.name.lower()}_button", button)
        self.present_button, self.drawer_button = make_toggles(self)
        self.legend = widgets.HTML().add_class("wb-note")
        self.view = widgets.VBox([self.comparison]).add_class("wb-view-comparison")
        self.settings = self._make_settings()
        super().__init__([widgets.HTML(STYLE), Shell(), self._arranged()])
        self.add_class("wb-panel")
        for widget in (self, *self.comparison.grids):
            answer_sender(widget)
        if first is None:
            self._share_client()
        self._show_names()
        for attack, source in zip(self.attacks, (first, second), strict=True):
            attack.begin(source)

    def __repr__(self) -> str:
        sources = (attack.controller.workspace.source or "building its own client" for attack in self.attacks)
        return f"ComparePanel({', '.join(map(str, sources))})"

    @property
    def sessions(self) -> tuple[AttackSession | None, ...]:
        """The sessions that are shown, once those that are being built are ready."""
        for attack in self.attacks:
            attack.controller.worker.wait()
        return tuple(attack.controller.workspace.session for attack in self.attacks)

    def wait(self, timeout: float | None = None) -> bool:
        """Until both have nothing more to do and it is drawn; False where the time was not enough."""
        return wait_in_turn((*(attack.controller.wait for attack in self.attacks), self._painter.wait), timeout)

    def close(self) -> None:
        """End the threads of both, and remove them from the page."""
        # Also called for a panel whose arguments were refused before it had any of these.
        if hasattr(self, "attacks"):
            for attack in self.attacks:
                attack.controller.close()
            self._painter.close()
        super().close()

    # Parts

    def _make_settings(self) -> Any:
        """The client's settings once, and those of each attack."""
        first, second = (attack.controls.sections() for attack in self.attacks)
        shared = [title for title in first if title.startswith("Client")]
        boxes = [first[title] for title in shared]
        for attack, sections in zip(self.attacks, (first, second), strict=True):
            own = [box for title, box in sections.items() if title not in shared]
            own[0].children = (attack.controls.derived, *own[0].children)
            boxes += own
        self._titles = shared, [title for title in first if title not in shared]
        return widgets.Accordion(boxes, selected_index=0)

    def _arranged(self) -> Any:
        buttons = [button for command, button in self._buttons.items() if command is not Command.REWIND]
        parts = [row(*buttons, self.present_button, self.drawer_button)]
        for attack in self.attacks:
            attack.progress.style.description_width = "108px"
            parts += [widgets.HBox([attack.progress, attack.pace], layout={"align_items": "center"}), attack.status]
        timeline = widgets.VBox([self.comparison], layout={"flex": "1 1 320px", "min_width": "0"})
        parts += [self.legend, self.view, row(timeline.add_class("wb-view-timeline"), self.rewind_button)]
        return arranged(widgets.VBox([self.settings]), parts)

    def _share_client(self) -> None:
        """The client's controls, which belong to the first attack, choose the client for both."""
        first, second = (attack.controls for attack in self.attacks)

        def copy(name: str, value: Any) -> None:
            method = second["method"]
            second.fields[name].value = value
            second.show_values({"method": method})  # another data set means other settings, not another method
            second.update_abilities()

        for name in CLIENT:
            first.fields[name].observe(lambda change, name=name: copy(name, change["new"]), "value")
        second.show_values({"method": "ours_no_prior"})
        second.update_abilities()

    # What the controllers report, on any thread. Clicks set flags and return.

    def _do(self, command: Command) -> None:
        for attack in self.attacks:
            if command not in refusals(attack.controller.situation()):
                getattr(attack.controller, command.name.lower())()

    def _show_state(self) -> None:
        with self._lock:
            states = [attack.show_state() for attack in self.attacks]
            for command, button in self._buttons.items():
                reasons = [reasons[command] for _, reasons in states if command in reasons]
                button.disabled = len(reasons) == len(states)
                button.tooltip = reasons[0] if button.disabled else BUTTONS[command][1]
            labels = [run_label(situation) for situation, reasons in states if Command.RUN not in reasons]
            self.run_button.description = f"{labels[0] if labels else 'Run'} both"
            is_stale = any(situation.is_stale for situation, _ in states)
            (self.view.add_class if is_stale else self.view.remove_class)("wb-stale")

    def _show_sources(self) -> None:
        self.legend.value = legend_html(self.attacks[0].controller.workspace.truth)
        self._show_names()
        self._painter.request()

    def _show_names(self) -> None:
        """Name the attacks: as given, or by their methods, also after those were changed."""
        sources = [attack.controller.workspace.source for attack in self.attacks]
        methods = [
            attack.controls["method"] if source is None else source.config.method
            for attack, source in zip(self.attacks, sources, strict=True)
        ]
        names = [*(self._given_names or methods)]
        if names[0] == names[1]:
            names = [f"{name} ({number})" for number, name in enumerate(names, 1)]
        looks = looks_of(names, _LINES)
        shared, own = self._titles
        titles = [
            title.replace("Attack", name).replace("Steering", f"{name}, steering") for name in names for title in own
        ]
        with self._lock:
            self.settings.titles = (*shared, *titles)
            with self.comparison.hold_sync():
                self.comparison.names = names
                self.comparison.colours = [int(looks[name].colour) for name in names]
            for attack, name in zip(self.attacks, names, strict=True):
                attack.progress.description = name

    # Drawing, on the painter's thread.

    def _paint(self) -> bool:
        self._show_state()
        painted = [attack.paint(frozenset({"pixels"})) for attack in self.attacks]
        return any(one.has_more for one in painted)


def _check_images(sources: Sequence[AttackSession | Recording], truth: Truth) -> None:
    shapes = [source.reconstruction_at(source.num_steps).images.shape for source in sources]
    if truth and sources:
        shapes.append(truth.images.shape)
    if len(set(shapes)) > 1:
        raise ConfigError(f"the attacks and the truth have images of the shapes {shapes}; compare the same images.")
