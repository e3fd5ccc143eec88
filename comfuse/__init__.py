"""ComFuse: a GEMM and the elementwise work and row reductions behind it, compiled into one Hopper kernel::

    @comfuse.fuse
    def block(x, w, bias, residual, g, b):
        h = F.linear(x, w, bias) + residual
        return F.layer_norm(h, (h.shape[-1],), g, b)

``fuse`` does all of it at a call; ``trace``, ``plan``, ``emit`` and ``build`` are its steps, each a function
of one immutable value to the next.  ``torch.compile(model, backend="comfuse")``, ``enable`` and ``options``
find such regions in a model; ``export`` and ``load`` do that ahead of time.  Importing this package registers
the dispatcher ops; it starts neither CUDA nor a compiler, torch's included.
"""

from __future__ import annotations

from comfuse import ops  # registers torch.ops.comfuse, which compiled graphs call by name
from comfuse.build import build
from comfuse.deploy import export, load
from comfuse.explain import explain
from comfuse.frontend import TraceError, fuse, trace
from comfuse.generator.emit import emit
from comfuse.generator.spec import FusedSpec
from comfuse.inductor.entrances import backend, enable, options
from comfuse.library.tuned import plan
from comfuse.version import __version__

__all__ = [
    "FusedSpec",
    "TraceError",
    "__version__",
    "backend",
    "build",
    "emit",
    "enable",
    "explain",
    "export",
    "fuse",
    "load",
    "ops",
    "options",
    "plan",
    "trace",
]
