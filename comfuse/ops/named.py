"""What the named ops share: the fast path, and what happens where it is not taken.

A named op is a :class:`NamedOp`: the catalogue's program, of one layer or a chain of them, the arguments that
it takes, and what runs where gradients are wanted (:mod:`comfuse.ops.autograd`).  A call looks up the text of
its program by the properties of its arguments, and calls the dispatcher op.  Nothing is checked before: the
dispatcher op checks shapes, dtypes and devices against the program.  When anything on this path fails,
:mod:`comfuse.ops.faults` looks at the arguments again, by the names that the user knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from operator import index
from typing import Any

import torch
from torch import Tensor

from comfuse import fallbacks
from comfuse.errors import ArgumentError, GradientError
from comfuse.generator.catalog import Layouts
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import FusedSpec, Major, Space
from comfuse.ops import faults, transforms
from comfuse.ops.calls import region_out
from comfuse.ops.faults import AB_DTYPES, Argument
from comfuse.ops.programs import called
from comfuse.ops.resolver import translate
from comfuse.ops.schema import ALONE, FIXED, GENERAL
from comfuse.ops.tracing import constant_when_traced

_OPS: dict[str, NamedOp] = {}
_SAVING = "for a backward"  # the variant whose program is saved
_is_tracing = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled


@constant_when_traced
def _count_no_products(op: str) -> bool:
    fallbacks.record(op, "K is 0: a kernel multiplies eight zeros instead")
    return True


class NamedOp:
    """A fused op with named arguments.

    Attributes:
        name: as the user calls it.
        program: a program of the catalogue, called with N, K, of a chain the columns H of what lies between,
            and a dtype.  It takes ``arguments`` and ``options`` by their names.
        arguments: the tensors besides x and the weight, in the order of a call's operands: for each layer its
            weights first, then the operands of the program.  Each may be None.
        options: what else the program depends on, by name: the values that are allowed.
        scalars: names of the numbers that a call may have behind them.
        gradient: the op with a gradient, called with x, the weight, and the rest of a call in order where any
            of them requires one.  It runs this op by :func:`run`, or others.  None refuses such a call.
        weight: name of the first factor B.
        outputs: how many tensors it returns; a tuple of them if there are several.
        saved: how many more the program stores for a backward where it is told to be ``saved``.
        variant: tells apart several of one name.
    """

    def __init__(
        self,
        name: str,
        program: Callable[..., FusedSpec | ChainSpec],
        arguments: Sequence[Argument],
        gradient: Callable[..., Any] | None = None,
        *,
        options: dict[str, tuple[Any, ...]] | None = None,
        scalars: Sequence[str] = (),
        weight: str = "weight",
        outputs: int = 1,
        saved: int = 0,
        variant: str = "",
    ) -> None:
        self.name = name
        self.key = f"{name} {variant}".strip()
        self.program = program
        self.arguments = tuple(arguments)
        self.options = options or {}
        self.scalars = tuple(scalars)
        self.gradient = gradient
        self.weight = weight
        #: Of the weights that begin further layers, where they are among the tensors.
        self.layers = tuple(i for i, argument in enumerate(arguments) if argument.begins_layer)
        #: Where tiles are, and the weights of their layers; None is the first.
        self.tiles = tuple(
            (i, max((w for w in self.layers if w < i), default=None))
            for i, argument in enumerate(arguments)
            if argument.space is Space.TILE
        )
        fixed = FIXED.get(outputs, ())
        general = _general if outputs > 1 else _general_of_one
        self.forms = fixed + (general,) * (len(arguments) + 1 - len(fixed))
        self.texts: dict[tuple[Any, ...], str] = {}
        _OPS[self.key] = self
        self.saving = self
        if saved:
            self.saving = NamedOp(
                name,
                partial(program, saved=True),
                arguments,
                gradient,
                options=options,
                scalars=scalars,
                weight=weight,
                outputs=outputs + saved,
                variant=_SAVING,
            )

    def __call__(
        self,
        x: Tensor,
        weight: Tensor,
        tensors: tuple[Tensor | None, ...] = (),
        options: tuple[Any, ...] = (),
        scalars: tuple[float, ...] = (),
    ) -> Any:
        """Runs the op; the tensors, options and scalars are in the order in which it was declared.

        Raises:
            ArgumentError and its kinds, and what :func:`comfuse.ops.region` raises.
        """
        try:
            if transforms.in_forward_mode():
                transforms.refuse_tangents(self.name, (x, weight, *tensors))
            grad = _is_grad_enabled()
            if grad and (x.requires_grad or weight.requires_grad):
                return self._with_gradient(x, weight, tensors, options, scalars)
            # One loop, and no call that can do without: this is most of what a call costs in Python.
            present = [x, weight]
            n, k = shape = weight.shape
            key: list[Any] = [shape, weight.dtype, x.dtype, options]
            for tensor in tensors:
                if tensor is None:
                    key.append(None)
                else:
                    if grad and tensor.requires_grad:
                        return self._with_gradient(x, weight, tensors, options, scalars)
                    key.append(tensor.dtype)
                    present.append(tensor)
            for i in self.layers:
                key.append(tensors[i].shape)  # type: ignore[union-attr]
            plain = x.is_contiguous() and weight.is_contiguous()
            for i, layer in self.tiles:
                tile = tensors[i]
                if tile is not None:
                    columns = n if layer is None else tensors[layer].shape[0]  # type: ignore[union-attr]
                    plain = plain and tile.numel() * k == x.numel() * columns
            if not plain:
                key.append(self._layouts(x, weight, tensors))
            text = None if _is_tracing() else self.texts.get(tuple(key))
            if text is None:
                text, *present = self._prepared(key, x, weight, tensors, options)
            return self.forms[len(present) - 2](text, *present, *scalars)
        except Exception as e:
            raise self._explained(e, x, weight, tensors, options, scalars) from None

    def into(
        self,
        out: Tensor,
        x: Tensor,
        weight: Tensor,
        tensors: tuple[Tensor | None, ...] = (),
        options: tuple[Any, ...] = (),
        scalars: tuple[float, ...] = (),
    ) -> Tensor:
        """Runs an op of one output, which is written to ``out``; returns that."""
        if not isinstance(out, Tensor):
            raise ArgumentError(self.name, "out", f"of type {type(out).__name__}", "a torch.Tensor or None")
        fault = faults.of_layout(self.name, "out", out)
        if fault is not None:
            raise fault
        try:
            if transforms.in_forward_mode():
                transforms.refuse_tangents(self.name, (x, weight, *tensors, out))
            if _is_grad_enabled() and _needs_gradient(x, weight, (*tensors, out)):
                got = "given where a tensor requires a gradient"
                raise ArgumentError(self.name, "out", got, "None there", "use torch.no_grad()")
            text, a, b, *operands = self._prepared(None, x, weight, tensors, options, not _is_plain(out))
            region_out(text, a, b, operands, scalars, [out])
        except Exception as e:
            raise self._about_out(self._explained(e, x, weight, tensors, options, scalars)) from None
        return out

    def _with_gradient(
        self,
        x: Tensor,
        weight: Tensor,
        tensors: tuple[Tensor | None, ...],
        options: tuple[Any, ...],
        scalars: tuple[float, ...],
    ) -> Any:
        if self.gradient is None:
            raise GradientError(
                self.name,
                "an input requires a gradient, which it does not have: call it under torch.no_grad()",
            )
        if not _is_tracing():
            transforms.refuse_transforms(self.name)
        if self.layers:  # what runs instead knows its arguments by other names
            self._check(x, weight, tensors, options)
        x, weight, tensors = self._converted(x, weight, tensors)
        if _is_tracing():
            x, weight, *tensors = _distinct((x, weight, *tensors))  # type: ignore[assignment]
        return self.gradient(x, weight, *tensors, *options, *scalars)

    def _prepared(
        self,
        key: list[Any] | None,
        x: Tensor,
        weight: Tensor,
        tensors: tuple[Tensor | None, ...],
        options: tuple[Any, ...],
        out: bool = False,
    ) -> tuple[Any, ...]:
        """The spec of a call and the tensors that it is called with.

        Args:
            key: what the spec is remembered by, if the tensors are taken as they are.
            out: the output is strided.
        """
        # Otherwise this key's next call has to come here too.
        factors = self._factors(x, weight, tensors)
        as_given = x.dtype in AB_DTYPES and all(t.dtype == x.dtype for t in factors) and weight.shape[1] != 0
        x, weight, tensors = self._converted(x, weight, tensors)
        if weight.shape[1] == 0:
            x, weight, tensors = self._without_products(x, weight, tensors, options)
        columns = [weight.shape[0], *(tensors[i].shape[0] for i in self.layers)]  # type: ignore[union-attr]
        dtypes = [None if tensor is None else tensor.dtype for tensor in tensors]
        layouts = self._layouts(x, weight, tensors, out)
        # index: the shape of a weight is no symbol.
        sizes = [index(size) for size in (columns[-1], weight.shape[1], *columns[:-1])]
        text = _text_of(self.key, sizes, x.dtype, dtypes, options, layouts)
        if key is not None and as_given and not _is_tracing():
            self.texts[tuple(key)] = text
        return text, x, weight, *[tensor for tensor in tensors if tensor is not None]

    def _converted(
        self, x: Tensor, weight: Tensor, tensors: tuple[Tensor | None, ...]
    ) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
        """A call's tensors, with x and the weights in autocast's dtype where it converts them."""
        dtype = faults.autocast_dtype(self._factors(x, weight, tensors))
        if dtype is None:
            return x, weight, tensors
        others = tuple(
            t.to(dtype) if argument.space is None and t is not None else t
            for t, argument in zip(tensors, self.arguments, strict=True)
        )
        return x.to(dtype), weight.to(dtype), others

    def _factors(self, x: Tensor, weight: Tensor, tensors: tuple[Tensor | None, ...]) -> list[Tensor]:
        """x and the weights."""
        arguments = zip(tensors, self.arguments, strict=True)
        return [x, weight, *[t for t, argument in arguments if argument.space is None and t is not None]]

    def _layouts(
        self, x: Tensor, weight: Tensor, tensors: tuple[Tensor | None, ...], out: bool = False
    ) -> tuple[bool, ...]:
        """Whether A is contiguous along M, B along N, whether the output is strided, and each tile.

        Chains have no kernels for such factors, which are copied then.
        """
        k = weight.shape[1]
        a = not self.layers and x.ndim > 1 and x.stride(-1) != 1 and x.stride(-2) == 1
        b = not self.layers and weight.stride(1) != 1 and weight.stride(0) == 1
        strided = []
        for i, layer in self.tiles:
            tile, own = tensors[i], weight if layer is None else tensors[layer]
            repeats = tile is not None and tile.numel() * k != x.numel() * own.shape[0]  # type: ignore[union-attr]
            strided.append(True if repeats else False)  # noqa: SIM210  (a comparison of symbols is no boolean)
        return (a, b, out, *strided)

    def _without_products(
        self, x: Tensor, weight: Tensor, tensors: tuple[Tensor | None, ...], options: tuple[Any, ...]
    ) -> tuple[Tensor, Tensor, tuple[Tensor | None, ...]]:
        """A call's tensors where K is 0: eight zeros a row, whose products sum to the same."""
        self._check(x, weight, tensors, options)
        if x.is_cuda:
            _count_no_products(self.name)
        x = x.new_zeros(*x.shape[:-1], 8)
        weight = weight.new_zeros(weight.shape[0], 8)
        last = self.layers[0] if self.layers else len(tensors)
        factors = tuple(
            weight if argument.space is None and i < last else tensors[i]
            for i, argument in enumerate(self.arguments)
        )
        return x, weight, factors

    def _check(self, x: Any, weight: Any, tensors: tuple[Any, ...], options: tuple[Any, ...]) -> None:
        """Raises what is wrong with the arguments, if anything is."""
        fault = self._fault(x, weight, tensors, options)
        if fault is not None:
            raise fault

    def _explained(
        self,
        error: Exception,
        x: Any,
        weight: Any,
        tensors: tuple[Any, ...],
        options: tuple[Any, ...],
        scalars: tuple[Any, ...],
    ) -> Exception:
        """The error to raise for a call that failed with ``error``: what is wrong with its arguments, if
        anything is.
        """
        numbers = dict(zip(self.scalars, scalars, strict=False))
        fault = self._fault(x, weight, tensors, options) or faults.of_scalars(self.name, numbers)
        if fault is not None:
            return fault
        return translate(error, self.name) if isinstance(error, RuntimeError) else error

    def _about_out(self, error: Exception) -> Exception:
        """An error about the one output in the words of the op whose argument it is."""
        if isinstance(error, ArgumentError) and error.argument == "out[0]":
            return type(error)(self.name, "out", error.got, error.allowed, error.hint)
        return error

    def _fault(
        self, x: Any, weight: Any, tensors: tuple[Any, ...], options: tuple[Any, ...]
    ) -> ArgumentError | None:
        chosen = dict(zip(self.options, options, strict=True))
        return faults.of_options(self.name, chosen, self.options) or faults.of_tensors(
            self.name, x, (self.weight, weight), list(zip(self.arguments, tensors, strict=True))
        )


def run(
    name: str,
    x: Tensor,
    weight: Tensor,
    tensors: tuple[Tensor | None, ...] = (),
    options: tuple[Any, ...] = (),
    scalars: tuple[float, ...] = (),
    *,
    saved: bool = False,
) -> Any:
    """Runs a named op in a Function's forward; if ``saved``, with what its program stores for a backward."""
    op = _OPS[name]
    return (op.saving if saved else op)(x, weight, tensors, options, scalars)


def _general_of_one(*arguments: Any) -> Tensor:
    (y,) = _general(*arguments)
    return y


def _general(text: str, x: Tensor, weight: Tensor, *rest: Any) -> tuple[Tensor, ...]:
    """A form of any number of outputs."""
    operands = [value for value in rest if isinstance(value, Tensor)]
    scalars = list(rest[len(operands) :])
    if operands:
        return tuple(GENERAL(text, x, weight, operands, scalars))
    return tuple(ALONE(text, x, weight, scalars))


def _needs_gradient(x: Tensor, weight: Tensor, tensors: Sequence[Tensor | None]) -> bool:
    if x.requires_grad or weight.requires_grad:
        return True
    for tensor in tensors:  # noqa: SIM110  (any() over a generator costs half a microsecond more)
        if tensor is not None and tensor.requires_grad:
            return True
    return False


def _distinct(tensors: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Views in the place of tensors that came before: Dynamo traces no Function that takes one twice."""
    found: list[Tensor | None] = []
    for tensor in tensors:
        repeats = tensor is not None and any(tensor is before for before in found)
        found.append(tensor.view_as(tensor) if repeats else tensor)  # type: ignore[union-attr]
    return found


def _is_plain(out: Tensor) -> bool:
    """Whether a kernel can store it as a new tensor of its own; a trace knows no addresses."""
    return not _is_tracing() and out.is_contiguous() and out.data_ptr() % 16 == 0


@constant_when_traced
def _text_of(
    key: str,
    sizes: list[int],
    dtype: torch.dtype,
    dtypes: list[torch.dtype | None],
    options: tuple[Any, ...],
    layouts: tuple[bool, ...],
) -> str:
    """The text of a call's spec, by what :meth:`NamedOp._prepared` found of it."""
    op = _OPS[key]
    given = {
        argument.name: None if operand is None else argument.spec_dtype(operand)
        for argument, operand in zip(op.arguments, dtypes, strict=True)
        if argument.space is not None
    }
    a, b, out, *broadcast = layouts
    strided = [op.arguments[i].name for (i, _), is_so in zip(op.tiles, broadcast, strict=True) if is_so]
    lie = Layouts(
        Major.MN if a else Major.K,
        Major.MN if b else Major.K,
        strided=(*strided, "y") if out else tuple(strided),
    )
    chosen = dict(zip(op.options, options, strict=True))
    return called(op.program(*sizes, AB_DTYPES[dtype], **given, **chosen, layouts=lie).text(), op.name)
