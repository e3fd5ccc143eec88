"""`python -m bench.build`: compile ahead what the benchmarks will ask for.  Needs no GPU."""

from __future__ import annotations

import argparse
import sys

from bench import clock, providers, workloads
from bench.ahead import build_all, sources_of
from bench.workloads.models import select_models


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.build", description=__doc__)
    parser.add_argument(
        "--families",
        nargs="+",
        choices=[*workloads.FAMILIES, "plain", "models"],
        default=["postnorm", "graphs", "plain", "models"],
    )
    parser.add_argument(
        "--models", nargs="+", default=[], metavar="NAME", help="workloads of models, or models"
    )
    options = parser.parse_args()
    sources = [clock.source()]
    for family in options.families:
        if family == "plain":
            sources += sources_of(providers.OWN, workloads.select("postnorm"))
        elif family == "models":
            from bench.models import ahead  # needs transformers, which no other family does

            sources += ahead.sources_of(select_models(options.models))
        else:
            sources += sources_of([providers.PROVIDERS["comfuse"]], workloads.select(family))
    results = build_all(sources, lambda line: print(line, flush=True))
    failures = sum(isinstance(r, Exception) for r in results.values())
    print(f"{len(results) - failures} kernels built, {failures} failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
