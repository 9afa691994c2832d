"""The audit: its numbers are those of the parts it is made of, and it says what is known and what is not."""

from dataclasses import replace

import numpy as np
import pytest

import workbench as wb
from workbench.auditing import audit as module
from workbench.auditing.audit import defence_of
from workbench.auditing.checks import Checks, Finding
from workbench.auditing.privacy import dp_sgd_epsilon
from workbench.auditing.twin import Calibration, Try
from workbench.auditing.work import Work, training_of
from workbench.data import Truth
from workbench.data.dataset import Normalization
from workbench.session import Outcome

DEFENCES = ["gaussian 0.2", "dp_sgd 1.0"]
# The first one diverges.
SCHEDULES = [{"learning_rate": 1e20}, {"epochs": 1}]


@pytest.fixture(scope="module")
def store(tmp_path_factory):
    return tmp_path_factory.mktemp("audit") / "store.sqlite"


@pytest.fixture(scope="module")
def given(client, dataset, store):
    return {
        "truth": client,
        "pictures": dataset.client(0, num_images=8),
        "controls": dataset.client(3, num_images=40),
        "defences": DEFENCES,
        "schedules": SCHEDULES,
        "test_set": dataset.client(7, num_images=30),
        "rounds": 2,
        "store": store,
    }


@pytest.fixture(scope="module")
def make(model, observation, quick, given):
    """An audit of the small client, with changes."""
    return lambda **changes: wb.audit(model, observation, quick, **{**given, **changes})


@pytest.fixture(scope="module")
def audit(make):
    return make()


def test_the_attacks_are_those_of_a_session(audit, model, observation, quick, client):
    for found in audit.attacks:
        session = wb.AttackSession(model, observation, quick, seed=found.seed)
        session.step(session.total_steps)
        np.testing.assert_allclose(found.images, session.reconstruction().images, atol=1e-5)
        np.testing.assert_array_equal(found.label_counts, session.label_counts)
        np.testing.assert_allclose(found.confidence, session.reconstruction().confidence, atol=1e-4)
        assert found.outcome is Outcome.FINISHED
    assert [found.seed for found in audit.attacks] == [0, 1]


def test_the_reported_attack_is_chosen_without_the_truth(audit):
    assert audit.found.update_left == min(found.update_left for found in audit.attacks)
    first, second = audit.attacks
    diverged = replace(first, outcome=Outcome.DIVERGED, update_left=0.0)
    assert replace(audit, attacks=(diverged, second)).found is second


def test_the_numbers_of_every_image_are_its_score(audit, client):
    score = wb.score(audit.found, client)
    for place, one in enumerate(audit.images):
        assert one["psnr"] == pytest.approx(score.psnr[place])
        assert one["confidence"] == pytest.approx(audit.found.confidence[score.order[place]])
        assert one["is_recognisable"] == (score.psnr[place] > 20)
        assert one["class"] == client.class_names[client.labels[place]]


def test_a_defence_is_attacked_like_the_clients_update(audit, model, observation, quick, client):
    rows = {row["name"]: row for row in audit.defences}
    assert list(rows) == ["no defence", *DEFENCES, "learning_rate 1e+20", "epochs 1"]
    training = replace(training_of(observation), defence=wb.DefenceConfig("gaussian", 0.2))
    seen = wb.client_update(model, observation.server_weights, client, training)
    session = wb.AttackSession(model, seen, quick)
    session.step(session.total_steps)
    noisy = audit.variants[1].attacks[0]
    np.testing.assert_allclose(noisy.images, session.reconstruction().images, atol=1e-4)
    # The same training and the same attack as the observed one, because the client's batches have seed 0 in both.
    assert rows["no defence"]["mean_psnr"] == pytest.approx(np.mean([one["psnr"] for one in audit.images]), abs=0.01)
    assert rows["gaussian 0.2"]["mean_psnr"] < rows["no defence"]["mean_psnr"]


def test_a_training_that_fails_is_a_result_too(audit):
    failed = audit.defences[3]
    assert "diverge" in failed["failure"]
    assert failed["recognisable"] is None


def test_the_accuracy_is_that_of_the_defended_training(audit, model, observation, client, dataset):
    training = replace(training_of(observation), epochs=1)
    weights, _ = wb.server_rounds(
        model, observation.server_weights, [client], training, rounds=2, clients_per_round=1, progress=False
    )
    test = dataset.client(7, num_images=30)
    right = 100 * wb.accuracy(model, weights, test.inputs, test.labels)
    assert audit.defences[-1]["accuracy_percent"] == pytest.approx(right)


def test_epsilon_counts_rounds_and_epochs(audit):
    dp = audit.defences[2]
    defence = wb.DefenceConfig("dp_sgd", 1.0, clip_norm=1.0)
    assert dp["epsilon_remove"] == dp_sgd_epsilon(defence, epochs=2, rounds=2)
    assert dp["epsilon_replace"] > dp["epsilon_remove"]
    assert [row["epsilon_remove"] for row in audit.defences if row is not dp] == [None] * 4


def test_membership_is_that_of_a_session(audit, model, observation, quick, dataset):
    session = wb.AttackSession(model, observation, quick)
    found = session.membership(dataset.client(0, num_images=8).images, dataset.client(3, num_images=40).images)
    np.testing.assert_allclose(audit.membership.residuals, found.residuals, atol=1e-4)
    assert audit.membership.is_member[:5].all(), "the first five are the client's"
    assert "8 pictures were probably the client's" in audit.summary()["membership"]["sentence"]


def test_a_store_resumes_without_attacking_again(audit, make, monkeypatch):
    def refuse(*args, **kwargs):
        raise AssertionError("an attack that is in the store was made again")

    monkeypatch.setattr(Work, "_run", refuse)
    monkeypatch.setattr(module, "server_rounds", refuse)
    ours, theirs = (one.summary() for one in (audit, make()))
    assert ours == theirs
    with pytest.raises(AssertionError, match="made again"):
        make(seeds=[0, 1, 2])


def test_ctrl_c_keeps_what_is_finished(make, stop_at):
    stop_at(3)  # two calls for every attack: the second attack is interrupted
    stopped = make(store=None)
    assert [found.seed for found in stopped.attacks] == [0]
    assert not stopped.is_complete
    assert all(row["failure"] for row in stopped.defences)
    assert stopped.recommendation == "No variant can be recommended: no defence: not finished."


def test_after_ctrl_c_no_variant_is_trained(make, stop_at, monkeypatch):
    stop_at(3)
    monkeypatch.setattr(module, "updated", lambda *args: pytest.fail("a variant was trained after Ctrl-C"))
    assert not make(store=None).is_complete


def test_an_attack_that_diverges_at_its_first_step_is_a_result_too(make, client):
    given = {"label_counts": client.label_counts, "schedules": [{"learning_rate": 1e9}]}
    found = make(defences=[], pictures=None, test_set=None, seeds=[0], **given)
    (diverged,) = found.variants[1].attacks
    assert (diverged.outcome, diverged.steps, diverged.update_left) == (Outcome.DIVERGED, 0, 1e9)
    assert found.defences[1]["failure"] == "the attack diverged"
    assert found.recommendation.startswith("No variant can be recommended")


def test_a_training_that_diverges_in_a_later_round_keeps_its_attack(make, audit):
    schedules = [{"weight_decay": 25000.0}]
    found = make(defences=[], schedules=schedules, pictures=None, seeds=[0])
    row = found.defences[1]
    assert row["recognisable"] is not None
    assert row["accuracy_percent"] is None
    assert "diverge" in row["failure"]
    assert found.defences[0]["accuracy_percent"] == audit.defences[0]["accuracy_percent"]


def test_the_truth_is_normalised_as_the_observation_says(make, audit, client):
    other = replace(client, normalization=Normalization((0.5,), (0.5,)))
    # The same parts as with the client's own normalisation, so all of them come from the store.
    assert make(truth=other).defences == audit.defences


def test_without_the_truth_confidence_judges_and_defences_are_tried_on_a_twin(audit, make, observation, model):
    blind = make(truth=None, defences=["gaussian 0.2"], schedules=[], test_set=None, seeds=[0])
    assert blind.is_on_twin
    assert blind.defences[0]["mean_psnr"] is not None, "the twin's images are known"
    assert [one["psnr"] for one in blind.images] == [None] * 5
    sure = blind.attacks[0].confidence
    assert [one["is_recognisable"] for one in blind.images] == (sure >= 0.9).tolist()
    labels, images = blind.verdict
    assert "not known without the truth" in labels
    assert "probably recognisable" in images
    assert "on the twin" in blind.recommendation
    assert any("confidence" in limit for limit in blind.summary()["limits"])
    assert not any("confidence" in limit for limit in audit.summary()["limits"])


# Sentences


def with_psnr(audit, client, good):
    """The audit with an attack that found the first ``good`` images exactly, and nothing else."""
    images = np.full_like(client.images, 0.5)
    images[:good] = np.clip(client.images[:good] + 0.01, 0, 1)
    found = replace(audit.attacks[0], images=images, label_counts=client.label_counts[None])
    return replace(audit, attacks=(found,))


def test_the_verdict_counts_images_and_labels(audit, client):
    labels, images = with_psnr(audit, client, 2).verdict
    assert labels == "The update reveals how many of the 5 images each class has, exactly."
    assert images.startswith("2 of 5 images are recognisable (PSNR above 20 dB); the most exposed ones are")
    assert "None of the 5 images is recognisable" in with_psnr(audit, client, 0).verdict[1]
    wrong = client.label_counts.copy()
    wrong[client.labels[0]] -= 1
    wrong[(client.labels[0] + 1) % 62] += 1
    found = replace(audit.attacks[0], label_counts=wrong[None])
    assert (
        replace(audit, attacks=(found,)).verdict[0] == "The attack estimates the labels of the 5 images with 1 error."
    )
    assert "was given" in replace(audit, has_known_labels=True).verdict[0]


def test_without_a_span_nothing_is_claimed(audit):
    found = replace(audit.attacks[0], residuals=None)
    assert "is not known" in replace(audit, attacks=(found,), truth=Truth()).verdict[1]


def calibrated(audit, client, good):
    """The audit with a twin of which the attack found the first ``good`` images."""
    found = with_psnr(audit, client, good).found
    tried = Try("best", audit.config, found, wb.score(found, client))
    return replace(audit, calibration=Calibration((tried,), Truth.of(client)))


def test_the_yardstick_shows_a_simulation_that_does_not_fit(audit, client):
    assert "no twin" in audit.mismatch
    working = replace(calibrated(audit, client, 5), attacks=audit.attacks[:1])
    assert "fits this client" in working.mismatch
    worse = replace(audit.attacks[0], update_left=10 * audit.attacks[0].update_left)
    wrong = replace(working, attacks=(worse,))
    assert "may not fit" in wrong.mismatch
    assert [one.is_fitting for one in (audit, working, wrong)] == [True, True, False]


def test_a_twin_whose_attack_fails_is_no_yardstick(audit, client):
    failing = calibrated(audit, client, 0)
    assert "even the twin's recovers nothing" in failing.mismatch
    assert not failing.is_fitting
    assert "no settings work here" in str(failing.calibration)


def test_the_recommendation_weighs_leakage_against_accuracy(audit, client):
    def advice(recognisable, accuracy):
        tried = [
            replace(variant, attacks=with_psnr(audit, client, good).attacks, accuracy=right, failure="")
            for variant, good, right in zip(audit.variants, recognisable, accuracy, strict=False)
        ]
        return replace(audit, variants=tuple(tried)).recommendation

    assert "Recommended of these is dp_sgd 1.0" in advice((5, 0, 0), (0.9, 0.3, 0.5))
    assert "the test accuracy is 50.0 % (90.0 % without)" in advice((5, 0, 0), (0.9, 0.3, 0.5))
    assert "gaussian 0.2 leaves the fewest recognisable, 1 of 5" in advice((5, 1, 2), (0.9, 0.3, 0.5))
    assert "needs a test set" in advice((5, 0), (None, None))
    assert replace(audit, variants=()).recommendation == ""


def test_nothing_is_recommended_where_the_attack_shows_nothing(audit, client):
    def variants(first, second):
        both = [replace(audit.variants[0], **given) for given in (first, second)]
        return replace(audit, variants=tuple(both))

    leaks, shows_nothing = ({"attacks": with_psnr(audit, client, good).attacks} for good in (5, 0))
    assert "Recommended" in variants(leaks, shows_nothing).recommendation
    refused = "No variant can be recommended: "
    assert variants(shows_nothing, shows_nothing).recommendation.startswith(f"{refused}no defence: the attack finds no")
    missing = variants({"attacks": (), "failure": "it diverged"}, shows_nothing)
    assert missing.recommendation == f"{refused}no defence: it diverged."
    failed = variants(leaks, {"failure": "refused"})
    assert failed.recommendation == f"{refused}none of them was trained and attacked to the end."
    checks = Checks((Finding("bias", False, "It moved too far.", "Check the rate."),))
    for wrong in (replace(variants(leaks, shows_nothing), checks=checks), calibrated(audit, client, 0)):
        assert wrong.recommendation == f"{refused}the simulation may not fit this client."


# Input


@pytest.mark.parametrize(
    ("text", "right"),
    [
        ("gaussian 0.1", wb.DefenceConfig("gaussian", 0.1)),
        ("dp_sgd 2", wb.DefenceConfig("dp_sgd", 2.0, clip_norm=1.0)),
        ("dp_sgd 2 5", wb.DefenceConfig("dp_sgd", 2.0, clip_norm=5.0)),
        (wb.DefenceConfig("pruning", 0.9), wb.DefenceConfig("pruning", 0.9)),
    ],
)
def test_a_defence_is_read_from_its_name(text, right):
    assert defence_of(text) == right


@pytest.mark.parametrize("text", ["gausian 0.1", "gaussian", "gaussian much", "gaussian 0.1 5", "dp_sgd 1 2 3", "", 5])
def test_a_wrong_defence_is_refused(text):
    with pytest.raises(wb.ConfigError, match="defence"):
        defence_of(text)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"seeds": []}, "number of seeds = 0"),
        ({"seeds": [-1]}, "seed"),
        ({"delta": 0}, "delta"),
        ({"rounds": 0}, "rounds"),
        ({"schedules": [{"epoch": 1}]}, "did you mean 'epochs'"),
        ({"truth": 5}, "truth"),
        ({"truth": "small"}, "truth images are"),
        ({"test_set": "small"}, "test_set images are"),
        ({"test_set": 5}, "test_set"),
        ({"pictures": np.zeros((2, 8, 8, 1), np.float32)}, "pictures are"),
        ({"controls": np.zeros((2, 8, 8, 1), np.float32)}, "controls are"),
        ({"label_counts": [1, 2]}, "label_counts has shape"),
        ({"label_counts": [1] * 62}, "label_counts sums to 62"),
        ({"settings": 5}, "settings = 5 must be a Calibration or an AttackConfig"),
    ],
)
def test_wrong_input_is_refused_before_any_attack(model, observation, given, monkeypatch, changes, words):
    images, half = np.zeros((5, 8, 8, 1), np.float32), Normalization((0.5,), (0.5,))
    small = wb.ClientData(images, np.zeros(5, np.int32), ("a",), half)
    changes = {name: small if isinstance(value, str) else value for name, value in changes.items()}
    monkeypatch.setattr(Work, "attack", lambda *args: pytest.fail("an attack was made"))
    settings = {"settings": lambda: pytest.fail("settings were chosen"), **given, **changes}
    with pytest.raises(wb.WorkbenchError, match=words):
        wb.audit(model, observation, **settings)


def test_a_truth_of_another_size_is_refused(make, dataset):
    with pytest.raises(wb.DataError, match=r"truth has \[4\] images; the observation has 1 clients with 5"):
        make(truth=dataset.client(0, num_images=4))


def test_settings_may_be_a_function_that_gives_them(make, audit, model, observation, given, quick):
    found = wb.audit(model, observation, lambda: quick, **given)
    assert found.summary() == audit.summary()


def test_data_that_names_fewer_classes_than_the_network_has_is_understood(make, client, dataset):
    few = wb.ClientData(client.images, client.labels % 3, ("a", "b", "c"), client.normalization)
    audit = make(truth=few, defences=[], schedules=[], pictures=None, seeds=[0], test_set=None)
    assert audit.class_names[:4] == ("a", "b", "c", "3")
    assert sum(audit.summary()["labels"]["true_counts"].values()) == 5


def test_classes_with_equal_names_are_counted_apart(make, client):
    """Folders named 3 and 7 are classes 0 and 1 of a network that has classes 3 and 7, too."""
    few = wb.ClientData(client.images, client.labels % 2, ("3", "7"), client.normalization)
    found = make(truth=few, defences=[], schedules=[], pictures=None, seeds=[0], test_set=None)
    assert found.class_names[:5] == ("3 (class 0)", "7 (class 1)", "2", "3 (class 3)", "4")
    labels = found.summary()["labels"]
    assert sum(labels["true_counts"].values()) == sum(labels["counts"].values()) == 5


def test_the_call_repeats_the_audit(audit, model, observation, given):
    """It is run as Python code, with the data under the names of the arguments."""
    names = {"wb": wb, "model": model, "observation": observation, **given}
    found = eval(audit.call.removesuffix(")") + ", store=store)", names)
    assert found.summary() == audit.summary()


def test_failed_checks_are_passed_on(monkeypatch, make):
    failed = Checks((Finding("bias", False, "It moved too far.", "Check the rate."),))
    monkeypatch.setattr(module, "check", lambda *args: failed)
    assert make(defences=[], schedules=[]).summary()["checks"] == [
        {"name": "bias", "is_ok": False, "sentence": "It moved too far.", "advice": "Check the rate."}
    ]
