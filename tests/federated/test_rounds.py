"""Federated averaging over rounds: it learns, it repeats itself, it saves what it should; and accuracy counts right."""

from functools import partial

import jax
import numpy as np
import pytest

import workbench as wb

MODEL = wb.models.mlp(image_shape=(28, 28, 1), widths=(40,), num_classes=62)
WEIGHTS = MODEL.init(0)
CONFIG = wb.ClientConfig(epochs=3, batch_size=10, learning_rate=0.05)


@pytest.fixture(scope="module")
def writers():
    glyphs = wb.load_dataset("glyphs")
    return [glyphs.client(index, num_images=50) for index in range(12)]


@pytest.fixture(scope="module")
def evaluate(writers):
    """On two writers who take no part in the training."""
    inputs = np.concatenate([writer.inputs for writer in writers[10:]])
    labels = np.concatenate([writer.labels for writer in writers[10:]])
    return partial(wb.accuracy, MODEL, inputs=inputs, labels=labels)


def run(writers, **changes):
    settings = {"rounds": 4, "clients_per_round": 3, "seed": 0, "progress": False} | changes
    return wb.server_rounds(MODEL, WEIGHTS, writers[:10], CONFIG, **settings)


def same_weights(one, other):
    return all(jax.tree.leaves(jax.tree.map(np.array_equal, one, other)))


def test_accuracy_on_other_writers_rises(writers, evaluate):
    weights, history = run(writers, rounds=16, clients_per_round=5, evaluate=evaluate, evaluate_every=4)
    measured = [done.accuracy for done in history if done.accuracy is not None]
    assert measured[-1] == evaluate(weights), "the last accuracy is not that of the weights returned"
    assert measured[-1] > 0.3 > 0.1 > evaluate(WEIGHTS), f"accuracy went from {evaluate(WEIGHTS)} to {measured}"


def test_a_round_is_the_mean_of_the_chosen_clients(writers):
    """With every client chosen and batches of everything there is no chance left but the order of a sum."""
    config = wb.ClientConfig(epochs=2, batch_size=50, learning_rate=0.1)
    weights, history = wb.server_rounds(
        MODEL, WEIGHTS, writers[:3], config, rounds=1, clients_per_round=3, progress=False
    )
    assert sorted(history[0].clients) == [0, 1, 2]
    expected = wb.aggregate([wb.client_update(MODEL, WEIGHTS, writer, config) for writer in writers[:3]])
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), weights, expected.client_weights)


def test_the_same_seed_gives_the_same_bits_and_another_seed_other_clients(writers):
    weights, history = run(writers)
    again, history_again = run(writers)
    assert history == history_again
    assert same_weights(weights, again), "the same seed gave other weights"
    others, history_others = run(writers, seed=1)
    assert [done.clients for done in history] != [done.clients for done in history_others]
    assert not same_weights(weights, others), "another seed gave the same weights"


def test_rounds_choose_clients_without_repetition_and_all_of_them_in_time(writers):
    _, history = run(writers, rounds=20)
    assert [done.number for done in history] == list(range(1, 21))
    assert all(len(set(done.clients)) == 3 for done in history), "a client was chosen twice in a round"
    assert {client for done in history for client in done.clients} == set(range(10)), "some client is never chosen"


def test_clients_draw_new_batches_in_every_round(writers):
    """The same client alone, twice one round from the same weights: another seed each time."""
    first, _ = wb.server_rounds(MODEL, WEIGHTS, writers[:1], CONFIG, rounds=2, clients_per_round=1, progress=False)
    one, _ = wb.server_rounds(MODEL, WEIGHTS, writers[:1], CONFIG, rounds=1, clients_per_round=1, progress=False)
    repeated, _ = wb.server_rounds(MODEL, one, writers[:1], CONFIG, rounds=1, clients_per_round=1, progress=False)
    assert not same_weights(first, repeated), "the second round used the first round's seed"


def test_weights_are_saved_every_k_rounds(writers, tmp_path):
    weights, _ = run(writers, rounds=6, save_every=3, save_to=tmp_path / "weights")
    files = sorted(path.name for path in (tmp_path / "weights").iterdir())
    assert files == ["weights_after_round_3.safetensors", "weights_after_round_6.safetensors"]
    assert same_weights(wb.load_weights(tmp_path / "weights" / files[1], model=MODEL), weights)
    after_3, _ = run(writers, rounds=3)
    assert same_weights(wb.load_weights(tmp_path / "weights" / files[0]), after_3), "round 3 was not saved as it was"


def test_accuracy_is_measured_when_asked_and_at_the_end(writers):
    _, history = run(writers, rounds=5, evaluate=lambda weights: 0.5, evaluate_every=2)
    assert [done.accuracy for done in history] == [None, 0.5, None, 0.5, 0.5]


def test_the_progress_bar_can_be_off(writers, capfd):
    run(writers, rounds=1)
    assert capfd.readouterr() == ("", ""), "something was shown although progress is off"
    run(writers, rounds=1, progress=True)
    assert "rounds" in capfd.readouterr().err, "no progress was shown"


@pytest.mark.parametrize("batch_size", [1, 7, 10, 500])
def test_accuracy_equals_numpy_also_with_a_padded_last_batch(batch_size):
    rng = np.random.default_rng(0)
    model = wb.models.mlp(image_shape=(3, 2, 1), widths=(), num_classes=4)
    weights = model.init(0)
    inputs, labels = rng.normal(size=(20, 3, 2, 1)), rng.integers(4, size=20)
    logits = inputs.reshape(20, -1) @ np.float64(weights["last_layer"]["kernel"])
    expected = (logits.argmax(1) == labels).mean()
    assert 0 < expected < 1, "nothing was tested"
    assert wb.accuracy(model, weights, inputs, labels, batch_size) == expected


def test_padding_is_never_counted_as_right():
    """A network that gives every image class 0, padding included."""
    model = wb.models.mlp(image_shape=(3, 2, 1), widths=(), num_classes=4)
    weights = jax.tree.map(np.zeros_like, jax.device_get(model.init(0)))
    weights["last_layer"]["bias"][0] = 1
    inputs, labels = np.zeros((3, 3, 2, 1)), np.array([0, 0, 1])
    assert wb.accuracy(model, weights, inputs, labels, batch_size=2) == pytest.approx(2 / 3)
