"""A report of one or several attacks on an update: one HTML file without external resources."""

import base64
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from html import escape
from importlib.metadata import version

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from workbench.config import AttackConfig, ClientConfig
from workbench.data import ClientData, Truth
from workbench.errors import ConfigError
from workbench.files.writing import write_atomically
from workbench.metrics import label_errors
from workbench.session import AttackSession, Recording
from workbench.settings import settings_of
from workbench.target import Target
from workbench.views import render
from workbench.views.grid.page import player, player_script, player_style, security_policy
from workbench.views.scene import Scene, scene_at

__all__ = ["report_html", "server_view", "write_report"]

PURPOSE = (
    "This report shows what an honest-but-curious server can learn from one update of federated averaging. It is meant "
    "for auditing your federated learning."
)
# With more columns, an epochs sheet is hard to read and the file large.
_MOST_COLUMNS = 10
# Moments in the replay, and how many of them with the images of every epoch: a few megabytes for the paper's clients.
_MOMENTS, _EPOCH_MOMENTS = 24, 6
# Image pixels per CSS pixel: images stay sharp on high-resolution screens and on a projector.
_DENSITY = 2


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
    labels = sessions[0].formula_labels  # all attack the same update
    scenes = [scene_at(one, one.num_steps, known, labels) for one in sessions]
    parts = [
        f"<h1>What an update reveals</h1><p>{PURPOSE}</p>",
        _scores(scenes),
        _target(sessions[0], known, settings or {}),
        _section("What the server saw", server_view(sessions[0])),
        _labels(scenes[0]),
    ]
    players = [f"attack{number}" for number in range(len(scenes))]
    for scene, one, name in zip(scenes, sessions, players, strict=True):
        title = f": {scene.source.config.method}" if len(scenes) > 1 else ""
        parts += [_replay(one, known, title, name)]
        parts += [_pictures(scene, title), _span(scene, title), _epochs(scene, title)]
        parts += [_loss(scene, title), _settings(scene, title)]
    parts.append(_reproduction(sessions, command))
    light, dark = _palette("light", note="#57606a"), _palette("dark", note="#a7b0ba")
    return _PAGE.format(
        policy=security_policy(players),
        light=light,
        dark=dark,
        style=player_style() + _STYLE,
        body="\n".join([*parts, player_script(players)]),
    )


# Sections


def _scores(scenes: Sequence[Scene]) -> str:
    rows, note = [], ""
    for scene in scenes:
        source, quality, truth = scene.source, scene.score, scene.truth
        row = {"method": source.config.method}
        if quality is not None:
            wrong = label_errors(truth.label_counts.sum(0), source.label_counts.sum(0))
            row |= {
                "recovered": f"{quality.recovered_percent:.1f} %",
                "PSNR": f"{quality.psnr.mean():.2f} dB",
                "SSIM": f"{quality.ssim.mean():.3f}",
                "label errors": f"{wrong:g} of {len(truth.labels)}",
            }
            note = (
                f"<p class='note'>An image counts as recovered above {quality.threshold:g} dB. Reconstructions and "
                "true images are matched one to one; PSNR and SSIM are means over all images.</p>"
            )
        steps = f"{source.num_steps} of {source.total_steps}"
        rows.append({**row, "steps": steps, "outcome": source.outcome.value})
    return _section("Result", _table(rows) + note)


def _target(session: AttackSession, truth: Truth, settings: Mapping[str, object]) -> str:
    observed, num_weights = session.observation, session.attacker_view()["received"]["server weights"]
    client, training = settings_of(Target), settings_of(ClientConfig)
    known: dict[str, object] = {
        client["index"].label: truth.name or "not known to this report",
        client["num_clients"].label: observed.num_clients,
        client["num_images"].label: f"{observed.num_images} of {fact_text(observed.image_shape)}",
        **{training[name].label: getattr(observed, name) for name in ("epochs", "batch_size", "learning_rate")},
        training["optimizer"].label: observed.training.description,
        "Local steps U": observed.local_steps,
        client["network"].label: f"{session.model.name}, {num_weights:,} weights",
        client["seed"].label: session.seed,
    }
    return _section("What was attacked", _facts({**known, **settings}))


def _settings(scene: Scene, title: str) -> str:
    """Every setting of the attack, by the name that it has in the panel."""
    config, known = scene.source.config, settings_of(AttackConfig).items()
    return _section(f"Settings{title}", _facts({one.label: _value(getattr(config, name)) for name, one in known}))


def _value(value: object) -> str:
    return "not set" if value is None else " to ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def server_view(source: AttackSession | Recording) -> str:
    """What the server received, assumed and never saw, as HTML in three columns; the page has to style them."""
    columns = "".join(
        f"<div><h3>{escape(side.capitalize())}</h3>{_facts({name: fact_text(value) for name, value in facts.items()})}"
        "</div>"
        for side, facts in source.attacker_view().items()
    )
    return f"<div class='columns'>{columns}</div>"


def _labels(scene: Scene) -> str:
    draw, summary = scene.label_chart()
    source = "<p>The last layer's gradient reveals the number of images of each class before any image is known.</p>"
    return _section("Label counts, from the weights alone", source + _chart(draw, summary))


def _replay(session: AttackSession, truth: Truth, title: str, name: str) -> str:
    """The attack from its first noise on, to scrub through."""
    recording = Recording.of(session, truth.clients, snapshots=_MOMENTS, epoch_snapshots=_EPOCH_MOMENTS)
    return _section(f"Replay{title}", player(recording, name))


def _pictures(scene: Scene, title: str) -> str:
    images, quality, truth, confidence = scene.found.images, scene.score, scene.truth, scene.found.confidence
    about = "No image has a confidence; the section on the span says why."
    if confidence is not None:
        which = "The number below an image, the largest first," if quality is None else "The second number"
        about = f"{which} is its confidence: 1 minus the span residual, less for a repetition, from 0 to 1."
    if quality is None:
        figures = []
        for place, index in enumerate(scene.order(best_first=True)[1], 1):
            value = f"{place}" if confidence is None else f"{confidence[index]:.2f}"
            figures.append(_figure({f"Reconstruction {place}": images[index]}, value))
        return _section(f"Reconstruction{title}", f"<p>{about}</p><div class='grid'>{''.join(figures)}</div>")
    names, true_images = [truth.class_names[label] for label in truth.labels], truth.images
    recovered = quality.psnr > quality.threshold
    figures = []
    for true, found in zip(*scene.order(best_first=True), strict=True):
        value = f"{quality.psnr[true]:.1f} dB"
        pair = {
            f"True image of class {names[true]}": true_images[true],
            f"Its reconstruction, PSNR {value}": images[found],
        }
        value += "" if confidence is None else f"<br>{confidence[found]:.2f}"
        figures.append(_figure(pair, value, " class='recovered'" if recovered[true] else ""))
    summary = (
        f"<p>The true image above, its reconstruction below, best first. {recovered.sum()} of {len(recovered)} are "
        f"above {quality.threshold:g} dB; their frame is thick. {about}</p>"
    )
    return _section(f"Truth and reconstruction{title}", f"{summary}<div class='grid'>{''.join(figures)}</div>")


def _epochs(scene: Scene, title: str) -> str:
    found, epochs = scene.found, scene.epochs
    if epochs is None:
        return _section(f"Epochs{title}", "<p>This method has one set of images for all epochs: nothing to match.</p>")
    shown = scene.order(best_first=True)[1][:_MOST_COLUMNS]
    first = "best" if scene.score is not None else "first" if found.confidence is None else "most confident"
    summary = (
        f"One row for each of the {len(epochs)} epochs, aligned by the matching, and one for their combination: "
        f"the {len(shown)} {first} images."
    )
    sheet = _themed(
        lambda theme: render.epochs_sheet(
            epochs,
            found.images,
            found.permutations,
            order=shown,
            truth=scene.matched_truth,
            density=_DENSITY,
            theme=theme,
        ),
        summary,
    )
    return _section(f"Epochs{title}", f"<p>{summary}</p>{sheet}")


def _span(scene: Scene, title: str) -> str:
    draw, text = scene.span_chart()
    return _section(f"Span of the update{title}", f"<p>{escape(text)}</p>" if draw is None else _chart(draw, text))


def _loss(scene: Scene, title: str) -> str:
    return _section(f"Loss{title}", _chart(*scene.loss_chart()))


def _reproduction(sessions: Sequence[AttackSession], command: str | None) -> str:
    lines = [command] if command is not None else [_in_python(session) for session in sessions]
    packages = ", ".join(f"{name} {version(name)}" for name in ("fedavg-leakage-workbench", "jax", "numpy"))
    device = f"on {sessions[0].device.device_kind}, Python {platform.python_version()}"
    code = escape("\n".join(lines))
    note = f"<p class='note'>{escape(packages)}, {device}.</p>"
    return _section("How to reproduce it", f"<pre><code>{code}</code></pre>{note}")


def _in_python(session: AttackSession) -> str:
    changed = [
        f"{name}={getattr(session.config, name)!r}"
        for name, known in settings_of(AttackConfig).items()
        if getattr(session.config, name) != known.default
    ]
    config = f"wb.AttackConfig({', '.join(changed)})"
    return f"wb.AttackSession(model, observation, {config}, seed={session.seed}).run({session.num_steps})"


# Pieces of HTML


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(rows: Sequence[Mapping[str, str]]) -> str:
    """The values of every row in the columns that the first row names."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row.values())}</tr>" for row in rows)
    return f"<div class='wide'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


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


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _image(png: bytes, alt: str, width: int) -> str:
    return f"<img src='{_data_uri(png)}' alt='{escape(alt, quote=True)}' width='{width}'>"


def _themed(draw: Callable[[str], bytes], alt: str) -> str:
    """An image that follows the reader's light or dark setting."""
    light, dark = (draw(theme) for theme in ("light", "dark"))
    source = f"<source srcset='{_data_uri(dark)}' media='(prefers-color-scheme: dark)'>"
    width = int.from_bytes(light[16:20], "big")  # of the PNG, from its header
    image = _image(light, alt, width // _DENSITY)
    return f"<div class='wide'><picture>{source}{image}</picture></div>"


def _figure(images: Mapping[str, NDArray[np.float32]], caption: str, mark: str = "") -> str:
    """Images above each other, each with the text that describes it, and a caption."""
    shown = "".join(_image(render.picture(image), alt, 56) for alt, image in images.items())
    return f"<figure{mark}>{shown}<figcaption>{caption}</figcaption></figure>"


def _chart(draw: Callable[..., Figure], summary: str) -> str:
    """A figure, and the text that describes it."""
    image = _themed(lambda theme: render.figure_png(draw(theme=theme), dpi=96 * _DENSITY), summary)
    return f"{image}<p class='note'>{escape(summary)}</p>"


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
{policy}
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
