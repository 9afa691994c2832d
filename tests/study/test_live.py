"""A study as it goes, in a terminal, a log and a notebook."""

import io
import re
import sys

import pytest

from workbench.study.show import live


class Screen(io.StringIO):
    """A terminal of text: what a person would see of what was written."""

    def isatty(self):
        return True

    @property
    def lines(self):
        seen = [""]
        for part in re.split(r"(\x1b\[\d*[AJ]|\n)", self.getvalue()):
            if part == "\n":
                seen.append("")
            elif match := re.fullmatch(r"\x1b\[(\d+)A", part):
                # Up, where everything below is cleared next.
                seen = [*seen[: len(seen) - 1 - int(match[1])], ""]
            elif part != "\x1b[J":
                seen[-1] += part
        return seen


@pytest.fixture
def row():
    def make(unit, seconds=2.0):
        return {
            "key": unit.key,
            "settings": unit.settings,
            "outcome": "finished",
            "psnr": [21.0],
            "ssim": [0.5],
            "recovered_percent": 100.0,
            "seconds": seconds,
        }

    return make


def show(plan, rows, make_row, progress):
    shown = live.progress_for(progress, plan, rows, width=1)
    for unit in plan.units:
        rows[unit.key] = make_row(unit)
        shown._last = 0.0
        shown.update(rows[unit.key])
    return shown


def test_a_terminal_shows_one_table_that_grows(plan, row, monkeypatch):
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    one, rows = plan(clients=3), {}
    shown = live.progress_for("text", one, rows, width=1)
    assert "0 of 3 units" in screen.lines
    for unit in one.units[:2]:
        rows[unit.key] = row(unit)
        shown._last = 0.0
        shown.update(rows[unit.key])
    text = "\n".join(screen.lines)
    assert text.count("Table 1") == 1, text
    assert "2 of 3 units, about 2 s left" in text
    assert re.search(r"1x4x16 +fedsgd +2/3 +100\.0 ± 0\.0 +21\.00 ± 0\.00", text), text
    assert "client 1: 100 % recovered, PSNR 21.00 dB" in text
    shown.wait(1)
    shown.close()
    assert screen.lines == [""], "it leaves the place to the final table"


def test_a_small_terminal_is_not_overrun(plan, row, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setenv("LINES", "10")
    screen = Screen()
    monkeypatch.setattr(sys, "stdout", screen)
    show(plan(clients=1, methods=["fedsgd", "shared", "demo"], settings=None), {}, row, "text")
    assert len(screen.lines) <= 10
    assert max(map(len, screen.lines)) < 40
    assert any("units" in line for line in screen.lines), "how far it is must stay in sight"


def test_a_log_gets_lines(plan, row, capsys):
    shown = show(plan(clients=2), {}, row, "text")
    shown.wait(3)
    shown.wait(3)
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "1x4x16, fedsgd, client 0: 100 % recovered, PSNR 21.00 dB, 2 s; 1 of 2 units, about 2 s left"
    assert lines[1].endswith("2 of 2 units")
    assert lines[2:] == ["Waiting for 3 units that other processes are measuring."]


def test_a_notebook_gets_a_widget(plan, row, capsys):
    shown = show(plan(clients=2), {}, row, "widget")
    assert "21.00 ± 0.00" in shown.widget.value
    assert "2 of 2 units; 1x4x16, fedsgd, client 1" in shown.widget.value


def test_the_time_left_counts_what_like_units_took(plan, row):
    one = plan(clients=2, methods=["fedsgd", "shared"])
    fast, slow = (next(u for u in one.units if u.attack.method == method) for method in ("fedsgd", "shared"))
    rows = {fast.key: row(fast, 1.0), slow.key: row(slow, 100.0)}
    assert live.Progress(one, rows, 1).seconds_left() == pytest.approx(101)
    assert live.Progress(one, rows, 2).seconds_left() == pytest.approx(50.5)


def test_another_way_is_refused(plan, run):
    with pytest.raises(ValueError, match=r"progress = 'wigdet' is unknown; did you mean 'widget'"):
        run(plan(), progress="wigdet")
