"""Which kernels the record of build times takes, by what they are called."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("tabulate", reason="needs the bench extra")
pytest.importorskip("transformers", reason="needs the dev or the bench extra")

from bench import attention, compile_sources, compile_time, training
from bench.workloads import FAMILIES

GOLDEN = Path(__file__).parents[1] / "golden"


@pytest.mark.parametrize("name", compile_sources.families())
def test_every_family_has_kernels(name: str) -> None:
    found = compile_sources.kernels(name)
    assert len({source.name for source in found}) == len(found) > 0
    assert len(found) <= len(
        FAMILIES.get(name) or {"attention": attention.CASES, "middle-gradient": training.CASES}[name]
    )


def test_files_catalogues_and_models(tmp_path: Path) -> None:
    emitted = GOLDEN / "layernorm.cu"
    (file,) = compile_sources.kernels(str(emitted))
    assert emitted.read_text().startswith(f"// {file.name}\n")
    assert compile_sources.kernels("graph-networks")
    mine = tmp_path / "mine.toml"
    mine.write_text('[[kernel]]\nprogram = "layernorm"\nshapes = [[256, 256]]\nrows = ["many"]\n')
    assert len(compile_sources.kernels(str(mine))) == 1
    of_model = compile_sources.kernels("graph_network-inference")
    assert [compile_sources.goal_seconds(source.name) for source in of_model] == [12.0]


@pytest.mark.parametrize("name", sorted(path.name for path in GOLDEN.glob("*.cu")))
def test_kernels_of_layers_may_take_longer(name: str) -> None:
    (file,) = compile_sources.kernels(str(GOLDEN / name))
    assert compile_sources.goal_seconds(file.name) == (12.0 if name.startswith("chain_") else 10.0)


def test_a_name_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(ValueError, match=r"'softmaxes' is no \.cu, no \.toml, and none of postnorm, rmsnorm"):
        compile_sources.kernels("softmaxes")
    with pytest.raises(ValueError, match="cannot be read"):
        compile_sources.kernels(str(tmp_path / "none.cu"))
    with pytest.raises(ValueError, match=r"none\.toml"):
        compile_sources.kernels(str(tmp_path / "none.toml"))
    (tmp_path / "other.cu").write_text("__global__ void f() {}\n")
    with pytest.raises(ValueError, match="exported by COMFUSE_EXPORT"):
        compile_sources.kernels(str(tmp_path / "other.cu"))
    assert compile_time.main(["softmaxes", "--output", str(tmp_path)]) == 2
    assert "softmaxes" in capsys.readouterr().err
    assert not list(tmp_path.glob("*.jsonl"))


def test_the_first_kernel_of_a_name_or_every_one() -> None:
    assert len(compile_time.chosen(["b2b", "narrow"], every=False)) == 2
    every = compile_time.chosen(["b2b", "narrow"], every=True)
    assert [name for name, _ in every] == sorted(name for name, _ in every)
    assert len(every) > 2
