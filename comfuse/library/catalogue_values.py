"""Values of a catalogue's tables, as TOML has them: checked, and as the programs take them.

All of these raise ValueError, with the key, what was got and what is allowed.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar, get_args, get_origin

from comfuse.generator.catalog import Layouts
from comfuse.generator.spec import DType, Major
from comfuse.library.rows import M_CLASSES

T = TypeVar("T")
MANY = "many"
NAMES = tuple[str, ...]  # the type of an argument that is a list
_DTYPES = {dtype.value: dtype for dtype in DType}
_MAJORS = {major.value: major for major in Major}
_BOOLEANS = {True: True, False: False}


def only(table: Mapping[str, Any], allowed: Iterable[str]) -> None:
    """Checks that a table has no other keys."""
    allowed = dict.fromkeys(allowed)
    unknown = sorted(set(table).difference(allowed))
    if unknown:
        raise ValueError(f"unknown {', '.join(unknown)}; allowed: {', '.join(allowed)}")


def several(key: str, value: Any, hint: Any = None) -> list[Any]:
    """The values that a list stands for; of an argument that takes a list, a list of strings is one."""
    if value == []:
        raise ValueError(f"{key} is an empty list, which stands for no kernel")
    if not isinstance(value, list) or (hint == NAMES and all(isinstance(name, str) for name in value)):
        return [value]
    return value


def table(key: str, value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError(f"{key} is {value!r}; allowed: a table")
    return value


def text(key: str, value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError(f"{key} is {value!r}; allowed: a string")
    return value


def names(key: str, value: Any) -> tuple[str, ...]:
    if not (isinstance(value, list) and all(isinstance(name, str) for name in value)):
        raise ValueError(f"{key} is {value!r}; allowed: a list of names")
    return tuple(value)


def constants(value: Any) -> dict[str, float]:
    """Numbers by name."""
    given = table("constants", value)
    for name, number in given.items():
        if type(number) not in (int, float):
            raise ValueError(f"constants: {name} is {number!r}; allowed: a number")
    return given


def shapes(value: Any, sizes: int) -> list[list[int]]:
    """Lists of so many sizes."""
    allowed = "allowed: lists of sizes, such as [[1024, 64]]"
    if not isinstance(value, list) or not value:
        raise ValueError(f"shapes is {'missing' if value is None else repr(value)}; {allowed}")
    for shape in value:
        if not isinstance(shape, list):
            raise ValueError(f"shapes: {shape!r}; {allowed}")
        if len(shape) != sizes:
            raise ValueError(f"shapes: {shape} has {len(shape)} sizes; allowed: {sizes}")
        if not all(type(size) is int and size > 0 for size in shape):
            raise ValueError(f"shapes: {shape}; allowed: whole numbers, at least 1")
    return value


def dtype(name: Any) -> DType:
    return _chosen("dtype", name, _DTYPES)


def layouts(value: Any) -> Layouts:
    given = table("layouts", value)
    only(given, ("a", "b", "batched", "strided"))
    return Layouts(
        a=_chosen("layouts: a", given.get("a", "k"), _MAJORS),
        b=_chosen("layouts: b", given.get("b", "k"), _MAJORS),
        batched=_chosen("layouts: batched", given.get("batched", False), _BOOLEANS),
        strided=names("layouts: strided", given.get("strided", [])),
    )


def rows(value: Any) -> tuple[int | None, ...] | None:
    """Classes of numbers of rows by their upper bounds; None: all of them."""
    if value is None:
        return None
    allowed: dict[Any, int | None] = {**{bound: bound for bound in M_CLASSES}, MANY: None}
    return tuple(_chosen("rows", one, allowed) for one in several("rows", value))


def argument(key: str, value: Any, factors: DType, hint: Any) -> Any:
    """An argument of a program, by the type that it is to have: names of dtypes are dtypes, "same" the dtype
    of the factors, "none" is None.
    """
    if hint == NAMES:
        return names(key, value)
    kinds: Sequence[Any] = [hint] if get_origin(hint) is Literal else [*get_args(hint)] or [hint]
    if str in kinds:  # whatever the program says of it
        return None if value == "none" and type(None) in kinds else text(key, value)
    allowed: dict[Any, Any] = {}
    for kind in kinds:
        if kind is DType:
            allowed |= {"same": factors, **_DTYPES}
        elif kind is Major:
            allowed |= _MAJORS
        elif kind is bool:
            allowed |= _BOOLEANS
        elif kind is type(None):
            allowed["none"] = None
        elif get_origin(kind) is Literal:
            allowed |= {choice: choice for choice in get_args(kind)}
        else:
            raise TypeError(f"a catalogue has no values of type {kind} for {key}")
    return _chosen(key, value, allowed)


def _chosen(key: str, value: Any, allowed: Mapping[Any, T]) -> T:
    """What a value stands for.  It may be of any type, one that has no hash too; 1 is not True."""
    for name, meaning in allowed.items():
        if type(name) is type(value) and name == value:
            return meaning
    raise ValueError(f"{key} is {value!r}; allowed: {', '.join(map(str, allowed))}")
