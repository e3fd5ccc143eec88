"""From an aten graph to a FusedSpec.

The GEMM's result is a tile (M, N).  Whatever follows has its place in this space: every value is a TILE, a
COLUMN (one number a row of the tile), a ROW (one a column) or a SCALAR.  What depends on arguments alone is
*deferred*: a bias has no place until a value that has one meets it, and then torch's broadcasting rules say
where it goes.  So (M,) from ``h.sum(-1)`` and (N,) from a bias never mix up, even where M = N.

Values are computed in float32; casts between float types inside the graph change nothing, and rounding
happens where an output is stored.
"""

from __future__ import annotations

import dataclasses
import math
import operator
from dataclasses import dataclass
from typing import Any

import torch

from comfuse.frontend import views
from comfuse.frontend.capture import Captured
from comfuse.frontend.errors import TraceError
from comfuse.frontend.handlers import CONSTANTS, ELEMENTWISE, REDUCTIONS, explain_unknown
from comfuse.frontend.names import rename
from comfuse.frontend.placing import (
    Frame,
    Result,
    Value,
    classify,
    frame_of,
    misfit,
    natural_shape,
    with_shapes,
)  # fmt: skip
from comfuse.frontend.source import value_names
from comfuse.frontend.views import arguments, dtype_of, name_of, refuse, shape_of
from comfuse.generator import ops
from comfuse.generator.builder import SpecBuilder
from comfuse.generator.spec import FusedSpec, Space
from comfuse.reference import SPEC_DTYPES as DTYPES

aten = torch.ops.aten

# The positions of the two factors among the arguments.
_GEMMS = {
    aten.mm.default: (0, 1),
    aten.mm.dtype: (0, 1),
    aten.addmm.default: (1, 2),
    aten.bmm.default: (0, 1),
}
_EXPANDS = {aten.expand.default, aten.broadcast_to.default}


@dataclass(frozen=True)
class Lowered:
    """A spec, and where its pieces are among the arguments and results of the function.

    Attributes:
        spec: the program.
        a, b: positions of the arguments that are A and B.
        casts: the dtypes that A and B are converted to before the product, where the function does so.
        operands: position and space of each tensor operand, in the order of the spec.
        scalars: positions of the run-time scalars, in the order of the spec.
        outputs: for each result of the function, its index in ``spec.outputs`` and its shape when traced.
    """

    spec: FusedSpec
    a: int
    b: int
    casts: tuple[torch.dtype | None, torch.dtype | None]
    operands: tuple[tuple[int, Space], ...]
    scalars: tuple[int, ...]
    outputs: tuple[tuple[int, tuple[int, ...]], ...]


def lower(captured: Captured) -> Lowered:
    """The spec of a captured function.

    Raises:
        TraceError: no GEMM, more than one, or a node that has no place behind it; names the node.
    """
    lowering = Lowering(captured)
    for node in captured.graph.nodes:
        lowering.visit(node)
    return lowering.finish()


class Lowering:
    """The state of one lowering, and what the handlers of single operators work with."""

    def __init__(self, captured: Captured) -> None:
        self._captured = captured
        self._env: dict[torch.fx.Node, Result] = {}
        self._placed: dict[tuple[torch.fx.Node, Frame], Value] = {}
        self._constants: dict[str, Value] = {}
        self._operands: dict[tuple[torch.fx.Node, Space], Value] = {}
        self._names = value_names(captured.graph.nodes)
        self._user_names: dict[int, str] = {}
        self._builder: SpecBuilder | None = None
        self._gemm: torch.fx.Node | None = None
        self._a: views.Matrix | None = None
        self._b: views.Matrix | None = None
        self.m = 0
        self.n = 0

    # --- for the handlers ---------------------------------------------------------------------------

    def emit(self, op: str, *inputs: Value, name: str | None = None) -> Value:
        """An elementwise node."""
        assert op in ops.ELEMENTWISE, op
        space = inputs[0].space
        for v in inputs[1:]:
            space = space.join(v.space)
        shape = tuple(torch.broadcast_shapes(*(v.shape for v in inputs)))
        return Value(self.builder.op(op, *(v.node for v in inputs), name=name), space, shape)

    def reduce(self, op: str, x: Value, name: str | None = None) -> Value:
        """A row reduction of a TILE, with keepdim; the graph's own shape is set where the node ends."""
        return Value(self.builder.op(op, x.node, name=name), Space.COLUMN, (*x.shape[:-1], 1))

    def field(self, reduction: Value, name: str) -> Value:
        return dataclasses.replace(reduction, node=self.builder.field(reduction.node, name))

    def const(self, value: float) -> Value:
        value = float(value)
        if value.hex() not in self._constants:
            self._constants[value.hex()] = Value(self.builder.const(value), Space.SCALAR, ())
        return self._constants[value.hex()]

    def value(self, x: Any, frame: Frame, user: torch.fx.Node) -> Value:
        """An argument of ``user``, a node or a Python number, in its place in ``frame``."""
        if isinstance(x, bool | int | float):
            return self.const(x)
        if not isinstance(x, torch.fx.Node):
            raise refuse(user, f"its argument {x!r} is not a number known when the function is traced")
        if x not in self._env:
            return self._place(x, frame, user)
        found = self._env[x]
        assert isinstance(found, Value)
        reason = misfit(found, frame, self.n)
        if reason:
            raise refuse(user, f"its input {name_of(x)} of shape {found.shape} {reason}")
        return found

    def tile(self, x: torch.fx.Node, user: torch.fx.Node) -> Value:
        """The input of a row reduction."""
        found = self._env.get(x)
        if not isinstance(found, Value):
            raise refuse(
                user, f"it reduces {name_of(x)}, which does not depend on the GEMM: compute it outside"
            )
        if found.space is not Space.TILE:
            raise refuse(user, f"it reduces {name_of(x)}, a {found.space.value} value, not an (M, N) one")
        if found.shape[-1:] != (self.n,) or found.shape != shape_of(x):
            raise refuse(
                user,
                f"its input {name_of(x)} of shape {found.shape} no longer ends in the GEMM's N = {self.n}",
            )
        return found

    @property
    def builder(self) -> SpecBuilder:
        assert self._builder is not None
        return self._builder

    # --- the walk -----------------------------------------------------------------------------------

    def visit(self, node: torch.fx.Node) -> None:
        if node.op != "call_function":
            return
        if node.target in _GEMMS:
            self._env[node] = self._lower_gemm(node)
        elif node.target in CONSTANTS:  # ones_like(h) takes no more than a shape from h
            return
        elif any(i in self._env for i in node.all_input_nodes):
            self._env[node] = self._lower_node(node)
        found = self._env.get(node)
        name = self._names.get(node)
        if name is not None and isinstance(found, Value) and found.space is not Space.SCALAR:
            self._user_names.setdefault(found.node, name)

    def _lower_gemm(self, node: torch.fx.Node) -> Value:
        if self._gemm is not None:
            raise refuse(node, f"a second matrix product; a kernel holds one, here {self._gemm.name}")
        left, right = (node.args[i] for i in _GEMMS[node.target])
        assert isinstance(left, torch.fx.Node)
        assert isinstance(right, torch.fx.Node)
        shape = shape_of(node)
        if len(shape) == 3 and shape[0] != 1:
            raise refuse(node, f"a batched product of {shape[0]} weights; all rows must share one")
        dtype = dtype_of(left)
        if DTYPES.get(dtype) is None or dtype is torch.float32:
            raise refuse(node, f"its factors are {dtype}; allowed: torch.bfloat16, torch.float16")
        if dtype_of(right) is not dtype:
            raise refuse(node, f"its factors are {dtype} and {dtype_of(right)}; allowed: one dtype for both")
        self.n, self.m = shape[-1], math.prod(shape[:-1])
        if self.n == 1:
            raise refuse(node, "a matrix-vector product, N = 1")
        self._a = views.matrix_a(node, left)
        self._b = views.matrix_b(node, right)
        self._gemm = node
        self._builder = SpecBuilder(self.n, shape_of(left)[-1], DTYPES[dtype])
        acc = Value(self.builder.gemm(), Space.TILE, shape)
        if node.target is not aten.addmm.default:
            return acc
        given = arguments(node)
        if given["alpha"] != 1:
            acc = self.emit("mul", acc, self.value(given["alpha"], Frame(shape, True), node))
        if given["beta"] == 0:  # torch ignores the bias then, NaN included
            return acc
        bias = self.value(given["self"], Frame(shape, True), node)
        if given["beta"] != 1:
            bias = self.emit("mul", bias, self.value(given["beta"], Frame(shape, True), node))
        return self.emit("add", acc, bias)

    def _lower_node(self, node: torch.fx.Node) -> Result:
        """A node that depends on the GEMM."""
        if node.target is operator.getitem:
            source, index = node.args
            results = self._env[source]  # type: ignore[index]
            assert isinstance(results, tuple)
            found = results[index]  # type: ignore[index]
            if found is None:
                raise refuse(node, f"result {index} of {source} is not available in a fused kernel")
            return found
        viewed = views.source_of_view(node)
        if viewed is not None:
            return self._reshaped(node, viewed)
        if node.target in _EXPANDS:
            return self._env[node.args[0]]  # type: ignore[index]
        if node.target in views.CASTS:
            return self._cast(node, self._env[node.args[0]])  # type: ignore[index,arg-type]
        if node.target in REDUCTIONS:
            return with_shapes(REDUCTIONS[node.target](self, node), node)
        if node.target not in ELEMENTWISE:
            raise refuse(node, explain_unknown(node))
        _check_dtype(node)
        inputs = [v for i in node.all_input_nodes if isinstance(v := self._env.get(i), Value)]
        frame = frame_of(shape_of(node), inputs, self.m, self.n)
        if frame is None:
            raise refuse(
                node,
                f"its result of shape {shape_of(node)} is neither (..., N) with N = {self.n} nor one number "
                f"for each of the {self.m} rows of the GEMM's result",
            )
        return ELEMENTWISE[node.target](self, node, frame)

    def _reshaped(self, node: torch.fx.Node, source: torch.fx.Node) -> Value:
        value = self._env[source]
        assert isinstance(value, Value)
        if value.space is Space.SCALAR or shape_of(node) == shape_of(source):
            return value
        if value.shape != shape_of(source):
            raise refuse(node, f"it reshapes {name_of(source)}, a broadcast of {value.shape}: do it before")
        return dataclasses.replace(value, shape=shape_of(node))

    def _cast(self, node: torch.fx.Node, value: Value) -> Value:
        if dtype_of(node) is torch.bool and dtype_of(node.args[0]) is not torch.bool:  # type: ignore[arg-type]
            return self.emit("ne", value, self.const(0.0))
        _check_dtype(node)
        return value

    # --- values that depend on arguments alone ------------------------------------------------------

    def _place(self, node: torch.fx.Node, frame: Frame, user: torch.fx.Node) -> Value:
        key = (node, frame)
        if key not in self._placed:
            value = self._place_new(node, frame, user)
            self._placed[key] = dataclasses.replace(value, shape=natural_shape(value.space, frame, self.n))
        return self._placed[key]

    def _place_new(self, node: torch.fx.Node, frame: Frame, user: torch.fx.Node) -> Value:
        if node.target in _EXPANDS:
            return self._place(node.args[0], frame, user)  # type: ignore[arg-type]
        shape = shape_of(node)
        space = classify(shape, frame, self.m, self.n)
        if space is None:
            raise refuse(
                user,
                f"its input {name_of(node)} of shape {shape} broadcasts to {frame.shape} over a part of the "
                "rows or columns; expand it to the full shape before the call",
            )
        return self._place_as(node, space, frame, user)

    def _place_as(self, node: torch.fx.Node, space: Space, frame: Frame | None, user: torch.fx.Node) -> Value:
        """``node`` as a value of ``space``.  ``frame`` is None behind a change of shape."""
        if node.op == "placeholder":
            return self._operand(node, space, user)
        if node.op == "get_attr":
            return self.const(self._constant_tensor(node, user))
        if node.target in CONSTANTS:
            return self.const(CONSTANTS[node.target](node))
        source = views.source_of_view(node)
        if source is not None:
            return self._place_as(source, space, frame if shape_of(source) == shape_of(node) else None, user)
        if frame is None:
            tile = space in (Space.TILE, Space.ROW)
            frame = Frame(shape_of(node), tile)
            found = classify(frame.shape, frame, self.m, self.n)
            if found is None or (found is not space and self.m > 1):  # one row may count as either
                raise refuse(
                    user, f"its input {name_of(node)} is reshaped across the rows of the GEMM's result"
                )
        if node.target in views.CASTS:
            value = self._place(node.args[0], frame, user)  # type: ignore[arg-type]
            return self._cast(node, value)
        if node.target not in ELEMENTWISE:
            if node.target in REDUCTIONS or node.target is operator.getitem:
                raise refuse(node, "a reduction of arguments alone: compute it before the call")
            raise refuse(node, explain_unknown(node))
        _check_dtype(node)
        return ELEMENTWISE[node.target](self, node, frame)

    def _operand(self, node: torch.fx.Node, space: Space, user: torch.fx.Node) -> Value:
        key = (node, space)
        if key in self._operands:
            return self._operands[key]
        dtype = dtype_of(node)
        if space is Space.SCALAR:
            if node.meta["val"].device.type == "cuda":
                raise refuse(
                    user,
                    f"its input {name_of(node)} holds one number in GPU memory, which each call would have "
                    "to wait for; pass a Python float, or expand it to (M, 1) or (N,)",
                )
        elif dtype not in DTYPES:
            raise refuse(user, f"its input {name_of(node)} is {dtype}; allowed: bfloat16, float16, float32")
        stored = torch.float32 if space is Space.SCALAR else dtype
        index = self.builder.load(name_of(node), space, DTYPES[stored])
        self._operands[key] = Value(index, space, shape_of(node))
        return self._operands[key]

    def _constant_tensor(self, node: torch.fx.Node, user: torch.fx.Node) -> float:
        tensor = getattr(self._captured.module, str(node.target))
        tensor = getattr(tensor, "constant", None) if hasattr(tensor, "fake_mode") else tensor
        if tensor is None or tensor.numel() != 1:
            raise refuse(
                user,
                f"its input {node.name} is a tensor that is no argument of the function (a module's "
                "parameter, or a variable from outside): make it one",
            )
        return float(tensor.item())

    # --- the end ------------------------------------------------------------------------------------

    def finish(self) -> Lowered:
        if self._gemm is None or self._a is None or self._b is None:
            raise TraceError("no matrix product (F.linear, x @ w.t()) among what the results depend on")
        outputs = []
        stored: dict[tuple[int, torch.dtype], int] = {}
        for i, node in enumerate(self._captured.outputs):
            value = self._output_value(node)
            key = (value.node, dtype_of(node))
            if key not in stored:
                stored[key] = len(stored)
                name = self._user_names.get(value.node) or (
                    "y" if len(self._captured.outputs) == 1 else f"y{i}"
                )
                self._user_names.setdefault(value.node, name)
                self.builder.output(name, value.node, DTYPES[dtype_of(node)])
            outputs.append((stored[key], shape_of(node)))
        position = self._captured.arguments
        operands = [(position[node], space) for node, space in self._operands]
        dtype = dtype_of(self._gemm.args[_GEMMS[self._gemm.target][0]])  # type: ignore[arg-type]
        casts = [dtype if dtype_of(x.placeholder) is not dtype else None for x in (self._a, self._b)]
        return Lowered(
            spec=rename(self.builder.spec(), self._user_names),
            a=position[self._a.placeholder],
            b=position[self._b.placeholder],
            casts=(casts[0], casts[1]),
            operands=tuple((i, space) for i, space in operands if space is not Space.SCALAR),
            scalars=tuple(i for i, space in operands if space is Space.SCALAR),
            outputs=tuple(outputs),
        )

    def _output_value(self, node: torch.fx.Node) -> Value:
        value = self._env.get(node)
        if not isinstance(value, Value) or value.space in (Space.SCALAR, Space.ROW):
            raise refuse(node, "it is returned, but does not depend on the GEMM's rows: compute it outside")
        shape = shape_of(node)
        if value.shape != shape or (value.space is Space.TILE and shape[-1] != self.n):
            raise refuse(
                node,
                f"it is returned with shape {shape}, a {value.space.value} value; results are (..., N) with "
                f"N = {self.n}, or one number a row: change the shape after the call",
            )
        if dtype_of(node) not in DTYPES:
            raise refuse(
                node,
                f"it is returned as {dtype_of(node)}; allowed: bfloat16, float16, float32: convert it",
            )
        return value


def _check_dtype(node: torch.fx.Node) -> None:
    dtype = dtype_of(node)
    if dtype not in DTYPES and dtype is not torch.bool:
        raise refuse(node, f"it is computed in {dtype}; between load and store everything is float32")
