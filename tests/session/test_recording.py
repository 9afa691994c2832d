"""Recordings: everything worth looking at in a small file, played back without computing."""

import subprocess
import sys
import textwrap
from dataclasses import replace

import numpy as np
import pytest

import workbench as wb
from workbench.data.dataset import eight_bits
from workbench.files import container
from workbench.metrics import Score
from workbench.session import recording
from workbench.session.session import Outcome

LIMIT = 6e6  # bytes, of a recording at 10x5x50


@pytest.fixture(scope="module")
def session(make_session):
    """A finished run with steering, kept at every second step."""
    session = make_session(snapshot_every=2)
    for step in range(100):
        if step in (10, 50):
            session.steer(tv_weight=0.001 * step)
        session.step()
    return session


@pytest.fixture(scope="module")
def played(session, client, tmp_path_factory):
    path = tmp_path_factory.mktemp("recording") / "run"
    session.record(path, truth=client)
    return wb.replay(path)


def test_a_recording_is_read_as_it_was_written(session, client, played):
    kept = wb.Recording.of(session, client)

    def parts(recorded):
        history = vars(recorded.history)
        frames = [
            ({**vars(frame), "score": vars(frame.score)}, frame.images, frame.epochs) for frame in recorded.frames
        ]
        truth = [vars(one) for one in recorded.truth]
        apart = ("history", "frames", "truth", "spectrum")
        rest = {name: value for name, value in vars(recorded).items() if name not in apart}
        return history, frames, truth, vars(recorded.spectrum), rest, recorded.attacker_view()

    np.testing.assert_equal(parts(played), parts(kept))
    assert repr(played) == repr(kept)


def test_a_recording_tells_what_the_session_tells(session, played):
    assert played.config == session.config
    assert (played.num_steps, played.total_steps) == (100, 100)
    assert played.outcome is session.outcome is Outcome.FINISHED
    assert played.device_name == "cpu:0"
    assert played.history.steering == session.history.steering
    np.testing.assert_equal(played.history.terms, session.history.terms)
    np.testing.assert_equal(played.history.loss, session.history.loss)
    np.testing.assert_equal(played.label_counts, session.label_counts)
    np.testing.assert_equal(played.attacker_view(), session.attacker_view())
    assert {m: c.whole.tolist() for m, c in played.labels.items()} == {
        m: c.whole.tolist() for m, c in session.formula_labels.items()
    }
    for part in ("40 moments", "N=5", "28x28x1", "E=2", "m=2", "ours_prior", "step 100 of 100"):
        assert part in repr(played)


def test_the_recorded_moments_are_spread_over_the_run(played):
    steps = played.history.snapshot_steps
    assert steps == tuple(frame.step for frame in played.frames)
    assert len(steps) == 40
    assert (steps[0], steps[-1]) == (0, 100)
    assert max(np.diff(steps)) <= 4
    with_epochs = [frame.step for frame in played.frames if frame.epochs is not None]
    assert len(with_epochs) == 12
    assert (with_epochs[0] > 20, with_epochs[-1]) == (True, 100)
    assert max(np.diff(with_epochs)) <= 10


def test_the_recorded_images_are_the_sessions_in_8_bits(session, played):
    for frame in played.frames:
        found = session.reconstruction_at(frame.step)
        half_a_level = 0.5 / 255 + 1e-6
        np.testing.assert_allclose(frame.images, np.clip(found.images, 0, 1), atol=half_a_level)
        np.testing.assert_array_equal(frame.permutations, found.permutations)
        np.testing.assert_array_equal(frame.labels, found.labels)
        if frame.epochs is not None:
            np.testing.assert_allclose(frame.epochs, np.clip(found.epochs, 0, 1), atol=half_a_level)
    assert played.reconstruction() is played.reconstruction_at(100) is played.frames[-1]
    with pytest.raises(wb.ConfigError, match="step = 1 was not recorded; recorded are"):
        played.reconstruction_at(1)


def test_the_recorded_scores_are_the_real_ones(session, client, played):
    for frame in played.frames:
        real = wb.score(session.reconstruction_at(frame.step), client)
        np.testing.assert_equal(vars(frame.score), vars(real))


def test_the_truth_is_recorded_where_it_is_given(session, client, played, tmp_path):
    (truth,) = played.truth
    np.testing.assert_allclose(truth.images, client.images, atol=0.5 / 255 + 1e-6)
    assert truth.labels.tolist() == client.labels.tolist()
    assert (truth.name, truth.class_names) == (client.name, client.class_names)
    session.record(tmp_path / "run")
    unknown = wb.replay(tmp_path / "run")
    assert unknown.truth == ()
    assert all(frame.score is None for frame in unknown.frames)


def test_fewer_moments_can_be_asked_for(session, tmp_path):
    session.record(tmp_path / "run", snapshots=3, epoch_snapshots=1)
    few = wb.replay(tmp_path / "run")
    assert few.history.snapshot_steps == (0, 50, 100)
    assert [frame.epochs is not None for frame in few.frames] == [False, False, True]
    session.record(tmp_path / "run", snapshots=2, epoch_snapshots=0)
    assert all(frame.epochs is None for frame in wb.replay(tmp_path / "run").frames)
    for wrong in ({"snapshots": 1}, {"epoch_snapshots": -1}, {"snapshots": "all"}):
        with pytest.raises(wb.ConfigError, match="snapshots"):
            session.record(tmp_path / "run", **wrong)


def test_any_session_can_be_recorded(make_session, client, tmp_path):
    new = make_session()
    new.record(tmp_path / "new", truth=client)
    assert wb.replay(tmp_path / "new").history.snapshot_steps == (0,)
    assert wb.replay(tmp_path / "new").outcome is Outcome.NEW
    new.step(13)
    new.steer(step_size=3e38)
    new.step(2)
    new.record(tmp_path / "diverged", truth=client)
    diverged = wb.replay(tmp_path / "diverged")
    assert diverged.outcome is Outcome.DIVERGED
    assert diverged.history.snapshot_steps == (0, 13)
    assert diverged.history.steering[-1].value == pytest.approx(3e38)


def test_a_session_can_be_recorded_while_it_is_driven(make_session, tmp_path):
    session = make_session(wb.AttackConfig(steps=100_000, prior_weight=100.0))
    session.step()
    runner = wb.SessionRunner(session)
    runner.start()
    try:
        for _ in range(5):
            session.record(tmp_path / "run")
            played = wb.replay(tmp_path / "run")
            assert played.num_steps == len(played.history.loss) == played.frames[-1].step
    finally:
        runner.stop()
        runner.wait(timeout=60)


def test_an_aggregate_can_be_recorded(model, tmp_path):
    clients = [wb.load_dataset("glyphs").client(index, num_images=3) for index in range(2)]
    config = wb.ClientConfig(epochs=2, batch_size=2)
    updates = [wb.client_update(model, model.init(), client, config, seed=i) for i, client in enumerate(clients)]
    counts = np.stack([client.label_counts for client in clients])
    session = wb.AttackSession(model, wb.aggregate(updates), wb.AttackConfig(steps=10), label_counts=counts)
    session.record(tmp_path / "run", truth=clients)
    played = wb.replay(tmp_path / "run")
    assert played.frames[0].images.shape == (6, 28, 28, 1)
    assert len(played.truth) == 2
    np.testing.assert_equal(vars(played.frames[0].score), vars(wb.score(session.reconstruction(), clients)))


def test_a_saved_session_is_not_a_recording(session, tmp_path):
    session.save(tmp_path / "run")
    with pytest.raises(wb.CheckpointError, match="is not a saved recording but 'session'"):
        wb.replay(tmp_path / "run")
    with pytest.raises(wb.CheckpointError, match="does not exist"):
        wb.replay(tmp_path / "nowhere")


def test_the_custom_term_is_found_under_its_older_name(played, path, tmp_path):
    settings, tensors = container.read(path, recording.KIND, recording.FORMAT_VERSION)
    assert "custom" in settings["terms"]
    terms = ["own" if term == "custom" else term for term in settings["terms"]]
    container.write(tmp_path / "old", recording.KIND, recording.FORMAT_VERSION, {**settings, "terms": terms}, tensors)
    assert list(wb.replay(tmp_path / "old").history.terms) == list(played.history.terms)


def in_a_fresh_process(code):
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def path(session, client, tmp_path):
    session.record(tmp_path / "run", truth=client)
    return str(tmp_path / "run")


def test_playing_back_starts_no_device_and_compiles_nothing(path):
    found = in_a_fresh_process(f"""
        import workbench as wb
        from jax._src import xla_bridge

        played = wb.replay({path!r})
        for step in played.history.snapshot_steps:
            frame = played.reconstruction_at(step)
            frame.images, frame.epochs, frame.score, played.attacker_view(), repr(played)
        print(len(played.frames), xla_bridge.backends_are_initialized())
        """)
    assert found == ["40", "False"]


def test_the_module_itself_does_not_need_jax(path):
    """The packages' ``__init__`` import JAX; the modules that a recording needs must not."""
    found = in_a_fresh_process(f"""
        import importlib.util, sys, types

        sys.modules["jax"] = sys.modules["optax"] = None
        folder = importlib.util.find_spec("workbench").submodule_search_locations[0]
        for name in ("workbench", "workbench.session"):
            package = types.ModuleType(name)
            package.__path__ = [folder + name.removeprefix("workbench").replace(".", "/")]
            sys.modules[name] = package
        from workbench.session.recording import replay

        played = replay({path!r})
        print(len(played.frames), played.frames[-1].score is not None)
        """)
    assert found == ["40", "True"]


def test_a_full_size_recording_of_noise_is_small_enough(make_session, tmp_path):
    """10x5x50 on 28 x 28 pixels, every image as noisy as those that an attack starts with.

    About the size of a real one without the time that it takes; the slow test measures that.
    """
    chance, shape = np.random.default_rng(0), (50, 28, 28, 1)
    data = wb.load_dataset("glyphs").client(0)
    template = wb.Recording.of(make_session())

    def noise(*sizes):
        inputs = chance.normal(size=(*sizes, *shape)).astype(np.float32)
        return eight_bits(data.normalization.denormalize(inputs))

    frames = tuple(
        recording.Frame(
            step=step,
            pixels=noise(),
            epoch_pixels=noise(10) if step >= 28 else None,
            permutations=np.stack([chance.permutation(50) for _ in range(10)]),
            labels=data.labels,
            score=Score(chance.normal(size=50), chance.normal(size=50), chance.permutation(50), threshold=20.0),
            residuals=chance.normal(size=50).astype(np.float32),
        )
        for step in range(40)
    )
    columns = chance.normal(size=(10, 39)).astype(np.float32)
    history = recording.SessionHistory(
        columns[0],
        dict(zip(template.history.terms, columns[1:8], strict=True)),
        *columns[8:],
        steering=(),
        snapshot_steps=tuple(range(40)),
    )
    client = {**template.client, "num_images": 50, "epochs": 10, "batch_size": 5}
    replace(template, client=client, num_steps=39, history=history, frames=frames, truth=(data,)).save(tmp_path / "run")
    size = (tmp_path / "run").stat().st_size
    assert size < LIMIT, f"the recording takes {size / 1e6:.2f} MB"
    played = wb.replay(tmp_path / "run")
    np.testing.assert_array_equal(played.frames[30].epoch_pixels, frames[30].epoch_pixels)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_full_size_recording_is_small_enough(tmp_path):
    """A real attack at 10x5x50: 28 steps of the warm start and 12 of the method, of which every one is kept."""
    client, model = wb.load_dataset("glyphs").client(0), wb.models.femnist_cnn()
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=10, batch_size=5))
    config = wb.AttackConfig.preset("warm", "glyphs", warm_start_steps=28, steps=12)
    session = wb.AttackSession(model, observation, config, label_counts=client.label_counts, snapshot_every=1)
    session.run()
    session.record(tmp_path / "run", truth=client)
    played = wb.replay(tmp_path / "run")
    assert len(played.frames) == 40
    assert sum(frame.epochs is not None for frame in played.frames) == 12
    assert played.frames[-1].epochs.shape == (10, 50, 28, 28, 1)
    size = (tmp_path / "run").stat().st_size
    print(f"\na recording at 10x5x50 takes {size / 1e6:.2f} MB")
    assert size < LIMIT, f"the recording takes {size / 1e6:.2f} MB"
