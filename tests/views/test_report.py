"""The report: one well-formed HTML file with a text for every picture, that asks nothing of the network."""

import re
from html.parser import HTMLParser

import numpy as np
import pytest

import workbench as wb
from workbench.config import label_of
from workbench.errors import ConfigError, DataError
from workbench.views.report import report_html, write_report

VOID = {"meta", "img", "source", "br", "link"}
SECTIONS = [
    "Result",
    "What was attacked",
    "What the server saw",
    "Label counts, from the weights alone",
    "Replay",
    "Truth and reconstruction",
    "Span of the update",
    "Epochs",
    "Loss",
    "Settings",
    "How to reproduce it",
]


class Page(HTMLParser):
    """Collects what a reader meets, and complains about tags that do not close."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.headings: list[str] = []
        self.feed(html)
        self.close()
        assert self.open == [], f"never closed: {self.open}"

    def handle_starttag(self, tag, attributes):
        names = [name for name, _ in attributes]
        assert len(names) == len(set(names)), f"<{tag}> has an attribute twice: {names}"
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another tag"

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("style", "title", "script"):
            self.words.append(data)
        if self.open and self.open[-1] == "h2":
            self.headings.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


def check(html: str) -> Page:
    page = Page(html)
    images = [attributes for tag, attributes in page.tags if tag == "img"]
    assert images
    for image in images:
        assert image.get("alt"), f"an image has no text: {str(image)[:200]}"
        assert image["src"].startswith("data:image/png;base64,")
    for tag, attributes in page.tags:
        for name in ("src", "srcset", "href", "action", "data"):
            value = attributes.get(name)
            assert value is None or value.startswith("data:"), f"<{tag}> asks for {value[:80]}"
    without_names = html.replace("http://www.w3.org/2000/svg", "")  # the name of a format, which nobody fetches
    assert not re.search(r"url\(|@import|https?://", without_names), "something would be fetched"
    assert "None" not in page.text
    assert "nan" not in page.text
    return page


@pytest.fixture(scope="module")
def session(model, observation, client):
    config = wb.AttackConfig.preset("demo", steps=8, warm_start_steps=4)
    attack = wb.AttackSession(model, observation, config, label_counts=client.label_counts)
    attack.step(6)
    attack.steer(prior_weight=300.0)
    attack.step(6)
    return attack


@pytest.fixture(scope="module")
def page(session, client):
    return check(report_html(session, client, settings={"defence": "none"}, command="workbench demo"))


def test_a_report_has_all_its_sections_and_numbers(page, session, client):
    assert page.headings == SECTIONS
    quality = wb.score(session.reconstruction(), client)
    for words in (
        f"{quality.recovered_percent:.1f} %",
        f"{quality.psnr.mean():.2f} dB",
        "0 of 5",
        "glyphs, client 0",
        "5 of 28×28×1",
        "defence none",
        "workbench demo",
        "12 of 12",
        f"{label_of('tv_weight')} {session.config.tv_weight}",
        f"{label_of('label_method')} {session.config.label_method}",
        "honest-but-curious",
    ):
        assert words in page.text, f"the report does not say {words!r}"
    best = [float(value) for value in re.findall(r"(-?[\d.]+) dB", page.text.split("their frame is thick.")[1])]
    assert best == sorted(best, reverse=True)
    assert len(best) == 5
    confidence = session.reconstruction().confidence[quality.order[np.argsort(-quality.psnr)]]
    found = re.findall(r"[\d.]+ dB ([\d.]+)", page.text.split("their frame is thick.")[1])
    assert found == [f"{value:.2f}" for value in confidence], "the confidences are missing or another image's"


def test_the_purpose_is_said_once(page):
    assert page.text.count("auditing") == 1


def test_without_truth_nothing_is_compared_and_without_a_command_python_is_shown(session):
    page = check(report_html(session))
    assert "wb.AttackSession(model, observation, wb.AttackConfig(steps=8," in page.text
    assert "Reconstruction" in page.headings
    assert "recovered %" not in page.text
    assert "truth" not in page.text.lower()


def test_without_truth_images_have_their_confidence_best_first_and_the_span_is_shown(session):
    page = check(report_html(session))
    values = page.text.split("from 0 to 1.")[1].split("Span of the update")[0].split()
    expected = [f"{value:.2f}" for value in sorted(session.reconstruction().confidence, reverse=True)]
    assert values == expected, "every image has its confidence, the largest first"
    text = page.text.split("Span of the update")[1]
    for words in (str(session.spectrum), str(session.spectrum.image_count), "small span residual", "Step 12"):
        assert words in text, f"the section does not say {words!r}"


def test_where_the_span_cannot_help_the_report_says_why(client):
    model = wb.models.mlp(widths=(1,))
    seen = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=1, batch_size=5))
    attack = wb.AttackSession(model, seen, wb.AttackConfig(steps=1))
    assert attack.reconstruction().confidence is None, "this span helps, so the test checks nothing"
    page = check(report_html(attack))
    assert "No image has a confidence" in page.text
    assert "too many images for its span to help" in page.text
    assert sum(attributes.get("alt", "").startswith("Reconstruction ") for _, attributes in page.tags) == 5


def test_several_methods_share_what_is_the_same(session, model, observation, client):
    other = wb.AttackSession(model, observation, wb.AttackConfig(method="fedsgd", steps=3))
    other.step(3)
    page = check(report_html([session, other], client))
    assert page.headings.count("What the server saw") == 1
    assert [name for name in page.headings if name.startswith("Loss")] == ["Loss: ours_prior", "Loss: fedsgd"]
    assert "nothing to match" in page.text


def test_a_session_before_its_first_step_has_a_report_too(model, observation, client):
    page = check(report_html(wb.AttackSession(model, observation), client))
    assert "There are no steps yet." in page.text
    assert "no step made yet" in page.text


def test_an_aggregate_shows_the_images_of_all_its_clients(model):
    clients = [wb.load_dataset("glyphs").client(index, num_images=4) for index in (0, 1)]
    config = wb.ClientConfig(epochs=2, batch_size=2)
    both = wb.aggregate([wb.client_update(model, model.init(), client, config) for client in clients])
    attack = wb.AttackSession(model, both, wb.AttackConfig(steps=2))
    attack.step(2)
    page = check(report_html(attack, clients))
    assert sum(attributes.get("alt", "").startswith("Its reconstruction") for _, attributes in page.tags) == 8
    assert "glyphs, client 0; glyphs, client 1" in page.text


def test_colour_images_are_shown():
    client = wb.load_dataset("photos").client(0, num_images=4)
    model = wb.models.mlp(image_shape=(32, 32, 3), widths=(16,), num_classes=100)
    seen = wb.client_update(model, model.init(), client, wb.ClientConfig(epochs=2, batch_size=2))
    check(report_html(wb.AttackSession(model, seen, wb.AttackConfig(steps=1)), client))


def test_no_text_can_become_markup(session, client):
    nasty = "$\\frac$<script>alert('x')</script>\" onload=\"&"
    names = (nasty, *client.class_names[1:])
    labels = np.zeros_like(client.labels)
    truth = wb.ClientData(client.images, labels, names, client.normalization, name=nasty)
    page = check(report_html(session, truth, settings={nasty: nasty}, command=nasty))
    scripts = [attributes for tag, attributes in page.tags if tag == "script"]
    assert scripts == [{"type": "application/json", "id": "attack0"}, {"type": "module"}], "a text became a script"
    assert not any("onload" in attributes for _, attributes in page.tags)
    assert page.text.count("<script>alert('x')</script>") >= 4


def test_the_file_is_whole_or_not_there(session, client, tmp_path):
    path = tmp_path / "new folder" / "report.html"
    write_report(path, session, client)
    check(path.read_text())
    assert [file.name for file in path.parent.iterdir()] == ["report.html"], "nothing is left beside it"
    with pytest.raises(DataError, match="cannot be written"):
        write_report(path.parent, session, client)
    assert path.stat().st_size < 2_000_000


@pytest.mark.parametrize("wrong", [[], "session", None, [1]])
def test_what_is_not_a_session_is_refused(wrong):
    with pytest.raises(ConfigError, match="must be an AttackSession"):
        report_html(wrong)
