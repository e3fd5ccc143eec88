"""What a package of AOTInductor says of the kernels that its model needs."""

from __future__ import annotations

import json
from collections.abc import Sequence

from comfuse.inductor.verdict import Verdict
from comfuse.library.package import KEY


def note(verdicts: Sequence[Verdict], gpu: str) -> None:
    """Writes for which GPU and which numbers of rows a graph was fused into the package that is being made.

    Does nothing where none is.
    """
    from torch._inductor import config
    from torch._inductor.virtualized import V

    if not V.aot_compilation:
        return
    rows: dict[str, list[int | None]] = {}
    for text, number in dict.fromkeys(kernel for v in verdicts if v.fused for kernel in v.kernels):
        rows.setdefault(text, []).append(number)
    known = {**config.aot_inductor.metadata, KEY: json.dumps({"gpu": gpu, "rows": rows})}
    config.aot_inductor.metadata = known  # a new one: the old one may be the user's
