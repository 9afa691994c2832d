"""Which implementation a program contains follows the platform that it is lowered for."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import export

from workbench.training.by_platform import by_platform, default_platform

NUMBERS = jnp.asarray([1.0, 2.0, 4.0])


def doubled_on_cpus(numbers):
    """Twice the numbers on CPUs, three times the numbers elsewhere."""
    return by_platform(lambda x: {"result": 2 * x}, lambda x: {"result": 3 * x}, {"result": numbers}, numbers)["result"]


def factors(platforms):
    """The constants 2 and 3 that a program for these platforms contains."""
    text = export.export(jax.jit(doubled_on_cpus), platforms=platforms)(NUMBERS).mlir_module()
    return {factor for factor in (2, 3) if f"dense<{factor}.000000e+00>" in text}


@pytest.mark.parametrize(
    ("platforms", "expected"), [(["cpu"], {2}), (["cuda"], {3}), (["tpu"], {3}), (["cpu", "cuda"], {2, 3})]
)
def test_a_program_contains_what_its_platform_uses_and_nothing_else(platforms, expected):
    assert factors(platforms) == expected


def test_neither_is_traced_where_it_is_not_used():
    def fails(_):
        raise AssertionError("the implementation of another platform was traced")

    np.testing.assert_array_equal(jax.jit(lambda x: by_platform(jnp.sin, fails, x, x))(NUMBERS), jnp.sin(NUMBERS))


@pytest.mark.parametrize("axes", [(0, 0), (None, 0), (0, None)])
def test_it_is_batched_compiled_and_run_at_once_with_the_same_results(axes):
    left, right = jnp.ones((2, 3)), 5 * jnp.ones((2, 3))
    given = [array if axis == 0 else array[0] for array, axis in zip((left, right), axes, strict=True)]

    def both(a, b):
        return by_platform(lambda a, b: 2 * a + b, lambda a, b: a, a, a, b)

    batched = jax.vmap(both, axes)
    for found in (batched(*given), jax.jit(batched)(*given), jnp.stack([both(left[0], right[0])] * 2)):
        np.testing.assert_array_equal(found, np.full((2, 3), 7.0))


def test_it_has_no_derivative():
    with pytest.raises(NotImplementedError, match="by_platform"):
        jax.grad(lambda x: doubled_on_cpus(x).sum())(NUMBERS)


def test_outside_jit_it_is_compiled_once():
    traces = []

    def cpu(numbers, *, factor):
        traces.append(factor)
        return factor * numbers

    for factor in (2, 2, 3):
        found = by_platform(cpu, jnp.sin, NUMBERS, NUMBERS, factor=factor)
        np.testing.assert_array_equal(found, factor * NUMBERS)
    assert traces == [2, 3]


def test_the_default_platform_is_that_of_the_default_device(monkeypatch):
    assert default_platform() == "cpu"
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert default_platform() == "gpu"
    for device in ("cpu", jax.devices("cpu")[0]):
        with jax.default_device(device):
            assert default_platform() == "cpu"
