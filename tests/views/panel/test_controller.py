"""The controller without any widget: its states, what leads from one to another, and what it reports."""

import ast
import graphlib
import threading
from dataclasses import replace
from pathlib import Path

import pytest

import workbench as wb
from workbench.data import Truth
from workbench.target import LESSON
from workbench.views import panel as package
from workbench.views.panel.controller import Controller, View
from workbench.views.panel.scenarios import SCENARIOS
from workbench.views.panel.status import GIVEN, Job, Stage, State, status_of
from workbench.views.panel.workspace import Settings, Workspace

CONFIG = wb.AttackConfig(steps=6)
LONG = wb.AttackConfig(steps=100_000)
FOLDER = Path(package.__file__).parent


def imports(name):
    """The modules and names that a file of the panel imports, lazily too."""
    found = set()
    for node in ast.walk(ast.parse((FOLDER / f"{name}.py").read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found |= {node.module, *(f"{node.module}.{alias.name}" for alias in node.names)}
    return found


IMPORTS = {path.stem: imports(path.stem) for path in FOLDER.glob("*.py") if path.stem != "__init__"}
GRAPH = {name: {other for other in IMPORTS if f"workbench.views.panel.{other}" in IMPORTS[name]} for name in IMPORTS}


def test_no_file_of_the_panel_imports_itself_through_another():
    graphlib.TopologicalSorter(GRAPH).prepare()


@pytest.mark.parametrize("name", ["controller", "files", "scenarios", "status", "workspace"])
def test_what_decides_imports_no_widgets(name):
    reached, waiting = set(), {name}
    while waiting:
        reached |= waiting
        waiting = {other for file in waiting for other in GRAPH[file]} - reached
    widgets = ("ipywidgets", "traitlets", "IPython", "anywidget")
    wrong = [f"{file}: {module}" for file in reached for module in IMPORTS[file] if module.startswith(widgets)]
    assert not wrong, f"{name} reaches widgets through {wrong}"


class Person:
    """Settings that a test changes in place of a person, and what the view was asked to show."""

    def __init__(self, config=CONFIG):
        self.config, self.error, self.viewed, self.calls, self.scenario = config, None, None, [], None

    def settings(self):
        if self.scenario is not None:
            return self.scenario.settings
        if self.error is not None:
            raise self.error
        return Settings(target=None, config=self.config, label_source="known", update_weight=1.0, seed=0)

    def view(self):
        return View(
            settings=self.settings,
            viewed_step=lambda: self.viewed,
            show_source=lambda: self.calls.append("source"),
            show_settings=lambda: self.calls.append("settings"),
            show_scenario=self.choose,
        )

    def choose(self, scenario):
        self.scenario = scenario


@pytest.fixture
def make(make_session, client):
    """A controller in a state, with the settings that it reads; it ends with the test."""
    made = []

    def controller(config=CONFIG, *, is_empty=False):
        person = Person(config)
        control = Controller(person.view(), Truth.of(client))
        made.append(control)
        if not is_empty:
            control.show(make_session(config))
        return control, person

    yield controller
    for control in made:
        control.close()
        assert control.wait(60), "a run did not end after the controller was closed"


def fail(self, n=1):
    raise RuntimeError("the device is gone")


@pytest.fixture
def reach(make, make_session, client, until, monkeypatch):
    """Bring a controller into a state."""

    def started(control):
        control.run()
        until(lambda: control.workspace.session.num_steps > 2, "some steps")

    def reach(state):
        control, person = make(
            LONG if state in (State.RUNNING, State.PAUSED) else CONFIG, is_empty=state is State.EMPTY
        )
        if state is State.BUILDING:
            gate, build = threading.Event(), Workspace.build
            monkeypatch.setattr(Workspace, "build", lambda self, *given: gate.wait(60) and build(self, *given))
            control.gate = gate
            assert control.wait(60)
            control.build()
            return control, person
        if state in (State.RUNNING, State.PAUSED):
            started(control)
        if state is State.PAUSED:
            control.pause()
            assert control.workspace.runner.wait_until_paused(60)
        if state is State.STOPPED:
            control.step()
        if state is State.FINISHED:
            control.run()
        if state is State.DIVERGED:
            control.steer(step_size=1e30)
            control.run()
        if state is State.FAILED:
            with monkeypatch.context() as patch:
                patch.setattr(wb.AttackSession, "step", fail)
                control.run()
                assert control.wait(60)
        if state is State.REPLAYING:
            control.show(wb.Recording.of(make_session(CONFIG), client))
        if state not in (State.RUNNING, State.PAUSED):
            assert control.wait(60)
        return control, person

    return reach


@pytest.mark.parametrize("state", State)
def test_every_state_is_reached_and_has_a_sentence(reach, state):
    control, _ = reach(state)
    assert control.state is state
    assert status_of(control.situation()).text
    if state is State.BUILDING:
        control.gate.set()


# From a state, by a request, to a state once everything has come to rest.
TRANSITIONS = [
    (State.READY, "run", State.FINISHED),
    (State.READY, "step", State.STOPPED),
    (State.READY, "build", State.READY),
    (State.READY, "reset", State.READY),
    (State.READY, "pause", State.READY),
    (State.RUNNING, "stop", State.STOPPED),
    (State.RUNNING, "reset", State.READY),
    (State.RUNNING, "build", State.READY),
    (State.PAUSED, "stop", State.STOPPED),
    (State.PAUSED, "step", State.STOPPED),
    (State.PAUSED, "reset", State.READY),
    (State.STOPPED, "run", State.FINISHED),
    (State.STOPPED, "reset", State.READY),
    (State.FINISHED, "run", State.FINISHED),
    (State.FINISHED, "step", State.FINISHED),
    (State.FINISHED, "reset", State.READY),
    (State.DIVERGED, "run", State.DIVERGED),
    (State.DIVERGED, "reset", State.READY),
    (State.DIVERGED, "build", State.READY),
    (State.FAILED, "run", State.FINISHED),
    (State.FAILED, "reset", State.READY),
    (State.REPLAYING, "run", State.REPLAYING),
    (State.REPLAYING, "reset", State.REPLAYING),
    (State.REPLAYING, "build", State.READY),
    (State.EMPTY, "run", State.EMPTY),
    (State.EMPTY, "build", State.EMPTY),
]


@pytest.mark.parametrize(("before", "request_name", "after"), TRANSITIONS)
def test_a_request_leads_from_state_to_state(reach, before, request_name, after):
    control, _ = reach(before)
    getattr(control, request_name)()
    assert control.wait(60)
    assert control.state is after, status_of(control.situation())


def test_a_run_is_paused_and_resumed(reach, until):
    control, _ = reach(State.PAUSED)
    held = control.workspace.session.num_steps
    control.run()
    until(lambda: control.workspace.session.num_steps > held, "the run goes on")
    assert control.state is State.RUNNING


@pytest.mark.parametrize(("request_name", "word"), [("pause", "Pausing"), ("stop", "Stopping")])
def test_what_is_asked_while_building_is_acknowledged_and_nothing_starts(reach, request_name, word):
    control, _ = reach(State.BUILDING)
    control.run()
    getattr(control, request_name)()
    assert status_of(control.situation()).text.startswith(f"{word}, after this: building")
    control.gate.set()
    assert control.wait(60)
    assert control.state is State.READY


def test_a_request_that_is_not_allowed_changes_nothing_and_says_why(reach):
    control, _ = reach(State.READY)
    control.rewind()
    assert control.message == ("Scrub back first: this is the newest moment.", False)
    control.stop()
    assert control.message == ("Nothing is running.", False)
    assert control.job is None


def test_a_rewind_goes_to_the_step_that_is_looked_at(reach):
    control, person = reach(State.FINISHED)
    person.viewed = 5
    control.rewind()
    assert control.wait(60)
    assert control.workspace.session.num_steps == 5
    assert control.message.text == "Back at step 5."


def test_settings_that_need_a_new_session_are_noticed_and_steering_is_not(reach):
    control, person = reach(State.READY)
    first = control.workspace.session
    person.config = wb.AttackConfig(steps=6, tv_weight=0.5, step_size=0.2)
    control.settings_changed()
    assert not control.has_changed
    person.config = wb.AttackConfig(steps=4)
    control.settings_changed()
    assert control.has_changed
    control.run()
    assert control.wait(60)
    assert control.workspace.session is not first
    assert control.workspace.session.num_steps == 4
    assert not control.has_changed


def test_a_scenario_is_shown_and_built(make):
    control, person = make(is_empty=True)
    assert control.state is State.EMPTY
    control.choose(SCENARIOS[0])
    assert control.wait(60)
    assert person.scenario is SCENARIOS[0]
    assert control.state is State.READY, status_of(control.situation())
    assert not control.has_changed
    observation, settings = control.workspace.session.observation, SCENARIOS[0].settings
    assert (observation.num_images, observation.epochs) == (settings.target.num_images, settings.target.client.epochs)
    assert control.workspace.session.config == settings.config


def test_a_panel_that_was_given_an_update_has_no_scenarios(reach):
    control, person = reach(State.READY)
    session = control.workspace.session
    control.choose(SCENARIOS[0])
    assert control.message == (GIVEN, False)
    assert person.scenario is None
    assert control.workspace.session is session


def test_a_build_says_what_it_is_doing_and_that_the_old_attack_is_stale(make):
    control, person = make(is_empty=True)
    person.scenario = SCENARIOS[0]
    seen = []
    control._view = replace(control._view, show_state=lambda: seen.append(control.situation()))
    for _ in range(2):
        control.build()
        assert control.wait(60)
        person.scenario = replace(SCENARIOS[0], target=replace(LESSON, seed=1))
    stages = dict.fromkeys((one.stage, one.is_stale) for one in seen if one.stage is not None)
    assert list(stages) == [(Stage.TRAIN, False), (Stage.LABELS, False), (Stage.TRAIN, True), (Stage.LABELS, True)]
    assert control.situation().stage is None


def test_an_error_goes_when_the_settings_change(reach):
    control, person = reach(State.READY)
    person.error = wb.ConfigError("batch_size = 17 must be at most the number of images, 16.")
    control.build()
    assert control.message.is_error
    person.error = None
    control.settings_changed()
    assert control.message == ("", False)


def test_settings_that_are_wrong_are_reported_with_their_cost_and_at_build(reach):
    control, person = reach(State.READY)

    person.error = wb.ConfigError("batch_size = 17 must be at most the number of images, 16.")
    control.settings_changed()
    assert control.wait(60)
    assert control.has_changed
    assert control.cost == ("batch_size = 17 must be at most the number of images, 16.", True)
    control.build()
    assert control.message == control.cost
    assert control.state is State.READY


def test_a_build_that_fails_leaves_no_settings_and_drops_what_waits(reach, monkeypatch):
    control, person = reach(State.READY)
    monkeypatch.setattr(Workspace, "build", lambda self, *given: fail(self))
    person.config = wb.AttackConfig(steps=4)
    control.settings_changed()
    control.run()
    assert control.wait(60)
    assert control.message.is_error
    assert "the device is gone" in control.message.text
    assert control.has_changed
    assert control.workspace.session.num_steps == 0


def test_the_view_is_asked_to_show_what_is_exchanged(reach, tmp_path):
    control, person = reach(State.STOPPED)
    person.calls.clear()
    control.save(str(tmp_path / "half"))
    control.load(str(tmp_path / "half"))
    assert control.wait(60)
    assert person.calls == ["settings", "source"]
    assert control.workspace.truth, "the update is the same, so its truth is still known"
    person.calls.clear()
    control.build()
    assert control.wait(60)
    assert person.calls == ["source"], "the controls show already what was built from them"


def test_a_recording_does_not_replace_the_truth_of_the_given_update(reach, make_session, client):
    control, _ = reach(State.READY)
    control.show(wb.Recording.of(make_session(CONFIG)))
    assert not control.workspace.truth
    control.build()
    assert control.wait(60)
    assert control.workspace.truth.clients == (client,)


def test_files_are_written_and_read_by_name(reach, tmp_path):
    control, _ = reach(State.FINISHED)
    control.export(str(tmp_path / "seen"), ".png", lambda: b"PNG")
    assert control.wait(60)
    assert (tmp_path / "seen.png").read_bytes() == b"PNG"
    control.export(str(tmp_path / "run"), ".recording", lambda: b"")
    control.load(str(tmp_path / "run"))
    assert control.wait(60)
    assert control.state is State.REPLAYING
    control.export(str(tmp_path / "report"), ".html", lambda: b"")
    assert control.wait(60)
    assert "a report needs a session" in control.message.text


def test_a_file_is_replaced_only_when_it_is_asked_for_again(reach, tmp_path):
    control, _ = reach(State.FINISHED)
    path = tmp_path / "seen.png"
    path.write_bytes(b"old")
    for picture, expected in ((b"first", b"old"), (b"second", b"second")):
        control.export(str(path), ".png", lambda picture=picture: picture)
        assert control.wait(60)
        assert path.read_bytes() == expected
    control.export(str(path), ".png", lambda: b"third")
    assert control.message.text == f"{path} exists: Export once more replaces it."
    control.save(str(tmp_path / "other"))
    assert control.wait(60)
    control.export(str(path), ".png", lambda: b"third")
    assert control.wait(60)
    assert path.read_bytes() == b"second", "something else was asked in between"


def test_a_relative_name_stays_below_the_folder_of_the_notebook(reach, tmp_path, monkeypatch):
    control, _ = reach(State.FINISHED)
    folder = tmp_path / "notebooks"
    folder.mkdir()
    monkeypatch.chdir(folder)
    control.save("../outside")
    assert control.message.is_error
    assert "'../outside' is outside the notebook's folder; give an absolute path" in control.message.text
    control.save("inside")
    assert control.wait(60)
    control.save(str(tmp_path / "outside"))
    assert control.wait(60)
    assert (folder / "inside.safetensors").is_file()
    assert (tmp_path / "outside.safetensors").is_file()


def test_a_fork_is_handed_over_and_goes_its_own_way(reach):
    control, _ = reach(State.STOPPED)
    forks = []
    control.fork(forks.append)
    assert control.wait(60)
    assert forks[0].num_steps == control.workspace.session.num_steps == 1
    assert control.message.text.startswith("Forked at step 1")


def test_quiet_jobs_are_not_shown_and_only_the_newest_of_a_kind_waits(reach):
    control, _ = reach(State.BUILDING)
    for _ in range(3):
        control.settings_changed()
    control.estimate_labels()
    assert control.worker.jobs == [Job.BUILD, Job.ESTIMATE_COST, Job.ESTIMATE_LABELS]
    assert control.job is Job.BUILD
    control.gate.set()
    assert control.wait(60)
    assert control.workspace.labels
