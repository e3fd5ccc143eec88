"""One measuring process: `python -m bench.worker`, started by `python -m bench`.

Prints one JSON record a line on its standard output: "begin" before each workload, then its rows.
Everything else that this process or its libraries print goes to standard error.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Callable
from typing import Any

from bench import providers, workloads
from bench.environment import gpu
from bench.providers import Provider
from bench.report import Row, record
from bench.workloads import Workload


def measure(w: Workload, chosen: tuple[Provider, ...], process: int, rounds: int) -> list[Row]:
    """Verify every provider on one workload, then time those that are right side by side."""
    import torch

    from bench.clock import SmClock
    from bench.programs import make_inputs
    from bench.rivals import UnsuitableError
    from bench.verify import Reference, poisoned
    from comfuse import timing
    from comfuse.errors import PlanError

    inputs = make_inputs(w, seed=1 + process)
    reference = Reference(w, inputs)
    graphs: dict[str, timing.Captured] = {}
    facts: dict[str, dict[str, Any]] = {}
    for p in chosen:
        fact: dict[str, Any] = {"eager_error": max(reference.eager_errors)}
        facts[p.name] = fact
        begin = time.perf_counter()
        try:
            call = p.prepare(w, inputs)
            results = poisoned(call)
            torch.cuda.synchronize()
            fact["setup_seconds"] = round(time.perf_counter() - begin, 3)
            errors = reference.errors(results, of_gemm=p.only_gemm)
            del results
            fact["error"] = max(errors)
            bounds = reference.bounds(rounds_once=p.rounds_once, of_gemm=p.only_gemm)
            for i, (error, bound) in enumerate(zip(errors, bounds, strict=True)):
                if not error <= bound:
                    raise ArithmeticError(
                        f"output {i}: error {error:.2e} against float64, {bound:.2e} allowed"
                    )
            graphs[p.name] = timing.capture(call)
        except (PlanError, UnsuitableError) as e:
            print(f"{w.name} {p.name}: refused: {e}")  # no failure: the workload is not for this provider
        except Exception as e:  # one provider's failure, whatever it is, must not stop the others
            fact["failure"] = f"{type(e).__name__}: {e}".strip().splitlines()[0][:300]
            torch.cuda.synchronize()  # raises again if the CUDA context is lost: then this process ends
    if graphs:
        clock = SmClock()
        for name, t in timing.time_interleaved(graphs, rounds, around=clock.watch).items():
            facts[name] |= {"us": t.us, "low": t.low, "high": t.high, "mhz": clock.mhz(name)}
    return [Row(w.name, p.name, process, **facts[p.name]) for p in chosen]


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.worker")
    parser.add_argument("--workloads", nargs="+", required=True)
    parser.add_argument("--providers", nargs="+", required=True)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--rounds", type=int, required=True)
    arguments = parser.parse_args()

    # A fallback would be timed under ComFuse's name.
    os.environ["COMFUSE_STRICT"] = "1"
    os.environ["COMFUSE_JIT"] = "require"
    emit = take_stdout()
    chosen = providers.select(tuple(arguments.providers))
    for name in arguments.workloads:
        emit({"record": "begin", "workload": name})
        for row in measure(workloads.by_name(name), chosen, arguments.process, arguments.rounds):
            emit(record(row))
        # Clocks and heat right behind the timed replays: they drift, and explain outliers.
        emit({"record": "gpu", "workload": name, "process": arguments.process, **gpu()})
        release()


def take_stdout() -> Callable[[dict[str, Any]], None]:
    """Keep standard output for records; whoever prints to it from now on prints to standard error."""
    stream = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)

    def emit(fields: dict[str, Any]) -> None:
        stream.write(json.dumps(fields) + "\n")
        stream.flush()

    return emit


def release() -> None:
    """Give the memory of one workload back before the next."""
    import gc

    import torch

    gc.collect()
    torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
