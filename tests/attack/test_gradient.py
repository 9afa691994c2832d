"""The gradient through the simulated training, against two oracles that share no code with the workbench.

The first is plain reverse mode through an unrolled Python loop over batches, with network, training and loss written
out again below; the second is central finite differences. Everything is in float64, where agreement means agreement.
"""

from functools import cache, cached_property, partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax

import workbench as wb
from workbench.attack.attack import Custom
from workbench.attack.objective import Steering, loss_and_terms
from workbench.attack.prepare import prepare
from workbench.data import Normalization
from workbench.training import chain
from workbench.training import sgd as training
from workbench.training.chain import Layer
from workbench.training.model import Model

# The largest errors measured are 7e-15 and 3e-8 of the largest entry: the bounds leave room for other processors. A
# step forgotten, or a factor, is off by far more than either.
EXACT, DIFFERENCES = 1e-12, 1e-6
# The gradient jumps where a ReLU switches, and a difference that steps over such a place says nothing about it. The
# smaller the step, the fewer are stepped over: none of the seeds here meets one with directions of length 1 for every
# array and steps of 1e-7, where rounding still leaves seven digits.
NUDGE = 1e-7

# Compiling takes most of the time here, and half of that would go into making fast what runs once.
quick_jit = partial(
    jax.jit, compiler_options={"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
)

STEERING = Steering(update=0.7, prior=3.0, tv=0.05, clip=0.8, consensus=0.4, custom=0.3, step_size=0.1)


def small_cnn(second_kernel):
    """The paper's networks with few channels: 3 is the second convolution as used, 1 as printed."""
    side = (4 + 3 - second_kernel) // 2
    layers = (
        Layer("Conv_0", (3, 3, 2, 3), padding=1, pool=True),
        Layer("Conv_1", (second_kernel, second_kernel, 3, 4), padding=1, pool=True),
        Layer("Dense_0", (side * side * 4, 7)),
        Layer("last_layer", (7, 5), relu=False),
    )
    return Model(
        name="small_cnn",
        image_shape=(8, 8, 2),
        num_classes=5,
        layer_names=tuple(layer.name for layer in layers),
        init=lambda seed=0: random_weights({layer.name: layer.kernel_shape for layer in layers}, seed),
        apply=partial(chain.logits, layers),
        features=partial(chain.features, layers),
        chain=layers,
    )


def own_model():
    """Smooth, with a skip connection and without biases: nothing that a chain of layers could express."""

    def features(weights, images):
        x = images.reshape(len(images), -1)
        hidden = jnp.tanh(x @ weights["first"]["kernel"])
        return jnp.concatenate([hidden, jnp.sin(x)], axis=1)

    return Model(
        name="own",
        image_shape=(3, 4, 1),
        num_classes=5,
        layer_names=("first", "head"),
        init=lambda seed=0: {
            name: {"kernel": arrays["kernel"]}
            for name, arrays in random_weights({"first": (12, 6), "head": (18, 5)}, seed).items()
        },
        apply=lambda weights, images: features(weights, images) @ weights["head"]["kernel"],
        features=features,
    )


def random_weights(kernel_shapes, seed):
    """Biases are random too: zeros would hide a forgotten one, and sit on a ReLU's edge where a picture is padded."""
    rng = np.random.default_rng(seed)
    return {
        name: {
            "kernel": jnp.asarray(rng.normal(size=shape, scale=np.prod(shape[:-1]) ** -0.5), jnp.float32),
            "bias": jnp.asarray(rng.normal(size=shape[-1], scale=0.3), jnp.float32),
        }
        for name, shape in kernel_shapes.items()
    }


def weights_of(model):
    if model.chain is None:
        return model.init()
    return random_weights({layer.name: layer.kernel_shape for layer in model.chain}, seed=0)


SMALL = {
    "cnn": small_cnn(3),
    "cnn_printed": small_cnn(1),
    "mlp": wb.models.mlp((3, 4, 1), (8, 6), 7),
    "own": own_model(),
}
REAL = {
    "femnist_cnn": wb.models.femnist_cnn(),
    "cifar100_cnn": wb.models.cifar100_cnn(),
    "femnist_cnn_printed": wb.models.femnist_cnn_printed(),
    "cifar100_cnn_printed": wb.models.cifar100_cnn_printed(),
}


@pytest.fixture(autouse=True)
def in_float64():
    # The workbench's constants are float32, exactly representable, and become float64 by promotion.
    with jax.enable_x64(True), jax.numpy_dtype_promotion("standard"):
        yield


def double(tree):
    return jax.tree.map(lambda a: in_double(np.asarray(a)), tree)


def in_double(array):
    """Converted by NumPy: JAX would compile a conversion for every shape."""
    return jnp.asarray(array.astype(np.float64) if np.issubdtype(array.dtype, np.floating) else array)


# --- The oracle: network, local training, and the attack's loss, written out from the paper and its released facts.


def reference_logits(model, weights, images):
    if model.name == "own":
        return model.apply(weights, images)
    x = images
    for name in model.layer_names:
        kernel, bias = weights[name]["kernel"], weights[name]["bias"]
        if kernel.ndim == 4:
            x = lax.conv_general_dilated(
                x, kernel, (1, 1), [(1, 1), (1, 1)], dimension_numbers=("NHWC", "HWIO", "NHWC")
            )
        else:
            x = x.reshape(len(x), -1) @ kernel
        x = x + jnp.broadcast_to(bias, x.shape)
        if name != model.layer_names[-1]:
            x = jax.nn.relu(x)
        if kernel.ndim == 4:
            x = (x[:, ::2, ::2] + x[:, 1::2, ::2] + x[:, ::2, 1::2] + x[:, 1::2, 1::2]) / 4
    return x


def reference_gradient(model, weights, images, labels):
    """Of the mean cross entropy of a batch."""

    def loss(weights):
        log_probabilities = jax.nn.log_softmax(reference_logits(model, weights, images))
        return -log_probabilities[jnp.arange(len(labels)), labels].mean()

    return jax.grad(loss)(weights)


def descend(weights, gradient, rate):
    return jax.tree.map(lambda w, g: w - rate * g, weights, gradient)


def reference_training(model, weights, images, labels, batch_size, rate):
    """Images [E, N, ...] and labels [E, N]: one epoch after another, one batch after another, the last one ragged."""
    for epoch, epoch_labels in zip(images, labels, strict=True):
        for first in range(0, len(epoch), batch_size):
            batch = slice(first, first + batch_size)
            weights = descend(weights, reference_gradient(model, weights, epoch[batch], epoch_labels[batch]), rate)
    return weights


def reference_update(simulation, client, index, images):
    """The sum of gradients of client ``index``, from its variables [V, N, ...]."""
    model, server, rate = simulation.model, client.server_weights, client.rate
    method, schedule = simulation.method.name, simulation.schedule
    labels, steps = client.labels[index], schedule.epochs * -(-schedule.num_images // schedule.batch_size)
    if method == "surrogate":
        # The two Gauss-Legendre nodes of [0, 1], each with weight 1/2.
        total = jax.tree.map(jnp.zeros_like, server)
        for t in (0.5 - 0.5 / 3**0.5, 0.5 + 0.5 / 3**0.5):
            between = jax.tree.map(lambda s, c, t=t: (1 - t) * s + t * c, server, client.client_weights)
            total = descend(total, reference_gradient(model, between, images[0], labels[0]), -steps / 2)
        return total
    if method == "fedsgd":
        return jax.tree.map(lambda g: steps * g, reference_gradient(model, server, images[0], labels[0]))
    weights = server
    if method == "fedsgd_epoch":
        for _ in range(schedule.epochs):
            gradient = reference_gradient(model, weights, images[0], labels[0])
            weights = descend(weights, gradient, rate * steps / schedule.epochs)
    else:
        if method == "shared":
            same = range(schedule.num_images)
            order = [same] * schedule.epochs if client.order is None else client.order[index]
            images = jnp.stack([images[0][jnp.asarray(where)] for where in order])
        weights = reference_training(model, weights, images, labels, schedule.batch_size, rate)
    return jax.tree.map(lambda s, w: (s - w) / rate, server, weights)


def reference_summary(name, filters, images):
    if name.startswith("conv+"):
        images = lax.conv_general_dilated(images, filters, (1, 1), "SAME", dimension_numbers=("NHWC", "HWIO", "NHWC"))
    return images.mean(0) if name.endswith("mean") else images.max(0)


def reference_loss(objective, problem, steering, progress, images, consensus):
    simulation = objective.simulation
    updates = [reference_update(simulation, problem.known, index, own) for index, own in enumerate(images)]
    update = jax.tree.map(lambda *parts: sum(parts) / len(parts), *updates)
    layers = [
        (problem.gradient_sum[name][array], update[name][array], index)
        for index, name in enumerate(simulation.model.layer_names)
        for array in update[name]
    ]
    if objective.distance == "cosine":
        product, true, found = (
            sum((x * y).sum() for x, y in pairs)
            for pairs in (
                [(a, b) for a, b, _ in layers],
                [(a, a) for a, _, _ in layers],
                [(b, b) for _, b, _ in layers],
            )
        )
        distance = 1 - product / (true**0.5 * found**0.5)
    else:
        decay = 1.0 if objective.distance == "layer_weighted_l2" else 0.0
        num_batches = -(-simulation.schedule.num_images // simulation.schedule.batch_size)
        distance = sum(np.exp(-decay * index) * ((a - b) ** 2).sum() for a, b, index in layers)
        distance = distance / (num_batches * images.shape[1])
    first, later = problem.update_weight
    loss = steering.update * first ** (1 - progress) * later**progress * distance

    if simulation.method.name == "ours_prior":
        summary = partial(reference_summary, objective.prior, problem.filters)
        power = {"l1": 1, "l2": 2}[objective.prior_distance]
        pairs = [
            (jnp.abs(summary(one) - summary(other)) ** power).mean() for own in images for one in own for other in own
        ]
        loss = loss + steering.prior * sum(pairs) / len(pairs)

    flat = images.reshape(-1, *images.shape[-3:])
    right, below = jnp.roll(flat, -1, axis=2), jnp.roll(flat, -1, axis=1)
    loss = loss + steering.tv * ((flat - right) ** 2 + (flat - below) ** 2).sum() / len(flat)
    pixels = flat * jnp.broadcast_to(problem.std, flat.shape) + jnp.broadcast_to(problem.mean, flat.shape)
    outside = jnp.where(pixels > 1, pixels - 1, 0.0) + jnp.where(pixels < 0, pixels, 0.0)
    loss = loss + steering.clip * (outside**2).sum() / len(flat)
    loss = loss + steering.consensus * ((images - consensus) ** 2).mean()
    if objective.regularizer is not None:
        loss = loss + steering.custom * objective.regularizer(images)
    return loss


# --- Comparisons.


# In NumPy, because JAX would compile every operation for every shape.


def on_host(tree):
    return jax.tree.map(np.asarray, tree)


def assert_same(found, right, bound, what):
    leaves = dict(jax.tree_util.tree_leaves_with_path(on_host(found)))
    for path, one in jax.tree_util.tree_leaves_with_path(on_host(right)):
        other = leaves[path]
        assert other.dtype == np.float64, f"{what} was not computed in float64"
        size, error = np.abs(one).max(), np.abs(one - other).max()
        assert size > 0, f"{what}{jax.tree_util.keystr(path)} is all zero: nothing was tested"
        assert error <= bound * size, f"{what}{jax.tree_util.keystr(path)} is off by {error / size:.1e} of its size"


def inner_product(first, second):
    return sum(jax.tree.leaves(jax.tree.map(lambda a, b: (a * b).sum(), first, second)))


def unit(array):
    return array / np.linalg.norm(array)


def assert_matches_differences(value_and_grad, at):
    """The slope in two random directions, of the whole tree at once."""
    rng, at, gradient = np.random.default_rng(0), on_host(at), on_host(value_and_grad(at)[1])
    for _ in range(2):
        direction = jax.tree.map(lambda a: unit(rng.normal(size=a.shape)), at)
        above, below = (
            float(value_and_grad(jax.tree.map(lambda a, d, h=h: a + h * d, at, direction))[0]) for h in (NUDGE, -NUDGE)
        )
        measured = (above - below) / (2 * NUDGE)
        size = sum(np.linalg.norm(g) for g in jax.tree.leaves(gradient))
        error = abs(float(inner_product(gradient, direction)) - measured)
        assert error <= DIFFERENCES * size, f"the gradient misses the slope by {error / size:.1e} of its size"


class TrainingCase:
    """`sgd` on some network and batches, with a number made of its result: a random projection of the weights."""

    rate = 0.3  # Large, so that what every step does to the next is far above the bounds.

    def __init__(self, model, epochs, num_images, batch_size):
        rng = np.random.default_rng(1)
        self.model, self.batch_size = model, batch_size
        self.labels = jnp.asarray(rng.integers(model.num_classes, size=(epochs, num_images)))
        self.share = training.batch_share(epochs, num_images, batch_size)
        weights = double(weights_of(model))
        self.cotangent = jax.tree.map(lambda a: jnp.asarray(rng.normal(size=a.shape)), weights)
        self.start = weights, jnp.asarray(rng.normal(size=(epochs, num_images, *model.image_shape)))

    def batches(self, images):
        return training.Batches(*(training.in_batches(a, self.batch_size) for a in (images, self.labels)), self.share)

    def ours(self, start, cotangent, segments=1):
        weights, images = start
        end = training.sgd(self.model, weights, self.batches(images), jnp.float64(self.rate), segments)
        return inner_product(end, cotangent)

    def right(self, start, cotangent):
        weights, images = start
        end = reference_training(self.model, weights, images, self.labels, self.batch_size, self.rate)
        return inner_product(end, cotangent)

    @cached_property
    def expected(self):
        return quick_jit(jax.value_and_grad(self.right))(self.start, self.cotangent)

    def assert_exact(self, segments=1, with_differences=False, jit=quick_jit):
        """The result, and its derivatives in the weights and the images."""
        ours = jit(jax.value_and_grad(partial(self.ours, segments=segments)))
        assert_same(ours(self.start, self.cotangent), self.expected, EXACT, "sgd")
        if with_differences:
            assert_matches_differences(lambda start: ours(start, self.cotangent), self.start)


@cache
def training_case(network, epochs, num_images):
    return TrainingCase((SMALL | REAL)[network], epochs, num_images, batch_size=2)


@pytest.mark.parametrize("network", ["cnn", "own"])
def test_training_with_ragged_batches(network):
    training_case(network, epochs=2, num_images=3).assert_exact(with_differences=True)


@pytest.mark.parametrize(
    "network",
    [
        "femnist_cnn",
        pytest.param("cifar100_cnn", marks=pytest.mark.slow),
        pytest.param("femnist_cnn_printed", marks=pytest.mark.slow),
        pytest.param("cifar100_cnn_printed", marks=pytest.mark.slow),
    ],
)
def test_training_of_the_papers_networks(network):
    training_case(network, epochs=2, num_images=2).assert_exact(with_differences=True, jit=jax.jit)


@pytest.mark.parametrize(
    ("network", "segments"), [("cnn", 2), pytest.param("cnn", 4, marks=pytest.mark.slow), ("own", 2), ("own", 4)]
)
def test_training_in_segments(network, segments):
    training_case(network, epochs=2, num_images=3).assert_exact(segments)


def attack_case(network, num_clients=1, known_order=False, num_images=3, **settings):
    """An attack's objective and problem in float64, and where to differentiate: images and consensus."""
    model, rng = SMALL[network], np.random.default_rng(2)
    channels = model.image_shape[-1]
    server = weights_of(model)
    observation = wb.Observation(
        server_weights=server,
        client_weights=jax.tree.map(lambda a: np.float32(a + 0.1 * rng.normal(size=a.shape)), on_host(server)),
        image_shape=model.image_shape,
        num_classes=model.num_classes,
        normalization=Normalization(mean=(0.5,) * channels, std=(0.3,) * channels),
        num_images=num_images,
        epochs=2,
        batch_size=2,
        learning_rate=0.3,
        num_clients=num_clients,
    )
    labels = rng.integers(model.num_classes, size=(num_clients, num_images))
    known = {"label_counts": np.stack([np.bincount(own, minlength=model.num_classes) for own in labels])}
    if known_order:
        order = rng.permuted(np.tile(np.arange(num_images), (num_clients, 2, 1)), axis=-1)
        by_position = np.stack([own[where] for own, where in zip(labels, order, strict=True)])
        known = {"batch_labels": by_position, "image_order": order}
    config = wb.AttackConfig(update_weight=(1.5, 0.4), update_weight_steps=20, warm_start_steps=3, **settings)
    with jax.enable_x64(False):
        custom = Custom(regularizer=lambda images: (images**4).mean())
        attack = prepare(model, observation, config, custom=custom, **known)
    phase = attack.phases[-1]
    shape = (num_clients, phase.objective.simulation.num_variable_epochs, num_images, *model.image_shape)
    images, consensus = (jnp.asarray(rng.normal(size=shape)) for _ in range(2))
    return phase.objective, double(phase.problem), images, consensus


@pytest.mark.parametrize(
    ("network", "settings"),
    [
        ("cnn", {"method": "ours_prior"}),
        ("mlp", {"method": "ours_prior", "prior": "conv+max", "prior_distance": "l1", "num_clients": 2}),
        ("own", {"method": "ours_prior", "prior": "max", "distance": "cosine", "low_memory": True}),
        ("own", {"method": "ours_prior", "prior": "conv+mean", "prior_distance": "l1"}),
        ("mlp", {"method": "ours_no_prior", "distance": "l2"}),
        ("cnn_printed", {"method": "shared"}),
        ("mlp", {"method": "shared", "known_order": True, "num_clients": 2}),
        ("cnn", {"method": "fedsgd_epoch"}),
        ("own", {"method": "fedsgd_epoch", "num_clients": 2}),
        ("cnn", {"method": "fedsgd"}),
        ("own", {"method": "surrogate", "num_clients": 2}),
    ],
    ids=lambda case: case if isinstance(case, str) else "-".join(map(str, case.values())),
)
def test_the_whole_loss_of_every_method(network, settings):
    objective, problem, images, consensus = attack_case(network, **settings)
    steps_into_phase = 7

    step = problem.first_step + steps_into_phase

    def ours(images):
        return loss_and_terms(
            objective, problem, STEERING, step, images, consensus, jnp.zeros(images.shape[:3], jnp.int32)
        )

    def right(images):
        return reference_loss(objective, problem, STEERING, steps_into_phase / 20, images, consensus)

    ours = quick_jit(jax.value_and_grad(ours, has_aux=True))
    (loss, terms), gradient = ours(images)
    assert float(sum(terms)) == pytest.approx(float(loss)), "the terms do not sum to the loss"
    assert_same((loss, gradient), quick_jit(jax.value_and_grad(right))(images), EXACT, objective.simulation.method.name)
    assert_matches_differences(lambda images: (ours(images)[0][0], ours(images)[1]), images)
