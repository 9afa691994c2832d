"""The runner: start, pause, resume, stop and wait, whoever listens, and whatever happens to the process."""

import signal
import threading
import time

import pytest

import workbench as wb
from workbench.session.runner import RunnerState
from workbench.session.session import Outcome, Snapshot

LONG = wb.AttackConfig(steps=100_000, prior_weight=100.0)


@pytest.fixture(scope="module")
def compiled(make_session):
    """Long sessions whose first step is made, so that a step takes milliseconds."""
    make_session(LONG).step()

    def make():
        session = make_session(LONG)
        session.step()
        return session

    return make


@pytest.fixture
def start():
    """Runners that do not outlive the test."""
    runners = []

    def make(session):
        runners.append(wb.SessionRunner(session))
        return runners[-1]

    yield make
    for runner in runners:
        runner.stop()
        runner._has_ended.wait(60)


def wait_for(condition, message, seconds=30):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, message
        time.sleep(0.002)


def test_it_goes_to_the_end_when_nobody_listens(make_session, reference, assert_same, start):
    session = make_session()
    runner = start(session)
    assert runner.state is RunnerState.IDLE
    runner.start()
    assert runner.wait(timeout=60)
    assert runner.state is RunnerState.FINISHED
    assert runner.error is None
    assert_same(session.snapshot().state, reference[100])


def test_it_makes_as_many_steps_as_asked_for(compiled, start):
    session = compiled()
    runner = start(session)
    for goal in (8, 15):
        runner.start(steps=7)
        assert runner.wait(timeout=60)
        assert session.num_steps == goal


@pytest.mark.parametrize("steps", [0, -1, "x", 1.5])
def test_a_wrong_number_of_steps_is_refused(compiled, start, steps):
    runner = start(compiled())
    with pytest.raises(wb.ConfigError, match="steps"):
        runner.start(steps=steps)
    assert runner.state is RunnerState.IDLE


def test_pausing_takes_effect_within_one_step(compiled, start):
    session = compiled()
    runner = start(session)
    runner.start()
    wait_for(lambda: session.num_steps > 5, "the runner does not step")
    for _ in range(20):
        at = session.num_steps
        runner.pause()
        asked = session.num_steps
        assert runner.wait_until_paused(timeout=30)
        assert runner.state is RunnerState.PAUSED
        assert session.num_steps <= asked + 1, "more than the step in progress was made after the pause"
        held = session.num_steps
        assert not runner.wait(timeout=0.02)
        assert session.num_steps == held, "a step was made during the pause"
        runner.resume()
        wait_for(lambda at=at: session.num_steps > at + 2, "the runner does not go on")
        assert runner.state is RunnerState.RUNNING


def test_pausing_within_a_step_lets_this_step_end_and_no_other_begin(compiled, start):
    """The same without a clock: the pause is asked for while a step is being computed."""
    session = compiled()
    runner, step, made = start(session), session.step, []

    def step_and_pause():
        runner.pause()
        step()
        made.append(session.num_steps)

    session.step = step_and_pause
    runner.start()
    assert runner.wait_until_paused(timeout=30)
    assert made == [2]
    runner.resume()
    wait_for(lambda: len(made) == 2, "the runner does not go on")
    assert runner.wait_until_paused(timeout=30)
    assert made == [2, 3]


def test_stopping_and_starting_again_goes_on(make_session, reference, assert_same, start):
    session = make_session()
    runner, stops = start(session), []

    def stop_now_and_then(snapshot):
        if snapshot.step % 9 == 0 and snapshot.step not in stops:
            stops.append(snapshot.step)
            runner.stop()

    runner.add_listener(stop_now_and_then)
    while session.num_steps < 100:
        runner.start()
        assert runner.wait(timeout=60)
        expected = RunnerState.FINISHED if session.num_steps == 100 else RunnerState.STOPPED
        assert runner.state is expected
    assert stops == list(range(9, 100, 9))
    assert_same(session.snapshot().state, reference[100])


def test_a_paused_run_can_be_stopped(compiled, start):
    runner = start(compiled())
    runner.start()
    runner.pause()
    assert runner.wait_until_paused(timeout=30)
    runner.stop()
    assert runner.wait(timeout=30)
    assert runner.state is RunnerState.STOPPED


def test_a_running_runner_cannot_be_started(compiled, start):
    runner = start(compiled())
    runner.start()
    with pytest.raises(wb.ConfigError, match="running already"):
        runner.start()
    runner.pause()
    runner.wait_until_paused(timeout=30)
    with pytest.raises(wb.ConfigError, match="running already"):
        runner.start()


def test_buttons_in_a_wrong_order_do_nothing(compiled, start):
    session = compiled()
    runner = start(session)
    for button in (runner.pause, runner.resume, runner.stop, runner.resume, runner.pause):
        button()
    assert runner.wait(timeout=1)
    assert runner.state is RunnerState.IDLE
    runner.start(steps=3)
    assert runner.wait(timeout=30)
    assert session.num_steps == 4
    for button in (runner.stop, runner.pause, runner.resume):
        button()
    assert runner.state is RunnerState.FINISHED


def test_two_runners_on_one_session_are_refused(compiled, start):
    session = compiled()
    first, second = start(session), start(session)
    first.start()
    with pytest.raises(wb.ConfigError, match="another runner drives this session"):
        second.start()
    assert second.state is RunnerState.IDLE
    first.pause()
    first.wait_until_paused(timeout=30)
    with pytest.raises(wb.ConfigError, match="another runner drives this session"):
        second.start()
    fork = start(session.fork())
    fork.start(steps=2)
    assert fork.wait(timeout=30)
    first.stop()
    assert first.wait(timeout=30)
    second.start(steps=2)
    assert second.wait(timeout=30)


def test_only_sessions_can_be_driven():
    with pytest.raises(wb.ConfigError, match="session = 5 must be a AttackSession"):
        wb.SessionRunner(5)


def test_listeners_get_a_snapshot_of_every_step_and_of_the_end(make_session, start):
    session = make_session()
    runner, seen = start(session), []
    runner.add_listener(lambda snapshot: seen.append((snapshot, runner.state, threading.current_thread())))
    runner.start()
    assert runner.wait(timeout=60)
    assert [snapshot.step for snapshot, _, _ in seen] == [*range(1, 101), 100]
    assert all(isinstance(snapshot, Snapshot) for snapshot, _, _ in seen)
    assert [state for _, state, _ in seen] == [RunnerState.RUNNING] * 100 + [RunnerState.FINISHED]
    assert threading.main_thread() not in {thread for _, _, thread in seen}
    assert len({thread for _, _, thread in seen}) == 1
    last, _, _ = seen[-1]
    assert last.outcome is Outcome.FINISHED
    assert last.loss == session.history.loss[-1]
    assert set(last.terms) == set(session.history.terms)
    with pytest.raises(AttributeError):
        last.step = 5


def test_a_listener_that_raises_stops_nothing(make_session, start):
    session = make_session()
    runner, seen = start(session), []

    def broken(snapshot):
        raise SystemExit("broken view")

    runner.add_listener(broken)
    runner.add_listener(lambda snapshot: seen.append(snapshot.step))
    runner.start()
    assert runner.wait(timeout=60)
    assert session.num_steps == 100
    assert len(seen) == 101, "the listener after the broken one was not called"
    assert isinstance(runner.listener_error, SystemExit)
    assert runner.error is None


def test_a_removed_listener_is_not_called(compiled, start):
    runner, seen = start(compiled()), []
    listener = seen.append
    runner.add_listener(listener)
    runner.remove_listener(listener)
    runner.remove_listener(listener)
    runner.start(steps=2)
    assert runner.wait(timeout=30)
    assert not seen


def test_an_exception_in_the_worker_is_kept_and_raised_at_wait(compiled, start, tmp_path):
    session = compiled()
    (tmp_path / "file").write_text("")
    session.autosave(tmp_path / "file" / "run", every_steps=1)
    runner, states = start(session), []
    runner.add_listener(lambda snapshot: states.append(runner.state))
    runner.start()
    for _ in range(2):
        with pytest.raises(wb.DataError, match="file"):
            runner.wait(timeout=30)
    assert runner.state is RunnerState.FAILED
    assert isinstance(runner.error, wb.DataError)
    assert states == [RunnerState.FAILED], "the failure was not reported"
    assert session.num_steps == 2, "the session is not usable"
    session.autosave(tmp_path / "run", every_steps=1)
    runner.start(steps=2)
    assert runner.wait(timeout=30)
    assert runner.error is None


def test_a_diverging_run_ends_and_says_so(compiled, start):
    session = compiled()
    session.steer(step_size=3e38)
    runner = start(session)
    runner.start()
    assert runner.wait(timeout=30)
    assert runner.state is RunnerState.FINISHED
    assert session.outcome is Outcome.DIVERGED


def test_a_session_can_be_steered_looked_at_and_rewound_meanwhile(compiled, make_session, start, assert_same):
    """Whatever other threads do, the recorded history must be the run that really happened."""
    session = compiled()
    runner = start(session)
    runner.start()
    for number in range(30):
        session.steer(tv_weight=0.001 * number, step_size=0.1 + 0.001 * number)
        before = session.num_steps
        history, text, snapshot = session.history, repr(session), session.snapshot()
        assert len(history.loss) >= before
        assert len({column.shape for column in (history.loss, *history.terms.values())}) == 1
        assert "AttackSession" in text
        assert snapshot.step == int(snapshot.state.step)
        if number == 20:
            session.rewind(session.num_steps // 2)
        wait_for(lambda before=before: session.num_steps != before, "the runner does not step")
    runner.stop()
    assert runner.wait(timeout=30)
    events = {}
    for event in session.history.steering:
        events.setdefault(event.step, {})[event.name] = event.value
    again = make_session(LONG)
    for step in range(session.num_steps):
        again.steer(**events.get(step, {}))
        again.step()
    again.steer(**events.get(session.num_steps, {}))
    assert len(events) > 5
    assert_same(again, session)


LEAVING = {
    "running": "going()",
    "paused": "going(); runner.pause(); runner.wait_until_paused(10)",
    "in a listener": "runner.add_listener(lambda s: time.sleep(0.5)); going()",
    "in a listener that never returns": "runner.add_listener(lambda s: threading.Event().wait()); going()",
    "compiling": "runner.start(); time.sleep(0.2)",
}


@pytest.mark.parametrize("name", LEAVING)
@pytest.mark.usefixtures("compiled_library")
def test_leaving_the_interpreter_never_hangs(start_process, cores, name):
    """While the compiled library computes with a team of threads."""
    process = start_process(f"""
        from workbench.training import native
        if {cores}:
            os.sched_setaffinity(0, {cores})
        model = wb.models.mlp(widths=(512, 256))
        observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=4, batch_size=1))
        assert native.kept_floats(model.chain, model.image_shape, 1), "the library is not used"
        session = make_session(config=wb.AttackConfig("ours_prior", steps=10**6))
        runner = wb.SessionRunner(session)

        def going():
            session.step()
            runner.start()
            while session.num_steps < 2:
                time.sleep(0.01)

        {LEAVING[name]}
        print("leaving", flush=True)
        """)
    assert process.stdout.readline() == "leaving\n", process.stderr.read()
    started = time.monotonic()
    _, err = process.finish(timeout=60)
    taken = time.monotonic() - started
    assert taken < 20, f"leaving took {taken:.1f} s"
    assert "Traceback" not in err, err
    assert "terminate" not in err, err


def test_ctrl_c_while_waiting_leaves_the_run_going(start_process):
    process = start_process("""
        session = make_session(config=wb.AttackConfig(steps=10**6))
        session.step()
        runner = wb.SessionRunner(session)
        runner.start()
        try:
            print("waiting", flush=True)
            runner.wait(60)
        except KeyboardInterrupt:
            at, until = session.num_steps, time.monotonic() + 30
            while session.num_steps == at and time.monotonic() < until:
                time.sleep(0.01)
            print("interrupted", runner.state.value, session.num_steps > at)
        """)
    assert process.stdout.readline() == "waiting\n", process.stderr.read()
    time.sleep(0.2)
    process.send_signal(signal.SIGINT)
    out, err = process.finish()
    assert out == "interrupted running True\n", f"{out}\n{err}"


def test_a_listener_may_start_the_next_run(make_session, start):
    runner = start(make_session())

    def go_on(snapshot):
        if runner.state is RunnerState.FINISHED and snapshot.step == 2:
            runner.start(steps=300)

    runner.add_listener(go_on)
    runner.start(steps=2)
    wait_for(lambda: runner.session.num_steps > 2, "the listener did not start the next run")
    assert runner.wait(60)
    assert runner.session.num_steps == 302, "wait() returned for the first run's end, in the middle of the second"
