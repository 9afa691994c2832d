"""The report of an audit: one HTML file without external resources, for a screen and for paper."""

from collections.abc import Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np
from numpy.typing import NDArray

from workbench.views.figures import bars_figure, label_figure, lines_figure
from workbench.views.html import bullets, chart, fact_list, figure, filled_table, page, section

__all__ = ["report_html"]

_TITLE = "Audit: what an update of federated averaging reveals"
_POLICY = """<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; \
style-src 'unsafe-inline'">"""
_STYLE = """
.verdict { border-left: 4px solid var(--accent); padding: 0.25rem 0 0.25rem 1rem; font-size: 1.15rem; }
.verdict p { margin: 0.4rem 0; }
.warning { border-left: 4px solid #d55e00; padding: 0.25rem 0 0.25rem 1rem; margin-top: 0.75rem; }
.warning p { margin: 0.2rem 0; }
.texts td:last-child { white-space: normal; }
.wide + .wide { margin-top: 1rem; }
li { margin: 0.3rem 0; }
"""
_THREAT = """<p>The server is honest but curious: it follows the protocol and reads what it gets. It knows the weights
that it sent and those that came back, and the facts below. It does not know the images, their labels, or the order in
which the client used them.</p>"""

Values = Mapping[str, Any]


def report_html(
    audit: Values, images: NDArray[np.float32], true_images: NDArray[np.float32] | None, class_names: Sequence[str]
) -> str:
    """The text of the report.

    Args:
        audit: `Audit.summary`.
        images: [n, H, W, C] the reconstructions, in the order of ``audit["images"]``.
        true_images: [n, H, W, C] in the same order; None where they are not known.
        class_names: of all classes.
    """
    parts = [
        f"<h1>{_TITLE}</h1>",
        _verdict(audit),
        _pictures(audit, images, true_images),
        _images(audit),
        _labels(audit, class_names),
        _defences(audit["defences"]),
        _membership(audit["membership"]),
        _attacks(audit),
        _checks(audit),
        _twin(audit["twin"]),
        section("Threat model and assumptions", _THREAT + fact_list(_target(audit))),
        section("What this does not show", bullets(audit["limits"])),
        _reproduction(audit["reproduction"]),
    ]
    return page(_TITLE, parts, policy=_POLICY, style=_STYLE)


def _verdict(audit: Values) -> str:
    lines = "".join(f"<p>{escape(sentence)}</p>" for sentence in audit["verdict"])
    warnings = [
        *(f"{one['name']}: {one['sentence']}" for one in audit["checks"] if not one["is_ok"]),
        *[audit["mismatch"]["sentence"]] * (not audit["mismatch"]["is_ok"]),
        *["The audit was stopped; this is what was finished."] * (not audit["is_complete"]),
    ]
    doubts = f"<div class='warning'><p>Before you rely on this:</p>{bullets(warnings)}</div>" if warnings else ""
    advice = audit["defences"]["recommendation"]
    return f"<div class='verdict'>{lines}</div>{doubts}" + (f"<p>{escape(advice)}</p>" if advice else "")


def _order(audit: Values) -> list[int]:
    """The images, the most exposed first."""
    images = audit["images"]
    return sorted(range(len(images)), key=lambda index: -(images[index]["psnr"] or images[index]["confidence"] or 0))


def _pictures(audit: Values, images: NDArray[np.float32], true_images: NDArray[np.float32] | None) -> str:
    figures = []
    for index in _order(audit):
        one = audit["images"][index]
        shown, value = {f"Reconstruction {one['number']}": images[index]}, _cell(one["confidence"], 2)
        if true_images is not None:
            value = _cell(one["psnr"], 1, " dB")
            true = {f"True image {one['number']}, class {one['class']}": true_images[index]}
            shown = {**true, f"Its reconstruction, {value}": images[index]}
        mark = " class='recovered'" * bool(one["is_recognisable"])
        figures.append(figure(shown, f"{one['number']}: {value}", mark))
    above, value = "The true image above, its reconstruction below", "PSNR"
    if true_images is None:
        above, value = "The reconstructions", "confidence"
    text = f"{above}, the most exposed first. A thick frame means recognisable. Below: number and {value}."
    return section("Images", f"<p>{text}</p><div class='grid'>{''.join(figures)}</div>")


def _images(audit: Values) -> str:
    rows = [
        {
            "image": str(one["number"]),
            "class": str(one["class"]),
            "PSNR": _cell(one["psnr"], 1, " dB"),
            "SSIM": _cell(one["ssim"], 2),
            "confidence": _cell(one["confidence"], 2),
            "recognisable": _cell(one["is_recognisable"]),
        }
        for one in (audit["images"][index] for index in _order(audit))
    ]
    return section("Image by image", filled_table(rows))


def _labels(audit: Values, class_names: Sequence[str]) -> str:
    labels = audit["labels"]
    counts = {"used by the attack": np.array([labels["counts"].get(name, 0) for name in class_names])}
    true = labels["true_counts"]
    true_counts = None if true is None else np.array([true.get(name, 0) for name in class_names])
    text = f"The label counts were {labels['source']}."
    if true is not None and labels["source"] == "recovered":
        text += f" {labels['errors']:g} of {sum(true.values())} are wrong."
    return section("Label counts", chart(partial(label_figure, counts, true_counts, class_names), text))


def _defences(tried: Values) -> str:
    if not tried["rows"]:
        return section("Defences", "<p>No variant was tried.</p>")
    twins = " Their clients had the twin's images, because the client's are not known." * (
        tried["trained_on"] == "twin"
    )
    rows = [
        {
            "variant": one["name"],
            "recognisable": "-" if one["num_images"] is None else f"{one['recognisable']} of {one['num_images']}",
            "mean PSNR": _cell(one["mean_psnr"], 1, " dB"),
            "label errors": _cell(one["label_errors"], 0),
            "accuracy": _cell(one["accuracy_percent"], 1, " %"),
            "ε (left out)": _cell(one["epsilon_remove"], 2),
            "ε (replaced)": _cell(one["epsilon_replace"], 2),
        }
        for one in tried["rows"]
    ]
    done = [one for one in tried["rows"] if one["num_images"]]
    shares = {one["name"]: 100 * one["recognisable"] / one["num_images"] for one in done}
    summary = "; ".join(f"{name}: {share:.0f} % recognisable" for name, share in shares.items())
    y = "recognisable images (%)"
    if measured := [one for one in done if one["accuracy_percent"] is not None]:
        points = {one["name"]: ([one["accuracy_percent"]], [shares[one["name"]]]) for one in measured}
        x = f"test accuracy after {tried['rounds']} round{'s' * (tried['rounds'] > 1)} (%)"
        draw = partial(lines_figure, points, title="Leakage (low is good) against utility", x=x, y=y, y_range=(-5, 105))
    else:
        draw = partial(bars_figure, {y: list(shares.values())}, list(shares), title="Leakage", x="variant", y=y)
    delta = f" ε is the epsilon of dp_sgd at delta {tried['delta']:g}." * any(
        one["epsilon_remove"] is not None for one in done
    )
    text = f"<p>The same client with a defence or another schedule, attacked in the same way.{twins}{delta}</p>"
    body = (
        text
        + filled_table(rows)
        + bullets([f"{one['name']}: {one['failure']}" for one in tried["rows"] if one["failure"]])
    )
    return section("Defences", body + (chart(draw, summary) if done else ""))


def _membership(found: Values | None) -> str:
    if found is None:
        return ""
    members = found["is_member"] or [None] * len(found["residuals"] or [])
    rows = [
        {"picture": str(number), "residual": f"{residual:.2g}", "the client's": _cell(member)}
        for number, (residual, member) in enumerate(zip(found["residuals"] or [], members, strict=True), 1)
    ]
    return section("Membership", f"<p>{escape(found['sentence'])}</p>" + (filled_table(rows) if rows else ""))


def _attacks(audit: Values) -> str:
    rows = [
        {
            "seed": str(one["seed"]),
            "recognisable": f"{_cell(one['recognisable'], 0)} of {one['num_images']}",
            "mean PSNR": _cell(one["mean_psnr"], 1, " dB"),
            "mean confidence": _cell(one["mean_confidence"], 2),
            "update left": f"{one['update_left']:.2g}",
            "steps": str(one["steps"]),
            "outcome": one["outcome"],
            "reported": _cell(one["is_reported"]),
        }
        for one in audit["attacks"]
    ]
    text = "<p>Reported is the attack that an attacker would keep, who does not see the truth.</p>"
    return section("Attacks", text + filled_table(rows))


def _checks(audit: Values) -> str:
    rows = [
        {
            "check": one["name"],
            "result": "passed" if one["is_ok"] else "failed",
            "finding": " ".join(filter(None, (one["sentence"], one["advice"]))),
        }
        for one in audit["checks"]
    ]
    mismatch = f"<p>{escape(audit['mismatch']['sentence'])}</p>"
    return section("Does the simulation fit this client?", mismatch + f"<div class='texts'>{filled_table(rows)}</div>")


def _twin(twin: Values | None) -> str:
    if twin is None:
        return section("The twin", "<p>No twin was attacked, so the settings are not calibrated.</p>")
    text = (
        f"<p>A twin trained from the same weights in the same way, on other images ({escape(twin['images'])}). The "
        f"best attack reaches {twin['psnr']:.1f} dB on it (images of one colour: {twin['blank_psnr']:.1f} dB) and "
        f"leaves {twin['yardstick']:.2g} of the update distance.</p>"
    )
    rows = [
        {
            "settings": one["name"],
            "mean PSNR": _cell(one["psnr"], 1, " dB"),
            "recognisable": _cell(one["recovered_percent"], 0, " %"),
            "update left": f"{one['update_left']:.2g}",
            "chosen": _cell(one["is_chosen"]),
        }
        for one in twin["tries"]
    ]
    return section("The twin", text + filled_table(rows))


def _target(audit: Values) -> dict[str, object]:
    target = audit["target"]
    mean, std = (", ".join(f"{value:g}" for value in target["normalization"][name]) for name in ("mean", "std"))
    return {
        "Client": target["truth"] or "its images are not known to this report",
        "Clients in the update": target["num_clients"],
        "Images": f"{target['num_images']} of {'×'.join(map(str, target['image_shape']))}",
        "Classes": target["num_classes"],
        "Network": f"{target['network']}, {target['num_weights']:,} weights",
        "Local training": f"{target['epochs']} epochs, batches of {target['batch_size']}, learning rate "
        f"{target['learning_rate']:g}, {target['training']}",
        "Normalisation": f"mean {mean}, standard deviation {std}",
    }


def _reproduction(made: Values) -> str:
    facts = {
        "Seeds": ", ".join(map(str, made["seeds"])),
        "Versions": ", ".join(f"{name} {number}" for name, number in made["versions"].items()),
        "Device": made["device"],
        "Finished": made["finished"],
        **{f"SHA-256 of {name}": digest for name, digest in made["sha256"].items()},
    }
    return section("How to repeat it", f"<pre><code>{escape(made['command'])}</code></pre>{fact_list(facts)}")


def _cell(value: float | bool | None, digits: int = 1, unit: str = "") -> str:
    if value is None or isinstance(value, bool):
        return {None: "-", True: "yes", False: "no"}[value]
    return f"{value:.{digits}f}{unit}"
