"""Custom data sets: arrays, and folders with one sub-folder per class."""

import numpy as np
import pytest
from PIL import Image

from workbench.data import Normalization, dataset_from_arrays, dataset_from_folder
from workbench.errors import ConfigError, DataError

RNG = np.random.default_rng(0)
IMAGES = RNG.integers(0, 256, (6, 5, 4, 3), dtype=np.uint8)
LABELS = np.array([0, 2, 1, 0, 2, 2])


def test_arrays_without_clients_belong_to_one():
    dataset = dataset_from_arrays(IMAGES, LABELS)
    assert (dataset.num_clients, dataset.image_shape, dataset.class_names) == (1, (5, 4, 3), ("0", "1", "2"))
    client = dataset.client(0, num_images=None)
    np.testing.assert_array_equal(client.images, IMAGES / np.float32(255))
    np.testing.assert_allclose(client.inputs.mean(axis=(0, 1, 2)), 0, atol=1e-5, err_msg="measured normalization")
    np.testing.assert_allclose(client.inputs.std(axis=(0, 1, 2)), 1, atol=1e-5)


@pytest.mark.parametrize("clients", [[4, 1, 4, 1, 4, 9], ["x", "a", "x", "a", "x", "b"]])
def test_arrays_are_grouped_by_client_in_order_of_appearance(clients):
    dataset = dataset_from_arrays(IMAGES, LABELS, clients, class_names=["a", "b", "c", "d"], name="mine")
    assert dataset.num_clients == 3
    assert dataset.client(0, num_images=None).labels.tolist() == [0, 1, 2]
    assert repr(dataset.client(2, num_images=1)) == "ClientData(mine, client 2: 1 images of 5x4x3, 1 classes present)"
    assert dataset.num_classes == 4


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"images": IMAGES[..., 0]}, DataError, r"expected \[N, H, W, C\]"),
        ({"images": IMAGES[:0], "labels": LABELS[:0]}, DataError, "at least one image"),
        ({"labels": LABELS[:5]}, DataError, r"expected \(6,\)"),
        ({"labels": LABELS / 2}, DataError, "whole numbers"),
        ({"labels": LABELS - 1}, DataError, "contain -1"),
        ({"class_names": ["a", "b"]}, DataError, "contain 2; with 2 classes"),
        ({"clients": [0, 1]}, DataError, r"clients are int64 \[2\]; expected one number or name for each of the 6"),
        ({"clients": np.linspace(0, 1, 6)}, DataError, "clients are float64"),
        ({"clients": [[0], [1, 2]]}, DataError, "clients are lists of different lengths; expected one number or name"),
        ({"labels": [[0], [1, 2]]}, DataError, "images and labels must be arrays"),
        ({"labels": LABELS + 10**9}, DataError, "contain 1000000000"),
        ({"images": np.zeros_like(IMAGES)}, DataError, "one value everywhere; give a normalization"),
        ({"psnr_threshold": "high"}, ConfigError, "psnr_threshold = 'high'"),
        ({"normalization": Normalization((0.5,), (0.5,))}, DataError, "3 channels but the normalization has 1"),
    ],
)
def test_wrong_arrays_get_one_clear_sentence(arguments, error, says):
    with pytest.raises(error, match=says):
        dataset_from_arrays(**({"images": IMAGES, "labels": LABELS} | arguments)).client(0, num_images=1)


@pytest.fixture
def folder(tmp_path):
    """Six pictures of two classes and two formats, each of one grey value."""
    for index in range(6):
        place = tmp_path / "pets" / ("cats" if index % 2 else "dogs") / f"{index}.{'png' if index < 4 else 'jpg'}"
        place.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (40, 24), (index * 40,) * 3).save(place)
    (tmp_path / "pets" / "dogs" / "notes.txt").write_text("not a picture")
    (tmp_path / "pets" / ".hidden").mkdir()
    return tmp_path / "pets"


def test_a_folder_becomes_a_dataset(folder):
    dataset = dataset_from_folder(folder, size=8)
    assert repr(dataset) == "Dataset(pets: 1 clients, 2 classes, images of 8x8x3)"
    assert dataset.class_names == ("cats", "dogs")
    client = dataset.client(0, num_images=None)
    grey = (client.images[:, 0, 0, 0] * 255 / 40).round().astype(int)
    assert sorted(grey.tolist()) == [0, 1, 2, 3, 4, 5]
    assert (client.labels == (grey + 1) % 2).all(), "odd pictures are cats"


def test_a_folder_is_dealt_out_by_its_seed(folder):
    dataset = dataset_from_folder(folder, size=8, color="grey", images_per_client=2, seed=1)
    assert (dataset.num_clients, dataset.image_shape) == (3, (8, 8, 1))
    again = dataset_from_folder(folder, size=8, color="grey", images_per_client=2, seed=1)
    np.testing.assert_array_equal(dataset.client(2, 2).images, again.client(2, 2).images)
    assert dataset_from_folder(folder, size=8, images_per_client=4).num_clients == 1, "two pictures are left over"


def test_a_picture_keeps_its_middle_and_its_proportions(tmp_path):
    pixels = np.zeros((10, 30), np.uint8)
    pixels[:, 10:20] = 200
    (tmp_path / "a").mkdir()
    Image.fromarray(pixels).save(tmp_path / "a" / "wide.png")
    normalization = Normalization((0.5,), (0.5,))
    image = dataset_from_folder(tmp_path, size=10, color="grey", normalization=normalization).client(0, 1).images[0]
    np.testing.assert_allclose(image * 255, 200)


def test_an_unreadable_picture_is_named(folder):
    (folder / "cats" / "9.png").write_bytes((folder / "cats" / "1.png").read_bytes()[:40])
    with pytest.raises(DataError, match=r"9\.png cannot be read .*; expected an image that Pillow can open"):
        dataset_from_folder(folder)


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"size": 0}, ConfigError, "size = 0"),
        ({"color": "gray"}, ConfigError, "color = 'gray' is unknown; did you mean 'grey'"),
        ({"images_per_client": 7}, ConfigError, "images_per_client = 7 must be a whole number between 1 and 6"),
        ({"seed": -1}, ConfigError, "seed = -1"),
    ],
)
def test_wrong_options_get_one_clear_sentence(folder, arguments, error, says):
    with pytest.raises(error, match=says):
        dataset_from_folder(folder, **arguments)


def test_wrong_folders_get_one_clear_sentence(tmp_path):
    with pytest.raises(DataError, match="does not exist; expected a folder with one sub-folder of images"):
        dataset_from_folder(tmp_path / "missing")
    with pytest.raises(DataError, match="has no sub-folders; expected a folder"):
        dataset_from_folder(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(DataError, match="has no sub-folders"):
        dataset_from_folder(tmp_path / "file")
    (tmp_path / "empty class").mkdir()
    with pytest.raises(DataError, match=r"class folder '.*empty class' has no images"):
        dataset_from_folder(tmp_path)
