"""Weights on disk: bit for bit there and back, by the names of the layers, and never half a file."""

import contextlib
import io
import json
import os
import pickle

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given
from hypothesis import strategies as st

import workbench as wb
from workbench.files.writing import write_atomically
from workbench.models import mlp
from workbench.weights import check_weights, shapes_of

MODEL = mlp(image_shape=(2, 2, 1), widths=(3,), num_classes=2)
WEIGHTS = MODEL.init(0)
FLAT = {f"{layer}/{name}": np.asarray(array) for layer, arrays in WEIGHTS.items() for name, array in arrays.items()}


def assert_same_bits(loaded, expected):
    assert loaded.keys() == expected.keys()
    for layer, arrays in expected.items():
        assert loaded[layer].keys() == arrays.keys(), f"{layer} holds other arrays"
        for name, array in arrays.items():
            assert np.asarray(loaded[layer][name]).tobytes() == np.asarray(array).tobytes(), f"{layer}/{name} changed"


FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)


@given(st.lists(FLOATS, min_size=1, max_size=9), st.sampled_from(["layer", "block/layer", "Conv_0"]))
def test_saved_weights_come_back_bit_for_bit(tmp_path_factory, numbers, layer):
    file = tmp_path_factory.mktemp("weights") / "w.safetensors"
    weights = {layer: {"kernel": np.array([numbers], np.float32), "bias": np.array(numbers[:1], np.float32)}}
    wb.save_weights(file, weights)
    assert_same_bits(wb.load_weights(file), weights)


def test_arrays_are_named_layer_and_array(tmp_path):
    wb.save_weights(tmp_path / "w.safetensors", WEIGHTS)
    stored = safetensors.numpy.load_file(tmp_path / "w.safetensors")
    assert set(stored) == {"Dense_0/kernel", "Dense_0/bias", "last_layer/kernel", "last_layer/bias"}
    assert_same_bits(wb.load_weights(tmp_path / "w.safetensors", model=MODEL), WEIGHTS)


def test_npz_files_load_by_the_same_names(tmp_path):
    """The form in which the weights of the paper's trained networks are at hand."""
    model = wb.models.femnist_cnn()
    shapes = {
        "Conv_0/kernel": (3, 3, 1, 32),
        "Conv_0/bias": (32,),
        "Conv_1/kernel": (3, 3, 32, 64),
        "Conv_1/bias": (64,),
        "Dense_0/kernel": (3136, 100),
        "Dense_0/bias": (100,),
        "last_layer/kernel": (100, 62),
        "last_layer/bias": (62,),
    }
    rng = np.random.default_rng(0)
    arrays = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    np.savez(tmp_path / "w.npz", **arrays)
    loaded = wb.load_weights(tmp_path / "w.npz", model=model)
    for name, array in arrays.items():
        layer, leaf = name.split("/")
        np.testing.assert_array_equal(loaded[layer][leaf], array, err_msg=name)


@pytest.mark.parametrize("kind", [np.float16, np.float64])
def test_other_precisions_become_single(tmp_path, kind):
    np.savez_compressed(tmp_path / "w.npz", **{name: array.astype(kind) for name, array in FLAT.items()})
    loaded = wb.load_weights(tmp_path / "w.npz", model=MODEL)
    assert loaded["Dense_0"]["kernel"].dtype == np.float32
    np.testing.assert_allclose(loaded["Dense_0"]["kernel"], WEIGHTS["Dense_0"]["kernel"], rtol=1e-3)


def test_loaded_weights_do_not_follow_their_source(tmp_path):
    source = {"layer": {"kernel": np.zeros((2, 2), np.float32)}}
    checked = check_weights(source)
    source["layer"]["kernel"][:] = 1
    assert not checked["layer"]["kernel"].any(), "the weights changed with the array that they were made from"


def npz_bytes(**arrays):
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


class Trap:
    """Unpickled, it would leave a trace."""

    def __reduce__(self):
        return exec, ("import os; os.environ['TRAP'] = 'sprung'",)


def pickled_npz():
    return npz_bytes(**{"layer/kernel": np.array([Trap()], dtype=object)})


def safetensors_bytes(header, data=b""):
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


WHOLE = {"w.safetensors": safetensors.numpy.save(FLAT), "w.npz": npz_bytes(**FLAT)}
BROKEN = {
    "empty.safetensors": b"",
    "noise.safetensors": bytes(range(256)) * 8,
    "no arrays.safetensors": safetensors_bytes({}),
    "huge header.safetensors": (2**62).to_bytes(8, "little"),
    "missing data.safetensors": safetensors_bytes(
        {"a/b": {"dtype": "F32", "shape": [9], "data_offsets": [0, 36]}}, b"\0" * 8
    ),
    "unknown type.safetensors": safetensors_bytes(
        {"a/b": {"dtype": "F7", "shape": [1], "data_offsets": [0, 4]}}, b"\0" * 4
    ),
    "whole numbers.safetensors": safetensors.numpy.save({"a/b": np.arange(3)}),
    "not named.safetensors": safetensors.numpy.save({"kernel": np.zeros(3, np.float32)}),
    "half a name.safetensors": safetensors.numpy.save({"/kernel": np.zeros(3, np.float32)}),
    "not a number.safetensors": safetensors.numpy.save({"a/b": np.array([np.nan], np.float32)}),
    "an npz.safetensors": WHOLE["w.npz"],
    "empty.npz": b"",
    "noise.npz": bytes(range(256)) * 8,
    "no arrays.npz": npz_bytes(),
    "pickled.npz": pickled_npz(),
    "a pickle.npz": pickle.dumps({"a/b": 1}),
    "one array.npz": WHOLE["w.npz"][: WHOLE["w.npz"].index(b"PK\x03\x04", 4)],
    "infinite.npz": npz_bytes(**{"a/b": np.array([np.inf])}),
    "too large for float32.npz": npz_bytes(**{"a/b": np.array([1e300])}),
    "complex.npz": npz_bytes(**{"a/b": np.array([1j])}),
    "text.npz": npz_bytes(**{"a/b": np.array(["one"])}),
    "a safetensors.npz": WHOLE["w.safetensors"],
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_file_gets_one_clear_sentence(tmp_path, name):
    file = tmp_path / name
    file.write_bytes(BROKEN[name])
    with pytest.raises(wb.DataError) as caught:
        wb.load_weights(file)
    message = str(caught.value)
    assert str(file) in message, f"the file is not named: {message}"
    assert "\n" not in message, f"more than a sentence: {message}"
    assert message.endswith("."), f"not a sentence: {message}"
    assert "TRAP" not in os.environ, "something was unpickled"


@pytest.mark.parametrize("name", WHOLE)
def test_a_truncated_file_is_never_taken_for_a_whole_one(tmp_path, name):
    whole = WHOLE[name]
    file = tmp_path / name
    for length in sorted({*range(0, len(whole), 97), len(whole) - 1}):
        file.write_bytes(whole[:length])
        with pytest.raises(wb.DataError, match="cannot be read"):
            wb.load_weights(file)


@pytest.mark.parametrize("name", WHOLE)
@given(data=st.data())
def test_flipped_bytes_raise_our_error_or_change_only_numbers(tmp_path_factory, name, data):
    damaged = bytearray(WHOLE[name])
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    file = tmp_path_factory.mktemp("damaged") / name
    file.write_bytes(damaged)
    with contextlib.suppress(wb.DataError):
        loaded = wb.load_weights(file, model=MODEL)
        assert shapes_of(loaded) == MODEL.shapes


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"Dense_0/kernel": np.zeros((4, 4), np.float32)},
            r"\['Dense_0'\]\['kernel'\] has shape \(4, 4\); mlp has \(4, 3\)",
        ),
        (
            {"Dense_7/kernel": np.zeros((4, 4), np.float32)},
            r"\['Dense_7'\]\['kernel'\] is unexpected; mlp has no such",
        ),
        (
            {"Dense_0/scale": np.zeros(3, np.float32)},
            r"\['Dense_0'\]\['scale'\] is unexpected; mlp has no such array",
        ),
        ({"Dense_0/kernel": np.full((4, 3), np.nan, np.float32)}, r"\['Dense_0'\]\['kernel'\] with NaN"),
    ],
)
@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_weights_of_another_network_are_refused(tmp_path, changes, says, suffix):
    arrays = FLAT | changes
    file = tmp_path / f"w.{suffix}"
    file.write_bytes(npz_bytes(**arrays) if suffix == "npz" else safetensors.numpy.save(arrays))
    with pytest.raises(wb.DataError, match=says):
        wb.load_weights(file, model=MODEL)


def test_a_missing_array_is_named(tmp_path):
    np.savez(tmp_path / "w.npz", **{name: array for name, array in FLAT.items() if name != "last_layer/bias"})
    with pytest.raises(wb.DataError, match=r"\['last_layer'\]\['bias'\] is missing; mlp has it, with shape \(2,\)"):
        wb.load_weights(tmp_path / "w.npz", model=MODEL)


def test_a_missing_file_or_a_folder_gets_one_clear_sentence(tmp_path):
    with pytest.raises(wb.DataError, match=r"none\.npz' does not exist"):
        wb.load_weights(tmp_path / "none.npz")
    with pytest.raises(wb.DataError, match="is not a file"):
        wb.load_weights(tmp_path)
    with pytest.raises(wb.DataError, match="path = 5"):
        wb.load_weights(5)


def test_a_folder_that_cannot_be_gets_one_clear_sentence(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(wb.DataError, match=r"file.* is not a writable directory: "):
        wb.save_weights(tmp_path / "file" / "w.safetensors", WEIGHTS)
    with pytest.raises(wb.DataError, match="cannot be written"):
        wb.save_weights(tmp_path, WEIGHTS)
    with pytest.raises(wb.DataError, match="path = 5"):
        wb.save_weights(5, WEIGHTS)


@pytest.mark.parametrize("fails", ["fsync", "replace"])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path, monkeypatch, fails):
    file = tmp_path / "w.safetensors"
    wb.save_weights(file, WEIGHTS)
    before = file.read_bytes()

    def full_disk(*arguments):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, fails, full_disk)
    with pytest.raises(wb.DataError, match=r"w\.safetensors cannot be written: No space left on device\."):
        wb.save_weights(file, MODEL.init(1))
    monkeypatch.undo()
    assert file.read_bytes() == before, "the old file was damaged"
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"], "a part was left behind"


def test_an_interrupted_write_leaves_nothing(tmp_path, monkeypatch):
    def interrupt(*arguments):
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "file", b"content")
    assert not list(tmp_path.iterdir()), "a part was left behind"


def test_missing_folders_are_made(tmp_path):
    wb.save_weights(tmp_path / "one" / "two" / "w.safetensors", WEIGHTS)
    assert_same_bits(wb.load_weights(tmp_path / "one" / "two" / "w.safetensors"), WEIGHTS)
