"""Where a node comes from, by what the tracers write into it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from comfuse.frontend.source import location

_TORCH = Path(torch.__file__).parent / "nn" / "functional.py"


def _node(trace: str | None) -> torch.fx.Node:
    node = torch.fx.Graph().placeholder("x")
    node.stack_trace = trace
    return node


@pytest.mark.parametrize(
    ("trace", "place"),
    [
        (None, None),
        ("", None),
        ("model.py:7", "model.py:7"),
        ('  File "model.py", line 7, in forward\n    h = self.inner(x)\n', "model.py:7"),
        (
            '  File "model.py", line 7, in forward\n    h = self.inner(x)\n'
            '  File "inner part.py", line 12, in forward\n    return F.linear(x, w)\n'
            f'  File "{_TORCH}", line 99, in linear\n    return torch._C._nn.linear(x, w)\n',
            "inner part.py:12",
        ),
        (f'  File "{_TORCH}", line 99, in linear\n    return torch._C._nn.linear(x, w)\n', None),
    ],
)
def test_location_is_the_users_innermost_line(trace, place):
    assert location(_node(trace)) == place
