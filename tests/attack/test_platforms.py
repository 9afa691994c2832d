"""Programs for a GPU, made on a machine without one: they contain nothing that is compiled for this CPU."""

from dataclasses import replace

import jax
import numpy as np
import pytest
from jax import export, lax

import workbench as wb
from workbench.attack.methods import METHODS
from workbench.attack.prepare import prepare
from workbench.attack.step import run
from workbench.data.dataset import Normalization
from workbench.training import convolutions

NETWORKS = {
    "femnist_cnn": wb.models.femnist_cnn(),
    "cifar100_cnn": wb.models.cifar100_cnn(),
    "mlp": wb.models.mlp((8, 8, 1), (32,), 10),
    "custom": replace(wb.models.mlp((8, 8, 1), (32,), 10), name="custom", chain=None, options=None),
}


pytestmark = pytest.mark.usefixtures("compiled_library")


def observation_of(model):
    channels = model.image_shape[-1]
    return wb.Observation(
        server_weights=model.init(0),
        client_weights=model.init(1),
        image_shape=model.image_shape,
        num_classes=model.num_classes,
        normalization=Normalization((0.5,) * channels, (0.25,) * channels),
        num_images=4,
        epochs=2,
        batch_size=2,
        learning_rate=0.1,
    )


def step_program(platform, network, method):
    """One step of an attack on two epochs of two batches, lowered for a platform."""
    model = NETWORKS[network]
    observation = observation_of(model)
    counts = np.bincount([0, 1, 2, 2], minlength=model.num_classes)
    config = wb.AttackConfig(method=method, steps=1, warm_start_steps=0)
    attack = prepare(model, observation, config, label_counts=counts)
    steering = jax.tree.map(np.float32, attack.steering)
    phase = attack.phases[0]
    assert phase.objective.simulation.method.name == method
    # On a CPU, JAX refuses to export a call that only this machine knows, unless it is named.
    ours = [export.DisabledSafetyCheck.custom_call(f"workbench_{name}") for name in ("forward", "backward")]
    exported = export.export(run, platforms=[platform], disabled_checks=ours if platform == "cpu" else ())(
        phase.objective,
        attack.optimizer,
        attack.problem_of(phase, attack.steering),
        attack.start(),
        steering,
        np.int32(1),
    )
    return exported.mlir_module()


def is_compiled(network, method):
    """Whether an attack on a CPU uses the library: only networks with a chain, and more than one local step."""
    return network != "custom" and method in ("ours_prior", "ours_no_prior", "shared", "fedsgd_epoch")


def check(network, method):
    calls = {platform: step_program(platform, network, method).count("@workbench_") for platform in ("cpu", "cuda")}
    assert calls["cuda"] == 0, f"a program for a GPU calls the library {calls['cuda']} times"
    assert calls["cpu"] == (2 if is_compiled(network, method) else 0), f"{calls['cpu']} calls on a CPU"


@pytest.mark.parametrize("network", ["femnist_cnn", "cifar100_cnn"])
def test_a_step_for_a_gpu_contains_no_call_of_the_library_and_one_for_a_cpu_does(network):
    check(network, "ours_prior")


@pytest.mark.parametrize("network", ["mlp", pytest.param("femnist_cnn", marks=pytest.mark.slow)])
def test_the_default_device_does_not_decide(network, monkeypatch):
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    check(network, "ours_prior")


@pytest.mark.parametrize("network", ["mlp", "convolution"])
def test_a_session_on_a_cpu_beside_a_gpu_is_as_fast_as_without(network, monkeypatch):
    """It calls the library, and the convolutions of a custom network are replaced."""
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    used = []
    for module, name in ((jax.ffi, "ffi_call"), (convolutions, "_convolution")):
        replaced = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, _of=replaced, _name=name, **k: used.append(_name) or _of(*a, **k))
    # A shape that no other test has, so that it is traced.
    mlp = wb.models.mlp((8, 8, 1), (31,), 10)

    def blurred(images):
        kernel = np.full((3, 3, 1, 1), 1 / 9, np.float32)
        return lax.conv_general_dilated(images, kernel, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))

    model = mlp
    if network == "convolution":
        apply, features = (lambda w, x, f=f: f(w, blurred(x)) for f in (mlp.apply, mlp.features))
        model = wb.models.Model("blurred", (8, 8, 1), 10, mlp.layer_names, mlp.init, apply, features)
    observation = observation_of(model)
    counts = np.bincount([0, 1, 2, 2], minlength=10)
    used.clear()
    wb.AttackSession(model, observation, wb.AttackConfig("ours_prior", 1), label_counts=counts, device="cpu").step()
    assert set(used) == {"ffi_call" if network == "mlp" else "_convolution"}


@pytest.mark.slow
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("network", NETWORKS)
def test_no_method_on_any_network_calls_the_library_on_a_gpu(network, method):
    check(network, method)
