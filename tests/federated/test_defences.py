"""What each defence promises of a batch's gradient."""

from functools import lru_cache, partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.federated.client import clipped, defended_gradient, draw_like, is_kept
from workbench.randomness import named_key
from workbench.training.sgd import batch_gradient

# About 20,000 weights: a standard deviation measured over them is right to about half a percent.
MODEL = wb.models.mlp(image_shape=(8, 8, 3), widths=(96,), num_classes=10)
WEIGHTS = MODEL.init(0)
KEY = named_key(0, "test")


def flat(gradient):
    return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(gradient)])


def make_batch(size):
    """A batch for 5 images that holds ``size``."""
    rng = np.random.default_rng(size)
    images = jnp.asarray(rng.normal(size=(5, *MODEL.image_shape)), jnp.float32)
    labels = jnp.asarray(rng.integers(MODEL.num_classes, size=5))
    share = jnp.asarray([1 / size] * size + [0.0] * (5 - size), jnp.float32)
    return images, labels, share


@lru_cache
def compiled(defence):
    return jax.jit(partial(defended_gradient, MODEL, defence))


def defended(defence, batch):
    return compiled(defence)(WEIGHTS, *batch, KEY)


def plain(batch):
    return jax.jit(partial(batch_gradient, MODEL))(WEIGHTS, *batch)[0]


@pytest.mark.parametrize("size", [1, 3, 5])
@pytest.mark.parametrize(("name", "deviation"), [("gaussian", 1.0), ("laplacian", 2**0.5)])
def test_noise_on_each_example_has_the_claimed_size_in_the_mean(name, deviation, size):
    batch = make_batch(size)
    noise = flat(defended(wb.DefenceConfig(name, 0.3), batch)) - flat(plain(batch))
    expected = 0.3 * deviation / size**0.5
    np.testing.assert_allclose(noise.std(), expected, rtol=0.03, err_msg="the noise has another standard deviation")
    assert abs(noise.mean()) < 4 * expected / len(noise) ** 0.5, f"the noise has a mean of {noise.mean():.2g}"


@pytest.mark.parametrize(("name", "size", "excess"), [("gaussian", 1, 0), ("laplacian", 1, 3), ("laplacian", 4, 0.75)])
def test_noise_has_the_claimed_tails(name, size, excess):
    """The mean of n Laplacian draws has an excess kurtosis of 3 / n, of Gaussian draws none."""
    batch = make_batch(size)
    noise = flat(defended(wb.DefenceConfig(name, 0.3), batch)) - flat(plain(batch))
    kurtosis = ((noise - noise.mean()) ** 4).mean() / noise.var() ** 2 - 3
    assert abs(kurtosis - excess) < 0.25 + 0.15 * excess, f"excess kurtosis {kurtosis:.2f} instead of {excess}"


@pytest.mark.parametrize("probability", [0.1, 0.5, 1.0])
def test_pruning_drops_the_claimed_share_and_leaves_the_rest(probability):
    batch = make_batch(1)
    before, after = flat(plain(batch)), flat(defended(wb.DefenceConfig("pruning", probability), batch))
    matters = before != 0
    dropped = after[matters] == 0
    spread = (probability * (1 - probability) / matters.sum()) ** 0.5
    assert abs(dropped.mean() - probability) <= 4 * spread, f"{dropped.mean():.3f} were dropped"
    np.testing.assert_allclose(after[~(after == 0)], before[~(after == 0)], rtol=1e-5, atol=1e-8)


def test_each_example_is_pruned_by_itself():
    """Of an entry that two equal examples share, half of it is left as often as all or nothing."""
    images, labels, share = make_batch(2)
    twice = (jnp.broadcast_to(images[:1], images.shape), jnp.broadcast_to(labels[:1], labels.shape), share)
    before, after = flat(plain(twice)), flat(defended(wb.DefenceConfig("pruning", 0.5), twice))
    left = np.round(after[np.abs(before) > 1e-4] / before[np.abs(before) > 1e-4], 3)
    parts = [(left == part).mean() for part in (0, 0.5, 1)]
    np.testing.assert_allclose(parts, [0.25, 0.5, 0.25], atol=0.02, err_msg="examples are not pruned independently")


TREES = st.integers(0, 10**6).map(
    lambda seed: jax.tree.map(
        lambda shape: np.random.default_rng(seed).normal(size=shape).astype(np.float32),
        {"one": {"kernel": (4, 3), "bias": (3,)}, "two": {"kernel": (3, 2)}},
        is_leaf=lambda leaf: isinstance(leaf, tuple),
    )
)


@given(gradient=TREES, clip_norm=st.floats(1e-3, 1e3), size=st.floats(-6, 6).map(lambda power: 10**power))
def test_clipping_shortens_what_is_too_long_and_nothing_else(gradient, clip_norm, size):
    gradient = jax.tree.map(lambda g: g * np.float32(size), gradient)
    before, after = flat(gradient).astype(np.float64), flat(clipped(gradient, clip_norm)).astype(np.float64)
    norm = np.linalg.norm(before)
    assert np.linalg.norm(after) <= clip_norm * (1 + 1e-5), "longer than the bound"
    np.testing.assert_allclose(after, before * min(1, clip_norm / norm), rtol=1e-4, err_msg="not only shortened")


def test_clipping_nothing_gives_nothing():
    zero = jax.tree.map(jnp.zeros_like, WEIGHTS)
    assert not flat(clipped(zero, 1.0)).any(), "a zero gradient did not stay zero"


def test_one_example_moves_the_sum_by_the_clip_norm_and_not_more():
    """The sensitivity on which the privacy guarantee of DP-SGD rests."""
    defence = wb.DefenceConfig("dp_sgd", 0.0, clip_norm=0.2)
    images, labels, share = make_batch(5)
    gone = np.asarray([1 / 5] * 4 + [0], np.float32)
    assert np.linalg.norm(flat(plain((images, labels, share - gone)))) > 0.2 / 5, "short enough: nothing was tested"
    moved = 5 * (flat(defended(defence, (images, labels, share))) - flat(defended(defence, (images, labels, gone))))
    np.testing.assert_allclose(np.linalg.norm(moved), 0.2, rtol=1e-3, err_msg="an example's part is not clip_norm")


@pytest.mark.parametrize("size", [3, 5])
def test_dp_sgd_noise_belongs_to_the_sum_of_the_batch(size):
    batch = make_batch(size)
    quiet, noisy = (defended(wb.DefenceConfig("dp_sgd", strength, clip_norm=0.2), batch) for strength in (0.0, 1.5))
    noise = flat(noisy) - flat(quiet)
    np.testing.assert_allclose(noise.std(), 1.5 * 0.2 / size, rtol=0.03, err_msg="another noise on the mean")


def test_zero_strength_changes_nothing():
    batch = make_batch(3)
    for name in ("gaussian", "laplacian", "pruning"):
        after = flat(defended(wb.DefenceConfig(name, 0.0), batch))
        np.testing.assert_allclose(after, flat(plain(batch)), atol=1e-7, err_msg=f"{name} of strength 0 did something")


@pytest.mark.parametrize(("independent", "factor"), [(True, 4**0.5), (False, 4.0)], ids=["independent", "repeated"])
def test_draws_are_new_in_every_epoch_or_repeated(independent, factor):
    """Over 4 epochs, independent noise grows with the root of their number, repeated noise with their number."""
    rng = np.random.default_rng(0)
    client = wb.ClientData(
        images=rng.random((6, *MODEL.image_shape), np.float32),
        labels=rng.integers(10, size=6),
        class_names=tuple("abcdefghij"),
        normalization=wb.data.Normalization((0.5,) * 3, (0.3,) * 3),
    )
    # So small a rate that noise in one step does not change the gradient of another.
    rate, sigma = 1e-3, 0.2

    def trained(defence):
        config = wb.ClientConfig(epochs=4, batch_size=2, learning_rate=rate, defence=defence)
        return flat(wb.client_update(MODEL, WEIGHTS, client, config).client_weights)

    noise = trained(wb.DefenceConfig("gaussian", sigma, independent=independent)) - trained(wb.DefenceConfig())
    one_epoch = rate * sigma / 2**0.5 * 3**0.5
    np.testing.assert_allclose(noise.std(), one_epoch * factor, rtol=0.05, err_msg="the draws are not as claimed")


def test_every_array_has_draws_of_its_own():
    tree = {"a": {"kernel": jnp.zeros(1000), "bias": jnp.zeros(1000)}}
    kept = draw_like(tree, KEY, partial(is_kept, 0.5))["a"]
    agree = (kept["kernel"] == kept["bias"]).mean()
    assert 0.4 < agree < 0.6, f"two arrays agree in {agree:.2f} of their draws"


@pytest.mark.parametrize(("name", "decay"), [("dp_sgd", 0.0), ("pruning", 0.5)])
def test_running_statistics_in_evaluation_mode_stay_as_they_are(name, decay):
    model = wb.models.from_torch_export(Path(__file__).parents[1] / "files" / "torch" / "resnet_batch_norm_eval.pt2")
    images = np.random.default_rng(0).random((4, *model.image_shape))
    client = wb.ClientData(images, np.arange(4), tuple("abcde"), wb.data.Normalization((0.5,) * 3, (0.3,) * 3))
    defence = wb.DefenceConfig(name, 0.1, clip_norm=1.0 if name == "dp_sgd" else None)
    config = wb.ClientConfig(epochs=1, batch_size=2, weight_decay=decay, defence=defence)
    observation = wb.client_update(model, model.init(), client, config)
    assert len(model.statistics) == 12
    for layer, statistic in model.statistics:
        before, after = (w[layer][statistic] for w in (observation.server_weights, observation.client_weights))
        np.testing.assert_array_equal(before, after, f"{layer}.{statistic}")
