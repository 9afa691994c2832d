"""The span of a dense layer's update: exact where it must be, and silent where it cannot help."""

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import workbench as wb
from workbench.attack import step as engine
from workbench.attack.objective import loss_and_terms
from workbench.attack.prepare import prepare
from workbench.attack.span import SpanArrays, find_span, half_way, span_residuals, span_term, update_span
from workbench.errors import ConfigError, DataError

MLP = wb.models.mlp(image_shape=(6, 6, 1), widths=(14,), num_classes=4)
ATTACK = wb.AttackConfig(method="shared", steps=12, span_weight=3.0, span_rise=8, step_size=0.3)


def make_client(num_images=6, seed=0):
    rng = np.random.default_rng(seed)
    normalization = wb.data.Normalization((0.5,), (0.25,))
    pixels, labels = rng.random((num_images, 6, 6, 1)), rng.integers(0, 4, num_images)
    return wb.ClientData(pixels, labels, tuple("abcd"), normalization)


def observe(client, model=MLP, epochs=1, batch_size=None, **training):
    config = wb.ClientConfig(epochs, batch_size or client.num_images, learning_rate=0.1, **training)
    return wb.client_update(model, model.init(1), client, config)


def residuals_at(model, observation, weights, inputs):
    arrays = SpanArrays.of(find_span(model, observation), weights)
    return np.asarray(span_residuals(model, arrays, jnp.asarray(inputs), jnp.asarray(inputs)))


def make_session(config=ATTACK, client=None, **training):
    client = client or make_client()
    observation = observe(client, **{"epochs": 2, "batch_size": 3, **training})
    return wb.AttackSession(MLP, observation, config, label_counts=client.label_counts), client


def test_the_basis_is_numpys_in_float64():
    rng = np.random.default_rng(0)
    inputs, gradients = rng.random((5, 30)), rng.normal(size=(5, 8))
    span = update_span("layer", inputs.T @ gradients, gradients.sum(0), num_images=5)
    stacked = np.vstack([inputs.T @ gradients, span.bias_scale * gradients.sum(0)])
    left, values, _ = np.linalg.svd(stacked)
    np.testing.assert_allclose(span.spectrum.singular_values, values, rtol=1e-12, atol=1e-12)
    assert span.spectrum.rank == 5
    np.testing.assert_allclose(span.basis @ span.basis.T, left[:, :5] @ left[:, :5].T, atol=1e-10)
    # Without the SVD: the space is that of the inputs with the bias's constant below them.
    own = np.hstack([inputs, np.full((5, 1), span.bias_scale)]).T
    by_least_squares = own @ np.linalg.lstsq(own, span.basis, rcond=None)[0]
    np.testing.assert_allclose(by_least_squares, span.basis, atol=1e-8)


def test_after_one_step_every_image_is_in_the_span_in_float64():
    """The gradient of one step by a plain NumPy loop, and residuals in double precision."""
    rng = np.random.default_rng(0)
    inputs = rng.random((6, 36))
    first, last = rng.normal(size=(36, 14)) / 6, rng.normal(size=(14, 4)) / 4
    kernel, bias = np.zeros_like(first), np.zeros(14)
    for f, label in zip(inputs, rng.integers(0, 4, 6), strict=True):
        hidden = np.maximum(f @ first, 0)
        p = np.exp(hidden @ last) / np.exp(hidden @ last).sum()
        d = (last @ (p - np.eye(4)[label])) * (hidden > 0)
        kernel, bias = kernel + np.outer(f, d), bias + d
    with jax.enable_x64(True):
        span = update_span("Dense_0", kernel, bias, 6)
        weights = {
            name: {"kernel": jnp.asarray(kernel_), "bias": jnp.zeros(kernel_.shape[1])}
            for name, kernel_ in (("Dense_0", first), ("last_layer", last))
        }
        arrays = SpanArrays("Dense_0", jnp.asarray(span.basis), jnp.asarray(span.bias_scale), weights, jnp.ones(()))
        images = jnp.asarray(inputs.reshape(6, 6, 6, 1))
        found = np.asarray(span_residuals(MLP, arrays, images, images))
        faint = np.asarray(span_residuals(MLP, arrays, 0.6 * images, images))
    assert found.dtype == np.float64
    assert found.max() < 1e-8, f"residuals up to {found.max():.1e} after one exact step"
    assert faint.min() > 0.1, f"an image at 0.6 of its contrast has only {faint.min():.1e}"


@pytest.mark.parametrize("model", [MLP, wb.models.femnist_cnn()], ids=["mlp", "femnist_cnn"])
def test_after_one_step_every_image_is_in_the_span_in_float32(model):
    client = make_client() if model is MLP else wb.load_dataset("glyphs").client(0, num_images=6)
    observation = observe(client, model)
    found = residuals_at(model, observation, observation.server_weights, client.inputs)
    assert found.max() < 1e-3, f"residuals up to {found.max():.1e} after one step"
    others = make_client(seed=1) if model is MLP else wb.load_dataset("glyphs").client(7, num_images=6)
    apart = residuals_at(model, observation, observation.server_weights, others.inputs)
    assert apart.min() > 0.1, f"another client's image has only {apart.min():.2f}"


def test_only_the_bias_row_sees_the_contrast():
    client = make_client()
    observation = observe(client)
    gradients, weights = observation.gradient_sum["Dense_0"], observation.server_weights
    faint = jnp.asarray(0.6 * client.inputs)
    with_bias, without = (
        SpanArrays.of(update_span("Dense_0", gradients["kernel"], bias, 6), weights)
        for bias in (gradients["bias"], None)
    )
    assert without.basis.shape[0] == 36, "a layer without a bias has no row for it"
    seen = np.asarray(span_residuals(MLP, with_bias, faint, jnp.asarray(client.inputs)))
    blind = np.asarray(span_residuals(MLP, without, faint, jnp.asarray(client.inputs)))
    assert seen.min() > 0.1, f"with the bias row a faint image has {seen.min():.3f}"
    assert blind.max() < 1e-3, f"without it a faint image has {blind.max():.3f}"


def test_residuals_do_not_depend_on_the_order_in_the_batch():
    client = make_client()
    turned = wb.ClientData(client.images[::-1], client.labels[::-1], client.class_names, client.normalization)
    first, second = (
        residuals_at(MLP, observation, observation.server_weights, make_client(seed=3).inputs)
        for observation in (observe(client), observe(turned))
    )
    np.testing.assert_allclose(first, second, rtol=1e-3)


def test_the_gradient_of_the_term_is_that_of_finite_differences():
    client = make_client()
    observation = observe(client, epochs=2, batch_size=2)
    span = find_span(MLP, observation)
    with jax.enable_x64(True):
        weights = jax.tree.map(lambda a: jnp.asarray(np.asarray(a), jnp.float64), half_way(observation))
        arrays = SpanArrays("Dense_0", jnp.asarray(span.basis), jnp.asarray(span.bias_scale), weights, jnp.ones(()))
        rng = np.random.default_rng(0)
        images, direction = (jnp.asarray(rng.normal(size=(1, 2, 6, 6, 6, 1))) for _ in range(2))
        shares = jnp.asarray(rng.random((1, 2, 6)))
        # What residuals are relative to has no gradient: with a direction that keeps the differences, it needs none.
        direction = jnp.broadcast_to(direction[:, :, :1], direction.shape)
        slope = jnp.vdot(jax.grad(lambda x: span_term(MLP, arrays, x, shares))(images), direction)
        ahead, behind = (float(span_term(MLP, arrays, images + sign * 1e-5 * direction, shares)) for sign in (1, -1))
    np.testing.assert_allclose(float(slope), (ahead - behind) / 2e-5, rtol=1e-6)


def test_what_noise_leaves_of_the_span_is_measured():
    rng = np.random.default_rng(0)
    clean = rng.random((400, 5)) @ rng.normal(size=(5, 20))
    size = np.sqrt((clean**2).mean())
    worth = [
        update_span("layer", clean + size * noise * rng.normal(size=clean.shape), None, 5).spectrum
        for noise in (0.0, 0.01, 0.3, 30.0)
    ]
    expected = [0.0, 0.01, 0.3 / np.sqrt(1.09), 1.0]
    np.testing.assert_allclose([one.unexplained for one in worth], expected, rtol=0.2, atol=1e-6)
    shares = [one.share for one in worth]
    assert shares[0] == 1, shares
    assert sorted(shares, reverse=True) == shares, shares
    assert shares[-1] == 0, f"pure noise still has {shares[-1]:.1%} of the weight"
    assert "without it" in str(worth[-1])


def repeated_client():
    """Eight images, of which six are distinct."""
    client = make_client(num_images=6)
    images, labels = (np.concatenate([array, array[:2]]) for array in (client.images, client.labels))
    return wb.ClientData(images, labels, client.class_names, client.normalization)


@pytest.mark.parametrize("epochs", [1, 8])
def test_the_distinct_images_are_counted(epochs):
    """Pixels enter the first layer of an MLP: nothing drifts there, so any number of epochs is exact."""
    found = find_span(MLP, observe(repeated_client(), epochs=epochs, batch_size=2)).spectrum.image_count
    assert (found.count, found.is_clear) == (6, True), str(found)
    assert "6 distinct images" in str(found)


def test_a_layer_whose_inputs_drift_does_not_show_the_number_of_images():
    deep = wb.models.mlp(image_shape=(6, 6, 1), widths=(24, 14), num_classes=4)
    observation = observe(repeated_client(), deep, epochs=8, batch_size=1)
    update = observation.gradient_sum["Dense_1"]
    found = update_span("Dense_1", update["kernel"], update["bias"], 8).spectrum.image_count
    assert not found.is_clear, str(found)
    assert "unclear" in str(found)


def test_the_term_is_part_of_the_loss_and_pulls_images_into_the_span():
    session, _ = make_session()
    session.run()
    terms = session.history.terms
    assert (terms["span"] > 0).all()
    np.testing.assert_allclose(sum(terms.values()), session.history.loss, rtol=1e-4)
    # The weight rises a thousandfold in the first eight steps; the residual without the weight falls.
    weights = 1e-3 ** (1 - np.minimum(np.arange(12) / 8, 1))
    squares = terms["span"] / weights
    assert squares[-1] < 0.9 * squares[0], f"mean squared residual {squares}"
    without, _ = make_session(replace(ATTACK, span_weight=0.0))
    without.run()
    assert not without.history.terms["span"].any()
    assert session.reconstruction().residuals.mean() < without.reconstruction().residuals.mean()


def test_steering_the_span_compiles_nothing_again():
    session, _ = make_session()
    session.step(2)
    compiled = engine.run._cache_size()
    for weight in (0.0, 1.0, 30.0):
        session.steer(span_weight=weight)
        session.step(2)
    assert engine.run._cache_size() == compiled, "a change of the span's weight compiled the step again"
    assert session.history.terms["span"][2] == 0
    assert session.history.terms["span"][-1] > 0


def test_a_span_that_was_off_can_be_steered_on(tmp_path):
    session, _ = make_session(replace(ATTACK, span_weight=0.0))
    session.step(3)
    session.steer(span_weight=2.0)
    session.step(3)
    assert not session.history.terms["span"][:3].any()
    assert (session.history.terms["span"][3:] > 0).all()
    session.save(tmp_path / "run")
    loaded = wb.AttackSession.load(tmp_path / "run")
    for one in (session, loaded):
        one.step(4)
    np.testing.assert_array_equal(loaded.history.loss, session.history.loss)
    session.rewind(4)
    session.step(6)
    np.testing.assert_array_equal(loaded.history.loss, session.history.loss)


def test_relative_weights_are_absolute_ones_times_the_size_of_the_update():
    relative, _ = make_session(replace(ATTACK, weights="relative", tv_weight=0.5, clip_weight=0.25))
    size = float(relative._attack.phases[0].problem.span_schedule[0])
    absolute, _ = make_session(replace(ATTACK, tv_weight=0.5 * size, clip_weight=0.25 * size))
    for session in (relative, absolute):
        session.step(3)
    np.testing.assert_allclose(relative.history.loss, absolute.history.loss, rtol=1e-5)
    cosine, _ = make_session(replace(ATTACK, weights="relative", distance="cosine"))
    assert float(cosine._attack.phases[0].problem.scale) == 1


def test_a_client_is_recognised_among_controls():
    session, client = make_session(epochs=2, batch_size=3)
    controls = np.concatenate([make_client(seed=seed).images for seed in range(1, 40)])
    found = session.membership(client.images, controls)
    assert found.is_member.mean() > 0.8, f"own residuals {found.residuals}, threshold {found.threshold}"
    assert found.false_positive_rate <= 0.01
    others = session.membership(make_client(seed=50).images, controls)
    assert not others.is_member.any(), f"strangers have {others.residuals}, threshold {others.threshold}"
    alone = session.membership(client.images)
    assert alone.is_member is None
    np.testing.assert_allclose(alone.residuals, found.residuals, rtol=1e-5)
    with pytest.raises(DataError, match="those of the client are"):
        session.membership(np.zeros((2, 5, 5, 1)))
    with pytest.raises(DataError, match="must lie in"):
        session.membership(client.images * 7)


def test_a_faint_image_of_another_is_as_far_from_the_span_as_a_strong_one():
    session, _ = make_session(epochs=2, batch_size=3)
    strangers = np.concatenate([make_client(seed=seed).images for seed in range(1, 6)])
    paper = np.median(strangers, axis=(1, 2), keepdims=True)
    strong, faint = (session.membership(paper + share * (strangers - paper)).residuals for share in (1, 0.2))
    assert (faint > 0.8 * strong).all(), f"as {(faint / strong).min():.2f} of the strong ones"
    assert np.isfinite(session.membership(paper + 0 * strangers).residuals).all(), (
        "a flat picture has a finite residual"
    )


def test_too_many_images_leave_the_attack_as_it_is_without_the_term():
    client = make_client(num_images=40)
    session, _ = make_session(client=client, epochs=1, batch_size=40)
    plain, _ = make_session(replace(ATTACK, span_weight=0.0), client=client, epochs=1, batch_size=40)
    for one in (session, plain):
        one.step(3)
    np.testing.assert_array_equal(session.history.loss, plain.history.loss)
    assert "too many images" in str(session.spectrum)
    assert session.reconstruction().confidence is None
    with pytest.raises(DataError, match="does not show whether"):
        session.membership(client.images)


RESTARTS = replace(ATTACK, steps=24, span_rise=6, restart_every=6)


def test_two_labels_for_one_picture_start_again():
    session, client = make_session(RESTARTS)
    session.step(6)
    attack, state = session._attack, session._now.state
    labels = session.reconstruction().labels
    first, other = 0, int(np.flatnonzero(labels != labels[0])[0])
    # All are right but one, which shows the picture of another label.
    right = jnp.asarray(client.inputs)[None, None]
    double = right.at[0, 0, other].set(right[0, 0, first])
    after = attack.prepare_step(state._replace(images=double), attack.steering)
    is_new = np.asarray(after.started)[0, 0] == 6
    assert list(np.flatnonzero(is_new)) == sorted({first, other}), f"{np.flatnonzero(is_new)} started again"
    kept = np.flatnonzero(~is_new)
    np.testing.assert_array_equal(after.images[0, 0, kept], double[0, 0, kept])
    moments = jax.tree.leaves(after.optimizer)
    assert all(not np.asarray(leaf)[0, 0, is_new].any() for leaf in moments if leaf.ndim == 6)
    assert any(np.asarray(leaf)[0, 0, kept].any() for leaf in moments if leaf.ndim == 6)
    untouched = attack.prepare_step(state._replace(images=double, step=jnp.int32(5)), attack.steering)
    np.testing.assert_array_equal(untouched.images, double)


def test_of_two_images_with_one_label_the_one_nearer_to_the_span_stays():
    session, client = make_session(RESTARTS, client=make_client(num_images=8))
    session.step(6)
    attack, state = session._attack, session._now.state
    labels = session.reconstruction().labels
    first, other = next((i, j) for i in range(8) for j in range(i + 1, 8) if labels[i] == labels[j])
    right = jnp.asarray(client.inputs)[None, None]
    # Nearly the same picture, but with some noise, which is outside the span.
    noisy = right[0, 0, first] + 0.05 * jax.random.normal(jax.random.key(0), right.shape[3:])
    after = attack.prepare_step(state._replace(images=right.at[0, 0, other].set(noisy)), attack.steering)
    is_new = np.asarray(after.started)[0, 0] == 6
    assert list(np.flatnonzero(is_new)) == [other], f"{np.flatnonzero(is_new)} started again, not {other} alone"


def test_the_weight_of_a_restarted_image_rises_in_the_steps_until_the_next_restart():
    session, _ = make_session(replace(RESTARTS, span_rise=12, restart_every=4, span_start=1e-4))
    session.step(12)
    attack, state = session._attack, session._now.state
    phase = attack.phases[0]

    def span_of(step, started):
        images = jnp.broadcast_to(state.images[:, :, :1], state.images.shape)
        everything = jnp.full(state.started.shape, started, jnp.int32)
        problem = attack.problem_of(phase, attack.steering)
        _, terms = loss_and_terms(
            phase.objective, problem, attack.steering, jnp.int32(step), images, state.consensus, everything
        )
        return float(terms.span)

    full = span_of(12, started=0)
    assert span_of(6, started=0) == pytest.approx(1e-2 * full, rel=1e-4), "half way of 12 steps"
    assert span_of(14, started=12) == pytest.approx(1e-2 * full, rel=1e-4), "half way of 4 steps"
    assert span_of(16, started=12) == pytest.approx(full, rel=1e-4)


def test_confidence_is_less_for_an_image_that_repeats_a_better_one():
    session, client = make_session()
    session.step(1)
    attack, state = session._attack, session._now.state
    right = jnp.asarray(client.inputs)[None, None]
    once = attack.reconstruct(state._replace(images=right)).confidence
    near = right[0, 0, 0] + 0.02 * jax.random.normal(jax.random.key(0), right.shape[3:])
    twice = attack.reconstruct(state._replace(images=right.at[0, 0, 1].set(near))).confidence
    assert once.min() > 0.8, f"the true images have a confidence of {once}"
    assert twice[1] < 0.3, f"a repetition has a confidence of {twice[1]}"
    assert np.delete(twice, 1).min() > 0.8, "the image that is repeated keeps its confidence"


def test_restarts_do_not_depend_on_how_steps_are_divided(tmp_path):
    at_once, _ = make_session(RESTARTS)
    at_once.step(24)
    assert (np.asarray(at_once._now.state.started) > 0).any(), "nothing started again: the test shows nothing"
    one_by_one, _ = make_session(RESTARTS)
    for _ in range(7):
        one_by_one.step()
    one_by_one.save(tmp_path / "run")
    resumed = wb.AttackSession.load(tmp_path / "run")
    resumed.step(17)
    np.testing.assert_array_equal(resumed.history.loss, at_once.history.loss)
    # An image that starts again needs as many steps as its span weight rises in.
    assert np.asarray(at_once._now.state.started).max() <= 18


def test_where_noise_hides_the_span_the_method_for_noise_is_used(tmp_path):
    config = replace(ATTACK, warm_start_steps=3, noisy_method="ours_no_prior")
    clean, _ = make_session(config)
    assert (clean.config.method, clean.total_steps) == ("shared", 12), "a clean update needs no warm start"
    noisy, _ = make_session(config, defence=wb.DefenceConfig("gaussian", 5.0))
    assert (noisy.config.method, noisy.total_steps) == ("ours_no_prior", 15), str(noisy.spectrum)
    noisy.step(5)
    noisy.save(tmp_path / "run")
    resumed = wb.AttackSession.load(tmp_path / "run")
    resumed.step(2)
    noisy.step(2)
    np.testing.assert_array_equal(resumed.history.loss, noisy.history.loss)


def custom_model(**changes):
    functions = {"init": MLP.init, "apply": MLP.apply, "features": MLP.features, **changes}
    return wb.models.Model("custom", MLP.image_shape, 4, MLP.layer_names, **functions)


def test_a_custom_network_names_its_dense_inputs_or_has_its_last_layer():
    client = make_client(num_images=3)
    custom = custom_model(dense_inputs=MLP.dense_inputs)
    observation = observe(client, custom)
    assert find_span(custom, observation).spectrum.layer == "Dense_0"
    assert residuals_at(custom, observation, observation.server_weights, client.inputs).max() < 1e-3
    plain = custom_model()
    spectrum = find_span(plain, observe(client, plain)).spectrum
    assert (spectrum.layer, spectrum.rank) == ("last_layer", 3), str(spectrum)


@pytest.mark.parametrize(
    ("dense_inputs", "message"),
    [
        (lambda weights, images: images, "must be .layer: array. for some of"),
        (lambda weights, images: {"Dense_9": images}, "must be .layer: array. for some of"),
        (lambda weights, images: {"Dense_0": images}, "dense_inputs, for Dense_0, returns shape"),
    ],
    ids=["an array", "an unknown layer", "a wrong shape"],
)
def test_dense_inputs_that_do_not_fit_are_refused(dense_inputs, message):
    with pytest.raises(ConfigError, match=message):
        custom_model(dense_inputs=dense_inputs)


def test_mixtures_of_two_images_have_larger_residuals_than_the_images():
    client = wb.load_dataset("glyphs").client(0, num_images=8)
    model = wb.models.femnist_cnn()
    observation = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=4))
    attack = prepare(model, observation, wb.AttackConfig(steps=1), label_counts=client.label_counts)
    good, bad = client.images, 0.5 * client.images + 0.5 * client.images[::-1]
    residuals_of = attack.reconstruct(attack.start()).residuals_of
    own, mixed = (residuals_of(pixels, client.images) for pixels in (good, bad))
    assert own.max() < mixed.min(), f"own images {own}, mixtures of two {mixed}"


def test_a_single_image_has_a_finite_residual():
    client = make_client(num_images=1)
    session, _ = make_session(client=client, epochs=2, batch_size=1)
    session.run()
    assert session.num_steps == 12, f"the attack on one image {session.outcome.value}"
    assert np.isfinite(session.reconstruction().residuals).all()
    assert session.membership(client.images).residuals[0] < 1e-3


def test_rounding_is_not_counted_as_an_image():
    """One step on a batch of 20 images: all that is left after them is the rounding of the weights."""
    client = wb.load_dataset("glyphs").client(0, num_images=20)
    model = wb.models.mlp(widths=(64,))
    spectrum = find_span(model, observe(client, model)).spectrum
    distinct = len(np.unique(client.images.reshape(20, -1), axis=0))
    assert spectrum.rank == spectrum.image_count.count == distinct, f"{spectrum} {spectrum.image_count}"
    assert spectrum.image_count.is_clear
