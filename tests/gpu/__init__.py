"""Tests that launch kernels: they need a Hopper GPU and are skipped, with the reason, where there is none."""

from __future__ import annotations
