"""`client_update` against the paper's Algorithm 1 written out in float64 NumPy, with every gradient derived by hand."""

from functools import partial

import jax
import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

import workbench as wb
from workbench.data import Normalization
from workbench.federated.client import draw_like, is_kept, step_keys
from workbench.randomness import laplacian, named_key, normal

NETWORKS = {
    "femnist_cnn": wb.models.femnist_cnn(),
    "cifar100_cnn": wb.models.cifar100_cnn(),
    "femnist_cnn_printed": wb.models.femnist_cnn_printed(),
    "cifar100_cnn_printed": wb.models.cifar100_cnn_printed(),
    "mlp": wb.models.mlp(image_shape=(5, 4, 2), widths=(12, 9), num_classes=7),
}
DEFENCES = [
    wb.DefenceConfig(),
    wb.DefenceConfig("gaussian", 0.02),
    wb.DefenceConfig("laplacian", 0.02, independent=False),
    wb.DefenceConfig("pruning", 0.4),
    wb.DefenceConfig("dp_sgd", 0.02, clip_norm=1.5),
]
# Compiling takes most of the time: the small network meets every defence and every network is trained without one; all
# other pairs but two are in the slow run.
IN_EVERY_RUN = {("femnist_cnn", "gaussian"), ("femnist_cnn", "dp_sgd")}
NETWORKS_AND_DEFENCES = [
    pytest.param(
        network,
        defence,
        id=f"{network}-{defence.name}",
        marks=[]
        if network == "mlp" or defence.name == "none" or (network, defence.name) in IN_EVERY_RUN
        else pytest.mark.slow,
    )
    for network in NETWORKS
    for defence in DEFENCES
]
# Of the largest change of an array: the client counts in float32, whose rounding makes up to about 3e-6 of it here.
# The learning rate is large so that the change is not lost in the rounding of the weights themselves.
TOLERANCE = 1e-5
SEED = 3


def convolve(x, kernel):
    """Stride 1, padding 1: every output pixel is the sum of a window times the kernel."""
    windows = sliding_window_view(np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0))), kernel.shape[:2], axis=(1, 2))
    return np.einsum("mhwcij,ijcf->mhwf", windows, kernel, optimize=True)


def convolve_backward(x, kernel, dz):
    """A pixel of the padded input reaches each output through one entry (i, j) of the kernel."""
    size = kernel.shape[0]
    height, width = dz.shape[1:3]
    padded = np.pad(x, ((0, 0), (1, 1), (1, 1), (0, 0)))
    d_padded, d_kernel = np.zeros_like(padded), np.zeros_like(kernel)
    for i in range(size):
        for j in range(size):
            d_kernel[i, j] = np.tensordot(padded[:, i : i + height, j : j + width], dz, axes=([0, 1, 2], [0, 1, 2]))
            d_padded[:, i : i + height, j : j + width] += dz @ kernel[i, j].T
    return d_padded[:, 1:-1, 1:-1], d_kernel


def pool(x):
    return (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4


def gradient_by_hand(layer_names, weights, images, labels):
    """Of the mean cross entropy of the images. A kernel with four axes is a convolution with ReLU and pooling."""
    x, inputs, outputs = images, [], []
    for name in layer_names:
        kernel, bias = weights[name]["kernel"], weights[name]["bias"]
        if kernel.ndim == 4:
            z = convolve(x, kernel) + bias
            after = pool(np.maximum(z, 0))
        else:
            x = x.reshape(len(x), -1)
            z = x @ kernel + bias
            after = np.maximum(z, 0)
        inputs.append(x)
        outputs.append(z)
        x = after

    # d(-log softmax(z)[y]) / dz is softmax(z) minus 1 at y.
    exponentials = np.exp(outputs[-1] - outputs[-1].max(1, keepdims=True))
    dz = exponentials / exponentials.sum(1, keepdims=True)
    dz[np.arange(len(labels)), labels] -= 1
    dz /= len(labels)

    gradient = {}
    for index in reversed(range(len(layer_names))):
        x, kernel = inputs[index], weights[layer_names[index]]["kernel"]
        if kernel.ndim == 4:
            dx, d_kernel = convolve_backward(x, kernel, dz)
        else:
            dx, d_kernel = dz @ kernel.T, x.T @ dz
        gradient[layer_names[index]] = {"kernel": d_kernel, "bias": dz.sum(tuple(range(dz.ndim - 1)))}
        if index:
            dz = activation_backward(dx, outputs[index - 1])
    return gradient


def activation_backward(dx, z):
    """Back through the pooling of a convolution and the ReLU."""
    if z.ndim == 4:
        pooled = dx.reshape(len(z), z.shape[1] // 2, z.shape[2] // 2, z.shape[3])
        dx = pooled.repeat(2, axis=1).repeat(2, axis=2) / 4
    return dx * (z > 0)


def in_float64(tree):
    return jax.tree.map(lambda array: np.asarray(array, np.float64), tree)


def mean(trees):
    return jax.tree.map(lambda *arrays: sum(arrays) / len(arrays), *trees)


def defended_by_hand(defence, gradients, key, keys, draw):
    """The mean of the examples' gradients after the defence.

    ``key`` is that of the step's draws, ``keys`` those of the examples, ``draw(key)`` what the client draws with one.
    """
    strength, size = defence.strength, len(gradients)
    if defence.name == "gaussian":
        # The mean of one draw per example has the distribution of a single draw of sigma / sqrt(size).
        return jax.tree.map(lambda g, n: g + strength / size**0.5 * n, mean(gradients), draw(key))
    if defence.name == "laplacian":
        return jax.tree.map(lambda g, n: g + strength * n, mean(gradients), mean([draw(k) for k in keys]))
    if defence.name == "pruning":
        return mean([jax.tree.map(np.multiply, g, draw(k)) for g, k in zip(gradients, keys, strict=True)])
    if defence.name == "dp_sgd":
        norms = [np.sqrt(sum((array**2).sum() for array in jax.tree.leaves(g))) for g in gradients]
        assert max(norms) > defence.clip_norm, "nothing was clipped: clipping was not tested"
        scales = [min(1, defence.clip_norm / norm) for norm in norms]
        clipped = [jax.tree.map(partial(np.multiply, scale), g) for g, scale in zip(gradients, scales, strict=True)]
        return jax.tree.map(lambda g, n: g + strength * defence.clip_norm / size * n, mean(clipped), draw(key))
    return mean(gradients)


def update_by_hand(model, start, client, config, order):
    """Algorithm 1: for every epoch, for every batch, one step against the batch's gradient."""
    defence, size = config.defence, config.batch_size
    num_batches = -(-client.num_images // size)
    keys = step_keys(named_key(SEED, "client/defence"), config.epochs, num_batches, independent=defence.independent)
    sample = {"laplacian": laplacian, "pruning": partial(is_kept, defence.strength)}.get(defence.name, normal)
    jitted_draw = jax.jit(lambda key: draw_like(start, key, sample))

    inputs, weights = in_float64(client.inputs), in_float64(start)
    for epoch in range(config.epochs):
        for b in range(num_batches):
            batch = order[epoch, b * size : (b + 1) * size]
            gradients = [gradient_by_hand(model.layer_names, weights, inputs[[i]], client.labels[[i]]) for i in batch]
            gradient = defended_by_hand(
                defence,
                gradients,
                keys[epoch, b],
                jax.random.split(keys[epoch, b], size)[: len(batch)],
                draw=lambda key: in_float64(jitted_draw(key)),
            )
            weights = jax.tree.map(lambda w, g: w - config.learning_rate * g, weights, gradient)
    return weights


def make_client(model, num_images):
    rng = np.random.default_rng(0)
    channels = model.image_shape[-1]
    return wb.ClientData(
        images=rng.random((num_images, *model.image_shape), np.float32),
        labels=rng.integers(model.num_classes, size=num_images),
        class_names=tuple(map(str, range(model.num_classes))),
        normalization=Normalization(mean=(0.5,) * channels, std=(0.3,) * channels),
    )


def assert_equals_numpy(model, config, num_images):
    client, start = make_client(model, num_images), model.init(seed=1)
    observation, secrets = wb.client_update_with_secrets(model, start, client, config, seed=SEED)
    expected = update_by_hand(model, start, client, config, secrets.order)
    for layer, arrays in expected.items():
        for name, array in arrays.items():
            change = np.abs(array - in_float64(start[layer][name])).max()
            error = np.abs(array - in_float64(observation.client_weights[layer][name])).max()
            assert change > 0, f"{layer}/{name} did not change: nothing was tested"
            assert error <= TOLERANCE * change, f"{layer}/{name} is off by {error:.2g}, having moved {change:.2g}"


@pytest.mark.parametrize(("network", "defence"), NETWORKS_AND_DEFENCES)
def test_equals_numpy_with_a_ragged_last_batch(network, defence):
    config = wb.ClientConfig(epochs=2, batch_size=2, learning_rate=0.2, defence=defence)
    assert_equals_numpy(NETWORKS[network], config, num_images=3)


@pytest.mark.parametrize(
    ("num_images", "batch_size", "epochs"),
    [(1, 1, 1), (6, 1, 2), (6, 3, 3), (7, 3, 3), (7, 4, 1), (7, 7, 5), (68, 10, 2)],
    ids=str,
)
@pytest.mark.parametrize("same_batches", [False, True])
def test_equals_numpy_for_any_number_of_images_and_epochs(num_images, batch_size, epochs, same_batches):
    config = wb.ClientConfig(epochs=epochs, batch_size=batch_size, learning_rate=0.1, same_batches=same_batches)
    wide = wb.models.mlp(image_shape=(9, 9, 1), widths=(70,), num_classes=7)
    assert_equals_numpy(wide, config, num_images)


def test_repeated_draws_equal_numpy_in_every_epoch():
    defence = wb.DefenceConfig("gaussian", 0.05, independent=False)
    config = wb.ClientConfig(epochs=3, batch_size=2, learning_rate=0.1, defence=defence)
    assert_equals_numpy(NETWORKS["mlp"], config, num_images=5)


def test_numpy_gradient_is_the_slope_of_the_loss():
    """The oracle itself, against differences of the loss."""
    model = NETWORKS["mlp"]
    client, weights = make_client(model, 4), in_float64(model.init(seed=1))
    inputs = in_float64(client.inputs)

    def loss(weights):
        x = inputs.reshape(4, -1)
        for name in model.layer_names:
            z = x @ weights[name]["kernel"] + weights[name]["bias"]
            x = np.maximum(z, 0)
        return np.mean(np.log(np.exp(z).sum(1)) - z[np.arange(4), client.labels])

    gradient = gradient_by_hand(model.layer_names, weights, inputs, client.labels)
    rng = np.random.default_rng(0)
    direction = jax.tree.map(lambda w: rng.normal(size=w.shape), weights)
    move = lambda step: jax.tree.map(lambda w, d: w + step * d, weights, direction)  # noqa: E731
    slope = (loss(move(1e-6)) - loss(move(-1e-6))) / 2e-6
    expected = sum(jax.tree.leaves(jax.tree.map(lambda g, d: (g * d).sum(), gradient, direction)))
    np.testing.assert_allclose(slope, expected, rtol=1e-6, err_msg="the hand-derived gradient is not the loss's slope")
