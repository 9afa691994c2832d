"""The bundled photographs' crops: real, distinct, not flat, and nothing is downloaded."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workbench.data import load_dataset, photos
from workbench.data.photos import Photograph, crops_by_region, load_photos, read_photograph, reduced
from workbench.errors import ConfigError, DataError


@pytest.fixture(scope="module")
def everything():
    """All pictures of all clients in client order."""
    dataset = load_photos()
    clients = [dataset.client(index, num_images=None) for index in range(dataset.num_clients)]
    return np.concatenate([c.images for c in clients]), np.concatenate([c.labels for c in clients])


def test_is_a_stand_in_for_cifar100():
    dataset = load_dataset("photos")
    assert dataset.image_shape == (32, 32, 3)
    assert dataset.num_classes == len(set(dataset.class_names)) == 100
    assert dataset.psnr_threshold == 19
    assert dataset.normalization.mean == (0.5071, 0.4867, 0.4408)
    assert dataset.num_clients >= 100
    assert dataset.client(99).num_images == 50


def test_all_crops_are_distinct_and_every_class_has_its_share(everything):
    images, labels = everything
    pictures = images.reshape(len(images), -1)
    assert len(np.unique(pictures, axis=0)) == len(pictures) == 5000, "two clients have the same picture"
    assert np.bincount(labels, minlength=100).tolist() == [50] * 100


def test_no_crop_is_flat(everything):
    images, _ = everything
    contrast = images.std(axis=(1, 2)).mean(axis=1)
    assert contrast.min() > 0.03, f"a crop has a contrast of {contrast.min():.3f}: nothing is to be seen in it"
    assert np.median(contrast) > 0.15, f"the typical contrast is {np.median(contrast):.3f}; CIFAR-100's is 0.2"


def test_a_clients_pictures_come_from_many_photographs():
    client = load_photos().client(0)
    assert len({client.class_names[label].split()[0] for label in client.labels}) >= 5


def test_the_same_seed_the_same_crops():
    first = load_photos(3).client(7)
    photos._all_crops.cache_clear()
    again = load_photos(3).client(7)
    np.testing.assert_array_equal(first.images, again.images, err_msg="the same seed gave other crops")
    assert (load_photos(4).client(7).images != first.images).any(), "another seed gave the same crops"


@settings(max_examples=20, deadline=None)
@given(data=st.data(), factor=st.integers(1, 5))
def test_reduced_is_the_mean_of_blocks(data, factor):
    height, width = data.draw(st.integers(factor, 17)), data.draw(st.integers(factor, 17))
    pixels = np.random.default_rng(height * 100 + width).integers(0, 256, (height, width, 3), dtype=np.uint8)
    small = reduced(pixels, factor)
    assert small.shape == (height // factor, width // factor, 3)
    for row, column in np.ndindex(small.shape[:2]):
        block = pixels[row * factor :, column * factor :][:factor, :factor]
        np.testing.assert_allclose(small[row, column], block.mean(axis=(0, 1)), atol=0.501)


@settings(max_examples=5, deadline=None)
@given(seed=st.integers(0, 1000))
def test_crops_of_a_photograph_are_distinct_whatever_the_seed(seed):
    crops = crops_by_region(Photograph("chelsea.png", 2, 2), 30, np.random.default_rng(seed))
    assert len(np.unique(crops.reshape(len(crops), -1), axis=0)) == len(crops) == 120


def test_a_crop_is_part_of_its_photograph():
    pixels = read_photograph("coffee.png")
    crop = crops_by_region(Photograph("coffee.png", 1, 1), 1, np.random.default_rng(0))[0]
    factors = range(pixels.shape[0] // 128, pixels.shape[0] // 64 + 1)
    windows = np.concatenate(
        [
            np.lib.stride_tricks.sliding_window_view(reduced(pixels, factor)[..., 0], (32, 32)).reshape(-1, 32, 32)
            for factor in factors
        ]
    )
    assert any((windows == red).all(axis=(1, 2)).any() for red in (crop[..., 0], crop[:, ::-1, 0]))


def test_a_photograph_that_scikit_image_lacks_gets_one_clear_sentence():
    with pytest.raises(DataError, match=r"photos needs unknown.png, which the installed scikit-image lacks"):
        read_photograph("unknown.png")


def test_wrong_seed_gets_one_clear_sentence():
    with pytest.raises(ConfigError, match="seed = -1 must be a whole number of at least 0"):
        load_photos(-1)
