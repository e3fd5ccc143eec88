"""KernelPlan -> KernelSource: the text of one .cu, types and constants only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import jinja2

from comfuse.generator.emit import layout, names
from comfuse.generator.emit.declarations import Declarations, declare
from comfuse.generator.emit.readable import describe
from comfuse.generator.plan.kernel_plan import SCHEDULES, KernelPlan
from comfuse.generator.spec import FusedSpec, Major

_PLACEHOLDER = "cf_kernel"  # stands for the name in the text whose digest is part of the name

_TEMPLATE = "cf::sm90::FusedGemm"
_MAJORS = {Major.K: "cf::KMajor", Major.MN: "cf::MNMajor"}
_DEFAULT_TEAMS = {"Pingpong": 2, "Cooperative": 1}  # of the schedules' templates, in program.hpp


@dataclass(frozen=True)
class KernelSource:
    """One translation unit.  ``name`` is the kernel's stem: of its file, its symbols, in profiles."""

    name: str
    text: str
    plan: KernelPlan


def emit(plan: KernelPlan) -> KernelSource:
    """The source of a planned kernel; equal plans give equal bytes."""
    name = names.stem(plan, _render(plan, _PLACEHOLDER))
    return KernelSource(name, _render(plan, name), plan)


def _render(plan: KernelPlan, name: str) -> str:
    declarations = declare(plan.program)
    return _template().render(
        name=name,
        description=[line for text in describe(plan.spec) for line in layout.comment(text)],
        operands=declarations.operands,
        constants=declarations.constants,
        program=declarations.program,
        kernel=_kernel(plan, declarations),
    )


def _kernel(plan: KernelPlan, declarations: Declarations) -> list[str]:
    parts = [section.name for section in declarations.program]
    lines: list[str] = []
    lists = []
    for name, items in (("Operands", declarations.tensor_operands), ("Program", parts)):
        text = f"cf::{name}<{', '.join(items)}>"
        if not layout.fits_an_argument(text, _TEMPLATE):
            lines += layout.declaration(name, f"cf::{name}", items)
            text = name
        lists.append(text)
    return lines + layout.declaration(
        "Kernel",
        _TEMPLATE,
        [
            _gemm(plan.spec),
            _schedule(plan),
            f"cf::Cluster<1, {plan.cluster_n}>",
            f"cf::Stages<{plan.stages}>",
            f"cf::TileSlots<{plan.tile_slots}>",
            *lists,
        ],
    )


def _gemm(spec: FusedSpec) -> str:
    """With the template's trailing defaults left out."""
    optional = [
        (f"/*Products=*/{spec.products}" if spec.products > 1 else "1", spec.products > 1),
        (_MAJORS[spec.a_major], spec.a_major is not Major.K),
        (_MAJORS[spec.b_major], spec.b_major is not Major.K),
        (f"/*Batched=*/{str(spec.batched).lower()}", spec.batched),
    ]
    while optional and not optional[-1][1]:
        optional.pop()
    arguments = [f"cf::{spec.dtype.value}", f"/*N=*/{spec.n}", *(text for text, _ in optional)]
    return f"cf::Gemm<{', '.join(arguments)}>"


def _schedule(plan: KernelPlan) -> str:
    schedule = SCHEDULES[plan.schedule]
    numbers = [plan.tile_m, plan.tile_n, plan.tile_k]
    if schedule.teams != _DEFAULT_TEAMS[schedule.template]:
        numbers.append(schedule.teams)
    return f"cf::{schedule.template}<{', '.join(map(str, numbers))}>"


@lru_cache(maxsize=1)
def _template() -> jinja2.Template:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    return environment.get_template("kernel.cu.jinja")
