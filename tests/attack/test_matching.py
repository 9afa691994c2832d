"""Matching against brute force, and scores against plain definitions."""

from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from skimage.metrics import peak_signal_noise_ratio, structural_similarity

import workbench as wb
from workbench.attack.matching import assign, combine_epochs, match_epochs, psnr_matrix
from workbench.errors import DataError


@given(st.integers(1, 6), st.integers(0, 10**6))
def test_assignment_equals_brute_force(n, seed):
    similarity = np.random.default_rng(seed).normal(size=(n, n))
    best = max(permutations(range(n)), key=lambda p: sum(similarity[i, p[i]] for i in range(n)))
    assert tuple(assign(similarity)) == best


@given(st.integers(1, 4), st.integers(1, 8), st.integers(0, 10**6))
def test_shuffled_epochs_are_put_back(num_epochs, num_images, seed):
    rng = np.random.default_rng(seed)
    first = rng.random((num_images, 4, 4, 1)).astype(np.float32)
    orders = [np.arange(num_images)] + [rng.permutation(num_images) for _ in range(num_epochs - 1)]
    epochs = np.stack([first[order] for order in orders])
    matched = match_epochs(epochs)
    for epoch, order in zip(epochs, matched, strict=True):
        np.testing.assert_array_equal(epoch[order], first, "a shuffled epoch was not put back into order")
    for how in ("mean", "median"):
        np.testing.assert_allclose(combine_epochs(epochs, matched, how), first, atol=1e-6)


@given(st.lists(st.integers(0, 3), min_size=1, max_size=8), st.integers(0, 10**6))
def test_identical_epochs_match_to_the_identity_with_duplicates_too(which, seed):
    images = np.random.default_rng(seed).random((4, 4, 4, 1)).astype(np.float32)[which]
    assert (np.diag(psnr_matrix(images, images)) == 100.0).all(), "the PSNR of equal images is capped"
    np.testing.assert_array_equal(match_epochs(np.stack([images] * 3)), np.tile(np.arange(len(which)), (3, 1)))


@given(st.integers(1, 6), st.integers(0, 10**6))
def test_matching_within_labels_equals_brute_force_over_the_orders_that_keep_them(n, seed):
    rng = np.random.default_rng(seed)
    epochs = rng.random((2, n, 4, 4, 1)).astype(np.float32)
    first = rng.integers(0, 3, n)
    labels = np.stack([first, rng.permutation(first)])
    likeness = psnr_matrix(*epochs)
    allowed = [order for order in permutations(range(n)) if (labels[1][list(order)] == labels[0]).all()]
    best = max(allowed, key=lambda order: sum(likeness[i, order[i]] for i in range(n)))
    assert tuple(match_epochs(epochs, labels)[1]) == best


def test_a_label_that_one_epoch_has_more_often_costs_no_other_match():
    epochs = np.random.default_rng(0).random((2, 4, 4, 4, 1)).astype(np.float32)
    labels = np.array([[0, 1, 2, 2], [2, 1, 0, 0]])
    order = match_epochs(epochs, labels)[1]
    assert sorted(order) == [0, 1, 2, 3]
    assert (labels[1][order] == labels[0]).sum() == 3


def test_median_ignores_one_bad_epoch_and_mean_does_not():
    good = np.random.default_rng(0).random((3, 4, 4, 1)).astype(np.float32)
    epochs = np.stack([good, good, good + np.float32(0.1)])
    order = np.tile(np.arange(3), (3, 1))
    np.testing.assert_allclose(combine_epochs(epochs, order, "median"), good, atol=1e-6)
    assert np.abs(combine_epochs(epochs, order, "mean") - good).max() > 0.03


def client_of(images):
    return wb.ClientData(images, np.zeros(len(images), int), ("a", "b"), wb.data.Normalization((0.5,), (0.5,)))


def test_score_against_plain_definitions():
    rng = np.random.default_rng(0)
    truth = rng.random((6, 9, 9, 1)).astype(np.float32)
    found = (truth + rng.normal(0, [[[[0.02]]]] * 3 + [[[[0.3]]]] * 3, truth.shape)).astype(np.float32)
    result = wb.score(found[::-1], client_of(truth))
    np.testing.assert_array_equal(result.order, np.arange(6)[::-1])
    for i in range(6):
        assert result.psnr[i] == pytest.approx(peak_signal_noise_ratio(truth[i], found[i], data_range=1), abs=1e-3)
        expected = structural_similarity(truth[i], found[i], data_range=1, channel_axis=-1)
        assert result.ssim[i] == pytest.approx(expected, abs=1e-6)
    assert result.recovered_percent == 50.0, "three of six images are above 20 dB"


def test_no_true_image_is_claimed_twice():
    """Two copies of one good image must not both count for it."""
    truth = np.random.default_rng(0).random((4, 8, 8, 1)).astype(np.float32)
    result = wb.score(np.stack([truth[0]] * 4), client_of(truth))
    assert sorted(result.order) == [0, 1, 2, 3]
    assert result.recovered_percent == 25.0


def test_aggregates_are_scored_against_all_clients():
    images = np.random.default_rng(0).random((6, 8, 8, 1)).astype(np.float32)
    result = wb.score(images[[5, 4, 3, 2, 1, 0]], [client_of(images[:3]), client_of(images[3:])])
    assert len(result.psnr) == 6
    assert result.recovered_percent == 100.0
    with pytest.raises(DataError, match="shape"):
        wb.score(images, client_of(images[:3]))
