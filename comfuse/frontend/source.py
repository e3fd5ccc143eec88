"""Where in the user's source a graph node comes from, and the name the user gave its value.

While a function is captured, :class:`LocationRecorder` writes ``"file:line"`` of the innermost frame
outside torch into every node; torch.compile writes the whole traceback.  :func:`value_names` then reads the
statements at these places: the last node made by ``h = F.linear(x, w, b) + r`` is called ``h``, in the spec,
in the kernel and in errors.
"""

from __future__ import annotations

import ast
import linecache
import re
import sys
import traceback
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.fx.traceback
from torch.overrides import TorchFunctionMode

# Frames of these packages are never the user's.
_FRONTEND = Path(__file__).parent
_MACHINERY = (str(Path(torch.__file__).parent), str(_FRONTEND), str(_FRONTEND.with_name("inductor")))

_FRAME = re.compile(r'^\s*File "(.+)", line (\d+)', re.MULTILINE)


class LocationRecorder(TorchFunctionMode):
    """Notes, at every call of the torch API, the user's line in the nodes that the call makes.

    Use inside ``torch.fx.traceback.preserve_node_meta()``.
    """

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        frame: FrameType | None = sys._getframe(1)
        while frame is not None and not is_users(frame.f_code.co_filename):
            frame = frame.f_back
        if frame is not None:
            torch.fx.traceback.set_stack_trace([f"{frame.f_code.co_filename}:{frame.f_lineno}"])
        return func(*args, **(kwargs or {}))


def is_users(file: str) -> bool:
    """Whether a frame is the user's, by its file."""
    return not file.startswith((*_MACHINERY, "<"))


def failed_at(error: BaseException) -> str | None:
    """``"file:line"`` of the user's innermost frame in the error's traceback, or None."""
    frames = [(f.f_code.co_filename, line) for f, line in traceback.walk_tb(error.__traceback__)]
    users = [f"{file}:{line}" for file, line in frames if is_users(file)]
    return users[-1] if users else None


def location(node: torch.fx.Node) -> str | None:
    """``"file:line"`` that made the node, or None.

    Reads what :class:`LocationRecorder` wrote, and the tracebacks that torch.compile writes instead.
    """
    return _innermost(node.stack_trace) if node.stack_trace else None


@lru_cache(maxsize=1024)
def _innermost(trace: str) -> str | None:
    """The user's innermost frame of a traceback; ``"file:line"`` is itself."""
    frames = _FRAME.findall(trace)
    if not frames:
        return trace
    users = [f"{file}:{line}" for file, line in frames if is_users(file)]
    return users[-1] if users else None


def value_names(nodes: Iterable[torch.fx.Node]) -> dict[torch.fx.Node, str]:
    """The variable that each node's value was assigned to, for the nodes where there is one."""
    names: dict[torch.fx.Node, str] = {}
    previous: ast.stmt | None = None
    last: torch.fx.Node | None = None
    for node in nodes:
        statement = _statement(node)
        if previous is not None and statement is not previous and last is not None:
            _note(names, last, previous)
        previous, last = statement, node
    if previous is not None and last is not None:
        _note(names, last, previous)
    return names


def _note(names: dict[torch.fx.Node, str], node: torch.fx.Node, statement: ast.stmt) -> None:
    if isinstance(statement, ast.Assign):
        targets = statement.targets
    elif isinstance(statement, ast.AnnAssign | ast.AugAssign):
        targets = [statement.target]
    else:
        return
    if len(targets) == 1 and isinstance(targets[0], ast.Name):
        names[node] = targets[0].id


def _statement(node: torch.fx.Node) -> ast.stmt | None:
    """The innermost simple statement at the node's place."""
    place = location(node)
    if place is None:
        return None
    file, _, line = place.rpartition(":")
    return _statements(file).get(int(line)) if line.isdigit() else None


@lru_cache(maxsize=64)
def _statements(file: str) -> dict[int, ast.stmt]:
    try:
        tree = ast.parse("".join(linecache.getlines(file)))
    except SyntaxError:  # a notebook cell with magics, or not Python: the names are only a courtesy
        return {}
    lines: dict[int, ast.stmt] = {}
    for statement in ast.walk(tree):  # outer statements come before those inside them
        if isinstance(statement, ast.stmt) and not hasattr(statement, "body"):
            for line in range(statement.lineno, (statement.end_lineno or statement.lineno) + 1):
                lines[line] = statement
    return lines
