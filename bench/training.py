"""`python -m bench.training`: a training step of an MLP, forward and backward, beside torch's own.

Our op in both ways, its middle kept by the forward or computed anew in the backward, and in the way that the
cost model predicts to be the faster.  With `--backward` only what the backward runs before its GEMMs: every
plan of the one kernel, forced, beside the same in torch's ops.  All verified against float64, then timed side
by side in one process.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from bench import cases
from comfuse.generator import catalog
from comfuse.generator.emit import emit
from comfuse.generator.plan import KernelPlan, candidates
from comfuse.generator.spec import DType, FusedSpec
from comfuse.ops.autograd import ways

if TYPE_CHECKING:
    from torch import Tensor

_BF16 = DType.BF16
_ROUNDING = 2.0**-9  # of a result, which no error is held below
_SETTING = "COMFUSE_RECOMPUTE"
OURS = {"kept": "never", "anew": "always", "comfuse": "auto"}


@dataclass(frozen=True)
class Case:
    """``y = activation(x W0^T + b0) W1^T + b1`` of M rows, K columns of x, H of the middle, N of y."""

    m: int
    k: int
    h: int
    n: int
    activation: str = "gelu"

    @property
    def name(self) -> str:
        return f"{self.m}x{self.k}x{self.h}x{self.n}-{self.activation}"

    @property
    def spec(self) -> FusedSpec:
        """What the backward runs before its GEMMs."""
        return catalog.middle_gradient(
            self.h, self.k, self.n, _BF16, b0=_BF16, activation=self.activation, sums=True
        )

    @property
    def predicted(self) -> ways.Predicted:
        options = {"activation": self.activation, "b0": _BF16, "b1": _BF16, "saved": True}
        return ways.predicted(
            catalog.mlp(self.n, self.k, self.h, _BF16, **options), self.activation, self.m, "h200"
        )


SIZES = ((327680, 128, 512, 128), (65536, 256, 1024, 256), (16384, 1024, 4096, 1024))
CASES = tuple(Case(*sizes, activation) for activation in ("gelu", "silu") for sizes in SIZES)
Call = Callable[[], "tuple[Tensor, ...]"]


@dataclass(frozen=True)
class Inputs:
    """x (M, K), w0 (H, K), b0 (H,), w1 (N, H), b1 (N,), which require gradients; dy (M, N)."""

    leaves: tuple[Tensor, ...]
    dy: Tensor

    def to(self, dtype: Any) -> Inputs:
        leaves = tuple(t.detach().to(dtype).requires_grad_() for t in self.leaves)
        return Inputs(leaves, self.dy.to(dtype))


def make_inputs(case: Case, device: str = "cuda") -> Inputs:
    import torch

    generator = torch.Generator(device).manual_seed(1)

    def normal(*size: int, scale: float = 1.0) -> Tensor:
        drawn = torch.randn(size, device=device, generator=generator) * scale
        return drawn.bfloat16()

    leaves = (
        normal(case.m, case.k),
        normal(case.h, case.k, scale=case.k**-0.5),
        normal(case.h),
        normal(case.n, case.h, scale=case.h**-0.5),
        normal(case.n),
    )
    return Inputs(tuple(t.requires_grad_() for t in leaves), normal(case.m, case.n))


def program(case: Case) -> Callable[..., Tensor]:
    """The forward in torch's ops; on float64 inputs the reference."""
    import torch.nn.functional as F

    activation = {"gelu": F.gelu, "silu": F.silu}[case.activation]
    return lambda x, w0, b0, w1, b1: F.linear(activation(F.linear(x, w0, b0)), w1, b1)


def before_the_gemms(case: Case) -> Callable[..., tuple[Tensor, ...]]:
    """The gradient of what the activation read, the middle, and the sums of the former, in torch's ops."""
    import torch
    import torch.nn.functional as F

    forward = {"gelu": F.gelu, "silu": F.silu}[case.activation]
    backward = getattr(torch.ops.aten, f"{case.activation}_backward")

    def run(x: Tensor, w0: Tensor, b0: Tensor, w1: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
        pre = F.linear(x, w0, b0)
        d_pre = backward(dy @ w1, pre)
        return d_pre, forward(pre), d_pre.sum(0)

    return run


def step(forward: Callable[..., Tensor], inputs: Inputs) -> Call:
    """The result and the gradient of each leaf."""
    import torch

    def call() -> tuple[Tensor, ...]:
        y = forward(*inputs.leaves)
        return y.detach(), *torch.autograd.grad(y, inputs.leaves, inputs.dy)

    return call


@contextmanager
def setting(value: str) -> Iterator[None]:
    before = os.environ.get(_SETTING)
    os.environ[_SETTING] = value
    try:
        yield
    finally:
        os.environ.pop(_SETTING)
        if before is not None:
            os.environ[_SETTING] = before


def steps(case: Case, inputs: Inputs) -> dict[str, Call]:
    """Of whole training steps."""
    import torch

    from comfuse import ops

    eager = program(case)

    def ours(value: str) -> Callable[..., Tensor]:
        def forward(x: Tensor, w0: Tensor, b0: Tensor, w1: Tensor, b1: Tensor) -> Tensor:
            with setting(value):
                return ops.fused_mlp(x, w0, b0, w1, b1, case.activation)

        return forward

    torch._dynamo.reset()
    compiled = torch.compile(eager, dynamic=False, fullgraph=True)
    found = {"eager": eager, "inductor": compiled, **{name: ours(value) for name, value in OURS.items()}}
    return {name: step(forward, inputs) for name, forward in found.items()}


def backwards(case: Case, inputs: Inputs) -> dict[str, Call]:
    """Of what comes before the GEMMs: torch's, and every plan of ours."""
    import torch

    x, w0, b0, w1 = (t.detach() for t in inputs.leaves[:4])
    eager = before_the_gemms(case)
    torch._dynamo.reset()
    compiled = torch.compile(eager, dynamic=False, fullgraph=True)
    found: dict[str, Call] = {
        "eager": lambda: eager(x, w0, b0, w1, inputs.dy),
        "inductor": lambda: compiled(x, w0, b0, w1, inputs.dy),
    }
    return found | {plan.shape.name: forced(plan, (x, w0, b0, w1, inputs.dy)) for plan in plans(case)}


def plans(case: Case, gpu: str = "h200") -> list[KernelPlan]:
    """Every plan of ours."""
    return [plan for plan in candidates(case.spec, gpu, case.m) if isinstance(plan, KernelPlan)]


def forced(plan: KernelPlan, tensors: tuple[Tensor, ...]) -> Call:
    """A call that launches the kernel of a plan."""
    from bench.launch import prepare
    from comfuse import library
    from comfuse.build import build

    x, w0, b0, w1, dy = tensors
    m, h = x.shape[0], w0.shape[0]
    outputs = (x.new_empty(m, h), x.new_empty(m, h), x.new_empty(h))
    launch = prepare(library.load(build(emit(plan))), plan.spec, x, [w0, dy, w1.t()], [b0], outputs)

    def call() -> tuple[Tensor, ...]:
        launch()
        return outputs

    return call


def exact(case: Case, inputs: Inputs, *, backward: bool) -> tuple[Tensor, ...]:
    """In float64."""
    import torch

    doubles = inputs.to(torch.float64)
    if not backward:
        return step(program(case), doubles)()
    with torch.no_grad():
        return before_the_gemms(case)(*doubles.leaves[:4], doubles.dy)


def errors(found: tuple[Tensor, ...], wanted: tuple[Tensor, ...]) -> list[float]:
    """Relative Frobenius errors."""
    return [float((x.double() - y).norm() / y.norm()) for x, y in zip(found, wanted, strict=True)]


def kept_bytes(forward: Callable[[], object], inputs: Inputs) -> int:
    """What a forward keeps for its backward, beside the leaves."""
    import torch

    known = {t.untyped_storage().data_ptr() for t in inputs.leaves}
    sizes: dict[int, int] = {}

    def pack(t: Tensor) -> Tensor:
        storage = t.untyped_storage()
        if storage.data_ptr() not in known:
            sizes[storage.data_ptr()] = storage.nbytes()
        return t

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        result = forward()
    del result
    return sum(sizes.values())


def measure(case: Case, rounds: int, *, backward: bool) -> list[dict[str, Any]]:
    """A record for each provider: microseconds or why not, and the error, at most twice that of eager."""
    from comfuse import timing

    inputs = make_inputs(case)
    calls = (backwards if backward else steps)(case, inputs)
    wanted = exact(case, inputs, backward=backward)
    graphs, records = {}, {}
    allowed: list[float] = []
    for name, call in calls.items():
        records[name] = {"record": "training", "case": case.name, "backward": backward, "provider": name}
        try:
            found = errors(call(), wanted)
            allowed = allowed or [max(2 * e, _ROUNDING) for e in found]
            records[name]["error"] = max(found)
            if not all(e <= most for e, most in zip(found, allowed, strict=True)):
                raise ArithmeticError(f"errors {found} against float64, {allowed} allowed")
            if not backward:
                records[name]["kept_mb"] = kept_bytes(call, inputs) / 1e6
            graphs[name] = timing.capture(call)
        except Exception as e:  # one provider's failure must not stop the others
            records[name]["failure"] = f"{type(e).__name__}: {e}"[:300]
    del wanted
    for name, t in timing.time_interleaved(graphs, rounds).items():
        records[name] |= {"us": t.us, "low": t.low, "high": t.high}
    return list(records.values())


def table(records: list[dict[str, Any]]) -> str:
    """Microseconds and how many times faster than Inductor's, by case and provider."""
    times = {(r["case"], r["provider"]): r["us"] for r in records if "us" in r}
    body = []
    for r in records:
        inductor = times.get((r["case"], "inductor"))
        ratio = f"{inductor / r['us']:.2f}" if inductor is not None and "us" in r else "-"
        row = [r.get(key, "-") for key in ("us", "kept_mb", "error")]
        body.append([r["case"], r["provider"], row[0], ratio, *row[1:]])
    headers = ["M x K x H x N", "provider", "us", "x Inductor", "kept MB", "error"]
    return tabulate(body, headers, tablefmt="github", floatfmt=".4g")


def main() -> int:
    parser = cases.parser("training", __doc__, CASES)
    parser.add_argument("--backward", action="store_true", help="only what comes before the backward's GEMMs")
    options = parser.parse_args()

    def measured(case: Case) -> list[dict[str, Any]]:
        p = case.predicted
        print(f"{case.name}: predicted beside the GEMMs kept {p.kept:.0f} us, anew {p.anew:.0f} us: {p.way}")
        return measure(case, options.rounds, backward=options.backward)

    return cases.run(
        "training", CASES, options, sources=lambda case: map(emit, plans(case)), measure=measured, table=table
    )


if __name__ == "__main__":
    sys.exit(main())
