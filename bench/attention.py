"""`python -m bench.attention`: attention as one of our chains beside torch's flash kernel.

Every plan of the planner's, forced, and the op, which takes the one that it predicts to be the fastest; all
verified against float64 on a few heads, then timed side by side in one process.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tabulate import tabulate

from bench import cases
from comfuse.generator import catalog
from comfuse.generator.emit import emit_chain
from comfuse.generator.plan.chain import ChainPlan, chain_candidates
from comfuse.generator.spec import DType

if TYPE_CHECKING:
    from torch import Tensor

#: Times that of the flash kernel.
GOAL = 1.6


@dataclass(frozen=True)
class Case:
    """Heads of all batches, queries and keys of each, its size."""

    heads: int
    length: int
    d: int
    bias: bool = False
    causal: bool = False

    @property
    def name(self) -> str:
        kind = "-bias" if self.bias else "-causal" if self.causal else ""
        return f"{self.heads}x{self.length}x{self.d}{kind}"

    @property
    def flops(self) -> float:
        """Of both products, whatever a mask hides."""
        return 4.0 * self.heads * self.length**2 * self.d


CASES = tuple(
    Case(heads, length, d, **kind)
    for heads, length, d in ((12 * 16, 512, 64), (16, 8192, 128))
    for kind in ({}, {"bias": True}, {"causal": True})
    if not (kind.get("bias") and length > 4096)  # a tile of scores for each head of that length is no model's
)
Call = Callable[[], "Tensor"]


def make_inputs(case: Case, device: str = "cuda") -> tuple[Tensor, ...]:
    """q, k, v (heads, length, d), and with a bias (length, length)."""
    import torch

    generator = torch.Generator(device).manual_seed(1)
    sizes = [(case.heads, case.length, case.d)] * 3 + [(case.length, case.length)] * case.bias
    return tuple(torch.randn(s, device=device, generator=generator).bfloat16() for s in sizes)


def calls(case: Case, inputs: tuple[Tensor, ...]) -> dict[str, Call]:
    """torch's attention, flash alone where there is no bias, which it does not take; and the op."""
    import torch.nn.functional as F
    from torch.nn.attention import SDPBackend, sdpa_kernel

    from comfuse.ops import fused_attention

    q, k, v, *bias = inputs

    def sdpa() -> Tensor:
        mask = bias[0] if bias else None
        return F.scaled_dot_product_attention(q[None], k[None], v[None], mask, is_causal=case.causal)[0]

    def flash() -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return sdpa()

    def comfuse() -> Tensor:
        return fused_attention(*inputs, causal=case.causal)

    return {"sdpa": sdpa} | ({} if case.bias else {"flash": flash}) | {"comfuse": comfuse}


def plans(case: Case, gpu: str = "h200") -> list[ChainPlan]:
    """Every plan of ours."""
    bias = DType.BF16 if case.bias else None
    chain = catalog.attention(case.d, case.d, case.length, DType.BF16, bias=bias, causal=case.causal)
    found = chain_candidates(chain, gpu, case.heads * case.length)
    return [plan for plan in found if isinstance(plan, ChainPlan)]


def forced(plan: ChainPlan, inputs: tuple[Tensor, ...]) -> Call:
    """A call that launches the kernel of a plan."""
    import torch

    from bench.launch import prepare
    from comfuse import library
    from comfuse.build import build

    q, k, v, *bias = inputs
    y = torch.empty_like(q)
    kernel = library.load(build(emit_chain(plan)))
    launch = prepare(kernel, plan.spec, q, [k, v.mT], bias, [y], [q.shape[-1] ** -0.5])

    def call() -> Tensor:
        launch()
        return y

    return call


def error(case: Case, inputs: tuple[Tensor, ...], y: Tensor) -> float:
    """Relative Frobenius error against float64, of the first and the last head."""
    import torch

    some = torch.tensor([0, case.heads - 1], device=y.device)
    q, k, v = (t[some].double() for t in inputs[:3])
    scores = q @ k.mT * case.d**-0.5
    if case.bias:
        scores = scores + inputs[3].double()
    if case.causal:
        scores.masked_fill_(~torch.ones_like(scores[0], dtype=torch.bool).tril(), -torch.inf)
    exact = scores.softmax(-1) @ v
    return float((y[some].double() - exact).norm() / exact.norm())


def measure(case: Case, rounds: int) -> list[dict[str, Any]]:
    """A record for each provider: microseconds or why not, and the error, at most twice torch's."""
    from comfuse import timing

    inputs = make_inputs(case)
    candidates = calls(case, inputs)
    graphs, records = {}, {}
    for plan in plans(case):
        candidates[plan.shape.name] = forced(plan, inputs)
    for name, call in candidates.items():
        records[name] = {"record": "attention", "case": case.name, "provider": name}
        try:
            records[name]["error"] = error(case, inputs, call())
            if not records[name]["error"] <= 2 * records["sdpa"]["error"]:
                raise ArithmeticError(f"error {records[name]['error']:.2e} against float64")
            graphs[name] = timing.capture(call)
        except Exception as e:  # one provider's failure must not stop the others
            records[name]["failure"] = f"{type(e).__name__}: {e}"[:300]
    for name, t in timing.time_interleaved(graphs, rounds).items():
        records[name] |= {"us": t.us, "low": t.low, "high": t.high, "tflops": case.flops / t.us / 1e6}
    return list(records.values())


def table(records: list[dict[str, Any]]) -> str:
    """Microseconds and their ratio to torch's fastest, by case and provider."""
    body = []
    for r in records:
        torch_us = [
            x["us"]
            for x in records
            if x["case"] == r["case"] and x["provider"] in ("sdpa", "flash") and "us" in x
        ]
        ratio = f"{r['us'] / min(torch_us):.2f}" if "us" in r and torch_us else "-"
        body.append(
            [r["case"], r["provider"], r.get("us", "-"), r.get("tflops", "-"), ratio, r.get("error", "-")]
        )
    headers = ["heads x length x d", "provider", "us", "TFLOP/s", f"x torch (goal {GOAL})", "error"]
    return tabulate(body, headers, tablefmt="github", floatfmt=".4g")


def main() -> int:
    options = cases.parser("attention", __doc__, CASES).parse_args()
    return cases.run(
        "attention",
        CASES,
        options,
        sources=lambda case: map(emit_chain, plans(case)),
        measure=lambda case: measure(case, options.rounds),
        table=table,
    )


if __name__ == "__main__":
    sys.exit(main())
