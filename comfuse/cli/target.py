"""The function and the inputs that a command is about."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import torch

from comfuse.frontend import unfused
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import FusedSpec
from comfuse.reference import TORCH_DTYPES

DTYPES = {dtype.value: of_torch for dtype, of_torch in TORCH_DTYPES.items()}
_TENSOR = re.compile(r"(\w+)\[\s*((?:\d+\s*(?:,\s*\d+\s*)*,?)?)\s*\]", re.ASCII)
_BY_PLACE = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_WORDS = {"none": None, "true": True, "false": False}


def load_function(target: str) -> Callable[..., Any]:
    """The function that ``FILE.py:NAME`` or ``package.module:NAME`` names."""
    where, _, name = target.rpartition(":")
    if not where or not name:
        raise click.BadParameter(f"{target!r} names no function; write FILE.py:FUNCTION or MODULE:FUNCTION")
    module = _load_file(Path(where)) if where.endswith(".py") else _load_module(where)
    found: Any = module
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        functions = [
            n for n, f in vars(module).items() if inspect.isfunction(unfused(f)) and not n.startswith("_")
        ]
        raise click.BadParameter(f"{where} has no function {name}; it has {', '.join(functions) or 'none'}")
    return found


def read_spec(given: str) -> FusedSpec | ChainSpec:
    """The program of a text, or of the file that holds it.

    Raises:
        SpecError: it is the text of no program.
    """
    from comfuse.ops.programs import parse

    if not given.lstrip().startswith("{"):
        try:
            given = Path(given).read_text()
        except OSError as e:
            raise click.BadParameter(f"{given!r} is neither the text of a program nor a file: {e}") from None
    return parse(given.strip()).spec


def _load_file(path: Path) -> Any:
    if not path.is_file():
        raise click.BadParameter(f"there is no file {path}")
    # A name that is no other module's, whatever the file is called.
    spec = importlib.util.spec_from_file_location(f"comfuse_target_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[module.__name__] = module  # where its dataclasses look for it
    sys.path.insert(0, str(path.parent.resolve()))  # as for `python FILE`
    try:
        with _told(path):
            spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module.__name__]
        raise
    finally:
        sys.path.pop(0)
    return module


def _load_module(name: str) -> Any:
    sys.path.insert(0, str(Path.cwd()))
    try:
        with _told(name):
            try:
                return importlib.import_module(name)
            except ModuleNotFoundError as e:
                raise click.BadParameter(f"there is no module {e.name}") from None
    finally:
        sys.path.pop(0)


@contextmanager
def _told(what: Path | str) -> Iterator[None]:
    """Makes what a module raises while it is loaded a message, with the frames from the module on."""
    try:
        yield
    except click.ClickException:
        raise
    except Exception as e:
        frames = e.__traceback__
        while frames is not None and _is_import(frames.tb_frame.f_code.co_filename):
            frames = frames.tb_next
        said = "".join(traceback.format_exception(type(e), e, frames)).rstrip()
        raise click.ClickException(f"{what} cannot be loaded:\n{said}") from None


def _is_import(file: str) -> bool:
    return file in (__file__, importlib.__file__) or file.startswith("<frozen importlib")


def parse_shapes(function: Callable[..., Any], text: str) -> list[Any]:
    """Positional inputs from ``"x=bf16[16384,1024] w=bf16[1024,1024] eps=1e-5"``, tensors on the meta device.

    Each item is ``name=value``; values are ``DTYPE[SIZES]``, numbers, ``true``, ``false`` and ``none``.
    """
    given: dict[str, Any] = {}
    try:
        items = shlex.split(text)
    except ValueError as e:
        raise click.BadParameter(f"{text!r} cannot be read: {e}") from None
    for item in items:
        name, equals, value = item.partition("=")
        if not equals:
            raise click.BadParameter(f"{item!r} is not NAME=VALUE, such as x=bf16[16384,1024]")
        if name in given:
            raise click.BadParameter(f"{name} is given twice")
        given[name] = _value(name, value)
    signature = inspect.signature(function)
    try:
        bound = signature.bind(**given)
    except TypeError as e:
        names = ", ".join(signature.parameters)
        raise click.BadParameter(f"{e}; the function's arguments are {names}") from None
    places = [name for name, parameter in signature.parameters.items() if parameter.kind in _BY_PLACE]
    others = [name for name in given if name not in places]
    if others:
        called = getattr(function, "__name__", "the function")
        raise click.BadParameter(
            f"{called} takes {', '.join(others)} by its name alone; inputs have a place, as in f(x, w)"
        )
    last = max((places.index(name) for name in given), default=-1)
    bound.apply_defaults()  # a default before a given argument has to be spelled out
    return [bound.arguments[name] for name in places[: last + 1]]


def _value(name: str, text: str) -> Any:
    found = _TENSOR.fullmatch(text)
    if found is not None:
        dtype, sizes = found.groups()
        if dtype not in DTYPES:
            raise click.BadParameter(f"{name}: unknown dtype {dtype!r}; allowed: {', '.join(DTYPES)}")
        shape = [int(size) for size in sizes.split(",") if size.strip()]
        try:
            return torch.empty(shape, dtype=DTYPES[dtype], device="meta")
        except (RuntimeError, TypeError) as e:  # it has too many elements, or a size is no int64
            raise click.BadParameter(f"{name}: {text}: {str(e).splitlines()[0]}") from None
    if text.lower() in _WORDS:
        return _WORDS[text.lower()]
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    raise click.BadParameter(
        f"{name}: {text!r} is no tensor like bf16[16384,1024], no number, true, false or none"
    )
