"""Updates that another framework sent: files, names, lists and Flower's messages, in torch's layouts."""

import io
import json
import math
import zipfile
from collections.abc import MutableMapping
from dataclasses import dataclass
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

import workbench as wb
from workbench.data.dataset import Normalization

FILES = Path(__file__).parent.parent / "files" / "torch"
TRAINING = wb.ClientConfig(epochs=2, batch_size=3, learning_rate=0.1)
BATCH_NORM = [
    f"{layer}.{leaf}"
    for layer in ("1", "3.norm1", "3.norm2", "4.norm1", "4.norm2", "4.shortcut.1")
    for leaf in ("running_mean", "running_var", "num_batches_tracked")
]


@pytest.fixture(scope="module")
def lenet():
    return wb.models.from_torch_export(FILES / "lenet.pt2")


@pytest.fixture(scope="module")
def resnet():
    return wb.models.from_torch_export(FILES / "resnet_batch_norm.pt2")


def state_dict(model, scale=1.0):
    """The weights as torch has them."""
    found = {}
    for layer, arrays in model.init().items():
        for leaf, array in arrays.items():
            name, value = (leaf, array) if leaf != "kernel" else ("weight", array.T)
            found[f"{layer}.{name}"] = np.asarray(value) * np.float32(scale)
    return {name: found[name] for name in model.state_names if name in found}


def observe(model, before, after, **changes):
    channels = model.image_shape[-1]
    settings = {"num_images": 6, "normalization": ((0.5,) * channels, (0.5,) * channels)} | changes
    return wb.Observation.from_updates(model, before, after, TRAINING, **settings)


def assert_update(model, observation, scale=2.0, atol=0.0):
    for weights, factor in ((observation.server_weights, 1), (observation.client_weights, scale)):
        expected = jax.tree.map(lambda a, factor=factor: a * factor, model.init())
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=atol), weights, expected)


def npy(array):
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


@dataclass
class FlowerArray:
    """As Flower defines it."""

    dtype: str
    shape: tuple[int, ...]
    stype: str
    data: bytes


class FlowerRecord(MutableMapping):
    def __init__(self, arrays):
        self._arrays = {name: FlowerArray(str(a.dtype), a.shape, "numpy.ndarray", npy(a)) for name, a in arrays.items()}

    def __getitem__(self, key):
        return self._arrays[key]

    def __setitem__(self, key, value):
        self._arrays[key] = value

    def __delitem__(self, key):
        del self._arrays[key]

    def __iter__(self):
        return iter(self._arrays)

    def __len__(self):
        return len(self._arrays)


@dataclass
class FlowerParameters:
    tensors: list[bytes]
    tensor_type: str = "numpy.ndarray"


def as_safetensors(arrays, path):
    save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path.with_suffix(".safetensors"))
    return path.with_suffix(".safetensors")


def as_npz(arrays, path):
    np.savez_compressed(path.with_suffix(".npz"), **arrays)
    return str(path.with_suffix(".npz"))


FORMS = {
    "safetensors": as_safetensors,
    "npz": as_npz,
    "dictionary": lambda arrays, path: arrays,
    "wrapped names": lambda arrays, path: {f"module._orig_mod.{name}": array for name, array in arrays.items()},
    "list": lambda arrays, path: list(arrays.values()),
    "ArrayRecord": lambda arrays, path: FlowerRecord(arrays),
    "ArrayRecord of a list": lambda arrays, path: FlowerRecord({str(i): a for i, a in enumerate(arrays.values())}),
    "Parameters": lambda arrays, path: FlowerParameters([npy(array) for array in arrays.values()]),
}


@pytest.mark.parametrize("form", FORMS)
def test_an_update_is_read_in_every_form(form, lenet, tmp_path):
    before, after = (FORMS[form](state_dict(lenet, scale), tmp_path / str(scale)) for scale in (1.0, 2.0))
    observation = observe(lenet, before, after)
    assert_update(lenet, observation)
    assert (observation.epochs, observation.batch_size, observation.learning_rate) == (2, 3, 0.1)
    assert (observation.image_shape, observation.num_classes) == ((16, 13, 1), 5)


def test_our_own_files_and_weights_are_read_too(lenet, tmp_path):
    wb.save_weights(tmp_path / "before.safetensors", lenet.init())
    doubled = jax.tree.map(lambda a: 2 * a, lenet.init())
    assert_update(lenet, observe(lenet, tmp_path / "before.safetensors", doubled))


def test_differences_are_added_to_the_weights(lenet):
    assert_update(lenet, observe(lenet, state_dict(lenet), state_dict(lenet), sends="delta"))


def test_bfloat16_is_read(lenet, tmp_path):
    header, content = {}, b""
    for name, array in state_dict(lenet).items():
        half = array.astype(jnp.bfloat16).tobytes()
        place = [len(content), len(content) + len(half)]
        header[name], content = {"dtype": "BF16", "shape": array.shape, "data_offsets": place}, content + half
    text = json.dumps(header).encode()
    (tmp_path / "half.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + content)
    found = observe(lenet, tmp_path / "half.safetensors", state_dict(lenet, 2.0)).server_weights
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=0.01), found, lenet.init())


def test_buffers_are_left_out_and_that_is_said(resnet):
    assert [name for name in resnet.state_names if name in BATCH_NORM] == BATCH_NORM
    before, after = state_dict(resnet), state_dict(resnet, 2.0)
    with_buffers = {
        name: after.get(name, np.zeros((), np.int64) if "tracked" in name else np.ones(4, np.float32))
        for name in resnet.state_names
    }
    for given in (with_buffers, list(with_buffers.values())):
        with pytest.warns(UserWarning, match=r"6 buffers, such as 1\.num_batches_tracked, are not weights of resnet_b"):
            assert_update(resnet, observe(resnet, before, given))
    assert_update(resnet, observe(resnet, list(before.values()), after))


def test_a_client_that_trained_in_another_mode_than_the_export_is_noticed():
    model = wb.models.from_torch_export(FILES / "resnet_batch_norm_eval.pt2")
    with pytest.raises(wb.DataError, match=r"after has another .*running_mean than before, .* call model\.train\(\)"):
        observe(model, state_dict(model), state_dict(model, 2.0))


def test_an_optimiser_does_not_move_frozen_statistics():
    model = wb.models.from_torch_export(FILES / "resnet_batch_norm_eval.pt2")
    images = np.random.default_rng(0).random((4, *model.image_shape), np.float32)
    channels, names = model.image_shape[-1], tuple(str(label) for label in range(model.num_classes))
    normalization = Normalization((0.5,) * channels, (0.5,) * channels)
    client = wb.ClientData(images, np.arange(4) % model.num_classes, names, normalization)
    for options in ({"weight_decay": 0.1}, {"optimizer": "adamw", "weight_decay": 0.1}):
        training = wb.ClientConfig(epochs=1, batch_size=2, learning_rate=0.1, **options)
        seen = wb.client_update(model, model.init(), client, training)
        assert not model.mixes_images
        for layer, name in model.statistics:
            np.testing.assert_array_equal(seen.client_weights[layer][name], seen.server_weights[layer][name])
        moved = {name for arrays in model.trained(seen.gradient_sum).values() for name in arrays}
        assert not any(name.startswith("running") for name in moved), moved


def test_arrays_that_numpy_numbered_have_the_order_of_the_state_dict(lenet, tmp_path):
    np.savez(tmp_path / "before.npz", *state_dict(lenet).values())
    np.savez(tmp_path / "after.npz", *state_dict(lenet, 2.0).values())
    assert_update(lenet, observe(lenet, tmp_path / "before.npz", tmp_path / "after.npz"))


def test_a_wrapper_is_removed_only_where_the_network_has_no_such_name():
    def model_with(prefix):
        return wb.models.Model(
            name="wrapped",
            image_shape=(2, 2, 1),
            num_classes=2,
            layer_names=(f"{prefix}last",),
            init=lambda seed=0: {f"{prefix}last": {"kernel": np.ones((4, 2), np.float32)}},
            apply=lambda weights, x: x.reshape(len(x), -1) @ weights[f"{prefix}last"]["kernel"],
            features=lambda weights, x: x.reshape(len(x), -1),
        )

    for prefix in ("", "module."):
        model = model_with(prefix)
        seen = observe(model, {"module.last.weight": np.ones((2, 4))}, {"module.last.weight": np.zeros((2, 4))})
        assert seen.client_weights[f"{prefix}last"]["kernel"].shape == (4, 2)


def test_an_unknown_flatten_order_is_said():
    def apply(weights, x):
        maps = jax.lax.conv(x.transpose(0, 3, 1, 2), weights["conv"]["kernel"].transpose(3, 2, 0, 1), (1, 1), "SAME")
        return maps.transpose(0, 2, 3, 1).reshape(len(x), -1) @ weights["last"]["kernel"]

    def features(weights, x):
        maps = jax.lax.conv(x.transpose(0, 3, 1, 2), weights["conv"]["kernel"].transpose(3, 2, 0, 1), (1, 1), "SAME")
        return maps.transpose(0, 2, 3, 1).reshape(len(x), -1)

    weights = {"conv": {"kernel": np.ones((3, 3, 1, 2), np.float32)}, "last": {"kernel": np.ones((32, 2), np.float32)}}
    model = wb.models.Model("flat", (4, 4, 1), 2, ("conv", "last"), lambda seed=0: weights, apply, features)
    sent = {"conv.weight": np.ones((2, 1, 3, 3)), "last.weight": np.ones((2, 32))}
    with pytest.warns(UserWarning, match="last/kernel of flat gets its inputs in torch's order"):
        observe(model, sent, {name: 2 * array for name, array in sent.items()})


def test_square_kernels_without_names_are_read_as_the_networks_and_that_is_said():
    model = wb.models.mlp(image_shape=(2, 2, 1), widths=(4,), num_classes=4)
    after = [np.arange(math.prod(shape), dtype=np.float32).reshape(shape) for shape in 2 * ((4, 4), (4,))]
    with pytest.warns(UserWarning, match="after: arrays without names whose kernels are square fit the layouts of mlp"):
        seen = observe(model, model.init(), after)
    np.testing.assert_array_equal(seen.client_weights["Dense_0"]["kernel"], after[0])
    names = [f"{layer}.{name}" for layer in model.layer_names for name in ("weight", "bias")]
    seen = observe(model, model.init(), dict(zip(names, after, strict=True)))
    np.testing.assert_array_equal(seen.client_weights["Dense_0"]["kernel"], after[0].T)


def in_torchs_layout(model, weights):
    """A built-in network's weights as a torch network of the same layers has them."""
    side = 7
    found = []
    for layer in model.layer_names:
        kernel = np.asarray(weights[layer]["kernel"])
        if kernel.ndim == 4:
            kernel = np.einsum("hwio->oihw", kernel)
        else:
            if len(kernel) % side**2 == 0:
                kernel = np.einsum("hwco->chwo", kernel.reshape(side, side, -1, kernel.shape[1])).reshape(kernel.shape)
            kernel = kernel.T
        found += [kernel, np.asarray(weights[layer]["bias"])]
    return found


def test_a_built_in_network_takes_torchs_layouts_and_flatten_order():
    model = wb.models.femnist_cnn(num_classes=10)
    before = model.init()
    after = jax.tree.map(lambda a: 2 * a + 1, before)
    found = observe(model, in_torchs_layout(model, before), in_torchs_layout(model, after))
    jax.tree.map(np.testing.assert_array_equal, found.server_weights, before)
    jax.tree.map(np.testing.assert_array_equal, found.client_weights, after)
    jax.tree.map(np.testing.assert_array_equal, observe(model, before, after).client_weights, after)


def without(name):
    return lambda arrays: {key: array for key, array in arrays.items() if key != name}


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (without("fc1.bias"), r"after has no array for fc1/bias; lenet has it, with shape \(12,\)\."),
        (lambda a: a | {"fc9.bias": np.zeros(3, np.float32)}, r"'fc9\.bias' of shape \(3,\); lenet has no such array"),
        (
            lambda a: a | {"fc1.weight": a["fc1.weight"][:, 1:]},
            r"'fc1\.weight'\] has shape \(12, 35\); lenet has fc1/kernel \(36, 12\), in torch's layout \(12, 36\)\.",
        ),
        (lambda a: a | {"fc1.bias": np.zeros(12, np.int64)}, r"after\['fc1\.bias'\] with dtype int64"),
        (lambda a: a | {"fc1.bias": np.full(12, np.nan, np.float32)}, "must be finite"),
        (lambda a: list(a.values())[1:], "after has 7 arrays without names; lenet has 8: 'conv1.weight, conv1.bias"),
        (lambda a: 5, "after = 5 must be the path of a .safetensors or .npz file"),
        (lambda a: FlowerParameters([b"\x93NUMPY"]), "after cannot be read"),
        (lambda a: FlowerParameters([npy(np.zeros(3))[:-1]]), r"after: an array of shape \(3,\) has 23 bytes"),
    ],
)
def test_what_does_not_fit_is_named(change, says, lenet):
    with pytest.raises(wb.WorkbenchError, match=says):
        observe(lenet, state_dict(lenet), change(state_dict(lenet, 2.0)))


def test_a_pickled_file_is_refused_with_the_lines_that_convert_it(lenet, tmp_path):
    (tmp_path / "after.pth").write_bytes(b"\x80\x04")
    with pytest.raises(wb.DataError, match=r"is pickled.*save_file\(torch\.load\('after\.pth', weights_only=True\), "):
        observe(lenet, state_dict(lenet), tmp_path / "after.pth")


def test_files_are_bounded_and_never_unpickled(lenet, tmp_path):
    np.savez(tmp_path / "objects.npz", a=np.array([{}], dtype=object))
    with pytest.raises(wb.DataError, match="pickled objects, which are not read"):
        observe(lenet, tmp_path / "objects.npz", {})
    with zipfile.ZipFile(tmp_path / "large.npz", "w") as archive:
        archive.writestr("a.npy", npy(np.zeros(3)).replace(b"(3,), }         ", b"(3000000000,), }"))
    with pytest.raises(wb.DataError, match=r"large\.npz: an array of shape \(3000000000,\) has 24 bytes"):
        observe(lenet, tmp_path / "large.npz", {})
    (tmp_path / "cut.safetensors").write_bytes(as_safetensors(state_dict(lenet), tmp_path / "a").read_bytes()[:-9])
    with pytest.raises(wb.DataError, match=r"cut\.safetensors cannot be read"):
        observe(lenet, tmp_path / "cut.safetensors", {})


def test_wrong_settings_get_one_sentence(lenet):
    with pytest.raises(wb.ConfigError, match="sends = 'deltas' is unknown; did you mean 'delta'"):
        observe(lenet, state_dict(lenet), state_dict(lenet), sends="deltas")
    with pytest.raises(wb.ConfigError, match=r"normalization = 0\.5 must be \(mean, std\)"):
        observe(lenet, state_dict(lenet), state_dict(lenet), normalization=0.5)
    with pytest.raises(wb.ConfigError, match="training = None must be a ClientConfig"):
        wb.Observation.from_updates(lenet, {}, {}, None, num_images=3, normalization=((0,), (1,)))
