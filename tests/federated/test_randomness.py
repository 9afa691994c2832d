"""The random numbers: JAX's own bits, the right distributions, and keys that have nothing to do with each other."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from hypothesis import given
from hypothesis import strategies as st

from workbench import randomness
from workbench.randomness import laplacian, named_generator, named_key, normal, random_words, signed_uniform

jitted_words = jax.jit(random_words, static_argnums=1)


@given(seed=st.integers(0, 2**70), shape=st.sampled_from([(), (7,), (2, 3, 4)]))
def test_words_are_those_of_jax(seed, shape):
    key = named_key(seed, "test")
    np.testing.assert_array_equal(jitted_words(key, shape), jax.random.bits(key, shape))


@pytest.mark.parametrize(
    ("draw", "distribution"),
    [
        (signed_uniform, scipy.stats.uniform(-1, 2)),
        (normal, scipy.stats.norm()),
        (laplacian, scipy.stats.laplace()),
    ],
    ids=["signed_uniform", "normal", "laplacian"],
)
def test_draws_have_their_distribution(draw, distribution):
    draws = np.asarray(draw(named_key(1, "test"), (100_000,)), np.float64)
    p = scipy.stats.kstest(draws, distribution.cdf).pvalue
    assert p > 0.01, f"a Kolmogorov-Smirnov test finds another distribution, p = {p:.2g}"


def test_the_most_extreme_words_give_finite_draws(monkeypatch):
    extremes = jnp.asarray([0, 1, 2**31 - 1, 2**31, 2**32 - 1], jnp.uint32)
    monkeypatch.setattr(randomness, "random_words", lambda key, shape: extremes)
    uniform = np.asarray(signed_uniform(None, (5,)))
    assert (np.abs(uniform) < 1).all(), f"an end of the interval was drawn: {uniform}"
    assert (uniform != 0).all(), f"0 was drawn: {uniform}"
    for draw in (normal, laplacian):
        assert np.isfinite(draw(None, (5,))).all(), f"{draw.__name__} draws an infinite number"


def test_names_and_seeds_give_draws_that_have_nothing_to_do_with_each_other():
    keys = [named_key(seed, name) for seed in (0, 1, 2**32, 2**64) for name in ("client/batches", "client/defence")]
    draws = np.stack([normal(key, (10_000,)) for key in keys])
    together = np.corrcoef(draws) - np.eye(len(keys))
    assert np.abs(together).max() < 0.05, "two keys give correlated draws"
    hosts = np.stack([named_generator(seed, name).normal(size=10_000) for seed in (0, 1, 2**32) for name in ("a", "b")])
    assert np.abs(np.corrcoef(hosts) - np.eye(len(hosts))).max() < 0.05, "two generators give correlated draws"


def test_the_same_name_and_seed_give_the_same_draws():
    one, other = (normal(named_key(7, "test"), (100,)) for _ in range(2))
    np.testing.assert_array_equal(one, other)
    assert named_generator(7, "test").random() == named_generator(7, "test").random()
