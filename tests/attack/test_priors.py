"""The priors, against their definitions as plain loops."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.attack.priors import (
    epoch_prior,
    pairwise_distance,
    pixel_range,
    random_filters,
    summarize,
    total_variation,
)
from workbench.config import PRIOR_DISTANCES, PRIOR_WEIGHTS, SUMMARIES


def epochs_of(num_epochs, num_images, channels=2, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=(num_epochs, num_images, 5, 4, channels)), jnp.float32)


@pytest.mark.parametrize("distance", PRIOR_DISTANCES)
@pytest.mark.parametrize("summary", SUMMARIES)
def test_order_within_an_epoch_does_not_matter(summary, distance):
    epochs = epochs_of(3, 6)
    rng = np.random.default_rng(1)
    shuffled = jnp.stack([epoch[rng.permutation(6)] for epoch in epochs])
    filters = random_filters(jax.random.key(0), 2)
    before, after = (float(epoch_prior(e, summary, distance, filters)) for e in (epochs, shuffled))
    assert before > 0, "the prior of different epochs must not be zero"
    assert after == pytest.approx(before, rel=1e-5), f"reordering changed {summary}/{distance}"
    same = jnp.stack([epochs[0], epochs[0][rng.permutation(6)]])
    assert float(epoch_prior(same, summary, distance, filters)) == pytest.approx(0, abs=1e-6)


@given(st.integers(1, 7), st.sampled_from(PRIOR_DISTANCES), st.integers(0, 10**6))
def test_distance_is_the_mean_over_all_ordered_pairs(num_epochs, distance, seed):
    g = np.random.default_rng(seed).normal(size=(num_epochs, 5)).astype(np.float32)
    power = 2 if distance == "l2" else 1
    pairs = [np.mean(np.abs(a - b) ** power) for a in g for b in g]
    assert float(pairwise_distance(jnp.asarray(g), distance)) == pytest.approx(np.mean(pairs), rel=1e-4, abs=1e-6)


def test_convolution_of_the_mean_is_the_mean_of_convolutions():
    epochs, filters = epochs_of(2, 3), random_filters(jax.random.key(0), 2)
    each = jax.vmap(lambda images: summarize(images[:, None], "conv+mean", filters))(epochs)
    np.testing.assert_allclose(summarize(epochs, "conv+mean", filters), each.mean(1), atol=1e-5)


def test_ones_own_summary_is_used():
    epochs = epochs_of(3, 4)
    own = epoch_prior(epochs, lambda images: images.mean(0), "l2")
    assert float(own) == pytest.approx(float(epoch_prior(epochs, "mean", "l2")), rel=1e-6)


def test_total_variation_and_pixel_range_are_as_defined():
    images = np.random.default_rng(0).normal(0.5, 1, size=(2, 3, 5, 4, 2)).astype(np.float32)
    variation = excess = 0.0
    for image in images.reshape(-1, 5, 4, 2):
        for h in range(5):
            for w in range(4):
                for c in range(2):
                    x = image[h, w, c]
                    variation += (x - image[h, w - 1, c]) ** 2 + (x - image[h - 1, w, c]) ** 2
                    excess += (x - min(max(x, 0), 1)) ** 2
    assert float(total_variation(jnp.asarray(images))) == pytest.approx(variation / 6, rel=1e-4)
    assert float(pixel_range(jnp.asarray(images))) == pytest.approx(excess / 6, rel=1e-4)


def test_matched_weights_are_the_papers():
    """The paper matched its priors' weights at the first iteration: doing the same must give about the same weights."""
    images = jax.random.normal(jax.random.key(0), (10, 50, 28, 28, 1))
    filters = random_filters(jax.random.key(1), 1)
    weights = PRIOR_WEIGHTS["femnist"]
    default = weights["mean", "l2"] * float(epoch_prior(images, "mean", "l2"))
    for (summary, distance), published in weights.items():
        matched = default / float(epoch_prior(images, summary, distance, filters))
        assert matched == pytest.approx(published, rel=0.05), f"{summary}/{distance}: {matched:.1f}, paper {published}"
