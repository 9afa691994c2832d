"""A setting, declared once: what it means, what it may be, and what it is called for people.

Every field of `ClientConfig`, `DefenceConfig`, `AttackConfig` and `Target` carries a `Setting`. Validation, the options
of the command line, the controls of the panel, the legend of the loss plot, messages, the report and docs/glossary.md
are all made from it: a new setting is one new field.
"""

import dataclasses
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cache
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

from workbench.errors import ConfigError, check_choice, check_count, check_flag, check_number, shown

__all__ = ["Setting", "check_settings", "make_options", "setting", "settings_of", "takes", "with_parameters"]

Function = TypeVar("Function", bound=Callable[..., Any])

_CHECKS: dict[type, Callable[..., Any]] = {bool: check_flag, int: check_count, float: check_number}


@dataclasses.dataclass(frozen=True)
class Setting:
    """One setting.

    Attributes:
        label: what people call it: in the panel, in plots, in messages and in the report.
        help: one sentence.
        symbol: the paper's symbol.
        section: where the paper describes it.
        choices: the values it may have, where these are names.
        extra_choices: values that the command line and the panel offer besides.
        minimum: the smallest value.
        maximum: the largest value.
        above: a bound that the value must exceed.
        slider: the ends of its slider, where it can be steered; None for a setting that needs a new attack.
        option: its name on the command line; empty for that of the field.
        aliases: further names there, such as ``-e``.
        metavar: what the command line's help shows for its value; empty for its type.
        is_negated: whether the option switches it off.
        is_detail: whether it is of interest to few: such settings are listed last.
        since: the version that added it, if not the first. At its default such a setting means what was done before,
            and keys of results leave it out.
        name: of the field.
        kind: its type: ``int``, ``float``, ``bool``, ``str``, ``tuple`` for two numbers, ``list`` for any number of
            them, or ``Path``.
        is_optional: whether it may be None.
        default: of the field.
    """

    label: str
    help: str
    symbol: str = ""
    section: str = ""
    choices: tuple[str, ...] = ()
    extra_choices: tuple[str, ...] = ()
    minimum: float | None = None
    maximum: float | None = None
    above: float | None = None
    slider: tuple[float, float] | None = None
    option: str = ""
    aliases: tuple[str, ...] = ()
    metavar: str = ""
    is_negated: bool = False
    is_detail: bool = False
    since: str = ""
    name: str = ""
    kind: type = str
    is_optional: bool = False
    default: Any = None

    @property
    def flag(self) -> str:
        """Its option on the command line, such as ``--tv-weight``."""
        return f"--{self.option or self.name.replace('_', '-')}"

    @property
    def key(self) -> str:
        """A name that no setting of another record has: that of the option, or of the field where it is negated."""
        return self.name if self.is_negated else self.flag[2:].replace("-", "_")

    @property
    def offered(self) -> tuple[str, ...]:
        """The names that the command line and the panel offer."""
        return (*self.extra_choices, *self.choices)

    def check(self, value: Any, field: str) -> Any:
        """Return the value, as the type of the field, or raise a `ConfigError` that names the field."""
        if value is None and self.is_optional:
            return None
        bounds = {name: bound for name in ("minimum", "maximum", "above") if (bound := getattr(self, name)) is not None}
        if self.choices:
            return check_choice(field, value, self.choices)
        if self.kind in _CHECKS:
            return _CHECKS[self.kind](field, value, **bounds)
        if self.kind is tuple:
            if not isinstance(value, tuple | list) or len(value) != 2:
                raise ConfigError(f"{field} = {shown(value)} must be a pair of numbers: at the first step, and later.")
            return tuple(check_number(field, number, **bounds) for number in value)
        if self.kind is list:
            return tuple(check_number(field, number, **bounds) for number in _numbers(field, value))
        return value


def _numbers(field: str, value: Any) -> Sequence[Any]:
    """A list of numbers, or one written as ``0.1,0.05``."""
    try:
        numbers = [float(part) for part in value.split(",")] if isinstance(value, str) else list(value)
    except (TypeError, ValueError):
        numbers = []
    if not numbers:
        raise ConfigError(f"{field} = {shown(value)} must be a list of numbers.")
    return numbers


def setting(default: Any, label: str, help: str, **facts: Any) -> Any:  # noqa: A002 - what it is
    """A dataclass field with a `Setting`; ``facts`` are its attributes."""
    return dataclasses.field(default=default, metadata={"setting": Setting(label, help, **facts)})


@cache
def settings_of(kind: type) -> dict[str, Setting]:
    """The settings of a dataclass by field name, in the order of its fields; inherited ones are listed last.

    >>> from workbench.config import ClientConfig
    >>> settings_of(ClientConfig)["batch_size"].label
    'Batch size m'
    """
    hints = get_type_hints(kind)
    found = {}
    for field in sorted(dataclasses.fields(kind), key=lambda field: field.name not in kind.__annotations__):
        if "setting" in field.metadata:
            hint = hints[field.name]
            kinds = get_args(hint) if isinstance(hint, types.UnionType) else (get_origin(hint) or hint,)
            found[field.name] = dataclasses.replace(
                field.metadata["setting"],
                name=field.name,
                kind=list if kinds[0] == tuple[float, ...] else kinds[0],
                is_optional=types.NoneType in kinds,
                default=field.default,
            )
    return found


def check_settings(record: object, prefix: str = "") -> None:
    """Check every setting of a frozen dataclass, in its ``__post_init__``, and give each the type of its field."""
    kind: Any = type(record)
    for name, known in settings_of(kind).items():
        object.__setattr__(record, name, known.check(getattr(record, name), f"{prefix}{name}"))


def with_parameters(function: Function, parameters: Iterable[inspect.Parameter]) -> Function:
    """Replace ``**options`` in a function's signature by these parameters."""
    signature = inspect.signature(function, eval_str=True)
    written = [one for one in signature.parameters.values() if one.kind is not inspect.Parameter.VAR_KEYWORD]
    function.__signature__ = signature.replace(parameters=[*written, *parameters])  # type: ignore[attr-defined]
    return function


def make_options(options: Mapping[str, Any], *kinds: Any) -> list[Any]:
    """A record of each kind from keyword arguments; a name that no kind has a field for is an error."""
    known = [name for kind in kinds for name in settings_of(kind)]
    for name in options:
        check_choice("option", name, known)
    return [kind(**{name: options[name] for name in options if name in settings_of(kind)}) for kind in kinds]


def takes(*kinds: Any) -> Callable[[Function], Function]:
    """Decorate a function with ``**options``: its signature and documentation list the fields of these kinds."""
    options = [known for kind in kinds for known in settings_of(kind).values()]

    def decorate(function: Function) -> Function:
        lines = [f"        {one.name}: {one.help}" for one in options]
        function.__doc__ = "\n".join([function.__doc__ or "", "    Options:", *lines, ""])
        parameters = [
            inspect.Parameter(one.name, inspect.Parameter.KEYWORD_ONLY, default=one.default) for one in options
        ]
        return with_parameters(function, parameters)

    return decorate
