"""The command line as a person meets it: real processes, real signals, and one line for a mistake."""

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import workbench as wb
from workbench.cli import app as cli
from workbench.training import native

# The smallest client and the smallest network: what is tested is the way to them.
SMALL = ["--num-images", "4", "--epochs", "2", "--batch-size", "2"]
TINY = ["attack", *SMALL, "--model", "mlp", "--set", "warm_start_steps=0", "--label-source", "known"]


def workbench(*arguments: object, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "workbench", *map(str, arguments)]
    return subprocess.run(
        command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=240, check=False
    )


def in_process(monkeypatch, *arguments: object) -> int:
    """Quicker than a process, where only the words matter."""
    monkeypatch.setattr(sys, "argv", ["workbench", *map(str, arguments)])
    with pytest.raises(SystemExit) as stopped:
        cli.main()
    return stopped.value.code or 0


def scores(stdout: str) -> dict[str, dict[str, str]]:
    """The printed table: method to column to cell."""
    lines = stdout.splitlines()
    head = next(number for number, line in enumerate(lines) if line.startswith("method"))
    columns = re.split(r"\s{2,}", lines[head])
    rows = [re.split(r"\s{2,}", line) for line in lines[head + 2 :] if re.search(r"\d dB", line)]
    assert all(len(row) == len(columns) for row in rows), f"cells do not fit the columns: {rows}"
    return {row[0]: dict(zip(columns[1:], row[1:], strict=True)) for row in rows}


class Pictures(HTMLParser):
    def __init__(self, html: str) -> None:
        super().__init__()
        self.alts: list[str | None] = []
        self.sources: list[str] = []
        self.feed(html)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "img":
            self.alts.append(found.get("alt"))
        self.sources += [found[name] for name in ("src", "srcset", "href") if name in found]


def check_report(path: Path) -> str:
    html = path.read_text()
    pictures = Pictures(html)
    assert pictures.alts
    assert all(pictures.alts), "a picture has no text"
    assert all(source.startswith("data:image/png;base64,") for source in pictures.sources)
    return html


# What it does


def test_version_and_help(monkeypatch, capsys):
    assert in_process(monkeypatch, "--version") == 0
    assert re.fullmatch(r"workbench \d+\.\d+\.\d+\n", capsys.readouterr().out)
    finished = workbench()
    assert finished.returncode == 0
    for word in ("demo", "attack", "--version"):
        assert word in finished.stdout


def test_a_machine_that_could_be_faster_is_told_so(monkeypatch, capsys):
    monkeypatch.setattr(native, "advice", lambda: "Hurry.")
    assert in_process(monkeypatch, *TINY, "--steps", 1) == 0
    assert "Hurry." in capsys.readouterr().err


def test_the_demo_attacks_compares_and_reports(tmp_path):
    report = tmp_path / "a report.html"
    methods = ["--method", "ours_prior", "--method", "fedsgd"]
    done = workbench("demo", *SMALL, "--steps", 3, *methods, "--report", report)
    assert done.returncode == 0, done.stderr
    first = done.stdout.splitlines()[0]
    assert first.startswith("This rebuilds a client's 4 pictures")
    assert first.endswith(".")
    assert "recovered from the weights" in done.stdout
    table = scores(done.stdout)
    assert list(table) == ["demo (ours_prior)", "fedsgd"]
    assert "Attack demo (ours_prior): Ours (prior) after a warm start of" in done.stdout
    assert table["demo (ours_prior)"]["steps"] == table["fedsgd"]["steps"], "a comparison needs equal chances"
    for row in table.values():
        assert re.fullmatch(r"[\d.]+ %", row["recovered"])
        assert re.fullmatch(r"-?[\d.]+ dB", row["PSNR"])
        assert re.fullmatch(r"[\d.]+ of 4", row["label errors"])
    assert re.search(r"loss=\S+", done.stderr), "the progress bar tells no loss"
    assert "step/s" in done.stderr
    assert re.search(r"\d\d:\d\d<\d\d:\d\d", done.stderr), "the progress bar tells no time left"
    assert "arning" not in done.stderr
    html = check_report(report)
    assert "--method fedsgd" in html, "the report names its command"
    assert f"Report: {report}" in done.stdout


def test_every_setting_is_an_option(tmp_path, monkeypatch, capsys):
    report = tmp_path / "report.html"
    client = ["--client", 1, "--num-clients", 2, "--learning-rate", 0.01, "--model", "mlp"]
    defence = ["--defence", "dp_sgd", "--strength", 0.001, "--clip-norm", 5]
    attack = ["--preset", "paper", "--method", "ours_prior", "--steps", 2, "--distance", "cosine"]
    prior = ["--prior", "max", "--prior-distance", "l1", "--label-source", "bias", "--label-order", "sorted"]
    beliefs = ["--believed-epochs", 3, "--believed-batch-size", 1, "--match", "labels", "--combine", "median"]
    more = ["--set", "tv_weight=0.5", "--set", "update_weight=[3, 4]", "--seed", 5, "--device", "cpu"]
    kept = tmp_path / "run.safetensors"
    options = [*SMALL, *client, *defence, *attack, *prior, *beliefs, *more, "--save", kept, "--report", report]
    assert in_process(monkeypatch, "attack", *options) == 0
    out = capsys.readouterr().out
    assert "the mean of clients 1 to 2" in out
    assert "dp_sgd of strength 0.001, clipped at 5" in out
    assert "dp_sgd" in check_report(report)
    session = wb.AttackSession.load(kept)
    assert session.seed == 5
    assert session.observation.num_clients == 2
    assert session.observation.learning_rate == 0.01
    changed = {
        "method": "ours_prior",
        "steps": 2,
        "distance": "cosine",
        "prior": "max",
        "prior_distance": "l1",
        "prior_weight": 77.298,
        "label_method": "bias",
        "label_order": "sorted",
        "epochs": 3,
        "batch_size": 1,
        "match": "labels",
        "combine": "median",
        "tv_weight": 0.5,
        "update_weight": (3.0, 4.0),
    }
    assert {name: getattr(session.config, name) for name in changed} == changed


def test_known_and_recovered_labels_are_told_apart(monkeypatch, capsys):
    assert in_process(monkeypatch, *TINY, "--steps", 1) == 0
    known = capsys.readouterr().out
    assert "Label counts: given." in known
    assert scores(known)["demo (ours_prior)"]["label errors"] == "0 of 4"


def test_a_folder_of_pictures_is_a_data_set(tmp_path, monkeypatch, capsys):
    rng = np.random.default_rng(0)
    for name in ("cats", "dogs"):
        (tmp_path / name).mkdir()
        for number in range(3):
            Image.fromarray(rng.integers(256, size=(40, 50, 3), dtype=np.uint8)).save(tmp_path / name / f"{number}.png")
    assert in_process(monkeypatch, *TINY, "--dataset", "folder", "--data", tmp_path, "--steps", 1) == 0
    assert "client 0 of folder: 4 images" in capsys.readouterr().out


def test_saving_and_resuming_gives_the_same_as_going_through(tmp_path, monkeypatch, capsys):
    whole, half, resumed = (tmp_path / f"{name}.safetensors" for name in ("whole", "half", "resumed"))
    assert in_process(monkeypatch, *TINY, "--steps", 6, "--save", whole) == 0
    assert in_process(monkeypatch, *TINY, "--steps", 3, "--save", half) == 0
    capsys.readouterr()
    client = [*SMALL, "--model", "mlp"]
    assert in_process(monkeypatch, "attack", *client, "--resume", half, "--steps", 6, "--save", resumed) == 0
    assert scores(capsys.readouterr().out)["ours_prior"]["steps"] == "6"
    expected, found = (wb.AttackSession.load(path) for path in (whole, resumed))
    np.testing.assert_array_equal(expected.reconstruction().epochs, found.reconstruction().epochs)
    np.testing.assert_array_equal(expected.history.loss, found.history.loss)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "run.safetensors"
    client = wb.load_dataset("glyphs").client(0, num_images=4)
    model = wb.models.mlp()
    observation = wb.client_update(model, model.init(0), client, wb.ClientConfig(epochs=2, batch_size=2))
    wrong_counts = np.roll(client.label_counts, 1)
    wb.AttackSession(model, observation, wb.AttackConfig(steps=3), label_counts=wrong_counts).save(path)
    return path


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--client", "1"], "another update"),
        (["--seed", "1"], "another update"),
        (["--preset", "paper"], "leave it out"),
        (["--label-source", "known"], "has other counts"),
        (["--method", "shared"], "method = 'shared' is 'ours_prior' in"),
        (["--set", "tv_wieght=1"], "did you mean 'tv_weight'?"),
    ],
)
def test_resuming_with_other_settings_is_refused(checkpoint, options, says, monkeypatch, capsys):
    code = in_process(monkeypatch, "attack", *SMALL, "--model", "mlp", "--resume", checkpoint, *options)
    assert (code, says in capsys.readouterr().err) == (2, True)


def test_a_diverging_attack_ends_with_its_table_and_code_1(tmp_path, monkeypatch, capsys):
    report = tmp_path / "report.html"
    options = ["--steps", 5, "--set", "step_size=1e19", "--report", report]
    assert in_process(monkeypatch, *TINY, *options) == 1
    out = capsys.readouterr().out
    assert "diverged" in out
    assert "demo (ours_prior)" in scores(out)
    assert "diverged" in check_report(report)


# Wrong input


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["atack"], "attack"),
        (["attack", "--datset", "glyphs"], "--dataset"),
        (["attack", "--dataset", "glyph"], "did you mean 'glyphs'?"),
        (["attack", "--epochs", "many"], "'--epochs'"),
        (["attack", "--epochs", "0"], "epochs = 0 must be a whole number of at least 1"),
        (["attack", "--batch-size", "99"], "batch_size = 99 must be at most the number of images, 16"),
        (["attack", "--client", "-1"], "client = -1"),
        (["attack", "--num-images", "100000"], "num_images = 100000"),
        (["attack", "--num-clients", "0"], "num_clients = 0"),
        (["attack", "--model", "resnet"], "model = 'resnet' is unknown"),
        (["attack", "--model", "cifar100_cnn"], "cifar100_cnn takes (32, 32, 3)"),
        (["attack", "--defence", "gausian"], "did you mean 'gaussian'?"),
        (["attack", "--defence", "gaussian", "--strength", "-1"], "defence.strength = -1"),
        (["attack", "--strength", "1"], "needs a defence"),
        (["attack", "--defence", "dp_sgd"], "defence.clip_norm"),
        (["attack", "--preset", "papers"], "did you mean 'paper'?"),
        (["attack", "--method", "fedsdg"], "did you mean 'fedsgd'?"),
        (["attack", "--label-source", "knwon"], "did you mean 'known'?"),
        (["attack", "--set", "tv_wieght=1"], "did you mean 'tv_weight'?"),
        (["attack", "--set", "tv_weight"], "must be NAME=VALUE"),
        (["attack", "--set", "tv_weight=heavy"], "tv_weight = 'heavy'"),
        (["attack", "--steps", "5", "--set", "steps=6"], "give only one"),
        (["attack", "--seed", "-1"], "seed = -1"),
        (["attack", "--device", "gpu:99"], "device = 'gpu:99' is not there"),
        (["attack", "--data", "/tmp"], "bundled"),
        (["attack", "--dataset", "femnist", "--data", "/nowhere"], "/nowhere"),
        (["attack", "--dataset", "folder"], "needs --data"),
        (["attack", "--dataset", "femnist", "--data", ""], "what follows --data is empty"),
        (["table", "1", "--data="], "what follows --data is empty"),
        (["attack", "--resume", "/nowhere"], "does not exist"),
        (["attack", "--report", "/"], "is a folder"),
        (["attack", "--save", "/dev/null/run"], "cannot be written"),
        (["demo", "--method", "best"], "method = 'best' is unknown"),
        (["demo", "--num-images", "0"], "num_images = 0"),
    ],
)
def test_a_mistake_gets_one_line_that_says_what_is_right(arguments, says, monkeypatch, capsys):
    assert in_process(monkeypatch, *arguments) == 2
    error = capsys.readouterr().err
    assert len(error.splitlines()) == 1, f"not one line: {error!r}"
    assert error.startswith("workbench: ")
    assert says in error


def test_a_mistake_leaves_no_traceback_and_code_2_in_a_real_process():
    done = workbench("attack", "--dataset", "glyph")
    assert done.returncode == 2
    assert done.stderr == (
        "workbench: dataset = 'glyph' is unknown; did you mean 'glyphs'? "
        "Choose one of: glyphs, photos, femnist, cifar100, folder.\n"
    )


# Ctrl-C


class Running:
    """A command in a process of its own whose output can be waited for."""

    def __init__(self, *arguments: object) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "workbench", *map(str, arguments)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT
        )
        self.output = b""
        self._news = threading.Condition()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        while chunk := self.process.stdout.read1():
            with self._news:
                self.output += chunk
                self._news.notify_all()

    def wait_for(self, pattern: bytes) -> None:
        with self._news:
            seen = self._news.wait_for(lambda: re.search(pattern, self.output), timeout=120)
        assert seen, f"{pattern} never came: {self.output.decode()}"

    def interrupt(self) -> tuple[int, str]:
        self.process.send_signal(signal.SIGINT)
        code = self.process.wait(timeout=120)
        self._reader.join()
        self.process.stdout.close()
        return code, self.output.decode()


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_ctrl_c_stops_cleanly_and_keeps_what_there_is(tmp_path):
    report, saved = tmp_path / "report.html", tmp_path / "run.safetensors"
    running = Running(*TINY, "--steps", 1_000_000, "--report", report, "--save", saved)
    running.wait_for(rb"[1-9]\d*/1000000 .*loss=")
    code, output = running.interrupt()
    assert code == 130, output
    assert "Traceback" not in output
    made = int(scores(output)["demo (ours_prior)"]["steps"])
    assert 0 < made < 1_000_000
    assert f"Stopped by Ctrl-C after {made} steps" in output
    check_report(report)
    assert wb.AttackSession.load(saved).num_steps == made


@pytest.mark.skipif(os.name == "nt", reason="Windows has no SIGINT for one process")
def test_ctrl_c_before_the_first_step_leaves_no_traceback(tmp_path):
    running = Running("demo", "--report", tmp_path / "report.html")
    running.wait_for(rb"This rebuilds")
    code, output = running.interrupt()
    assert code == 130, output
    assert "Traceback" not in output
    assert not list(tmp_path.iterdir())


# The second start


def test_what_was_compiled_is_kept_and_found_again_without_a_word(tmp_path):
    settings = {"WORKBENCH_CACHE": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": ""}
    first = workbench(*TINY, "--steps", 2, **settings)
    kept = sorted(tmp_path.rglob("*-cache"))
    assert any("jit_run" in file.name for file in kept), f"nothing was kept: {kept}, {first.stderr}"
    second = workbench(*TINY, "--steps", 2, **settings)
    assert sorted(tmp_path.rglob("*-cache")) == kept, "the second start compiled something"
    for done in (first, second):
        assert done.returncode == 0
        assert "arning" not in done.stderr
        assert "rror" not in done.stderr
    assert len({scores(done.stdout)["demo (ours_prior)"]["PSNR"] for done in (first, second)}) == 1


@pytest.mark.slow
def test_a_damaged_or_forbidden_cache_costs_time_and_no_word(tmp_path):
    settings = {"WORKBENCH_CACHE": str(tmp_path), "JAX_COMPILATION_CACHE_DIR": ""}
    workbench(*TINY, "--steps", 1, **settings)
    for file in tmp_path.rglob("*-cache"):
        file.write_bytes(file.read_bytes()[:10])
    damaged = workbench(*TINY, "--steps", 1, **settings)
    shutil.rmtree(tmp_path)
    tmp_path.write_text("a file where the folder should be")
    forbidden = workbench(*TINY, "--steps", 1, **settings)
    for done in (damaged, forbidden):
        assert done.returncode == 0, done.stderr
        assert "arning" not in done.stderr
        assert "rror" not in done.stderr


def test_export_writes_a_recording_as_a_page(monkeypatch, tmp_path, capsys):
    recording, page = Path(__file__).parents[1] / "files" / "attack.recording", tmp_path / "page.html"
    assert in_process(monkeypatch, "export", recording, "--html", page, "--title", "A <lesson>") == 0
    assert f"Wrote {page}" in capsys.readouterr().out
    assert page.read_text().startswith("<!DOCTYPE html>")
    assert "<h1>A &lt;lesson&gt;</h1>" in page.read_text()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["none.recording", "--html", "page.html"], "does not exist"),
        (["none.recording", "--html", "."], "is a folder"),
        (["none.recording"], "--html"),
    ],
)
def test_export_says_what_is_wrong(monkeypatch, tmp_path, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert in_process(monkeypatch, "export", *arguments) == 2
    assert words in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
