"""The record of build times: what nvcc says of its phases, and the table."""

from __future__ import annotations

from pathlib import Path

from bench.compile_time import parts, table

NVCC = """\
source file name , phase name , phase input files , phase output file , arch , tool, metric , unit
k.cu , gcc (preprocessing 4) , k.cu  , k.ii ,  , nvcc , 330.5 , ms
k.cu , cudafe++ , k.ii  , k.cudafe1.cpp ,  , nvcc , 1354.5 , ms
k.cu , cicc ,  k.ii  , k.ptx , compute_90a , nvcc , 1760.0 , ms
k.cu , ptxas , k.ptx  , k.cubin , sm_90a , nvcc , 340.0 , ms
"""


def test_phases_are_added_up(tmp_path: Path) -> None:
    file = tmp_path / "phases.csv"
    file.write_text(NVCC)
    assert parts(file) == {"host": 1.685, "cicc": 1.76, "ptxas": 0.34}


def test_a_failure_has_a_line_too() -> None:
    built = {"family": "graphs", "kernel": "cf_a", "seconds": 7.61, "cicc": 1.7, "ptxas": 0.2, "host": 3.4}
    text = table(
        [{**built, "registers": 168, "spill_bytes": 0}, {"family": "b2b", "kernel": "cf_b", "failure": "no"}]
    )
    assert [cell.strip() for cell in text.splitlines()[2].split("|")][2:5] == ["cf_a", "7.6", "1.7"]
    assert [cell.strip() for cell in text.splitlines()[3].split("|")][2:5] == ["cf_b", "no", "-"]
