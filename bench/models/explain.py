"""`python -m bench models --explain`: what becomes of every GEMM of the models, planned without a GPU.

For the H200 and on the meta device, whatever this machine has; every time is a prediction.
"""

from __future__ import annotations

import gc
import importlib.metadata
import os
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from bench import report
from bench.environment import header
from bench.models import MODELS
from bench.models.ahead import explained, step_of
from bench.workloads.models import ModelWorkload

GPU = "h200"


def steps(wanted: Iterable[str] = ()) -> tuple[ModelWorkload, ...]:
    """Inference and training of every model, or of those that are named, by the model or by the step.

    Raises:
        ValueError: there is no such model or step.
    """
    every = tuple(ModelWorkload(name, training) for name in MODELS for training in (False, True))
    names = set(wanted)
    if unknown := names - {n for w in every for n in (w.name, w.model)}:
        raise ValueError(f"no step or model {min(unknown)!r}; there are {', '.join(w.name for w in every)}")
    return tuple(w for w in every if not names or names & {w.name, w.model})


def texts(chosen: Iterable[ModelWorkload]) -> Iterator[str]:
    """Of each step at its published size: what became of its GEMMs, under its name."""
    os.environ["COMFUSE_CALIBRATION"] = os.devnull  # the planner's own constants
    for w in chosen:
        model = MODELS[w.model]
        step = step_of(model, model.real, training=w.training, device="meta")
        yield f"== {w.name}\n{explained(step, gpu=GPU)}\n"
        gc.collect()


def write(chosen: Iterable[ModelWorkload], folder: Path) -> Path:
    """The texts as a file in a folder, under a header that says what they are."""
    path = (folder / report.file_name("explain")).with_suffix(".txt")
    folder.mkdir(parents=True, exist_ok=True)
    begin = time.monotonic()
    with path.open("w") as file:
        file.write(_header())
        for text in texts(chosen):
            file.write(f"\n{text}")
            file.flush()
            print(text.splitlines()[0][3:], text.splitlines()[1], sep=": ", flush=True)
    print(f"{time.monotonic() - begin:.0f} s: {path}")
    return path


def _header() -> str:
    facts = header("explain")
    transformers = importlib.metadata.version("transformers")
    return (
        f"No GPU: planned on the meta device for the {GPU.upper()} by the cost model's own constants.\n"
        "Every time below is predicted, none was measured.\n"
        f"python -m bench models --explain, commit {facts['commit']}, {facts['date']}, "
        f"torch {facts['torch']}, transformers {transformers}, Python {facts['python']}\n"
    )
