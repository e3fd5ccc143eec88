"""What the named ops of two linear layers share: the fast path, and what happens where it is not taken.

As :mod:`comfuse.ops.named`, for programs that are chains: a call looks up the text of its chain by the
properties of its arguments, and calls the dispatcher op.  Where anything fails, the arguments are looked at
again, by the names that the user knows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import index
from typing import Any

import torch
from torch import Tensor

from comfuse import fallbacks
from comfuse.errors import ArgumentError, ShapeError
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import Space
from comfuse.ops import faults
from comfuse.ops.faults import AB_DTYPES, Argument
from comfuse.ops.resolver import translate
from comfuse.ops.schema import FIXED, GENERAL, MAX_FIXED
from comfuse.ops.tracing import constant_when_traced

Tensors = tuple[Tensor | None, ...]
_OPS: dict[str, ChainOp] = {}
_is_tracing = torch.compiler.is_dynamo_compiling
_is_grad_enabled = torch.is_grad_enabled


@constant_when_traced
def _count_no_products(op: str) -> bool:
    fallbacks.record(op, "K is 0: a kernel multiplies eight zeros instead")
    return True


class ChainOp:
    """A fused op of two layers with named arguments.

    Attributes:
        name: as the user calls it.
        program: a chain of the catalogue.  It takes all arguments that may be left out, and ``options``, by
            their names.
        arguments: the tensors besides x in the order of a call: ``w0`` (H, K) and what belongs to the first
            layer, then ``w1`` (N, H) and what belongs to the second.  Spaces are those of the layer; None is
            a weight of w0's shape.
        unfused: the same, differentiable, of ops that are one layer each: called as this is where a gradient
            is wanted.
        options: what else the program depends on, by name: the values that are allowed.
    """

    def __init__(
        self,
        name: str,
        program: Callable[..., ChainSpec],
        arguments: Sequence[Argument],
        unfused: Callable[..., Tensor],
        *,
        options: dict[str, tuple[Any, ...]],
    ) -> None:
        self.name = name
        self.program = program
        self.arguments = tuple(arguments)
        self.unfused = unfused
        self.options = options
        names = [argument.name for argument in arguments]
        self.w0, self.w1 = names.index("w0"), names.index("w1")
        self.is_factor = tuple(argument.space is None for argument in arguments)
        # Each with the weight whose rows are its columns.
        self.tiles = tuple(
            (i, self.w0 if i < self.w1 else self.w1)
            for i, argument in enumerate(arguments)
            if argument.space is Space.TILE
        )
        self.texts: dict[tuple[Any, ...], str] = {}
        _OPS[name] = self

    def __call__(
        self, x: Tensor, tensors: Tensors, options: tuple[Any, ...], scalars: tuple[float, ...] = ()
    ) -> Tensor:
        """Runs the op; tensors and options are in the order in which it was declared.

        Raises:
            ArgumentError and its kinds, and what :func:`comfuse.ops.region` raises.
        """
        try:
            grad = _is_grad_enabled()
            if grad and x.requires_grad:
                return self._differentiable(x, tensors, options, scalars)
            # One loop, and no call that can do without: this is most of what a call costs in Python.
            present = [x]
            key: list[Any] = [x.dtype, options]
            for tensor, is_factor in zip(tensors, self.is_factor, strict=True):
                if tensor is None:
                    key.append(None)
                    continue
                if grad and tensor.requires_grad:
                    return self._differentiable(x, tensors, options, scalars)
                key.append(tensor.dtype)
                if is_factor:
                    key.append(tensor.shape)
                present.append(tensor)
            key.append(self._broadcast(x, tensors))
            text = None if _is_tracing() else self.texts.get(tuple(key))
            if text is None:
                text, *present = self._prepared(key, x, tensors, options)
            a, b, *operands = present
            if len(operands) <= MAX_FIXED:
                y: Tensor = FIXED[1][len(operands)](text, a, b, *operands, *scalars)
            else:
                (y,) = GENERAL(text, a, b, operands, list(scalars))
            return y
        except Exception as e:
            raise self._explained(e, x, tensors, options) from None

    def _differentiable(
        self, x: Tensor, tensors: Tensors, options: tuple[Any, ...], scalars: tuple[float, ...]
    ) -> Tensor:
        self._check(x, tensors, options)
        return self.unfused(x, *tensors, *options, *scalars)

    def _prepared(
        self, key: list[Any], x: Tensor, tensors: Tensors, options: tuple[Any, ...]
    ) -> tuple[Any, ...]:
        """The text of a call's chain and the tensors that it is called with.

        ``key``: what the text is remembered by, if the tensors are taken as they are.
        """
        w0, w1 = self._weights(tensors)
        factors = [x, *self._factors(tensors)]
        # Otherwise this key's next call has to come here too.
        as_given = x.dtype in AB_DTYPES and all(t.dtype == x.dtype for t in factors) and w0.shape[1] != 0
        x, tensors = self._converted(factors, x, tensors)
        if w0.shape[1] == 0:
            x, tensors = self._without_products(x, tensors, options)
            w0, w1 = self._weights(tensors)
        (h, k), n = w0.shape, w1.shape[0]
        dtypes = tuple(None if tensor is None else tensor.dtype for tensor in tensors)
        # index: the shape of a weight is no symbol.
        sizes = index(n), index(k), index(h)
        text = _text_of(self.name, *sizes, x.dtype, dtypes, options, self._broadcast(x, tensors))
        if as_given and not _is_tracing():
            self.texts[tuple(key)] = text
        return (text, x, *[tensor for tensor in tensors if tensor is not None])

    def _broadcast(self, x: Tensor, tensors: Tensors) -> tuple[str, ...]:
        """The names of the tiles that are broadcast over a part of the rows."""
        result: tuple[str, ...] = ()
        for tile, weight in self.tiles:
            t, w = tensors[tile], tensors[weight]
            if t is not None and w is not None and t.numel() * x.shape[-1] != x.numel() * w.shape[0]:
                result += (self.arguments[tile].name,)
        return result

    def _weights(self, tensors: Tensors) -> tuple[Tensor, Tensor]:
        w0, w1 = tensors[self.w0], tensors[self.w1]
        assert w0 is not None
        assert w1 is not None
        return w0, w1

    def _factors(self, tensors: Tensors) -> list[Tensor]:
        """The weights."""
        pairs = zip(tensors, self.is_factor, strict=True)
        return [t for t, is_factor in pairs if is_factor and t is not None]

    def _converted(self, factors: Sequence[Tensor], x: Tensor, tensors: Tensors) -> tuple[Tensor, Tensors]:
        """A call's tensors, with x and the weights in autocast's dtype where it converts them."""
        dtype = faults.autocast_dtype(factors)
        if dtype is None:
            return x, tensors
        return x.to(dtype), tuple(
            t.to(dtype) if is_factor and t is not None else t
            for t, is_factor in zip(tensors, self.is_factor, strict=True)
        )

    def _without_products(
        self, x: Tensor, tensors: Tensors, options: tuple[Any, ...]
    ) -> tuple[Tensor, Tensors]:
        """A call's tensors where K is 0: eight zeros a row, whose products sum to the same."""
        self._check(x, tensors, options)
        if x.is_cuda:
            _count_no_products(self.name)
        eight = tuple(
            t.new_zeros(t.shape[0], 8) if self.is_factor[i] and i < self.w1 and t is not None else t
            for i, t in enumerate(tensors)
        )
        return x.new_zeros(*x.shape[:-1], 8), eight

    def _check(self, x: Any, tensors: tuple[Any, ...], options: tuple[Any, ...]) -> None:
        fault = self._fault(x, tensors, options)
        if fault is not None:
            raise fault

    def _explained(
        self, error: Exception, x: Any, tensors: tuple[Any, ...], options: tuple[Any, ...]
    ) -> Exception:
        """What is wrong with the arguments of a call that failed with ``error``, or that error."""
        fault = self._fault(x, tensors, options)
        if fault is not None:
            return fault
        return translate(error, self.name) if isinstance(error, RuntimeError) else error

    def _fault(self, x: Any, tensors: tuple[Any, ...], options: tuple[Any, ...]) -> ArgumentError | None:
        chosen = dict(zip(self.options, options, strict=True))
        given = list(zip(self.arguments, tensors, strict=True))
        first, second = given[: self.w1], given[self.w1 + 1 :]
        w0, w1 = tensors[self.w0], tensors[self.w1]
        del first[self.w0]
        return (
            faults.of_options(self.name, chosen, self.options)
            or faults.of_tensors(self.name, x, ("w0", w0), first)
            or self._fault_of_w1(w0, w1)
            # What the second layer reads, without memory.
            or faults.of_tensors(
                self.name, x.new_empty(()).expand(*x.shape[:-1], w0.shape[0]), ("w1", w1), second
            )
        )

    def _fault_of_w1(self, w0: Tensor, w1: Any) -> ArgumentError | None:
        if not isinstance(w1, Tensor):
            return ArgumentError(self.name, "w1", f"of type {type(w1).__name__}", "a torch.Tensor")
        h = w0.shape[0]
        if w1.ndim == 2 and w1.shape[1] == h:
            return None
        hint = "transpose it" if w1.ndim == 2 and w1.shape[0] == h else ""
        got, allowed = f"of shape {tuple(w1.shape)}", f"(N, H) with H = {h}, the rows of w0"
        return ShapeError(self.name, "w1", got, allowed, hint)


@constant_when_traced
def _text_of(
    name: str,
    n: int,
    k: int,
    h: int,
    dtype: torch.dtype,
    dtypes: tuple[torch.dtype | None, ...],
    options: tuple[Any, ...],
    strided: tuple[str, ...],
) -> str:
    """The text of a call's chain, by what :meth:`ChainOp._prepared` found of it."""
    op = _OPS[name]
    given = {
        argument.name: None if of_tensor is None else argument.spec_dtype(of_tensor)
        for argument, of_tensor in zip(op.arguments, dtypes, strict=True)
        if not argument.required
    }
    chosen = dict(zip(op.options, options, strict=True))
    return op.program(n, k, h, AB_DTYPES[dtype], **given, **chosen, strided=strided).text()
