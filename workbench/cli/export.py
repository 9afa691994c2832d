"""The command ``workbench export``."""

from pathlib import Path
from typing import Annotated

import typer

from workbench.cli.common import prepare_output
from workbench.session import replay
from workbench.views.grid.page import write_page

__all__ = ["export"]


def export(
    recording: Annotated[Path, typer.Argument(help="A recording, as the panel or `AttackSession.record` writes it.")],
    html: Annotated[Path, typer.Option(help="The page to write; an existing file is replaced.")],
    title: Annotated[str, typer.Option(help="The title of the page.")] = "",
) -> int:
    """Write a recording as one HTML page that plays without Python, a server or a network."""
    prepare_output(html)
    played = replay(recording)
    write_page(html, played, title)
    typer.echo(f"Wrote {html} ({html.stat().st_size / 1e6:.1f} MB): {len(played.frames)} moments to play.")
    return 0
