"""Compiles the kernels of a set of workloads in parallel, before anything is measured."""

from __future__ import annotations
