"""The twin: whose images it has, and that calibrate takes what is best for it."""

from dataclasses import replace

import numpy as np
import pytest

import workbench as wb
from workbench.auditing import twin as module
from workbench.auditing.twin import TRIES, calibrate, twin_of
from workbench.auditing.work import Work, training_of


def observed(model, client, **training):
    return wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2, **training))


# Whose images


def test_a_bundled_twin_has_other_images_in_the_same_number_and_shape(model, client, observation):
    twin = twin_of(model, observation)
    assert len(twin) == 1
    assert twin.images.shape == client.images.shape
    assert not any((image == client.images).all((1, 2, 3)).any() for image in twin.images), "a twin is not the client"
    assert twin[0].normalization == observation.normalization


def test_the_users_images_and_labels_are_taken_as_they_are(model, observation, dataset):
    other = dataset.client(5, num_images=9)
    for stand_in in (other, (other.images, other.labels)):
        twin = twin_of(model, observation, stand_in)
        np.testing.assert_array_equal(twin.images, other.images[:5])
        np.testing.assert_array_equal(twin.labels, other.labels[:5])


def test_without_labels_the_twin_has_the_counts_that_the_update_reveals(
    model, client, observation, dataset, monkeypatch
):
    quick = wb.AttackConfig(label_method="bias")
    monkeypatch.setattr(module, "best_settings", lambda observation: quick)
    twin = twin_of(model, observation, dataset.client(5, num_images=5).images)
    revealed = wb.AttackSession(model, observation, quick).label_counts[0]
    np.testing.assert_array_equal(np.bincount(twin.labels, minlength=62), revealed)


def test_other_sizes_and_colours_are_fitted(model, observation):
    photos = wb.load_dataset("photos").client(0, num_images=5)
    twin = twin_of(model, observation, (photos.images, photos.labels % 62))
    assert twin.images.shape == (5, 28, 28, 1)
    assert twin.images.min() >= 0
    assert twin.images.max() <= 1
    means = photos.images.mean((1, 2, 3))
    np.testing.assert_allclose(twin.images.mean((1, 2, 3)), means, atol=0.03, err_msg="scaling keeps the brightness")


def test_an_aggregate_has_a_twin_for_every_client(model, dataset):
    clients = [dataset.client(index, num_images=4) for index in (0, 1)]
    seen = wb.aggregate([observed(model, client) for client in clients])
    twin = twin_of(model, seen)
    assert [client.num_images for client in twin] == [4, 4]
    assert not (twin[0].images == twin[1].images).all()


def test_more_images_than_a_bundled_client_has_come_from_several(model, observation):
    assert twin_of(model, replace(observation, num_images=250)).images.shape[0] == 250


def test_too_few_images_are_refused(model, observation, dataset):
    with pytest.raises(wb.DataError, match="stand_in has 3 images; the twin needs 5"):
        twin_of(model, observation, dataset.client(5, num_images=3))


def test_the_twin_trains_as_the_client_does(model, client):
    seen = observed(model, client, momentum=0.9, drop_last=True)
    training = training_of(seen)
    assert (training.epochs, training.batch_size, training.learning_rate) == (2, 2, 0.004)
    assert (training.momentum, training.drop_last) == (0.9, True)


# Calibrating


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("twin") / "store.sqlite"


@pytest.fixture(scope="module")
def calibration(model, observation, store):
    return calibrate(model, observation, tries=3, steps=15, store=store)


def test_the_best_settings_for_the_twin_are_chosen(calibration, model, observation):
    """Oracle: the same attacks through AttackSession."""
    twin = calibration.twin
    seen = wb.client_update(model, observation.server_weights, twin[0], training_of(observation))
    quality, counts = {}, None
    for one in calibration.tries:
        session = wb.AttackSession(model, seen, one.config, label_counts=counts)
        session.step(session.total_steps)
        counts = session.label_counts
        quality[one.name] = wb.score(session.reconstruction(), twin).psnr.mean()
        assert one.psnr == pytest.approx(quality[one.name], abs=1e-3), one.name
        term = session.history.terms["update"]
        later = 2 ** ((len(term) - 1) / 200)  # the weight grows from 1 to 2 in 200 steps
        assert one.found.update_left == pytest.approx(term[-1] / term[0] / later, rel=1e-3)
    assert list(quality) == list(TRIES)[:3]
    best = max(quality, key=quality.get)
    assert calibration.best.name == best
    assert calibration.config == calibration.best.config
    assert calibration.twin_psnr == pytest.approx(quality[best], abs=1e-3)
    assert calibration.yardstick == calibration.best.found.update_left
    assert calibration.is_complete
    assert calibration.call == "wb.calibrate(model, observation, tries=3, steps=15, known_labels=False, seed=0)"


def test_a_change_multiplies_or_replaces_a_setting_of_the_preset(calibration):
    configs = {one.name: one.config for one in calibration.tries}
    best = wb.AttackConfig.preset("best", steps=15)
    assert configs["best"] == best
    for name, changes in list(TRIES.items())[1:3]:
        changed = {key: getattr(best, key) * value for key, value in changes.items()}
        assert configs[name] == replace(best, **changed)


def test_it_prints_as_a_table_with_what_to_expect(calibration):
    text = str(calibration)
    for words in (*list(TRIES)[:3], "chosen", "attack reaches", "of the update distance"):
        assert words in text
    assert len(text.splitlines()) == 6


def test_a_store_resumes_without_attacking_again(calibration, model, observation, store, monkeypatch):
    def refuse(*args):
        raise AssertionError("an attack that is in the store was made again")

    monkeypatch.setattr(Work, "_run", refuse)
    again = calibrate(model, observation, tries=3, steps=15, store=store)
    assert again.rows() == calibration.rows()
    with pytest.raises(AssertionError, match="made again"):
        calibrate(model, observation, tries=3, steps=16, store=store)


def test_ctrl_c_keeps_what_is_finished(model, observation, stop_at):
    stop_at(3)  # each attack makes two calls: 10 and 5 steps
    stopped = calibrate(model, observation, tries=3, steps=15)
    assert [one.name for one in stopped.tries] == ["best"]
    assert not stopped.is_complete
    stop_at(1)
    with pytest.raises(KeyboardInterrupt):
        calibrate(model, observation, tries=3, steps=15)


@pytest.mark.parametrize("tries", [0, len(TRIES) + 1, "all"])
def test_a_wrong_number_of_tries_is_refused(model, observation, tries):
    with pytest.raises(wb.ConfigError, match="tries"):
        calibrate(model, observation, tries=tries)


def test_separate_epochs_stay_where_noise_would_choose_another_method(model, observation):
    config = module._changed(wb.AttackConfig.preset("best"), {"method": "ours_prior"})
    session = wb.AttackSession(model, observation, config, label_counts=np.bincount([0] * 5, minlength=62))
    assert session.config.method == "ours_prior"
