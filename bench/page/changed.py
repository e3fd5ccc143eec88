"""Which committed times are of kernels that have changed since, so much that predictions have too.

They stay results of their commit.  Only beside predictions, which are of this checkout's kernels, they mean
nothing.  Times of today's kernels will stand in files that are not named here.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Changed:
    """``files``: by their names without the suffix; those of a dirty tree have no commit of their own."""

    workloads: tuple[str, ...]
    files: tuple[str, ...]
    reason: str


_RESIDUAL = "the residual was read beside X, and its slots were released behind fences"

CHANGED: tuple[Changed, ...] = (
    Changed(
        ("graphs-gelu_backward-16384x4096x1024",),
        ("graphs-20261129-225231-19c2260", "graphs-20261129-225054-19c2260", "12-forced-plans-5d378af"),
        "GELU's derivative took 24 issue slots an element, and takes 12 by tanh.approx",
    ),
    Changed(
        ("graphs-swiglu-8192x11008x4096",),
        ("graphs-20261129-225054-19c2260", "12-forced-plans-5d378af"),
        "SiLU took two special functions an element, and takes tanh.approx alone",
    ),
    Changed(
        (
            "b2b-327680x128x512x128",
            "b2b-262144x128x128x128",
            "b2b-65536x256x1024x256",
            "b2b-1048576x64x256x64",
        ),
        ("b2b-20261130-180036-afc5adb",),
        "GELU between two GEMMs took 14 issue slots an element, and takes 7 by tanh.approx",
    ),
    Changed(
        ("postnorm-65536x256x256",),
        (
            "postnorm-20261129-192841-99804d1",
            "postnorm-20261129-210549-621ddbf",
            "postnorm-20261130-180634-afc5adb",
        ),
        "the two tiles of a row exchanged statistics through L2, and do so in their cluster's shared memory",
    ),
    Changed(
        ("b2b-1000000x128x128x128-norm",),
        ("b2b-20261201-063541-1235ada", "16-chains-b831034"),
        _RESIDUAL,
    ),
    Changed(("b2b-1000000x128x128x128x128",), ("b2b-20261201-063541-1235ada",), _RESIDUAL),
)


def reason(file: str, workload: str) -> str | None:
    """Why a file's times of a workload are not of today's kernel; None where they are."""
    found = (c.reason for c in CHANGED if file in c.files and workload in c.workloads)
    return next(found, None)
