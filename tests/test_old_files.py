"""Files of version 0.1.0 (tests/files, with the script that wrote them) load, go on and are found for good."""

import json
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.study import Store, read_rows
from workbench.study.plan.plan import Unit

FILES = Path(__file__).parent / "files"
RESULTS = Path(__file__).parents[1] / "assets" / "results"


@pytest.fixture(scope="module")
def made():
    return runpy.run_path(str(FILES / "make.py"))


def test_the_checkpoint_goes_on_as_if_it_had_never_been_saved(made):
    loaded = wb.AttackSession.load(FILES / "checkpoint.safetensors")
    assert loaded.num_steps == 8
    assert [(event.step, event.name) for event in loaded.history.steering] == [(2, "tv_weight")]
    fresh, client = made["make_session"]()
    fresh.step(2)
    fresh.steer(tv_weight=0.01)
    fresh.step(10)
    loaded.run()
    assert loaded.num_steps == fresh.num_steps == fresh.total_steps
    # Another machine rounds differently; another attack would be off by far more.
    np.testing.assert_allclose(loaded.history.loss, fresh.history.loss, rtol=1e-3)
    np.testing.assert_allclose(loaded.reconstruction().images, fresh.reconstruction().images, atol=5e-3)
    assert wb.score(loaded.reconstruction(), client).psnr.shape == (3,)


def test_the_recording_plays():
    recording = wb.replay(FILES / "attack.recording")
    assert [frame.step for frame in recording.frames] == list(recording.history.snapshot_steps)
    assert recording.num_steps == 8
    assert recording.total_steps == 12
    last = recording.reconstruction()
    assert last.images.shape == (3, 28, 28, 1)
    assert last.epochs.shape == (2, 3, 28, 28, 1)
    assert last.score.psnr.shape == (3,)
    assert recording.truth[0].num_images == 3
    assert recording.labels["bias"].whole.sum() == 3


def test_the_weights_are_those_of_the_network():
    weights = wb.load_weights(FILES / "weights.safetensors", wb.models.mlp(widths=(4,)))
    assert sorted(weights) == ["Dense_0", "last_layer"]


def test_the_stores_rows_are_found(made, tmp_path):
    shutil.copy(FILES / "study.sqlite", tmp_path)
    units = made["make_plan"]().units
    with Store(tmp_path / "study.sqlite") as store:
        assert len(store) == len(units) == 4
        assert set(store.rows(units)) == {unit.key for unit in units}, "the same plan has other keys now"
        assert store.add_rows(read_rows(FILES / "study.jsonl")) == 0, "rows of the exported file count as new"


@pytest.mark.parametrize("file", sorted(RESULTS.glob("*.jsonl")), ids=lambda file: file.stem)
def test_measured_results_keep_their_keys(file):
    rows = [json.loads(line) for line in file.read_text().splitlines()]
    assert rows, f"{file.name} is empty"
    lost = [row["key"] for row in rows if Unit.from_settings(row["settings"]).key != row["key"]]
    assert not lost, f"{len(lost)} of {len(rows)} rows of {file.name} have other keys now: {lost[:3]}"
