"""Scores of pictures of any size, and what is refused."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.data import Normalization
from workbench.errors import DataError
from workbench.metrics import averaging_curves, reference_levels, ssim


def make_client(images, **changes):
    channels = images.shape[-1]
    normalization = Normalization((0.5,) * channels, (0.25,) * channels)
    return wb.ClientData(images, np.zeros(len(images), int), ("a", "b"), normalization, **changes)


@settings(max_examples=20)
@given(st.integers(1, 12), st.integers(1, 12), st.sampled_from([1, 3]))
def test_pictures_of_any_size_have_a_similarity(height, width, channels):
    rng = np.random.default_rng([height, width, channels])
    first, second = rng.random((2, height, width, channels)).astype(np.float32)
    assert ssim(first, first) == pytest.approx(1), "a picture is like itself"
    assert -1 <= ssim(first, second) < 1, "another picture is less so"


@pytest.mark.parametrize(("error", "decibels"), [(0.1, 20.0), (0.01, 40.0), (1e-6, 100.0), (0.0, 100.0)])
def test_psnr_of_a_known_error_is_known_and_ends_at_100(error, decibels):
    truth = np.random.default_rng(0).uniform(0.2, 0.8, (3, 6, 6, 1)).astype(np.float32)
    result = wb.score(truth + np.float32(error), make_client(truth))
    np.testing.assert_allclose(result.psnr, decibels, atol=1e-3)


def test_pixels_outside_the_range_are_not_clipped():
    truth = np.ones((1, 4, 4, 1), np.float32)
    result = wb.score(truth + np.float32(0.1), make_client(truth))
    assert result.psnr[0] == pytest.approx(20, abs=1e-3), "a pixel of 1.1 is 0.1 away from one of 1"


def test_recovered_is_above_the_clients_threshold():
    truth = np.random.default_rng(0).uniform(0.2, 0.8, (4, 6, 6, 1)).astype(np.float32)
    noise = np.float32([0.2, 0.11, 0.09, 0.01])[:, None, None, None]
    for threshold, percent in ((19.0, 75.0), (20.0, 50.0), (50.0, 0.0)):
        result = wb.score(truth + noise, make_client(truth, psnr_threshold=threshold))
        assert result.recovered_percent == percent, f"{result.psnr.round(1)} against {threshold} dB"


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (np.zeros((2, 4, 4, 1)), "shape"),
        (np.zeros((3, 4, 4)), "shape"),
        (np.full((3, 4, 4, 1), np.nan), "NaN or infinite"),
    ],
)
def test_wrong_reconstructions_get_one_clear_sentence(images, says):
    with pytest.raises(DataError, match=says):
        wb.score(images, make_client(np.zeros((3, 4, 4, 1), np.float32)))


def test_wrong_truth_gets_one_clear_sentence():
    for truth in (np.zeros((3, 4, 4, 1)), []):
        with pytest.raises(DataError, match="truth"):
            wb.score(np.zeros((3, 4, 4, 1)), truth)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.randoms(use_true_random=False))
def test_label_errors_count_the_labels_that_are_wrong(counts, random):
    true = [k for k, n in enumerate(counts) for _ in range(n)]
    found = [random.randrange(len(counts)) for _ in true]
    both = np.array(
        [np.bincount(labels, minlength=len(counts)) for labels in (np.array(true, int), np.array(found, int))]
    )
    right = np.minimum(*both).sum()
    assert wb.label_errors(*both) == len(true) - right


def test_label_errors_need_counts_of_the_same_classes():
    with pytest.raises(DataError, match="shapes"):
        wb.label_errors([1, 2], [1, 2, 0])


def test_averaging_curves_rise_where_epochs_differ_by_noise_alone():
    client = wb.load_dataset("glyphs").client(0, num_images=3)
    rng = np.random.default_rng(0)
    permutations = np.stack([rng.permutation(3) for _ in range(4)])
    epochs = np.empty((4, *client.images.shape), np.float32)
    for epoch, order in zip(epochs, permutations, strict=True):
        epoch[order] = client.images + rng.normal(0, 0.2, client.images.shape)
    curves = averaging_curves(SimpleNamespace(epochs=epochs, permutations=permutations), client)
    assert sorted(curves) == ["mean", "median"]
    assert (np.diff(curves["mean"]) > 0.5).all(), f"more epochs do not help: {curves['mean']}"
    assert curves["mean"][0] == curves["median"][0], "of one epoch mean and median are the same"
    assert curves["mean"][3] > curves["median"][3], "of normal noise the mean leaves less"


def test_reference_levels_are_those_of_images_that_show_nothing():
    client = wb.load_dataset("glyphs").client(0, num_images=5)
    levels = {name: values.mean() for name, values in reference_levels(client).items()}
    for name, image in (("blank", np.ones((28, 28, 1))), ("mean", client.images.mean(0))):
        error = ((client.images - image) ** 2).mean((1, 2, 3))
        np.testing.assert_allclose(levels[name], -10 * np.log10(error).mean(), rtol=1e-5, err_msg=name)
    assert levels["mean"] > levels["blank"]
