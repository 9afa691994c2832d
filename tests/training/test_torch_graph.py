"""Networks that torch exported, compared with the numbers that torch computed (`tests/files/torch/make.py`)."""

import json
import zipfile
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.files import torch_export
from workbench.files.torch_export import Name, Node, read_torch_export
from workbench.training.sgd import batch_gradient
from workbench.training.torch_graph import TorchGraph

FILES = Path(__file__).parent.parent / "files" / "torch"
NETWORKS = [
    "lenet",
    "lenet_decomposed",
    "max_pooled",
    "resnet_batch_norm",
    "resnet_batch_norm_eval",
    "resnet_group_norm",
]


def torch_numbers(name):
    with np.load(FILES / f"{name.removesuffix('_decomposed')}.npz") as found:
        numbers = dict(found)
    return numbers | {key: jnp.asarray(numbers[key].transpose(0, 2, 3, 1)) for key in ("images", "second")}


def assert_close(found, right, what):
    error = np.abs(np.asarray(found) - right).max() / np.abs(right).max()
    assert error < 1e-5, f"{what} differs by {error:.2g} of its largest entry"


@pytest.mark.parametrize("name", NETWORKS)
def test_an_exported_network_computes_what_torch_computes(name):
    model, right = wb.models.from_torch_export(FILES / f"{name}.pt2"), torch_numbers(name)
    weights, labels = model.init(), jnp.asarray(right["labels"], jnp.int32)

    @jax.jit
    def everything(images):
        def gradient(images):
            return batch_gradient(model, weights, images, labels, jnp.full(3, 1 / 3))[0]

        squares = lambda images: sum((g**2).sum() for g in jax.tree.leaves(gradient(images)))  # noqa: E731
        logits, _ = model.train_logits(weights, images, jnp.ones(3, bool))
        return logits, gradient(images), jax.grad(squares)(images)

    logits, gradient, second = everything(right["images"])
    # Torch's own may have a last log_softmax, which is left out.
    assert_close(jax.nn.log_softmax(logits), np.asarray(jax.nn.log_softmax(right["logits"])), "the logits")
    assert_close(second, np.asarray(right["second"]), "the second derivative by the images")
    parameters = {key.removeprefix("gradient/"): value for key, value in right.items() if key.startswith("gradient/")}
    place = model.apply.function.__self__.place
    for parameter, slope in parameters.items():
        layer, leaf = place(parameter)
        assert_close(gradient[layer][leaf], slope.T if leaf == "kernel" else slope, parameter)
    moved = {(layer, leaf) for layer, arrays in gradient.items() for leaf, slope in arrays.items() if slope.any()}
    assert moved == set(map(place, parameters)), "a running statistic has a gradient"


def test_names_are_torchs_and_linear_layers_have_kernels():
    model = wb.models.from_torch_export(FILES / "lenet.pt2")
    assert model.layer_names == ("conv1", "conv2", "fc1", "fc2")
    assert model.shapes["conv1"] == {"weight": (4, 1, 5, 5), "bias": (4,)}
    assert model.shapes["fc1"] == {"kernel": (36, 12), "bias": (12,)}
    assert (model.name, model.image_shape, model.num_classes) == ("lenet", (16, 13, 1), 5)


@pytest.mark.parametrize("name", ["lenet", "resnet_group_norm"])
def test_the_last_layer_is_linear_in_the_features(name):
    model = wb.models.from_torch_export(FILES / f"{name}.pt2")
    weights, images = model.init(), torch_numbers(name)["images"]
    last = weights[model.last_layer]
    expected = model.features(weights, images) @ last["kernel"] + last["bias"][None]
    np.testing.assert_allclose(model.apply(weights, images), expected, atol=1e-5)


def test_dense_inputs_are_those_that_one_image_decides():
    graphs = {name: TorchGraph(read_torch_export(FILES / f"{name}.pt2")) for name in NETWORKS}
    assert {name: graph.dense_layers for name, graph in graphs.items()} == {
        "lenet": ["fc1", "fc2"],
        "lenet_decomposed": ["fc1", "fc2"],
        "max_pooled": ["fc1"],  # there is dropout before the other one
        "resnet_batch_norm": [],
        "resnet_batch_norm_eval": ["7"],
        "resnet_group_norm": ["7"],
    }


def test_new_running_statistics_are_torchs_and_ignore_masked_images():
    graph, right = TorchGraph(read_torch_export(FILES / "resnet_batch_norm.pt2")), torch_numbers("resnet_batch_norm")
    filled = jnp.concatenate([right["images"], jnp.full((2, *right["images"].shape[1:]), 7.0)])
    for found in (
        graph.run(graph.init(), right["images"], jnp.ones(3, bool)),
        graph.run(graph.init(), filled, jnp.asarray([True, True, True, False, False])),
    ):
        names = [key for key in right if key.startswith("statistic/")]
        assert len(names) == 12
        for key in names:
            layer, _, leaf = key.removeprefix("statistic/").rpartition(".")
            assert_close(found.statistics[layer][leaf], right[key], key)
        assert_close(found.logits[:3], right["logits"], "the logits")


def lenet_with(*inserted):
    """The export of lenet with these nodes before its last layer, which reads the result of the last one."""
    export = read_torch_export(FILES / "lenet.pt2")
    *nodes, last = export.nodes
    changed = replace(last, arguments={**last.arguments, "input": inserted[-1].results[0]})
    return replace(export, nodes=(*nodes, *inserted, changed))


HIDDEN = Name("relu")


def test_detach_stops_the_gradient():
    graph, right = TorchGraph(lenet_with(Node("detach", {"self": HIDDEN}, (Name("cut"),)))), torch_numbers("lenet")
    slope = jax.grad(lambda weights: graph.logits(weights, right["images"]).sum())(graph.init())
    assert slope["fc2"]["kernel"].any()
    assert not any(slope[layer][name].any() for layer in ("conv1", "fc1") for name in slope[layer])


def test_a_value_that_was_changed_through_its_view_is_refused_where_it_is_read():
    view = Node("view", {"self": HIDDEN, "size": [-1, 12]}, (Name("viewed"),))
    change = Node("tanh_", {"self": Name("viewed")}, (Name("changed"),))
    read_both = Node("add", {"self": Name("changed"), "other": Name("viewed")}, (Name("sum"),))
    graph, right = TorchGraph(lenet_with(view, change, read_both)), torch_numbers("lenet")
    hidden = graph.run(graph.init(), right["images"]).linear_inputs["fc2"]
    plain = TorchGraph(read_torch_export(FILES / "lenet.pt2"))
    np.testing.assert_allclose(hidden, 2 * np.tanh(plain.features(plain.init(), right["images"])), atol=1e-6)
    read_base = replace(read_both, arguments={"self": Name("changed"), "other": HIDDEN})
    change_base = replace(change, arguments={"self": HIDDEN})
    for nodes in ((view, change, read_base), (view, change_base, read_both)):
        with pytest.raises(wb.DataError, match="reads a value that the operator 'tanh_' changed in place through a"):
            TorchGraph(lenet_with(*nodes))


def rewritten(tmp_path, name="lenet", **changes):
    """The archive with some entries changed by functions of their bytes."""
    path = tmp_path / "changed.pt2"
    with zipfile.ZipFile(FILES / f"{name}.pt2") as old, zipfile.ZipFile(path, "w") as new:
        for entry in old.namelist():
            content, change = old.read(entry), changes.get(Path(entry).name.removesuffix(".json"))
            content = change(content) if change else content
            if content is not None:
                new.writestr(entry, content)
    return path


def in_json(change):
    def changed(content):
        tree = json.loads(content)
        change(tree)
        return json.dumps(tree)

    return changed


def in_graph(change):
    return in_json(lambda tree: change(tree["graph_module"]["graph"]))


def set_target(graph, target, node=-1):
    graph["nodes"][node]["target"] = target


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"archive_version": lambda _: b"1"}, "is not in version 0 of the pt2 format"),
        ({"byteorder": lambda _: b"big"}, "big-endian"),
        ({"model": lambda _: None}, "has no entry 'models/model.json'"),
        ({"model": lambda _: b"{"}, "cannot be read"),
        ({"model": lambda _: b"[" * 100_000}, "cannot be read"),
        ({"model": in_json(lambda tree: tree["schema_version"].update(major=9))}, "version 9 of torch's export schema"),
        ({"model": in_graph(lambda g: set_target(g, "torch.ops.aten.fft.default", 1))}, "uses the operator 'fft'"),
        ({"model": in_graph(lambda g: set_target(g, "torch.ops.aten.relu.default"))}, "ends in 'relu'"),
        ({"model": in_graph(lambda g: g["nodes"].clear())}, "computes nothing from images"),
        ({"model": in_graph(lambda g: g["nodes"].pop(0))}, "cannot be read"),
        ({"weight_0": lambda content: content[:-4]}, "too few bytes for 'conv1.weight'"),
        ({"weight_0": lambda _: None}, "has no entry 'data/weights/weight_0'"),
        (
            {"model_weights_config": in_json(lambda c: c["config"]["conv1.weight"].update(use_pickle=True))},
            "stores 'conv1.weight' pickled",
        ),
        (
            {
                "model_weights_config": in_json(
                    lambda c: c["config"]["conv1.bias"]["tensor_meta"].update(
                        sizes=[{"as_int": 10**9}] * 4, strides=[{"as_int": 0}] * 4
                    )
                )
            },
            "too few bytes for 'conv1.bias'",
        ),
        ({"model_weights_config": in_json(lambda c: c["config"].pop("fc1.bias"))}, "has no values for 'fc1.bias'"),
    ],
)
def test_a_damaged_or_hostile_archive_gets_one_sentence(tmp_path, changes, says):
    with pytest.raises(wb.DataError, match=says) as caught:
        wb.models.from_torch_export(rewritten(tmp_path, **changes))
    assert "changed.pt2" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_many_names_of_one_entry_are_refused_before_they_are_copied(tmp_path, monkeypatch):
    monkeypatch.setattr(torch_export, "_LARGEST_ARCHIVE", 10**7)

    def repeat(tree):
        tree["config"] |= {f"copy{number}": tree["config"]["fc1.weight"] for number in range(10_000)}

    with pytest.raises(wb.DataError, match="lists arrays of more than 10000000 bytes"):
        wb.models.from_torch_export(rewritten(tmp_path, model_weights_config=in_json(repeat)))


def test_an_archive_of_too_many_entries_or_bytes_is_refused(monkeypatch):
    for limit in ("_MOST_ENTRIES", "_LARGEST_ARCHIVE"):
        with monkeypatch.context() as patch:
            patch.setattr(torch_export, limit, 3)
            with pytest.raises(wb.DataError, match=r"has more than \d+ entries or \d+ bytes"):
                wb.models.from_torch_export(FILES / "lenet.pt2")


def test_images_of_a_free_or_an_absurd_size_get_one_sentence(tmp_path):
    def resize(size):
        def change(graph):
            [image] = [name for name in graph["tensor_values"] if name == "x"]
            graph["tensor_values"][image]["sizes"][2:] = [size, size]

        return rewritten(tmp_path, model=in_graph(change))

    free = resize({"as_expr": {"expr_str": "s0", "hint": {"as_int": 28}}})
    with pytest.raises(wb.DataError, match=r"leaves the size of images free, .*: pass image_shape=\(height, width"):
        wb.models.from_torch_export(free)
    with pytest.raises(wb.DataError, match="more than 16777216 numbers each"):
        wb.models.from_torch_export(resize({"as_int": 100_000}))


def test_a_module_that_has_only_running_statistics_keeps_its_place(tmp_path):
    affine = {"1.weight", "1.bias"}

    def without_affine(tree):
        """As torch exports a network whose first batch normalisation has affine=False."""
        signature, graph = tree["graph_module"]["signature"], tree["graph_module"]["graph"]
        kept = [s for s in signature["input_specs"] if s.get("parameter", {}).get("parameter_name") not in affine]
        signature["input_specs"] = kept
        for argument in next(node for node in graph["nodes"] if "batch_norm" in node["target"])["inputs"]:
            if argument["name"] in ("weight", "bias"):
                argument["arg"] = {"as_none": True}

    whole = wb.models.from_torch_export(FILES / "resnet_batch_norm.pt2")
    path = rewritten(tmp_path, "resnet_batch_norm", model=in_json(without_affine))
    model, right = wb.models.from_torch_export(path), torch_numbers("resnet_batch_norm")
    assert model.layer_names == whole.layer_names
    assert model.state_names == tuple(name for name in whole.state_names if name not in affine)
    assert model.state_names[:3] == ("0.weight", "1.running_mean", "1.running_var")
    weights = model.init()
    assert set(weights["1"]) == {"running_mean", "running_var"}
    assert np.all(whole.init()["1"]["weight"] == 1)
    logits, statistics = model.train_logits(weights, right["images"], jnp.ones(3, bool))
    assert_close(logits, right["logits"], "the logits")
    assert_close(statistics["1"]["running_mean"], right["statistic/1.running_mean"], "the running mean")


def test_batch_normalisation_without_running_statistics_gets_one_sentence(tmp_path):
    def forget(graph):
        for argument in next(node for node in graph["nodes"] if "batch_norm" in node["target"])["inputs"]:
            if argument["name"].startswith("running"):
                argument["arg"] = {"as_none": True}

    path = rewritten(tmp_path, "resnet_batch_norm", model=in_graph(forget))
    with pytest.raises(wb.DataError, match="uses batch normalisation with track_running_stats=False"):
        wb.models.from_torch_export(path)


def test_an_unsupported_operator_is_named_with_what_to_do(tmp_path):
    path = rewritten(tmp_path, model=in_graph(lambda g: set_target(g, "torch.ops.aten.fft.default", 1)))
    with pytest.raises(wb.DataError, match=r"rewrite that part .* \(conv2d, .*, or write it as a Model in JAX"):
        wb.models.from_torch_export(path)


def test_a_compressed_or_truncated_archive_is_refused(tmp_path):
    path = tmp_path / "bomb.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("bomb/models/model.json", b" " * 10**6)
    with pytest.raises(wb.DataError, match=r"has a compressed entry 'bomb/models/model\.json'"):
        wb.models.from_torch_export(path)
    whole = (FILES / "lenet.pt2").read_bytes()
    for length in (0, 100, len(whole) // 2, len(whole) - 1):
        path.write_bytes(whole[:length])
        with pytest.raises(wb.DataError, match=r"bomb\.pt2 cannot be read"):
            wb.models.from_torch_export(path)
    with pytest.raises(wb.DataError, match="does not exist"):
        wb.models.from_torch_export(tmp_path / "missing.pt2")


def test_the_size_of_images_comes_from_the_export():
    with pytest.raises(wb.DataError, match=r"takes images of \(16, 13, 1\); image_shape = \(28, 28, 1\) is another"):
        wb.models.from_torch_export(FILES / "lenet.pt2", image_shape=(28, 28, 1))
    assert wb.models.from_torch_export(FILES / "lenet.pt2", image_shape=(16, 13, 1)).image_shape == (16, 13, 1)
