"""Benchmarks: workloads x providers -> rows.  `python -m bench --help` lists the experiments."""

from __future__ import annotations
