"""Tests of capture, lowering and fuse."""

from __future__ import annotations
