"""Looking back and going back: history, snapshots within their budget, rewind, fork, and divergence."""

import threading

import jax
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.session.session import Outcome

PLAN = {
    12: {"tv_weight": 0.05},
    25: {"step_size": 0.05},
    27: {"step_size": 0.2, "tv_weight": 0.1},
    50: {"tv_weight": 0},
}


def play(session, goal):
    """One step at a time, steering by `PLAN`."""
    while session.num_steps < goal:
        if session.num_steps in PLAN:
            session.steer(**PLAN[session.num_steps])
        session.step()
    return session


@pytest.fixture(scope="module")
def planned(make_session):
    """Forks of one run that was steered by `PLAN` and never rewound: {step: session at that step}, 0 to 60."""
    session = make_session()
    return {step: play(session, step).fork() for step in range(61)}


def bytes_of(state):
    return sum(leaf.nbytes for leaf in jax.tree.leaves(state))


def test_the_history_has_every_step(make_session):
    session = make_session()
    assert session.history.loss.shape == (0,)
    for n in [1] * 70 + [30]:
        session.step(n)
    history = session.history
    columns = [history.loss, history.gradient_norm, history.step_size, *history.terms.values()]
    assert {column.shape for column in columns} == {(100,)}
    np.testing.assert_allclose(history.loss, sum(history.terms.values()), rtol=1e-5)
    assert session.loss == history.loss[-1]


def test_the_history_is_a_copy(make_session):
    session = make_session()
    session.step(5)
    before = session.history
    session.rewind(2)
    session.steer(tv_weight=5.0)
    session.step(3)
    assert (session.history.loss[3:] != before.loss[3:]).all()
    assert (session.history.loss[:2] == before.loss[:2]).all()
    session.history.loss[:] = 0.0
    assert session.history.loss.all(), "changing a history changed the session"


def test_snapshots_come_at_the_chosen_cadence(make_session):
    stepped, run = make_session(snapshot_every=10), make_session(snapshot_every=10)
    for _ in range(100):
        stepped.step()
    run.run()
    assert stepped.history.snapshot_steps == run.history.snapshot_steps == tuple(range(0, 101, 10))


def test_snapshots_stay_within_their_budget(make_session):
    session = make_session(snapshot_every=1, snapshot_bytes=2_000_000)
    most = 0
    for _ in range(100):
        session.step()
        size = sum(map(bytes_of, session._now.snapshots.values()))
        most = max(most, size)
        assert size <= 2_000_000, f"step {session.num_steps} keeps {size} bytes of snapshots"
        assert session.history.snapshot_steps[0] == 0
    assert most > 1_800_000, "the budget is not used"
    gaps = np.diff(session.history.snapshot_steps)
    assert len(gaps) > 3
    assert gaps.max() <= 4 * gaps.min(), f"the snapshots lie unevenly: {session.history.snapshot_steps}"


def test_without_a_budget_there_is_room_for_48_snapshots(make_session):
    session = make_session(wb.AttackConfig(steps=100, prior_weight=100.0), snapshot_every=1)
    counts = []
    for _ in range(100):
        session.step()
        counts.append(len(session.history.snapshot_steps))
    assert max(counts) == 48
    assert counts[-1] >= 24


def test_a_budget_for_nothing_keeps_the_start_only(make_session, reference, assert_same):
    session = make_session(snapshot_every=1, snapshot_bytes=1)
    session.step(10)
    session.step(15)
    assert session.history.snapshot_steps == (0,)
    session.rewind(23)
    assert_same(session.snapshot().state, reference[23])


def test_a_snapshot_shows_the_images_of_its_step(make_session):
    session = make_session(snapshot_every=10)
    for _ in range(30):
        session.step()
    earlier = make_session()
    earlier.step(20)
    found = session.reconstruction_at(20)
    np.testing.assert_array_equal(found.images, earlier.reconstruction().images)
    np.testing.assert_array_equal(session.reconstruction(earlier.snapshot()).images, found.images)
    np.testing.assert_array_equal(session.reconstruction_at(30).images, session.reconstruction().images)
    with pytest.raises(wb.ConfigError, match=r"step = 17 has no snapshot; kept are \[0, 10, 20, 30\]"):
        session.reconstruction_at(17)


@pytest.mark.parametrize("step", [0, 1, 12, 19, 20, 21, 25, 26, 27, 28, 33, 40, 59, 60])
def test_rewinding_is_a_fresh_run_to_that_step(planned, assert_same, step):
    session = planned[60].fork()
    session.rewind(step)
    assert_same(session, planned[step])
    assert_same(play(session, 60), planned[60])


def test_the_planned_run_is_that_of_a_fresh_session(planned, make_session, assert_same):
    """The other tests compare with forks; this one shows that these are what a fresh session computes."""
    assert_same(play(make_session(), 60), planned[60])


def test_rewinding_is_exact_after_thinning(planned, make_session, assert_same):
    thinned = play(make_session(snapshot_every=1, snapshot_bytes=400_000), 60)
    assert len(thinned.history.snapshot_steps) < 15, "nothing was thinned, so this tests nothing"
    for step in (3, 24, 26, 41, 58):
        session = thinned.fork()
        session.rewind(step)
        assert_same(session, planned[step])


def test_rewinding_forgets_steering_that_was_asked_for_but_never_acted(make_session, assert_same):
    session, fresh = make_session(), make_session()
    session.step(5)
    fresh.step(5)
    session.steer(tv_weight=7.0)
    session.rewind(5)
    assert_same(session, fresh)


@pytest.mark.parametrize("step", [-1, 11, 1.5, "3", None])
def test_only_steps_that_were_made_can_be_rewound_to(make_session, step):
    session = make_session()
    session.step(10)
    with pytest.raises(wb.ConfigError, match=r"step = .* must be a whole number between 0 and 10"):
        session.rewind(step)
    assert session.num_steps == 10


def test_a_fork_is_independent_of_its_original(planned, make_session, assert_same):
    session = play(make_session(), 30)
    fork = session.fork()
    assert_same(fork, session)
    fork.steer(prior_weight=0.0)
    fork.step(10)
    fork.rewind(35)
    assert_same(session, planned[30])
    assert_same(play(session, 60), planned[60])
    assert fork.num_steps == 35
    assert fork.history.steering[-1].step == 30
    assert (fork.history.loss[31:35] != session.history.loss[31:35]).all()
    assert fork.history.snapshot_steps == (0, 10, 20, 30)


def test_a_fork_keeps_steering_that_was_asked_for(make_session, assert_same):
    session = make_session()
    session.step(22)
    session.steer(tv_weight=7.0)
    fork = session.fork()
    session.step(3)
    fork.step(3)
    assert_same(fork, session)


def test_a_fork_does_not_wait_for_its_original(make_session):
    session = make_session()
    session.step(21)
    fork = session.fork()
    thread = threading.Thread(target=fork.step, daemon=True)
    with session._stepping:  # as while a step of the original is computed
        thread.start()
        thread.join(30)
    assert fork.num_steps == 22, "the fork waited for its original"


def test_the_attackers_view_has_no_images_and_no_labels(make_session, client):
    view = make_session().attacker_view()
    assert set(view) == {"received", "assumed", "never seen"}
    assert view["received"]["images per client"] == 5
    assert view["assumed"]["label counts"].tolist() == [client.label_counts.tolist()]
    assert view["never seen"]["images"] == (5, 28, 28, 1)
    assert view["never seen"]["weights between the first and the last"] == 5


def test_labels_come_from_every_method(make_session):
    session = make_session()
    assert set(session.formula_labels) == {"interpolated", "geng_server", "geng_client", "bias"}
    assert set(session.labels) == {*session.formula_labels, "refined"}
    assert all(estimate.whole.sum() == 5 for estimate in session.labels.values())
    assert session.labels["bias"] is session.formula_labels["bias"], "the same was computed twice"


@pytest.mark.parametrize("step_size", [1e25, 3e38])
@pytest.mark.parametrize("chunks", [[10], [1] * 10, [3, 7]])
def test_a_diverging_run_stops_with_the_last_good_state(make_session, reference, assert_same, step_size, chunks):
    session = make_session()
    session.step(33)
    session.steer(step_size=step_size)
    for n in chunks:
        if session.outcome is not Outcome.DIVERGED:
            session.step(n)
    assert session.outcome is Outcome.DIVERGED
    assert session.num_steps == 33, "the last state with a finite loss is that of step 33"
    assert_same(session.snapshot().state, reference[33])
    assert np.isfinite(session.reconstruction().images).all()
    assert np.isfinite(session.history.loss).all()
    assert len(session.history.loss) == 33
    assert [(e.step, e.name) for e in session.history.steering] == [(33, "step_size")]
    assert "step 33 of 100" in repr(session)
    assert "diverged" in repr(session)
    for go_on in (session.step, session.run):
        with pytest.raises(wb.ConfigError, match=r"diverged.*\(step 33\); rewind"):
            go_on()


def test_a_step_into_infinite_images_is_not_made(make_session):
    """The loss before it is finite: that state is the last good one, not the one before."""
    optimizer = optax.scale(-1e3)
    session = make_session(wb.AttackConfig(steps=6, prior_weight=10.0, step_size=1e-9), optimizer=optimizer)
    session.step(3)
    before = session.snapshot().state
    session.steer(step_size=3e38)
    session.step()
    assert session.outcome is Outcome.DIVERGED
    assert session.num_steps == 3
    np.testing.assert_array_equal(session.snapshot().state.images, before.images)


def test_a_diverged_run_can_be_rewound_saved_and_gone_on_with(make_session, reference, assert_same, tmp_path):
    session = make_session()
    session.step(33)
    session.steer(step_size=1e25)
    session.run(steps=10)
    assert session.outcome is Outcome.DIVERGED
    session.save(tmp_path / "diverged")
    for diverged in (wb.AttackSession.load(tmp_path / "diverged"), session.fork(), session):
        assert diverged.outcome is Outcome.DIVERGED
        diverged.rewind(33)
        assert diverged.outcome is Outcome.IN_PROGRESS
        diverged.step(67)
        assert_same(diverged.snapshot().state, reference[100])


def test_a_run_that_diverges_at_once_keeps_the_start(make_session, reference, assert_same):
    session = make_session()
    session.steer(step_size=3e38)
    session.step(5)
    assert session.outcome is Outcome.DIVERGED
    assert session.num_steps == 0
    assert_same(session.snapshot().state, reference[0])
