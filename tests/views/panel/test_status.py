"""What the panel says and allows, as pure functions: no widget, no session, no thread."""

import pytest

from workbench.errors import ConfigError
from workbench.views.panel.status import (
    GIVEN,
    Command,
    Job,
    Message,
    Situation,
    Stage,
    State,
    error_text,
    pace_text,
    refusals,
    run_label,
    status_of,
)

SENTENCES = {
    State.EMPTY: "Nothing is built yet: press Build or Run.",
    State.BUILDING: "Building …",
    State.READY: "Ready: Run starts the attack.",
    State.RUNNING: "Running: step 8",
    State.PAUSED: "Paused at step 7: steer, scrub back, step, or resume.",
    State.STOPPED: "Stopped at step 7: Run continues.",
    State.FINISHED: "Finished: 7 of 30 steps.",
    State.DIVERGED: "The attack diverged at step 7",
    State.FAILED: "The run failed at step 7: the device {is} gone.",
    State.REPLAYING: "Recording of 7 steps",
}


def situation(state, **changes):
    facts = {"step": 7, "total_steps": 30, "failure": "the device {is} gone."}
    job = Job.BUILD if state is State.BUILDING else None
    return Situation(state, **{"job": job, **facts, **changes})


@pytest.mark.parametrize("state", State)
def test_every_state_has_a_sentence(state):
    text, is_error = status_of(situation(state))
    assert text.startswith(SENTENCES[state])
    assert text[-1] in ".…"
    assert is_error == (state is State.FAILED)
    assert state.value.endswith((".", "{failure}"))


@pytest.mark.parametrize("job", Job)
def test_every_job_has_a_text_which_is_shown_unless_it_is_quiet(job):
    text = status_of(situation(State.STOPPED, job=None if job.is_quiet else job)).text
    assert text == ("Stopped at step 7: Run continues." if job.is_quiet else f"{job.value} …")


ANY_TIME = {"BUILD", "LOAD", "CHOOSE"}
KEEPING = {*ANY_TIME, "RESET", "FORK", "SAVE", "EXPORT"}
ALLOWED = {
    State.EMPTY: {*ANY_TIME, "RUN", "STEP"},
    State.BUILDING: {*KEEPING, "RUN", "STEP", "PAUSE", "STOP", "REWIND"},
    State.READY: {*KEEPING, "RUN", "STEP", "REWIND"},
    State.RUNNING: {*KEEPING, "PAUSE", "STOP"},
    State.PAUSED: {*KEEPING, "RUN", "STEP", "STOP", "REWIND"},
    State.STOPPED: {*KEEPING, "RUN", "STEP", "REWIND"},
    State.FINISHED: {*KEEPING, "RUN", "STEP", "REWIND"},
    State.DIVERGED: {*KEEPING, "REWIND"},
    State.FAILED: {*KEEPING, "RUN", "STEP", "REWIND"},
    State.REPLAYING: {*ANY_TIME, "EXPORT"},
}


@pytest.mark.parametrize("state", State)
def test_which_commands_are_allowed_in_which_state(state):
    has_session = state not in (State.EMPTY, State.REPLAYING)
    reasons = refusals(situation(state, has_session=has_session, is_newest=not has_session))
    assert {command.name for command in Command if command not in reasons} == ALLOWED[state]
    assert all(reason.endswith(".") for reason in reasons.values())


def test_the_newest_moment_is_nothing_to_go_back_to():
    reasons = refusals(situation(State.STOPPED, is_newest=True))
    assert reasons[Command.REWIND] == "Scrub back first: this is the newest moment."
    assert refusals(situation(State.RUNNING, is_newest=True))[Command.REWIND].endswith("pause it first.")


def test_a_diverged_attack_runs_again_once_the_settings_have_changed():
    assert Command.RUN in refusals(situation(State.DIVERGED))
    assert Command.RUN not in refusals(situation(State.DIVERGED, has_changed=True))


def test_without_a_session_nothing_is_kept_while_the_first_one_is_built():
    reasons = refusals(situation(State.BUILDING, has_session=False))
    assert {command.name for command in reasons} == {"RESET", "FORK", "SAVE", "EXPORT"}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"step": 0}, "Compiling step 1, which takes some seconds (0 s) …"),
        ({"warm_start_steps": 7, "seconds_waiting": 2.0}, "Compiling step 8, which takes some seconds (2 s) …"),
        ({"warm_start_steps": 7, "seconds_waiting": 0.1}, "Running: step 8 …"),
        ({"warm_start_steps": 9}, "Running: step 8 of the warm start …"),
        ({"message": Message("tv = 1.")}, "Running: step 8 … tv = 1."),
        ({"request": Command.PAUSE}, "Pausing, after this: running: step 8."),
        ({"request": Command.STOP}, "Stopping, after this: running: step 8."),
        ({"request": Command.RUN}, "Running: step 8 …"),
    ],
)
def test_what_a_running_attack_says(changes, words):
    assert status_of(situation(State.RUNNING, **changes)) == (words, False)


def test_a_request_is_acknowledged_while_building_and_not_shown_with_other_jobs():
    assert status_of(situation(State.BUILDING, request=Command.PAUSE)).text.startswith("Pausing, after this: building")
    text = status_of(situation(State.STOPPED, request=Command.STOP, job=Job.SAVE)).text
    assert text == "Saving the checkpoint …"


@pytest.mark.parametrize("state", State)
def test_an_error_is_shown_in_every_state_until_something_else_happens(state):
    message = Message("file = '' must be a name.", is_error=True)
    assert status_of(situation(state, message=message, has_changed=True)) == message


def test_a_message_is_shown_before_the_state_and_after_that_of_a_pause():
    message = Message("Back at step 7.")
    assert status_of(situation(State.STOPPED, message=message, has_changed=True)) == message
    assert status_of(situation(State.PAUSED, message=message)).text.endswith("or resume. Back at step 7.")


@pytest.mark.parametrize("state", [State.READY, State.STOPPED, State.FINISHED, State.DIVERGED])
def test_changed_settings_are_mentioned(state):
    assert status_of(situation(state, has_changed=True)).text.startswith("The settings have changed")


def test_the_run_button_says_what_it_does():
    assert run_label(situation(State.READY)) == "Run"
    assert run_label(situation(State.PAUSED)) == "Resume"
    assert run_label(situation(State.PAUSED, has_changed=True)) == "Build and run"
    assert run_label(situation(State.EMPTY, has_changed=True, has_session=False)) == "Run"


def test_the_pace_of_a_run():
    assert pace_text(0, 30) == "0 of 30 steps"
    assert pace_text(10, 30, 0.5) == "10 of 30 steps · 2.0 steps/s"
    assert pace_text(30, 30, 0.5, 0.0) == "30 of 30 steps · 2.0 steps/s"


def test_errors_in_words():
    assert error_text(ConfigError("steps = 0 must be at least 1.")) == "steps = 0 must be at least 1."
    assert error_text(RuntimeError("no device")) == "Something went wrong (RuntimeError): 'no device'"


@pytest.mark.parametrize("state", [State.STOPPED, State.PAUSED, State.FINISHED])
@pytest.mark.parametrize("job", [Job.SAVE, Job.EXPORT, Job.LOAD])
def test_what_is_done_long_after_a_stop_is_not_called_stopping(state, job):
    text = status_of(Situation(state, job=job, request=Command.STOP, step=5, total_steps=9)).text
    assert text.startswith(f"{job.value} …")


@pytest.mark.parametrize("stage", Stage)
def test_a_build_names_its_stage(stage):
    text = status_of(Situation(State.BUILDING, job=Job.BUILD, stage=stage)).text
    assert text == f"Building: {stage.value} …"


def test_a_panel_that_was_given_an_update_has_no_client_to_choose():
    assert refusals(situation(State.READY, is_given=True))[Command.CHOOSE] == GIVEN
