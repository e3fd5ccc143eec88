"""Training under data parallelism in two processes: how far losses go from those in float64."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models import MODELS
from comfuse.inductor import log
from comfuse.inductor.entrances import enable

STEPS = 20
_MODEL = MODELS["bert_large"]
_RATE = 1.0  # the loss falls to less than a half within these steps, and does not leap


@dataclass(frozen=True)
class Run:
    """One training.

    ``wrapper`` None: one process with the whole batch, in float64: what the others approach.
    ``fused``: with ComFuse; else eager.  ``interpreted``: torch's operators run what TorchInductor's passes
    leave; for CPUs.  ``rate``: of learning, as a share of the usual one.
    """

    wrapper: Literal["ddp", "fsdp2"] | None
    fused: bool = False
    device: str = "cpu"
    interpreted: bool = True
    middle: bool = False
    rate: float = 1.0


@dataclass(frozen=True)
class Curve:
    """``losses``: (steps, rows), of each row of the whole batch.  ``fused``: GEMMs in fused kernels."""

    losses: Tensor
    fused: int = 0

    def distance(self, other: Curve) -> float:
        """Of all losses, as a share of the other's."""
        return float((self.losses - other.losses).norm() / other.losses.norm())

    @property
    def means(self) -> list[float]:
        return [float(loss) for loss in self.losses.mean(1)]


def curves(runs: list[Run], folder: Path, world: int = 2) -> list[Curve]:
    """What each run gives; the runs follow one another in the same processes."""
    text = json.dumps([asdict(run) for run in runs])
    torch.multiprocessing.spawn(_process, (world, text, str(folder)), nprocs=world)
    return [Curve(*found) for found in torch.load(folder / "curves.pt")]


def reference(run: Run) -> Curve:
    """The losses in float64, in this process."""
    assert run.wrapper is None
    return _train(run, 0, 1)


def check(fused: Curve, eager: Curve, exact: Curve) -> None:
    """No further from float64 than twice the eager program in half precision."""
    first, *_, last = exact.means
    assert last < 0.5 * first, "the loss does not fall"
    assert len(fused.losses) == len(eager.losses) == STEPS
    assert fused.fused > 0, "nothing was fused"
    assert eager.fused == 0
    assert fused.distance(exact) <= 2 * eager.distance(exact)


def _process(rank: int, world: int, text: str, folder: str) -> None:
    os.environ["COMFUSE_STRICT"] = "1"
    runs = [Run(**fields) for fields in json.loads(text)]
    torch.set_num_threads(1)
    cuda = runs[0].device == "cuda"
    if cuda:
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if cuda else "gloo", init_method=f"file://{folder}/store", rank=rank, world_size=world
    )
    found = [_train(run, rank, world) for run in runs]
    if rank == 0:
        torch.save([(curve.losses, curve.fused) for curve in found], Path(folder, "curves.pt"))
    dist.destroy_process_group()


def _train(run: Run, rank: int, world: int) -> Curve:
    size = _MODEL.middle if run.middle else _MODEL.small
    device = torch.device(run.device, rank) if run.device == "cuda" else torch.device(run.device)
    dtype = torch.float64 if run.wrapper is None else torch.float32
    layers = nn.Sequential(*(_MODEL.module(size, seed=seed) for seed in range(2 if run.middle else 1)))
    layers = layers.to(device, dtype).eval()
    (x,) = _MODEL.arguments(size)
    target = torch.tanh(_MODEL.arguments(size, seed=7)[0])
    part = slice(rank * size.batch // world, (rank + 1) * size.batch // world)
    x, target = x[part].to(device, dtype), target[part].to(device, dtype)

    log.clear()
    with enable(force=True) if run.fused else nullcontext():
        module, precision = _wrapped(layers, run, device)
        optimizer = torch.optim.SGD(module.parameters(), lr=run.rate * _RATE)
        losses = []
        for _ in range(STEPS):
            with precision():
                output = module(x)
            loss = F.mse_loss(output.to(dtype), target, reduction="none").mean(-1).flatten()
            loss.mean().backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(_of_all(loss.detach(), world))
    return Curve(torch.stack(losses).double().cpu(), sum(verdict.fused for verdict in log.verdicts()))


def _wrapped(layers: nn.Sequential, run: Run, device: torch.device) -> tuple[nn.Module, Any]:
    """The model to train, and the context in which it computes in bf16."""
    if run.wrapper is None:
        return layers, nullcontext
    if run.fused:
        torch._dynamo.reset()
        for layer in layers:
            layer.compile(backend=_backend(run))
    if run.wrapper == "ddp":
        ids = [device.index] if device.type == "cuda" else None
        wrapped = nn.parallel.DistributedDataParallel(layers, device_ids=ids)
        return wrapped, lambda: torch.autocast(device.type, torch.bfloat16)

    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(layers, mp_policy=policy), nullcontext


def _backend(run: Run) -> Any:
    if not run.interpreted:
        return "inductor"
    from tests.inductor.interpreted import interpreted

    return interpreted


def _of_all(losses: Tensor, world: int) -> Tensor:
    """The losses of all processes, in the order of the batch."""
    if world == 1:
        return losses
    parts = [torch.empty_like(losses) for _ in range(world)]
    dist.all_gather(parts, losses)
    return torch.cat(parts)
