"""`python -m bench.sass FAMILY [NAME ...]`: what the epilogues of a family's kernels are made of.

Compiles each workload's kernel, without a GPU, and counts the machine instructions that a consumer warp
issues for a tile beside its products, by class, over the elements that each of its threads holds: issue
slots an element.  Waits count as if they were over at once.  Needs nvdisasm: the toolkit's, or that of the
package nvidia-cuda-nvdisasm.
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
from pathlib import Path

from bench import workloads
from bench.ahead import sources_of
from bench.providers import PROVIDERS
from comfuse.build.compile import cuda_flags, toolchain
from comfuse.build.toolkit import INCLUDE_DIR
from comfuse.errors import ToolchainError
from comfuse.generator.emit import KernelSource
from comfuse.generator.plan import KernelPlan
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

    def _loop(self, i: int) -> tuple[int, int]:
        """The end and the beginning of the innermost loop around an instruction."""
        around = [(end, n) for end, follows in enumerate(self.next) for n in follows if n <= i < end]
        return min(around, key=lambda edge: edge[0] - edge[1])

    def epilogue(self) -> list[str]:
        """The shortest way from the end of the last loop over K back to the beginning of the first.

        On it no wait spins, and what may be branched around (not: predicated) is left out.
        """
        products = [i for i, opcode in enumerate(self.opcodes) if opcode == _PRODUCT]
        _, begin = self._loop(products[0])
        end, begin_of_last = self._loop(products[-1])  # another one, where each product has an A of its own
        start = [n for n in self.next[end] if n != begin_of_last]
        came_from = dict.fromkeys(start, -1)
        queue = deque(start)
        while begin not in came_from:
            i = queue.popleft()
            for n in self.next[i] if i < len(self.opcodes) else ():
                if n not in came_from:
                    came_from[n] = i
                    queue.append(n)
        path, i = [], came_from[begin]
        while i >= 0:
            path.append(self.opcodes[i])
            i = came_from[i]
        return path[::-1]


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


def profile(source: KernelSource, keep: Path | None = None) -> dict[str, float]:
    """Issue slots an element, by class; ``keep``: where to leave the whole disassembly."""
    with tempfile.TemporaryDirectory() as folder:
        text = disassemble(source, Path(folder))
    if keep:
        (keep / f"{source.name}.sass").write_text(text)
    plan = source.plan
    assert isinstance(plan, KernelPlan), "chains have no epilogue of their own"
    elements = plan.tile_m * plan.tile_n / (128 * SCHEDULES[plan.schedule].team_size)
    counts = Counter(_CLASS_OF.get(opcode.removeprefix("U"), "other") for opcode in Code(text).epilogue())
    return {name: counts[name] / elements for name in (*CLASSES, "other") if counts[name]}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.sass", description=__doc__)
    parser.add_argument("family", choices=[f for f in workloads.FAMILIES if f != "b2b"])
    parser.add_argument("names", nargs="*", metavar="NAME", help="workloads of it, or shapes MxNxK")
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="leaves the disassembly there")
    options = parser.parse_intermixed_args()
    for w in workloads.select(options.family, options.names):
        for source in sources_of([PROVIDERS["comfuse"]], [w]):
            slots = profile(source, options.keep)
            print(f"{w.name}  {source.name}")
            print(f"  {sum(slots.values()):.1f} slots an element; {source.plan.program.cost:.1f} planned for")
            print("  " + "  ".join(f"{name} {n:.2f}" for name, n in slots.items()), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
