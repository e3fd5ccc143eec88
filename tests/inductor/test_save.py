"""What is saved for a backward pass, as far as it is ours to say."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
import torch.utils.checkpoint
from torch import Tensor, nn
from torch.fx import Graph

from comfuse import fallbacks
from comfuse.errors import FallbackError
from comfuse.inductor import hook, log
from comfuse.inductor.entrances import enable
from comfuse.inductor.save import save_sums
from tests.inductor.interpreted import interpreted
from tests.inductor.regions import half


class Sublayer(nn.Module):
    def __init__(self, norm: nn.Module, p: float = 0.0, between: nn.Module | None = None) -> None:
        super().__init__()
        self.linear, self.norm, self.p = nn.Linear(64, 64), norm, p
        self.between = between or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(x + self.between(F.dropout(self.linear(x), self.p, self.training)))


def saved(model: nn.Module, passes: bool = True) -> tuple[list[str], int]:
    """What a forward pass keeps: operators with results of a tile's size, and the bytes of all results."""
    kept: list[tuple[list[str], int]] = []

    def look(graph: Graph) -> None:
        results = graph.output_node().args[0]
        made = [x for x in results[1:] if x is not None and x.op == "call_function"]
        names = [str(x.target.overloadpacket.__name__) for x in made if x.meta["val"].numel() == 96 * 64]
        size = sum(x.meta["val"].numel() * x.meta["val"].element_size() for x in made)
        kept.append((names, size))

    hooks = {"post_grad_custom_pre_pass": look} | ({"joint_custom_post_pass": save_sums} if passes else {})
    torch._dynamo.reset()
    with torch._inductor.config.patch(hooks):
        torch.compile(model.bfloat16(), backend=interpreted, fullgraph=True)(half(96, 64))
    return kept[0]


@pytest.mark.parametrize("p", [0.0, 0.1])
@pytest.mark.parametrize("norm", [nn.LayerNorm(64), nn.RMSNorm(64)], ids=["layer_norm", "rms_norm"])
def test_the_sum_that_a_norm_reads_takes_the_place_of_the_product(norm: nn.Module, p: float) -> None:
    names, size = saved(Sublayer(norm, p))
    assert "add" in names
    assert "addmm" not in names
    assert size <= saved(Sublayer(norm, p), passes=False)[1]


def test_what_a_gradient_needs_of_the_product_is_not_saved_beside_it() -> None:
    """The gradient of gelu needs its argument."""
    model = Sublayer(nn.LayerNorm(64), between=nn.GELU())
    assert saved(model) == saved(model, passes=False)


def test_checkpoints_of_the_user_stay() -> None:
    layer = Sublayer(nn.LayerNorm(64))

    class Checkpointed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)

    layer.bfloat16()
    assert saved(Checkpointed()) == saved(Checkpointed(), passes=False)


def gradients(model: nn.Module, x: Tensor, run: nn.Module) -> list[Tensor]:
    x = x.clone().requires_grad_()
    y = run(x)
    weights = torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape)
    found = torch.autograd.grad((y * weights).sum(), [x, *model.parameters()])
    return [y.detach(), *found]


@pytest.mark.parametrize("norm", [nn.LayerNorm(64), nn.RMSNorm(64)], ids=["layer_norm", "rms_norm"])
def test_gradients(norm: nn.Module) -> None:
    """No further from float64 than twice the eager program."""
    torch.manual_seed(0)
    model, x = Sublayer(norm).bfloat16(), 3 * half(96, 64) + 5
    exact = copy.deepcopy(model).double()
    truth = gradients(exact, x.double(), exact)
    torch._dynamo.reset()
    log.clear()
    with enable(force=True):
        fused = gradients(model, x, torch.compile(model, backend=interpreted, fullgraph=True))
    assert sum(verdict.fused for verdict in log.verdicts()) >= 1
    for ours, eager, true in zip(fused, gradients(model, x, model), truth, strict=True):
        assert (ours.double() - true).norm() <= 2 * (eager.double() - true).norm()


@pytest.mark.parametrize("strict", [False, True])
def test_a_bug_is_counted_and_nothing_is_marked(strict: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(graph: Graph) -> None:
        raise ZeroDivisionError("broken")

    monkeypatch.setattr(hook, "save_sums", broken)
    monkeypatch.setenv("COMFUSE_STRICT", str(int(strict)))
    fallbacks.reset()
    graph = Graph()
    graph.output(graph.placeholder("x"))
    if strict:
        with pytest.raises(FallbackError, match="saved for the backward pass: ZeroDivisionError"):
            hook.SavingPass()(graph)
    else:
        hook.SavingPass()(graph)
    ((where, reason),) = fallbacks.counts()
    assert where == "torch.compile"
    assert "saved for the backward pass: ZeroDivisionError: broken" in reason
    fallbacks.reset()
