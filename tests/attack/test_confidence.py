"""Confidence: what the reconstruction alone tells about its quality."""

import numpy as np
import pytest
from scipy.stats import spearmanr

import workbench as wb
from workbench.attack.confidence import predict_psnr


@pytest.fixture(scope="module")
def images():
    return wb.load_dataset("glyphs").client(3, num_images=40).images


def psnr(images, truth):
    return -10 * np.log10(((images - truth) ** 2).mean((1, 2, 3)))


def test_images_that_fade_into_the_mean_lose_confidence_as_they_lose_quality(images):
    """What the attack cannot tell apart it mixes: every image with the mean, by a different share."""
    shares = np.linspace(0.1, 0.8, len(images))[:, None, None, None]
    faded = (1 - shares) * images + shares * images.mean(0)
    correlation = spearmanr(predict_psnr(faded), psnr(faded, images)).statistic
    assert correlation > 0.7, f"rank correlation {correlation:.2f} between predicted and true quality"


def test_images_under_noise_lose_confidence_as_they_lose_quality(images):
    amounts = np.linspace(0.02, 0.4, len(images))[:, None, None, None]
    noisy = images + amounts * np.random.default_rng(0).normal(size=images.shape)
    correlation = spearmanr(predict_psnr(noisy), psnr(noisy, images)).statistic
    assert correlation > 0.7, f"rank correlation {correlation:.2f} between predicted and true quality"


@pytest.mark.parametrize("value", [0.0, 0.5, 1.0, 7.0, -3.0])
def test_an_empty_picture_has_a_finite_prediction(value):
    assert np.isfinite(predict_psnr(np.full((2, 28, 28, 1), value, np.float32))).all()


def test_a_session_tells_its_confidence_for_every_image():
    client = wb.load_dataset("glyphs").client(0, num_images=4)
    model = wb.models.mlp(widths=(16,))
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
    session = wb.AttackSession(model, observation, wb.AttackConfig(steps=2), label_counts=client.label_counts)
    session.step(2)
    result = session.reconstruction()
    np.testing.assert_array_equal(result.confidence, predict_psnr(result.images))
    assert result.confidence.shape == (4,)
