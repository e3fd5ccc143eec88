"""Chooses kernels by measurement: ``comfuse tune``.

The planner's plans, those that the cost model rules out left out (:mod:`comfuse.tune.candidates`), are
compiled, checked against float64 (:mod:`comfuse.tune.problem`) and timed in turn on the GPU
(:mod:`comfuse.tune.runner`), until statistics leave one (:mod:`comfuse.tune.race`).  What was found goes into
a table (:mod:`comfuse.library.tuned`), which everything that builds or runs kernels asks first.
"""

from __future__ import annotations

from comfuse.tune.runner import GpuRunner, Runner
from comfuse.tune.tuner import Outcome, Target, tune

__all__ = ["GpuRunner", "Outcome", "Runner", "Target", "tune"]
