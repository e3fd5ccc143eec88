"""``comfuse.fuse``: a function that runs as one kernel, traced at its first call of each kind."""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from comfuse import fallbacks, ops
from comfuse.errors import ArgumentError
from comfuse.frontend.calls import BoundCall, Call
from comfuse.frontend.capture import CONSTANT_TYPES, argument_names, check_inputs, is_capturing
from comfuse.frontend.region import REMEMBERED, TracedRegion
from comfuse.frontend.trace import TRACING, holds_for, trace_region
from comfuse.ops.transforms import have_tangents, in_forward_mode


def fuse(fn: Callable[..., Any]) -> FusedFunction:
    """``fn`` as one fused kernel, of one GEMM and what follows it, or of two back to back.

    The first call with a new class of arguments (dtypes, ranks, N, K, and what broadcasts where; not M)
    traces ``fn``; the kernel is planned, built and loaded when the first CUDA tensors of that class arrive.
    Later calls launch it.  CPU tensors run the same spec in float32.  Where an input requires grad,
    or has a derivative in forward mode, ``fn`` itself runs, which is counted (:mod:`comfuse.fallbacks`) and
    raises under ``COMFUSE_STRICT=1``.

    One trace serves every number of rows of which what ``fn`` asks (``x.shape[0] > 100``) has the same
    answer.  Where ``fn`` computes with the number (``y / x.shape[0]``) or needs it as an int
    (``range(len(x))``), it is traced for each number.  For a dimension of one row, or none, the trace is
    compared with what ``fn`` does.

    A number that ``fn`` takes from its surroundings is built in as it was when ``fn`` was traced.

    A chain of two GEMMs runs as the ops of chains do (:func:`comfuse.ops.fused_mlp`): link by link, counted,
    where the planner does not find one kernel clearly faster for a call's rows.

    Works as a decorator, of methods too, where each object has traces of its own.  Inside of another fused
    function, ``fn`` itself runs.  See :func:`comfuse.trace` for what ``fn`` may be.

    Raises:
        TypeError: ``fn`` cannot be called.

    Raises (at a call):
        TraceError: ``fn`` is not one fused kernel; names the node and the reason.
        ArgumentError and its kinds, BuildError, LaunchError, ...: as :func:`comfuse.ops.region`.
    """
    return FusedFunction(unfused(fn))


def unfused(fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function that a fused one was made of; any other as it is."""
    return fn._fn if isinstance(fn, FusedFunction) else fn


def _method(fn: Callable[..., Any], of: weakref.ref[Any]) -> Callable[..., Any]:
    """The method that ``fn`` is of an object, which it does not keep alive."""

    @functools.wraps(fn)
    def method(*args: Any, **kwargs: Any) -> Any:
        return fn(of(), *args, **kwargs)

    signature = inspect.signature(fn)
    method.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # type: ignore[attr-defined]
    return method


def _call_of(instance: Any, method: FusedFunction, *args: Any, **kwargs: Any) -> Any:
    """Calls a method of ``instance``, which lives until it returns."""
    return method(*args, **kwargs)


def _needs_gradient(args: Sequence[Any]) -> bool:
    for x in args:  # noqa: SIM110  (any() over a generator costs half a microsecond more)
        if isinstance(x, torch.Tensor) and x.requires_grad:
            return True
    return False


@dataclass(frozen=True)
class _Route:
    """The way from arguments of known shapes and strides to a call of the op, with nothing left to check."""

    call: Call
    unpack: Callable[[Sequence[Any]], BoundCall]
    text: str | None  # of the spec, where the function returns the one kernel's one output as it is


class FusedFunction:
    """What :func:`fuse` returns.  Call it like the function it was made of.

    Attributes:
        regions: what was traced so far, one for each class of arguments.
    """

    def __init__(self, fn: Callable[..., Any]) -> None:
        if not callable(fn):
            raise TypeError(f"fuse: fn is {fn!r}; allowed: a function of tensors")
        functools.update_wrapper(self, fn)
        self.regions: list[TracedRegion] = []
        self._fn = fn
        self._name = getattr(fn, "__qualname__", type(fn).__name__)
        self._traced: list[tuple[torch.dtype | None, TracedRegion]] = []  # with autocast's dtype
        self._routes: dict[tuple[Any, ...], _Route] = {}
        self._held: dict[tuple[int, tuple[int, ...]], bool] = {}  # by region and rows, of one or none
        self._floats_matter = False  # some region has a float of its arguments built in
        self._methods: dict[int, FusedFunction] = {}  # by the id of their object, as long as that lives
        self._outside_of_dynamo = torch.compiler.disable(self._call)

    def __get__(self, instance: Any, owner: type | None = None) -> Callable[..., Any]:
        """The method of an object; as an attribute of its class, the function itself."""
        if instance is None:
            return self
        key = id(instance)
        if key not in self._methods:
            self._methods[key] = FusedFunction(_method(self._fn, weakref.ref(instance)))
            weakref.finalize(instance, self._methods.pop, key, None)
        return functools.partial(_call_of, instance, self._methods[key])

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if is_capturing():
            return self._fn(*args, **kwargs)
        if kwargs:
            args = self._positional(args, kwargs)
        if torch.compiler.is_compiling():  # a graph break, instead of a graph of fn's operators
            return self._outside_of_dynamo(*args)
        return self._call(*args)

    def _call(self, *args: Any) -> Any:
        if (torch.is_grad_enabled() and _needs_gradient(args)) or (in_forward_mode() and have_tangents(args)):
            reason = "an input requires grad, and a traced function has no gradient: it runs itself"
            fallbacks.record(f"fuse({self._name})", reason)
            return self._fn(*args)
        try:
            key = self._key(args)
        except RuntimeError:  # of a tensor without sizes or strides
            check_inputs(argument_names(self._fn, len(args)), args)
            raise
        route = self._routes.get(key) or self._new_route(key, args)
        call = route.unpack(args)
        if route.text is not None:
            return ops.region(route.text, *call)[0]
        return route.call.run(call)

    def _positional(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, ...]:
        try:
            signature = inspect.signature(self._fn)
        except ValueError:  # of a builtin, which torch's functions are
            raise ArgumentError(
                f"fuse({self._name})", ", ".join(kwargs), "passed by keyword", "positional arguments",
                "the function has no signature that says where they belong",
            ) from None  # fmt: skip
        bound = signature.bind(*args, **kwargs)
        if bound.kwargs:  # keyword-only, or behind an argument that was left out
            names = ", ".join(bound.kwargs)
            raise ArgumentError(
                f"fuse({self._name})", names, "passed by keyword", "positional arguments",
                "give all arguments up to them, and bind keyword-only ones with functools.partial",
            )  # fmt: skip
        return bound.args

    def _key(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Calls with equal keys take one route."""
        key: list[Any] = []
        on_gpu = False
        for x in args:
            if isinstance(x, torch.Tensor):
                device = x.get_device() if x.is_cuda else -1
                on_gpu = on_gpu or x.is_cuda
                key += (x.dtype, x.shape, x.stride(), device)
            elif isinstance(x, float):
                key += (float, x if self._floats_matter else None)
            else:
                key += (type(x), x if isinstance(x, CONSTANT_TYPES) else None)
        kind = "cuda" if on_gpu else "cpu"
        autocast = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else None
        return (autocast, *key)

    def _new_route(self, key: tuple[Any, ...], args: Sequence[Any]) -> _Route:
        region = self._region(key[0], args)
        if len(self._routes) >= REMEMBERED:
            self._routes.clear()
        call = region.call(args)
        found = _Route(call, call.tensors, call.plain(args[call.lowered.a.position].device))
        self._routes[self._key(args)] = found
        return found

    def _region(self, autocast: torch.dtype | None, args: Sequence[Any]) -> TracedRegion:
        found = self._known(autocast, args)
        if found is not None:
            return found
        with TRACING:  # which another thread may have done meanwhile
            return self._known(autocast, args) or self._new_region(autocast, args)

    def _known(self, autocast: torch.dtype | None, args: Sequence[Any]) -> TracedRegion | None:
        for dtype, region in self._traced:
            if dtype is autocast and region.accepts(args) and self._holds_for(region, args):
                return region
        return None

    def _holds_for(self, region: TracedRegion, args: Sequence[Any]) -> bool:
        rows = region.rows(args).sizes
        if min(rows, default=2) > 1:  # what it asks of them was checked
            return True
        key = (id(region), rows)
        if key not in self._held:
            if len(self._held) >= REMEMBERED:
                self._held.clear()
            self._held[key] = holds_for(self._fn, region, args)
        return self._held[key]

    def _new_region(self, autocast: torch.dtype | None, args: Sequence[Any]) -> TracedRegion:
        region = trace_region(self._fn, args)
        region.call(args)  # what tracing could not see, such as a scalar in GPU memory
        self._held[id(region), region.rows(args).sizes] = True
        self._traced.append((autocast, region))
        self.regions.append(region)
        if any(isinstance(value, float) for _, value in region.constants) and not self._floats_matter:
            self._floats_matter = True
            self._routes.clear()
        return region
