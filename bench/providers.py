"""Who computes a workload: each provider is a function (workload, inputs) -> callable without arguments."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from bench import stock
from bench.launch import forced_plan, label
from bench.workloads import Workload
from comfuse.generator.plan import SHAPES

if TYPE_CHECKING:
    from torch import Tensor

    from bench.programs import Inputs

    Call = Callable[[], Tensor]


@dataclass(frozen=True)
class Provider:
    """``baseline`` providers compete with ComFuse for the best Inductor time.

    ``only_gemm``: computes x W^T alone.  ``rounds_once``: float32 until the store, so held to that error.
    """

    name: str
    title: str
    prepare: Callable[[Workload, Inputs], Call]
    only_gemm: bool = False
    baseline: bool = False
    rounds_once: bool = False


def _mm(w: Workload, i: Inputs) -> Call:
    import torch

    out = torch.empty(w.m, w.n, device=i.x.device, dtype=i.x.dtype)
    wt = i.weight.t()
    return lambda: torch.mm(i.x, wt, out=out)


def _eager(w: Workload, i: Inputs) -> Call:
    from bench.programs import program

    function, arguments = program(w), i.tensors()
    return lambda: function(*arguments)


def _inductor(**compile_options: Any) -> Callable[[Workload, Inputs], Call]:
    def prepare(w: Workload, i: Inputs) -> Call:
        import torch

        from bench.programs import program

        torch._dynamo.reset()
        compiled = torch.compile(program(w), dynamic=False, fullgraph=True, **compile_options)
        arguments = i.tensors()
        return lambda: compiled(*arguments)

    return prepare


def _comfuse(w: Workload, i: Inputs) -> Call:
    from comfuse import ops

    if w.norm == "layernorm":
        return lambda: ops.fused_gemm_layernorm(
            i.x, i.weight, i.bias, i.residual, i.norm_weight, i.norm_bias, w.eps
        )
    position = w.residual or "before"
    return lambda: ops.fused_gemm_rmsnorm(
        i.x,
        i.weight,
        i.bias,
        i.residual,
        i.norm_weight,
        w.eps,
        weight_offset=w.weight_offset,
        residual_position=position,
    )


def _stock(variant: stock.Variant) -> Callable[[Workload, Inputs], Call]:
    def prepare(w: Workload, i: Inputs) -> Call:
        import torch

        library = stock.load(variant)
        out = torch.empty(w.m, w.n, device=i.x.device, dtype=i.x.dtype)
        pointers = (i.x.data_ptr(), i.weight.data_ptr(), out.data_ptr())

        def call() -> Tensor:
            stream = torch.cuda.current_stream().cuda_stream
            code = library.stock_gemm_launch(*pointers, w.m, w.n, w.k, stream)
            if code:
                raise RuntimeError(f"{variant.name}: the launch returned {code}")
            return out

        return call

    return prepare


def own_gemm(schedule: str, n: int, k: int) -> Any:
    """The KernelSource of a GEMM with nothing behind it, its plan forced.  Raises PlanError if refused."""
    from comfuse.generator import catalog, emit
    from comfuse.generator.spec import DType

    return emit.emit(forced_plan(catalog.linear(n, k, DType.BF16), schedule))


def _own(schedule: str) -> Callable[[Workload, Inputs], Call]:
    return lambda w, i: _direct(own_gemm(schedule, w.n, w.k), w, i)


def _forced(schedule: str, cluster_n: int) -> Callable[[Workload, Inputs], Call]:
    def prepare(w: Workload, i: Inputs) -> Call:
        from bench.ahead import spec_of
        from comfuse.generator import emit

        return _direct(emit.emit(forced_plan(spec_of(w), schedule, cluster_n)), w, i)

    return prepare


# Names of the catalogue's operands, by the field of Inputs that they are.
_FIELDS = {"bias": "bias", "residual": "residual", "ln_bias": "norm_bias"}
_FIELDS |= dict.fromkeys(("ln_weight", "rms_weight"), "norm_weight")


def _direct(source: Any, w: Workload, i: Inputs) -> Call:
    """Launch the kernel of this source, past the choice of plan and the binding."""
    import torch

    from bench import launch
    from comfuse import library
    from comfuse.build import build

    kernel = library.load(build(source))
    values = {"eps": w.eps, "weight_offset": w.weight_offset}
    names = [o.name for o in source.plan.spec.operands]
    operands = [getattr(i, _FIELDS[name]) for name in names if name not in values]
    out = torch.empty(w.m, w.n, device=i.x.device, dtype=i.x.dtype)
    scalars = [values[name] for name in names if name in values]
    launch_once = launch.prepare(kernel, i.x, i.weight, operands, (out,), scalars)

    def call() -> Tensor:
        launch_once()
        return out

    return call


_ALL = (
    Provider("mm", "cuBLAS mm alone", _mm, only_gemm=True),
    Provider("eager", "eager", _eager),
    Provider("inductor", "Inductor", _inductor(), baseline=True),
    Provider(
        "inductor-max",
        "Inductor max-autotune",
        _inductor(mode="max-autotune-no-cudagraphs"),
        baseline=True,
    ),
    # Not in the default set: Triton's persistent TMA templates, which Inductor leaves off by itself.
    Provider(
        "inductor-tma",
        "Inductor max-autotune, TMA",
        _inductor(
            options={
                "max_autotune": True,
                "coordinate_descent_tuning": True,
                "triton.enable_persistent_tma_matmul": True,
            }
        ),
        baseline=True,
    ),
    Provider("comfuse", "ComFuse", _comfuse, rounds_once=True),
)
# Plain GEMMs of two kernel layers: see bench.plain_gemm.
STOCK = tuple(Provider(v.name, v.name, _stock(v), only_gemm=True, rounds_once=True) for v in stock.VARIANTS)
OWN_PLANS = ("pingpong-128x128", "pingpong2-128x128", "pingpong-128x192", "cooperative-128x256")
OWN = tuple(Provider(f"own-{s}", f"own-{s}", _own(s), only_gemm=True, rounds_once=True) for s in OWN_PLANS)
# Every plan that the planner might choose, forced: what its choice is held against.
PLANS = tuple(
    Provider(
        f"{label(s)}-c{s.cluster_n}",
        f"{label(s)} c1x{s.cluster_n}",
        _forced(label(s), s.cluster_n),
        rounds_once=True,
    )
    for s in SHAPES
)
PROVIDERS = {p.name: p for p in (*_ALL, *STOCK, *OWN, *PLANS)}
BASELINES = tuple(p.name for p in _ALL if p.baseline)
DEFAULT = ("mm", "eager", "inductor", "inductor-max", "comfuse")


def select(names: tuple[str, ...]) -> tuple[Provider, ...]:
    """The providers of these names, cuBLAS mm always first: every ratio needs it.

    "plans" stands for all forced plans.

    Raises:
        ValueError: there is no provider of that name.
    """
    names = tuple(m for n in names for m in ([p.name for p in PLANS] if n == "plans" else [n]))
    unknown = [n for n in names if n not in PROVIDERS]
    if unknown:
        raise ValueError(f"no provider {unknown[0]!r}; there are {', '.join(PROVIDERS)}")
    return tuple(PROVIDERS[n] for n in dict.fromkeys(("mm", *names)))
