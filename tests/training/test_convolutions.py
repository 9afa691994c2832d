"""Convolutions and pooling replaced inside a custom network's function: the same results, whatever encloses them."""

import pickle
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.extend.core import jaxprs_in_params

import workbench as wb
from workbench.training.convolutions import WithFastConvolutions, slow_convolutions
from workbench.training.layers import Window, convolution

NHWC = ("NHWC", "HWIO", "NHWC")
NCHW = ("NCHW", "OIHW", "NCHW")

WINDOWS = {
    "plain": {"padding": "SAME"},
    "strides": {"padding": ((1, 1), (1, 1)), "window_strides": (2, 2)},
    "unused pixels": {"padding": "VALID", "window_strides": (2, 3)},
    "uneven padding": {"padding": ((0, 2), (3, 1)), "window_strides": (3, 2)},
    "cropped": {"padding": ((-1, 0), (2, -2))},
    "kernel dilation": {"padding": "SAME", "rhs_dilation": (2, 1), "window_strides": (1, 2)},
    "input dilation": {"padding": ((2, 1), (1, 2)), "lhs_dilation": (2, 3)},
    "groups": {"padding": "SAME", "feature_group_count": 2},
    "groups and strides": {"padding": "VALID", "window_strides": (2, 2), "feature_group_count": 2},
    "depthwise": {"padding": "SAME", "feature_group_count": 4, "window_strides": (2, 1)},
    "depthwise, dilated": {"padding": ((3, 1), (2, 2)), "feature_group_count": 4, "rhs_dilation": (2, 2)},
}


def draw(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape), jnp.float32)


def assert_close(found, right, what):
    found, right = np.asarray(found), np.asarray(right)
    assert found.shape == right.shape, what
    error = np.abs(found - right).max() / np.abs(right).max()
    assert error < 1e-5, f"{what} differs by {error:.2g} of its largest entry"


def assert_same_derivatives(function, *arguments):
    """The function as it is and with replaced convolutions: values, first and second derivatives by all arguments."""

    def everything(function):
        def slopes(*arguments):
            scalar = lambda *a: (jnp.sin(function(*a)) ** 2).sum()  # noqa: E731 - no derivative of it vanishes
            return jax.grad(scalar, range(len(arguments)))(*arguments)

        def second(*arguments):
            return jax.grad(lambda *a: sum((s**2).sum() for s in slopes(*a)), range(len(arguments)))(*arguments)

        return jax.jit(lambda *a: (function(*a), slopes(*a), second(*a)))(*arguments)

    replaced, plain = everything(WithFastConvolutions(function)), everything(function)
    for order, (found, right) in enumerate(zip(replaced, plain, strict=True)):
        for index, pair in enumerate(zip(jax.tree.leaves(found), jax.tree.leaves(right), strict=True)):
            assert_close(*pair, f"derivative {order} by argument {index}")


def convolutions_in(jaxpr, inside=()):
    """What encloses every convolution of the jaxpr that is not in a custom_vjp."""
    for equation in jaxpr.eqns:
        name = equation.primitive.name
        if name in ("conv_general_dilated", "reduce_window_max", "reduce_window_sum"):
            yield inside
        elif not name.startswith("custom_vjp"):
            for inner in jaxprs_in_params(equation.params):
                yield from convolutions_in(inner, (*inside, name))


def left(function, *arguments):
    return list(convolutions_in(jax.make_jaxpr(WithFastConvolutions(function))(*arguments).jaxpr))


@pytest.mark.parametrize(
    ("window", "dimensions"), [*((window, NHWC) for window in WINDOWS), ("groups and strides", NCHW)]
)
def test_a_replaced_convolution_has_the_same_derivatives(window, dimensions):
    settings = {"window_strides": (1, 1)} | WINDOWS[window]
    groups = settings.get("feature_group_count", 1)
    images, kernel = draw(3, 9, 8, 4), draw(3, 2, 4 // groups, 8, seed=1)
    if dimensions == NCHW:
        images, kernel = images.transpose(0, 3, 1, 2), kernel.transpose(3, 2, 0, 1)

    def convolve(images, kernel):
        return lax.conv_general_dilated(
            images, kernel, dimension_numbers=dimensions, precision=lax.Precision.HIGHEST, **settings
        )

    assert_same_derivatives(convolve, images, kernel)
    assert left(convolve, images, kernel) == []


@pytest.mark.parametrize("padding", ["VALID", "SAME"])
@pytest.mark.parametrize(("combine", "first"), [(lax.max, -np.inf), (lax.add, 0.0)], ids=["max", "sum"])
def test_replaced_pooling_has_the_same_derivatives(combine, first, padding):
    def pool(images):
        return lax.reduce_window(images, np.float32(first), combine, (1, 3, 2, 1), (1, 2, 2, 1), padding)

    assert_same_derivatives(pool, draw(2, 9, 8, 3))
    assert left(pool, draw(2, 9, 8, 3)) == []


def test_the_first_of_equal_entries_has_the_gradient_of_max_pooling():
    def pool(images):
        return lax.reduce_window(images, -np.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")

    images = jnp.zeros((1, 4, 4, 1)).at[0, 3, 3, 0].set(1.0)
    found, right = (jax.grad(lambda x, f=f: f(x).sum())(images) for f in (WithFastConvolutions(pool), pool))
    np.testing.assert_array_equal(found, right)


def conv(images, kernel):
    return lax.conv_general_dilated(
        images, kernel, (1, 1), "SAME", dimension_numbers=NHWC, precision=lax.Precision.HIGHEST
    )


def scanned(images, kernel):
    return lax.scan(lambda x, scale: (conv(x, kernel * scale), x.sum()), images, jnp.asarray([0.3, 0.5]))[0]


def chosen(images, kernel):
    return lax.cond(images.sum() > 1e6, lambda x: x, lambda x: conv(x, kernel), images)


def activated(images, kernel):
    return jax.nn.silu(jax.nn.relu(conv(images, kernel)) + 1)


def of_one(images, kernel):
    """As in Equinox: a function of one image, channels first."""
    one = lambda image: lax.conv(image[None], kernel.transpose(3, 2, 0, 1), (1, 1), "SAME")[0]  # noqa: E731
    return jax.vmap(one)(images.transpose(0, 3, 1, 2))


@pytest.mark.parametrize(
    "function",
    [jax.jit(conv), jax.checkpoint(jax.jit(conv)), scanned, chosen, activated, of_one],
    ids=["jit", "checkpoint", "scan", "cond", "activation", "vmap"],
)
def test_convolutions_are_found_inside_other_functions(function):
    arguments = draw(2, 6, 6, 3), draw(3, 3, 3, 3, seed=1)
    assert left(function, *arguments) == []
    assert slow_convolutions(function, *arguments) == []
    assert_same_derivatives(function, *arguments)


@jax.custom_jvp
def with_own_derivative(images, kernel):
    return conv(images, kernel)


with_own_derivative.defjvp(lambda primals, tangents: (conv(*primals), conv(tangents[0], primals[1])))


@pytest.mark.parametrize(
    ("function", "shapes", "says"),
    [
        (with_own_derivative, [(2, 6, 6, 3), (3, 3, 3, 3)], "inside a custom_jvp_call"),
        (lambda x, k: lax.conv(x, k, (1,), "SAME"), [(2, 3, 6), (4, 3, 3)], "1 spatial dimensions instead of 2"),
        (
            lambda x, k: lax.conv(x.astype(jnp.bfloat16), k.astype(jnp.bfloat16), (1, 1), "SAME"),
            [(2, 3, 6, 6), (4, 3, 3, 3)],
            "computes in bfloat16 instead of float32",
        ),
        (
            lambda x, k: lax.conv_general_dilated(x, k, (1, 1), "SAME", batch_group_count=2),
            [(2, 3, 6, 6), (4, 3, 3, 3)],
            "batch_group_count",
        ),
        (
            lambda x: lax.reduce_window(x, -np.inf, lax.max, (1, 12, 11, 1), (1, 1, 1, 1), "SAME"),
            [(2, 12, 12, 3)],
            "pools over 132 numbers, more than 128",
        ),
    ],
)
def test_what_cannot_be_replaced_runs_unchanged_and_is_reported(function, shapes, says):
    arguments = [draw(*shape) for shape in shapes]
    (reason,) = slow_convolutions(function, *arguments)
    assert says in reason
    np.testing.assert_array_equal(WithFastConvolutions(function)(*arguments), function(*arguments))


def test_a_convolution_with_written_gradients_is_not_reported():
    assert slow_convolutions(lambda x, k: convolution(x, k, Window()), draw(2, 6, 6, 3), draw(3, 3, 3, 3)) == []


def features(weights, images):
    return conv(images, weights["conv"]["kernel"]).mean((1, 2))


def logits(weights, images):
    return features(weights, images) @ weights["last"]["kernel"]


def init(seed=0):
    return {"conv": {"kernel": draw(3, 3, 1, 5, seed=seed)}, "last": {"kernel": draw(5, 4, seed=seed)}}


def custom(**changes):
    right = {"image_shape": (6, 6, 1), "num_classes": 4, "layer_names": ("conv", "last"), "features": features}
    return wb.models.Model(**({"name": "custom", "init": init, "apply": logits} | right | changes))


def test_a_custom_networks_convolutions_are_replaced_when_it_is_made():
    model = pickle.loads(pickle.dumps(custom()))
    for function in (model.apply, model.features):
        traced = jax.make_jaxpr(function)(init(), draw(2, 6, 6, 1))
        assert list(convolutions_in(traced.jaxpr)) == []
        assert not isinstance(function.function, WithFastConvolutions), "replaced twice"
    np.testing.assert_allclose(model.apply(init(), draw(2, 6, 6, 1)), logits(init(), draw(2, 6, 6, 1)), atol=1e-5)


def test_a_custom_network_whose_convolution_stays_slow_says_so():
    def slow(weights, images):
        return with_own_derivative(images, weights["conv"]["kernel"]).mean((1, 2))

    with pytest.warns(
        UserWarning, match=r"custom: 1 of its convolutions and pools will be slow .* inside a custom_jvp_call\."
    ):
        custom(features=slow, apply=lambda weights, images: slow(weights, images) @ weights["last"]["kernel"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        custom()
