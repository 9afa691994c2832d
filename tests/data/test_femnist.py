"""FEMNIST from LEAF's files, from an .npz and from a Hugging Face table; anything else is refused in one sentence."""

import builtins
import contextlib
import io
import json
import sys
import types

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from workbench.data import femnist_from_rows, load_dataset
from workbench.errors import DataError


def leaf_part(writers):
    """LEAF's JSON of writers given as name -> list of (grey value, label)."""
    return {
        "users": list(writers),
        "num_samples": [len(samples) for samples in writers.values()],
        "user_data": {
            name: {"x": [[grey] * 784 for grey, _ in samples], "y": [label for _, label in samples]}
            for name, samples in writers.items()
        },
    }


@pytest.fixture
def leaf_folder(tmp_path):
    parts = {
        "train/all_data_0_train.json": {"f1": [(1.0, 3), (0.25, 61)], "f2": [(0.5, 10)]},
        "train/all_data_1_train.json": {"f0": [(0.75, 0)], "f9": []},
        "test/all_data_0_test.json": {"f1": [(0.0, 5)]},
    }
    for name, writers in parts.items():
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text(json.dumps(leaf_part(writers)))
    return tmp_path


def npz_arrays(**changes):
    right = {
        "images": np.arange(5, dtype=np.uint8)[:, None, None] * np.full((1, 28, 28), 10, np.uint8),
        "labels": np.array([0, 61, 2, 3, 4], np.uint8),
        "writer": np.array([7, 3, 7, 3, 7], np.int16),
    }
    return right | changes


def save_npz(path, **changes):
    np.savez(path, **npz_arrays(**changes))
    return path


def test_leaf_clients_are_the_writers_of_the_training_part_in_file_order(leaf_folder):
    dataset = load_dataset("femnist", path=leaf_folder)
    assert dataset.num_clients == 3, "f1, f2 and f0; f9 has no images"
    assert dataset.image_shape == (28, 28, 1)
    first = dataset.client(0, num_images=None)
    assert first.images.shape == (2, 28, 28, 1)
    assert first.images[:, 5, 5, 0].tolist() == [1.0, 0.25], "white is 1 and the order is LEAF's"
    assert first.labels.tolist() == [3, 61]
    assert dataset.client(2, num_images=None).labels.tolist() == [0], "f0 comes last: it is in the second file"


def test_leaf_test_part_and_single_files_can_be_named(leaf_folder):
    assert load_dataset("femnist", path=leaf_folder / "test").client(0, 1).labels.tolist() == [5]
    file = leaf_folder / "train" / "all_data_1_train.json"
    assert load_dataset("femnist", path=str(file)).num_clients == 1


def test_leaf_pixels_keep_their_rows_and_columns(tmp_path):
    part = leaf_part({"f1": [(1.0, 0)]})
    part["user_data"]["f1"]["x"][0][28 * 3 + 5] = 0.5
    (tmp_path / "part.json").write_text(json.dumps(part))
    image = load_dataset("femnist", path=tmp_path).client(0, 1).images[0, :, :, 0]
    assert np.argwhere(image < 1).tolist() == [[3, 5]]


def test_npz_clients_are_the_writers_in_file_order(tmp_path):
    dataset = load_dataset("femnist", path=save_npz(tmp_path / "femnist.npz"))
    assert dataset.num_clients == 2
    client = dataset.client(0, num_images=None)
    assert client.labels.tolist() == [0, 2, 4], "writer 7 appears first, and keeps the order"
    np.testing.assert_allclose(client.images[:, 0, 0, 0], np.array([0, 20, 40]) / 255)


def test_npz_may_have_a_channel_axis_and_named_writers(tmp_path):
    images = npz_arrays()["images"][..., None]
    path = save_npz(tmp_path / "f.npz", images=images, writer=np.array(["b", "a", "b", "a", "b"]))
    assert load_dataset("femnist", path=path).client(1, num_images=None).labels.tolist() == [61, 3]


NOT_LEAF = "is JSON but not LEAF's; expected LEAF's output"

WRONG_PARTS = {
    "no users": (lambda part: part.pop("users"), NOT_LEAF),
    "no pictures": (lambda part: part.pop("user_data"), NOT_LEAF),
    "no counts": (lambda part: part.pop("num_samples"), NOT_LEAF),
    "a user too many": (lambda part: part["users"].append("f3"), NOT_LEAF),
    "a user without pictures": (lambda part: part["user_data"].pop("f1"), NOT_LEAF),
    "a user without labels": (lambda part: part["user_data"]["f1"].pop("y"), NOT_LEAF),
    "users in a list": (lambda part: part.update(user_data=[]), NOT_LEAF),
    "users are a number": (lambda part: part.update(users=7), NOT_LEAF),
    "a user that is no name": (lambda part: part.update(users=[{}]), "cannot be read"),
    "too few pictures": (lambda part: part.update(num_samples=[3]), r"float64 \[2, 784\]; expected 3 lists of 784"),
    "too many pictures": (lambda part: part.update(num_samples=[0]), "expected 0 lists of 784"),
    "a short picture": (lambda part: part["user_data"]["f1"]["x"][0].pop(), "cannot be read"),
    "short pictures": (lambda part: [x.pop() for x in part["user_data"]["f1"]["x"]], r"float64 \[2, 783\]"),
    "a pixel in a string": (lambda part: set_pixel(part, "0.5"), "x of user 'f1' is <U"),
    "a pixel of 255": (lambda part: set_pixel(part, 255.0), r"not a number in \[0, 1\]; white is 1, ink is 0"),
    "a pixel that is NaN": (lambda part: set_pixel(part, float("nan")), r"not a number in \[0, 1\]"),
    "no pixel": (lambda part: set_pixel(part, None), "x of user 'f1' is object"),
    "a class too high": (lambda part: part["user_data"]["f1"].update(y=[0, 62]), "contain 62; with 62 classes"),
    "a class in a string": (lambda part: part["user_data"]["f1"].update(y=["A", "B"]), "labels have dtype"),
    "a label too few": (lambda part: part["user_data"]["f1"].update(y=[0]), "labels have shape"),
}


def set_pixel(part, value):
    part["user_data"]["f1"]["x"][0][0] = value


@pytest.mark.parametrize("wrong", WRONG_PARTS)
def test_json_that_is_not_leafs_gets_one_clear_sentence(tmp_path, wrong):
    change, says = WRONG_PARTS[wrong]
    part = leaf_part({"f1": [(1.0, 3), (0.5, 4)]})
    change(part)
    (tmp_path / "part.json").write_text(json.dumps(part))
    with pytest.raises(DataError, match=says) as caught:
        load_dataset("femnist", path=tmp_path)
    assert "part.json" in str(caught.value), "the sentence names the file"
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("content", [b"", b"[]", b"3", b'{"users": ["f1"', b"\xff\xfe\x00", b"[" * 100_000])
def test_files_that_are_not_json_objects_get_one_clear_sentence(tmp_path, content):
    (tmp_path / "part.json").write_bytes(content)
    with pytest.raises(DataError, match=r"part\.json.*LEAF's"):
        load_dataset("femnist", path=tmp_path)


def test_a_folder_without_images_gets_one_clear_sentence(tmp_path):
    with pytest.raises(DataError, match="holds no images"):
        load_dataset("femnist", path=tmp_path)
    (tmp_path / "part.json").write_text(json.dumps(leaf_part({"f1": []})))
    with pytest.raises(DataError, match="holds no images"):
        load_dataset("femnist", path=tmp_path)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"images": np.zeros((5, 28, 28))}, r"images are float64 \[5, 28, 28\]; expected uint8 \[n, 28, 28\]"),
        ({"images": np.zeros((5, 32, 32), np.uint8)}, r"images are uint8 \[5, 32, 32\]"),
        ({"images": np.zeros((0, 28, 28), np.uint8)}, "images are uint8"),
        ({"images": np.uint8(3)}, "images are uint8"),
        ({"labels": np.arange(4)}, "labels have shape"),
        ({"labels": np.array([0, 1, 2, 3, 62])}, "contain 62"),
        ({"labels": np.zeros(5)}, "labels have dtype float64"),
        ({"writer": np.zeros(4, int)}, r"writer is int64 \[4\]; expected one number for each image"),
        ({"writer": np.zeros(5)}, "writer is float64"),
    ],
)
def test_npz_with_wrong_arrays_gets_one_clear_sentence(tmp_path, changes, says):
    with pytest.raises(DataError, match=f"wrong.npz: .*{says}"):
        load_dataset("femnist", path=save_npz(tmp_path / "wrong.npz", **changes))


def test_npz_without_an_array_names_it(tmp_path):
    np.savez(tmp_path / "part.npz", images=npz_arrays()["images"])
    with pytest.raises(DataError, match=r"has no array 'labels', only images; expected an \.npz file with"):
        load_dataset("femnist", path=tmp_path / "part.npz")


class Trap:
    """Unpickling this would leave a trace."""

    def __reduce__(self):
        return exec, ("import builtins; builtins.trap_was_sprung = True",)


def test_nothing_is_ever_unpickled(tmp_path):
    np.savez(tmp_path / "trap.npz", **npz_arrays(images=np.array([Trap()] * 5, dtype=object)))
    with pytest.raises(DataError, match=r"trap\.npz cannot be read"):
        load_dataset("femnist", path=tmp_path / "trap.npz")
    assert not hasattr(builtins, "trap_was_sprung")


@pytest.mark.parametrize("content", [b"", b"PK\x03\x04", b"\x93NUMPY\x01\x00", b"\x80\x04\x95 a pickle", b"text"])
def test_files_that_are_not_npz_get_one_clear_sentence(tmp_path, content):
    (tmp_path / "wrong.npz").write_bytes(content)
    with pytest.raises(DataError, match=r"wrong\.npz cannot be read .*; expected an \.npz file with"):
        load_dataset("femnist", path=tmp_path / "wrong.npz")


def test_a_single_array_is_not_an_npz(tmp_path):
    np.save(tmp_path / "one.npy", np.zeros((5, 28, 28), np.uint8))
    with pytest.raises(DataError, match=r"one\.npy cannot be read"):
        load_dataset("femnist", path=tmp_path / "one.npy")


@settings(max_examples=150)
@given(data=st.data())
def test_damaged_files_never_end_in_a_foreign_error(tmp_path_factory, data):
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **npz_arrays())
    whole = {"npz": buffer.getvalue(), "json": json.dumps(leaf_part({"f1": [(1.0, 3)]})).encode()}
    kind = data.draw(st.sampled_from(sorted(whole)))
    content = bytearray(whole[kind])
    for _ in range(data.draw(st.integers(0, 3))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    path = tmp_path_factory.getbasetemp() / f"damaged.{kind}"
    path.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with contextlib.suppress(DataError):
        load_dataset("femnist", path=path).client(0, num_images=1)


@pytest.mark.parametrize("path", ["/no/such/folder", "missing.npz", "a\0b"])
def test_a_missing_path_says_what_would_be_right(path):
    with pytest.raises(DataError, match=r"does not exist; expected a folder of LEAF's output.*or an \.npz file"):
        load_dataset("femnist", path=path)


def test_a_path_that_is_none_gets_one_clear_sentence():
    with pytest.raises(DataError, match="path = 3 is not a path; expected"):
        load_dataset("femnist", path=3)


def hugging_face_rows():
    """A table in the format of flwrlabs/femnist: ink on white, one pixel of ink at (row, 2 * row)."""
    rows = []
    for row, (writer, character) in enumerate([("f0000_14", 0), ("f0001_41", 53), ("f0000_14", 61)]):
        pixels = np.full((28, 28), 255, np.uint8)
        pixels[row, 2 * row] = 0
        rows.append({"image": Image.fromarray(pixels), "writer_id": writer, "hsf_id": 0, "character": character})
    return rows


def test_hugging_face_rows_become_writers():
    dataset = femnist_from_rows(hugging_face_rows())
    assert dataset.num_clients == 2
    client = dataset.client(0, num_images=None)
    assert client.labels.tolist() == [0, 61]
    assert [np.argwhere(image[..., 0] == 0).tolist() for image in client.images] == [[[0, 0]], [[2, 4]]]
    assert client.images.mean() > 0.99, "white is 1"
    assert dataset.client(1, 1).labels.tolist() == [53]


def test_hugging_face_rows_may_be_white_on_black_and_name_their_characters():
    rows = [
        row | {"image": Image.fromarray(255 - np.asarray(row["image"])), "character": character}
        for row, character in zip(hugging_face_rows(), "0rz", strict=True)
    ]
    expected, found = femnist_from_rows(hugging_face_rows()).client(0, 2), femnist_from_rows(rows).client(0, 2)
    np.testing.assert_array_equal(found.images, expected.images)
    np.testing.assert_array_equal(found.labels, expected.labels)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"character": 62}, "character = 62 is unknown"),
        ({"character": "ä"}, "character = 'ä' is unknown; expected one of 0123456789ABC"),
        ({"character": None}, "character = None is unknown"),
        (
            {"image": Image.new("L", (32, 32))},
            "an image of writer f0000_14 is .* size=32x32.*; expected a Pillow image",
        ),
        ({"image": None}, "an image of writer f0000_14 is None; expected a Pillow image of 28x28"),
    ],
)
def test_wrong_hugging_face_rows_get_one_clear_sentence(change, says):
    rows = hugging_face_rows()
    rows[0] |= change
    with pytest.raises(DataError, match=says):
        femnist_from_rows(rows).client(0, 1)


def test_an_empty_table_gets_one_clear_sentence():
    with pytest.raises(DataError, match="the table has no rows"):
        femnist_from_rows([])


@pytest.mark.parametrize("column", ["image", "writer_id", "character"])
def test_a_table_without_a_column_names_it(column):
    rows = [{name: value for name, value in row.items() if name != column} for row in hugging_face_rows()]
    with pytest.raises(DataError, match=f"the table has no column '{column}'; expected the format of flwrlabs/femnist"):
        femnist_from_rows(rows)


class Table(list):
    """As Hugging Face's tables: rows by number, columns by name."""

    def __getitem__(self, key):
        return [row[key] for row in self] if isinstance(key, str) else super().__getitem__(key)


def test_without_a_path_the_hugging_face_table_is_taken(monkeypatch):
    asked = []
    library = types.SimpleNamespace(load_dataset=lambda name, split: asked.append(name) or Table(hugging_face_rows()))
    monkeypatch.setitem(sys.modules, "datasets", library)
    assert load_dataset("femnist").client(1, 1).labels.tolist() == [53]
    assert asked == ["flwrlabs/femnist"]


def test_a_failing_hugging_face_download_gets_one_clear_sentence(monkeypatch):
    def fail(name, split):
        raise ConnectionError("many\nlines")

    monkeypatch.setitem(sys.modules, "datasets", types.SimpleNamespace(load_dataset=fail))
    with pytest.raises(DataError, match=r"flwrlabs/femnist could not be downloaded \(ConnectionError\)"):
        load_dataset("femnist")


def test_without_path_and_library_the_error_says_what_to_do(monkeypatch):
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(DataError, match=r"femnist needs path = .*pip install datasets"):
        load_dataset("femnist")
