"""Values a column that a chain's kernel computes once: which, and that phases read them as such."""

from __future__ import annotations

import pytest

from comfuse.generator.builder import SpecBuilder
from comfuse.generator.catalog import linear
from comfuse.generator.catalog.parts import Build, Layouts, layer_norm
from comfuse.generator.chain import ChainSpec
from comfuse.generator.emit import emit_chain
from comfuse.generator.plan.chain import force_chain, vectors
from comfuse.generator.spec import DType, FusedSpec, Space

from .cpp_types import Type, parse, within

BF16 = DType.BF16
LONG = "a_rather_long_name_of_an_operand_as_a_graph_gives_them"


def program(n: int, k: int) -> FusedSpec:
    """A product of two row vectors, read where a line of the emitted text is too long."""
    b = SpecBuilder(n, k, BF16)
    row = b.op("mul", b.load("gamma", Space.ROW, BF16), b.load("delta", Space.ROW, BF16), name="product")
    one, two = (b.load(f"{LONG}_{name}", Space.TILE, BF16) for name in ("one", "two"))
    b.output("y", b.op("add", b.gemm(), b.op("where", one, row, two)), BF16)
    return b.spec()


def texts(chain: ChainSpec) -> str:
    return emit_chain(force_chain(chain)).text


def _read_bare(x: Type) -> set[Type]:
    """Row vectors that are part of no vector."""
    if x.name in ("Vector", "RowVector"):
        return {x} - within(x, "Vector")
    return {row for argument in x.arguments for row in _read_bare(argument)}


@pytest.mark.parametrize("link", [0, 1])
def test_a_long_line_does_not_take_a_vector_apart(link: int) -> None:
    links = [linear(64, 64, BF16), linear(64, 64, BF16)]
    links[link] = program(64, 64)
    kernel = parse(texts(ChainSpec((links[0], links[1]))))
    assert kernel.middle is not None
    assert not _read_bare(kernel.middle) | {row for phase in kernel.phases for row in _read_bare(phase)}
    assert len(within(kernel.phases[0] if link else kernel.middle, "Vector")) == 1


def test_what_only_a_fold_reads_is_no_vector() -> None:
    """A LayerNorm's shift is multiplied by the second factor, from memory: no phase reads it."""
    b = Build(64, 64, BF16, Layouts())
    weight, shift = b.row("weight", BF16), b.op("mul", b.row("beta", BF16), b.column_index())
    p, _, _ = layer_norm(b, b.gemm(), weight, shift, b.scalar("eps"))
    chain = ChainSpec((b.stored("p", p, BF16), linear(256, 64, BF16, bias=BF16)))
    chosen = force_chain(chain)
    first = chosen.deferred.links.links[0]
    assert [first.nodes[i].name for i in vectors.of_middle(chosen.deferred)] == ["weight"]
    assert "beta" not in "".join(line for line in texts(chain).splitlines() if "cf::Vector<" in line)


def test_an_operand_may_be_called_as_the_list_is() -> None:
    chain = ChainSpec((linear(64, 64, BF16, bias=BF16), linear(64, 64, BF16)))
    first = chain.links[0]
    renamed = FusedSpec.parse(first.text().replace('"bias"', '"Vectors"'))
    assert parse(texts(ChainSpec((renamed, chain.last))))
