"""Wrong input at every public entry: always one sentence of ours that names the field, never a traceback of JAX's."""

import json
import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field, fields, replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import workbench as wb
from workbench.data import Normalization
from workbench.errors import shown

MODEL = wb.models.mlp(image_shape=(3, 2, 1), widths=(4,), num_classes=5)
OTHER_MODEL = wb.models.mlp(image_shape=(3, 2, 1), widths=(6,), num_classes=5)
WEIGHTS = jax.device_get(MODEL.init(0))
NORMALIZATION = Normalization((0.5,), (0.25,))
CLIENT = wb.ClientData(
    images=np.random.default_rng(0).random((4, 3, 2, 1), np.float32),
    labels=np.array([0, 1, 2, 3]),
    class_names=tuple("abcde"),
    normalization=NORMALIZATION,
)
RGB_CLIENT = wb.ClientData(
    images=np.zeros((4, 3, 2, 3), np.float32),
    labels=np.array([0, 1, 2, 3]),
    class_names=tuple("abcde"),
    normalization=Normalization((0.5,) * 3, (0.25,) * 3),
)
CONFIG = wb.ClientConfig(epochs=1, batch_size=2)
OBSERVATION = wb.client_update(MODEL, WEIGHTS, CLIENT, CONFIG)
GLYPHS = wb.load_dataset("glyphs")


class Anything:
    """Something that nobody expects."""

    def __repr__(self):
        return "Anything()"


# What people pass by mistake: nothing takes any of these.
junk = st.sampled_from([Anything(), object, print, 1j, b"bytes", {}, {"a": 1}, {1, 2}, [], [1, "two"], [[]], ...])
not_whole = st.one_of(
    junk,
    st.none(),
    st.booleans(),
    st.floats(),
    st.text(max_size=8),
    st.sampled_from([np.True_, np.float32(3), np.array([1]), np.array([1, 2]), np.array(["a"])]),
)
not_a_number = st.one_of(
    junk,
    st.none(),
    st.booleans(),
    st.text(max_size=8),
    st.sampled_from([np.nan, np.inf, -np.inf, 10**400, np.True_, np.array([1.0]), np.array(["a"]), np.array([1, 2])]),
)
negative = st.one_of(not_a_number, st.floats(max_value=-1e-9), st.integers(max_value=-1), st.just(1e60))
not_positive = st.one_of(not_a_number, st.floats(max_value=0), st.integers(max_value=0), st.sampled_from([1e-60, 1e60]))
not_a_part = st.one_of(not_a_number, st.floats(max_value=-1e-9), st.floats(min_value=1.001), st.integers(max_value=-1))
not_a_flag = st.one_of(junk, st.none(), st.integers(), st.floats(), st.text(max_size=8), st.just(np.True_))
not_a_name = st.one_of(junk, st.none(), st.integers(), st.floats(), st.text(max_size=20).map(lambda text: f"my {text}"))
not_a_record = st.one_of(junk, st.integers(), st.floats(), st.text(max_size=8), st.just(wb.ClientConfig))
not_a_shape = st.one_of(
    junk,
    st.none(),
    st.integers(),
    st.text(max_size=8),
    st.lists(st.integers(1, 9), max_size=2),
    st.lists(st.integers(1, 9), min_size=4, max_size=6),
    st.tuples(st.integers(max_value=0), st.just(2), st.just(1)),
    st.tuples(st.just(3), st.floats(), st.just(1)),
)


def not_a_count(minimum=1, maximum=None):
    outside = [st.integers(max_value=minimum - 1)]
    if maximum is not None:
        outside.append(st.integers(min_value=maximum + 1))
    return st.one_of(not_whole, *outside)


@st.composite
def damaged_weights(draw, *, of_a_network=True):
    """Weights with one thing wrong, or, ``of_a_network``, not as the network has them."""
    weights = {layer: dict(arrays) for layer, arrays in WEIGHTS.items()}
    layer = draw(st.sampled_from(sorted(weights)))
    name = draw(st.sampled_from(sorted(weights[layer])))
    array = weights[layer][name]
    kinds = ["number", "type", "layer", "names", "whole"]
    kind = draw(st.sampled_from([*kinds, "shape", "missing", "extra", "other"] if of_a_network else kinds))
    if kind == "number":
        wrong = array.astype(draw(st.sampled_from([np.float32, np.float64])))
        wrong.flat[draw(st.integers(0, wrong.size - 1))] = draw(st.sampled_from([np.nan, np.inf, -np.inf]))
        weights[layer][name] = wrong
    elif kind == "shape":
        weights[layer][name] = np.zeros(draw(st.lists(st.integers(0, 3), max_size=3).map(tuple)), np.float32)
    elif kind == "type":
        types = [array.astype(int), array.astype(complex), array.astype(str), array > 0, "text", None, [[1.0], []], 1]
        weights[layer][name] = draw(st.sampled_from([*types, Anything(), np.array([None])]))
    elif kind == "missing":
        del weights[layer][name]
    elif kind == "extra":
        weights[layer]["more"] = array
    elif kind == "layer":
        weights[draw(st.sampled_from(["more", *weights]))] = draw(st.sampled_from([{}, [], None, array, 5, "text"]))
    elif kind == "names":
        weights[layer][draw(st.sampled_from([5, None, "", "a/b", ("a",)]))] = array
    elif kind == "other":
        return OTHER_MODEL.init(0)
    else:
        return draw(st.one_of(junk, st.none(), st.just(array), st.integers()))
    return weights


wrong_images = st.one_of(
    not_a_record,
    st.none(),
    st.sampled_from(
        [
            np.zeros((0, 3, 2, 1), np.float32),
            np.zeros((4, 3, 2), np.float32),
            np.zeros((4, 3, 2, 1), int),
            np.zeros((4, 3, 2, 1), bool),
            np.full((4, 3, 2, 1), "a"),
            np.full((4, 3, 2, 1), 1.5),
            np.full((4, 3, 2, 1), -1e-3),
            np.full((4, 3, 2, 1), np.nan),
            np.full((4, 3, 2, 1), np.inf),
            np.full((4, 3, 2, 1), None),
            [[[[0.5]], [[0.5], [0.5]]]],
        ]
    ),
)
wrong_labels = st.one_of(
    not_a_record,
    st.none(),
    st.lists(st.integers(0, 4), max_size=3),
    st.lists(st.integers(0, 4), min_size=5, max_size=7),
    st.lists(st.integers(0, 4), min_size=3, max_size=3).map(lambda labels: [*labels, 5]),
    st.lists(st.integers(-9, -1), min_size=4, max_size=4),
    st.lists(st.floats(0, 4), min_size=4, max_size=4),
    st.sampled_from([np.zeros((4, 1), int), ["a", "b", "c", "d"], [None] * 4, [10**30] * 4]),
)
wrong_inputs = st.one_of(
    not_a_record,
    st.none(),
    st.sampled_from(
        [
            np.zeros((0, 3, 2, 1)),
            np.zeros((3, 2, 1)),
            np.zeros((4, 2, 3, 1)),
            np.zeros((4, 3, 2, 3)),
            np.full((4, 3, 2, 1), np.nan),
            np.full((4, 3, 2, 1), 1e300),
            np.full((4, 3, 2, 1), 1j),
            np.full((4, 3, 2, 1), "a"),
            np.full((4, 3, 2, 1), None),
        ]
    ),
)


@dataclass
class Entry:
    """A public function, arguments that are right, and what would be wrong for each of them.

    ``wrong`` are settings, whose value an error must show; ``wrong_data`` are arrays, records and files, which it must
    name. ``names`` are what errors call an argument, where it is not by its own name.
    """

    call: Callable[..., Any]
    right: dict[str, Any]
    wrong: dict[str, st.SearchStrategy[Any]] = field(default_factory=dict)
    wrong_data: dict[str, st.SearchStrategy[Any]] = field(default_factory=dict)
    names: dict[str, str] = field(default_factory=dict)


def defence_entry(**right):
    wrong = {"name": not_a_name, "strength": not_a_part if right["name"] == "pruning" else negative}
    if right["name"] == "dp_sgd":
        wrong["clip_norm"] = not_positive
    else:
        wrong["clip_norm"] = st.one_of(not_positive, st.floats(0.1, 9)).filter(lambda value: value is not None)
    fields = ("name", "strength", "clip_norm", "independent")
    return Entry(
        wb.DefenceConfig,
        right,
        wrong | {"independent": not_a_flag},
        names={name: "defence" if name == "name" else f"defence.{name}" for name in fields},
    )


training = {"model": MODEL, "weights": WEIGHTS, "client": CLIENT, "config": CONFIG, "seed": 0}
wrong_model = st.one_of(not_a_record, st.none(), st.just("mlp"))
wrong_config = st.one_of(not_a_record, st.just(wb.DefenceConfig()), st.just({"epochs": 3}))
nothing_here = st.sampled_from(["none", "none.npz", "", 5, 1.5, None, b"bytes", Anything(), [], {}])

ENTRIES = {
    "ClientConfig": Entry(
        wb.ClientConfig,
        {},
        {
            "epochs": not_a_count(),
            "batch_size": not_a_count(),
            "learning_rate": not_positive,
            "same_batches": not_a_flag,
            "defence": st.one_of(not_a_record, st.none(), st.just("gaussian")),
        },
    ),
    "DefenceConfig of noise": defence_entry(name="gaussian", strength=0.1),
    "DefenceConfig of pruning": defence_entry(name="pruning", strength=0.1),
    "DefenceConfig of DP-SGD": defence_entry(name="dp_sgd", strength=0.1, clip_norm=1.0),
    "no DefenceConfig": Entry(
        wb.DefenceConfig, {}, {"strength": st.floats(0.01, 1)}, names={"strength": "defence.strength"}
    ),
    "ClientData": Entry(
        wb.ClientData,
        {
            "images": CLIENT.images,
            "labels": CLIENT.labels,
            "class_names": CLIENT.class_names,
            "normalization": NORMALIZATION,
        },
        wrong_data={"images": wrong_images, "labels": wrong_labels},
    ),
    "Observation": Entry(
        wb.Observation,
        {field.name: getattr(OBSERVATION, field.name) for field in fields(wb.Observation)},
        {
            "image_shape": not_a_shape,
            "num_classes": not_a_count(2),
            "normalization": st.one_of(not_a_record, st.none()),
            "num_images": not_a_count(),
            "epochs": not_a_count(),
            "batch_size": not_a_count(1, OBSERVATION.num_images),
            "learning_rate": not_positive,
            "num_clients": not_a_count(),
        },
        wrong_data={"server_weights": damaged_weights(), "client_weights": damaged_weights()},
    ),
    "client_update": Entry(
        wb.client_update,
        training,
        {"model": wrong_model, "seed": not_a_count(0), "config": wrong_config},
        wrong_data={"weights": damaged_weights(), "client": st.one_of(not_a_record, st.none(), st.just(RGB_CLIENT))},
    ),
    "aggregate": Entry(
        wb.aggregate,
        {"observations": [OBSERVATION]},
        wrong_data={
            "observations": st.one_of(not_a_record, st.none(), st.just(OBSERVATION), st.just([OBSERVATION, 5]))
        },
    ),
    "server_rounds": Entry(
        wb.server_rounds,
        {
            **{name: value for name, value in training.items() if name != "client"},
            "clients": [CLIENT, CLIENT],
            "rounds": 1,
            "clients_per_round": 2,
            "progress": False,
        },
        {
            "model": wrong_model,
            "config": wrong_config,
            "seed": not_a_count(0),
            "rounds": not_a_count(),
            "clients_per_round": not_a_count(1, 2),
            "evaluate": st.one_of(st.integers(), st.text(max_size=8), st.just(Anything())),
            "evaluate_every": not_a_count(),
            "save_every": not_a_count().filter(lambda value: value is not None),
            "progress": not_a_flag,
        },
        wrong_data={
            "weights": damaged_weights(),
            "clients": st.one_of(not_a_record, st.none(), st.just([CLIENT, RGB_CLIENT]), st.just([CLIENT, 5])),
            "save_to": st.sampled_from(["folder", 5]),
        },
    ),
    "accuracy": Entry(
        wb.accuracy,
        {"model": MODEL, "weights": WEIGHTS, "inputs": CLIENT.inputs, "labels": CLIENT.labels},
        {"model": wrong_model, "batch_size": not_a_count()},
        wrong_data={"weights": damaged_weights(), "inputs": wrong_inputs, "labels": wrong_labels},
    ),
    "load_dataset": Entry(
        wb.load_dataset,
        {},
        {"name": not_a_name, "seed": not_a_count(0)},
        names={"name": "dataset"},
    ),
    "Dataset.client": Entry(
        GLYPHS.client,
        {"index": 0, "num_images": 3},
        {
            "index": not_a_count(0, GLYPHS.num_clients - 1),
            "num_images": not_a_count(1, 10**6).filter(lambda value: value is not None),
            "seed": not_a_count(0).filter(lambda value: value is not None),
        },
        names={"index": "client index"},
    ),
    "models.mlp": Entry(
        wb.models.mlp,
        {},
        {"image_shape": not_a_shape, "num_classes": not_a_count(2)},
        wrong_data={
            "widths": st.one_of(
                st.sampled_from([Anything(), object, 1j, 5, None, "100", ["100"], [1.5], [[]], [True]]),
                st.lists(st.integers(max_value=0), min_size=1, max_size=3),
            )
        },
    ),
    "models.build": Entry(
        wb.models.build,
        {"name": "femnist_cnn"},
        {"name": not_a_name, "num_classes": not_a_count(2)},
        wrong_data={"widths": st.just((3,))},
        names={"name": "model"},
    ),
    "models.femnist_cnn": Entry(wb.models.femnist_cnn, {}, {"num_classes": not_a_count(2)}),
    "load_weights": Entry(
        wb.load_weights,
        {},
        wrong_data={"path": nothing_here},
    ),
    "save_weights": Entry(
        partial(wb.save_weights, "nothing is written"),
        {"weights": WEIGHTS},
        wrong_data={"weights": damaged_weights(of_a_network=False)},
    ),
}
FIELDS = [(entry, name) for entry, e in ENTRIES.items() for name in [*e.wrong, *e.wrong_data]]


@pytest.fixture(autouse=True, scope="module")
def elsewhere(tmp_path_factory):
    """Nothing of the folder that the tests are started in can be found or overwritten."""
    before = os.getcwd()  # noqa: PTH109
    os.chdir(tmp_path_factory.mktemp("elsewhere"))
    yield
    os.chdir(before)


@pytest.mark.parametrize("entry", [name for name, entry in ENTRIES.items() if entry.right])
def test_what_is_called_right_here_is_right(entry):
    ENTRIES[entry].call(**ENTRIES[entry].right)


EXAMPLES = 15  # for each argument
tried: dict[tuple[str, str], set[str]] = {}


@pytest.mark.parametrize(("entry", "argument"), FIELDS)
@settings(max_examples=EXAMPLES)
@given(data=st.data())
def test_any_wrong_argument_gets_a_sentence_that_names_it(entry, argument, data):
    public = ENTRIES[entry]
    value = data.draw((public.wrong | public.wrong_data)[argument])
    tried.setdefault((entry, argument), set()).add(repr(value))
    with pytest.raises(wb.WorkbenchError) as caught:
        public.call(**(public.right | {argument: value}))
    message = str(caught.value)
    assert public.names.get(argument, argument) in message, f"{argument} is not named: {message}"
    assert "\n" not in message, f"more than a sentence: {message}"
    assert message.endswith("."), f"not a sentence: {message}"
    if argument in public.wrong and isinstance(value, int | float | str):
        assert shown(value) in message, f"{value!r} is not shown: {message}"


def test_enough_different_wrong_inputs_were_tried():
    """Counts what the test above has tried; a strategy that draws the same few values again and again is too narrow."""
    if tried.keys() != set(FIELDS):
        pytest.skip("only some of the arguments were tried")
    number = sum(len(values) for values in tried.values())
    assert number >= 500, f"only {number} different wrong inputs were tried"


@pytest.mark.parametrize("epochs", [0, -3])
def test_no_or_negative_epochs(epochs):
    with pytest.raises(wb.ConfigError, match=f"epochs = {epochs} must be a whole number of at least 1"):
        wb.ClientConfig(epochs=epochs)


def test_a_batch_larger_than_the_client():
    config = wb.ClientConfig(batch_size=5)
    with pytest.raises(wb.ConfigError, match="batch_size = 5 must be at most the number of images, 4"):
        wb.client_update(MODEL, WEIGHTS, CLIENT, config)
    with pytest.raises(wb.ConfigError, match="batch_size = 5"):
        wb.server_rounds(MODEL, WEIGHTS, [CLIENT], config, clients_per_round=1, progress=False)


def test_a_training_that_never_ends():
    began = time.process_time()
    with pytest.raises(wb.ConfigError, match="epochs = 100000000 with 4 images is too much"):
        wb.client_update(MODEL, WEIGHTS, CLIENT, wb.ClientConfig(epochs=10**8, batch_size=2))
    taken = time.process_time() - began
    assert taken < 5, f"refused after {taken:.0f} s: something was computed for each of the steps"


def test_an_empty_client():
    with pytest.raises(wb.DataError, match="expected at least one image of at least one pixel"):
        replace(CLIENT, images=CLIENT.images[:0], labels=CLIENT.labels[:0])
    with pytest.raises(wb.ConfigError, match=r"clients = \[\] must be a non-empty list"):
        wb.server_rounds(MODEL, WEIGHTS, [])
    with pytest.raises(wb.ConfigError, match=r"observations = \[\] must be a non-empty list"):
        wb.aggregate([])


def test_a_folder_for_the_weights_that_cannot_be(tmp_path):
    """Found before the first round, not after hours of training."""
    (tmp_path / "file").write_text("in the way")
    train = partial(wb.server_rounds, MODEL, WEIGHTS, [CLIENT], CONFIG, clients_per_round=1, save_every=9)
    with pytest.raises(wb.DataError, match=r"save_to = '.*file' is not a writable directory: File exists"):
        train(save_to=tmp_path / "file")
    with pytest.raises(wb.DataError, match="save_to = 5 must be the path of a folder"):
        train(save_to=5)


def test_labels_outside_the_classes():
    with pytest.raises(wb.DataError, match="labels contain 7; with 5 classes they must lie between 0 and 4"):
        replace(CLIENT, labels=np.array([0, 1, 2, 7]))
    small = wb.models.mlp(image_shape=(3, 2, 1), widths=(), num_classes=3)
    with pytest.raises(wb.DataError, match="client has 5 classes; mlp has only 3 outputs"):
        wb.client_update(small, small.init(0), CLIENT, CONFIG)
    with pytest.raises(wb.DataError, match="labels contain -1"):
        wb.accuracy(MODEL, WEIGHTS, CLIENT.inputs, [0, 1, 2, -1])


def test_images_of_the_wrong_shape():
    with pytest.raises(wb.DataError, match=r"images have shape \(4, 6\); expected \[N, H, W, C\]"):
        replace(CLIENT, images=CLIENT.images.reshape(4, 6))
    with pytest.raises(wb.DataError, match=r"client has images of \(3, 2, 3\); mlp takes \(3, 2, 1\)"):
        wb.client_update(MODEL, WEIGHTS, RGB_CLIENT, CONFIG)
    with pytest.raises(wb.DataError, match=r"clients\[1\] has images of \(3, 2, 3\)"):
        wb.server_rounds(MODEL, WEIGHTS, [CLIENT, RGB_CLIENT], CONFIG, clients_per_round=1, progress=False)


@pytest.mark.parametrize("wrong", [np.nan, np.inf])
def test_weights_that_are_no_numbers(wrong):
    weights = jax.tree.map(np.copy, WEIGHTS)
    weights["Dense_0"]["kernel"][2, 1] = wrong
    says = r"\['Dense_0'\]\['kernel'\] with NaN or infinite values must be finite"
    with pytest.raises(wb.DataError, match="weights" + says):
        wb.client_update(MODEL, weights, CLIENT, CONFIG)
    with pytest.raises(wb.DataError, match="client_weights" + says):
        replace(OBSERVATION, client_weights=weights)


def test_two_weight_trees_of_different_shape():
    with pytest.raises(
        wb.DataError, match=r"client_weights\['Dense_0'\]\['bias'\] has shape \(6,\); server_weights has"
    ):
        replace(OBSERVATION, client_weights=OTHER_MODEL.init(0))
    other = wb.client_update(OTHER_MODEL, OTHER_MODEL.init(0), CLIENT, CONFIG)
    with pytest.raises(wb.DataError, match=r"observations\[1\]\.server_weights\['Dense_0'\]\['bias'\] has shape"):
        wb.aggregate([OBSERVATION, other])


def test_updates_that_do_not_belong_together():
    for changes in (
        {"learning_rate": 0.1},
        {"epochs": 2},
        {"num_classes": 6},
        {"normalization": Normalization((0,), (1,))},
    ):
        with pytest.raises(
            wb.ConfigError, match=rf"observations\[1\]\.{next(iter(changes))} = .* must equal that of observations\[0\]"
        ):
            wb.aggregate([OBSERVATION, replace(OBSERVATION, **changes)])
    with pytest.raises(wb.ConfigError, match=r"observations\[0\]\.num_clients = 2 must be 1"):
        wb.aggregate([wb.aggregate([OBSERVATION, OBSERVATION])])
    elsewhere = replace(OBSERVATION, server_weights=MODEL.init(1))
    with pytest.raises(
        wb.ConfigError, match=r"observations\[1\]\.server_weights must equal those of observations\[0\]"
    ):
        wb.aggregate([OBSERVATION, elsewhere])


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda: wb.load_dataset("femist"), "dataset = 'femist' is unknown; did you mean 'femnist'?"),
        (lambda: wb.models.build("cifar_cnn"), "model = 'cifar_cnn' is unknown; did you mean 'cifar100_cnn'?"),
        (lambda: wb.models.build("mlp", width=(3,)), "option of mlp = 'width' is unknown; did you mean 'widths'?"),
        (lambda: wb.DefenceConfig("dp-sgd", 1.0), "defence = 'dp-sgd' is unknown; did you mean 'dp_sgd'?"),
    ],
)
def test_an_unknown_name_is_answered_with_the_nearest(call, says):
    with pytest.raises(wb.ConfigError) as caught:
        call()
    assert says in str(caught.value)


@pytest.mark.parametrize("name", ["w.npz", "w.safetensors"])
def test_a_corrupt_or_truncated_file(tmp_path, name):
    wb.save_weights(tmp_path / "w.safetensors", WEIGHTS)
    np.savez(tmp_path / "w.npz", **{"a/b": np.zeros(9)})
    whole = (tmp_path / name).read_bytes()
    for content in (whole[: len(whole) // 2], b"not this", b""):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(wb.DataError, match=f"{name} cannot be read"):
            wb.load_weights(tmp_path / name)
    (tmp_path / "data.npz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(wb.DataError, match=r"data\.npz cannot be read"):
        wb.load_dataset("femnist", tmp_path / "data.npz")


@pytest.mark.parametrize(
    "content", [{}, [], {"users": ["a"]}, "text", {"users": [], "num_samples": 1, "user_data": {}}]
)
def test_a_json_that_is_not_leafs(tmp_path, content):
    (tmp_path / "data.json").write_text(json.dumps(content))
    with pytest.raises(wb.DataError, match=r"data\.json"):
        wb.load_dataset("femnist", tmp_path / "data.json")
