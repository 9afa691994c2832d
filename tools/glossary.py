"""Write docs/glossary.md from the tables of settings: python tools/glossary.py"""

import math
from pathlib import Path

from workbench.attack.methods import METHODS
from workbench.config import AttackConfig, ClientConfig, DefenceConfig
from workbench.settings import Setting, settings_of
from workbench.target import Target

FILE = Path(__file__).parents[1] / "docs" / "glossary.md"

INTRODUCTION = """# Glossary of settings

Every setting of client, defence and attack, under the name that it has in the panel, in plots and in reports. Made
from `workbench/config.py`, `workbench/training/local.py` and `workbench/target.py` by `tools/glossary.py`: edit those,
not this file.

A setting marked *steerable* can be changed while an attack runs, with its slider or with `session.steer(...)`.
"""

KINDS = {
    "The client": Target,
    "Local training": ClientConfig,
    "Defences": DefenceConfig,
    "The attack": AttackConfig,
}


def values(known: Setting) -> str:
    """What a setting may be, in words."""
    if known.choices:
        return ", ".join(f"`{choice}`" for choice in known.offered)
    if known.kind is bool:
        return "on or off"
    number = {int: "whole number", float: "number", tuple: "two numbers", list: "numbers"}.get(known.kind, "path")
    bounds = [] if known.above is None else [f"above {known.above:g}"]
    if known.minimum is not None:
        bounds.append(f"at least {known.minimum:g}")
    if known.maximum is not None and known.maximum < math.inf:
        bounds.append(f"at most {known.maximum:g}")
    return " ".join([number, " and ".join(bounds)]).strip()


def row(known: Setting) -> str:
    """One line of the table."""
    default = "" if known.default is None else f"`{known.default}`"
    paper = ", ".join(part for part in (known.symbol and f"`{known.symbol}`", known.section) if part)
    label = f"{known.label} *(steerable)*" if known.slider else known.label
    cells = (label, known.help, values(known), default, f"`{known.name}`", f"`{known.flag}`", paper)
    return f"| {' | '.join(cells)} |"


def glossary() -> str:
    """The page."""
    parts = [INTRODUCTION]
    head = "| setting | meaning | values | default | in Python | option | paper |\n|---|---|---|---|---|---|---|"
    for title, kind in KINDS.items():
        rows = "\n".join(row(known) for known in settings_of(kind).values())
        parts.append(f"## {title}\n\n`{kind.__module__}.{kind.__name__}`\n\n{head}\n{rows}\n")
    methods = "\n".join(
        f"| {method.label} | `{method.name}` | {method.paper_name or 'not in the paper'} | {method.simulated.value} "
        f"| {'E x N' if method.is_separate else 'N'} | {'yes' if method.has_prior else 'no'} "
        f"| {'yes' if method.can_warm_start else 'no'} |"
        for method in METHODS.values()
    )
    head = f"| method | name | in the paper | simulates | images | epoch prior | warm start |\n{'|---' * 7}|"
    parts.append(f"## Methods\n\n`workbench.attack.methods.METHODS`\n\n{head}\n{methods}\n")
    return "\n".join(parts)


if __name__ == "__main__":
    FILE.write_text(glossary(), encoding="utf-8")
