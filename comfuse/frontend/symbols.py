"""Numbers in the place of the symbols of a graph's sizes.

The front end reads sizes as numbers.  A graph with symbolic rows is read twice, each time with other numbers
in the place of its symbols: what comes out equal does not depend on them.  Sizes are never compared as they
are, which would add guards to the graph.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from typing import Any

import sympy
import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.utils._sympy.functions import CleanDiv, FloorDiv, Mod, PythonMod

Table = Mapping[sympy.Symbol, sympy.Integer]

SYMBOLIC = (torch.SymInt, torch.SymFloat, torch.SymBool)
# Primes that no model has as a width, and of which no product is one.
_FIRST_PRIME = 1009
_QUOTIENTS = (CleanDiv, FloorDiv, Mod, PythonMod)


def expressions(val: Any) -> list[sympy.Expr]:
    """The symbolic sizes, strides and numbers in what a node holds (``meta["val"]``)."""
    if isinstance(val, SYMBOLIC):
        return [val.node.expr]
    if isinstance(val, torch.Tensor):
        return [found for size in (*val.shape, *val.stride()) for found in expressions(size)]
    if isinstance(val, list | tuple):
        return [found for part in val for found in expressions(part)]
    return []


def is_symbolic(val: Any) -> bool:
    """Whether any size, stride or number of it has a symbol."""
    return any(expression.free_symbols for expression in expressions(val))


def samples(vals: Iterable[Any]) -> tuple[Table, ...]:
    """Two tables of numbers for all symbols of ``vals``, or one empty table where they have none.

    The numbers have the divisors by which the sizes are divided.
    """
    found = [expression for val in vals for expression in expressions(val)]
    symbols = sorted({s for expression in found for s in expression.free_symbols}, key=str)
    if not symbols:
        return ({},)
    step = math.lcm(*divisors(found))
    numbers = [sympy.Integer(step * prime) for prime in _primes(2 * len(symbols))]
    return tuple(dict(zip(symbols, numbers[start::2], strict=True)) for start in (0, 1))


def divisors(found: Iterable[sympy.Basic]) -> list[int]:
    """What the expressions divide by."""
    quotients = (q for expression in found for q in expression.atoms(*_QUOTIENTS))
    return [int(q.args[1]) for q in quotients if q.args[1].is_Integer and q.args[1] > 0]


def _primes(count: int) -> list[int]:
    primes = [_FIRST_PRIME]
    while len(primes) < count:
        primes.append(int(sympy.nextprime(primes[-1])))
    return primes


def concrete(val: Any, table: Table) -> Any:
    """What a node holds, with numbers for its symbols.

    Tensors keep their strides, and have no memory.
    """
    if isinstance(val, torch.SymBool):
        return bool(val.node.expr.xreplace(table))
    if isinstance(val, torch.SymInt):
        return int(val.node.expr.xreplace(table))
    if isinstance(val, torch.SymFloat):
        return float(val.node.expr.xreplace(table))
    if isinstance(val, list | tuple):
        return type(val)(concrete(part, table) for part in val)
    if not isinstance(val, torch.Tensor) or not expressions(val):
        return val
    sizes, strides = ([concrete(size, table) for size in part] for part in (val.shape, val.stride()))
    with FakeTensorMode():
        return torch.empty_strided(sizes, strides, dtype=val.dtype, device=val.device)
