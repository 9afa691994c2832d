"""The look of every curve and bar by its name: a method or a label estimator looks the same in every figure."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from workbench.attack.methods import METHODS
from workbench.config import LABEL_METHODS

__all__ = ["Look", "looks_of"]

_MARKS = "os^DvP*"
_STYLES = ("-", "--", "-.")
_PRESETS = ("warm", "best")
# The surrogate is rarely shown, so it is the one that shares a colour; its mark and its line differ.
_METHODS = (*(name for name in METHODS if name != "surrogate"), *_PRESETS)
_PLACES = {
    **{name: place for place, name in enumerate((*LABEL_METHODS, "used by the attack"))},
    **{name: place for place, name in enumerate(_METHODS)},
    "surrogate": len(_METHODS) + _METHODS.index("warm"),
    "demo": len(_METHODS) + _METHODS.index("best"),
}


class Look(NamedTuple):
    """How a curve or a bar looks."""

    colour: str
    mark: str
    style: str


def looks_of(names: Iterable[str], lines: Sequence[str]) -> dict[str, Look]:
    """The look of each name; names without a fixed one take the looks that are left, in order.

    Args:
        names: of what is shown.
        lines: the colours of a theme's lines. The first is that of its text, which is used last.

    >>> looks = looks_of(["mine", "fedsgd"], ("ink", "blue", "red", "green", "pink", "gold", "sky"))
    >>> looks["fedsgd"].colour, looks["mine"].colour
    ('gold', 'blue')
    """
    names, colours = list(names), (*lines[1:], lines[0])
    taken = {_PLACES[name] for name in names if name in _PLACES}
    free = (place for place in range(len(names) + len(taken)) if place not in taken)
    places = {name: _PLACES[name] if name in _PLACES else next(free) for name in names}
    return {
        name: Look(colours[place % len(colours)], _MARKS[place % len(_MARKS)], _STYLES[place % len(_STYLES)])
        for name, place in places.items()
    }
