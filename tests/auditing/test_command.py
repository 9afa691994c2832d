"""``workbench audit``: from the files of another framework to the report, and one line for a mistake."""

import hashlib
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import workbench as wb
from workbench.cli import app as cli
from workbench.cli import audit as command
from workbench.data.dataset import FEMNIST_NORMALIZATION
from workbench.files.audit import RecordedClient, RecordedRound

UPDATE = Path(__file__).parents[2] / "assets" / "update"
FILES = [UPDATE / "before.safetensors", UPDATE / "after.safetensors"]
TRAINING = ["--epochs", 3, "--batch-size", 4, "--learning-rate", 0.01, "--momentum", 0.9]
PIXELS = ["--mean", "0.5,0.5,0.5", "--std", "0.5,0.5,0.5"]
CLIENT = ["--model", UPDATE / "network.pt2", "--num-images", 8, *TRAINING, *PIXELS]
MOMENTUM = ["--epochs", 1, "--batch-size", 2, "--learning-rate", 0.004, "--momentum", 0.5]
GREY = ["--mean", FEMNIST_NORMALIZATION.mean[0], "--std", FEMNIST_NORMALIZATION.std[0]]
GLYPHS = ["before.safetensors", "after.safetensors", "--model", "mlp", "-n", 4, *MOMENTUM, *GREY]
GLYPHS += ["--truth", "truth.npz", "--known-labels", "--seeds", "0,5"]


def workbench(monkeypatch, *arguments):
    monkeypatch.setattr(sys, "argv", ["workbench", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code or 0


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, with the update of a small client and its images."""
    monkeypatch.chdir(tmp_path)
    client, other = (wb.load_dataset("glyphs").client(index, num_images=4) for index in (0, 1))
    model = wb.models.mlp()
    seen = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=1, batch_size=2, momentum=0.5))
    wb.save_weights("before.safetensors", seen.server_weights)
    wb.save_weights("after.safetensors", seen.client_weights)
    for name, data in {"truth": client, "test": other}.items():
        np.savez(f"{name}.npz", images=data.images, labels=data.labels)
    return client


def test_from_two_files_to_the_report(folder, monkeypatch, capsys):
    tried = ["--tries", 1, "--steps", 6, "--defence", "gaussian 1e-6", "--schedule", "batch_size=4"]
    written = ["--test-set", "test.npz", "--json", "audit.json", "--store", "audit.sqlite"]
    assert workbench(monkeypatch, "audit", *GLYPHS, *tried, *written) == 0
    printed = capsys.readouterr().out
    assert "attack reaches" in printed
    assert "ok    weights" in printed
    found = json.loads(Path("audit.json").read_text())
    assert found["target"]["training"] == "sgd, momentum 0.5"
    assert [one["seed"] for one in found["attacks"]] == [0, 5]
    assert [row["name"] for row in found["defences"]["rows"]] == ["no defence", "gaussian 1e-6", "batch_size 4"]
    assert found["labels"]["source"] == "given"
    assert [one["name"] for one in found["twin"]["tries"]] == ["best"]
    assert found["reproduction"]["command"].startswith("workbench audit before.safetensors after.safetensors")
    files = ("before.safetensors", "after.safetensors", "truth.npz", "test.npz")
    hashes = {name: hashlib.sha256(Path(name).read_bytes()).hexdigest() for name in files}
    assert hashes.items() <= found["reproduction"]["sha256"].items()
    assert found["verdict"][1] in Path("audit.html").read_text()


def test_ctrl_c_leaves_a_report_of_what_is_finished(folder, monkeypatch, capsys, stop_at):
    quick = [*GLYPHS, "--tries", 0, "--steps", 15]  # two calls of step for every attack
    stop_at(1)
    assert workbench(monkeypatch, "audit", *quick) == 130
    assert "there is no report, and nothing is kept; with --store" in capsys.readouterr().out
    assert not Path("audit.html").exists()
    stop_at(3)
    assert workbench(monkeypatch, "audit", *quick) == 130
    assert "The audit was stopped" in Path("audit.html").read_text()


def test_ctrl_c_while_the_twin_is_attacked_stops_the_command(folder, monkeypatch, capsys, stop_at):
    twice = [*GLYPHS, "--tries", 2, "--steps", 15, "--store", "audit.sqlite"]
    stop_at(3)  # during the second of two tries
    assert workbench(monkeypatch, "audit", *twice) == 130
    printed = capsys.readouterr().out
    assert "attack reaches" in printed, "what was found until then is printed"
    assert "finished parts are kept in audit.sqlite, and the same command continues there" in printed
    assert not Path("audit.html").exists()


def images_in_folders(name, images, labels, names):
    for place, (image, label) in enumerate(zip(images, labels, strict=True)):
        Path(name, names[label]).mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.uint8(255 * image[..., 0])).save(Path(name, names[label], f"{place}.png"))


def test_folders_are_classes_by_their_names(folder, monkeypatch, capsys):
    """The client has few of the 62 classes, and their numbers are the labels."""
    images_in_folders("numbers", folder.images, folder.labels, [str(label) for label in range(62)])
    quick = ["--tries", 0, "--steps", 1, "--json", "audit.json"]
    assert workbench(monkeypatch, "audit", *GLYPHS, "--truth", "numbers", *quick) == 0
    found = json.loads(Path("audit.json").read_text())
    counts = {str(label): int(count) for label, count in enumerate(folder.label_counts) if count}
    assert found["labels"]["true_counts"] == counts
    images_in_folders("words", folder.images, folder.labels, [f"class {label}" for label in range(62)])
    assert workbench(monkeypatch, "audit", *GLYPHS, "--truth", "words", *quick) == 2
    number = len(set(folder.labels.tolist()))
    assert f"'words' has {number} sub-folders for the 62 classes of the network" in capsys.readouterr().err
    # What is only looked at needs no labels.
    assert workbench(monkeypatch, "audit", *GLYPHS, "--pictures", "words", *quick) == 0


def test_a_client_is_chosen_by_its_id_before_its_place():
    ids = ["8231049874561230987", "0"]
    recorded = RecordedRound(
        1, "FedAvg", "flwr", tuple(RecordedClient(one, 1, {}, {}, {}, {}, ("", "")) for one in ids)
    )
    assert [recorded.client(which).id for which in (ids[0], "0", "1", 0, 1, int(ids[0]))] == [
        ids[0], "0", "0", ids[0], "0", ids[0]
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ([FILES[0]], "--model, --mean, --std, --epochs, --batch-size, --learning-rate: missing"),
        ([*FILES, "--model", "mlp", *TRAINING, *PIXELS], "--num-images: missing"),
        ([*FILES, FILES[0], *CLIENT], "3 files"),
        ([*FILES, *CLIENT, "--known-labels"], "--known-labels needs --truth"),
        ([*FILES, *CLIENT, "--seeds", "one"], "seeds = 'one' must be whole numbers"),
        ([*FILES, *CLIENT, "--tries", "-1"], "tries = -1"),
        ([*FILES, *CLIENT, "--defence", "noise 1"], "defence = 'noise' is unknown"),
        ([*FILES, *CLIENT, "--schedule", "epochs"], "NAME=VALUE"),
        ([*FILES, *CLIENT[:-1], "a,b,c"], "normalization.std"),
        ([FILES[0], *CLIENT], "audit file"),
        ([*FILES, *CLIENT, "--truth", "nowhere.npz"], "nowhere.npz"),
        ([*FILES, *CLIENT, "--truth", "small.npz"], "images of (8, 8, 3)"),
        ([*FILES, *CLIENT, "--truth", "two.npz"], "truth has [2] images; the observation has 1 clients with 8"),
        ([*FILES, *CLIENT, "--rounds", "0"], "rounds = 0"),
        ([*FILES, *CLIENT, "--delta", "2"], "delta = 2"),
        ([*FILES, *CLIENT, "--schedule", "epoch=1"], "did you mean 'epochs'"),
    ],
)
def test_a_mistake_is_one_line(monkeypatch, tmp_path, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    for name, size in {"small": 8, "two": 16}.items():
        np.savez(f"{name}.npz", images=np.zeros((2, size, size, 3), np.float32), labels=np.zeros(2, np.int64))
    monkeypatch.setattr(command, "calibrate", lambda *args, **options: pytest.fail("the twin was attacked first"))
    assert workbench(monkeypatch, "audit", *arguments) == 2
    printed = capsys.readouterr().err.strip().splitlines()
    assert words in printed[-1], printed
    assert not Path("audit.html").exists()
