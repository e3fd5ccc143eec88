"""The record of build times: what nvcc says of its phases, and the table."""

from __future__ import annotations

from pathlib import Path

from bench.compile_time import is_slow, parts, table

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
    seconds = {"seconds": 7.61, "processor_seconds": 6.94, "cicc": 1.7, "ptxas": 0.2, "host": 3.4}
    built = {"family": "graphs", "kernel": "cf_a", **seconds}
    text = table(
        [{**built, "registers": 168, "spill_bytes": 0}, {"family": "b2b", "kernel": "cf_b", "failure": "no"}]
    )
    assert [cell.strip() for cell in text.splitlines()[2].split("|")][2:6] == ["cf_a", "7.6", "6.9", "1.7"]
    assert [cell.strip() for cell in text.splitlines()[3].split("|")][2:6] == ["cf_b", "no", "-", "-"]


def test_a_build_is_held_against_the_goal_of_its_kind() -> None:
    assert is_slow({"seconds": 10.01, "kernel": "cf_sm90_gemm_bf16_a"})
    assert not is_slow({"seconds": 10.01, "kernel": "cf_sm90_chain_bf16_a"})
    assert not is_slow({"failure": "no", "kernel": "cf_sm90_gemm_bf16_a"})
