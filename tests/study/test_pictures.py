"""Figures like the paper's, and the pictures that they are made of."""

import numpy as np
import pytest

from workbench import load_dataset
from workbench.errors import DataError
from workbench.study import plan_table, run_plan
from workbench.study.run.measure import load_pictures

TINY = {"model": "mlp", "preset": "demo", "changes": {"steps": 3}}


@pytest.fixture
def figures(tmp_path):
    return tmp_path / "figures"


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """A study of two methods in two settings with figures: results and the figures' folder."""
    folder = tmp_path_factory.mktemp("drawn")
    made = plan_table(1, "glyphs", clients=2, methods=["ours_prior", "fedsgd"], settings=["1x4x16", "4x4x16"], **TINY)
    results, _ = run_plan(made, store=folder / "study.sqlite", figures=folder / "figures", progress="none")
    return results, folder / "figures"


def names(folder):
    return sorted(path.name for path in folder.glob("*.png"))


def test_every_method_of_a_setting_is_drawn(drawn):
    assert names(drawn[-1]) == [
        "1x4x16_fedsgd_all.png",
        "1x4x16_methods.png",
        "1x4x16_ours_prior_all.png",
        "4x4x16_fedsgd_all.png",
        "4x4x16_methods.png",
        "4x4x16_ours_prior_all.png",
        "4x4x16_ours_prior_epochs.png",
    ]


def test_pictures_stand_in_the_order_of_the_truth_with_their_quality(drawn):
    results, folder = drawn
    (line,) = [one for one in results.lines if (one.entry.setting, one.entry.method) == ("4x4x16", "ours_prior")]
    unit, row = line.entry.units[0], line.rows[0]
    assert unit.clients == (0,)
    kept = load_pictures(folder / "pictures", unit.key)
    truth = load_dataset("glyphs").client(0, num_images=16).images
    np.testing.assert_allclose(kept.truth / 255, truth, atol=0.5 / 255)
    assert kept.epochs.shape == (4, *truth.shape)
    np.testing.assert_allclose(kept.psnr, row["psnr"], atol=1e-3)
    error = np.mean((kept.images / 255 - truth) ** 2, axis=(1, 2, 3))
    # Eight bits are enough to find the quality again, unless pixels were far outside of what can be shown.
    np.testing.assert_array_less(np.asarray(row["psnr"]) - 0.1, -10 * np.log10(error))


def test_what_was_measured_without_pictures_is_left_out(plan, run, figures):
    run(plan(clients=1))
    run(plan(clients=1, methods=("fedsgd", "surrogate")), figures=figures)
    assert names(figures) == ["1x4x16_surrogate_all.png"]


def test_a_broken_file_is_named(plan, run, figures):
    made = plan(clients=1)
    run(made, figures=figures)
    (broken,) = (figures / "pictures").iterdir()
    broken.write_bytes(b"nothing")
    with pytest.raises(DataError, match=f"{made.units[0].key}.*cannot be read .*expected a study's pictures"):
        run(made, figures=figures)
