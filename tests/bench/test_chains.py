"""The family of chains: floors, programs, how they are verified, what ComFuse is to run."""

from __future__ import annotations

import dataclasses

import pytest
import torch

pytest.importorskip("tabulate", reason="needs the bench extra")

from bench import direct, layout, programs, providers, report, verify
from bench.launch import raw_launch
from bench.report import Row
from bench.workloads import B2B, POSTNORM, ChainWorkload, NetworkWorkload, by_name, select
from comfuse import reference
from comfuse.errors import PlanError
from comfuse.generator.chain import ChainSpec
from comfuse.library import abi

TWO, (NETWORK,) = B2B[:5], B2B[5:]
SMALL = [dataclasses.replace(w, m=200, n=64, k=64, h=96) for w in (TWO[0], TWO[-1], NETWORK)]
with_each = pytest.mark.parametrize("w", SMALL, ids=lambda w: w.name)
with_each_of_two = pytest.mark.parametrize("w", SMALL[:2], ids=lambda w: w.name)


def test_floors() -> None:
    """By hand, at 788 TFLOP/s and 4.27 TB/s."""
    assert [round(w.floor_us) for w in B2B] == [109, 31, 87, 87, 120, 125]
    assert [w.floor_bound for w in B2B] == ["flops", "bytes", "flops", "flops", "bytes", "flops"]
    assert B2B[0].floor_us == pytest.approx(2 * 327680 * 512 * (128 + 128) / 788e6)
    assert all(w.goal is not None and w.against == "inductor" for w in TWO)


def test_a_workload_is_chosen_by_its_four_numbers() -> None:
    assert select("b2b", ["262144x128x128x128"]) == (B2B[1],)
    assert by_name("b2b-1000000x128x128x128-norm") is TWO[-1]
    assert select("b2b", ["1000000x128x128x128x128"]) == (NETWORK,)


@with_each
def test_programs_trace_whole_and_verify(w: ChainWorkload | NetworkWorkload) -> None:
    inputs = programs.make_inputs(w, device="cpu")
    found = verify.Reference(w, inputs)
    compiled = torch.compile(programs.program(w), backend="aot_eager", fullgraph=True, dynamic=False)
    (error,) = found.errors(verify.poisoned(lambda: compiled(*inputs.tensors())))
    assert error <= found.bounds(rounds_once=False)[0]
    wrong = programs.program(w)(*inputs.tensors())
    wrong[-1, -1] += 20 * wrong.abs().max()
    assert found.errors(wrong)[0] > found.bounds(rounds_once=False)[0]
    shapes = [(a.shape, b.shape) for a, b in inputs.gemms()]
    between = [((w.m, w.h), (w.h, w.h))] * (w.products - 2)
    assert shapes == [((w.m, w.k), (w.k, w.h)), *between, ((w.m, w.h), (w.h, w.n))]
    assert found.errors(programs.gemm(inputs), of_gemm=True)[0] < 3e-3


@with_each
def test_what_comfuse_is_to_run(w: ChainWorkload | NetworkWorkload) -> None:
    """The op, the spec that is compiled ahead, and the float64 reference are one program."""
    inputs = programs.make_inputs(w, device="cpu")
    found = verify.Reference(w, inputs)
    spec = direct.spec_of(w)
    assert isinstance(spec, ChainSpec)
    assert len(spec.links) == w.products
    x = direct.arguments_of(w, inputs, spec)
    (result,) = reference.evaluate_chain(spec, x.a, x.b, x.operands, x.scalars)
    assert torch.equal(result, providers.PROVIDERS["comfuse"].prepare(w, inputs)())
    assert found.errors(result)[0] <= found.bounds(rounds_once=True)[0]


@with_each_of_two
def test_arguments_of_a_launch_come_link_by_link(w: ChainWorkload) -> None:
    inputs = programs.make_inputs(w, device="cpu")
    spec = direct.spec_of(w)
    x = direct.arguments_of(w, inputs, spec)
    kernel = dataclasses.make_dataclass("Kernel", [("launch", int, 1)])()
    kernel.workspace_bytes = lambda m, batches: 0
    y = torch.empty(w.m, w.n, dtype=torch.bfloat16)
    _, _, args = raw_launch(kernel, spec, x.a, x.b, x.operands, [y], x.scalars)
    assert (args.m, args.k, args.abi_version) == (w.m, w.k, abi.ABI_VERSION)
    assert [(b.data, b.stride) for b in args.b[:2]] == [(t.data_ptr(), t.stride(0)) for t in x.b]
    assert [t.data for t in args.operands[:2]] == [inputs.b0.data_ptr(), inputs.b1.data_ptr()]
    if w.norm:
        assert (args.operands[2].data, args.operands[2].stride) == (inputs.x.data_ptr(), w.k)
        assert args.scalars[0] == pytest.approx(w.eps)
    assert args.outputs[0].data == layout.output(spec.last, 0, y).data


def test_every_plan_is_for_one_kind() -> None:
    """A forced plan of the other kind is a refusal, which the bench prints and goes on."""
    kinds = []
    for provider in providers.PLANS:
        for w in (POSTNORM[0], B2B[0]):
            assert provider.source is not None
            of_chain = provider.name.startswith("chain-")
            try:
                name = provider.source(w).name
            except PlanError:
                continue
            assert of_chain == isinstance(w, ChainWorkload)
            assert name.startswith("cf_sm90_chain_") == of_chain
            kinds.append(of_chain)
    assert set(kinds) == {False, True}


def test_the_table_says_what_the_numbers_are() -> None:
    rows = [
        Row(w.name, p, 0, us=9.0, error=1e-3, eager_error=3e-3) for w in B2B[:2] for p in ("mm", "comfuse")
    ]
    assert report.table(rows).startswith("| M,K,H,N ")
    both = [*rows, Row(POSTNORM[0].name, "mm", 0, us=9.0)]
    assert report.table(both).startswith("| M,K,H,N or M,N,K ")
