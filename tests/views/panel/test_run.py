"""Buttons, driven without a browser: what they do to the session, in the right order and in every wrong one."""

import itertools
import random
import threading
import time

import numpy as np
import pytest

import workbench as wb
from workbench.config import label_of
from workbench.session.recording import Outcome
from workbench.session.runner import RunnerState
from workbench.views.panel.workspace import Workspace


def test_run_makes_all_steps_and_shows_the_result(panel):
    panel.grid._handle_custom_msg({"kind": "hello"}, [])  # as a page does
    panel.run_button.click()
    assert panel.runner.wait(timeout=60)
    assert panel.session.num_steps == panel.session.total_steps == 30
    assert panel.wait(60)
    assert panel.progress.value == panel.progress.max == 30
    assert panel.pace.value.startswith("30 of 30 steps")
    assert panel.status_text.startswith("Finished")
    assert panel.grid.moments[2] == 30, "the page does not know of the last step"


def test_step_makes_one_step_also_past_the_last_and_after_a_pause(panel, until):
    for number in (1, 2):
        panel.step_button.click()
        assert panel.wait(60)
        assert panel.session.num_steps == number
    panel.run_button.click()
    panel.pause_button.click()
    until(lambda: panel.runner.state is not RunnerState.RUNNING, "the pause took effect")
    held = panel.session.num_steps
    panel.step_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == held + 1
    panel.run_button.click()
    assert panel.wait(60)
    panel.step_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == 31


def test_pause_is_acknowledged_at_once_holds_and_goes_on(make_panel, make_session, client, until):
    panel = make_panel(make_session(wb.AttackConfig(steps=100_000)), truth=client)
    panel.run_button.click()
    until(lambda: panel.session.num_steps > 3, "some steps")
    started = time.monotonic()
    panel.pause_button.click()
    taken = time.monotonic() - started
    assert panel.status_text.startswith(("Pausing", "Paused")), panel.status_text
    assert taken < 0.3, f"the acknowledgement took {taken:.3f} s"
    assert panel.runner.wait_until_paused(60)
    held = panel.session.num_steps
    until(lambda: panel.status_text.startswith("Paused at step"), "the status line says that the pause took effect")
    assert panel.run_button.description == "Resume"
    assert panel.session.num_steps == held
    panel.run_button.click()
    until(lambda: panel.session.num_steps > held, "the run goes on")
    panel.stop_button.click()
    assert panel.status_text.startswith(("Stopping", "Stopped")), panel.status_text
    assert panel.wait(60)
    assert panel.runner.state is RunnerState.STOPPED
    assert panel.status_text.startswith("Stopped at step")


def test_pause_while_building_means_that_nothing_starts(make_small, monkeypatch):
    gate, build = threading.Event(), Workspace.build
    monkeypatch.setattr(Workspace, "build", lambda *arguments: gate.wait(60) and build(*arguments))
    panel = make_small()
    panel.run_button.click()
    panel.pause_button.click()
    assert panel.status_text.startswith("Pausing, after this: building"), panel.status_text
    gate.set()
    assert panel.wait(120)
    assert panel.session.num_steps == 0
    panel.run_button.click()
    assert panel.wait(120)
    assert panel.session.num_steps == 9


def test_building_and_stepping_never_happen_on_the_thread_of_the_click(make_small, monkeypatch):
    threads = set()
    made, stepped = wb.AttackSession.__init__, wb.AttackSession.step

    def watched(original):
        def call(*arguments, **options):
            threads.add(threading.current_thread().name)
            return original(*arguments, **options)

        return call

    monkeypatch.setattr(wb.AttackSession, "__init__", watched(made))
    monkeypatch.setattr(wb.AttackSession, "step", watched(stepped))
    panel = make_small()
    panel.run_button.click()
    assert panel.wait(120)
    assert panel.session.num_steps == 9
    assert threads == {"panel jobs", "attack"}


def test_reset_goes_back_to_the_start_with_the_steering_as_configured(panel):
    panel.controls.fields["tv_weight"].value = 0.5
    panel.run_button.click()
    assert panel.wait(60)
    panel.reset_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == 0
    assert panel.session.outcome is Outcome.NEW
    assert panel.session.steering["tv_weight"] == panel.session.config.tv_weight
    assert panel.controls["tv_weight"] == panel.session.config.tv_weight
    panel.run_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == 30


def test_reset_during_a_run(make_panel, make_session, until):
    panel = make_panel(make_session(wb.AttackConfig(steps=100_000)))
    panel.run_button.click()
    until(lambda: panel.session.num_steps > 3, "some steps")
    panel.reset_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == 0


@pytest.mark.parametrize(
    ("slider", "value"),
    [
        ("update_weight", 2.0),
        ("prior_weight", 50.0),
        ("tv_weight", 0.01),
        ("clip_weight", 5.0),
        ("consensus_weight", 0.0),
        ("step_size", 0.1),
    ],
)
def test_every_slider_steers(panel, slider, value):
    panel.step_button.click()
    assert panel.wait(60)
    panel.controls.fields[slider].value = value
    assert panel.session.steering[slider] == value
    event = panel.session.history.steering[-1]
    assert (event.step, event.name, event.value) == (1, slider, value)
    assert f"{label_of(slider)} = {value:g} from step 2 on" in panel.status_text
    assert not panel.controller.has_changed, "a slider needs no new session"


def test_steering_acts_on_a_running_attack(make_panel, make_session, until):
    panel = make_panel(make_session(wb.AttackConfig(steps=100_000)))
    panel.run_button.click()
    until(lambda: panel.session.num_steps > 3, "some steps")
    panel.controls.fields["step_size"].value = 0.05
    until(lambda: panel.session.history.steering, "the change was recorded")
    panel.stop_button.click()
    assert panel.wait(60)
    assert [(event.name, event.value) for event in panel.session.history.steering] == [("step_size", 0.05)]


def test_a_diverging_attack_is_said_in_words_and_can_be_rescued(panel):
    panel.controls.fields["step_size"].value = 10.0
    panel.session.steer(step_size=1e30)
    panel.run_button.click()
    assert panel.wait(60)
    assert panel.session.outcome is Outcome.DIVERGED
    assert "diverged" in panel.status_text
    assert panel.run_button.disabled
    assert "diverged" in panel.run_button.tooltip
    panel.reset_button.click()
    assert panel.wait(60)
    panel.run_button.click()
    assert panel.wait(60)
    assert panel.session.outcome is Outcome.FINISHED


def test_a_failing_step_ends_on_the_status_line(panel, monkeypatch):
    def fail(self, n=1):
        raise RuntimeError("the device is gone")

    monkeypatch.setattr(wb.AttackSession, "step", fail)
    panel.run_button.click()
    assert panel.wait(60)
    assert "the device is gone" in panel.status_text
    assert "wb-error" in panel.status.value
    with pytest.raises(RuntimeError, match="the device is gone"):
        panel.runner.wait(10)
    monkeypatch.undo()
    panel.run_button.click()
    assert panel.wait(60)
    assert panel.session.num_steps == 30


def buttons(panel):
    names = ("build", "run", "pause", "step", "stop", "reset", "fork", "save", "load", "export")
    return {name: getattr(panel, f"{name}_button") for name in names} | {"rewind": panel.rewind_button}


def test_buttons_say_why_they_are_switched_off(panel):
    assert panel.pause_button.disabled
    assert panel.pause_button.tooltip == "Nothing is running."
    panel.pause_button.click()
    assert panel.status_text == "Nothing is running."
    assert not panel.run_button.disabled
    assert panel.rewind_button.disabled


@pytest.mark.parametrize("seed", range(3))
def test_buttons_in_any_order_never_raise_and_leave_nothing_stuck(panel, seed, tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    rng = random.Random(seed)
    pressed = []
    for name in itertools.islice(iter(lambda: rng.choice(list(buttons(panel))), None), 25):
        if name == "fork" and len(panel.forks) > 1:
            continue
        pressed.append(name)
        buttons(panel)[name].click()
        if rng.random() < 0.3:
            panel.controls.fields["steps"].value = rng.choice([2, 3, 8])
        time.sleep(rng.choice([0, 0, 0.02]))
    panel.stop_button.click()
    assert panel.wait(120), f"stuck after {pressed}"
    panel.build_button.click()
    panel.run_button.click()
    assert panel.wait(120), f"stuck after {pressed}"
    assert panel.session.outcome is Outcome.FINISHED, f"{panel.status_text} after {pressed}"
    assert "Traceback" not in "".join(capfd.readouterr()), pressed


def test_pictures_are_sent_at_most_eight_times_a_second(real_pace, make_panel, make_session, client, until):
    panel = make_panel(make_session(wb.AttackConfig(steps=100_000)), truth=client)
    drawn = []

    def receive(content, buffers=()):
        if content["kind"] == "frame" and content["frame"]["step"] not in panel.session.history.snapshot_steps:
            drawn.append(time.monotonic())

    panel.grid.send = receive
    panel.grid._handle_custom_msg({"kind": "hello"}, [])
    panel.run_button.click()
    until(lambda: len(drawn) > 10, "ten pictures")
    panel.stop_button.click()
    assert panel.wait(60)
    rate = (len(drawn) - 1) / (drawn[-1] - drawn[0])
    assert rate < 8.5, f"{rate:.1f} pictures were sent a second"


def test_curves_are_drawn_at_most_twice_a_second(real_pace, make_panel, make_session, client, until):
    panel = make_panel(make_session(wb.AttackConfig(steps=100_000)), truth=client)
    panel.views.selected_index = 5
    assert panel.wait(60)
    drawn = []
    original = panel.tabs[5].draw
    panel.tabs[5].draw = lambda *arguments: (drawn.append(time.monotonic()), original(*arguments))
    panel.run_button.click()
    until(lambda: len(drawn) > 3, "three curves")
    gaps = np.diff(drawn)
    panel.stop_button.click()
    assert panel.wait(60)
    assert gaps.min() >= 0.5, f"two curves were drawn {gaps.min():.3f} s apart"


def test_a_second_panel_on_the_same_session_takes_over(make_panel, make_session, until):
    session = make_session(wb.AttackConfig(steps=100_000))
    first = make_panel(session)
    first.run_button.click()
    until(lambda: session.num_steps > 2, "some steps")
    second = make_panel(session)
    assert first.wait(60)
    assert first.runner.state is RunnerState.STOPPED
    before = session.num_steps
    second.run_button.click()
    until(lambda: session.num_steps > before, "the second panel drives the session")


def test_what_is_neither_session_nor_recording_is_refused():
    with pytest.raises(wb.ConfigError, match="source = 5 must be an AttackSession or a Recording"):
        wb.AttackPanel(5)


def test_a_wrong_truth_is_refused(make_session):
    with pytest.raises(wb.DataError, match=r"truth = \[1\] must be a ClientData, or a sequence of them"):
        wb.AttackPanel(make_session(), truth=[1])
