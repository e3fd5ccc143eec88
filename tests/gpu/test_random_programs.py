"""Random programs with operands, reductions, outputs and layouts of all kinds, against float64."""

from __future__ import annotations

import pytest
import torch

from bench.launch import label
from comfuse.generator import emit
from comfuse.generator.errors import PlanError
from comfuse.generator.ops import AXES, REDUCTIONS
from comfuse.generator.plan import SHAPES
from comfuse.generator.spec import DType
from tests.gpu.random_programs import SEEDS, RandomCase, cases, of_seed, record, restored
from tests.gpu.support import WIDTHS, written

CASES = cases()
LEAST = 200  # programs of the seeds that have to be fused


@pytest.mark.gpu
@pytest.mark.parametrize("case", CASES, ids=str)
def test_against_float64(case: RandomCase, kernels) -> None:
    """The first shape by a launch of the kernel alone, the second through the op."""
    kernel = kernels(case)
    first, second = case.leads
    inputs, out = case.inputs(first), case.inputs(first).outputs()
    inputs.check(written(inputs.launcher(kernel, out), out), f"{first}")
    inputs = case.inputs(second)
    out = inputs.outputs()
    kernels.serve(case, case.text)
    inputs.check(written(inputs.caller(out), out), f"{second} through the op:")


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_comparison_itself(case: RandomCase) -> None:
    """The float32 reference passes, and in an exact program equals the float64 one: so must a kernel."""
    lead = min(case.leads, key=lambda sizes: torch.Size(sizes).numel())
    inputs = case.inputs(lead, "cpu")
    results = inputs.as_stored()
    assert [x.shape for x in results] == [x.shape for x in inputs.outputs().tiles]
    inputs.check(results, str(lead))


def test_seeds_give_programs_of_all_kinds_that_can_be_fused() -> None:
    planned = []
    for case in CASES:
        try:
            assert emit.emit(case.plan()).text == emit.emit(case.plan()).text
            planned.append(case)
        except PlanError as e:
            print(f"{case}: {e}")
    assert len(planned) >= LEAST
    assert [of_seed(seed) for seed in SEEDS] == CASES[: len(SEEDS)]
    specs = [case.spec for case in planned]
    counts = [sum(node.op in REDUCTIONS for node in spec.nodes) for spec in specs]
    assert set(range(5)) <= set(counts)
    axes = {REDUCTIONS[node.op].axis for spec in specs for node in spec.nodes if node.op in REDUCTIONS}
    assert axes == set(AXES)
    assert {spec.products for spec in specs} == {1, 2}
    assert len({(spec.a_major, spec.b_major, spec.batched) for spec in specs}) == 8
    assert {len(spec.outputs) for spec in specs} == {1, 2, 3, 4}
    assert {o.dtype for spec in specs for o in spec.outputs} == set(DType)
    assert {o.dtype for spec in specs for o in spec.operands} == set(DType)
    assert any(o.strided for spec in specs for o in spec.operands)
    assert any(o.heads for spec in specs for o in spec.outputs)
    assert sum(spec.n % 8 > 0 for spec in specs) >= 20
    shapes = {case.plan().shape for case in planned}
    assert {shape for shape in SHAPES if label(shape) not in WIDTHS} <= shapes  # the others: test_widths.py


def test_a_kept_program_is_restored() -> None:
    for case in CASES[:20]:
        assert restored(record(case)) == case
