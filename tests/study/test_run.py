"""A study in one process: what is missing is done, what is there is shown, and every format shows the same."""

import csv
import io
import json
import math
import os
import signal
import statistics

import pytest

from workbench import study
from workbench.errors import ConfigError, DataError
from workbench.study.plan.plan import Line, Place
from workbench.study.plan.tables import plan_sweep
from workbench.study.run.execute import Executor, execute
from workbench.study.run.store import Store
from workbench.study.show.results import FORMATS, Results


def lines_of(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


class Counting(Executor):
    """Does units here, and counts them."""

    def __init__(self, interrupt_after=None):
        self.done = []
        self.interrupt_after = interrupt_after

    def submit(self, unit, place):
        self.done.append(unit)
        if len(self.done) == self.interrupt_after:
            os.kill(os.getpid(), signal.SIGINT)
        return super().submit(unit, place)


def test_a_second_run_does_nothing_and_shows_the_same(plan, run, tmp_path):
    one = plan()
    first, report = run(one, out=tmp_path / "rows.jsonl")
    assert (report.done, report.before, report.failed) == (2, 0, [])
    before = (tmp_path / "rows.jsonl").read_bytes()
    second, report = run(one, out=tmp_path / "rows.jsonl")
    assert (report.done, report.before) == (0, 2)
    assert str(second) == str(first)
    assert (tmp_path / "rows.jsonl").read_bytes() == before


def test_more_clients_do_only_what_is_missing(plan, run):
    run(plan(clients=1))
    _, report = run(plan(clients=3))
    assert (report.done, report.before) == (2, 1)


def test_only_what_was_measured_is_shown_where_nothing_shall_be_done(plan, run):
    run(plan(clients=1))
    results, report = run(plan(clients=3), only_measured=True)
    assert (report.done, report.before) == (0, 1)
    assert [(len(line.rows), len(line.entry.units)) for line in results.lines] == [(1, 1)]


def test_another_setting_does_not_mix_with_old_rows(plan, run):
    run(plan())
    results, report = run(plan(changes={"steps": 4}))
    assert (report.done, report.before) == (2, 0)
    assert all(row["steps"] == 4 for line in results.lines for row in line.rows)


def test_a_new_store_takes_over_the_rows_of_the_exported_file(plan, run, tmp_path):
    first, _ = run(plan(), out=tmp_path / "rows.jsonl")
    again, report = run(plan(), store="new.sqlite", out=tmp_path / "rows.jsonl")
    assert report.done == 0
    assert str(again) == str(first)


def test_the_exported_file_keeps_rows_of_other_plans(plan, run, tmp_path):
    run(plan(clients="0-0"), out=tmp_path / "rows.jsonl")
    run(plan(clients="1-1"), out=tmp_path / "rows.jsonl")
    assert [row["settings"]["clients"] for row in lines_of(tmp_path / "rows.jsonl")] == [[0], [1]]


def test_a_unit_that_fails_is_reported_tried_again_and_stops_no_other(make_unit, tmp_path):
    wrong = make_unit(pictures="0" * 16)
    with Store(tmp_path / "study.sqlite") as store:
        for _ in range(2):
            report = execute([wrong, make_unit(1)], Place(), store, Executor())
            ((unit, why),) = report.failed
            assert unit == wrong
            assert "hold other pictures" in why
        assert set(store.rows([wrong, make_unit(1)])) == {make_unit(1).key}


def test_ctrl_c_finishes_the_unit_and_stops(make_unit, tmp_path):
    units = [make_unit(index) for index in range(4)]
    with Store(tmp_path / "study.sqlite") as store:
        executor = Counting(interrupt_after=2)
        report = execute(units, Place(), store, executor)
        assert report.is_stopped
        assert executor.done == units[:2]
        assert set(store.rows(units)) == {unit.key for unit in units[:2]}
        assert store.claim(units[2]), "what was not begun is free"
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_a_second_ctrl_c_stops_at_once_and_gives_the_unit_back(make_unit, tmp_path):
    class Interrupted(Executor):
        def submit(self, unit, place):
            for _ in range(2):
                os.kill(os.getpid(), signal.SIGINT)
            return super().submit(unit, place)

    with pytest.raises(KeyboardInterrupt), Store(tmp_path / "study.sqlite") as store:
        execute([make_unit()], Place(), store, Interrupted())
    with Store(tmp_path / "study.sqlite") as store:
        assert len(store) == 0
        assert store.claim(make_unit())


def test_what_others_measure_is_waited_for_and_shown(make_unit, tmp_path):
    units = [make_unit(0), make_unit(1)]
    with Store(tmp_path / "study.sqlite") as mine, Store(tmp_path / "study.sqlite") as theirs:
        assert theirs.claim(units[0])
        heard = []

        def when_waiting(others):
            assert others == 1
            theirs.finish(units[0], {"outcome": "finished", "psnr": [9.0], "seconds": 1.0})

        executor = Counting()
        report = execute(units, Place(), mine, executor, lambda unit, row: heard.append(unit), when_waiting)
    assert executor.done == [units[1]]
    assert heard == [units[1], units[0]]
    assert report.done == 1


def test_one_way_of_running_at_a_time(plan, run):
    with pytest.raises(ConfigError, match="give only one of them"):
        run(plan(), jobs=2, scheduler="tcp://127.0.0.1:1")
    with pytest.raises(ConfigError, match="jobs = 0 must be a whole number of at least 1"):
        run(plan(), jobs=0)


def test_from_a_notebook_a_failed_unit_is_an_error(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"units failed; client 0: batch_size = 17 must be at most"):
        study.table(
            1,
            clients=1,
            preset="demo",
            model="mlp",
            methods=["fedsgd"],
            settings=["1x4x16"],
            changes={"batch_size": 17},
            progress="none",
        )


# Presenting


@pytest.fixture
def results(plan):
    """Invented rows, so that every number is known."""
    one = plan(clients=4, methods=["fedsgd", "demo"])
    rows = {}
    for entry in one.entries:
        if entry.is_wanted:
            for number, unit in enumerate(entry.units):
                rows[unit.key] = {
                    "key": unit.key,
                    "settings": unit.settings,
                    "outcome": "finished" if number else "diverged",
                    "psnr": [20.0 + number] * 16,
                    "ssim": [0.5] * 15 + [None],
                    "recovered_percent": 10.0 * number,
                    "label_errors": 0.0,
                    "seconds": 2.0,
                    "peak_memory": 10**9,
                }
    return Results(one, rows)


def test_numbers_are_means_with_standard_errors_over_clients(results):
    (line, _) = results.lines
    estimate = line.estimate("psnr")
    assert estimate.mean == 21.5
    assert estimate.error == pytest.approx(statistics.stdev([20, 21, 22, 23]) / math.sqrt(4))
    assert line.estimate("recovered").text(1) == "15.0 ± 6.5"
    assert line.estimate("ssim").mean == 0.5


def test_seeds_of_one_client_count_as_one_client(plan):
    one = plan(clients=2, seeds=[0, 1])
    (entry,) = [entry for entry in one.entries if entry.is_wanted]
    rows = {
        unit.key: {
            "settings": unit.settings,
            "outcome": "finished",
            "psnr": [10.0 * unit.clients[0] + 2 * unit.seed],
            "seconds": 1.0,
        }
        for unit in entry.units
    }
    estimate = Line(entry, tuple(rows.values())).estimate("psnr")
    assert estimate.mean == 6
    assert estimate.error == pytest.approx(statistics.stdev([1, 11]) / math.sqrt(2))


def test_one_client_has_no_error(plan, run):
    results, _ = run(plan(clients=1))
    (line,) = [line for line in results.lines if line.rows]
    assert line.estimate("psnr").error is None
    assert "±" not in line.estimate("psnr").text(2)


def test_text_and_markdown_show_every_method_and_what_diverged(results):
    for text in (str(results), results.markdown(), results._repr_html_()):
        assert "fedsgd" in text
        assert "demo" in text
        assert "21.50 ± 0.65" in text
        assert "4/4 (1 diverged)" in text
        assert "label errors" not in text, "known labels have no errors"
    assert len({line.count("|") for line in results.markdown().splitlines() if "|" in line}) == 1


def test_csv_and_frame_hold_full_numbers(results):
    pandas = pytest.importorskip("pandas")
    (first, _) = csv.DictReader(io.StringIO(results.csv()))
    assert float(first["psnr"]) == 21.5
    assert float(first["psnr_error"]) == pytest.approx(0.6454972)
    frame = results.frame()
    assert isinstance(frame, pandas.DataFrame)
    assert list(frame["method"]) == ["fedsgd", "demo"]


def test_latex_is_escaped(results):
    text = results.latex()
    assert r"recovered \%" in text
    assert r"$\pm$" in text
    assert "_" not in text.replace(r"\_", "").replace("toprule", "")
    rows = [line for line in text.splitlines() if line.endswith(r"\\")]
    assert len({line.count("&") for line in rows}) == 1


def test_the_papers_numbers_stand_beside_ours_and_are_marked_in_plots(tmp_path):
    one = study.plan_table(1, "glyphs", clients=1)
    entries = [
        entry for entry in one.entries if (entry.setting, entry.method) in (("10x5x50", "shared"), ("1x5x50", "fedsgd"))
    ]
    from dataclasses import replace

    entries = [replace(entry, published={"recovered": 59.9, "psnr": 20.3}) for entry in entries]
    rows = {
        unit.key: {
            "settings": unit.settings,
            "outcome": "finished",
            "psnr": [19.0],
            "ssim": [0.5],
            "recovered_percent": 50.0,
            "seconds": 1.0,
        }
        for unit in entries[0].units
    }
    results = Results(replace(one, entries=tuple(entries)), rows)
    assert "59.9      20.3" in str(results)
    figure = results.figure()
    crosses = [line for axes in figure.axes for line in axes.lines if line.get_marker() == "x"]
    assert sorted({float(line.get_ydata()[0]) for line in crosses}) == [20.3, 59.9]


def test_quality_over_time_is_the_mean_over_clients_at_the_steps_that_all_reached():
    from dataclasses import replace

    plan = study.plan_table(1, "glyphs", clients=2, methods=["fedsgd"], settings=["1x5x50"])
    entry = next(entry for entry in plan.entries if entry.method == "fedsgd" and entry.setting == "1x5x50")
    curves = [[[25, 1.0, 10.0, 0.0, 5.0], [50, 2.0, 12.0, 20.0, 4.0]], [[25, 3.0, 14.0, 40.0, 5.0]]]
    rows = {
        unit.key: {"settings": unit.settings, "outcome": "finished", "psnr": [1.0], "ssim": [1.0], "curve": curve}
        for unit, curve in zip(entry.units, curves, strict=True)
    }
    recovered, psnr = Results(replace(plan, entries=(entry,)), rows).figure_over_time().axes
    assert [line.get_xydata().tolist() for line in recovered.lines] == [[[2.0, 20.0]]] * 2
    assert [line.get_xydata().tolist() for line in psnr.lines] == [[[2.0, 12.0]]] * 2
    assert [text.get_text() for text in recovered.get_legend().get_texts()] == ["fedsgd (2)"]
    # 0 and 40 %: a standard error of 20.
    [band] = recovered.collections
    assert band.get_paths()[0].get_extents().intervaly == pytest.approx([0.0, 40.0])

    with pytest.raises(ConfigError, match="no attack has been measured"):
        Results(plan, {}).figure_over_time()


@pytest.mark.parametrize("ending", FORMATS)
def test_every_format_is_written(results, tmp_path, ending):
    results.write(tmp_path / f"table{ending}")
    content = (tmp_path / f"table{ending}").read_bytes()
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml", ".html": b"<!doctype html>"}
    assert content.startswith(starts.get(ending, b""))
    assert len(content) > 100


def test_another_ending_is_refused(results, tmp_path):
    with pytest.raises(ConfigError, match=r"'\.doc' is unknown.*\.md, \.csv, \.tex"):
        results.write(tmp_path / "table.doc")


# Sweeps

SWEEP = """
title = "my grid"
dataset = "glyphs"
clients = 2
num_images = 4
model = "mlp"

[client]
epochs = 1
batch_size = 4

[attack]
method = ["fedsgd", "surrogate"]
steps = 2
step_size = [0.1, 0.4]
"""


def test_a_sweep_measures_every_combination(tmp_path):
    (tmp_path / "grid.toml").write_text(SWEEP)
    results = study.sweep(tmp_path / "grid.toml", store=tmp_path / "study.sqlite", progress="none")
    found = {(line.entry.setting, line.entry.method): len(line.rows) for line in results.lines}
    assert found == {(f"step_size {size}", method): 2 for size in (0.1, 0.4) for method in ("fedsgd", "surrogate")}
    assert str(results).startswith("my grid")


def test_a_sweep_over_aggregates_and_data_of_a_variable(tmp_path, monkeypatch):
    grid = SWEEP.replace("clients = 2", 'clients = "1,3"\nnum_clients = [1, 2]').replace("[0.1, 0.4]", "0.1")
    (tmp_path / "grid.toml").write_text(grid)
    groups = {
        entry.setting: [unit.clients for unit in entry.units] for entry in plan_sweep(tmp_path / "grid.toml").entries
    }
    assert groups == {"num_clients 1": [(1,), (3,)], "num_clients 2": [(1, 2), (3, 4)]}
    (tmp_path / "grid.toml").write_text(grid.replace('"glyphs"', '"femnist"\ndata = "$OUR_DATA"'))
    monkeypatch.setenv("OUR_DATA", str(tmp_path / "none.npz"))
    with pytest.raises(DataError, match=r"none\.npz"):
        plan_sweep(tmp_path / "grid.toml")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("[attack]", "[atack]"), r"grid\.toml: setting = 'atack' is unknown; did you mean 'attack'"),
        (("steps = 2", "step = 2"), r"\[attack\] = 'step' is unknown; did you mean"),
        (("epochs = 1", "epoch = 1"), "did you mean 'epochs'"),
        (("num_images = 4", "defence = 4"), r"defence = 4 must be a section, \[defence\]"),
        (("batch_size = 4", "batch_size = []"), "at least one value"),
        (("clients = 2", "clients = 2 2"), "cannot be read .*expected a sweep in TOML"),
        (("num_images = 4", "num_images = 4\nnum_clients = 0"), "num_clients = 0 must be a whole number"),
        (("num_images = 4", "num_images = 0"), "num_images = 0 must be a whole number"),
        (('model = "mlp"', 'model = "mpl"'), "did you mean 'mlp'"),
        (("steps = 2", "steps = 0"), "steps = 0 must be a whole number"),
    ],
)
def test_a_wrong_sweep_is_reported(tmp_path, change, message):
    (tmp_path / "grid.toml").write_text(SWEEP.replace(*change))
    with pytest.raises((ConfigError, DataError), match=message):
        study.sweep(tmp_path / "grid.toml", store=tmp_path / "study.sqlite", progress="none")


def test_a_missing_sweep_is_reported(tmp_path):
    with pytest.raises(DataError, match=r"cannot be read .*No such file.*expected a sweep in TOML"):
        study.sweep(tmp_path / "grid.toml")
