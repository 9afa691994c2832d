"""Saving and loading: exact, in spite of kill -9, and with one sentence where something is missing."""

import pickle
import random
import signal
import time

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.attack import build as building
from workbench.files import container
from workbench.session import checkpoint


@pytest.mark.parametrize("step", [0, 1, 7, 19, 20, 26, 30, 33, 99, 100])
def test_a_loaded_session_goes_on_as_if_nothing_had_happened(make_session, reference, assert_same, tmp_path, step):
    session = make_session()
    if step:
        session.step(step)
    session.save(tmp_path / "run")
    loaded = wb.AttackSession.load(tmp_path / "run")
    assert_same(loaded, session)
    assert loaded.label_counts.tolist() == session.label_counts.tolist()
    if step < 100:
        loaded.step(100 - step)
    assert_same(loaded.snapshot().state, reference[100])


def test_a_loaded_session_can_be_rewound_forked_and_saved_again(make_session, assert_same, tmp_path):
    session = make_session(snapshot_every=4, snapshot_bytes=10_000_000)
    for step in range(50):
        if step in (12, 25, 27):
            session.steer(tv_weight=0.01 * step, step_size=0.3)
        session.step()
    session.steer(clip_weight=5.0)
    session.save(tmp_path / "run")
    loaded = wb.AttackSession.load(tmp_path / "run")
    assert loaded.steering["clip_weight"] == 5.0
    loaded.save(tmp_path / "again")
    again = wb.AttackSession.load(tmp_path / "again")
    assert_same(again.fork(), session)
    for back in (50, 41, 26, 25, 3):
        for one in (loaded, again, session):
            one.rewind(back)
        assert_same(loaded, session)
        assert_same(again, session)
    for _ in range(8):
        loaded.step()
    assert loaded.history.snapshot_steps == (0, 4, 8), "the chosen cadence was lost"


def test_low_memory_stays_as_it_was_chosen(make_session, tmp_path, monkeypatch):
    """The free memory may be another when the session is loaded; its numbers must not be."""
    for chosen, free in ((True, (0, 2**60)), (False, (2**60, 0))):
        monkeypatch.setattr(building, "_free_memory", lambda _, free=free: free[0])
        session = make_session()
        session.save(tmp_path / "run")
        monkeypatch.setattr(building, "_free_memory", lambda _, free=free: free[1])
        loaded = wb.AttackSession.load(tmp_path / "run")
        segments = [s._attack.phases[-1].objective.simulation.segments for s in (session, loaded)]
        assert segments == [2 if chosen else 1] * 2


def test_known_batches_and_their_order_are_kept(model, client, tmp_path, assert_same):
    order = np.stack([np.random.default_rng(epoch).permutation(5) for epoch in range(2)])
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
    config = wb.AttackConfig(method="shared", steps=10)
    labels = client.labels[order]
    session = wb.AttackSession(model, observation, config, batch_labels=labels, image_order=order)
    session.step(3)
    session.save(tmp_path / "run")
    loaded = wb.AttackSession.load(tmp_path / "run")
    session.step(4)
    loaded.step(4)
    assert_same(loaded, session)


def test_an_aggregate_is_kept(model, tmp_path, assert_same):
    clients = [wb.load_dataset("glyphs").client(index, num_images=3) for index in range(2)]
    config = wb.ClientConfig(epochs=2, batch_size=2)
    updates = [wb.client_update(model, model.init(), client, config, seed=i) for i, client in enumerate(clients)]
    counts = np.stack([client.label_counts for client in clients])
    session = wb.AttackSession(model, wb.aggregate(updates), wb.AttackConfig(steps=10), label_counts=counts)
    session.step(3)
    session.save(tmp_path / "run")
    loaded = wb.AttackSession.load(tmp_path / "run")
    assert loaded.label_counts.tolist() == counts.tolist()
    session.step(4)
    loaded.step(4)
    assert_same(loaded, session)
    assert wb.score(loaded.reconstruction(), clients).psnr.shape == (6,)


def test_nothing_but_the_file_is_left_behind(make_session, tmp_path):
    session = make_session()
    for _ in range(3):
        session.save(tmp_path / "folder" / "run")
    assert [path.name for path in (tmp_path / "folder").iterdir()] == ["run"]


def test_a_place_that_cannot_be_written_is_named(make_session, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(wb.DataError, match="file"):
        make_session().save(tmp_path / "file" / "run")


# Custom functions


def custom_prior(images):
    return images.mean((0, 1, 2))


def custom_regularizer(images):
    return 1e-3 * jnp.abs(images).mean()


CUSTOM = {
    "prior": custom_prior,
    "regularizer": custom_regularizer,
    "optimizer": optax.chain(optax.trace(0.9), optax.scale(-1.0)),
}
SHORT = wb.AttackConfig(steps=6, prior_weight=10.0, step_size=0.01)


@pytest.mark.parametrize("name", CUSTOM)
def test_custom_functions_are_passed_again(make_session, assert_same, tmp_path, name):
    custom = {name: CUSTOM[name]}
    session = make_session(SHORT, **custom)
    session.step(3)
    session.save(tmp_path / "run")
    with pytest.raises(wb.CheckpointError, match=rf"a custom {name}; pass it again: load\(path, {name}=...\)"):
        wb.AttackSession.load(tmp_path / "run")
    loaded = wb.AttackSession.load(tmp_path / "run", **custom)
    session.step(3)
    loaded.step(3)
    assert_same(loaded, session)


@pytest.mark.parametrize("name", CUSTOM)
def test_a_custom_function_cannot_be_added_afterwards(make_session, tmp_path, name):
    session = make_session()
    session.save(tmp_path / "run")
    with pytest.raises(wb.CheckpointError, match=f"without a custom {name}"):
        wb.AttackSession.load(tmp_path / "run", **{name: CUSTOM[name]})


def test_another_optimizer_than_the_saved_one_is_noticed(make_session, tmp_path):
    session = make_session(SHORT, optimizer=CUSTOM["optimizer"])
    session.save(tmp_path / "run")
    with pytest.raises(wb.CheckpointError, match="another optimiser"):
        wb.AttackSession.load(tmp_path / "run", optimizer=optax.adam(1.0))


def test_a_custom_network_is_passed_again(client, tmp_path, assert_same):
    def init(seed=0):
        keys = jax.random.split(jax.random.key(seed))
        return {
            "hidden": {"kernel": jax.random.normal(keys[0], (784, 8)) / 28},
            "last": {"kernel": jax.random.normal(keys[1], (8, 62)), "bias": jnp.zeros(62)},
        }

    def features(weights, images):
        return jnp.tanh(images.reshape(len(images), -1) @ weights["hidden"]["kernel"])

    def apply(weights, images):
        return features(weights, images) @ weights["last"]["kernel"] + weights["last"]["bias"][None]

    model = wb.models.Model("mine", (28, 28, 1), 62, ("hidden", "last"), init, apply, features)
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
    session = wb.AttackSession(model, observation, SHORT, label_counts=client.label_counts)
    session.step(2)
    session.save(tmp_path / "run")
    with pytest.raises(wb.CheckpointError, match=r"a custom network; pass it again: load\(path, model=...\)"):
        wb.AttackSession.load(tmp_path / "run")
    with pytest.raises(wb.CheckpointError, match="mlp"):
        wb.AttackSession.load(tmp_path / "run", model=wb.models.mlp(widths=(16,)))
    loaded = wb.AttackSession.load(tmp_path / "run", model=model)
    session.step(3)
    loaded.step(3)
    assert_same(loaded, session)


# Files that are not right


def test_a_newer_format_is_refused_with_a_sentence(make_session, tmp_path):
    make_session().save(tmp_path / "run")
    settings, tensors = container.read(tmp_path / "run", checkpoint.KIND, checkpoint.FORMAT_VERSION)
    newer = checkpoint.FORMAT_VERSION + 1
    container.write(tmp_path / "newer", checkpoint.KIND, newer, {**settings, "and": "more"}, tensors)
    expected = f"has format {newer} and was written by a newer workbench; this one reads up to format {newer - 1}"
    with pytest.raises(wb.CheckpointError, match=expected):
        wb.AttackSession.load(tmp_path / "newer")


def test_files_that_are_something_else_are_refused(make_session, tmp_path, model):
    session = make_session()
    session.step()
    session.record(tmp_path / "recording")
    wb.save_weights(tmp_path / "weights", model.init())
    (tmp_path / "empty").write_bytes(b"")
    (tmp_path / "text").write_text("not a checkpoint " * 100)
    (tmp_path / "pickle").write_bytes(pickle.dumps({"a": 1}))
    (tmp_path / "long header").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    np.savez(tmp_path / "arrays.npz", a=np.zeros(3))
    for file in sorted(tmp_path.iterdir()):
        with pytest.raises(wb.CheckpointError, match=file.name):
            wb.AttackSession.load(file)
    for path in (tmp_path / "nowhere", tmp_path, "", None, 5):
        with pytest.raises(wb.CheckpointError, match=r"does not exist|must be the path"):
            wb.AttackSession.load(path)


# Autosave


def test_autosave_comes_every_so_many_steps(make_session, tmp_path):
    session = make_session()
    session.step(2)
    session.autosave(tmp_path / "run", every_steps=3)
    saved = []
    for _ in range(10):
        session.step()
        saved.append(wb.AttackSession.load(tmp_path / "run").num_steps if (tmp_path / "run").exists() else None)
    assert saved == [None, None, 5, 5, 5, 8, 8, 8, 11, 11]


def test_run_does_not_step_over_an_autosave(make_session, tmp_path, monkeypatch):
    session, saved = make_session(), []
    monkeypatch.setattr(checkpoint.Checkpoint, "write", lambda self, path: saved.append(len(self.history.loss)))
    session.autosave(tmp_path / "run", every_steps=9)
    session.run()
    assert saved == list(range(9, 100, 9))


def test_autosave_comes_every_so_many_seconds(make_session, tmp_path, monkeypatch):
    session, saved, clock = make_session(), [], [100.0]
    monkeypatch.setattr(checkpoint.Checkpoint, "write", lambda self, path: saved.append(len(self.history.loss)))
    monkeypatch.setattr(time, "monotonic", lambda: clock[0])
    session.autosave(tmp_path / "run", every_seconds=2.5)
    for _ in range(10):
        clock[0] += 1.0
        session.step()
    assert saved == [3, 6, 9]


def test_after_rewinding_the_new_way_is_saved_too(make_session, tmp_path):
    session = make_session()
    session.autosave(tmp_path / "run", every_steps=5)
    session.step(10)
    session.rewind(2)
    session.step(5)
    assert wb.AttackSession.load(tmp_path / "run").num_steps == 7


def test_a_fork_does_not_save_over_its_original(make_session, tmp_path):
    session = make_session()
    session.autosave(tmp_path / "run", every_steps=1)
    session.step()
    session.fork().step(5)
    assert wb.AttackSession.load(tmp_path / "run").num_steps == 1


@pytest.mark.parametrize("wrong", [{}, {"every_steps": 0}, {"every_seconds": 0.0}, {"every_steps": "x"}])
def test_wrong_autosaves_are_refused(make_session, tmp_path, wrong):
    with pytest.raises(wb.ConfigError, match="every_"):
        make_session().autosave(tmp_path / "run", **wrong)


def kill_and_finish(start_process, make_session, assert_same, path, kills, seed):
    """Kill a process that saves after every step, at random moments; what it leaves must go on as if undisturbed."""
    chance, steps = random.Random(seed), []
    for _ in range(kills):
        process = start_process(f"""
            path = {str(path)!r}
            session = wb.AttackSession.load(path) if os.path.exists(path) else make_session()
            session.autosave(path, every_steps=1)
            session.step()
            print("going", session.num_steps)
            while True:
                session.step()
            """)
        line = process.stdout.readline()
        assert line.startswith("going"), f"the process did not start well: {process.stderr.read()}"
        time.sleep(chance.uniform(0.0, 0.4))
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
        # What it printed was saved, and it was not far ahead of what is in the file.
        steps.append(wb.AttackSession.load(path).num_steps)
        assert steps[-1] >= int(line.split()[1])
    assert steps == sorted(steps)
    assert steps[0] < steps[-1], "nothing happened between the kills"
    loaded, undisturbed = wb.AttackSession.load(path), make_session()
    goal = loaded.num_steps + 30
    loaded.step(30)
    undisturbed.step(goal)
    assert_same(loaded, undisturbed)


def test_a_killed_session_goes_on_bit_for_bit(start_process, make_session, assert_same, tmp_path):
    kill_and_finish(start_process, make_session, assert_same, tmp_path / "run", kills=2, seed=0)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_session_killed_many_times_goes_on_bit_for_bit(start_process, make_session, assert_same, tmp_path):
    kill_and_finish(start_process, make_session, assert_same, tmp_path / "run", kills=25, seed=1)
