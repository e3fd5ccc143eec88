"""Chains as calls: the reference, the order of arguments, what is refused and by whom."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from comfuse import fallbacks, reference
from comfuse.errors import ArgumentError, FallbackError, GradientError, PlanError, SpecError
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.plan.chain import plan_chain
from comfuse.ops import native, programs, region, region_out, resolver
from comfuse.ops.facts import facts
from tests.generator.chain_programs import three_layers
from tests.ops.chains import BF16, Arguments, H, K, N, arguments, every_operand


def run(chain: ChainSpec, x: Arguments) -> list[torch.Tensor]:
    return region(chain.text(), x.a, x.b, x.operands, x.scalars)


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("lead", [(), (33,), (2, 3), (2, 0, 3)])
def test_numbers(gated: bool, lead: tuple[int, ...]) -> None:
    x = arguments(*lead, gated=gated)
    (y,) = run(every_operand(gated=gated), x)
    wanted = x.expected(gated, middle=None)
    assert (y.shape, y.dtype) == (wanted.shape, torch.bfloat16)
    assert (y.double() - wanted).norm() <= 4e-3 * wanted.norm()  # two roundings
    assert not fallbacks.counts()


def test_the_middle_is_rounded_once() -> None:
    """In float64, so that nothing else is."""
    x, chain = arguments(64), every_operand()
    _, rest = programs.parse(chain.text()).split(x.b, x.operands)
    factors = [x.b, x.operands[3]]

    def evaluated(**options: bool) -> torch.Tensor:
        exact = {"dtype": torch.float64, "round_outputs": False}
        return reference.evaluate_chain(chain, x.a, factors, rest, x.scalars, **exact, **options)[0]

    torch.testing.assert_close(evaluated(), x.expected(), rtol=1e-12, atol=1e-9)
    torch.testing.assert_close(evaluated(round_middle=False), x.expected(middle=None), rtol=1e-12, atol=1e-9)
    assert not torch.equal(evaluated(), evaluated(round_middle=False))


@pytest.mark.parametrize("name", ["factors", "operands", "scalars"])
@pytest.mark.parametrize("more", [False, True])
def test_the_reference_counts_its_arguments(name: str, more: bool) -> None:
    x, chain = arguments(3), every_operand()
    factors, operands = programs.parse(chain.text()).split(x.b, x.operands)
    given = {"factors": factors, "operands": operands, "scalars": list(x.scalars)}
    given[name] = [*given[name], given[name][-1]] if more else given[name][:-1]
    with pytest.raises(ArgumentError):
        reference.evaluate_chain(chain, x.a, **given)


def test_what_a_call_s_operands_are() -> None:
    program = programs.parse(every_operand(gated=True).text())
    assert program.is_chain
    assert [(f.name, f.n, f.k, f.place) for f in program.factors] == [
        ("b", H, K, -1),
        ("b1", H, K, 0),
        ("w1", N, H, 4),
    ]
    assert [(t.name, t.n, t.place) for t in program.tensors] == [
        *(("row0", H, 1), ("column0", H, 2), ("tile0", H, 3)),
        *(("row1", N, 5), ("column1", N, 6), ("tile1", N, 7)),
    ]
    assert (program.k, program.n, program.scalar_count) == (K, N, 2)


def test_outputs_of_the_caller() -> None:
    x = arguments(6)
    out = torch.zeros(6, N).bfloat16()
    region_out(every_operand().text(), x.a, x.b, x.operands, x.scalars, [out])
    assert torch.equal(out, run(every_operand(), x)[0])


def test_compiled() -> None:
    text, x = every_operand(outputs=2).text(), arguments(2, 6)
    torch.compiler.reset()

    def f(a: torch.Tensor) -> list[torch.Tensor]:
        return region(text, a * 2, x.b, x.operands, x.scalars)

    compiled = torch.compile(f, fullgraph=True, backend="aot_eager")
    for got, wanted in zip(compiled(x.a), f(x.a), strict=True):
        assert torch.equal(got, wanted)


def test_no_gradients() -> None:
    x = arguments(6)
    with pytest.raises(GradientError, match="requires a gradient"):
        region(every_operand().text(), x.a, x.b.requires_grad_(), x.operands, x.scalars)


@pytest.mark.parametrize(
    "change, reason",
    [
        (lambda c: ChainSpec(c.links[:1]), "at least two links"),
        (lambda c: ChainSpec((c.links[0], replace(c.links[1], k=H + 8))), "K = 48"),
        (lambda c: ChainSpec((every_operand(outputs=2).links[1], c.links[1])), "exactly one output"),
    ],
)
def test_malformed(change, reason: str) -> None:  # type: ignore[no-untyped-def]
    x = arguments(6)
    with pytest.raises(SpecError, match=reason):
        run(change(every_operand()), x)
    with pytest.raises(SpecError):
        region('{"version":2,"links":7}', x.a, x.b)


def test_more_factors_than_a_kernel_takes() -> None:
    square = catalog.linear(K, K, BF16)
    program = programs.parse(ChainSpec((square,) * 4).text())
    assert [factor.name for factor in program.factors] == ["b", "w1", "w2", "w3"]
    with pytest.raises(ArgumentError, match="factors is a list of 4; allowed: at most 3"):
        facts(program)


@pytest.mark.parametrize("products", [1, 2])
def test_operands_are_joined_as_they_are_split(products: int) -> None:
    chain = catalog.mlp(N, K, H, BF16, b0=BF16, gated=products == 2, b1=BF16, residual=BF16)
    for spec in (chain, *chain.links):
        program = programs.parse(spec.text())
        b, *operands = (object() for _ in range(len(program.factors) + len(program.tensors)))
        factors, tensors = program.split(b, operands)  # type: ignore[arg-type]
        assert program.joined(factors, tensors) == (b, operands)


# --- from a chain to a kernel ---


MLP = catalog.mlp(128, 128, 512, BF16, b0=BF16, b1=BF16)


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, int, int]]:
    """What the resolver registered, with the GPU, the compiler and the binding replaced: name, rows."""
    kernels: list[tuple[str, int, int]] = []
    monkeypatch.setattr(native, "register_program", lambda spec: facts(programs.parse(spec)))
    monkeypatch.setattr(
        native, "register", lambda spec, kernel, low, high: kernels.append((kernel.name, low, high))
    )
    monkeypatch.setattr(resolver, "build", lambda source: SimpleNamespace(name=source.name))
    monkeypatch.setattr(resolver.library, "load", lambda built: built)
    monkeypatch.setattr(resolver, "unsupported_gpu", lambda device: "")
    monkeypatch.setattr(resolver, "planner_gpu", lambda device: "h200")
    monkeypatch.setattr(resolver, "_REFUSED", {})
    return kernels


def test_a_chain_is_planned_as_one_kernel(registered: list[tuple[str, int, int]]) -> None:
    assert resolver.resolve(MLP.text(), 327680, 0) == 0
    ((name, low, high),) = registered
    assert name.startswith("cf_sm90_chain_bf16_128x512x128_")
    assert low <= 327680 <= high


def test_chains_can_be_turned_off(
    registered: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFUSE_CHAINS", "0")
    assert resolver.resolve(MLP.text(), 327680, 0) == 1
    assert not registered
    ((why, _),) = resolver._REFUSED.values()
    assert why == "COMFUSE_CHAINS is 0, which turns off kernels of GEMMs back to back"
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    answer = resolver.resolve(MLP.text(), 327680, 0)
    assert isinstance(resolver.translate(RuntimeError(f"comfuse: {answer}"), "op"), FallbackError)
    assert fallbacks.counts() == {("comfuse::region", why): 1}
    monkeypatch.delenv("COMFUSE_CHAINS")
    assert resolver.resolve(MLP.text(), 327680, 0) == 0


@pytest.mark.parametrize(
    "chain",
    [
        catalog.mlp(4096, 4096, 14336, BF16),
        catalog.mlp(128, 128, 508, BF16),
        three_layers(64, 64, 264, 64),
    ],
    ids=["wide", "H is no multiple of 8", "three links, wide in between"],
)
def test_what_the_planner_refuses(
    chain: ChainSpec, registered: list[tuple[str, int, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(PlanError) as refused:
        plan_chain(chain, "h200", None)
    assert resolver.resolve(chain.text(), 4096, 0) == 1
    assert not registered
    ((why, _),) = resolver._REFUSED.values()
    assert why == str(refused.value)
    monkeypatch.setenv("COMFUSE_STRICT", "1")
    answer = resolver.resolve(chain.text(), 4096, 0)
    assert isinstance(resolver.translate(RuntimeError(f"comfuse: {answer}"), "op"), FallbackError)
