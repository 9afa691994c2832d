"""The report and its JSON: everything an auditor needs is there, with the truth and without it."""

import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import workbench as wb
from workbench.auditing import report
from workbench.auditing.twin import Calibration, Try
from workbench.data import Truth

DOCS = Path(__file__).parents[2] / "docs" / "audit_report.md"
HEADINGS = [
    "Images",
    "Image by image",
    "Label counts",
    "Defences",
    "Membership",
    "Attacks",
    "Does the simulation fit this client?",
    "The twin",
    "Threat model and assumptions",
    "What this does not show",
    "How to repeat it",
]


class Page(HTMLParser):
    def __init__(self, html):
        super().__init__()
        self.open, self.words, self.headings, self.images, self.policy = [], [], [], [], ""
        self.feed(html)
        self.close()
        assert self.open == [], f"never closed: {self.open}"
        self.text = " ".join(" ".join(self.words).split())

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "meta" and "http-equiv" in found:
            self.policy = found["content"]
        if tag == "img":
            self.images.append(found)
        for name in ("src", "srcset", "href"):
            assert found.get(name, "data:").startswith("data:"), f"<{tag}> would fetch {found[name][:80]}"
        if tag not in ("meta", "img", "source", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title"):
            self.words.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)


@pytest.fixture(scope="module")
def audit(model, observation, quick, client, dataset):
    """With everything in it: a twin, defences, a test set and pictures."""
    other, defences = dataset.client(5, num_images=5), ["dp_sgd 1.0"]
    found = wb.audit(
        model, observation, quick, client, other, defences, dataset.client(7, num_images=20), controls=other, seeds=[3]
    )
    tried = Try("best", quick, found.found, wb.score(found.found, client))
    return replace(found, calibration=Calibration((tried,), Truth.of(client)))


@pytest.fixture(scope="module")
def blind(model, observation, quick):
    return wb.audit(model, observation, quick, seeds=[3])


def written(audit, tmp_path, **origin):
    audit.report(tmp_path / "audit.html", **origin)
    return Page((tmp_path / "audit.html").read_text())


def test_the_report_has_all_parts_and_the_verdict_first(audit, tmp_path, client):
    page = written(audit, tmp_path, command="workbench audit a b", files={"a": "0123abc"})
    assert page.headings == HEADINGS
    for words in (*audit.verdict, audit.mismatch, audit.recommendation, "workbench audit a b", "0123abc", "client 0"):
        assert words in page.text, f"the report does not say {words!r}"
    assert page.text.index(audit.verdict[0]) < page.text.index("Image by image")
    assert "No success is no proof" in page.text
    assert "Poisson" in page.text, "there is a dp_sgd, so epsilon is explained"
    pairs = [one for one in page.images if one["alt"].startswith(("True image", "Its reconstruction"))]
    assert len(pairs) == 2 * client.num_images
    assert all(one["alt"] for one in page.images), "a picture has no text"
    for word in ("None", "nan"):
        assert word not in page.text.split(), f"{word} is no word for people"


def test_the_most_exposed_image_comes_first(audit, tmp_path):
    page = written(audit, tmp_path)
    best = max(audit.images, key=lambda one: one["psnr"])
    first = next(one["alt"] for one in page.images if one["alt"].startswith("True image"))
    assert first == f"True image {best['number']}, class {best['class']}"


def test_it_works_without_the_truth(blind, tmp_path):
    page = written(blind, tmp_path)
    assert "Membership" not in page.headings
    assert "No variant was tried." in page.text
    assert "confidence" in page.text
    assert "dB" not in page.text, "there is no PSNR without the truth"
    assert "wb.audit(model, observation, wb.AttackConfig(" in page.text
    assert len([one for one in page.images if one["alt"].startswith("Reconstruction")]) == 5


def test_failed_checks_and_a_stopped_audit_are_said_at_the_top(audit, tmp_path):
    from workbench.auditing.checks import Checks, Finding

    checks = Checks((Finding("bias", False, "It moved <too> far.", "Check the rate."),))
    page = written(replace(audit, checks=checks, is_complete=False), tmp_path)
    top = page.text[: page.text.index("Image by image")]
    assert "bias: It moved <too> far." in top
    assert "The audit was stopped" in top


def test_a_page_fetches_nothing_and_runs_no_script(audit, tmp_path):
    page = written(audit, tmp_path)
    assert "default-src 'none'" in page.policy
    html = (tmp_path / "audit.html").read_text()
    assert "<script" not in html
    assert not re.search(r"url\(|@import|https?://", html)
    assert "@media print" in html


def paths(value, before=""):
    """Every name in nested JSON, as ``a.b[].c``; counts by class and hashes by name are data and not names."""
    if isinstance(value, dict) and before not in (
        "labels.counts",
        "labels.true_counts",
        "reproduction.sha256",
        "settings",
    ):
        for name, one in value.items():
            yield f"{before}.{name}".strip(".")
            yield from paths(one, f"{before}.{name}".strip("."))
    if isinstance(value, list) and value and isinstance(value[0], dict):
        yield from paths(value[0], f"{before}[]")


def test_the_json_is_plain_and_every_name_in_it_is_documented(audit, blind, tmp_path):
    audit.json(tmp_path / "audit.json", command="workbench audit a b")
    values = json.loads((tmp_path / "audit.json").read_text(), parse_constant=pytest.fail)
    assert values["format"] == "fedavg-leakage-audit"
    assert values["verdict"] == list(audit.verdict)
    assert len(values["images"]) == 5
    documented = set(re.findall(r"^\| `([^`]+)` \|", DOCS.read_text(), re.MULTILINE))
    found = set(paths(values))
    assert found <= documented, f"not in docs/audit_report.md: {sorted(found - documented)}"
    assert documented <= found, f"documented, but not in the JSON: {sorted(documented - found)}"
    assert set(blind.summary()) == set(values), "the same names without the truth"


def test_numbers_are_repeatable_and_inputs_have_hashes(audit, observation, client):
    made = audit.summary()["reproduction"]
    assert made["seeds"] == [3]
    assert set(made["sha256"]) == {
        "network",
        "server weights",
        "client weights",
        "truth",
        "pictures",
        "controls",
        "test set",
    }
    assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in made["sha256"].values())
    assert made["sha256"]["server weights"] != made["sha256"]["client weights"]
    assert made["device"].startswith("cpu:0")
    assert made["finished"] == max(one.finished for one in (*audit.attacks, *audit.variants[-1].attacks))


def test_everything_that_was_given_has_a_hash(model, observation, quick, client):
    probe = (client.images, np.zeros((5, 62), np.float32))
    rehearsal = (client.images, client.labels, np.arange(5)[None])
    hashed = {}
    for number in range(2):
        settings = wb.calibrate(model, observation, client if number else None, tries=1, steps=1)
        found = wb.audit(model, observation, settings, probe=probe, rehearsal=rehearsal, seeds=[number])
        hashed[number] = found.summary()["reproduction"]["sha256"]
        assert settings.call in found.summary()["reproduction"]["command"]
    names = {"network", "server weights", "client weights", "twin", "probe", "rehearsal"}
    assert set(hashed[0]) == set(hashed[1]) == names
    assert {name for name in names if hashed[0][name] != hashed[1][name]} == {"twin"}


def test_a_single_image_has_a_confidence_and_residuals_that_are_not_finite_give_none(model, dataset, quick, tmp_path):
    one = dataset.client(0, num_images=1)
    seen = wb.client_update(model, model.init(), one, wb.ClientConfig(epochs=1, batch_size=1))
    alone = wb.audit(model, seen, quick, seeds=[0])
    assert 0 < alone.images[0]["confidence"] <= 1
    written(alone, tmp_path)
    unknown = replace(alone.found, residuals=np.array([np.nan], np.float32))
    alone = replace(alone, attacks=(unknown,))
    assert alone.images[0]["confidence"] is None
    written(alone, tmp_path)


def test_hostile_class_names_are_text(model, observation, quick, client, tmp_path):
    names = ("<script>alert(1)</script>", "$\\frac{$", "a'onerror='x", "two\nlines", *map(str, range(4, 62)))
    hostile = replace(client, labels=np.arange(5, dtype=np.int32), class_names=names, name="<b>'")
    found = wb.audit(model, observation, replace(quick, steps=1), hostile, seeds=[0])
    page = written(found, tmp_path)
    assert "<script" not in (tmp_path / "audit.html").read_text()
    assert "<script>alert(1)</script>" in page.text
    assert {f"True image {place + 1}, class {name}" for place, name in enumerate(names[:4])} <= {
        one["alt"] for one in page.images
    }


def test_leakage_is_drawn_against_utility_where_there_is_a_test_set(audit, blind, tmp_path, monkeypatch):
    drawn, ranges, original = [], [], report.lines_figure

    def draw(points, **options):
        drawn.append(points)
        ranges.append(options["y_range"])
        return original(points, **options)

    monkeypatch.setattr(report, "lines_figure", draw)
    written(audit, tmp_path)
    rows = {row["name"]: row for row in audit.defences}
    assert drawn[0] == {
        name: ([row["accuracy_percent"]], [100 * row["recognisable"] / row["num_images"]]) for name, row in rows.items()
    }
    assert ranges[0] == (-5, 105), "all shares, from none to all, are inside"
    # Without one of the accuracies, the others are still drawn.
    first, second = audit.variants
    written(replace(audit, variants=(first, replace(second, accuracy=None))), tmp_path)
    assert list(drawn[-1]) == ["no defence"]
