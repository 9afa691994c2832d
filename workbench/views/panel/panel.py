"""One attack on screen: controls on the left, the run and its views on the right.

Callbacks of widgets set flags and return. What takes long (training the client, preparing an attack, files) is done by
the panel's `Worker`, the steps by the session's `SessionRunner`, and all drawing by the panel's `Painter`.
"""

from __future__ import annotations

import contextlib
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from dataclasses import replace
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ipywidgets as widgets
import numpy as np

from workbench.attack.cost import Cost, estimate_cost
from workbench.data.dataset import ClientData
from workbench.errors import CheckpointError, ConfigError, WorkbenchError, shown
from workbench.federated.observation import Observation
from workbench.files import container
from workbench.files.writing import write_atomically
from workbench.progress import duration
from workbench.session.checkpoint import KIND as CHECKPOINT
from workbench.session.history import Outcome
from workbench.session.recording import Recording, replay
from workbench.session.runner import RunnerState, SessionRunner
from workbench.session.session import AttackSession, Snapshot
from workbench.target import is_same_update
from workbench.training import native
from workbench.training.model import Model
from workbench.training.schedule import Schedule
from workbench.views.animation import write_animation
from workbench.views.panel.controls import Controls, Settings
from workbench.views.panel.scene import Scene, scene_at, scene_now
from workbench.views.panel.style import STYLE
from workbench.views.panel.tabs import (
    AttackerTab,
    AveragingTab,
    EpochsTab,
    LabelsTab,
    LossTab,
    MatchingTab,
    ReconstructionTab,
    Tab,
)
from workbench.views.panel.timeline import Timeline
from workbench.views.panel.worker import DRAWING, Painter, Worker

if TYPE_CHECKING:
    from workbench.views.panel.compare import ComparePanel

__all__ = ["AttackPanel"]

PICTURES_PER_SECOND = 8.0
CURVE_SECONDS = 0.5
EXPORTS = {"picture (PNG)": ".png", "animation (GIF)": ".gif", "report (HTML)": ".html", "recording": ".recording"}
_CHECKPOINT_SUFFIX = ".safetensors"

# Which panel shows a session: a cell that is run again makes a new panel, which takes over.
_showing: weakref.WeakValueDictionary[int, AttackPanel] = weakref.WeakValueDictionary()


class AttackPanel(widgets.VBox):  # type: ignore[misc]
    """An attack to look at and to steer, in a notebook.

    Args:
        source: a session to drive, or a recording to play; None attacks a client of the panel's own.
        truth: the client, or all clients of an aggregate, to compare with.
        stacked: controls above the views instead of beside them, for narrow places.

    In a notebook, ``wb.AttackPanel()`` as the last line of a cell shows it. Without one it can be driven too:

        >>> import workbench as wb
        >>> client = wb.load_dataset("glyphs").client(0, num_images=4)
        >>> model = wb.models.mlp(widths=(16,))
        >>> observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
        >>> panel = wb.AttackPanel(wb.AttackSession(model, observation, wb.AttackConfig(steps=5)), truth=client)
        >>> panel.run_button.click()
        >>> panel.runner.wait(timeout=60)
        True
        >>> panel.session.num_steps
        5
        >>> panel.close()
    """

    def __init__(
        self,
        source: AttackSession | Recording | None = None,
        truth: ClientData | Sequence[ClientData] | None = None,
        *,
        stacked: bool = False,
    ) -> None:
        if source is not None and not isinstance(source, AttackSession | Recording):
            raise ConfigError(f"source = {shown(source)} must be an AttackSession or a Recording.")
        self._lock = threading.RLock()
        self._truth = _clients(truth)
        self._session: AttackSession | None = None
        self._recording: Recording | None = None
        self._runner: SessionRunner | None = None
        self._snapshot: Snapshot | None = None
        self._scene: Scene | None = None
        self._given: tuple[Model, Observation] | None = None
        self._built: Settings | None = None
        self._client_built: tuple[Any, Model, tuple[ClientData, ...], Observation] | None = None
        self._has_changed = self._is_asked_to_run = False
        self._asked = ""  # "Pausing" or "Stopping", until it has happened or something else was asked for
        self._note = ""  # the last thing worth saying, until something else happens
        self._is_error = False
        self._curve_drawn = 0.0
        self._stepped_at = 0.0
        self._seconds_per_image: float | None = None
        self._last_status = ""
        self.forks: list[AttackPanel] = []
        self._worker = Worker(self._work_changed, self._work_failed)
        self._painter = Painter(self._paint, PICTURES_PER_SECOND, self._paint_failed)

        self.controls = Controls(self._setting_changed, self._steered)
        self._make_buttons()
        self._labels_tab = LabelsTab()
        self.tabs: list[Tab] = [
            ReconstructionTab(),
            EpochsTab(),
            MatchingTab(),
            AveragingTab(),
            self._labels_tab,
            LossTab(),
            AttackerTab(),
        ]
        for tab in self.tabs:
            tab.changed = self._painter.request
        self.views = widgets.Tab(self.tabs, titles=tuple(tab.title for tab in self.tabs))
        self.views.observe(lambda _: self._tab_chosen(), "selected_index")
        self.timeline = Timeline(self._painter.request, self._go_on_here)
        self._forked = widgets.VBox()
        super().__init__([widgets.HTML(STYLE), self._arranged(stacked), self._forked])
        self.add_class("wb-panel")

        if isinstance(source, Recording):
            self._adopt_recording(source)
        elif source is not None:
            self._take_given(source)
        else:
            self._submit_build()
        self._update_abilities()
        self._painter.request()

    def __repr__(self) -> str:
        source = self._recording or self._session
        return f"AttackPanel({'building its own client' if source is None else source})"

    @staticmethod
    def compare(
        first: AttackSession | None = None,
        second: AttackSession | None = None,
        truth: ClientData | Sequence[ClientData] | None = None,
    ) -> ComparePanel:
        """Two panels on the same client side by side, started together; without sessions, with and without prior."""
        from workbench.views.panel.compare import ComparePanel

        return ComparePanel(first, second, truth)

    # What it shows

    @property
    def session(self) -> AttackSession | None:
        """The session that is shown, once what is being built is ready; None for a recording."""
        self._worker.wait()
        return self._session

    @property
    def recording(self) -> Recording | None:
        """The recording that is played, if any."""
        self._worker.wait()
        return self._recording

    @property
    def runner(self) -> SessionRunner:
        """What drives the session, once it is ready."""
        self._worker.wait()
        if self._runner is None:
            raise ConfigError(f"this panel drives no session: {self._note or 'it plays a recording.'}")
        return self._runner

    @property
    def truth(self) -> tuple[ClientData, ...]:
        """The clients, where they are known."""
        return self._truth

    @property
    def status_text(self) -> str:
        """What the status line says."""
        return self._last_status

    def wait(self, timeout: float | None = None) -> bool:
        """Until nothing is being built, written or run, and all of it is drawn; False where the time was not enough."""
        deadline = None if timeout is None else time.monotonic() + timeout

        def left() -> float | None:
            return None if deadline is None else max(0.0, deadline - time.monotonic())

        if not self._worker.wait(left()):
            return False
        if self._runner is not None:
            # What made it fail is on the status line.
            with contextlib.suppress(Exception):
                if not self._runner.wait(left()):
                    return False
        self._painter.request()
        return self._painter.wait(left())

    def close(self) -> None:
        """End its threads after what they are doing, and remove it from the page."""
        # Also called for what was refused before it had any of these.
        for part in (getattr(self, "_worker", None), getattr(self, "_painter", None), *getattr(self, "forks", ())):
            if part is not None:
                part.close()
        runner: SessionRunner | None = getattr(self, "_runner", None)
        if runner is not None:
            runner.stop()
        super().close()

    # Parts

    def _make_buttons(self) -> None:
        self._tips: dict[Any, str] = {}
        self.build_button = self._button("Build", "cogs", "Train the client and prepare the attack", self._build)
        self.run_button = self._button("Run", "play", "Make all steps", self._run)
        self.pause_button = self._button("Pause", "pause", "Hold after the current step", self._pause)
        self.step_button = self._button("Step", "step-forward", "Make one step", self._step)
        self.stop_button = self._button("Stop", "stop", "End the run after the current step", self._stop)
        self.reset_button = self._button("Reset", "fast-backward", "Back to the first noise", self._reset)
        self.fork_button = self._button("Fork", "code-fork", "Go on in a second panel, from this moment", self._fork)
        self.save_button = self._button("Save", "save", "Write a checkpoint to go on from", self._save)
        self.load_button = self._button("Load", "folder-open", "Read a checkpoint or a recording", self._load)
        self.export_button = self._button("Export", "download", "Write what is chosen beside", self._export)
        self.run_button.button_style = "primary"
        self.file = widgets.Text("attack", description="File", tooltip="Its name, beside the notebook")
        self.export = widgets.Dropdown(options=list(EXPORTS), description="Export as", tooltip="What Export writes")
        for field, label_width, width in ((self.file, "30px", "190px"), (self.export, "64px", "220px")):
            field.style.description_width, field.layout.width = label_width, width
        self.progress = widgets.IntProgress(
            0, 0, 1, description="Progress", layout={"width": "auto", "flex": "1 1 auto"}
        )
        self.progress.tooltip = "Steps made of all steps"
        self.pace = widgets.HTML()
        self.pace.layout.min_width = "210px"
        self.status = widgets.HTML()
        self.status.add_class("wb-status")

    def _button(self, label: str, icon: str, tip: str, action: Callable[[], None]) -> Any:
        button = widgets.Button(description=label, icon=icon, tooltip=tip, layout={"width": "auto"})
        button.on_click(lambda _: self._guarded(action))
        self._tips[button] = tip
        return button

    def _arranged(self, stacked: bool) -> Any:
        wrap = widgets.Layout(flex_flow="row wrap", align_items="center")
        run = [self.build_button, self.run_button, self.pause_button, self.step_button, self.stop_button]
        files = [self.file, self.save_button, self.load_button, self.export, self.export_button]
        right = widgets.VBox(
            [
                widgets.HBox([*run, self.reset_button, self.fork_button], layout=wrap),
                widgets.HBox([self.progress, self.pace], layout={"align_items": "center"}),
                self.status,
                self.views,
                self.timeline,
                widgets.HBox(files, layout=wrap),
            ]
        )
        left = self.controls.column()
        if stacked:
            self.controls.sections.selected_index = None
            return widgets.VBox([left, right])
        left.layout.flex, right.layout.flex = "1 1 290px", "4 1 520px"
        left.layout.max_width = "330px"
        right.layout.min_width = "min(520px, 100%)"
        return widgets.HBox([left, right], layout=widgets.Layout(flex_flow="row wrap", grid_gap="0 16px"))

    # Buttons. They set flags and return.

    def _guarded(self, action: Callable[[], None]) -> None:
        """A click in a wrong order is answered on the status line, never with a traceback."""
        try:
            action()
        except Exception as error:  # whatever it is, a person has to be told
            self._tell(_in_words(error), is_error=True)
        self._update_abilities()
        self._show_status()

    def _refuse(self, button: Any) -> bool:
        """Whether a button that is switched off was pressed all the same; then the status line says why."""
        reason = self._button_reasons().get(button, "")
        if reason:
            self._tell(reason)
        return bool(reason)

    def _build(self) -> None:
        if not self._refuse(self.build_button):
            self._is_asked_to_run, self._asked = False, ""
            self._submit_build()

    def _run(self) -> None:
        if self._refuse(self.run_button):
            return
        runner = self._runner
        self._tell("")
        self._is_asked_to_run, self._asked = True, ""
        if self._has_changed or self._built is None:
            self._submit_build()
        elif runner is not None and runner.is_active:
            runner.resume()
            self._stepped_at = time.monotonic()
            self._painter.request()
            return
        self._worker.submit("Starting", self._start)

    def _pause(self) -> None:
        if self._refuse(self.pause_button):
            return
        self._is_asked_to_run, self._asked = False, "Pausing"
        if self._runner is not None:
            self._runner.pause()
        self._tell("")

    def _stop(self) -> None:
        if self._refuse(self.stop_button):
            return
        self._is_asked_to_run, self._asked = False, "Stopping"
        self._worker.cancel_waiting()
        if self._runner is not None:
            self._runner.stop()
        self._tell("")

    def _step(self) -> None:
        if self._refuse(self.step_button):
            return
        self._tell("")
        self._asked = ""
        if self._has_changed or self._built is None:
            self._submit_build()
        self._worker.submit("Starting", self._start_one)

    def _reset(self) -> None:
        if self._refuse(self.reset_button):
            return
        self._is_asked_to_run, self._asked = False, "Stopping"
        if self._runner is not None:
            self._runner.stop()
        self._worker.submit("Going back to the start", self._rewind_to_start)

    def _go_on_here(self) -> None:
        def rewind() -> None:
            step = self.timeline.step
            if self._refuse(self.timeline.rewind_button) or step is None:
                return
            self._worker.submit(f"Going back to step {step}", lambda: self._rewind(step))

        self._guarded(rewind)

    def _fork(self) -> None:
        session = self._session
        if self._refuse(self.fork_button) or session is None:
            return
        copy = session.fork()
        self._worker.submit("Forking", lambda: self._show_fork(copy))

    def _save(self) -> None:
        session = self._session
        if self._refuse(self.save_button) or session is None:
            return
        path = self._path(_CHECKPOINT_SUFFIX)
        self._worker.submit(f"Saving {path.name}", lambda: self._write(path, lambda: session.save(path)))

    def _load(self) -> None:
        if self._refuse(self.load_button):
            return
        name = self._file_name()
        self._worker.submit(f"Loading {name}", lambda: self._read(name))

    def _export(self) -> None:
        source = self._recording or self._session
        if self._refuse(self.export_button) or source is None:
            return
        kind = self.export.value
        path = self._path(EXPORTS[kind])
        tab, truth = self._tab, self._truth

        def picture() -> None:
            self._painter.request()
            self._painter.wait(10)
            png = tab.png
            if png is None:
                raise ConfigError(f"the tab {tab.title} shows no picture now; choose another one to export.")
            write_atomically(path, png)

        def report() -> None:
            from workbench.views.report import write_report

            if isinstance(source, Recording):
                raise ConfigError("a report is made of a session, and this panel plays a recording.")
            with DRAWING:
                write_report(path, source.fork(), truth or None)

        def recording() -> None:
            if isinstance(source, Recording):
                source.save(path)
            else:
                source.record(path, truth or None)

        writers = {".png": picture, ".gif": lambda: write_animation(path, source, truth or None), ".html": report}
        writer = writers.get(path.suffix, recording)
        self._worker.submit(f"Writing {path.name}", lambda: self._write(path, writer))

    def _file_name(self) -> str:
        name = str(self.file.value).strip()
        if not name:
            raise ConfigError("file = '' must be a name, such as attack.")
        return name

    def _path(self, suffix: str) -> Path:
        path = Path(self._file_name()).expanduser()
        return path if path.suffix == suffix else path.with_name(path.name + suffix)

    # Jobs. On the worker's thread.

    def _submit_build(self) -> None:
        settings = self.controls.settings()
        if self._runner is not None:
            self._runner.stop()
        self._tell("")
        self._built, self._has_changed = settings, False
        self._worker.submit("Building: the client trains, the attack gets ready", lambda: self._make(settings))

    def _make(self, settings: Settings) -> None:
        self._end_runner()
        try:
            model, truth, observation = self._observe(settings)
            counts = np.stack([one.label_counts for one in truth]) if settings.label_source == "known" else None
            session = AttackSession(model, observation, settings.config, label_counts=counts, seed=settings.seed)
        except BaseException:
            self._built, self._has_changed, self._is_asked_to_run = None, True, False
            self._worker.cancel_waiting()
            raise
        if settings.update_weight != 1:
            session.steer(update_weight=settings.update_weight)
        self._adopt(session, truth, settings)

    def _observe(self, settings: Settings) -> tuple[Model, tuple[ClientData, ...], Observation]:
        """The update: the given one, or that of the client that the controls name, trained once for many attacks."""
        if self._given is not None or settings.target is None:
            if self._given is None:
                raise ConfigError("there is no update to attack: choose a client.")
            model, observation = self._given
            return model, self._truth, observation
        if self._client_built is None or self._client_built[0] != settings.target:
            model, clients = settings.target.load()
            observation = settings.target.observe(model, clients)
            self._client_built = (settings.target, model, tuple(clients), observation)
        return self._client_built[1:]

    def _take_given(self, session: AttackSession) -> None:
        self._given = (session.model, session.observation)
        self.controls.show_observation(session.observation)
        self.controls.locked_client = "This panel was given an update; wb.AttackPanel() lets you choose the client."
        self._adopt(session, self._truth, None)

    def _adopt(self, session: AttackSession, truth: tuple[ClientData, ...], settings: Settings | None) -> None:
        """Show and drive a session from now on."""
        other = _showing.get(id(session))
        if other is not None and other is not self and other._runner is not None:
            other._runner.stop()
        _showing[id(session)] = self
        with self._lock:
            self._recording, self._truth, self._session = None, truth, session
            self.controls.locked, self.controls.knows_truth = "", bool(truth)
            if settings is None:
                true = [one.label_counts for one in truth]
                is_known = bool(truth) and np.array_equal(session.label_counts, true)
                source = "known" if is_known else session.config.label_method
                self.controls.show_config(session.config, label_source=source)
                with self.controls.quietly():
                    self.controls.fields["seed"].value = session.seed
                self.controls.show_steering(session.steering)
                settings = self.controls.settings()
            self._built, self._has_changed = settings, False
            self._seconds_per_image = None
            self._runner = SessionRunner(session)
            self._runner.add_listener(self._stepped)
            self._show_anew(session.snapshot())
        self._setting_changed("")

    def _adopt_recording(self, recording: Recording) -> None:
        """Play a recording from now on; nothing is computed."""
        with self._lock:
            self._session = self._runner = None
            self._recording, self._truth = recording, recording.truth
            self.controls.locked = "A recording plays without computing; Build makes an attack of its own."
            if self._given is not None:
                self.controls.locked = "A recording plays without computing."
            self.controls.show_config(recording.config, label_source=recording.config.label_method)
            client = recording.client
            with self.controls.quietly():
                for name in ("num_images", "epochs", "batch_size", "learning_rate", "num_clients"):
                    self.controls.fields[name].value = client[name]
            self._has_changed = False
            self._show_anew(None)
        self.controls.update_abilities()
        self.controls.derived.value = escape(f"{len(recording.frames)} recorded moments")

    def _show_anew(self, snapshot: Snapshot | None) -> None:
        self._snapshot, self._scene = snapshot, None
        self._labels_tab.estimates = None if self._recording is None else self._recording.labels
        self.timeline.follow()
        self._tab_chosen()

    def _start(self) -> None:
        """Begin the run, unless it was paused while the session was being built."""
        runner = self._runner
        if not self._is_asked_to_run or runner is None:
            return
        if runner.session.outcome is Outcome.FINISHED:
            self._tell(f"All {runner.session.total_steps} steps are made: Step makes more, Reset begins again.")
            return
        self._begin(runner)

    def _start_one(self) -> None:
        if self._runner is not None:
            self._begin(self._runner, 1)

    def _begin(self, runner: SessionRunner, steps: int | None = None) -> None:
        self._end_runner()
        self.timeline.follow()
        self._stepped_at = time.monotonic()
        runner.start(steps)

    def _end_runner(self) -> None:
        """Stop it and wait for the step or compilation under way."""
        if self._runner is not None:
            self._runner.stop()
            # How it ended does not matter any more.
            with contextlib.suppress(Exception):
                self._runner.wait()

    def _rewind_to_start(self) -> None:
        self._rewind(0)
        if self._built is not None and self._session is not None:
            self.controls.show_config(self._session.config, label_source=self._built.label_source)
            self._has_changed = False

    def _rewind(self, step: int) -> None:
        session = self._session
        if session is None:
            return
        self._end_runner()
        session.rewind(step)
        self.controls.show_steering(session.steering)
        self._show_anew(session.snapshot())
        self._tell(f"Back at step {session.num_steps}.")

    def _show_fork(self, session: AttackSession) -> None:
        panel = AttackPanel(session, self._truth or None)
        self.forks.append(panel)
        self._forked.children = (
            *self._forked.children,
            widgets.HTML(f"<h3>Fork at step {session.num_steps}</h3>"),
            panel,
        )
        self._tell(f"Forked at step {session.num_steps}: the copy is below, and goes its own way.")

    def _write(self, path: Path, writer: Callable[[], None]) -> None:
        try:
            writer()
        except OSError as error:
            raise ConfigError(f"file = {str(path)!r} cannot be written: {error.strerror or error}.") from None
        self._tell(f"Wrote {path} ({max(1, round(path.stat().st_size / 1000))} kB).")

    def _read(self, name: str) -> None:
        path = _existing(Path(name).expanduser())
        kind = container.kind_of(path)
        if kind == CHECKPOINT:
            session = AttackSession.load(path)
            self._end_runner()
            known = self._truth if self._is_known_update(session.observation) else ()
            self._given = (session.model, session.observation)
            self.controls.show_observation(session.observation)
            self.controls.locked_client = "The client is that of the file which was loaded."
            self._adopt(session, known, None)
            missing = "" if known else " It does not hold the truth, so there is nothing to compare with."
            self._tell(f"Loaded {path} at step {session.num_steps}.{missing}")
        else:
            recording = replay(path)
            self._end_runner()
            self._adopt_recording(recording)
            self._tell(f"Loaded {path}: {len(recording.frames)} moments to play.")

    def _is_known_update(self, observation: Observation) -> bool:
        """Whether the truth that the panel knows belongs to this update."""
        return self._session is not None and is_same_update(self._session.observation, observation)

    def _estimate_labels(self) -> None:
        session = self._session
        if session is not None and self._labels_tab.estimates is None:
            estimates = session.formula_labels
            if session is self._session:
                self._labels_tab.estimates = estimates
                self._painter.request()

    def _estimate_needs(self) -> None:
        """What the settings as they stand would take; on the worker, because shapes are traced for it."""
        try:
            settings = self.controls.settings()
            needs, local = self._needs(settings)
        except WorkbenchError as error:
            self.controls.derived.value = f"<b>⚠ {escape(str(error))}</b>"
            return
        megabytes = max(1, round(needs.memory / 1e6))
        seconds = None
        if self._seconds_per_image is not None:
            seconds = sum(steps * images for steps, images in needs.phases) * self._seconds_per_image
        taken = "time known after the first steps" if seconds is None else f"about {duration(seconds)} in all"
        told = [f"{local} · {needs.steps} attack steps · about {megabytes} MB · {taken}"]
        if advice := native.advice():
            told.append(advice)
        self.controls.derived.value = "<br>".join(map(escape, told))

    def _needs(self, settings: Settings) -> tuple[Cost, str]:
        target = settings.target
        if target is None:
            if self._given is None:
                raise ConfigError("there is no update yet.")
            model, observed = self._given
            sizes = {
                "num_images": observed.num_images,
                "epochs": observed.epochs,
                "batch_size": observed.batch_size,
                "num_clients": observed.num_clients,
            }
        else:
            if self._client_built is not None and self._client_built[0].dataset == target.dataset:
                known = self._client_built[1]
                model = known if target.network in (None, known.name) else target.load()[0]
            else:
                model = replace(target, num_images=1, num_clients=1).load()[0]
            sizes = {
                "num_images": target.num_images,
                "epochs": target.client.epochs,
                "batch_size": target.client.batch_size,
                "num_clients": target.num_clients,
            }
        batches = -(-sizes["num_images"] // sizes["batch_size"])
        local = f"{batches} batches an epoch · {sizes['epochs'] * batches} local steps"
        num_clients = sizes.pop("num_clients")
        return estimate_cost(model, settings.config, Schedule(**sizes), num_clients), local

    # What happens by itself

    def _setting_changed(self, name: str) -> None:
        """A control was moved: say what it would take, and whether a new session is needed."""
        try:
            settings = self.controls.settings()
        except WorkbenchError:
            settings = None
        if self._recording is None:
            built = self._built
            self._has_changed = built is None or settings is None or settings.without_steering != built.without_steering
            self._worker.submit("Estimating what this takes", self._estimate_needs, replaces=True)
        self.controls.update_abilities()
        self._update_abilities()
        self._show_status()

    def _steered(self, name: str, value: float) -> None:
        def steer() -> None:
            if self._session is not None:
                self._session.steer(**{name: value})
                self._tell(f"{name} = {value:g} from step {self._session.num_steps} on.")
            self._painter.request()

        self._guarded(steer)

    def _stepped(self, snapshot: Snapshot) -> None:
        """A listener, on the runner's thread."""
        self._snapshot, self._stepped_at = snapshot, time.monotonic()
        if self._runner is not None and not self._runner.is_active:
            self._seconds_per_image = None  # better known now than after the first steps
            if not self._is_error:
                self._note = ""  # what was said about the run is over with it
        self._painter.request()

    def _tab_chosen(self) -> None:
        self._curve_drawn = 0.0
        if self._tab is self._labels_tab and self._labels_tab.estimates is None and self._session is not None:
            self._worker.submit("Estimating the labels", self._estimate_labels, replaces=True)
        self._painter.request()

    @property
    def _tab(self) -> Tab:
        return self.tabs[self.views.selected_index or 0]

    def _work_changed(self) -> None:
        self._update_abilities()
        self._show_status()
        self._painter.request()

    def _work_failed(self, error: BaseException) -> None:
        self._is_asked_to_run = False
        self._tell(_in_words(error), is_error=True)

    def _paint_failed(self, error: BaseException) -> None:
        self._tell(f"This cannot be drawn: {_in_words(error)}", is_error=True)
        self._show_status()

    # Drawing. On the painter's thread.

    def _paint(self) -> bool:
        """Draw the newest state; whether there is more to come without a request."""
        runner = self._runner
        is_running = runner is not None and runner.state is RunnerState.RUNNING
        if self._session is not None and not is_running:
            self._snapshot = self._session.snapshot()  # a cell of the notebook may have made steps
        snapshot = self._snapshot
        self._show_progress()
        self._update_abilities()
        self._show_status()
        source = self._recording or self._session
        if source is None:
            return self._worker.is_busy
        self.timeline.show(
            source.history.snapshot_steps,
            snapshot.step if snapshot is not None and self._recording is None else source.num_steps,
            is_recording=self._recording is not None,
        )
        tab = self._tab
        if tab.is_curve and time.monotonic() - self._curve_drawn < CURVE_SECONDS and is_running:
            return True
        scene = self._scene_to_draw(source, snapshot)
        tab.draw(scene, 1 if is_running else 2)
        if tab.is_curve:
            self._curve_drawn = time.monotonic()
        return is_running or self._worker.is_busy or self.timeline.is_settling

    def _scene_to_draw(self, source: AttackSession | Recording, snapshot: Snapshot | None) -> Scene:
        step, kept = self.timeline.step, self._scene
        newest = snapshot.step if snapshot is not None and self._recording is None else source.num_steps
        wanted = newest if step is None else step
        if kept is not None and kept.source is source and kept.step == wanted and kept.truth == self._truth:
            return kept
        if isinstance(source, AttackSession) and step is None and snapshot is not None:
            scene = scene_now(source, snapshot, self._truth)
        else:
            scene = scene_at(source, wanted, self._truth)
        self._scene = scene
        return scene

    def _show_progress(self) -> None:
        source, snapshot = self._recording or self._session, self._snapshot
        if source is None:
            return
        step = snapshot.step if snapshot is not None else source.num_steps
        for name, value in (("max", max(source.total_steps, step)), ("value", step)):
            if getattr(self.progress, name) != value:
                setattr(self.progress, name, value)
        text = f"{step} of {source.total_steps} steps"
        seconds = source.seconds_per_step
        if isinstance(source, AttackSession) and seconds:
            left = source.seconds_left
            text += f" · {1 / seconds:.1f} steps/s"
            if left:
                text += f" · {duration(left)} left"
            self._measure(source, seconds)
        if self.pace.value != text:
            self.pace.value = text

    def _measure(self, session: AttackSession, seconds: float) -> None:
        if self._built is None:
            return
        needs, _ = self._needs(self._built) if self._seconds_per_image is None else (None, "")
        if needs is not None:
            is_warm = session.num_steps < session.config.warm_start_steps
            self._seconds_per_image = seconds / needs.phases[0 if is_warm else -1][1]
            self._worker.submit("Estimating what this takes", self._estimate_needs, replaces=True)

    # Saying

    def _tell(self, text: str, *, is_error: bool = False) -> None:
        self._note, self._is_error = text, is_error
        self._show_status()

    def _show_status(self) -> None:
        """Say how things stand; from any thread, so that no older word overtakes a newer one."""
        with self._lock:
            text, is_error = self._status()
            if text == self._last_status:
                return
            self._last_status = text
            mark = "⚠ " if is_error else ""
            kind = " class='wb-error'" if is_error else ""
            self.status.value = f"<span role='status'{kind}>{mark}{escape(text)}</span>"

    def _status(self) -> tuple[str, bool]:
        runner, job = self._runner, self._worker.current
        note = f" {self._note}" if self._note else ""
        if runner is not None and runner.error is not None and not self._note:
            return _in_words(runner.error), True
        if self._is_error:
            return self._note, True
        if runner is not None and runner.state is RunnerState.RUNNING:
            doing = self._doing(runner)
            if self._asked:
                return f"{self._asked}, after this: {doing[0].lower()}{doing[1:]}.", False
            return f"{doing} …{note}", False
        if job is not None and not job.startswith("Estimating"):
            if self._asked:
                return f"{self._asked}, after this: {job[0].lower()}{job[1:]}.", False
            return f"{job} …", False
        if runner is not None and runner.state is RunnerState.PAUSED:
            return f"Paused at step {runner.session.num_steps}: steer, scrub back, step, or run on.{note}", False
        if self._note:
            return self._note, False
        if self._recording is not None:
            return f"A recording: {len(self._recording.frames)} moments to play and scrub; nothing is computed.", False
        if self._session is None:
            return "Nothing is built yet: Build or Run begins.", False
        if self._has_changed:
            return "The settings have changed: Build or Run makes a new attack with them.", False
        return self._resting(self._session), False

    def _doing(self, runner: SessionRunner) -> str:
        session, step = runner.session, runner.session.num_steps
        waiting = time.monotonic() - self._stepped_at
        if step == 0 or (step == session.config.warm_start_steps and waiting > 0.5):
            return f"Compiling step {step + 1}, which takes some seconds ({waiting:.0f} s)"
        warm = " of the warm start" if step < session.config.warm_start_steps else ""
        return f"Running: step {step + 1}{warm}"

    def _resting(self, session: AttackSession) -> str:
        steps = session.num_steps
        if session.outcome is Outcome.NEW:
            return "Ready: Run starts the attack."
        if session.outcome is Outcome.DIVERGED:
            return f"At step {steps} the attack {Outcome.DIVERGED.value}. Steer, scrub back and go on from there."
        if session.outcome is Outcome.FINISHED:
            return f"Finished: {Outcome.FINISHED.value}, {steps} in number."
        return f"Stopped at step {steps}: Run goes on."

    # What can be pressed

    def _button_reasons(self) -> dict[Any, str]:
        """Why buttons are switched off."""
        reasons: dict[Any, str] = {}
        runner, session, job = self._runner, self._session, self._worker.current
        is_running = runner is not None and runner.state is RunnerState.RUNNING
        is_building = job is not None and job.startswith(("Building", "Starting"))
        if self._recording is not None:
            reasons |= dict.fromkeys(
                (self.run_button, self.pause_button, self.step_button, self.stop_button),
                "A recording plays with the timeline below; nothing is computed.",
            )
            reasons |= dict.fromkeys(
                (self.reset_button, self.fork_button, self.save_button, self.timeline.rewind_button),
                "A recording cannot go on: it has no session.",
            )
            return reasons
        if is_running:
            reasons[self.run_button] = "The attack is running."
            reasons[self.step_button] = "The attack is running: pause it first."
        elif not is_building:
            is_held = runner is not None and runner.state is RunnerState.PAUSED
            reasons[self.pause_button] = "Nothing is running."
            if not is_held:
                reasons[self.stop_button] = "Nothing is running."
        if session is None:
            without = "There is no attack yet: build one first."
            reasons |= dict.fromkeys(
                (self.reset_button, self.fork_button, self.save_button, self.export_button), without
            )
        elif session.outcome is Outcome.DIVERGED and not self._has_changed:
            why = "The attack has diverged: scrub back, go on from there, and steer."
            reasons |= {self.run_button: why, self.step_button: why}
        if is_running:
            reasons[self.timeline.rewind_button] = "The attack is running: pause it first."
        elif self.timeline.step is None:
            reasons[self.timeline.rewind_button] = "Scrub back first: this is the newest moment."
        return reasons

    def _update_abilities(self) -> None:
        reasons = self._button_reasons()
        tips = {**self._tips, self.timeline.rewind_button: "Forget what came after, and go on from this moment"}
        with self._lock:
            for button, tip in tips.items():
                reason = reasons.get(button, "")
                for trait, value in (("disabled", bool(reason)), ("tooltip", reason or tip)):
                    if getattr(button, trait) != value:
                        setattr(button, trait, value)
            label = "Build and run" if self._has_changed and self._session is not None else "Run"
            if self._runner is not None and self._runner.state is RunnerState.PAUSED and not self._has_changed:
                label = "Run on"
            if self.run_button.description != label:
                self.run_button.description = label


def _clients(truth: ClientData | Sequence[ClientData] | None) -> tuple[ClientData, ...]:
    clients = () if truth is None else (truth,) if isinstance(truth, ClientData) else tuple(truth)
    if not all(isinstance(client, ClientData) for client in clients):
        raise ConfigError("truth must be a ClientData, or a sequence of them for an aggregate.")
    return clients


def _existing(path: Path) -> Path:
    """The file of that name, with one of the panel's own endings where the name has none."""
    for candidate in (path, *(path.with_name(path.name + end) for end in (_CHECKPOINT_SUFFIX, EXPORTS["recording"]))):
        if candidate.is_file():
            return candidate
    raise CheckpointError(f"file = {str(path)!r} does not exist; name a checkpoint or a recording.")


def _in_words(error: BaseException) -> str:
    if isinstance(error, WorkbenchError):
        return str(error)
    return f"Something went wrong ({type(error).__name__}): {shown(str(error))}"
