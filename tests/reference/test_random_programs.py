"""Random programs: the torch evaluation and the plain interpreter mean the same."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from comfuse import reference
from comfuse.generator.interpret import interpret
from comfuse.generator.spec import FusedSpec, Space
from tests.generator.strategies import TAME, agree, arguments, is_stable, specs

ROWS = 3


def tensor(value: Any) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


def factors(spec: FusedSpec, gemms: list[torch.Tensor]) -> tuple[torch.Tensor, list[torch.Tensor]]:
    """A and the B's of which the GEMMs are these: A holds the results, each B picks one.

    With an A each, that of the second before its B.
    """
    if spec.second is not None:
        (a, first), (own, second) = (
            factors(replace(spec, k=pair.k, products=1, second=None), [gemm])
            for pair, gemm in zip(spec.pairs, gemms, strict=True)
        )
        return a, [*first, own, *second]
    a = torch.zeros(*gemms[0].shape[:-1], spec.k, dtype=torch.float64)
    picks = []
    for i, gemm in enumerate(gemms):
        a[..., i * spec.n : (i + 1) * spec.n] = gemm
        picks.append(torch.eye(spec.k, dtype=torch.float64)[i * spec.n : (i + 1) * spec.n])
    return a, picks


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_reference_agrees_with_the_interpreter(data: st.DataObject) -> None:
    axes = data.draw(st.sampled_from([("row", "group"), ("row", "group", "col", "full")]))
    spec = data.draw(specs(TAME, max_nodes=25, axes=axes, feedback=True))
    batches = [data.draw(arguments(spec, ROWS)) for _ in range(2 if spec.batched else 1)]
    results, gemms, operands = [], [], []
    for gemm, given_operands in batches:
        shared = [
            batches[0][1][i] if operand.space is Space.SCALAR else value
            for i, (operand, value) in enumerate(zip(spec.operands, given_operands, strict=True))
        ]
        results.append([tensor(y) for y in interpret(spec, gemm, shared)])
        gemms.append([tensor(g) for g in ([gemm] if spec.products == 1 else gemm)])
        operands.append([tensor(v) for v in shared])

    def stacked(values: list[list[torch.Tensor]], i: int) -> torch.Tensor:
        return torch.stack([v[i] for v in values]) if spec.batched else values[0][i]

    a, b = factors(spec, [stacked(gemms, i) for i in range(spec.products)])
    scalars = [operands[0][i].item() for i, o in enumerate(spec.operands) if o.space is Space.SCALAR]
    tensors = [stacked(operands, i) for i, o in enumerate(spec.operands) if o.space is not Space.SCALAR]
    got = reference.evaluate(spec, a, b, tensors, scalars, dtype=torch.float64, round_outputs=False)
    for i, output in enumerate(spec.outputs):
        y = got[i] if output.heads is None else got[i].transpose(-2, -3).flatten(-2)
        if not agree([stacked(results, i).tolist()], [y.tolist()]):
            assume(all(is_stable(spec, gemm, given_operands) for gemm, given_operands in batches))
            pytest.fail(f"{output.name} differs")
