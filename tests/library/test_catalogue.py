"""What catalogues say, and what is wrong with those that cannot be read."""

from __future__ import annotations

import itertools
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any, get_type_hints

import pytest
import torch
import torch.nn.functional as F

import comfuse
from comfuse.errors import CatalogueError
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec
from comfuse.generator.spec import DType, Major
from comfuse.library import builder, catalogue, catalogue_values, rows
from comfuse.library.signature import signature
from comfuse.ops import resolver

BF16, FP16 = DType.BF16, DType.FP16


def entries(**table: Any) -> list[catalogue.Entry]:
    return list(catalogue.parse("test", {"kernel": [table]}).entries)


def test_an_entry_is_a_program_with_its_arguments() -> None:
    (entry,) = entries(program="layernorm", shapes=[[1024, 512]], bias="same", residual="fp32", saved=True)
    assert entry.spec == catalog.layernorm(1024, 512, BF16, bias=BF16, residual=DType.FP32, saved=True)
    assert entry.rows is None
    (entry,) = entries(
        program="gated", shapes=[[64, 128]], dtype="fp16", layouts={"b": "mn"}, rows=[128, "many"]
    )
    assert entry.spec == catalog.gated(64, 128, FP16, layouts=catalog.Layouts(b=Major.MN))
    assert entry.rows == (128, None)


def test_lists_are_several_entries() -> None:
    made = entries(
        program="linear", shapes=[[64, 128], [128, 64]], dtype=["bf16", "fp16"], activation=["none", "relu"]
    )
    assert len({entry.spec for entry in made}) == 8
    assert len({entry.label for entry in made}) == 8
    assert made[0].spec == catalog.linear(64, 128, BF16)


def test_a_spec_as_text() -> None:
    spec = catalog.softmax(256, 64, BF16)
    (entry,) = entries(spec=spec.text())
    assert entry.spec == spec


def test_a_constant_is_what_tracing_makes_of_it() -> None:
    """A traced function's names, and the order of its nodes, are its own."""

    def block(x, w, bias, residual, weight, shift):
        h = F.linear(x, w, bias) + residual
        return F.layer_norm(h, (h.shape[-1],), weight, shift)

    sizes = [(16, 64), (256, 64), (256,), (16, 256), (256,), (256,)]
    traced = comfuse.trace(block, *(torch.empty(s, dtype=torch.bfloat16, device="meta") for s in sizes))
    vectors = dict.fromkeys(("bias", "residual", "ln_weight", "ln_bias"), "same")
    program = {"program": "layernorm", "shapes": [[256, 64]], **vectors}
    (entry,) = entries(**program, constants={"eps": 1e-5})
    assert entry.spec != traced
    assert signature(entry.spec) == signature(traced)
    (other,) = entries(**program, constants={"eps": 1e-6})
    (at_run_time,) = entries(**program)
    (transposed,) = entries(**program, constants={"eps": 1e-5}, layouts={"b": "mn"})
    different = [signature(e.spec) for e in (entry, other, at_run_time, transposed)]
    assert len(set(different)) == 4


def test_chains() -> None:
    """Three sizes; a constant is that of the link which has it; as text too."""
    table = {"program": "mlp", "shapes": [[64, 128, 512]], "b0": "same", "norm": "layernorm"}
    (entry,) = entries(**table)
    assert entry.spec == catalog.mlp(64, 128, 512, BF16, b0=BF16, norm="layernorm")
    assert entry.label == "mlp 64x128x512 bf16 b0=same norm=layernorm"
    (fixed,) = entries(**table, constants={"eps": 1e-6})
    (as_text,) = entries(spec=entry.spec.text(), constants={"eps": 1e-6})
    assert as_text.spec == fixed.spec
    assert as_text.label == "chain 64x128x512"
    assert not [o for link in fixed.spec.links for o in link.operands if o.name == "eps"]
    assert signature(fixed.spec) != signature(entry.spec)
    assert signature(entry.spec) not in {signature(link) for link in entry.spec.links}
    first, last = entry.spec.links
    renamed = replace(first, operands=tuple(replace(o, name=f"x{o.name}") for o in first.operands))
    assert signature(ChainSpec((renamed, last))) == signature(entry.spec)


def test_programs_as_a_file() -> None:
    """Each once, with its classes of rows; reading the file restores what was meant."""
    linear, chain = catalog.linear(64, 64, BF16).text(), catalog.b2b(64, 64, 64, BF16).text()
    found = [(linear, 100), (linear, 3000), (chain, 5), (chain, None)]
    data = tomllib.loads(catalogue.text_of(found, "h100:114", 'what "it" is'))
    read = catalogue.parse("mine", data)
    assert (read.gpu, read.description) == ("h100:114", 'what "it" is')
    assert [(entry.spec.text(), entry.rows) for entry in read.entries] == [
        (linear, (128, None)),
        (chain, None),
    ]


def test_operands_in_another_order() -> None:
    """As a compiled OLMo 2 block has them: the weight, times the norm, and then the residual."""

    def block(x, w, weight, residual):
        return residual + weight * F.rms_norm(F.linear(x, w), (w.shape[0],), None, 1e-6)

    sizes = [(16, 64), (256, 64), (256,), (16, 256)]
    traced = comfuse.trace(block, *(torch.empty(s, dtype=torch.bfloat16, device="meta") for s in sizes))
    table = {
        "program": "rmsnorm", "shapes": [[256, 64]], "residual": "same", "rms_weight": "same",
        "residual_position": "after", "constants": {"eps": 1e-6, "weight_offset": 0.0},
    }  # fmt: skip
    (entry,) = entries(**table, operands=["rms_weight", "residual"])
    assert [operand.name for operand in entry.spec.operands] == ["rms_weight", "residual"]
    assert signature(entry.spec) == signature(traced)
    assert signature(entries(**table)[0].spec) != signature(traced)


def test_order_of_operands_and_outputs_is_part_of_a_signature() -> None:
    swapped = catalog.add_rmsnorm(256, 64, BF16)
    other = replace(swapped, outputs=swapped.outputs[::-1])
    assert signature(swapped) != signature(other)


LINEAR = {"program": "linear", "shapes": [[64, 64]]}
MLP = {"program": "mlp", "shapes": [[64, 64, 64]]}
NORM = {"program": "layernorm", "shapes": [[64, 64]]}


@pytest.mark.parametrize(
    "table, said",
    [
        (
            {"program": "linaer", "shapes": [[1, 8]]},
            "program is 'linaer'; allowed: add_rmsnorm, attention, b2b, colsum",
        ),
        ({"program": "linear"}, "shapes is missing; allowed: lists of sizes, such as [[1024, 64]]"),
        ({"program": ["linear"], "shapes": [[64, 64]]}, "program is ['linear']; allowed: "),
        ({"program": "linear", "shapes": [64, 64]}, "shapes: 64; allowed: lists of sizes"),
        (
            {"program": "linear", "shapes": [["64", 64]]},
            "shapes: ['64', 64]; allowed: whole numbers, at least",
        ),
        ({"program": "linear", "shapes": [[-64, 64]]}, "shapes: [-64, 64]; allowed: whole numbers, at least"),
        ({"program": "linear", "shapes": [[64, 64]], "dtype": "fp32"}, "A and B must be bf16 or fp16, got"),
        ({"program": "linear", "shapes": []}, "shapes is []; allowed: lists of sizes"),
        ({"program": "linear", "shapes": [[64, 64]], "dtype": []}, "dtype is an empty list"),
        ({"program": "linear", "shapes": [[64, 64]], "bias": "smae"}, "bias is 'smae'; allowed: same, bf16"),
        ({"program": "linear", "shapes": [[64, 64]], "bias": True}, "bias is True; allowed: same, bf16"),
        ({"program": "linear", "shapes": [[64, 64]], "saved": "yes"}, "saved is 'yes'; allowed: True, False"),
        (
            {"program": "rmsnorm", "shapes": [[64, 64]], "residual_position": "behind"},
            "residual_position is 'behind'; allowed: before, after",
        ),
        ({"program": "linear", "shapes": [[64, 64]], "layouts": ["b"]}, "layouts is ['b']; allowed: a table"),
        ({"program": "linear", "shapes": [[64, 64]], "constants": 1}, "constants is 1; allowed: a table"),
        ({"program": "linear", "shapes": [[64, 64]], "rows": []}, "rows is an empty list"),
        ({"program": "linear", "shapes": [[64, 64]], "biass": "same"}, "unknown biass; allowed: program"),
        ({"program": "linear", "shapes": [[64, 64]], "dtype": "float"}, "dtype is 'float'; allowed: bf16"),
        ({"program": "linear", "shapes": [[64, 64]], "activation": "reul"}, "got 'reul', allowed: "),
        (
            {"program": "linear", "shapes": [[64, 64]], "rows": [100]},
            "rows is 100; allowed: 128, 512, ",
        ),
        ({**LINEAR, "rows": [[1]]}, "rows is [1]; allowed: 128, 512, 2048, many"),
        ({**LINEAR, "rows": True}, "rows is True; allowed: 128"),
        ({**LINEAR, "bias": ["same", ["x"]]}, "bias is ['x']; allowed: same, bf16"),
        ({**LINEAR, "dtype": [["bf16"]]}, "dtype is ['bf16']; allowed: bf16, fp16"),
        ({**LINEAR, "saved": 1}, "saved is 1; allowed: True, False"),
        ({**LINEAR, "activation": 3}, "activation is 3; allowed: a string"),
        ({**LINEAR, "activation": [["relu"]]}, "activation is ['relu']; allowed: a string"),
        ({**LINEAR, "operands": 3}, "operands is 3; allowed: a list of names"),
        ({**LINEAR, "operands": "bias"}, "operands is 'bias'; allowed: a list of names"),
        ({**LINEAR, "layouts": {"strided": 3}}, "layouts: strided is 3; allowed: a list of names"),
        ({**LINEAR, "layouts": {"a": "x"}}, "layouts: a is 'x'; allowed: k, mn"),
        ({**LINEAR, "layouts": {"batched": "no"}}, "layouts: batched is 'no'; allowed: True, False"),
        ({**LINEAR, "layouts": {"c": "k"}}, "unknown c; allowed: a, b, batched, strided"),
        ({"spec": 3}, "spec is 3; allowed: a string"),
        (
            {"program": "mlp", "shapes": [[64, 64, 64]], "strided": 3},
            "strided is 3; allowed: a list of names",
        ),
        ({**NORM, "constants": {"eps": "x"}}, "constants: eps is 'x'; allowed: a number"),
        ({**NORM, "constants": {"eps": True}}, "constants: eps is True; allowed: a number"),
        ({"program": "linear", "shapes": [[64, 64]], "constants": {"eps": 1}}, "'eps' is no scalar"),
        ({"program": "linear", "shapes": [[64, 64]], "operands": ["x"]}, "operands: ['x']; allowed: []"),
        ({"program": "linear", "shapes": [[64]]}, "shapes: [64] has 1 sizes; allowed: 2"),
        ({"program": "mlp", "shapes": [[64, 64]]}, "shapes: [64, 64] has 2 sizes; allowed: 3"),
        ({"program": "mlp", "shapes": [[8, 8, 8]], "layouts": {}}, "unknown layouts; allowed: program"),
        ({"program": "b2b", "shapes": [[8, 8, 8]], "constants": {"eps": 1}}, "eps: no scalars of the chain"),
        ({"spec": "{}"}, "not the text of a FusedSpec"),
    ],
)
def test_what_is_wrong_is_said(table: dict[str, Any], said: str) -> None:
    with pytest.raises(CatalogueError, match="catalogue test: kernel 1: ") as caught:
        entries(**table)
    assert said in str(caught.value)


@pytest.mark.parametrize("kernel", [3, ["linear"], {"program": "linear"}, [[]]])
def test_kernels_that_are_no_tables(kernel: Any) -> None:
    with pytest.raises(
        CatalogueError, match=r"catalogue test: kernel is .*; allowed: tables, \[\[kernel\]\]"
    ):
        catalogue.parse("test", {"kernel": kernel})


def test_what_is_allowed_is_listed_once() -> None:
    with pytest.raises(CatalogueError) as caught:
        entries(**LINEAR, biass="same")
    allowed = str(caught.value).partition("allowed: ")[2].split(", ")
    assert "layouts" in allowed
    assert len(allowed) == len(set(allowed))


def test_an_argument_that_is_a_list() -> None:
    table = {**MLP, "residual": "same"}
    (entry,) = entries(**table, strided=["residual"])
    assert entry.spec == catalog.mlp(64, 64, 64, BF16, residual=BF16, strided=("residual",))
    assert len(entries(**table, strided=[["residual"], ["y"]])) == 2


def test_sizes_are_those_of_the_function() -> None:
    (entry,) = entries(program="middle_gradient", shapes=[[128, 64, 32]], b0="same", activation="relu")
    assert entry.spec == catalog.middle_gradient(128, 64, 32, BF16, b0=BF16, activation="relu")


@pytest.mark.parametrize("name", catalogue._PROGRAMS)
def test_all_arguments_have_types_that_a_catalogue_knows(name: str) -> None:
    hints = get_type_hints(getattr(catalog, name))
    sizes = list(hints)[: catalogue._PROGRAMS[name]]
    for key in set(hints).difference(sizes, ("dtype", "layouts", "return")):
        with pytest.raises(ValueError, match=f"{key} is .*; allowed: "):
            catalogue_values.argument(key, object(), BF16, hints[key])


def test_an_argument_that_is_a_layout() -> None:
    (entry,) = entries(program="attention", shapes=[[64, 64, 256]], v_major="mn")
    assert entry.spec == catalog.attention(64, 64, 256, BF16, v_major=Major.MN)


def test_files(tmp_path: Path) -> None:
    path = tmp_path / "mine.toml"
    path.write_text('gpu = "h100:114"\n[[kernel]]\nprogram = "linear"\nshapes = [[64, 64]]\n')
    read = catalogue.read(str(path))
    assert (read.name, read.gpu, len(read.entries)) == ("mine", "h100:114", 1)
    path.write_text("[[kernel\n")
    with pytest.raises(CatalogueError, match="is not TOML"):
        catalogue.read(str(path))
    path.write_text('gpu = "a100"\n')
    with pytest.raises(CatalogueError, match="unknown GPU 'a100'"):
        catalogue.read(str(path))
    path.write_text("kernels = []\n")
    with pytest.raises(CatalogueError, match="has kernels; allowed: description, gpu, kernel"):
        catalogue.read(str(path))
    with pytest.raises(CatalogueError, match="none of graph-networks, llm-blocks, postnorm, recsys"):
        catalogue.read("nothing")


@pytest.mark.parametrize("name", catalogue.shipped())
def test_shipped_catalogues_can_be_planned(name: str) -> None:
    read = catalogue.read(name)
    assert read.description
    wanted, refused = builder._plans([read])
    assert not refused
    assert {w.entry for w in wanted} == set(read.entries)  # none of them twice


def test_classes_of_rows_are_the_resolver_s() -> None:
    spec = catalog.linear(64, 64, BF16)
    hints = rows.hints(spec, "h200")
    classes = rows.classes_on(spec, "h200")
    ranges = [rows.served(hint, classes) for hint in hints]
    assert ranges[0][0] == 1
    assert ranges[-1][1] == rows.MAX_ROWS
    assert all(high + 1 == low for (_, high), (low, _) in itertools.pairwise(ranges))
    assert [resolver.m_class(high) for _, high in ranges] == list(hints)
