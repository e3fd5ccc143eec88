"""Random chains and their arguments, for the property tests."""

from __future__ import annotations

import dataclasses
from typing import Any

from hypothesis import assume
from hypothesis import strategies as st

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.chain import ChainSpec, normalize_chain
from comfuse.generator.interpret import Matrix, Value
from comfuse.generator.ops import ELEMENTWISE
from comfuse.generator.plan.chain.constraints import CHAIN_CONSTRAINTS
from comfuse.generator.spec import DType, FusedSpec, Major, Space

from .strategies import Program, arguments, specs

K, H, H1, N, GROUP = 64, 16, 24, 64, 32


@st.composite
def chains(draw: st.DrawFn, ops: tuple[str, ...] = tuple(ELEMENTWISE), max_nodes: int = 10) -> ChainSpec:
    """A chain of two or three links that some kernel can run."""
    links = [draw(_middles(ops, max_nodes))]
    if links[0].products == 1 and draw(st.booleans()):
        links.append(draw(_middles(ops, max_nodes, k=H, n=H1, dtype=links[0].dtype)))
    last = draw(specs(ops, n=N, max_nodes=max_nodes, axes=("row", "group"), group=GROUP, products=1))
    last = dataclasses.replace(
        last, k=links[-1].n, dtype=links[0].dtype, a_major=Major.K, b_major=Major.K, batched=False
    )
    chain = ChainSpec((*links, last))
    assume(all(check(normalize_chain(chain)) is None for check in CHAIN_CONSTRAINTS))
    return chain


@st.composite
def _middles(
    draw: st.DrawFn,
    ops: tuple[str, ...],
    max_nodes: int,
    *,
    k: int = K,
    n: int = H,
    dtype: DType | None = None,
) -> FusedSpec:
    """An elementwise program with one output, whose tiles are whole, and which reads all of its operands.

    ``dtype``: that of a link before, behind which there is one product only.
    """
    products = 1 if dtype else draw(st.integers(1, 2))
    b = SpecBuilder(n, k, dtype or draw(st.sampled_from([DType.BF16, DType.FP16])), products=products)
    program = Program(draw, b, axes=(), feedback=False)
    program.leaves()
    for _ in range(draw(st.integers(1, max_nodes))):
        program.step(ops)
    tiles = [v.node for v in program.values if v.space is Space.TILE]
    middle = draw(st.sampled_from(tiles))
    loads = [i for i, node in enumerate(b.spec().nodes) if node.op == "load"]
    for load in loads:
        middle = b.op("add", middle, load)
    b.output("middle", middle, b.dtype)
    spec = b.spec()
    return dataclasses.replace(
        spec, operands=tuple(dataclasses.replace(o, strided=False) for o in spec.operands)
    )


@st.composite
def chain_arguments(
    draw: st.DrawFn, chain: ChainSpec, rows: int = 3
) -> tuple[Matrix | list[Matrix], list[Matrix], list[Value]]:
    """The first link's GEMM, the later links' factors, and the operands of all links."""
    gemm, operands = draw(arguments(chain.links[0], rows))
    factors: list[Any] = []
    for link in chain.links[1:]:
        # A few values, repeated at odd steps: drawn one by one they would be most of a test's time.
        values = draw(st.lists(st.integers(-8, 8).map(lambda i: i / 8.0), min_size=37, max_size=37))
        factors.append([[values[(n * link.k + h) % 37] for h in range(link.k)] for n in range(link.n)])
        operands = [*operands, *draw(arguments(link, rows))[1]]
    return gemm, factors, operands
