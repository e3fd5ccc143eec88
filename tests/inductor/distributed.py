"""Twenty training steps under data parallelism in two processes: losses of a fused and an unfused model."""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor, nn

from bench.models import MODELS

STEPS = 20
_RATE = 0.05


@dataclass(frozen=True)
class Run:
    """One training.

    ``wrapper`` None: one process with the whole batch, in float32 and eager: what the others approach.
    ``interpreted``: torch's operators run what TorchInductor's passes leave; for CPUs.
    """

    wrapper: Literal["ddp", "fsdp2"] | None
    fused: bool
    device: str = "cpu"
    interpreted: bool = True
    middle: bool = False


def curves(runs: list[Run], folder: Path, world: int = 2) -> list[list[float]]:
    """The losses of each run, step by step; the runs follow one another in the same processes."""
    text = json.dumps([asdict(run) for run in runs])
    torch.multiprocessing.spawn(_process, (world, text, str(folder)), nprocs=world)
    return json.loads((folder / "curves.json").read_text())


def reference(run: Run) -> list[float]:
    """The losses in float32, in this process."""
    return _train(run, 0, 1)


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
        Path(folder, "curves.json").write_text(json.dumps(found))
    dist.destroy_process_group()


def _train(run: Run, rank: int, world: int) -> list[float]:
    """The mean loss over all processes at each step."""
    model = MODELS["bert_large"]
    size = model.middle if run.middle else model.small
    device = torch.device(run.device, rank) if run.device == "cuda" else torch.device(run.device)
    layers = (
        nn.Sequential(*(model.module(size, seed=seed) for seed in range(2 if run.middle else 1)))
        .to(device)
        .eval()
    )
    (x,) = model.arguments(size)
    target = torch.tanh(model.arguments(size, seed=7)[0])
    part = slice(rank * size.batch // world, (rank + 1) * size.batch // world)
    x, target = x[part].to(device), target[part].to(device)

    module, precision = _wrapped(layers, run, device)
    optimizer = torch.optim.SGD(module.parameters(), lr=_RATE)
    losses = []
    for _ in range(STEPS):
        with precision():
            output = module(x)
        loss = F.mse_loss(output.float(), target)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(_mean(loss.detach(), world))
    return losses


def _wrapped(layers: nn.Sequential, run: Run, device: torch.device) -> tuple[nn.Module, Any]:
    """The model to train, and the context in which it computes in bf16."""
    if run.wrapper is None:
        return layers, contextlib.nullcontext
    torch._dynamo.reset()
    options = {"force": True} if run.fused else {}
    if run.interpreted:
        from tests.inductor.interpreted import interpreted

        backend: dict[str, Any] = {"backend": interpreted}
        if run.fused:
            from comfuse.inductor.entrances import enable

            enable(**options)
    elif run.fused:
        from comfuse.inductor.entrances import backend as ours

        backend = {"backend": ours, "options": options}
    else:
        backend = {"backend": "inductor"}
    for layer in layers:
        layer.compile(**backend)
    if run.wrapper == "ddp":
        ids = [device.index] if device.type == "cuda" else None
        wrapped = nn.parallel.DistributedDataParallel(layers, device_ids=ids)
        return wrapped, lambda: torch.autocast(device.type, torch.bfloat16)

    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
    for layer in layers:
        fully_shard(layer, mp_policy=policy)
    return fully_shard(layers, mp_policy=policy), contextlib.nullcontext


def _mean(loss: Tensor, world: int) -> float:
    if world > 1:
        dist.all_reduce(loss)
    return float(loss) / world


def deviation(losses: list[float], exact: list[float]) -> float:
    """The largest distance between two curves, as a share of where the second one begins."""
    return max(abs(a - b) for a, b in zip(losses, exact, strict=True)) / exact[0]
