"""The records: what they promise about their content, and how they refuse what is wrong."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from workbench.data import ClientData, Dataset, Normalization
from workbench.data.dataset import groups_by_key, shuffled_groups
from workbench.errors import ConfigError, DataError

NORMALIZATION = Normalization(mean=(0.5,), std=(0.25,))


def make_client(**changes):
    right = {
        "images": np.full((3, 4, 5, 1), 0.5, np.float32),
        "labels": np.array([0, 1, 1]),
        "class_names": ("a", "b"),
        "normalization": NORMALIZATION,
    }
    return ClientData(**(right | changes))


def make_dataset(num_images=20):
    images = np.arange(num_images, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 1), np.uint8)
    return Dataset(
        name="numbers",
        image_shape=(2, 2, 1),
        class_names=("even", "odd"),
        normalization=NORMALIZATION,
        psnr_threshold=20.0,
        num_clients=3,
        pictures=lambda client: (images + np.uint8(50 * client), np.arange(num_images) % 2),
    )


def make_uneven_dataset():
    """One client with 1, 4, 3 and 2 images of its classes."""
    labels = np.array([3, 1, 2, 1, 0, 2, 1, 3, 1, 2])
    images = np.arange(10, dtype=np.uint8)[:, None, None, None] * np.ones((1, 2, 2, 1), np.uint8)
    return Dataset(
        name="uneven",
        image_shape=(2, 2, 1),
        class_names=("a", "b", "c", "d"),
        normalization=NORMALIZATION,
        psnr_threshold=20.0,
        num_clients=1,
        pictures=lambda client: (images, labels),
    )


def test_few_classes_are_the_most_frequent_ones_with_equally_many_images():
    client = make_uneven_dataset().client(0, num_images=5, num_classes=2)
    assert client.labels.tolist() == [1, 2, 1, 2, 1], "in stored order, and the first class has the odd image"
    assert np.round(client.images[:, 0, 0, 0] * 255).astype(int).tolist() == [1, 2, 3, 5, 6]


def test_few_classes_can_be_sampled():
    dataset = make_uneven_dataset()
    clients = [dataset.client(0, num_images=4, seed=seed, num_classes=2) for seed in range(5)]
    assert all(client.label_counts.tolist() == [0, 2, 2, 0] for client in clients)
    assert len({client.images.tobytes() for client in clients}) > 1
    again = dataset.client(0, num_images=4, seed=3, num_classes=2)
    assert np.array_equal(again.images, clients[3].images)


def test_few_classes_that_have_too_few_images_are_refused():
    with pytest.raises(DataError, match=r"needs 4 images of class 'c', and the client has 3; choose fewer images"):
        make_uneven_dataset().client(0, num_images=8, num_classes=2)
    with pytest.raises(ConfigError, match=r"num_classes = 5 must be a whole number between 1 and 4"):
        make_uneven_dataset().client(0, num_images=8, num_classes=5)


def test_client_knows_its_shape_classes_and_counts():
    client = make_client()
    assert (client.num_images, client.num_classes, client.image_shape) == (3, 2, (4, 5, 1))
    assert client.label_counts.tolist() == [1, 2]
    assert client.images.dtype == np.float32
    assert client.labels.dtype == np.int32
    assert repr(client) == "ClientData(custom data: 3 images of 4x5x1, 2 classes present)"


def test_inputs_are_normalised_pixels():
    client = make_client(images=np.full((3, 4, 5, 1), 255, np.uint8))
    np.testing.assert_allclose(client.inputs, 2.0, err_msg="(1 - 0.5) / 0.25 is 2")
    np.testing.assert_allclose(NORMALIZATION.denormalize(client.inputs), client.images)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"images": np.zeros((3, 4, 5), np.float32)}, r"shape \(3, 4, 5\); expected \[N, H, W, C\]"),
        ({"images": np.zeros((0, 4, 5, 1), np.float32), "labels": np.zeros(0, int)}, "at least one image"),
        ({"images": np.zeros((3, 4, 5, 3), np.float32)}, "3 channels but the normalization has 1"),
        ({"images": np.full((3, 4, 5, 1), 1.5)}, r"from 1.5 to 1.5; float pixels must lie in \[0, 1\]"),
        ({"images": np.full((3, 4, 5, 1), np.nan)}, "NaN or infinite"),
        ({"images": np.full((3, 4, 5, 1), 1e300)}, "NaN or infinite"),
        ({"images": np.zeros((3, 4, 5, 1), int)}, "dtype int64; expected uint8 in 0..255 or float"),
        ({"images": [[[[0.0]]], [[[0.0], [0.0]]]]}, "all images must have the same shape"),
        ({"labels": np.array([0, 1])}, r"shape \(2,\); expected \(3,\)"),
        ({"labels": np.array([0, 1, 2])}, "contain 2; with 2 classes they must lie between 0 and 1"),
        ({"labels": np.array([0, -1, 1])}, "contain -1"),
        ({"labels": np.array([0.0, 1.0, 1.0])}, "dtype float64; expected whole numbers from 0 to 1"),
    ],
)
def test_wrong_pictures_get_one_clear_sentence(changes, says):
    with pytest.raises(DataError, match=says):
        make_client(**changes)


def test_dataset_describes_itself_briefly():
    assert repr(make_dataset()) == "Dataset(numbers: 3 clients, 2 classes, images of 2x2x1)"


def test_without_a_seed_the_first_pictures_in_stored_order():
    client = make_dataset().client(1, num_images=4)
    assert (client.images[:, 0, 0, 0] * 255).round().tolist() == [50, 51, 52, 53]
    assert client.labels.tolist() == [0, 1, 0, 1]
    assert make_dataset().client(1, num_images=None).num_images == 20


@given(seed=st.integers(0, 2**32), index=st.integers(0, 2), num_images=st.integers(1, 20))
def test_a_seed_draws_without_repetition_and_repeats_itself(seed, index, num_images):
    first, second = (make_dataset().client(index, num_images, seed=seed) for _ in range(2))
    np.testing.assert_array_equal(first.images, second.images, err_msg="the same seed gave other pictures")
    numbers = (first.images[:, 0, 0, 0] * 255).round().astype(int)
    assert len(set(numbers.tolist())) == num_images, "a picture was drawn twice"
    assert (numbers % 2 == first.labels).all(), "labels no longer belong to their pictures"


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"index": 3}, ConfigError, "client index = 3 must be a whole number between 0 and 2"),
        ({"index": -1}, ConfigError, "client index = -1"),
        ({"index": 0.5}, ConfigError, "client index = 0.5"),
        ({"index": 0, "num_images": 0}, ConfigError, "num_images = 0 must be a whole number of at least 1"),
        ({"index": 0, "num_images": 21}, DataError, "num_images = 21 is more than the 20 images of client 0"),
        ({"index": 0, "num_images": 1, "seed": -1}, ConfigError, "seed = -1"),
    ],
)
def test_wrong_requests_get_one_clear_sentence(arguments, error, says):
    with pytest.raises(error, match=says):
        make_dataset().client(**arguments)


@pytest.mark.parametrize(
    ("mean", "std", "says"),
    [
        ((0.5,), (0.0,), "normalization.std = 0.0 must be a finite number greater than 0"),
        ((float("nan"),), (1.0,), "normalization.mean = nan"),
        (0.5, (1.0,), "normalization.mean = 0.5 must be one number per channel"),
        ((0.5,), "1", "normalization.std = '1' must be one number per channel"),
        ((0.5,), (1.0, 1.0), "normalization.std has 2 channels but normalization.mean has 1"),
    ],
)
def test_wrong_normalization_gets_one_clear_sentence(mean, std, says):
    with pytest.raises(ConfigError, match=says):
        Normalization(mean, std)


@given(st.lists(st.integers(0, 5), max_size=40))
def test_groups_by_key_keep_every_index_once_and_in_order(keys):
    groups = groups_by_key(np.array(keys, int)) if keys else []
    assert sorted(index for group in groups for index in group) == list(range(len(keys)))
    assert [keys[group[0]] for group in groups] == list(dict.fromkeys(keys)), "not in the order of first appearance"
    assert all((np.diff(group) > 0).all() for group in groups), "the order within a group was lost"


@given(num_images=st.integers(0, 60), size=st.integers(1, 20), seed=st.integers(0, 100))
def test_shuffled_groups_are_full_and_share_nothing(num_images, size, seed):
    groups = shuffled_groups(num_images, size, seed)
    assert len(groups) == num_images // size
    dealt = np.concatenate([*groups, np.zeros(0, int)])
    assert len(set(dealt.tolist())) == len(dealt) == len(groups) * size
