"""Pieces of HTML pages that need nothing but themselves: sections, tables, pictures, charts, and the page."""

import base64
from collections.abc import Callable, Mapping, Sequence
from html import escape

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from workbench.views import render

__all__ = [
    "DENSITY",
    "bullets",
    "chart",
    "fact_list",
    "figure",
    "filled_table",
    "page",
    "section",
    "table",
    "themed",
]

# Image pixels per CSS pixel: images stay sharp on high-resolution screens and on a projector.
DENSITY = 2


def section(title: str, body: str) -> str:
    """A part of the page below its heading."""
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """The values of every row in the columns that the first row names."""
    head = "".join(f"<th scope='col'>{escape(name)}</th>" for name in rows[0])
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row.values())}</tr>" for row in rows)
    return f"<div class='wide' tabindex='0'><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"


def filled_table(rows: Sequence[Mapping[str, str]]) -> str:
    """A table without the columns that have nothing in them."""
    filled = [name for name in rows[0] if any(row[name] not in ("-", "") for row in rows)]
    return table([{name: row[name] for name in filled} for row in rows])


def bullets(texts: Sequence[str]) -> str:
    """A list of texts; nothing where there are none."""
    return f"<ul>{''.join(f'<li>{escape(one)}</li>' for one in texts)}</ul>" * bool(texts)


def fact_list(facts: Mapping[str, object]) -> str:
    """Names and values in two columns."""
    rows = (f"<dt>{escape(name)}</dt><dd>{escape(str(value))}</dd>" for name, value in facts.items())
    return f"<dl>{''.join(rows)}</dl>"


def _data_uri(png: bytes) -> str:
    return f"data:image/png;base64,{base64.b64encode(png).decode()}"


def _image(png: bytes, alt: str, width: int) -> str:
    return f"<img src='{_data_uri(png)}' alt='{escape(alt, quote=True)}' width='{width}'>"


def themed(draw: Callable[[str], bytes], alt: str) -> str:
    """An image that follows the reader's light or dark setting."""
    light, dark = (draw(theme) for theme in ("light", "dark"))
    source = f"<source srcset='{_data_uri(dark)}' media='screen and (prefers-color-scheme: dark)'>"
    width = int.from_bytes(light[16:20], "big")  # of the PNG, from its header
    image = _image(light, alt, width // DENSITY)
    return f"<div class='wide'><picture>{source}{image}</picture></div>"


def figure(images: Mapping[str, NDArray[np.float32]], caption: str, mark: str = "") -> str:
    """Images above each other, each with the text that describes it, and a caption."""
    shown = "".join(_image(render.picture(image), alt, 56) for alt, image in images.items())
    return f"<figure{mark}>{shown}<figcaption>{caption}</figcaption></figure>"


def chart(draw: Callable[..., Figure], summary: str) -> str:
    """A figure, and the text that describes it."""
    image = themed(lambda theme: render.figure_png(draw(theme=theme), dpi=96 * DENSITY), summary)
    return f"{image}<p class='note'>{escape(summary)}</p>"


def page(title: str, parts: Sequence[str], *, policy: str, style: str = "") -> str:
    """A whole page, without external resources, for screens in light and dark and for paper.

    Args:
        title: shown by the browser.
        parts: of the body.
        policy: its content security policy, as an element.
        style: further rules, before those of all pages.
    """
    light, dark = _palette("light", note="#57606a"), _palette("dark", note="#a7b0ba")
    return _PAGE.format(
        policy=policy, title=escape(title), light=light, dark=dark, style=style + _STYLE, body="\n".join(parts)
    )


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
pre { white-space: pre-wrap; overflow-wrap: anywhere; padding: 0.75rem; border: 1px solid var(--faint); }
@page { margin: 15mm; }
@media print {
  body { margin: 0; max-width: none; padding: 0; font-size: 11pt; }
  h2, h3 { break-after: avoid; }
  p { break-inside: avoid; }
  figure, tr, .wide:has(img), dl, pre { break-inside: avoid; }
  .wide { overflow: visible; }
  table { font-size: 9pt; }
  th, td { white-space: normal; overflow-wrap: break-word; padding-right: 0.75rem; }
  section > p { break-after: avoid; }
}
"""

_PAGE = """<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
{policy}
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title>
<style>
:root {{ color-scheme: light dark; }}
{light}
@media screen and (prefers-color-scheme: dark) {{ {dark} }}
{style}
</style>
</head>
<body>
<main>
{body}
</main>
</body>
</html>
"""
