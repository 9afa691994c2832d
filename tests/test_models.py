"""The networks: their sizes and first weights, custom functions beside the built-in ones, and the convolution."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import workbench as wb
from workbench.models import Model
from workbench.training import layers

PAPER = {
    "femnist_cnn": wb.models.femnist_cnn(),
    "cifar100_cnn": wb.models.cifar100_cnn(),
    "femnist_cnn_printed": wb.models.femnist_cnn_printed(),
    "cifar100_cnn_printed": wb.models.cifar100_cnn_printed(),
}
SMALL = wb.models.mlp(image_shape=(4, 3, 2), widths=(9,), num_classes=5)


def num_parameters(model):
    return sum(int(np.prod(shape)) for arrays in model.shapes.values() for shape in arrays.values())


@pytest.mark.parametrize(
    ("name", "first", "second", "num_features", "hidden", "num_classes"),
    [
        ("femnist_cnn", (3, 3, 1, 32), (3, 3, 32, 64), 3136, 100, 62),
        ("cifar100_cnn", (3, 3, 3, 64), (3, 3, 64, 128), 8192, 200, 100),
        ("femnist_cnn_printed", (3, 3, 3, 32), (1, 1, 32, 64), 5184, 100, 62),
        ("cifar100_cnn_printed", (3, 3, 3, 64), (1, 1, 64, 128), 10368, 200, 100),
    ],
)
def test_the_papers_networks_have_their_sizes(name, first, second, num_features, hidden, num_classes):
    model = PAPER[name]
    kernels = {layer: arrays["kernel"] for layer, arrays in model.shapes.items()}
    assert kernels == {
        "Conv_0": first,
        "Conv_1": second,
        "Dense_0": (num_features, hidden),
        "last_layer": (hidden, num_classes),
    }
    images = jax.ShapeDtypeStruct((2, *model.image_shape), jnp.float32)
    weights = jax.eval_shape(lambda: model.init(0))
    assert jax.eval_shape(model.apply, weights, images).shape == (2, num_classes)
    assert jax.eval_shape(model.features, weights, images).shape == (2, hidden)


def test_the_papers_networks_have_their_numbers_of_parameters():
    assert {name: num_parameters(model) for name, model in PAPER.items()} == {
        "femnist_cnn": 320 + 18496 + 313700 + 6262,
        "cifar100_cnn": 1792 + 73856 + 1638600 + 20100,
        "femnist_cnn_printed": 896 + 2112 + 518500 + 6262,
        "cifar100_cnn_printed": 1792 + 8320 + 2073800 + 20100,
    }


@pytest.mark.parametrize("model", [*PAPER.values(), SMALL], ids=lambda model: model.name)
def test_the_last_layer_is_linear_in_the_features(model):
    weights = model.init(0)
    images = jnp.asarray(np.random.default_rng(0).normal(size=(2, *model.image_shape)), jnp.float32)
    last = {name: np.float64(array) for name, array in weights[model.last_layer].items()}
    expected = np.float64(model.features(weights, images)) @ last["kernel"] + last["bias"]
    np.testing.assert_allclose(model.apply(weights, images), expected, atol=1e-5)


@pytest.mark.parametrize("model", [*PAPER.values(), wb.models.mlp(widths=(300, 50))], ids=lambda model: model.name)
def test_first_weights_are_lecun_normal_with_zero_bias(model):
    for layer, arrays in model.init(0).items():
        assert not arrays["bias"].any(), f"{layer} starts with a bias"
        kernel = np.float64(arrays["kernel"])
        scaled = kernel * np.sqrt(np.prod(kernel.shape[:-1]))
        spread = 1 / np.sqrt(kernel.size)
        assert abs(scaled.std() - 1) < 4 * spread, f"{layer} has a standard deviation of {scaled.std():.3f}"
        assert abs(scaled.mean()) < 4 * spread, f"{layer} has a mean of {scaled.mean():.3f}"
        # Cut off at two standard deviations, which makes those that remain narrower: hence 2 / 0.8796.
        assert np.abs(scaled).max() < 2.274, f"{layer} has a draw of {np.abs(scaled).max():.2f} standard deviations"


def test_first_weights_depend_on_the_seed_alone():
    one, same, other = (PAPER["femnist_cnn"].init(seed) for seed in (1, 1, 2))
    for layer in one:
        np.testing.assert_array_equal(one[layer]["kernel"], same[layer]["kernel"])
        assert (one[layer]["kernel"] != other[layer]["kernel"]).mean() > 0.99, f"{layer} ignores the seed"
    large = PAPER["femnist_cnn"].init(2**64)
    assert (large["Conv_0"]["kernel"] != PAPER["femnist_cnn"].init(0)["Conv_0"]["kernel"]).all(), "a large seed wraps"


@pytest.mark.parametrize("model", [*PAPER.values(), SMALL], ids=lambda model: model.name)
def test_a_network_is_built_again_from_its_name_and_options(model):
    assert wb.models.build(model.name, **dict(model.options)) is model, "built anew, it would compile anew"


def custom_mlp(**changes):
    """`SMALL`, written by a user in plain JAX."""

    def features(weights, images):
        flat = jnp.reshape(images, (images.shape[0], -1))
        return jax.nn.relu(flat @ weights["Dense_0"]["kernel"] + weights["Dense_0"]["bias"][None])

    def apply(weights, images):
        last = weights["last_layer"]
        return features(weights, images) @ last["kernel"] + last["bias"][None]

    right = {
        "name": "own",
        "image_shape": (4, 3, 2),
        "num_classes": 5,
        "layer_names": ("Dense_0", "last_layer"),
        "init": SMALL.init,
        "apply": apply,
        "features": features,
    }
    return Model(**(right | changes))


@pytest.mark.parametrize(
    "defence",
    [wb.DefenceConfig(), wb.DefenceConfig("gaussian", 0.1), wb.DefenceConfig("dp_sgd", 0.1, clip_norm=0.5)],
    ids=lambda defence: defence.name,
)
def test_own_functions_train_like_the_built_in_ones(defence):
    rng = np.random.default_rng(0)
    client = wb.ClientData(
        images=rng.random((7, 4, 3, 2), np.float32),
        labels=rng.integers(5, size=7),
        class_names=tuple("abcde"),
        normalization=wb.data.Normalization((0.5, 0.5), (0.3, 0.3)),
    )
    config = wb.ClientConfig(epochs=3, batch_size=3, learning_rate=0.1, defence=defence)
    start = SMALL.init(0)
    built_in, own = (wb.client_update(model, start, client, config).client_weights for model in (SMALL, custom_mlp()))
    for layer, arrays in built_in.items():
        for name, array in arrays.items():
            np.testing.assert_allclose(own[layer][name], array, atol=1e-5, err_msg=f"{layer}/{name} trains differently")


def test_own_functions_are_measured_like_the_built_in_ones():
    rng = np.random.default_rng(0)
    inputs, labels = rng.normal(size=(20, 4, 3, 2)), rng.integers(5, size=20)
    weights = SMALL.init(0)
    assert wb.accuracy(custom_mlp(), weights, inputs, labels) == wb.accuracy(SMALL, weights, inputs, labels)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"apply": None}, "apply = None must be a function"),
        ({"image_shape": (4, 3)}, r"image_shape = \(4, 3\) must be \(height, width, channels\)"),
        ({"image_shape": (4, 0, 2)}, r"image_shape = \(4, 0, 2\) must be \(height, width, channels\)"),
        ({"num_classes": 1}, "num_classes = 1"),
        ({"num_classes": 6}, r"init\(0\)\['last_layer'\] must have a kernel \[i, 6\]"),
        ({"layer_names": ()}, r"layer_names = \(\) must be the layers of init\(0\)"),
        ({"layer_names": ("Dense_0", "Dense_1")}, r"must be the layers of init\(0\), \('Dense_0', 'last_layer'\)"),
        ({"layer_names": "last_layer"}, "layer_names = 'last_layer' must be a sequence of layer names"),
        ({"layer_names": 5}, "layer_names = 5 must be a sequence of layer names"),
        ({"init": dict}, "init fails with TypeError"),
        ({"init": lambda seed: [1.0]}, r"init\(0\) = .* must be \{layer: \{name: array\}\}"),
        (
            {"apply": lambda weights, images: images},
            r"apply returns shape \(2, 4, 3, 2\) for 2 images; it must return \(2, 5\)",
        ),
        ({"apply": lambda weights, images: images @ images}, "apply fails with TypeError"),
        ({"apply": lambda weights, images: None}, "apply returns shape None for 2 images"),
        ({"features": SMALL.apply}, r"features returns shape \(2, 5\) for 2 images; it must return \(2, 9\)"),
    ],
)
def test_own_functions_that_do_not_fit_get_one_clear_sentence(changes, says):
    with pytest.raises(wb.ConfigError, match=says):
        custom_mlp(**changes)


OTHER_LAYERS = {
    "wider": wb.models.mlp((4, 3, 2), (900,), 5).chain,
    "larger images": wb.models.mlp((5, 3, 2), (9,), 5).chain,
    "deeper": wb.models.mlp((4, 3, 2), (9, 9), 5).chain,
    "more classes": wb.models.mlp((4, 3, 2), (9,), 6).chain,
}


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"chain": OTHER_LAYERS["wider"]}, r"init\(0\)\['Dense_0'\]\['bias'\] has shape \(9,\); chain has \(900,\)"),
        ({"chain": OTHER_LAYERS["larger images"]}, r"\['kernel'\] has shape \(24, 9\); chain has \(30, 9\)"),
        ({"chain": OTHER_LAYERS["more classes"]}, r"\['last_layer'\]\['bias'\] has shape \(5,\); chain has \(6,\)"),
        ({"chain": OTHER_LAYERS["deeper"]}, r"layer_names = .* must be the names of the layers of chain"),
        ({"chain": SMALL.chain[:1] * 2, "layer_names": ("Dense_0",) * 2}, "must be the names of the layers of chain"),
        ({"chain": ()}, r"chain = \(\) must be a tuple of layers"),
        ({"chain": "Dense_0"}, "chain = 'Dense_0' must be a tuple of layers"),
        ({"image_shape": (4, 3, 3)}, "chain fails with TypeError"),
        ({"num_classes": 6}, r"chain returns shape \(2, 5\) for 2 images; it must be \(2, 6\)"),
    ],
)
def test_a_chain_that_does_not_fit_its_network_gets_one_clear_sentence(changes, says):
    with pytest.raises((wb.ConfigError, wb.DataError), match=says):
        replace(SMALL, **changes)


# What the networks use, (kernel size, padding, channels), and a kernel that shrinks the picture.
KERNELS = [(3, 1, 1), (3, 1, 3), (3, 1, 8), (1, 1, 8), (3, 0, 8)]


def patches(images, size, padding):
    """[M, H, W, C] to [M, h, w, size * size * C]: the window that each output sees."""
    padded = jnp.pad(images, [(0, 0), (padding, padding), (padding, padding), (0, 0)])
    height, width = padded.shape[1] - size + 1, padded.shape[2] - size + 1
    windows = [padded[:, i : i + height, j : j + width] for i in range(size) for j in range(size)]
    return jnp.concatenate(windows, axis=-1)


def by_patches(images, kernel, padding):
    columns = patches(images, kernel.shape[0], padding)
    return jnp.tensordot(columns, kernel.reshape(-1, kernel.shape[-1]), 1, precision=lax.Precision.HIGHEST)


def by_library(images, kernel, padding):
    dimensions = ("NHWC", "HWIO", "NHWC")
    pads = [(padding, padding)] * 2
    return lax.conv_general_dilated(
        images, kernel, (1, 1), pads, dimension_numbers=dimensions, precision=lax.Precision.HIGHEST
    )


def assert_close(actual, expected, what):
    actual, expected = np.asarray(actual), np.asarray(expected)
    error = np.abs(actual - expected).max() / np.abs(expected).max()
    assert error < 1e-5, f"{what} differs by {error:.2g} of its largest entry"


@pytest.mark.parametrize(("size", "padding", "channels"), KERNELS)
@pytest.mark.parametrize("other", [by_patches, by_library])
def test_all_ways_to_convolve_agree_with_both_gradients(other, size, padding, channels):
    rng = np.random.default_rng(size)
    shapes = (3, 8, 6, channels), (size, size, channels, 7)
    images, kernel = (jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in shapes)
    side, window = 2 * padding - size + 1, layers.Window.padded(padding)
    gradient = jnp.asarray(rng.normal(size=(3, 8 + side, 6 + side, 7)), jnp.float32)

    @jax.jit
    def expected(images, kernel, gradient):
        result, pull_back = jax.vjp(lambda x, k: other(x, k, padding), images, kernel)
        return result, *pull_back(gradient)

    @jax.jit
    def found(images, kernel, gradient):
        result, pull_back = jax.vjp(lambda x, k: layers.convolution(x, k, window), images, kernel)
        in_images = layers.convolution_input_gradient(gradient, kernel, window)
        in_kernel = layers.convolution_kernel_gradient(images, gradient, window)
        return result, in_images, in_kernel, *pull_back(gradient)

    convolved, in_images, in_kernel = expected(images, kernel, gradient)
    for actual, right, what in zip(
        found(images, kernel, gradient),
        (convolved, in_images, in_kernel, in_images, in_kernel),
        (
            "the convolution",
            "the input gradient",
            "the kernel gradient",
            "the input gradient that JAX takes from the convolution",
            "the kernel gradient that JAX takes from the convolution",
        ),
        strict=True,
    ):
        assert_close(actual, right, what)
