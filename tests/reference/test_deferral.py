"""What deferred chains round: at most twice the error of eager half precision, as all kernels."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from comfuse import reference
from comfuse.generator import catalog
from comfuse.generator.catalog.parts import Build, Layouts, layer_norm, rms_norm
from comfuse.generator.chain import ChainSpec
from comfuse.generator.deferral import defer
from comfuse.generator.spec import DType, Space

BF16, M, K, H, N = DType.BF16, 256, 64, 512, 64
NORMS = ("layernorm", "rmsnorm", "softmax")


def chain_of(norm: str) -> ChainSpec:
    b = Build(H, K, BF16, Layouts())
    x = b.op("add", b.gemm(), b.row("b0", BF16), name="x")
    if norm == "softmax":
        e = b.op("exp", b.op("sub", x, b.op("row_max", x)))
        p = b.op("div", e, b.op("row_sum", e))
    elif norm == "rmsnorm":
        p, _ = rms_norm(b, x, b.row("weight", BF16), b.scalar("eps"))
    else:
        p, _, _ = layer_norm(b, x, b.row("weight", BF16), b.row("shift", BF16), b.scalar("eps"))
    return ChainSpec((b.stored("p", p, BF16), catalog.linear(N, H, BF16)))


def run_deferred(chain: ChainSpec, a: Tensor, w0: Tensor, w1: Tensor, rows: dict[str, Tensor]) -> Tensor:
    """As a kernel does: the tile in bfloat16, values a row and vectors in float32."""
    deferred = defer(chain)
    first, last = deferred.links.links
    tensors = [rows[o.name] for o in first.operands if o.space is not Space.SCALAR]
    scalars = [1e-5] * (len(first.operands) - len(tensors))
    tile, *columns = reference.evaluate(first, a, w0, tensors, scalars)
    assert tile.dtype is torch.bfloat16
    vectors = []
    for c in deferred.vectors:
        node = first.nodes[c]
        signs = {"load": 1.0, "mul": -1.0}  # the shift itself, and minus the weight
        name = next(first.nodes[i].name for i in (c, *node.inputs) if first.nodes[i].op == "load")
        vectors.append(signs[node.op] * (w1.float() @ rows[name].float()))
    (y,) = reference.evaluate(last, tile, w1, [*columns, *vectors])
    return y


def eager(norm: str, a: Tensor, w0: Tensor, w1: Tensor, rows: dict[str, Tensor]) -> Tensor:
    x = F.linear(a, w0, rows["b0"])
    if norm == "softmax":
        return F.linear(F.softmax(x, -1), w1)
    if norm == "rmsnorm":
        return F.linear(F.rms_norm(x, (H,), rows["weight"], 1e-5), w1)
    return F.linear(F.layer_norm(x, (H,), rows["weight"], rows["shift"], 1e-5), w1)


@pytest.mark.parametrize("mean", [0.0, 3.0, 100.0])
@pytest.mark.parametrize("norm", NORMS)
def test_error_beside_that_of_eager(norm: str, mean: float) -> None:
    """Rows whose mean is a hundred times their spread too: then both have lost two digits."""
    generator = torch.Generator().manual_seed(int(mean))

    def random(*size: int, scale: float = 1.0) -> Tensor:
        return (torch.randn(size, generator=generator) * scale).bfloat16()

    a, w0, w1 = random(M, K), random(H, K, scale=K**-0.5), random(N, H, scale=H**-0.5)
    rows = {"b0": random(H) + mean, "weight": random(H, scale=0.2) + 1, "shift": random(H)}
    exact = eager(norm, *(t.double() for t in (a, w0, w1)), {name: t.double() for name, t in rows.items()})
    ours = run_deferred(chain_of(norm), a, w0, w1, rows)
    errors = [(y.double() - exact).norm() for y in (ours, eager(norm, a, w0, w1, rows))]
    assert errors[0] <= 2 * errors[1]
