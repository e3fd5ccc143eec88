"""What becomes of a chain whose kernel is not there: with builds that compile nothing."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from comfuse import fallbacks
from comfuse.build.binding import NAME as BINDING
from comfuse.errors import BuildError, PlanError
from comfuse.inductor import background, choose, log, run
from comfuse.inductor.candidate import Found
from comfuse.inductor.entrances import enable
from comfuse.inductor.policy import Policy
from comfuse.inductor.verdict import Verdict
from tests.inductor.chain_models import MLP, ROWS, D, EdgeBlock, H, error, half, inputs, rows
from tests.inductor.interpreted import interpreted
from tests.inductor.kernels import Kernels, kernels

__all__ = ["kernels"]

LINKS = {"addmm", "addmm_1"}


@pytest.fixture(autouse=True)
def fresh(kernels: Kernels) -> None:
    """Each region has one kernel, named after its GEMMs."""
    kernels.names_of = lambda region: ["+".join(anchor.name for anchor in region.candidate.anchors)]
    log.clear()
    torch._dynamo.reset()


def refuse(kernels: Kernels, folder: Path, *names: str) -> None:
    for name in names:
        kernels.errors[name] = BuildError(name, folder / "a.cu", folder / "build.log", "error: no")


class Program:
    """An edge block compiled with every region fused that may be."""

    def __init__(self) -> None:
        self._model, self._inputs = half(EdgeBlock()), inputs(EdgeBlock(), 32, 128)
        self._exact = half(EdgeBlock()).double()(*(x.double() for x in self._inputs))
        self._compiled = torch.compile(self._model, backend=interpreted, fullgraph=True)

    def run(self) -> list[bool]:
        """Checks a call's result; which of the GEMMs were fused when it was last compiled."""
        with enable(force=True, gpu="h200"), torch.no_grad():
            y = self._compiled(*self._inputs)
        allowed = max(2 * error(self._model(*self._inputs), self._exact), 2**-8)
        assert error(y, self._exact) <= allowed
        return [verdict.fused for verdict in log.compiles()[-1]]


@pytest.mark.parametrize(
    "mode, built, fused",
    [
        ("off", LINKS, True),  # a library of single layers
        ("off", set(), False),
        ("auto", set(), True),  # its kernel is refused by the compiler
    ],
)
def test_links_run_apart_where_the_kernel_of_both_cannot_be_had(
    mode: str,
    built: set[str],
    fused: bool,
    kernels: Kernels,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.setenv("COMFUSE_JIT", mode)
    kernels.built |= built
    refuse(kernels, tmp_path, "addmm+addmm_1")
    assert Program().run() == [fused, fused]
    first, second = log.verdicts()
    assert (first.chain, second.chain) == ((), ())
    reason = "COMFUSE_JIT is off" if mode == "off" else "error: no"
    for one, other in ((first, "addmm_1"), (second, "addmm")):
        assert one.apart.startswith(f"no chain with {other}: addmm+addmm_1 ")
        assert reason in one.apart
    counted = {reason.split(" ")[0] for _, reason in fallbacks.counts()}
    assert counted == {"addmm+addmm_1"} | (set() if fused else LINKS)
    assert set(fallbacks.counts().values()) == {1}
    assert kernels.begun[:1] == ([] if mode == "off" else ["addmm+addmm_1"])
    assert set(kernels.begun[1:]) == (LINKS if mode == "auto" else set())


class Two(nn.Module):
    """Two regions: one GEMM, and a chain."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.mlp = nn.Linear(D, D), nn.LayerNorm(D), MLP()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(self.layer(x) + x), self.mlp(x)


def compiled_two() -> dict[int, list[bool]]:
    """Compiles and runs it; whether the GEMMs were fused, by their columns K."""
    with enable(force=True, gpu="h200"), torch.no_grad():
        torch.compile(half(Two()), backend=interpreted, fullgraph=True)(rows(ROWS))
    fused: dict[int, list[bool]] = {}
    for verdict in log.compiles()[-1]:
        fused.setdefault(verdict.shape[2], []).append(verdict.fused)  # type: ignore[arg-type]
    return {k: sorted(of_k) for k, of_k in fused.items()}


def test_links_run_apart_where_the_tensors_gpu_has_no_kernel_of_both(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The GPU that was decided for is another, or is calibrated otherwise."""
    names_of = kernels.names_of

    def planned(region: Found) -> list[str]:
        if len(region.lowered.links) > 1:
            raise PlanError("a kernel for each GEMM is faster")
        return names_of(region)

    kernels.names_of = planned
    assert compiled_two() == {D: [True, True], H: [False]}  # nothing is behind the second link
    chained = [v for v in log.compiles()[-1] if v.apart]
    assert [v.chain for v in chained] == [(), ()]
    assert all("a kernel for each GEMM is faster" in v.apart for v in chained)
    (((where, reason), count),) = fallbacks.counts().items()
    assert (where, count) == ("torch.compile", 1)
    assert "a kernel for each GEMM is faster" in reason


def test_a_bug_in_deciding_on_a_chain_costs_the_chain(monkeypatch: pytest.MonkeyPatch) -> None:
    decide = choose.verdict

    def broken(region: Found, policy: Policy) -> Verdict:
        if len(region.lowered.links) > 1:
            raise ZeroDivisionError("broken")
        return decide(region, policy)

    monkeypatch.setattr(choose, "verdict", broken)
    assert compiled_two() == {D: [False, True], H: [False]}
    (reason,) = {v.reason for v in log.compiles()[-1] if not v.fused}
    assert reason == "a bug in ComFuse: ZeroDivisionError: broken"


def test_a_bug_in_taking_a_chain_apart_costs_the_chain(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def broken(*args: object) -> object:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(run, "_apart", broken)
    names_of = kernels.names_of
    kernels.names_of = lambda r: ["chain"] if len(r.lowered.links) > 1 else names_of(r)
    refuse(kernels, tmp_path, "chain")
    assert compiled_two() == {D: [False, True], H: [False]}
    left = [v.reason for v in log.compiles()[-1] if not v.fused]
    assert left == ["a bug in ComFuse: ZeroDivisionError: broken"] * 2


def test_links_have_no_kernels_while_that_of_both_is_built(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COMFUSE_JIT", "background")
    kernels.gate.clear()
    program = Program()
    assert program.run() == [False, False]
    assert {verdict.reason for verdict in log.verdicts()} == {background.BUILDING}
    kernels.gate.set()
    assert background.wait(10)
    assert program.run() == [True, True]
    assert [verdict.chain for verdict in log.compiles()[-1]] == [("addmm_1",), ("addmm",)]
    assert kernels.begun == ["addmm+addmm_1"]


def test_links_are_built_where_that_of_both_fails_in_the_background(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("COMFUSE_JIT", "background")
    refuse(kernels, tmp_path, "addmm+addmm_1")
    program = Program()
    assert program.run() == [False, False]
    assert background.wait(10)
    kernels.gate.clear()
    assert program.run() == [False, False]
    assert [verdict.reason for verdict in log.compiles()[-1]] == [background.BUILDING] * 2
    assert all("error: no" in verdict.apart for verdict in log.compiles()[-1])
    kernels.gate.set()
    assert background.wait(10)
    for _ in range(2):
        assert program.run() == [True, True]
    assert len(log.compiles()) == 3
    assert (kernels.begun[0], set(kernels.begun[1:])) == ("addmm+addmm_1", LINKS)
    assert sum(fallbacks.counts().values()) == 1


def test_what_has_no_links_to_build_is_not_compiled_again(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """All kernels call the binding: without it links have none either."""
    monkeypatch.setenv("COMFUSE_JIT", "background")
    names_of = kernels.names_of
    kernels.names_of = lambda region: [BINDING, *names_of(region)]
    kernels.built.add("addmm+addmm_1")
    refuse(kernels, tmp_path, BINDING)
    program = Program()
    for _ in range(2):
        assert program.run() == [False, False]
        assert background.wait(10)
    assert len(log.compiles()) == 1
