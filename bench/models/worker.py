"""One measuring process: `python -m bench.models.worker`, started by `python -m bench models`.

Prints one JSON record a line on its standard output: "begin" before each workload, then its rows, the errors
of each tensor, and what ComFuse made of the model.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Iterator
from typing import Any

from bench.environment import gpu
from bench.models.providers import Provider
from bench.report import Row, record
from bench.worker import release, take_stdout
from bench.workloads.models import ModelWorkload, select_models

LAUNCHES = 4  # of a step in one CUDA graph


def measure(
    w: ModelWorkload, chosen: tuple[Provider, ...], process: int, rounds: int, *, regions: bool = False
) -> Iterator[dict[str, Any]]:
    """Verify every provider on one workload, then time those that are right side by side.

    ``regions``: the explanation times each region by itself too.
    """
    import torch

    from bench.clock import SmClock
    from bench.models import MODELS
    from bench.models.ahead import explained
    from bench.models.reference import Reference
    from comfuse import timing

    model = MODELS[w.model]
    reference = Reference(model, model.real, training=w.training, device="cuda")
    graphs: dict[str, timing.Captured] = {}
    facts: dict[str, dict[str, Any]] = {}
    for p in chosen:
        fact: dict[str, Any] = {"eager_error": reference.eager_error}
        facts[p.name] = fact
        begin = time.perf_counter()
        try:
            call = reference.step.call(p.compile(reference.step.module))
            results = reference.results(call)
            torch.cuda.synchronize()
            fact["setup_seconds"] = round(time.perf_counter() - begin, 3)
            # An eager step draws other dropout masks than compiled ones: there is nothing to hold it against.
            if p.name != "eager" or not reference.drawn:
                errors = reference.errors(results)
                fact["error"] = reference.relative(errors)
                yield {
                    "record": "errors",
                    "workload": w.name,
                    "provider": p.name,
                    "process": process,
                    "errors": {n: [errors[n], reference.bounds[n]] for n in errors},
                }
                if wrong := reference.wrong(errors, baseline=p.baseline):
                    raise ArithmeticError(f"{len(wrong)} of {len(errors)} tensors are off: {wrong[0]}")
            del results
            graphs[p.name] = timing.capture(call, LAUNCHES)
        except Exception as e:  # one provider's failure, whatever it is, must not stop the others
            fact["failure"] = f"{type(e).__name__}: {e}".strip().splitlines()[0][:300]
            torch.cuda.synchronize()  # raises again if the CUDA context is lost: then this process ends
    if graphs:
        clock = SmClock()
        for name, t in timing.time_interleaved(graphs, rounds, LAUNCHES, clock.watch).items():
            facts[name] |= {"us": t.us, "low": t.low, "high": t.high, "mhz": clock.mhz(name)}
    for p in chosen:
        yield record(Row(w.name, p.name, process, **facts[p.name]))
    if process == 0 and any(p.ours for p in chosen):
        graphs.clear()  # a reset of TorchDynamo frees what they replay
        try:
            text = str(explained(reference.step, measure=regions))
            yield {"record": "explain", "workload": w.name, "text": text}
        except Exception as e:  # the times stand without it
            yield record(Row(w.name, "explain", process, failure=f"{type(e).__name__}: {e}"[:300]))


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.models.worker")
    parser.add_argument("--workloads", nargs="+", required=True)
    parser.add_argument("--providers", nargs="+", required=True)
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--rounds", type=int, required=True)
    parser.add_argument("--measure", action="store_true", help="time each region by itself too")
    parser.add_argument("--until", type=float, help="start no further workload after this time.time()")
    arguments = parser.parse_args()

    # A fallback would be timed under ComFuse's name.
    os.environ["COMFUSE_STRICT"] = "1"
    os.environ["COMFUSE_JIT"] = "require"
    emit = take_stdout()

    import torch

    from bench.models.providers import select

    # Else the encoder layer in inference is one opaque operator, to every compiler.
    torch.backends.mha.set_fastpath_enabled(False)
    for w in select_models(arguments.workloads):
        if arguments.until is not None and time.time() > arguments.until:
            print(f"no time is left for {w.name}")
            break
        emit({"record": "begin", "workload": w.name})
        chosen = select(arguments.providers)
        for fields in measure(w, chosen, arguments.process, arguments.rounds, regions=arguments.measure):
            emit(fields)
        # Clocks and heat right behind the timed replays: they drift, and explain outliers.
        emit({"record": "gpu", "workload": w.name, "process": arguments.process, **gpu()})
        release()


if __name__ == "__main__":
    main()
