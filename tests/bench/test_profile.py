"""What is read out of Nsight Compute's table."""

from __future__ import annotations

import pytest

from bench.profile import COUNTERS, STALLS, kernels, table

_TIME, _ISSUE = COUNTERS["us"], COUNTERS["issue %"]
OUTPUT = f"""\
==PROF== Connected to process 12
==PROF== Profiling "cf_kernel" - 0: 0%....100% - 3 passes
"ID","Process ID","Kernel Name","{_TIME}","{_ISSUE}","{COUNTERS["DRAM %"]}"
"","","","ns","%","%"
"0","12","cf_kernel(Params)","271,360","41.5","n/a"
"""


def test_values_units_and_counters_that_are_missing() -> None:
    (record,) = kernels(OUTPUT)
    assert record == {"kernel": "cf_kernel", "us": pytest.approx(271.36), "issue %": 41.5}
    line = table([{"workload": "graphs 1x8x8", "provider": "comfuse", **record}]).splitlines()[2]
    cells = [cell.strip() for cell in line.split("|")]
    assert cells[4] == "271.4"
    assert "-" in cells


def test_reasons_of_stalls_have_a_table_of_their_own() -> None:
    reason = "long scoreboard"
    output = f'"Kernel Name","{STALLS[reason]}"\n"",""\n"cf_kernel(Params)","1.25"\n'
    (record,) = kernels(output)
    header, _, line = table([{"workload": "w", "provider": "p", **record}], STALLS, 2).splitlines()
    headings, cells = ([cell.strip() for cell in text.split("|")] for text in (header, line))
    assert cells[headings.index(reason)] == "1.25"
    assert set(headings).isdisjoint(COUNTERS)


def test_no_table_is_no_kernels() -> None:
    assert kernels("==ERROR== The user does not have permission\n") == []
