"""What the methods have in common, and that the truth is a fixed point of the simulation."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.attack.objective import loss_and_terms
from workbench.attack.prepare import prepare

SEPARATE, SHARED = ("ours_prior", "ours_no_prior"), ("shared",)
MODEL = wb.models.mlp(image_shape=(6, 6, 1), widths=(12,), num_classes=4)


def make_client(num_images, seed=0):
    rng = np.random.default_rng(seed)
    return wb.ClientData(
        images=rng.random((num_images, 6, 6, 1)).astype(np.float32),
        labels=rng.integers(0, 4, num_images),
        class_names=("a", "b", "c", "d"),
        normalization=wb.data.Normalization((0.5,), (0.25,)),
    )


def observe(client, epochs, batch_size, **settings):
    config = wb.ClientConfig(epochs=epochs, batch_size=batch_size, learning_rate=0.1, **settings)
    return wb.client_update_with_secrets(MODEL, MODEL.init(3), client, config, seed=5)


def loss_at(objective, problem, steering, images):
    """The loss and its terms before the first step."""
    started = jnp.zeros(images.shape[:3], jnp.int32)
    return loss_and_terms(objective, problem, steering, jnp.int32(0), images, jnp.zeros_like(images), started)


def value_and_gradient(attack, images):
    """Of the update distance alone: the prior differs by design."""
    phase = attack.phases[-1]
    steering = attack.steering._replace(prior=0.0, tv=0.0, clip=0.0)
    steering = jax.tree.map(np.float32, steering)

    def loss(images):
        return loss_at(phase.objective, phase.problem, steering, images)[0]

    return jax.jit(jax.value_and_grad(loss))(images)


@pytest.mark.parametrize(
    ("epochs", "batch_size", "group"),
    [
        (1, 3, ("ours_prior", "ours_no_prior", "shared")),
        (1, 3, ("fedsgd_epoch", "fedsgd")),
        (1, 7, ("ours_prior", "ours_no_prior", "shared", "fedsgd_epoch", "fedsgd")),
    ],
    ids=["one epoch, simulated batches", "one epoch, whole", "one local step"],
)
def test_methods_agree_where_they_are_the_same(epochs, batch_size, group):
    client = make_client(7)
    observation, _ = observe(client, epochs, batch_size)
    images = jnp.asarray(np.random.default_rng(1).normal(size=(1, 1, 7, 6, 6, 1)), jnp.float32)
    results = {}
    for method in group:
        attack = prepare(MODEL, observation, wb.AttackConfig(method=method), label_counts=client.label_counts)
        results[method] = value_and_gradient(attack, images)
    value, gradient = results[group[0]]
    for method, (other_value, other_gradient) in results.items():
        np.testing.assert_allclose(other_value, value, rtol=1e-4, err_msg=f"the loss of {method}")
        np.testing.assert_allclose(
            other_gradient, gradient, atol=1e-4 * np.abs(gradient).max(), err_msg=f"the gradient of {method}"
        )


def true_distance(attack, images):
    """The update distance at the given images, relative to that at nothing learned: the size of the update."""
    phase = attack.phases[-1]
    steering = jax.tree.map(np.float32, attack.steering)
    nothing = replace(phase.problem, gradient_sum=jax.tree.map(np.zeros_like, phase.problem.gradient_sum))

    @jax.jit
    def distance(problem):
        return loss_at(phase.objective, problem, steering, images)[1].update

    return float(distance(phase.problem)) / float(distance(nothing))


@pytest.mark.parametrize("batch_size", [3, 4, 12], ids=["even batches", "ragged batches", "one batch"])
def test_truth_is_a_fixed_point_of_separate_images(batch_size):
    client = make_client(12 if batch_size != 4 else 10)
    observation, secrets = observe(client, 3, batch_size)
    attack = prepare(MODEL, observation, wb.AttackConfig(), batch_labels=client.labels[secrets.order])
    distance = true_distance(attack, jnp.asarray(client.inputs[secrets.order])[None])
    assert distance < 1e-9, f"the client's own images and batches leave {distance:.1e} of the update unexplained"


def test_truth_is_a_fixed_point_of_the_papers_network():
    """At its learning rate, where the update is small beside the weights and rounding counts most."""
    model, client = wb.models.femnist_cnn(), wb.load_dataset("glyphs").client(0, num_images=5)
    config = wb.ClientConfig(epochs=2, batch_size=2)
    observation, secrets = wb.client_update_with_secrets(model, model.init(), client, config)
    attack = prepare(model, observation, wb.AttackConfig(), batch_labels=client.labels[secrets.order])
    distance = true_distance(attack, jnp.asarray(client.inputs[secrets.order])[None])
    assert distance < 1e-9, f"the client's own images and batches leave {distance:.1e} of the update unexplained"


@pytest.mark.parametrize("same_batches", [True, False])
def test_truth_is_a_fixed_point_of_shared_images(same_batches):
    client = make_client(10)
    observation, secrets = observe(client, 3, 4, same_batches=same_batches)
    config = wb.AttackConfig(method="shared")
    attack = prepare(MODEL, observation, config, batch_labels=client.labels[secrets.order], image_order=secrets.order)
    distance = true_distance(attack, jnp.asarray(client.inputs)[None, None])
    assert distance < 1e-9, f"with the known order, {distance:.1e} of the update is unexplained"


def test_truth_is_a_fixed_point_of_fedsgd_for_one_step():
    client = make_client(6)
    observation, secrets = observe(client, 1, 6)
    attack = prepare(MODEL, observation, wb.AttackConfig(method="fedsgd"), batch_labels=client.labels[secrets.order])
    distance = true_distance(attack, jnp.asarray(client.inputs[secrets.order])[None])
    assert distance < 1e-9, f"one gradient leaves {distance:.1e} of the update unexplained"


def test_truth_is_a_fixed_point_of_an_aggregate():
    clients = [make_client(6, seed) for seed in (0, 1)]
    observed = [observe(client, 2, 3) for client in clients]
    both = wb.aggregate([observation for observation, _ in observed])
    orders = [secrets.order for _, secrets in observed]
    labels = np.stack([client.labels[order] for client, order in zip(clients, orders, strict=True)])
    images = np.stack([client.inputs[order] for client, order in zip(clients, orders, strict=True)])
    attack = prepare(MODEL, both, wb.AttackConfig(), batch_labels=labels)
    distance = true_distance(attack, jnp.asarray(images))
    assert distance < 1e-9, f"both clients' own images leave {distance:.1e} of their mean update unexplained"


def known_batches(num_images=7, epochs=3):
    """A client whose batches are known, with labels that repeat and move from epoch to epoch."""
    client = make_client(num_images, seed=4)
    observation, secrets = observe(client, epochs, 3)
    labels = client.labels[secrets.order]
    assert len(set(client.labels.tolist())) < num_images, "an image should share its label with another"
    assert (labels != labels[0]).any(), "the labels should move"
    return client, observation, secrets.order, labels


@pytest.mark.parametrize("method", ["shared", "fedsgd_epoch", "fedsgd", "surrogate"])
def test_an_image_keeps_its_label_where_labels_move_between_epochs(method):
    """With one set of images, known batches may not give an image one label in this epoch and another in the next."""
    client, observation, order, labels = known_batches()
    config = wb.AttackConfig(method=method)
    by_image = prepare(MODEL, observation, config, batch_labels=labels, image_order=order)
    by_position = prepare(MODEL, observation, config, batch_labels=labels)
    images = np.random.default_rng(0).normal(size=client.images.shape).astype(np.float32)
    if method == "shared":
        used = np.asarray(by_position.phases[0].problem.known.order[0])
        np.testing.assert_array_equal(labels[0][used], labels, "an image stands where another label is known")
        np.testing.assert_array_equal(used[0], np.arange(len(images)), "the first epoch's order is that of the images")
    else:
        # These use no batches: who stands where in the first epoch is only a matter of counting.
        found, right = (
            value_and_gradient(attack, jnp.asarray(own)[None, None])
            for attack, own in ((by_position, images[order[0]]), (by_image, images))
        )
        np.testing.assert_allclose(found[0], right[0], rtol=1e-5)
        found_gradient, right_gradient = np.asarray(found[1])[0, 0], np.asarray(right[1])[0, 0][order[0]]
        np.testing.assert_allclose(found_gradient, right_gradient, atol=1e-5 * np.abs(right_gradient).max())
    np.testing.assert_array_equal(by_image.reconstruct(by_image.start()).labels, client.labels)
    np.testing.assert_array_equal(by_position.reconstruct(by_position.start()).labels, labels[0])


@pytest.mark.parametrize("knows_order", [False, True])
def test_a_warm_start_hands_every_image_to_places_with_its_label(knows_order):
    client, observation, order, labels = known_batches()
    known = {"image_order": order} if knows_order else {}
    config = wb.AttackConfig(warm_start_steps=2, warm_start_noise=0.0)
    attack = prepare(MODEL, observation, config, batch_labels=labels, **known)
    warm, _ = attack.advance(attack.start(), attack.steering, 2)
    image_labels = attack.reconstruct(warm).labels
    np.testing.assert_array_equal(image_labels, client.labels if knows_order else labels[0])
    started = np.asarray(attack.prepare_step(warm, attack.steering).images)[0]
    images = np.asarray(warm.images)[0, 0]
    for epoch, (own, right) in enumerate(zip(started, labels, strict=True)):
        source = [int(np.flatnonzero((images == image).all((1, 2, 3)))[0]) for image in own]
        assert sorted(source) == list(range(len(images))), f"epoch {epoch} does not start from every image once"
        np.testing.assert_array_equal(image_labels[source], right, f"epoch {epoch} puts images where others belong")
        if knows_order:
            np.testing.assert_array_equal(source, order[epoch], f"epoch {epoch} does not follow the known order")


@pytest.mark.parametrize("astray", [100.0, np.nan])
def test_a_warm_start_that_explains_the_update_worse_than_noise_is_left_out(astray):
    client, observation, _, _ = known_batches()
    attack, cold = (
        prepare(MODEL, observation, wb.AttackConfig(warm_start_steps=steps), label_counts=client.label_counts)
        for steps in (2, 0)
    )
    warm, _ = attack.advance(attack.start(), attack.steering, 2)
    noise = np.asarray(cold.start().images)
    kept = attack.prepare_step(warm, attack.steering)
    assert not np.array_equal(kept.images, noise), "a warm start that helps must be used"
    dropped = attack.prepare_step(warm._replace(images=warm.images * astray), attack.steering)
    np.testing.assert_array_equal(dropped.images, noise, "the start must be that of an attack without a warm start")
    assert int(dropped.step) == 2
