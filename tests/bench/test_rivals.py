"""Providers that could be off without a word: what they find, on a CPU, and what counts as off."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import pytest
import torch

pytest.importorskip("tabulate", reason="needs the bench extra")

from bench import providers, rivals
from bench.programs import make_inputs
from bench.workloads import EPILOGUES, GRAPHS, POSTNORM, RMSNORM, Workload

TMA = "TritonTemplateCaller triton_mm_persistent_tma_7"
CUTLASS = "CUTLASSTemplateCaller cutlass_gemm_3"
PLAIN = "TritonTemplateCaller triton_mm_2"


def _small(w: Workload) -> Workload:
    return dataclasses.replace(w, m=64, n=64, k=32)


def test_they_are_no_default_and_inductors_count_as_inductor() -> None:
    added = {"inductor-tma", "inductor-cutlass", "cublaslt", "quack"}
    assert added <= set(providers.PROVIDERS)
    assert not added & set(providers.DEFAULT)
    assert {"inductor-tma", "inductor-cutlass"} <= set(providers.BASELINES)
    assert [p.name for p in providers.PROVIDERS.values() if p.rival] == ["cublaslt", "quack"]


def test_a_kind_of_kernel_that_was_timed_counts() -> None:
    rivals.check_offered("tma", {TMA: 0.1, PLAIN: 0.05})
    rivals.check_offered("cutlass", {CUTLASS: 0.1, "CUDATemplateCaller cutlass_1": math.inf})
    assert rivals.kinds("CUDATemplateCaller cutlass_1") == {"cutlass"}  # its name in older releases


def test_a_wrapped_kernel_counts_as_what_it_wraps() -> None:
    class CUTLASSTemplateCaller:
        name = "cutlass_gemm_3"

    class Wrapper:
        name = "cutlass_gemm_3"
        _wrapped = CUTLASSTemplateCaller()

    assert rivals.described(Wrapper()) == rivals.described(CUTLASSTemplateCaller()) == CUTLASS


@pytest.mark.parametrize(
    "kind, timed",
    [
        ("tma", {}),
        ("tma", {PLAIN: 0.1}),
        ("cutlass", {TMA: 0.1}),
        ("cutlass", {CUTLASS: math.inf, PLAIN: 0.1}),
    ],
)
def test_without_one_it_is_a_failure(kind: str, timed: dict[str, float]) -> None:
    with pytest.raises(rivals.SilentlyOffError, match=kind):
        rivals.check_offered(kind, timed)


def test_an_epilogue_in_a_kernel_of_its_own_is_a_failure() -> None:
    rivals.check_epilogue(["nvjet_hsh_128x256_64x4_1x2_h_bz_coopA_bias_TNT"])
    with pytest.raises(rivals.SilentlyOffError, match="of its own"):
        rivals.check_epilogue(
            ["nvjet_hsh_128x256", "void at::native::vectorized_elementwise_kernel<4, Gelu>"]
        )


def test_the_package_is_laid_out_as_inductor_wants_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))  # it remembers where CUTLASS was
    folder = rivals.cutlass_folder()
    assert (folder / "include" / "cutlass" / "version.h").is_file()
    assert (folder / "python" / "cutlass_library" / "generator.py").is_file()
    assert Path(torch._inductor.config.cutlass.cutlass_dir)  # the setting that is to name it exists
    rivals.cutlass_is_ready()


@pytest.mark.skipif(torch.cuda.is_available(), reason="the failure is that there is no GPU")
def test_no_tma_is_a_failure() -> None:
    with pytest.raises(rivals.SilentlyOffError, match="TMA"):
        rivals.tma_is_ready()


@pytest.mark.parametrize("prepare, w", [(rivals.cublaslt, RMSNORM[0]), (rivals.cublaslt, GRAPHS[0])])
def test_what_does_not_map_is_refused(prepare: rivals.Prepare, w: Workload) -> None:
    with pytest.raises(rivals.UnsuitableError, match="bias"):
        prepare(_small(w), make_inputs(_small(w), device="cpu"))


def test_quack_refuses_what_it_lacks_and_says_when_it_is_not_installed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def missing(name: str) -> None:
        raise ImportError(f"No module named {name!r}")

    monkeypatch.setattr(rivals.importlib, "import_module", missing)
    for w in map(_small, (POSTNORM[0], RMSNORM[0], GRAPHS[1])):
        with pytest.raises(rivals.UnsuitableError):
            rivals.quack(w, make_inputs(w, device="cpu"))
    for w in map(_small, (EPILOGUES[0], RMSNORM[4], GRAPHS[0])):
        with pytest.raises(rivals.NotInstalledError, match="quack-kernels"):
            rivals.quack(w, make_inputs(w, device="cpu"))


@pytest.mark.parametrize("w", [POSTNORM[0], *EPILOGUES[::2]], ids=lambda w: w.name)
def test_cublaslts_form_is_the_same_program(w: Workload, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, where torch has the same operators; the tail runs uncompiled."""
    from bench import verify

    monkeypatch.setattr(rivals, "kernels_of", lambda call: [])
    monkeypatch.setattr(torch, "compile", lambda function, **_: function)
    w = _small(w)
    inputs = make_inputs(w, device="cpu")
    reference = verify.Reference(w, inputs)
    (error,) = reference.errors(rivals.cublaslt(w, inputs)())
    (bound,) = reference.bounds(rounds_once=False)
    assert 0 < error <= bound
