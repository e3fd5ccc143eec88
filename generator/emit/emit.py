"""KernelPlan -> KernelSource: the text of one .cu, types and constants only."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import lru_cache
from pathlib import Path

import jinja2

from comfuse.generator.emit import layout, names
from comfuse.generator.emit.declarations import Declarations, declare
from comfuse.generator.emit.readable import describe
from comfuse.generator.plan.chain import ChainPlan
from comfuse.generator.plan.kernel_plan import SCHEDULES, KernelPlan
from comfuse.generator.spec import FusedSpec, Major

PLACEHOLDER = "cf_kernel"  # stands for the name in the text whose digest is part of the name

_HEADERS = {"FusedGemm": "fused_gemm.hpp", "FusedChain": "fused_chain.hpp"}
_MAJORS = {Major.K: "cf::KMajor", Major.MN: "cf::MNMajor"}
_BATCHED = "/*Batched=*/true"
_DEFAULT_TEAMS = {"Pingpong": 2, "Cooperative": 1}  # of the schedules' templates, in program.hpp


@dataclass(frozen=True)
class KernelSource:
    """One translation unit.  ``name`` is the kernel's stem: of its file, its symbols, in profiles."""

    name: str
    text: str
    plan: KernelPlan | ChainPlan


def emit(plan: KernelPlan) -> KernelSource:
    """The source of a planned kernel; equal plans give equal bytes."""
    arguments = [
        gemm(plan.spec) if plan.spec.second is None else "Gemms",
        _schedule(plan),
        f"cf::Cluster<{plan.cluster_m}, {plan.cluster_n}>",
        f"cf::Stages<{plan.stages}>",
        f"cf::TileSlots<{plan.tile_slots}>",
    ]
    gemms = _two_gemms(plan.spec)
    text = Text("FusedGemm", describe(plan.spec), declare(plan.program), arguments, gemms=gemms)
    name = names.stem(plan, text.render(PLACEHOLDER))
    return KernelSource(name, text.render(name), plan)


@dataclass(frozen=True)
class Text:
    """What a translation unit says, but for its name.

    Attributes:
        template: the kernel's C++ template, in the header of the same name.
        description: lines for people.
        declarations: of the program.
        arguments: of the template, those before the operands and the program.
        gemms: what they name, declared before the kernel.
        further: of a chain, its links behind the second.
    """

    template: str
    description: list[str]
    declarations: Declarations
    arguments: list[str]
    gemms: list[str] = field(default_factory=list)
    further: list[str] = field(default_factory=list)

    def render(self, name: str) -> str:
        d = self.declarations
        return _template().render(
            name=name,
            header=_HEADERS[self.template],
            description=[line for text in self.description for line in layout.comment(text)],
            operands=d.operands,
            constants=d.constants,
            vectors=d.vectors,
            middle=d.middle,
            program=d.program,
            kernel=self._kernel(),
        )

    def _kernel(self) -> list[str]:
        template = f"cf::sm90::{self.template}"
        parts = [section.name for section in self.declarations.program]
        lines = list(self.gemms)
        lists = []
        for name, items in (("Operands", self.declarations.tensor_operands), ("Program", parts)):
            text = f"cf::{name}<{', '.join(items)}>"
            if not layout.fits_an_argument(text, template):
                lines += layout.declaration(name, f"cf::{name}", items)
                text = name
            lists.append(text)
        if self.declarations.vectors:
            lists.insert(1, "Vectors")
        handed = ["Handed"] * any(section.name == "Handed" for section in self.declarations.middle)
        if self.further:
            lines += layout.declaration("Further", "cf::Further", self.further)
            handed = ["cf::NothingHanded", "Further"]
        return lines + layout.declaration("Kernel", template, [*self.arguments, *lists, *handed])


def gemm(spec: FusedSpec) -> str:
    """``cf::Gemm`` of a spec, with the template's trailing defaults left out."""
    optional = [
        (f"/*Products=*/{spec.products}" if spec.products > 1 else "1", spec.products > 1),
        (_MAJORS[spec.a_major], spec.a_major is not Major.K),
        (_MAJORS[spec.b_major], spec.b_major is not Major.K),
        (_BATCHED, spec.batched),
    ]
    while optional and not optional[-1][1]:
        optional.pop()
    arguments = [*_sizes(spec), *(text for text, _ in optional)]
    return f"cf::Gemm<{', '.join(arguments)}>"


def _two_gemms(spec: FusedSpec) -> list[str]:
    """The declaration of ``Gemms``, where the second product has an A of its own."""
    if spec.second is None:
        return []
    majors = [f"cf::Majors<{_MAJORS[pair.a_major]}, {_MAJORS[pair.b_major]}>" for pair in spec.pairs]
    batched = [_BATCHED] if spec.batched else []
    return layout.declaration("Gemms", "cf::TwoGemms", [*_sizes(spec), *majors, *batched])


def _sizes(spec: FusedSpec) -> list[str]:
    return [f"cf::{spec.dtype.value}", f"/*N=*/{spec.n}"]


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
