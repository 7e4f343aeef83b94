"""Groups of options that several commands take, each listed once, in a dataclass."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from inspect import Parameter
from typing import Annotated, Any, get_args, get_origin, get_type_hints


class Without:
    """Fields of a group that a command does not offer; they keep their defaults.

    As in ``flags: Annotated[EngineFlags, Without("policy", "engine")]``.
    """

    def __init__(self, *names: str) -> None:
        self.names = frozenset(names)


def takes_flags(command: Callable[..., None]) -> Callable[..., None]:
    """The command, with one option a field in the place of each group.

    A keyword-only parameter is a group where its type is a dataclass, whose fields are
    typed as options are. Typer sees the fields; the command gets the dataclass.
    """
    parameters: list[Parameter] = []
    groups: list[_Group] = []
    signature = inspect.signature(command, eval_str=True)
    for parameter in signature.parameters.values():
        group = _group_of(parameter)
        if group is None:
            parameters.append(parameter)
        else:
            parameters += group.options
            groups.append(group)

    @functools.wraps(command)
    def call(*args: Any, **values: Any) -> None:
        built = {group.name: group.built_from(values) for group in groups}
        command(*args, **values, **built)

    # Typer reads both: the signature for defaults and options, the hints for types.
    call.__signature__ = signature.replace(  # type: ignore[attr-defined]
        parameters=parameters
    )
    call.__annotations__ = {p.name: p.annotation for p in parameters}
    return call


@dataclass(frozen=True, slots=True)
class _Group:
    """A parameter that stands for several options."""

    name: str
    flags: type
    options: list[Parameter]

    def built_from(self, values: dict[str, Any]) -> Any:
        """The flags that were given; they are taken out of the values."""
        names = [option.name for option in self.options if option.name in values]
        return self.flags(**{name: values.pop(name) for name in names})


def _group_of(parameter: Parameter) -> _Group | None:
    flags, marks = parameter.annotation, []
    if get_origin(flags) is Annotated:
        flags, *marks = get_args(flags)
    if not (isinstance(flags, type) and is_dataclass(flags)):
        return None
    assert parameter.kind is Parameter.KEYWORD_ONLY, f"{parameter.name}: put a * before"
    withouts = [mark.names for mark in marks if isinstance(mark, Without)]
    return _Group(parameter.name, flags, _options_of(flags, frozenset().union(*withouts)))


def _options_of(flags: type, left_out: frozenset[str]) -> list[Parameter]:
    annotations = get_type_hints(flags, include_extras=True)
    defaults = {
        field.name: Parameter.empty if field.default is MISSING else field.default
        for field in fields(flags)
    }
    assert left_out <= set(defaults), f"{flags.__name__} lacks {left_out - set(defaults)}"
    return [
        Parameter(
            name, Parameter.KEYWORD_ONLY, default=default, annotation=annotations[name]
        )
        for name, default in defaults.items()
        if name not in left_out
    ]
