"""Steps: the same in one call or in many, compiled once, with a progress bar, and stopped in good order."""

import signal
import time
from dataclasses import replace

import jax
import numpy as np
import pytest

import workbench as wb
from workbench.attack import step as engine
from workbench.session.session import Outcome


def test_a_hundred_steps_at_once_are_a_hundred_single_ones(make_session, reference, assert_same):
    session = make_session()
    session.step(100)
    assert_same(session.snapshot().state, reference[100])


def test_any_division_into_calls_gives_the_same_run(make_session, assert_same):
    single = make_session()
    for _ in range(100):
        single.step()
    for chunks in ([7] * 14 + [2], [19, 1, 1, 5, 1, 73], [33, 67]):
        chunked = make_session()
        for n in chunks:
            chunked.step(n)
        assert_same(chunked, single)


def test_run_is_the_same_as_stepping(make_session, reference, assert_same, capfd):
    session = make_session()
    assert session.run() is session
    assert session.num_steps == session.total_steps == 100
    assert_same(session.snapshot().state, reference[100])
    shown = capfd.readouterr().err
    for part in ("attack", "100/100", "loss=", "update=", "prior=", "step/s"):
        assert part in shown, f"the progress bar does not show {part!r}"


def test_one_executable_serves_every_number_of_steps_and_every_steering(make_session):
    session = make_session()
    session.step(30)
    traced = []
    original = engine.step
    engine.step = lambda *arguments, **named: traced.append(1) or original(*arguments, **named)
    try:
        for n in (1, 2, 5, 11):
            session.steer(prior_weight=50.0 * n, step_size=0.1 * n, update_weight=float(n), consensus_weight=0.5 * n)
            session.step(n)
    finally:
        engine.step = original
    assert not traced, "a step was traced again"


def test_a_step_is_finished_when_it_returns(make_session):
    session = make_session()
    session.step(3)
    for leaf in jax.tree.leaves(session.snapshot().state):
        assert leaf.is_ready(), "step returned before the device had finished"


def test_steps_past_the_configured_ones_are_allowed(make_session):
    session = make_session()
    session.step(100)
    assert session.outcome is Outcome.FINISHED
    session.step(3)
    assert session.num_steps == 103
    assert len(session.history.loss) == 103
    session.run()
    assert session.num_steps == 103, "run made steps although the configured ones were made"
    session.run(steps=2)
    assert session.num_steps == 105


def test_run_calls_back_after_every_step(make_session):
    seen = []
    session = make_session()
    session.run(steps=4, callback=lambda s: seen.append(s.num_steps))
    assert seen == [1, 2, 3, 4]


@pytest.mark.parametrize("n", [0, -1, 1.5, "3", True, None])
def test_a_wrong_number_of_steps_is_refused(make_session, n):
    session = make_session()
    with pytest.raises(wb.ConfigError, match=r"n = .* must be a whole number of at least 1"):
        session.step(n)
    assert session.num_steps == 0


def test_another_seed_gives_another_run(make_session, reference):
    session = make_session(seed=1)
    session.step()
    assert not np.array_equal(session.snapshot().state.images, reference[1].images)


def test_the_outcome_tells_how_the_session_stands(make_session):
    session = make_session()
    assert session.outcome is Outcome.NEW
    session.step(99)
    assert session.outcome is Outcome.IN_PROGRESS
    session.step()
    assert session.outcome is Outcome.FINISHED
    assert len({outcome.value for outcome in Outcome}) == len(Outcome)
    assert all(outcome.value == outcome.value.lower().replace("_", " ") for outcome in Outcome), "not for people"


def test_the_text_of_a_session_tells_all_and_asks_the_device_for_nothing(make_session):
    session = make_session()
    for steps, expected in ((0, "no step made yet"), (3, "in progress")):
        if steps:
            session.step(steps)
        state = session._now.state
        # Arrays that are gone: reading one would raise.
        session._now = replace(session._now, state=jax.tree.map(_gone, state), snapshots={0: None})
        text = repr(session)
        session._now = replace(session._now, state=state, snapshots={0: state})
        for part in ("N=5", "28x28x1", "E=2", "m=2", "ours_prior", "cpu:0", f"step {steps} of 100", expected):
            assert part in text, f"{part!r} is not in {text}"
        assert ("loss" in text) == (steps > 0)


def _gone(leaf):
    copy = jax.numpy.array(leaf)
    copy.delete()
    return copy


def test_a_session_says_beforehand_what_it_needs(make_session, model, client):
    session = make_session(snapshot_bytes=50_000_000)
    before = session.cost()
    assert "time for 100 more steps: known after the first ones" in before
    assert "kept snapshots up to 50 MB" in before
    assert "cpu:0" in before
    session.step(18)
    session.step(1)
    assert session.seconds_left is None, "the time of the steps after the warm start is not known yet"
    session.step(2)
    session.step(2)
    assert session.seconds_left == pytest.approx((100 - session.num_steps) * session.seconds_per_step)
    assert f"time for {100 - session.num_steps} more steps: about" in session.cost()


def test_a_larger_attack_is_said_to_need_more_memory(make_session, model, client):
    larger = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=8, batch_size=1))
    session = wb.AttackSession(model, larger, make_session().config, label_counts=client.label_counts)
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(larger.server_weights))
    assert session.memory_estimate > make_session().memory_estimate
    assert session.memory_estimate > 4 * 8 * larger.num_images * 784 * 4 + weights


def test_seconds_a_step_are_those_of_the_clock(make_session):
    session = make_session()
    session.step(30)
    session.step(5)
    times = []
    for _ in range(10):
        started = time.perf_counter()
        session.step()
        times.append(time.perf_counter() - started)
    assert min(times) / 2 < session.seconds_per_step < max(times)


@pytest.mark.parametrize(
    ("device", "message"),
    [
        ("gpu:7", "is not there; JAX sees: cpu:0"),
        ("cpu:-1", "is not there"),
        ("cpu:x", "is not there"),
        ("", "is not there"),
        ("toaster", "is not there"),
        (5, "must be 'auto', a jax.Device or a name"),
    ],
)
def test_a_device_that_is_not_there_is_refused(make_session, device, message):
    with pytest.raises(wb.ConfigError, match=message):
        make_session(device=device)


@pytest.mark.parametrize("device", ["auto", "cpu", "cpu:0", jax.devices("cpu")[0]])
def test_a_device_can_be_named_or_given(make_session, device):
    assert make_session(device=device).device == jax.devices("cpu")[0]


def test_wrong_input_is_refused_before_anything_is_compiled(make_session, observation, model):
    for wrong in ({"snapshot_every": 0}, {"snapshot_bytes": -1}, {"seed": -1}, {"label_counts": [1]}):
        with pytest.raises(wb.WorkbenchError):
            make_session(**wrong)
    with pytest.raises(wb.ConfigError, match="observation = 5 must be a Observation"):
        wb.AttackSession(model, 5)
    with pytest.raises(wb.ConfigError, match="config"):
        wb.AttackSession(model, observation, {"steps": 3})


def test_ctrl_c_stops_after_the_current_step_and_leaves_a_usable_session(
    start_process, tmp_path, assert_same, reference
):
    process = start_process(f"""
        session = make_session()
        session.run(steps=10_000, callback=lambda s: print(s.num_steps))
        print("stopped", session.num_steps)
        session.step(2)
        print("went on", session.num_steps)
        session.rewind(5)
        session.save({str(tmp_path / "stopped")!r})
        """)
    steps = [process.stdout.readline() for _ in range(8)]
    assert steps[-1] == "8\n", f"the process did not start well: {steps} {process.stderr.read()}"
    process.send_signal(signal.SIGINT)
    out, err = process.finish()
    lines = out.split("\n")
    stopped = next(int(line.split()[1]) for line in lines if line.startswith("stopped"))
    shown = [int(line) for line in lines if line.isdigit()]
    assert stopped == max(shown, default=8), "the session is at another step than the last one shown"
    assert stopped < 10_000
    assert f"went on {stopped + 2}" in out
    assert "Traceback" not in err
    assert_same(wb.AttackSession.load(tmp_path / "stopped").snapshot().state, reference[5])


def test_ctrl_c_raises_again_after_run(make_session):
    before = signal.getsignal(signal.SIGINT)
    make_session().run(steps=2)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.slow
def test_sixty_four_bit_numbers_by_default_change_nothing(client, make_session, reference):
    """Some people's JAX makes every new array 64 bits wide."""
    network = wb.models.femnist_cnn()

    def attack():
        seen = wb.client_update(network, network.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
        session = wb.AttackSession(network, seen, wb.AttackConfig(steps=2), label_counts=client.label_counts)
        session.step(2)
        return session.reconstruction().images

    usual, usual_labels = attack(), make_session(label_counts=None).formula_labels
    with jax.enable_x64(True):
        wide = attack()
        # Label recovery, warm start and consensus, on a network that is faster.
        wide_labels = make_session(label_counts=None).formula_labels
        small = make_session()
        small.step(30)
    assert wide.dtype == np.float32
    np.testing.assert_allclose(wide, usual, atol=0.02, err_msg="64-bit defaults changed the images")
    for method, counts in usual_labels.items():
        np.testing.assert_allclose(wide_labels[method].real, counts.real, atol=0.05, err_msg=method)
        np.testing.assert_array_equal(wide_labels[method].whole, counts.whole, err_msg=method)
    images = small.snapshot().state.images
    assert images.dtype == np.float32
    np.testing.assert_allclose(images, reference[30].images, atol=0.02, err_msg="64-bit defaults changed the images")


def test_the_network_reads_what_it_was_trained_on():
    client = wb.load_dataset("glyphs").client(4, num_images=8, num_classes=2)
    model = wb.models.mlp(widths=(32,))
    observation = wb.client_update(
        model, model.init(), client, wb.ClientConfig(epochs=30, batch_size=4, learning_rate=0.1)
    )
    session = wb.AttackSession(model, observation, wb.AttackConfig(steps=1), label_counts=client.label_counts)
    assert (session.read(client.images) == client.labels).all()
    with pytest.raises(wb.DataError, match="those of the client are"):
        session.read(client.images[:, :5])
