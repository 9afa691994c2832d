"""The compiled local training against the same training in JAX with twice the digits, and what happens without it.

That the JAX version is exact is shown in tests/attack/test_gradient.py.
"""

import _ctypes
import hashlib
import os
import re
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.training import chain, native
from workbench.training import sgd as training
from workbench.training.chain import Layer
from workbench.training.native import binding
from workbench.training.sgd import Batches, batch_share, in_batches, sgd

# Of the largest entry. The errors of the JAX version in float32 are as large.
ROUNDING = 5e-6
RATE = 0.05

PAPER = wb.models.femnist_cnn().chain
NETWORKS = {
    "femnist": (PAPER, (28, 28, 1)),
    "cifar100": (wb.models.cifar100_cnn().chain, (32, 32, 3)),
    "printed": (wb.models.femnist_cnn_printed().chain, (32, 32, 3)),
    "mlp": (wb.models.mlp((5, 7, 2), (100, 33), 10).chain, (5, 7, 2)),
    # Kernels of even and odd sizes, no border, no pooling, one vector of channels and three.
    "unlike the paper's": (
        (
            Layer("a", (2, 2, 3, 48), padding=1),
            Layer("b", (5, 5, 48, 16), padding=0, pool=True),
            Layer("c", (1, 1, 16, 32), padding=0),
            Layer("d", (3 * 3 * 32, 6), relu=False),
        ),
        (9, 9, 3),
    ),
    # Kernels of 3 x 3 with every border, with and without pooling; what the last sees has no whole tiles.
    "in tiles": (
        (
            Layer("a", (3, 3, 2, 16), padding=1),
            Layer("b", (3, 3, 16, 48), padding=2),
            Layer("c", (3, 3, 48, 32), padding=0, pool=True),
            Layer("d", (3, 3, 32, 16), padding=1),
            Layer("e", (3 * 4 * 16, 5), relu=False),
        ),
        (6, 8, 2),
    ),
    "two tiled layers": (
        (
            Layer("a", (2, 2, 1, 16), padding=1),
            Layer("b", (3, 3, 16, 16), padding=0),
            Layer("c", (3, 3, 16, 16), padding=1, pool=True),
            Layer("d", (2 * 2 * 16, 3), relu=False),
        ),
        (5, 5, 1),
    ),
    "linear": ((Layer("only", (12, 4), relu=False),), (2, 3, 2)),
}


# For the JAX version, which runs once: half of the time to compile would go into making it fast.
quick_jit = partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)


pytestmark = pytest.mark.usefixtures("compiled_library")


def numbers(seed, *shape):
    return np.random.default_rng(seed).normal(size=shape)


def a_client(layers, image_shape, epochs, num_images, batch_size, dtype):
    weights = {
        layer.name: {
            "kernel": numbers(2 * i, *layer.kernel_shape) / np.sqrt(np.prod(layer.kernel_shape[:-1])),
            "bias": 0.1 * numbers(2 * i + 1, layer.kernel_shape[-1]),
        }
        for i, layer in enumerate(layers)
    }
    direction = jax.tree.map(lambda w: numbers(w.size, *w.shape), weights)
    labels = np.random.default_rng(5).integers(0, layers[-1].kernel_shape[-1], (epochs, num_images))
    typed = lambda tree: jax.tree.map(lambda a: jnp.asarray(a, dtype), tree)  # noqa: E731 - a name for what follows twice
    batches = Batches(
        in_batches(jnp.asarray(numbers(7, epochs, num_images, *image_shape), dtype), batch_size),
        in_batches(jnp.asarray(labels, jnp.int32), batch_size),
        batch_share(epochs, num_images, batch_size).astype(dtype),
    )
    return typed(weights), batches, typed(direction)


def distance(found, right):
    """Of arrays, as a part of the largest entry."""
    found, right = np.asarray(found, np.float64), np.asarray(right, np.float64)
    return np.abs(found - right).max() / np.abs(right).max()


@pytest.mark.parametrize(
    ("network", "epochs", "num_images", "batch_size"),
    [
        ("femnist", 2, 11, 5),
        ("femnist", 3, 3, 1),
        ("femnist", 1, 40, 40),
        ("cifar100", 1, 7, 5),
        ("printed", 2, 5, 3),
        ("mlp", 3, 8, 3),
        ("mlp", 3, 3, 1),
        ("unlike the paper's", 2, 7, 3),
        ("in tiles", 2, 7, 3),
        ("in tiles", 2, 2, 1),
        ("linear", 3, 6, 2),
    ],
)
def test_training_and_its_derivative_are_those_of_jax(network, epochs, num_images, batch_size):
    layers, image_shape = NETWORKS[network]
    shape = (layers, image_shape, epochs, num_images, batch_size)
    weights, batches, direction = a_client(*shape, jnp.float32)
    assert native.can_train(layers, weights, batches.images), "it is not used"

    @jax.jit
    def compiled(weights, batches, direction):
        final, back = jax.vjp(
            lambda w, x: training._chain_sgd(native, layers, w, batches._replace(images=x), jnp.float32(RATE)),
            weights,
            batches.images,
        )
        return final, *back(direction)

    @quick_jit
    def in_jax(weights, batches, direction):
        final, saved = training._forward(chain, layers, weights, batches, jnp.float64(RATE))
        before, images, _ = training._backward(chain, layers, saved, direction)
        return final, before, images.images

    final, before, images = compiled(weights, batches, direction)
    with jax.enable_x64(True):
        right_final, right_before, right_images = jax.device_get(in_jax(*a_client(*shape, jnp.float64)))
    errors = {"images": distance(images, right_images)}
    for layer in layers:
        for name in ("kernel", "bias"):
            errors[f"{layer.name} {name}"] = distance(final[layer.name][name], right_final[layer.name][name])
            errors[f"{layer.name} {name} adjoint"] = distance(before[layer.name][name], right_before[layer.name][name])
    worst = max(errors, key=errors.get)
    assert errors[worst] < ROUNDING, f"{worst} is off by {errors[worst]:.1e} of its largest entry"


@pytest.mark.parametrize(
    ("model", "segments"),
    [
        (wb.models.mlp((5, 7, 2), (100, 33), 10), 1),
        (wb.models.mlp((5, 7, 2), (100, 33), 10), 2),
        (wb.models.femnist_cnn(), 1),
        pytest.param(wb.models.femnist_cnn(), 2, marks=pytest.mark.slow),
    ],
    ids=lambda value: getattr(value, "name", str(value)),
)
def test_it_is_what_sgd_uses_whole_and_in_segments(model, segments, monkeypatch):
    weights, batches, _ = a_client(model.chain, model.image_shape, 2, 4, 2, jnp.float32)

    def gradient(jit):
        # A new function each time, which JAX traces anew.
        def loss(images):
            end = sgd(model, weights, batches._replace(images=images), jnp.float32(RATE), segments)
            return sum((w * w).sum() for w in jax.tree.leaves(end))

        lowered = jit(jax.grad(loss)).lower(batches.images)
        return lowered.as_text(), lowered.compile()(batches.images)

    text, found = gradient(jax.jit)
    assert "workbench_backward" in text, "sgd does not call the library"
    monkeypatch.setattr(binding, "_library", lambda: None)
    text, right = gradient(quick_jit)
    assert "workbench_backward" not in text, "the library is called though it is not there"
    assert distance(found, right) < ROUNDING


def test_one_local_step_is_left_to_jax():
    layers, image_shape = NETWORKS["femnist"]
    weights, batches, _ = a_client(layers, image_shape, 1, 4, 4, jnp.float32)
    text = jax.jit(lambda b: sgd(wb.models.femnist_cnn(), weights, b, jnp.float32(RATE))).lower(batches).as_text()
    assert "workbench_forward" not in text


def test_what_an_attack_keeps_is_told_by_who_computes_it(monkeypatch):
    model = wb.models.femnist_cnn()
    one, two = (training.kept_bytes(model, steps, 4) for steps in (1, 2))
    monkeypatch.setattr(binding, "_library", lambda: None)
    assert training.kept_bytes(model, 1, 4) == one, "one step is JAX's, with the library and without"
    assert training.kept_bytes(model, 2, 4) != two, "two steps are the library's"


def test_several_clients_side_by_side_are_each_as_alone():
    layers, image_shape = NETWORKS["mlp"]
    weights, batches, _ = a_client(layers, image_shape, 2, 4, 2, jnp.float32)
    both = jnp.stack([batches.images, batches.images[::-1]])

    def end(images):
        return training._chain_sgd(native, layers, weights, batches._replace(images=images), jnp.float32(RATE))

    together = jax.vmap(end)(both)
    for i, images in enumerate(both):
        for found, right in zip(jax.tree.leaves(together), jax.tree.leaves(end(images)), strict=True):
            np.testing.assert_array_equal(found[i], right)


_DIGEST = """
import hashlib, os, sys
os.sched_setaffinity(0, map(int, sys.argv[1].split(",")))
import jax, jax.numpy as jnp, numpy as np
sys.path.insert(0, sys.argv[2])
from test_native import RATE, NETWORKS, a_client
from workbench.training import native, sgd as training
layers, image_shape = NETWORKS["femnist"]
weights, batches, direction = a_client(layers, image_shape, 2, 7, 3, jnp.float32)
end, back = jax.vjp(
    lambda x: training._chain_sgd(native, layers, weights, batches._replace(images=x), jnp.float32(RATE)),
    batches.images,
)
leaves = [*jax.tree.leaves(end), *back(direction)]
print(hashlib.sha256(b"".join(np.asarray(leaf).tobytes() for leaf in leaves)).hexdigest())
"""


def test_the_numbers_do_not_depend_on_the_number_of_cores(cores):
    if len(cores) < 2:
        pytest.skip("needs two cores and Linux")
    digests = [
        subprocess.run(
            [sys.executable, "-c", _DIGEST, ",".join(map(str, used)), str(Path(__file__).parent)],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for used in (cores[:1], cores[:2])
    ]
    assert len(digests[0].strip()) == hashlib.sha256().digest_size * 2
    assert digests[0] == digests[1], "one core and two compute different numbers"


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compilers_and_sanitizers_find_nothing():
    tool = Path(__file__).parents[2] / "tools/native_check.py"
    done = subprocess.run([sys.executable, tool], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "ok " in done.stdout, f"everything was skipped: {done.stdout}"


def test_every_compiler_is_found_once(monkeypatch, tmp_path):
    import native_check  # of tools/, which the programs above do not see

    for name in ("g++-12", "clang++-14", "clang++-15", "g++-notes", "x86_64-g++"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    (tmp_path / "g++").symlink_to(tmp_path / "g++-12")
    (tmp_path / "clang++-16").write_text("not a program")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("CXX", "ccache g++")
    assert native_check.compilers() == ["ccache g++", "clang++-14", "clang++-15", "g++"]
    monkeypatch.delenv("CXX")
    assert native_check.compilers() == ["clang++-14", "clang++-15", "g++"]


def conv(kernel_shape, last_inputs, **options):
    return Layer("a", kernel_shape, **options), Layer("b", (last_inputs, 5), relu=False)


@pytest.mark.parametrize(
    "layers",
    [
        conv((3, 3, 1, 24), 24 * 784, padding=1),
        conv((3, 3, 1, 16), 16 * 784, padding=1, relu=False),
        conv((3, 3, 2, 16), 16 * 784, padding=1),
        conv((3, 3, 1, 16), 16 * 784, padding=0),
        conv((3, 2, 1, 16), 16 * 784, padding=1),
        conv((3, 3, 1, 16), 16 * 24 * 24, padding=-1),
        conv((2, 2, 1, 16), 16 * 13 * 13, padding=0, pool=True),
        conv((33, 33, 1, 16), 16 * 28 * 28, padding=16),
        (Layer("a", (3, 3, 1, 16), padding=1, relu=False),),
    ],
    ids=["24 channels", "no ReLU", "channels", "inputs", "not square", "negative", "odd pool", "large", "no dense"],
)
def test_what_it_does_not_know_is_left_to_jax(layers):
    weights, batches, _ = a_client(layers, (28, 28, 1), 1, 2, 2, jnp.float32)
    assert not native.can_train(layers, weights, batches.images)


_WRONG_CALLS = """
import sys
import jax, jax.numpy as jnp, numpy as np
sys.path.insert(0, sys.argv[1])
from test_native import NETWORKS, RATE, a_client
from workbench.training import native
from workbench.training.native import binding

layers, image_shape = NETWORKS[sys.argv[2]]
weights, batches, direction = a_client(layers, image_shape, 2, 4, 2, jnp.float32)
floats = native.kept_floats(layers, image_shape, 2)
network = binding._network(layers, image_shape)
arrays = binding._arrays(layers, weights)
given = [*binding._given(batches, jnp.float32(RATE))]
floats_of = lambda *shape: jnp.zeros(shape, jnp.float32)
trajectory = floats_of(len(batches.images), floats)

def called(name, arguments, results, **settings):
    shapes = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in results]
    found = jax.jit(lambda *a: jax.ffi.ffi_call(name, shapes)(*a, **settings))(*arguments)
    return jax.block_until_ready(found)

right = {
    "workbench_forward": ([*given, *arrays], [*arrays, trajectory], {"network": network, "keep": True}),
    "workbench_backward": (
        [*given, trajectory, *arrays, *arrays], [*arrays, batches.images], {"network": network}
    ),
}

def replaced(values, index, value):
    return [*values[:index], value, *values[index + 1:]]

def changed(**numbers):
    other = network.copy()
    for index, number in numbers.items():
        other[int(index[1:])] = number
    return other

networks = {
    "empty": network[:0], "no layers": network[:3], "cut": network[:-1], "other images": changed(_0=image_shape[0] + 1),
    "large": changed(_0=2**23, _1=2**23, _2=2**23), "no class": changed(**{f"_{len(network) - 4}": 0}),
    **{f"number {i}": changed(**{f"_{i}": (-1) ** i * 2**62}) for i in range(len(network))},
}
if layers[0].is_dense:
    networks |= {
        "wider": changed(_7=3000), "pooling": changed(_10=1), "padding": changed(_8=-1), "a convolution": changed(_3=0),
        "no ReLU": changed(_9=0),
    }
count = 0
for name, (arguments, results, settings) in right.items():
    called(name, arguments, results, **settings)
    wrong = {f"network: {kind}": (arguments, results, {**settings, "network": n}) for kind, n in networks.items()}
    for kind, values in (("argument", arguments), ("result", results)):
        for index, array in enumerate(values):
            for how, value in {
                "longer": floats_of(*array.shape, 2),
                "other type": jnp.zeros(array.shape, jnp.int32 if array.dtype == jnp.float32 else jnp.float32),
                "other size": floats_of(*array.shape[:-1], array.shape[-1] + 1) if array.ndim else floats_of(2),
            }.items():
                new = replaced(values, index, value)
                pair = (new, results) if kind == "argument" else (arguments, new)
                wrong[f"{kind} {index}: {how}"] = (*pair, settings)
        one_less, one_more = values[:-1], [*values, values[-1]]
        for how, new in (("missing", one_less), ("one more", one_more)):
            pair = (new, results) if kind == "argument" else (arguments, new)
            wrong[f"{kind}: {how}"] = (*pair, settings)
    if "keep" in settings:
        wrong["keep: another"] = (arguments, results, {**settings, "keep": False})
    # XLA itself refuses wrong attributes.
    for how, others in {
        "no attributes": {},
        "one attribute more": {**settings, "other": 1},
        "32 bits": {**settings, "network": network.astype(np.int32)},
        "floats": {**settings, "network": network.astype(np.float64)},
        "a number": {**settings, "network": 3},
        "a text": {**settings, "network": "mlp"},
        **({"keep as a number": {**settings, "keep": 1}} if "keep" in settings else {}),
    }.items():
        wrong[f"attributes: {how}"] = (arguments, results, others)
    for case, (these, those, with_) in wrong.items():
        try:
            called(name, these, those, **with_)
        except jax.errors.JaxRuntimeError as error:
            is_ours = "compiled local training: " in str(error)
            assert is_ours != case.startswith("attributes"), f"{name}, {case}: {error}"
            count += 1
        else:
            raise AssertionError(f"{name}, {case}: no error")
print("refused", count)
"""


def in_a_process(program, *arguments):
    """What a Python program prints; it runs alone, because a crash would end the tests."""
    command = [sys.executable, "-c", program, str(Path(__file__).parent), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"ended with {done.returncode}: {done.stderr[-2000:]}"
    return done.stdout


@pytest.mark.parametrize("network", ["mlp", pytest.param("two tiled layers", marks=pytest.mark.slow)])
def test_a_wrong_argument_is_an_error_of_xla_and_never_a_crash(network):
    assert int(in_a_process(_WRONG_CALLS, network).split()[-1]) > 150


def test_two_at_once_in_threads_compute_what_each_computes_alone():
    program = jax.jit(lambda b: sgd(wb.models.femnist_cnn(), weights, b, jnp.float32(RATE)))
    layers, image_shape = NETWORKS["femnist"]
    weights, batches, _ = a_client(layers, image_shape, 2, 4, 1, jnp.float32)
    both = [batches, batches._replace(images=batches.images[::-1])]
    assert "workbench_forward" in program.lower(batches).as_text()
    gradient = jax.jit(jax.grad(lambda x, b: sum(map(jnp.sum, jax.tree.leaves(program(b._replace(images=x)))))))

    def work(client):
        return [jax.device_get((program(client), gradient(client.images, client))) for _ in range(5)]

    alone = [work(client)[0] for client in both]
    with ThreadPoolExecutor(2) as pool:
        together = list(pool.map(work, both))
    for results, right in zip(together, alone, strict=True):
        for result in results:
            for found, expected in zip(jax.tree.leaves(result), jax.tree.leaves(right), strict=True):
                np.testing.assert_array_equal(found, expected)


def test_outside_jit_it_is_traced_once(monkeypatch):
    calls = []
    call = jax.ffi.ffi_call
    monkeypatch.setattr(jax.ffi, "ffi_call", lambda *a, **k: calls.append(a[0]) or call(*a, **k))
    # A shape that no other test has.
    layers, image_shape = NETWORKS["linear"]
    weights, batches, _ = a_client(layers, image_shape, 2, 7, 7, jnp.float32)
    for _ in range(2):
        native.forward(layers, weights, batches, jnp.float32(RATE), keep=True)
    assert calls == ["workbench_forward"]


_OTHER_WEIGHTS = """
import dataclasses, sys
import jax, numpy as np, workbench as wb
client = wb.load_dataset("glyphs").client(0, num_images=4)
mlp, wider = wb.models.mlp(widths=(8,)), wb.models.mlp(widths=(3000,))
try:
    dataclasses.replace(mlp, chain=wider.chain)
except wb.DataError as error:
    print(error)
# Past the check of the network, the library checks once more.
object.__setattr__(mlp, "chain", wider.chain)
try:
    wb.client_update(mlp, mlp.init(), client, wb.ClientConfig(epochs=1, batch_size=2))
except (jax.errors.JaxRuntimeError, TypeError, ValueError) as error:
    print(type(error).__name__, "instead of a crash")
"""


def test_a_chain_that_does_not_fit_the_weights_ends_in_an_error_and_not_in_a_crash():
    first, second = in_a_process(_OTHER_WEIGHTS).splitlines()
    assert first == "init(0)['Dense_0']['bias'] has shape (8,); chain has (3000,)."
    assert second == "JaxRuntimeError instead of a crash"


def test_other_number_types_are_left_to_jax():
    with jax.enable_x64(True):
        weights, batches, _ = a_client(PAPER, (28, 28, 1), 1, 2, 2, jnp.float64)
        assert not native.can_train(PAPER, weights, batches.images)


def test_training_alone_keeps_nothing_of_its_steps():
    layers, image_shape = NETWORKS["femnist"]
    weights, batches, _ = a_client(layers, image_shape, 3, 4, 1, jnp.float32)
    final, kept = native.forward(layers, weights, batches, jnp.float32(RATE), keep=False)
    right, all_kept = native.forward(layers, weights, batches, jnp.float32(RATE), keep=True)
    assert (kept, len(all_kept.compiled)) == (None, 12)
    program = jax.jit(lambda w: native.forward(layers, w, batches, jnp.float32(RATE), keep=False)).lower(weights)
    floats = native.kept_floats(layers, image_shape, 1)
    assert f"tensor<1x{floats}xf32>" in program.as_text(), "the library is not called with memory for one step"
    assert f"tensor<12x{floats}xf32>" not in program.as_text(), "training alone has memory for every step"
    for found, expected in zip(jax.tree.leaves(final), jax.tree.leaves(right), strict=True):
        np.testing.assert_array_equal(found, expected)


def test_a_compiler_that_fails_is_named_and_leaves_no_library(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    for compiler in ("false", "false --flag", "no-such-compiler"):
        monkeypatch.setenv("CXX", compiler)
        with pytest.raises(native.CannotCompileError, match=compiler):
            native.build()
    assert not list(tmp_path.rglob("*.so"))


@pytest.mark.parametrize(
    ("program", "reason"),
    [("exit 0", "wrote no library"), ("yes 'error: no' | head -c 1000000 >&2; exit 1", "error: no.* [.][.][.]$")],
)
def test_what_a_compiler_says_is_one_sentence_or_shortened(program, reason, monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    compiler = tmp_path / "compiler"
    compiler.write_text(f"#!/bin/sh\n{program}\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    with pytest.raises(native.CannotCompileError) as found:
        native.build()
    assert re.search(reason, str(found.value), re.DOTALL)
    assert len(str(found.value)) < 3000


def test_a_broken_library_is_left_aside(monkeypatch, tmp_path):
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    native.library_path().parent.mkdir()
    native.library_path().write_bytes(b"not a library")
    assert binding._library.__wrapped__() is None


def test_a_broken_library_is_compiled_again(monkeypatch, tmp_path):
    working = native.library_path()
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    native.library_path().parent.mkdir()
    native.library_path().write_bytes(b"not a library")
    monkeypatch.setenv("CXX", quick_compiler(tmp_path, working))
    assert native.build() == native.library_path()
    assert native.library_path().read_bytes() == working.read_bytes()


_LOADED = "from workbench.training.native import advice, binding; print(binding._library(), advice())"


def moved_and_linked(path):
    """The same file or folder, reached through a link."""
    path.rename(path.with_name("real"))
    path.symlink_to(path.with_name("real"))


# What is done to a private library, and whether it is loaded, or else why not.
HARMS = {
    "nothing": (lambda library: None, ""),
    "a cache behind a link": (lambda library: moved_and_linked(library.parent.parent), ""),
    "a folder in which nobody replaces files": (lambda library: library.parents[2].chmod(0o1777), ""),
    "the folder": (lambda library: library.parent.chmod(0o777), "native can be written by other users"),
    "the library": (lambda library: library.chmod(0o775), ".so can be written by other users"),
    "a group above": (lambda library: library.parents[2].chmod(0o775), "above can be written by other users"),
    "a link to the folder": (lambda library: moved_and_linked(library.parent), "native is a link"),
    "a link to the library": (moved_and_linked, ".so is a link"),
    "another library": (lambda library: shutil.copy(_ctypes.__file__, library), "cannot be loaded"),
    "another user": (lambda library: os.chown(library, 12345, -1), ".so belongs to another user"),
    "another user above": (lambda library: os.chown(library.parents[2], 12345, -1), "above belongs to another user"),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_library_that_another_user_may_have_written_is_not_loaded(harm, monkeypatch, tmp_path):
    if harm.startswith("another user") and os.getuid() != 0:
        pytest.skip("only root can give a file away")
    working = native.library_path()
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "above/cache"))
    library = native.library_path()
    library.parent.mkdir(parents=True)
    shutil.copy(working, library)
    for place in (library, library.parent, library.parents[1], library.parents[2]):
        place.chmod(0o755)
    do, reason = HARMS[harm]
    do(library)
    # In a process of its own: this one has loaded the library.
    found = in_a_process(_LOADED)
    if not reason:
        assert found.startswith("<CDLL"), f"a private library was not loaded: {found}"
        return
    assert found.startswith("None The compiled library is not used: "), found
    assert reason in found
    if "cannot" not in reason:
        assert "set WORKBENCH_CACHE to a private folder" in found


def test_a_library_is_built_where_nobody_else_can_write_and_nowhere_else(monkeypatch, tmp_path):
    working = native.library_path()
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("CXX", quick_compiler(tmp_path, working))
    before = os.umask(0o002)
    try:
        library = native.build()
        native.build()
    finally:
        os.umask(before)
    assert [place.stat().st_mode & 0o777 for place in (library.parents[1], library.parent)] == [0o755, 0o755]
    library.unlink()
    for given, kept in ((0o700, 0o700), (0o777, 0o755)):
        library.parent.chmod(given)
        native.build().unlink()
        assert library.parent.stat().st_mode & 0o777 == kept
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    elsewhere.chmod(0o777)
    library.parent.rmdir()
    library.parent.symlink_to(elsewhere)
    with pytest.raises(native.CannotCompileError, match="native is a link"):
        native.build()
    assert (elsewhere.stat().st_mode & 0o777, list(elsewhere.iterdir())) == (0o777, [])
    library.parent.unlink()
    (tmp_path / "cache").chmod(0o777)
    with pytest.raises(native.CannotCompileError, match="cache can be written by other users"):
        native.build()


def test_a_library_that_cannot_be_loaded_is_said(monkeypatch, tmp_path):
    broken = tmp_path / "broken"
    broken.write_bytes(b"not a library")
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", quick_compiler(tmp_path, broken))
    with pytest.raises(native.CannotCompileError, match="cannot be loaded"):
        native.build()


def quick_compiler(folder, answer, refuses="nothing"):
    """One that takes no time, because it knows the answer, and does not take every flag."""
    path = folder / "compiler"
    path.write_text(
        f'#!/bin/sh\nfor flag; do [ "$flag" = "{refuses}" ] && exit 1; done\n'
        f'while [ "$1" != -o ]; do shift; done\ncp "{answer}" "$2"\n'
    )
    path.chmod(0o755)
    return str(path)


def test_a_compiler_that_does_not_know_the_processor_compiles_for_any(monkeypatch, tmp_path):
    working = native.library_path()
    monkeypatch.setenv("WORKBENCH_CACHE", str(tmp_path))
    monkeypatch.setenv("CXX", quick_compiler(tmp_path, working, refuses="-march=native"))
    assert native.build() == native.library_path()


@pytest.mark.parametrize("switch", ["jax_debug_nans", "jax_debug_infs"])
def test_it_is_not_used_where_all_numbers_are_checked(switch):
    weights, batches, _ = a_client(PAPER, (28, 28, 1), 1, 2, 2, jnp.float32)
    assert native.can_train(PAPER, weights, batches.images)
    jax.config.update(switch, True)
    try:
        assert not native.can_train(PAPER, weights, batches.images)
    finally:
        jax.config.update(switch, False)


def test_a_cache_that_cannot_be_written_is_said(monkeypatch, tmp_path):
    in_the_way = tmp_path / "a file"
    in_the_way.write_text("")
    monkeypatch.setenv("WORKBENCH_CACHE", str(in_the_way / "cache"))
    with pytest.raises(native.CannotCompileError, match="a file"):
        native.build()
    assert binding._library.__wrapped__() is None


def test_the_environment_can_leave_it_out(monkeypatch):
    monkeypatch.setenv("WORKBENCH_NATIVE", "0")
    assert binding._library.__wrapped__() is None


def test_people_are_told_how_to_be_faster_where_they_can_be(monkeypatch):
    assert native.advice() is None, "it is there, and advised all the same"
    monkeypatch.setattr(binding, "_library", lambda: None)
    assert "python -m workbench.native" in native.advice()
    monkeypatch.setattr(shutil, "which", lambda name: None)
    monkeypatch.delenv("CXX", raising=False)
    assert native.advice() is None, "there is no compiler to follow the advice with"
    monkeypatch.undo()
    monkeypatch.setattr(binding, "_library", lambda: None)
    monkeypatch.setenv("WORKBENCH_NATIVE", "0")
    assert native.advice() is None, "it is not wanted"
