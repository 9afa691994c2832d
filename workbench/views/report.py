"""A report of one or several attacks on an update: one HTML file without external resources."""

from __future__ import annotations

import base64
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from html import escape
from importlib.metadata import version
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from workbench.attack.attack import Reconstruction
from workbench.config import AttackConfig, ClientConfig
from workbench.data.dataset import ClientData, Truth
from workbench.errors import ConfigError
from workbench.files.writing import write_atomically
from workbench.metrics import Score, label_errors, score
from workbench.session.session import AttackSession
from workbench.settings import settings_of
from workbench.target import Target
from workbench.views import render

__all__ = ["fact_text", "report_html", "write_report"]

PURPOSE = (
    "This report shows what an honest-but-curious server can learn from one update of federated averaging. It is meant "
    "for auditing your federated learning."
)
# With more columns, an epochs sheet is hard to read and the file large.
_MOST_COLUMNS = 10
# Image pixels per CSS pixel: images stay sharp on high-resolution screens and on a projector.
_DENSITY = 2


@dataclass(frozen=True, eq=False)
class _Attack:
    """What the report says about one session."""

    session: AttackSession
    result: Reconstruction
    quality: Score | None  # None if the truth is not known

    @property
    def name(self) -> str:
        return self.session.config.method

    @property
    def best_first(self) -> NDArray[np.int64]:
        """[N] the indices of the true images (without truth, of the reconstructions) in the order of display."""
        if self.quality is None:
            return np.arange(len(self.result.images))
        return np.argsort(-self.quality.psnr, kind="stable")


def write_report(
    path: str | os.PathLike[str],
    session: AttackSession | Sequence[AttackSession],
    truth: ClientData | Sequence[ClientData] | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    command: str | None = None,
) -> None:
    """Write a report as one HTML file, atomically.

    Args:
        path: the file to write; an existing file is replaced.
        session: the attack, or several attacks on the same update, for instance with different methods.
        truth: the client, or all clients of an aggregate, to compare with; None if the truth is not known.
        settings: facts that the session does not know, such as the client's defence.
        command: the command line that reproduces the attack; None shows Python code instead.
    """
    write_atomically(path, report_html(session, truth, settings=settings, command=command).encode())


def report_html(
    session: AttackSession | Sequence[AttackSession],
    truth: ClientData | Sequence[ClientData] | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    command: str | None = None,
) -> str:
    """The text of the report; the arguments are those of `write_report`."""
    sessions = [session] if isinstance(session, AttackSession) else session
    if (
        not isinstance(sessions, Sequence)
        or not sessions
        or not all(isinstance(one, AttackSession) for one in sessions)
    ):
        raise ConfigError("session must be an AttackSession or a non-empty list of them.")
    known = Truth.of(truth)
    attacks = []
    for one in sessions:
        result = one.reconstruction()
        attacks.append(_Attack(one, result, score(result, known) if known else None))
    true_counts = known.label_counts.sum(0) if known else None
    parts = [
        f"<h1>What an update reveals</h1><p>{PURPOSE}</p>",
        _scores(attacks, true_counts),
        _target(attacks[0], known, settings or {}),
        _server_view(attacks[0].session),
        _labels(attacks[0].session, known, true_counts),
    ]
    for attack in attacks:
        title = f": {attack.name}" if len(attacks) > 1 else ""
        parts += [_pictures(attack, known, title), _epochs(attack, known, title), _loss(attack.session, title)]
        parts.append(_settings(attack.session, title))
    parts.append(_reproduction(sessions, command))
    light, dark = _palette("light", note="#57606a"), _palette("dark", note="#a7b0ba")
    return _PAGE.format(light=light, dark=dark, style=_STYLE, body="\n".join(parts))


# Sections


def _scores(attacks: Sequence[_Attack], true_counts: NDArray[np.int64] | None) -> str:
    rows = []
    for attack in attacks:
        session, quality = attack.session, attack.quality
        steps = f"{session.num_steps} of {session.total_steps}"
        row: list[object] = [attack.name]
        if quality is not None and true_counts is not None:
            wrong = label_errors(true_counts, session.label_counts.sum(0))
            row += [
                f"{quality.recovered_percent:.1f} %",
                f"{quality.psnr.mean():.2f} dB",
                f"{quality.ssim.mean():.3f}",
                f"{wrong:g} of {true_counts.sum()}",
            ]
        rows.append([*row, steps, session.outcome.value])
    head = ["method", *(["recovered", "PSNR", "SSIM", "label errors"] if true_counts is not None else []), "steps"]
    note = ""
    if attacks[0].quality is not None:
        note = (
            f"<p class='note'>An image counts as recovered above {attacks[0].quality.threshold:g} dB. Reconstructions "
            "and true images are matched one to one; PSNR and SSIM are means over all images.</p>"
        )
    return _section("Result", _table([*head, "outcome"], rows) + note)


def _target(attack: _Attack, truth: Truth, settings: Mapping[str, object]) -> str:
    session = attack.session
    observed = session.observation
    client, training = settings_of(Target), settings_of(ClientConfig)
    known: dict[str, object] = {
        client["index"].label: truth.name or "not known to this report",
        client["num_clients"].label: observed.num_clients,
        client["num_images"].label: f"{observed.num_images} of {fact_text(observed.image_shape)}",
        **{training[name].label: getattr(observed, name) for name in ("epochs", "batch_size", "learning_rate")},
        "Local steps U": observed.local_steps,
        client["network"].label: f"{session.model.name}, {_weights(observed.server_weights):,} weights",
        client["seed"].label: session.seed,
    }
    return _section("What was attacked", _facts({**known, **settings}))


def _settings(session: AttackSession, title: str) -> str:
    """Every setting of the attack, by the name that it has in the panel."""
    known = settings_of(AttackConfig).items()
    return _section(
        f"Settings{title}", _facts({one.label: _value(getattr(session.config, name)) for name, one in known})
    )


def _value(value: object) -> str:
    return "not set" if value is None else " to ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def _server_view(session: AttackSession) -> str:
    view = session.attacker_view()
    columns = "".join(
        f"<div><h3>{escape(side.capitalize())}</h3>{_facts({name: fact_text(value) for name, value in facts.items()})}"
        "</div>"
        for side, facts in view.items()
    )
    return _section("What the server saw", f"<div class='columns'>{columns}</div>")


def _labels(session: AttackSession, truth: Truth, true_counts: NDArray[np.int64] | None) -> str:
    counts = {method: estimate.whole for method, estimate in session.formula_labels.items()}
    counts["used by the attack"] = session.label_counts.sum(0)
    names = truth.class_names if truth else None
    summary = "Label counts as each method recovers them from the weights."
    if true_counts is not None:
        errors = {method: label_errors(true_counts, whole) for method, whole in counts.items()}
        wrong = ", ".join(f"{method} {number:g}" for method, number in errors.items())
        summary = f"Wrong labels, of {true_counts.sum()}: {wrong}."
    image = _drawn(lambda theme: render.label_figure(counts, true_counts, names, theme=theme), summary)
    source = "<p>The last layer's gradient reveals the number of images of each class before any image is known.</p>"
    return _section("Label counts, from the weights alone", source + image + f"<p class='note'>{escape(summary)}</p>")


def _pictures(attack: _Attack, truth: Truth, title: str) -> str:
    images, quality = attack.result.images, attack.quality
    if quality is None:
        shown = "".join(
            f"<figure>{_image(render.picture(image), f'Reconstruction {number}', 56)}"
            f"<figcaption>{number}</figcaption></figure>"
            for number, image in enumerate(images, 1)
        )
        return _section(f"Reconstruction{title}", f"<div class='grid'>{shown}</div>")
    true_images = truth.images
    names = [truth.class_names[label] for label in truth.labels]
    recovered = quality.psnr > quality.threshold
    figures = []
    for index in attack.best_first:
        value = f"{quality.psnr[index]:.1f} dB"
        original = _image(render.picture(true_images[index]), f"True image of class {names[index]}", 56)
        found = _image(render.picture(images[quality.order[index]]), f"Its reconstruction, PSNR {value}", 56)
        mark = " class='recovered'" if recovered[index] else ""
        figures.append(f"<figure{mark}>{original}{found}<figcaption>{value}</figcaption></figure>")
    summary = (
        f"<p>The true image above, its reconstruction below, best first. {recovered.sum()} of {len(recovered)} are "
        f"above {quality.threshold:g} dB; their frame is thick.</p>"
    )
    return _section(f"Truth and reconstruction{title}", f"{summary}<div class='grid'>{''.join(figures)}</div>")


def _epochs(attack: _Attack, truth: Truth, title: str) -> str:
    result, quality = attack.result, attack.quality
    if len(result.epochs) == 1:
        return _section(f"Epochs{title}", "<p>This method has one set of images for all epochs: nothing to match.</p>")
    shown = attack.best_first[:_MOST_COLUMNS]
    matched = None
    if quality is not None:
        matched = truth.images[np.argsort(quality.order)]
        shown = quality.order[shown]
    summary = (
        f"One row for each of the {len(result.epochs)} epochs, aligned by the matching, and one for their combination: "
        f"the {len(shown)} {'best images' if quality is not None else 'first images'}."
    )
    sheet = _themed(
        lambda theme: render.epochs_sheet(
            result.epochs, result.images, result.permutations, order=shown, truth=matched, density=_DENSITY, theme=theme
        ),
        summary,
    )
    return _section(f"Epochs{title}", f"<p>{summary}</p>{sheet}")


def _loss(session: AttackSession, title: str) -> str:
    history, warm = session.history, session.config.warm_start_steps
    summary = "There are no steps yet."
    if len(history.loss):
        summary = f"The loss changed from {history.loss[0]:.3g} to {history.loss[-1]:.3g} in {len(history.loss)} steps."
        if warm:
            summary += f" The first {warm} steps are a warm start with a different loss."
        if history.steering:
            summary += f" Settings were changed {len(history.steering)} times during the run."
    figure = _drawn(lambda theme: render.loss_figure(history, warm_start_steps=warm, theme=theme), summary)
    return _section(f"Loss{title}", f"{figure}<p class='note'>{escape(summary)}</p>")


def _reproduction(sessions: Sequence[AttackSession], command: str | None) -> str:
    lines = [command] if command is not None else [_in_python(session) for session in sessions]
    versions = {name: version(name) for name in ("fedavg-leakage-workbench", "jax", "numpy")}
    packages = ", ".join(f"{name} {number}" for name, number in versions.items())
    device = f"on {sessions[0].device.device_kind}, Python {platform.python_version()}"
    code = escape("\n".join(lines))
    note = f"<p class='note'>{escape(packages)}, {device}.</p>"
    return _section("How to reproduce it", f"<pre><code>{code}</code></pre>{note}")


def _in_python(session: AttackSession) -> str:
    default = AttackConfig()
    changed = [
        f"{field.name}={getattr(session.config, field.name)!r}"
        for field in fields(AttackConfig)
        if getattr(session.config, field.name) != getattr(default, field.name)
    ]
    config = f"wb.AttackConfig({', '.join(changed)})"
    return f"wb.AttackSession(model, observation, {config}, seed={session.seed}).run({session.num_steps})"


# Pieces of HTML


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    cells = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{escape(str(cell))}</td>" for cell in row) + "</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{cells}</tr></thead><tbody>{body}</tbody></table></div>"


def _facts(facts: Mapping[str, object]) -> str:
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def fact_text(value: object) -> str:
    """A value of `AttackSession.attacker_view` as text.

    >>> fact_text((28, 28, 1)), fact_text(1500), fact_text(np.array([[2, 0, 1]]))
    ('28×28×1', '1,500', '3 images in 2 classes')
    """
    if isinstance(value, np.ndarray):
        return f"{value.sum()} images in {(value.sum(0) > 0).sum()} classes"
    if isinstance(value, tuple | list):
        return "×".join(map(str, value))
    return f"{value:,}" if isinstance(value, int) else f"{value:g}" if isinstance(value, float) else str(value)


def _weights(weights: Mapping[str, Mapping[str, Any]]) -> int:
    return sum(array.size for arrays in weights.values() for array in arrays.values())


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _image(png: bytes, alt: str, width: int) -> str:
    return f"<img src='{_data_uri(png)}' alt='{escape(alt, quote=True)}' width='{width}'>"


def _themed(draw: Callable[[str], bytes], alt: str) -> str:
    """An image that follows the reader's light or dark setting."""
    light, dark = (draw(theme) for theme in ("light", "dark"))
    source = f"<source srcset='{_data_uri(dark)}' media='(prefers-color-scheme: dark)'>"
    image = _image(light, alt, _pixel_width(light) // _DENSITY)
    return f"<div class='wide'><picture>{source}{image}</picture></div>"


def _drawn(draw: Callable[[str], Figure], alt: str) -> str:
    return _themed(lambda theme: render.figure_png(draw(theme), dpi=96 * _DENSITY), alt)


def _pixel_width(png: bytes) -> int:
    """The width of a PNG, from its header."""
    return int.from_bytes(png[16:20], "big")


def _palette(theme: str, note: str) -> str:
    colours = render.THEMES[theme]
    named = {"paper": colours.paper, "ink": colours.ink, "faint": colours.faint, "accent": colours.accent, "note": note}
    return ":root { " + " ".join(f"--{name}: {colour};" for name, colour in named.items()) + " }"


_STYLE = """
body {
  margin: 2rem auto; max-width: 60rem; padding: 0 1rem;
  background: var(--paper); color: var(--ink); font: 16px/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.8rem; }
h2 { font-size: 1.3rem; margin: 2.5rem 0 0.75rem; }
h3 { font-size: 1rem; margin: 0; }
.note { color: var(--note); font-size: 0.9rem; }
.wide { overflow-x: auto; }
.wide img { max-width: 100%; height: auto; }
table { border-collapse: collapse; }
th, td { text-align: left; white-space: nowrap; padding: 0.35rem 1.25rem 0.35rem 0; }
tr { border-bottom: 1px solid var(--faint); }
dl { display: grid; grid-template-columns: fit-content(11rem) minmax(0, 1fr); gap: 0.15rem 1rem; margin: 0.5rem 0; }
dt { color: var(--note); }
dd { margin: 0; overflow-wrap: anywhere; }
.columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(16rem, 1fr)); gap: 1rem 2rem; }
.grid { display: flex; flex-wrap: wrap; gap: 0.75rem; }
figure { margin: 0; padding: 4px; border: 1px solid var(--faint); display: flex; flex-direction: column; gap: 4px; }
figure.recovered { border: 3px solid var(--accent); padding: 2px; }
figure img { image-rendering: pixelated; }
figcaption { font-size: 0.75rem; text-align: center; }
pre { overflow-x: auto; padding: 0.75rem; border: 1px solid var(--faint); }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>What an update reveals</title>
<style>
:root {{ color-scheme: light dark; }}
{light}
@media (prefers-color-scheme: dark) {{ {dark} }}
{style}
</style>
</head>
<body>
{body}
</body>
</html>
"""
