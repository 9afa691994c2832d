"""Epsilon of dp_sgd: against published values, numerical integration, and the client's own clipping and noise."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import integrate, stats

import workbench as wb
from workbench.auditing.privacy import dp_sgd_epsilon, gaussian_epsilon
from workbench.federated.client import defended_gradient


def hockey_stick(multiplier, epsilon):
    """Delta by integration: what N(1, s) has more than exp(epsilon) times N(0, s), with s the multiplier."""
    first, second = stats.norm(1, multiplier), stats.norm(0, multiplier)
    # The ratio of the densities is monotone, and crosses exp(epsilon) here.
    start = multiplier**2 * epsilon + 0.5
    excess = lambda x: first.pdf(x) - np.exp(epsilon) * second.pdf(x)  # noqa: E731 - an integrand
    return integrate.quad(excess, start, start + 40 * multiplier, epsabs=0, epsrel=1e-10, limit=200)[0]


# Multiplier, number of compositions, delta and epsilon: the first is in the tests of OpenDP, the others are those of
# other libraries' exact accounting.
PUBLISHED = [
    (3.730632, 1, 1e-5, 1.0),
    (1.0, 1, 1e-5, 4.377178),
    (20.0, 200, 1e-5, 2.943225),
    (10.0, 200, 1e-5, 6.572970),
]


@pytest.mark.parametrize(("multiplier", "uses", "delta", "epsilon"), PUBLISHED)
def test_epsilon_is_the_published_one(multiplier, uses, delta, epsilon):
    defence = wb.DefenceConfig("dp_sgd", multiplier, clip_norm=1.0)
    assert dp_sgd_epsilon(defence, uses, delta=delta) == pytest.approx(epsilon, abs=2e-6)


@pytest.mark.parametrize("multiplier", [0.3, 1.0, 3.0, 30.0])
@pytest.mark.parametrize("delta", [1e-8, 1e-5, 1e-2])
def test_integration_gives_the_same_delta(multiplier, delta):
    epsilon = gaussian_epsilon(multiplier, delta)
    assert epsilon > 0
    assert hockey_stick(multiplier, epsilon) == pytest.approx(delta, rel=1e-6)


@pytest.mark.parametrize("multiplier", [1e-3, 1e3, 1e6])
@pytest.mark.parametrize("delta", [1e-30, 1e-12, 0.999])
def test_extreme_inputs_give_a_finite_epsilon_within_the_known_bound(multiplier, delta):
    epsilon, rho = gaussian_epsilon(multiplier, delta), 1 / (2 * multiplier**2)
    assert 0 <= epsilon <= rho + 2 * np.sqrt(rho * np.log(1 / delta)) + 1e-9


def test_less_noise_or_delta_means_more_epsilon():
    values = [gaussian_epsilon(multiplier, 1e-5) for multiplier in (0.1, 0.5, 1, 5, 50)]
    assert values == sorted(values, reverse=True)
    values = [gaussian_epsilon(1.0, delta) for delta in (1e-10, 1e-5, 1e-1, 0.5)]
    assert values == sorted(values, reverse=True)
    assert values[-1] == 0, "at delta 0.5 a multiplier of 1 needs no epsilon at all: total variation is 0.383"


def test_epochs_and_rounds_compose_to_one_mechanism():
    defence = wb.DefenceConfig("dp_sgd", 2.0, clip_norm=3.0)
    assert dp_sgd_epsilon(defence, 4) == pytest.approx(gaussian_epsilon(1.0, 1e-5))
    assert dp_sgd_epsilon(defence, 2, rounds=2) == dp_sgd_epsilon(defence, 4)
    assert dp_sgd_epsilon(defence, 1, adjacency="replace") == dp_sgd_epsilon(defence, 4), "twice the sensitivity"


@pytest.mark.parametrize(
    "defence",
    [
        wb.DefenceConfig(),
        wb.DefenceConfig("gaussian", 1.0),
        wb.DefenceConfig("dp_sgd", 0.0, clip_norm=1.0),
        wb.DefenceConfig("dp_sgd", 1.0, clip_norm=1.0, independent=False),
    ],
)
def test_without_a_guarantee_there_is_no_epsilon(defence):
    assert dp_sgd_epsilon(defence, epochs=2) is None


@pytest.mark.parametrize(("multiplier", "delta"), [(0, 1e-5), (-1, 1e-5), (1, 0), (1, 2)])
def test_a_wrong_number_is_refused(multiplier, delta):
    with pytest.raises(wb.ConfigError, match="must be"):
        gaussian_epsilon(multiplier, delta)


def test_the_sensitivity_is_that_of_the_clients_own_gradient(model, client):
    """One image less moves the sum by at most the clip norm, another image by at most twice; noise is z times that."""
    clip, weights, key = 0.05, model.init(), jax.random.key(0)
    quiet, noisy = (wb.DefenceConfig("dp_sgd", strength, clip_norm=clip) for strength in (0.0, 2.0))
    images, labels, share = jnp.asarray(client.inputs[:4]), jnp.asarray(client.labels[:4]), jnp.full(4, 0.25)

    def batch_sum(defence, images, labels, present=(1, 1, 1, 1)):
        mean = defended_gradient(model, defence, weights, images, labels, share * jnp.float32(present), key)[0]
        return np.concatenate([np.ravel(leaf) for leaf in jax.tree.leaves(mean)]) * 4

    whole = batch_sum(quiet, images, labels)
    without = batch_sum(quiet, images, labels, present=(1, 1, 1, 0))
    replaced = batch_sum(quiet, images.at[3].set(-images[3]), labels.at[3].set(0))
    assert np.linalg.norm(whole - without) == pytest.approx(clip, rel=1e-4), "this image is clipped, so it is the bound"
    assert clip < np.linalg.norm(whole - replaced) <= 2 * clip
    noise = batch_sum(noisy, images, labels) - whole
    assert noise.std() == pytest.approx(2.0 * clip, rel=0.02)
