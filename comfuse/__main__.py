"""``python -m comfuse``."""

from __future__ import annotations

from comfuse.cli import main

main(prog_name="comfuse")
