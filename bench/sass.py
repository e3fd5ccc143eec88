"""`python -m bench.sass FAMILY [NAME ...]`: what the epilogues of a family's kernels are made of.

Compiles each workload's kernel, without a GPU, and counts the machine instructions that a consumer warp
issues for a tile beside its products, by class, over the elements that each of its threads holds: issue
slots an element.  Waits count as if they were over at once.  Of a chain, what comes before a tile's last
product (the middle) and what is behind it, apart.  Needs nvdisasm: the toolkit's, or that of the package
nvidia-cuda-nvdisasm.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections import Counter, deque
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench import workloads
from bench.ahead import sources_of
from bench.providers import PROVIDERS
from comfuse.build.compile import cuda_flags, toolchain
from comfuse.build.toolkit import INCLUDE_DIR
from comfuse.errors import ToolchainError
from comfuse.generator.emit import KernelSource
from comfuse.generator.plan import KernelPlan
from comfuse.generator.plan.chain import ChainPlan
from comfuse.generator.plan.chain.kernel import BLOCK, tile_columns
from comfuse.generator.plan.kernel_plan import SCHEDULES

CLASSES = {
    "mufu": ("MUFU",),
    "float": ("FFMA", "FMUL", "FADD", "FMNMX", "FSEL", "FSET", "FCHK"),
    "convert": ("F2F", "F2FP", "F2I", "I2F", "HADD2", "HMUL2", "FRND"),
    "bits": ("PRMT", "LOP3", "SHF", "SEL", "SGXT", "BMSK"),
    "shared": ("LDS", "STS", "LDSM", "STSM"),
    "global": ("LDG", "STG", "LD", "ST", "ATOMG", "RED"),
    "integer": ("IMAD", "IADD3", "LEA", "VIADD", "ISETP", "IABS", "VIMNMX", "IMNMX", "FLO", "POPC"),
    "move": ("MOV", "CS2R", "S2R", "LDC", "ULDC", "R2UR", "S2UR"),
    "shuffle": ("SHFL",),
    "predicate": ("FSETP", "PLOP3", "P2R", "R2P", "VOTE"),
    "control": ("BRA", "BSSY", "BSYNC", "BREAK", "CALL", "WARPSYNC", "EXIT", "NOP", "NANOSLEEP"),
    "barrier": ("BAR", "SYNCS", "FENCE", "MEMBAR", "WARPGROUP", "DEPBAR", "ERRBAR", "CCTL"),
}  # fmt: skip
_CLASS_OF = {opcode: name for name, opcodes in CLASSES.items() for opcode in opcodes}

_LABEL = re.compile(r"^(\.L_[\w.]+):")
_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]+\*/\s+(?:(@!?U?P\w+)\s+)?([A-Z0-9]+)([^;]*);")
_TARGET = re.compile(r"`\((\.L_[\w.]+)\)")
_CONDITION = re.compile(r"\bU?P\d\b|\.DIV|\.CONV")  # of a branch, beside its predicate
_PRODUCT = "HGMMA"


class Code:
    """A kernel's instructions: opcodes, and for each the instructions that may come next."""

    def __init__(self, text: str) -> None:
        self.opcodes: list[str] = []
        labels: dict[str, int] = {}
        jumps: dict[int, str] = {}
        leaves: set[int] = set()  # does not go on to the next instruction
        for line in text.splitlines():
            if label := _LABEL.match(line):
                labels[label[1]] = len(self.opcodes)
            elif found := _INSTRUCTION.match(line):
                predicate, opcode, rest = found.groups()
                if opcode == "BRA" and (target := _TARGET.search(rest)):
                    jumps[len(self.opcodes)] = target[1]
                if opcode in ("BRA", "EXIT", "RET") and not (predicate or _CONDITION.search(rest)):
                    leaves.add(len(self.opcodes))
                self.opcodes.append(opcode)
        self.next = [
            ([] if i in leaves else [i + 1]) + ([labels[jumps[i]]] if i in jumps else [])
            for i in range(len(self.opcodes))
        ]

    @property
    def products(self) -> list[int]:
        return [i for i, opcode in enumerate(self.opcodes) if opcode == _PRODUCT]

    def epilogue(self) -> list[str]:
        """The shortest way from the end of the last loop over K back to the beginning of the first."""
        first, *_, last = self.products
        _, begin = min(self._around(first, first), key=_length)
        end, begin_of_last = min(self._around(last, last), key=_length)  # another one, where each has an A
        return self._way([n for n in self.next[end] if n != begin_of_last], begin)

    def of_chain(self) -> tuple[list[str], list[str]]:
        """The shortest ways from product to product of a tile, and from its last to the next tile's first.

        A loop over blocks counts once.
        """
        first, *_, last = products = self.products
        end, begin = max(self._around(first, last), key=_length)
        between = [opcode for i, n in pairwise(products) for opcode in self._way(self.next[i], n)]
        behind = self._way(self.next[last], end)
        return between, [*behind, self.opcodes[end], *self._way([begin], first)]

    def _around(self, first: int, last: int) -> list[tuple[int, int]]:
        """The ends and beginnings of the loops around these instructions and those between them."""
        return [
            (end, n) for end, follows in enumerate(self.next) for n in follows if n <= first <= last < end
        ]

    def _way(self, start: list[int], goal: int) -> list[str]:
        """The shortest, its goal left out.

        On it no wait spins, and what may be branched around (not: predicated) is left out.
        """
        came_from = dict.fromkeys(start, -1)
        queue = deque(start)
        while goal not in came_from:
            i = queue.popleft()
            for n in self.next[i] if i < len(self.opcodes) else ():
                if n not in came_from:
                    came_from[n] = i
                    queue.append(n)
        path, i = [], came_from[goal]
        while i >= 0:
            path.append(self.opcodes[i])
            i = came_from[i]
        return path[::-1]


def _length(loop: tuple[int, int]) -> int:
    end, begin = loop
    return end - begin


def disassemble(source: KernelSource, folder: Path) -> str:
    """Raises ToolchainError, and CalledProcessError with what nvcc said."""
    toolkit, cutlass = toolchain()
    file, cubin = folder / f"{source.name}.cu", folder / f"{source.name}.cubin"
    file.write_text(source.text)
    flags = [flag for flag in cuda_flags() if not flag.startswith("-Xptxas")]
    includes = [f"-I{INCLUDE_DIR}", f"-I{cutlass.include}"]
    subprocess.run([str(toolkit.nvcc), "-cubin", *flags, *includes, str(file), "-o", str(cubin)], check=True)
    command = [_nvdisasm(toolkit.home), "-c", str(cubin)]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _nvdisasm(home: Path) -> str:
    packages = importlib.util.find_spec("nvidia")
    folders = [home, *(Path(p) / "cu13" for p in (packages and packages.submodule_search_locations) or ())]
    path = os.pathsep.join([*(str(folder / "bin") for folder in folders), os.environ.get("PATH", "")])
    found = shutil.which("nvdisasm", path=path)
    if found is None:
        raise ToolchainError("nvdisasm", tuple(path.split(os.pathsep)), "`pip install nvidia-cuda-nvdisasm`")
    return found


@dataclass(frozen=True)
class Part:
    """Of a tile's work: its name, the elements that a thread has in it, the slots that were planned for each,
    and its instructions.
    """

    name: str
    elements: float
    planned: float
    opcodes: list[str]

    @property
    def slots(self) -> dict[str, float]:
        """An element, by class."""
        counts = Counter(_CLASS_OF.get(opcode.removeprefix("U"), "other") for opcode in self.opcodes)
        return {name: counts[name] / self.elements for name in (*CLASSES, "other") if counts[name]}


def profile(source: KernelSource, keep: Path | None = None) -> list[Part]:
    """The parts of a kernel's work for a tile; ``keep``: where to leave the whole disassembly."""
    with tempfile.TemporaryDirectory() as folder:
        text = disassemble(source, Path(folder))
    if keep:
        (keep / f"{source.name}.sass").write_text(text)
    plan, code = source.plan, Code(text)
    if isinstance(plan, KernelPlan):
        elements = plan.tile_m * plan.tile_n / (128 * SCHEDULES[plan.schedule].team_size)
        return [Part("epilogue", elements, plan.program.cost, code.epilogue())]
    assert isinstance(plan, ChainPlan), "a backward kernel of two factors has a KernelPlan"
    between, behind = code.of_chain()
    first, _, *further = plan.spec.links
    of_further = sum(-(-link.k // 16) for link in further)
    blocks = round((len(code.products) - of_further) / (-(-first.k // 16) + BLOCK // 16))
    held = blocks * BLOCK // 2 + sum(tile_columns(link.k) // 2 for link in further)
    return [
        Part("GEMMs and middle", held, plan.middle.cost, between),
        Part("behind", plan.tile_n // 2, plan.program.cost, behind),
    ]


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sass", description=__doc__)
    parser.add_argument("family", choices=workloads.FAMILIES)
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads of it, or shapes MxNxK")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leaves the disassembly there")
    options = parser.parse_intermixed_args()
    for w in workloads.select(options.family, options.names):
        for source in sources_of([PROVIDERS["comfuse"]], [w]):
            parts = profile(source, options.keep)
            print(f"{w.name}  {source.name}")
            for part in parts:
                slots = len(part.opcodes) / part.elements
                print(f"  {part.name}: {slots:.1f} slots an element; {part.planned:.1f} planned for")
                print("  " + "  ".join(f"{name} {n:.2f}" for name, n in part.slots.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
