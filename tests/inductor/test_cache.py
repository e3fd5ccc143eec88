"""TorchInductor's caches: a second process finds the graph, does not run the pass, and gives the same."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

_ROOT = Path(__file__).parents[2]

# Linear and LayerNorm, forward and backward.  Prints what came of it, as JSON.
_PROGRAM = """
import hashlib, json, sys
import torch, comfuse
from torch._dynamo.utils import counters
from comfuse.inductor import log

training = sys.argv[1] == "training"
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.LayerNorm(64)).to(torch.bfloat16)
x = torch.randn(2, 24, 64, dtype=torch.bfloat16)
with torch.set_grad_enabled(training):
    y = torch.compile(model, backend=comfuse.backend, options={"force": True})(x)
results = [y]
if training:
    y.float().sum().backward()
    results += [p.grad for p in model.parameters()]
data = b"".join(t.detach().view(torch.int16).numpy().tobytes() for t in results)
print("RESULT", json.dumps({
    "runs": len(log.compiles()),
    "fused": sum(v.fused for v in log.verdicts()),
    "fx": counters["inductor"]["fxgraph_cache_hit"],
    "aot": counters["aot_autograd"]["autograd_cache_hit"],
    "bypass": counters["inductor"]["fxgraph_cache_bypass"],
    "result": hashlib.sha256(data).hexdigest(),
}))
"""


def run(folder: Path, what: str) -> dict[str, Any]:
    """Runs the program in a process of its own; ``folder`` has TorchInductor's caches."""
    environment = os.environ | {"TORCHINDUCTOR_CACHE_DIR": str(folder), "COMFUSE_STRICT": "1"}
    command = [sys.executable, "-c", _PROGRAM, what]
    done = subprocess.run(
        command, cwd=_ROOT, env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    (line,) = (line for line in done.stdout.splitlines() if line.startswith("RESULT "))
    return json.loads(line.removeprefix("RESULT "))


@pytest.mark.slow
@pytest.mark.parametrize("what, graphs", [("inference", 1), ("training", 2)])
def test_a_second_process_finds_what_the_first_compiled(tmp_path: Path, what: str, graphs: int) -> None:
    first, second = run(tmp_path, what), run(tmp_path, what)
    assert first["runs"] == graphs
    assert first["fused"] >= 1
    assert (first["aot"], first["fx"], first["bypass"]) == (0, 0, 0)
    assert second["runs"] == 0
    assert (second["aot"], second["fx"], second["bypass"]) == (1, graphs, 0)
    assert second["result"] == first["result"]
