"""The site that `make docs` builds from the Markdown files and notebooks of the whole project.

The source directory is the root of the project, so that links between those files work here and in a file view.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import numpy.typing as npt
from docutils import nodes
from docutils.utils.math import MathError, latex2mathml
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.writers.html5 import HTML5Translator

ROOT = Path(__file__).parents[2]

project = "FedAvg leakage workbench"
release = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode"]
root_doc = "docs/site/index"
include_patterns = ["*.md", "docs/**.md", "notebooks/*.ipynb", "assets/results/README.md"]
exclude_patterns = [".*", "build", "tests", "workbench", "**/.ipynb_checkpoints"]

# A link that leads nowhere is a warning, and `make docs` turns warnings into errors.
nitpicky = True
# There is no network to look names of other libraries up.
nitpick_ignore_regex = [("py:.*", r"(?!workbench\b).*")]

nb_execution_mode = "off"
nb_ipywidgets_js: dict[str, dict[str, str]] = {}
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

default_role = "code"
autodoc_member_order = "bysource"
autodoc_typehints_format = "short"
napoleon_use_ivar = True
napoleon_custom_sections = [("Options", "params_style")]
napoleon_attr_annotations = False
add_module_names = False
python_maximum_signature_line_length = 100
toc_object_entries_show_parents = "hide"

html_theme = "sphinx_book_theme"
html_title = project
html_static_path = ["static"]
html_css_files = ["site.css"]
html_extra_path = ["extra"]
html_copy_source = False
html_show_copyright = False
html_math_renderer = "mathml"
html_context = {"default_mode": "auto"}
html_theme_options = {
    "footer_content_items": [],
    "show_toc_level": 2,
    "use_download_button": False,
    "use_fullscreen_button": False,
}


class NDArray(Generic[TypeVar("Number")]):
    """Shown by its name; NumPy's alias would be shown as the long type that it stands for."""

    __module__ = "numpy.typing"


class ArrayLike:
    """Shown by its name, for the same reason."""

    __module__ = "numpy.typing"


# Before autodoc imports the workbench.
npt.NDArray, npt.ArrayLike = NDArray, ArrayLike


def draw_formula(translator: HTML5Translator, node: nodes.Element) -> None:
    """Write a formula as MathML, which browsers draw without a script and without fonts of the site."""
    # The converter knows no \big, and takes the index of an accented letter for a limit of the accent.
    text = re.sub(r"\\big(?![a-z])", "", node.astext())
    text = re.sub(r"\\(bar|tilde) \w", r"{{}\g<0>}", text)
    is_block = isinstance(node, nodes.math_block)
    try:
        formula = latex2mathml.tex2mathml(text, as_block=is_block)
    except MathError as error:
        logging.getLogger(__name__).warning("the formula %s is not understood: %s", text, error, location=node)
    else:
        translator.body.append(f'<div class="formula">{formula}</div>' if is_block else formula)
    raise nodes.SkipNode


def hide_marks(_app: Sphinx, _name: str, source: list[str]) -> None:
    """Leave out the comment that marks a notebook cell for the tests."""
    source[0] = source[0].replace('"# NBVAL_CHECK_OUTPUT\\n",', "")


def spell_defaults(
    _app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, signature: str | None, returns: str | None
) -> tuple[str | None, str | None]:
    """Write defaults as Python, which Sphinx parses; it shows a signature that it cannot parse as it is."""
    return signature and signature.replace("<factory>", "..."), returns


def quote_addresses(_app: Sphinx, _what: str, _name: str, _object: Any, _options: Any, lines: list[str]) -> None:
    """Keep the address of a scheduler in a docstring from becoming a link."""
    lines[:] = [re.sub(r"tcp://[\w:]+", r"``\g<0>``", line) for line in lines]


def write_recordings(app: Sphinx) -> None:
    """Write the pages that play a recording."""
    from workbench.session import replay
    from workbench.views.grid.page import write_page

    folder = Path(app.outdir, "recordings")
    folder.mkdir(parents=True, exist_ok=True)
    shutil.copy(ROOT / "assets/lesson.html", folder / "small.html")
    write_page(folder / "full.html", replay(ROOT / "assets/end_to_end_10x5x50.recording"), "Fifty images, end to end")


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.add_html_math_renderer("mathml", (draw_formula, None), (draw_formula, None))
    app.connect("source-read", hide_marks)
    app.connect("autodoc-process-docstring", quote_addresses)
    app.connect("autodoc-process-signature", spell_defaults)
    app.connect("builder-inited", write_recordings)
