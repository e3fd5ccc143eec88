"""The table by which csrc/binding/serve.cpp serves a process without Python: schemas, programs, kernels."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from comfuse.build.files import write_whole
from comfuse.errors import CacheError
from comfuse.library.manifest import Manifest
from comfuse.library.signature import signature
from comfuse.ops import programs, schema
from comfuse.ops.facts import Slot, facts

NAME = "table.txt"


def write(folder: Path, texts: Iterable[str], made: Manifest) -> None:
    """Puts the table of some programs into the library in ``folder``, whose manifest is ``made``.

    Without any, the table that is there is removed.

    Raises:
        CacheError: it cannot be written.
    """
    texts = dict.fromkeys(texts)
    lines = ["comfuse 1", *(f"schema {name}{arguments}" for name, arguments in schema.schemas().items())]
    for text in texts:
        lines += _program(text, made)
    try:
        if texts:
            write_whole(folder / NAME, "\n".join(lines) + "\n")
        else:
            (folder / NAME).unlink(missing_ok=True)
    except OSError as e:
        raise CacheError(f"cannot write the library {folder}: {e}") from e


def _program(text: str, made: Manifest) -> Iterator[str]:
    program = programs.parse(text)
    f = facts(program)
    yield f"program {text}"
    yield f"facts {f.group} {f.batched} {f.scalar_count}"
    yield from _slots("a", [f.a])
    yield from _slots("b", f.b[: f.factor_count])
    yield from _slots("operand", f.operands[: f.operand_count])
    yield from _slots("output", f.outputs[: f.output_count])
    yield "end"
    for kernel in made.by_signature.get(signature(program.spec), ()):
        yield f"kernel {kernel.rows[0]} {kernel.rows[1]} {kernel.name} {kernel.file}"


def _slots(word: str, slots: Iterable[Slot]) -> Iterator[str]:
    for s in slots:
        numbers = (s.n, s.k, s.heads, s.place, s.space, s.dtype, s.strided, s.whole_rows, s.major)
        yield f"{word} {' '.join(map(str, numbers))} {s.name.decode()}\t{s.allowed.decode()}\t"
