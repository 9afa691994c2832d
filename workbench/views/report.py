"""A report of one or several attacks on an update: one HTML file without external resources."""

import os
import platform
from collections.abc import Mapping, Sequence
from html import escape
from importlib.metadata import version

import numpy as np

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
from workbench.views.html import DENSITY, chart, fact_list, figure, page, section, table, themed
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
        section("What the server saw", server_view(sessions[0])),
        _labels(scenes[0]),
    ]
    players = [f"attack{number}" for number in range(len(scenes))]
    for scene, one, name in zip(scenes, sessions, players, strict=True):
        title = f": {scene.source.config.method}" if len(scenes) > 1 else ""
        parts += [_replay(one, known, title, name)]
        parts += [_pictures(scene, title), _span(scene, title), _epochs(scene, title)]
        parts += [_loss(scene, title), _settings(scene, title)]
    parts.append(_reproduction(sessions, command))
    parts.append(player_script(players))
    return page("What an update reveals", parts, policy=security_policy(players), style=player_style())


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
    return section("Result", table(rows) + note)


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
    return section("What was attacked", fact_list({**known, **settings}))


def _settings(scene: Scene, title: str) -> str:
    """Every setting of the attack, by the name that it has in the panel."""
    config, known = scene.source.config, settings_of(AttackConfig).items()
    return section(f"Settings{title}", fact_list({one.label: _value(getattr(config, name)) for name, one in known}))


def _value(value: object) -> str:
    return "not set" if value is None else " to ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def server_view(source: AttackSession | Recording) -> str:
    """What the server received, assumed and never saw, as HTML in three columns; the page has to style them."""
    columns = "".join(
        f"<div><h3>{escape(side.capitalize())}</h3>"
        f"{fact_list({name: fact_text(value) for name, value in facts.items()})}</div>"
        for side, facts in source.attacker_view().items()
    )
    return f"<div class='columns'>{columns}</div>"


def _labels(scene: Scene) -> str:
    draw, summary = scene.label_chart()
    source = "<p>The last layer's gradient reveals the number of images of each class before any image is known.</p>"
    return section("Label counts, from the weights alone", source + chart(draw, summary))


def _replay(session: AttackSession, truth: Truth, title: str, name: str) -> str:
    """The attack from its first noise on, to scrub through."""
    recording = Recording.of(session, truth.clients, snapshots=_MOMENTS, epoch_snapshots=_EPOCH_MOMENTS)
    return section(f"Replay{title}", player(recording, name))


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
            figures.append(figure({f"Reconstruction {place}": images[index]}, value))
        return section(f"Reconstruction{title}", f"<p>{about}</p><div class='grid'>{''.join(figures)}</div>")
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
        figures.append(figure(pair, value, " class='recovered'" if recovered[true] else ""))
    summary = (
        f"<p>The true image above, its reconstruction below, best first. {recovered.sum()} of {len(recovered)} are "
        f"above {quality.threshold:g} dB; their frame is thick. {about}</p>"
    )
    return section(f"Truth and reconstruction{title}", f"{summary}<div class='grid'>{''.join(figures)}</div>")


def _epochs(scene: Scene, title: str) -> str:
    found, epochs = scene.found, scene.epochs
    if epochs is None:
        return section(f"Epochs{title}", "<p>This method has one set of images for all epochs: nothing to match.</p>")
    shown = scene.order(best_first=True)[1][:_MOST_COLUMNS]
    first = "best" if scene.score is not None else "first" if found.confidence is None else "most confident"
    summary = (
        f"One row for each of the {len(epochs)} epochs, aligned by the matching, and one for their combination: "
        f"the {len(shown)} {first} images."
    )
    sheet = themed(
        lambda theme: render.epochs_sheet(
            epochs,
            found.images,
            found.permutations,
            order=shown,
            truth=scene.matched_truth,
            density=DENSITY,
            theme=theme,
        ),
        summary,
    )
    return section(f"Epochs{title}", f"<p>{summary}</p>{sheet}")


def _span(scene: Scene, title: str) -> str:
    draw, text = scene.span_chart()
    return section(f"Span of the update{title}", f"<p>{escape(text)}</p>" if draw is None else chart(draw, text))


def _loss(scene: Scene, title: str) -> str:
    return section(f"Loss{title}", chart(*scene.loss_chart()))


def _reproduction(sessions: Sequence[AttackSession], command: str | None) -> str:
    lines = [command] if command is not None else [_in_python(session) for session in sessions]
    packages = ", ".join(f"{name} {version(name)}" for name in ("fedavg-leakage-workbench", "jax", "numpy"))
    device = f"on {sessions[0].device.device_kind}, Python {platform.python_version()}"
    code = escape("\n".join(lines))
    note = f"<p class='note'>{escape(packages)}, {device}.</p>"
    return section("How to reproduce it", f"<pre><code>{code}</code></pre>{note}")


def _in_python(session: AttackSession) -> str:
    changed = [
        f"{name}={getattr(session.config, name)!r}"
        for name, known in settings_of(AttackConfig).items()
        if getattr(session.config, name) != known.default
    ]
    config = f"wb.AttackConfig({', '.join(changed)})"
    return f"wb.AttackSession(model, observation, {config}, seed={session.seed}).run({session.num_steps})"


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
