"""Stepping: no compilation that is not needed, no dependence on how steps are divided, an orderly end to divergence."""

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import workbench as wb
from workbench.attack import step as engine
from workbench.attack.attack import Custom
from workbench.attack.objective import loss_and_terms
from workbench.attack.prepare import prepare
from workbench.attack.search import beliefs, search_epochs
from workbench.training.sgd import Batches, sgd

MODEL = wb.models.mlp(image_shape=(6, 6, 1), widths=(12,), num_classes=4)
CONFIG = wb.AttackConfig(
    steps=30, warm_start_steps=7, consensus_weight=2.0, consensus_start=4, consensus_every=5, step_size=0.05
)


def make_client(seed=0, num_images=6):
    rng = np.random.default_rng(seed)
    return wb.ClientData(
        rng.random((num_images, 6, 6, 1)),
        rng.integers(0, 4, num_images),
        tuple("abcd"),
        wb.data.Normalization((0.5,), (0.25,)),
    )


def make_attack(seed=0, config=CONFIG, learning_rate=0.1, **options):
    client = make_client(seed)
    training = wb.ClientConfig(epochs=3, batch_size=2, learning_rate=learning_rate)
    observation = wb.client_update(MODEL, MODEL.init(1), client, training)
    return prepare(MODEL, observation, config, label_counts=client.label_counts, **options)


def states_equal(a, b):
    return all(np.array_equal(x, y) for x, y in zip(jax.tree.leaves(a), jax.tree.leaves(b), strict=True))


def test_steering_and_other_clients_compile_nothing_again():
    attack = make_attack()
    state, _ = attack.advance(attack.start(), attack.steering, 30)
    compiled = engine.run._cache_size()
    for change in range(1, 11):
        steering = attack.steering._replace(
            update=1.0 * change, prior=10.0 * change, tv=0.1 * change, clip=0.2 * change, step_size=0.01 * change
        )
        state, _ = attack.advance(state, steering, change)
    for other in (
        make_attack(seed=1),
        make_attack(learning_rate=0.05),
        make_attack(config=replace(CONFIG, steps=9, step_decay=0.5, update_weight=(3.0, 4.0), update_weight_steps=7)),
    ):
        other.advance(other.start(), other.steering, 20)
    assert engine.run._cache_size() == compiled, "a change of numbers alone compiled the step again"


def test_the_computation_does_not_grow_with_the_local_steps():
    def size(num_steps):
        batches = Batches(
            np.zeros((num_steps, 2, 6, 6, 1), np.float32),
            np.zeros((num_steps, 2), np.int32),
            np.ones((num_steps, 2), np.float32),
        )

        def loss(images):
            final = sgd(MODEL, MODEL.init(0), batches._replace(images=images), np.float32(0.1))
            return final["last_layer"]["bias"].sum()

        return str(jax.make_jaxpr(jax.grad(loss))(batches.images)).count(" = ")

    assert size(500) == size(10), "the traced program grows with the number of local steps"


@pytest.mark.parametrize("chunks", [[1] * 37, [37], [5, 1, 20, 11], [7, 4, 26]], ids=str)
def test_how_steps_are_divided_does_not_matter(chunks):
    attack = make_attack()
    whole, infos = attack.advance(attack.start(), attack.steering, 37)
    state, losses = attack.start(), []
    for chunk in chunks:
        state, part = attack.advance(state, attack.steering, chunk)
        losses.append(part.loss)
    assert states_equal(state, whole), f"{chunks} steps ended elsewhere than 37 at once"
    np.testing.assert_array_equal(np.concatenate(losses), infos.loss)


def test_one_seed_one_run():
    states = [a.advance(a.start(), a.steering, 12)[0] for a in (make_attack(), make_attack())]
    assert states_equal(*states)
    other = replace(make_attack(), seed=1)
    assert not states_equal(states[0], other.advance(other.start(), other.steering, 12)[0])


def test_a_diverging_run_keeps_the_last_finite_state():
    attack = make_attack()
    state, _ = attack.advance(attack.start(), attack.steering, 10)
    state, infos = attack.advance(state, attack.steering._replace(step_size=1e30), 20)
    made = len(infos.loss)
    assert 0 < made < 20, f"{made} of 20 steps made with a step size of 1e30"
    assert int(state.step) == 10 + made
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(state)), "the kept state must be finite"


def test_a_number_that_is_not_finite_ends_the_run_before_the_step_that_made_it():
    def update(gradient, count, _):
        return jnp.where(count < 5, -1e-3 * gradient, jnp.nan), count + 1

    broken = optax.GradientTransformation(lambda _: jnp.int32(0), update)
    attack = make_attack(config=replace(CONFIG, warm_start_steps=0), custom=Custom(optimizer=broken))
    before, _ = attack.advance(attack.start(), attack.steering, 5)
    state, infos = attack.advance(attack.start(), attack.steering, 20)
    assert len(infos.loss) == int(state.step) == 5, "the sixth step made the images NaN"
    assert states_equal(state, before), "the last good state is the one before it"
    _, infos = attack.advance(state, attack.steering, 3)
    assert len(infos.loss) == 0, "there is no way on from here"


def test_a_run_of_no_steps_is_refused():
    attack = make_attack()
    with pytest.raises(wb.ConfigError, match="num_steps = 0"):
        attack.advance(attack.start(), attack.steering, 0)


def test_any_optax_optimiser_and_custom_terms_are_used():
    def shrink(images):
        return (images**2).mean()

    own = make_attack(
        config=replace(CONFIG, warm_start_steps=0, step_size=1.0, step_decay=1.0, consensus_weight=0.0),
        custom=Custom(prior=lambda images: images.max(0), regularizer=shrink, optimizer=optax.sgd(1e-3)),
    )
    state, infos = own.advance(own.start(), own.steering, 5)
    assert infos.terms.custom[0] == pytest.approx(1, rel=0.3), "the custom term is the mean square of N(0, 1) images"
    assert infos.terms.prior[0] > 0
    assert int(state.step) == 5


def test_low_memory_gives_the_same_step():
    normal, low = (make_attack(config=replace(CONFIG, warm_start_steps=0, low_memory=m)) for m in (False, True))
    assert low.phases[-1].objective.simulation.segments == 3
    assert normal.phases[-1].objective.simulation.segments == 1
    a, b = (attack.advance(attack.start(), attack.steering, 3)[0].images for attack in (normal, low))
    np.testing.assert_allclose(a, b, atol=1e-4)


@pytest.fixture
def hopeless():
    """An update so large that its distance overflows at the first step."""
    training = wb.ClientConfig(epochs=2, batch_size=3, learning_rate=0.1)
    observation = wb.client_update(MODEL, MODEL.init(1), make_client(), training)
    return replace(observation, client_weights=jax.tree.map(lambda a: a + 1e30, observation.client_weights))


def test_a_belief_that_diverges_comes_last(hopeless):
    options = {"candidates": beliefs(6, 4)[:1], "label_counts": [1, 1, 2, 2]}
    ranked = search_epochs(MODEL, hopeless, wb.AttackConfig(steps=2), **options)
    assert [belief.loss for belief in ranked] == [float("inf")]


def test_beliefs_are_the_ways_to_make_the_observed_steps():
    for num_images, local_steps in ((50, 50), (50, 100), (7, 6), (10, 12)):
        for belief in beliefs(num_images, local_steps):
            assert belief.epochs * -(-num_images // belief.batch_size) == local_steps
    assert (5, 5) in [belief[:2] for belief in beliefs(50, 50)]
    # 7 images in batches of 3 without the ragged last one: 2 steps an epoch.
    assert (2, 3) in [belief[:2] for belief in beliefs(7, 4, drop_last=True)]


def test_the_search_for_epochs_ranks_by_the_visible_loss():
    client = make_client(num_images=2)
    training = wb.ClientConfig(epochs=2, batch_size=2, learning_rate=0.2)
    observation = wb.client_update(MODEL, MODEL.init(1), client, training)
    config = wb.AttackConfig(steps=20, step_size=0.05)
    ranked = search_epochs(MODEL, observation, config, label_counts=client.label_counts)
    assert [belief.loss for belief in ranked] == sorted(belief.loss for belief in ranked)
    assert {belief[:2] for belief in ranked} == {(1, 1), (2, 2)}


@pytest.mark.parametrize(
    ("method", "num_images", "num_beliefs"),
    [
        ("shared", 2, 2),
        ("fedsgd_epoch", 2, 2),
        ("fedsgd", 2, 2),
        # Every belief is compiled anew.
        pytest.param("shared", 6, 4, marks=pytest.mark.slow),
        pytest.param("fedsgd_epoch", 6, 4, marks=pytest.mark.slow),
        pytest.param("fedsgd", 6, 4, marks=pytest.mark.slow),
    ],
)
def test_beliefs_are_compared_by_the_same_measure(method, num_images, num_beliefs):
    """To first order every belief makes the same update of the same images, so none may look better by its form."""
    client = make_client(num_images=num_images)
    observation = wb.client_update(MODEL, MODEL.init(1), client, wb.ClientConfig(2, 2, learning_rate=1e-3))
    config = wb.AttackConfig(method=method, steps=1)
    ranked = search_epochs(MODEL, observation, config, label_counts=client.label_counts)
    assert len(ranked) == num_beliefs
    assert ranked[-1].loss < 1.1 * ranked[0].loss, f"{method}: {ranked}"


def test_a_step_is_adam_with_a_step_size_that_decays():
    """The published optimiser, written out in NumPy; in a new phase it starts afresh, and so do the schedules."""
    config = replace(CONFIG, method="shared", warm_start_steps=3, step_decay=0.5, step_decay_every=2)
    attack = make_attack(config=config)
    state, infos = attack.advance(attack.start(), attack.steering, 3)
    expected = [0.05 * 0.5 ** (step / 2) for step in (0, 1, 2)]
    np.testing.assert_allclose(infos.step_size, expected, rtol=1e-5, err_msg="the first phase")
    state = attack.prepare_step(state, attack.steering)
    # One set of images has nobody to agree with: the step leaves the consensus out.
    phase, steering = attack.phases[1], jax.tree.map(np.float32, attack.steering._replace(consensus=0.0))

    @jax.jit
    def gradient(step, images):
        fixed = {"consensus": state.consensus, "started": state.started}
        loss = partial(loss_and_terms, phase.objective, phase.problem, steering, step, **fixed)
        return jax.grad(loss, has_aux=True)(images)[0]

    images, mean, square = np.asarray(state.images, np.float64), 0.0, 0.0
    for step in range(4):
        g = np.asarray(gradient(jnp.int32(3 + step), jnp.asarray(images, jnp.float32)), np.float64)
        mean, square = 0.9 * mean + 0.1 * g, 0.999 * square + 0.001 * g**2
        direction = mean / (1 - 0.9 ** (step + 1)) / (np.sqrt(square / (1 - 0.999 ** (step + 1))) + 1e-8)
        images = images - 0.05 * 0.5 ** (step / 2) * direction
    state, infos = attack.advance(state, attack.steering, 4)
    np.testing.assert_allclose(infos.step_size, 0.05 * 0.5 ** (np.arange(4) / 2), rtol=1e-5, err_msg="the second phase")
    np.testing.assert_allclose(state.images, images, atol=1e-4)


def test_consensus_is_the_median_of_the_images_matched_to_each_other():
    attack = make_attack(config=replace(CONFIG, warm_start_steps=0))
    rng = np.random.default_rng(0)
    truth, noise = rng.normal(size=(6, 6, 6, 1)), 0.1 * rng.normal(size=(3, 6, 6, 6, 1))
    orders = [rng.permutation(6) for _ in range(3)]
    epochs = np.stack([(truth + own)[order] for own, order in zip(noise, orders, strict=True)]).astype(np.float32)
    state = attack.start()._replace(images=jnp.asarray(epochs)[None])
    assert float(attack.prepare_step(state, attack.steering).has_consensus) == 0, "consensus starts at step 4"
    consensus = attack.prepare_step(state._replace(step=jnp.int32(4)), attack.steering)
    assert float(consensus.has_consensus) == 1
    median = np.median(truth + noise, axis=0)
    for epoch, order in enumerate(orders):
        np.testing.assert_allclose(consensus.consensus[0, epoch], median[order], atol=1e-5, err_msg=f"epoch {epoch}")


@pytest.mark.parametrize("match", ["images", "labels"])
def test_matching_by_labels_holds_in_the_consensus_and_in_the_result(match):
    # Labels that are known per batch stand at other positions in every epoch.
    client, training = make_client(0), wb.ClientConfig(epochs=3, batch_size=2, learning_rate=0.1)
    observation, hidden = wb.federated.client_update_with_secrets(MODEL, MODEL.init(1), client, training)
    labels = client.labels[hidden.order]
    config = replace(CONFIG, match=match, consensus_weight=1.0, consensus_start=0, warm_start_steps=0)
    attack = prepare(MODEL, observation, config, batch_labels=labels)
    state = attack.prepare_step(attack.start(), attack.steering)
    permutations = attack.reconstruct(state).permutations
    of_image = np.stack([own[order] for own, order in zip(labels, permutations, strict=True)])
    assert (of_image == of_image[0]).all() == (match == "labels")
    pixels = np.asarray(state.images)[0]
    median = np.median([epoch[order] for epoch, order in zip(pixels, permutations, strict=True)], axis=0)
    for epoch, order in enumerate(permutations):
        np.testing.assert_allclose(state.consensus[0, epoch][order], median, atol=1e-5, err_msg=f"epoch {epoch}")


@pytest.mark.parametrize("combine", ["mean", "median"])
def test_a_reconstruction_of_an_aggregate_combines_each_client_by_itself(combine):
    training = wb.ClientConfig(epochs=3, batch_size=2, learning_rate=0.1)
    both = wb.aggregate([wb.client_update(MODEL, MODEL.init(1), make_client(seed), training) for seed in (0, 1)])
    counts = np.stack([make_client(seed).label_counts for seed in (0, 1)])
    attack = prepare(MODEL, both, replace(CONFIG, combine=combine, warm_start_steps=0), label_counts=counts)
    result = attack.reconstruct(attack.start())
    assert result.images.shape == (12, 6, 6, 1)
    assert result.epochs.shape == (3, 12, 6, 6, 1)
    matched = np.stack([epoch[order] for epoch, order in zip(result.epochs, result.permutations, strict=True)])
    np.testing.assert_allclose(getattr(np, combine)(matched, axis=0), result.images, atol=1e-6)
    for order in result.permutations:
        assert sorted(order[:6]) == list(range(6)), "an image of one client was matched to the other's"
        assert sorted(order[6:]) == list(range(6, 12))
    for own, right in zip(result.labels.reshape(2, 6), counts, strict=True):
        np.testing.assert_array_equal(np.bincount(own, minlength=4), right, "the clients' labels were mixed up")
