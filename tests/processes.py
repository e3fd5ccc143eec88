"""Processes that tests start."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def python_path() -> str:
    """PYTHONPATH of a process that imports what this one does: packages may lie anywhere on sys.path."""
    return os.pathsep.join(dict.fromkeys([str(ROOT), *filter(None, sys.path)]))
