"""Steering: takes effect at the next step, is recorded, and does not depend on how the steps are divided."""

import threading

import pytest

import workbench as wb
from workbench.session.session import SteeringEvent

PLAN = {12: {"tv_weight": 0.1}, 25: {"step_size": 0.05, "prior_weight": 5.0}, 40: {"consensus_weight": 0.0}}


def play(session, chunks):
    """Make the steps in the given chunks, steering by `PLAN`; a chunk ends where steering is due."""
    for n in chunks:
        goal = session.num_steps + n
        while session.num_steps < goal:
            session.steer(**PLAN.get(session.num_steps, {}))
            session.step(min(step for step in (*PLAN, goal) if step > session.num_steps) - session.num_steps)
    return session


@pytest.fixture(scope="module")
def steered(make_session):
    """Steered by `PLAN`, one step at a time."""
    return play(make_session(), [1] * 60)


@pytest.mark.parametrize("chunks", [[60], [11, 1, 1, 47], [12, 13, 15, 20], [5] * 12])
def test_steering_acts_at_its_step_however_the_steps_are_divided(make_session, steered, assert_same, chunks):
    assert_same(play(make_session(), chunks), steered)


def test_steering_changes_the_run_from_its_step_on_and_not_before(steered, make_session):
    plain = make_session()
    plain.step(60)
    same = steered.history.loss == plain.history.loss
    assert same[:12].all()
    assert not same[12:].any()
    assert steered.history.step_size[24] == plain.history.step_size[24]
    assert steered.history.step_size[25] < plain.history.step_size[25]
    assert not steered.history.terms["consensus"][40:].any()


def test_every_change_is_recorded_with_its_step(steered):
    expected = [(step, name, value) for step, changes in PLAN.items() for name, value in changes.items()]
    assert [(e.step, e.name, e.value) for e in steered.history.steering] == expected
    assert steered.steering["prior_weight"] == 5.0
    assert steered.steering["clip_weight"] == steered.config.clip_weight


def test_of_several_changes_before_a_step_only_the_last_took_effect(make_session):
    session = make_session()
    for value in (1.0, 2.0, 3.0):
        session.steer(tv_weight=value)
        assert session.steering["tv_weight"] == value
    session.steer(clip_weight=1.0)
    assert session.history.steering == (SteeringEvent(0, "tv_weight", 3.0), SteeringEvent(0, "clip_weight", 1.0))
    session.step()
    session.steer(tv_weight=4.0)
    assert [event.value for event in session.history.steering] == [3.0, 1.0, 4.0]


def test_the_consensus_can_be_switched_on(make_session):
    config = wb.AttackConfig(steps=40, warm_start_steps=20, consensus_start=6, consensus_every=7, prior_weight=100.0)
    session = make_session(config)
    session.step(30)
    session.steer(consensus_weight=3.0)
    session.step(10)
    consensus = session.history.terms["consensus"]
    assert not consensus[:33].any(), "a consensus without a weight"
    assert (consensus[33:] > 0).all(), "the consensus term stayed off although it was given a weight"


def test_steering_while_a_step_is_computed_acts_on_the_step_after(make_session, assert_same):
    session, plain = make_session(), make_session()
    session.step(22)
    session.steer(tv_weight=0.3)
    advance, asked = session._attack.advance, threading.Event()

    def advance_while_somebody_steers(*arguments):
        assert session.steering["tv_weight"] == 0.3, "what acts on this step does not show while it is computed"
        result = advance(*arguments)
        thread = threading.Thread(target=lambda: session.steer(prior_weight=1.0) or asked.set())
        thread.start()
        assert asked.wait(10), "steering waited for the step to end"
        thread.join()
        return result

    object.__setattr__(session._attack, "advance", advance_while_somebody_steers)
    session.step()
    object.__setattr__(session._attack, "advance", advance)
    session.step(3)
    plain.step(22)
    plain.steer(tv_weight=0.3)
    plain.step()
    plain.steer(prior_weight=1.0)
    plain.step(3)
    assert_same(session, plain)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prior_wieght": 1.0}, "did you mean 'prior_weight'"),
        ({"prior_weight": -1.0}, "prior_weight = -1.0"),
        ({"step_size": 0.0}, "step_size = 0.0"),
        ({"tv_weight": float("nan")}, "tv_weight = nan"),
        ({"tv_weight": "1"}, "tv_weight = '1'"),
        ({"tv_weight": 1.0, "clip_weight": None}, "clip_weight = None"),
    ],
)
def test_wrong_steering_is_refused_and_changes_nothing(make_session, changes, message):
    session = make_session()
    before = session.steering
    with pytest.raises(wb.ConfigError, match=message):
        session.steer(**changes)
    assert session.steering == before
    assert session.history.steering == ()
