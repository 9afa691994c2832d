"""A recording in one HTML file that plays without Python, a server or a network."""

import base64
import hashlib
import json
import os
import zlib
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from numpy.typing import NDArray

from workbench.data import Truth
from workbench.files.writing import write_atomically
from workbench.session import Recording
from workbench.views.grid import packets
from workbench.views.legend import legend

__all__ = ["page_html", "player", "player_script", "player_style", "security_policy", "write_page"]

# A page follows the reader's setting.
_DARK = ("@media (prefers-color-scheme: dark) { :root",)


def write_page(path: str | os.PathLike[str], recording: Recording, title: str = "") -> None:
    """Write a recording as one HTML file, atomically.

    Args:
        path: the file to write; an existing file is replaced.
        recording: what it plays.
        title: of the page; empty names the attack.
    """
    write_atomically(path, page_html(recording, title).encode())


def page_html(recording: Recording, title: str = "") -> str:
    """The text of the page; the arguments are those of `write_page`."""
    client, score = recording.client, recording.reconstruction().score
    title = title or "An attack on one update of federated averaging"
    facts = {
        "Client": "; ".join(one.name for one in recording.truth) or "not known to this page",
        "Images": f"{client['num_clients'] * client['num_images']} of {'×'.join(map(str, client['image_shape']))}",
        "Local training": f"{client['epochs']} epochs in batches of {client['batch_size']}",
        "Attack": f"{recording.config.method}, {recording.num_steps} of {recording.total_steps} steps",
    }
    if score is not None:
        facts["Result"] = (
            f"{score.recovered_percent:.1f} % recovered above {score.threshold:g} dB, mean PSNR "
            f"{score.psnr.mean():.1f} dB"
        )
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(text)}</dd></div>" for name, text in facts.items())
    return _PAGE.format(
        policy=security_policy(["recording"]),
        title=escape(title),
        style=player_style(),
        page_style=_PAGE_STYLE,
        facts=listed,
        legend=escape(legend(Truth.of(recording.truth))),
        player=player(recording, "recording"),
        script=player_script(["recording"]),
    )


def player(recording: Recording, name: str) -> str:
    """The place where a recording plays, and its data; the page needs `player_style` and `player_script` too.

    Args:
        recording: what it plays.
        name: unique among the players of the page; letters and digits.
    """
    truth = Truth.of(recording.truth)
    data = {
        "source": packets.describe_source(recording, truth, name),
        "truth": base64.b64encode(zlib.compress(packets.truth_pixels(truth), 9)).decode() if truth else None,
        "frames": [
            {
                **packets.describe_frame(frame, truth),
                "pixels": _packed(frame.pixels),
                "epochs": None if frame.epoch_pixels is None else _packed(frame.epoch_pixels),
            }
            for frame in recording.frames
        ],
        "history": packets.describe_history(recording.history, recording.config.warm_start_steps),
    }
    wait = "The recording is being unpacked. It needs a browser of 2023 or later, with JavaScript."
    return f"<div id='{name}-player' class='wbg-page'><p>{wait}</p></div>{_data_block(name, data)}"


def player_style() -> str:
    """The style of all players of a page."""
    return packets.style(":root", _DARK)


def player_script(names: Sequence[str]) -> str:
    """The script of the players with these names, as an element."""
    return f"<script type='module'>{_script_text(names)}</script>"


def security_policy(names: Sequence[str]) -> str:
    """The content security policy of a page with these players: no network, and no script but this one."""
    digest = base64.b64encode(hashlib.sha256(_script_text(names).encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    return f'<meta http-equiv="Content-Security-Policy" content="{policy}">'


def _script_text(names: Sequence[str]) -> str:
    calls = "".join(f"\nplayPage({json.dumps(name)});" for name in names)
    return packets.SCRIPT.read_text() + calls + "\n"


def _packed(pixels: NDArray[Any]) -> str:
    return base64.b64encode(zlib.compress(pixels.tobytes(), 9)).decode()


def _data_block(name: str, data: Mapping[str, Any]) -> str:
    """Data that no browser takes for markup or script, whatever texts are in it."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c").replace("&", "\\u0026")
    return f"<script type='application/json' id='{name}'>{text}</script>"


_PAGE_STYLE = """
:root { color-scheme: light dark; }
body {
  margin: 0 auto; max-width: 110rem; padding: 1rem 1.5rem 2rem; background: var(--wbg-paper); color: var(--wbg-ink);
  font: 15px/1.5 system-ui, sans-serif;
}
h1 { font-size: 1.5rem; margin: 0.5rem 0; }
header dl { display: flex; flex-wrap: wrap; gap: 0.2rem 2rem; margin: 0.5rem 0 1rem; }
header dl div { display: flex; gap: 0.5rem; }
header dt { color: var(--wbg-note); }
header dd { margin: 0; }
header p { max-width: 60rem; margin: 0.3rem 0; }
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{policy}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
{style}
{page_style}
</style>
</head>
<body>
<header>
<h1>{title}</h1>
<p>A client trained on its images and sent only its new weights. An honest-but-curious server rebuilds the images from
them, beginning with noise. Move the timeline, point at an image to find it in every view, or choose it to enlarge
it.</p>
<dl>{facts}</dl>
<details><summary>What PSNR, SSIM and recovered mean here</summary><p>{legend}</p></details>
</header>
<main>
{player}
</main>
{script}
</body>
</html>
"""
