"""`python -m bench.build`: compile ahead what the benchmarks will ask for.  Needs no GPU."""

from __future__ import annotations

import argparse
import sys

from bench import providers, workloads
from bench.ahead import build_all, sources_of


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.build", description=__doc__)
    parser.add_argument(
        "--families",
        nargs="+",
        choices=[*workloads.FAMILIES, "plain"],
        default=["postnorm", "graphs", "plain"],
    )
    options = parser.parse_args()
    sources = []
    for family in options.families:
        if family == "plain":
            sources += sources_of(providers.OWN, workloads.select("postnorm"))
        else:
            sources += sources_of([providers.PROVIDERS["comfuse"]], workloads.select(family))
    results = build_all(sources, lambda line: print(line, flush=True))
    failures = sum(isinstance(r, Exception) for r in results.values())
    print(f"{len(results) - failures} kernels built, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
