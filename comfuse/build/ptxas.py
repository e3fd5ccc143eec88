"""Reads what ptxas said about a kernel out of a build log."""

from __future__ import annotations

import re
from typing import Any

_FUNCTION = re.compile(r"Compiling entry function '([^']+)'")
_USED = re.compile(r"Used (\d+) registers")
_SPILLS = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")
_MESSAGE = re.compile(r"\(C75\d\d\).*")


def facts(log: str) -> dict[str, Any]:
    """Registers, spills and messages of the compiled kernels.

    Returns:
        ``registers`` and ``spill_bytes`` (stores plus loads) as the maximum over the entry functions, each
        None if ptxas said nothing; ``stack_bytes``; ``messages``: its C75xx remarks (serialised wgmma and
        the like: a slow or wrong kernel), each once.
    """
    registers = [int(n) for n in _USED.findall(log)]
    frames = [tuple(map(int, found)) for found in _SPILLS.findall(log)]
    return {
        "functions": len(_FUNCTION.findall(log)),
        "registers": max(registers, default=None),
        "stack_bytes": max((stack for stack, _, _ in frames), default=None),
        "spill_bytes": max((stores + loads for _, stores, loads in frames), default=None),
        "messages": sorted({m.group(0).strip() for m in _MESSAGE.finditer(log)}),
    }
