"""Lists of programs to build ahead of time, as TOML.

A catalogue is a table of settings and a list of entries::

    description = "what it is for"
    gpu = "h200"                     # whom the kernels are planned for; h200 if not given

    [[kernel]]
    program = "layernorm"            # a function of comfuse.generator.catalog
    shapes = [[1024, 1024], [1024, 4096]]   # its sizes: N and K; of two products back to back N, K and H
    dtype = ["bf16", "fp16"]         # of the factors; bf16 if not given
    bias = "same"                    # any argument of that function; "same" is the dtype of the factors
    layouts = { b = "mn" }           # a field of Layouts
    constants = { eps = 1e-5 }       # numbers that are known ahead, as in a traced function
    operands = ["residual", "bias"]  # their order, where it is not that of the arguments
    rows = [128, "many"]             # classes of numbers of rows; all if not given

    [[kernel]]
    spec = '{"version":2,...}'       # any program, as comfuse.trace(...).text() prints it

A list for an argument other than ``shapes`` stands for several entries, one for each of its values; for an
argument that is itself a list of names (``strided``), a list of such lists does.
"""

from __future__ import annotations

import inspect
import itertools
import json
import tomllib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_type_hints

from comfuse.errors import CatalogueError, SpecError
from comfuse.generator import catalog
from comfuse.generator.chain import ChainSpec, parse_program
from comfuse.generator.plan import gpus
from comfuse.generator.spec import FusedSpec, Space
from comfuse.library import catalogue_values as values
from comfuse.library import package
from comfuse.library.package import Package
from comfuse.library.rows import M_CLASSES, classes_on, hints, m_class
from comfuse.library.signature import signature

SHIPPED = Path(__file__).resolve().parents[1] / "catalogues"
# By name, and how many sizes each takes before the dtype of the factors.
_PROGRAMS = {
    name: list(signed.parameters).index("dtype")
    for name in catalog.__all__
    if inspect.isfunction(function := getattr(catalog, name))
    and (signed := inspect.signature(function)).return_annotation in ("FusedSpec", "ChainSpec")
}
_RESERVED = ("program", "spec", "shapes", "dtype", "layouts", "constants", "operands", "rows")


@dataclass(frozen=True)
class Entry:
    """One program of a catalogue.

    Attributes:
        label: how messages call it.
        spec: what is computed.
        rows: the classes of numbers of rows that it is built for, by their upper bounds, None for many;
            all that it has if this is None.
    """

    label: str
    spec: FusedSpec | ChainSpec
    rows: tuple[int | None, ...] | None = None

    def hints(self, gpu: str) -> list[int | None]:
        """The classes of ``rows`` that the program has on a GPU."""
        known = hints(self.spec, gpu)
        return [hint for hint in (known if self.rows is None else self.rows) if hint in known]


@dataclass(frozen=True)
class Catalogue:
    """A list of programs, and the GPU that their kernels are planned for."""

    name: str
    description: str
    gpu: str
    entries: tuple[Entry, ...]


def shipped() -> tuple[str, ...]:
    """The names of the catalogues that come with ComFuse."""
    return tuple(sorted(path.stem for path in SHIPPED.glob("*.toml")))


def is_named(which: str) -> bool:
    """Whether this is the name of a catalogue: of a TOML file, or a shipped one's."""
    return which.endswith(".toml") or which in shipped()


def read(which: str) -> Catalogue:
    """The catalogue of a file, or the shipped one of this name; of a package of AOTInductor, what it needs.

    Raises:
        CatalogueError: there is none, or it cannot be read; says where and what is allowed.
        LoadError: the package cannot be read.
    """
    path = SHIPPED / f"{which}.toml" if which in shipped() else Path(which)
    if path.suffix == package.SUFFIX and path.is_file():
        return of_package(package.read(path))
    try:
        data = tomllib.loads(path.read_text())
    except OSError as e:
        raise CatalogueError(
            which, f"is no file that can be read ({e}), and none of {', '.join(shipped())}"
        ) from None
    except ValueError as e:
        raise CatalogueError(which, f"is not TOML: {e}") from None
    return parse(path.stem, data)


def of_package(made: Package) -> Catalogue:
    """The kernels that a package needs.  Raises CatalogueError if it needs none."""
    entries = tuple(entry_of(text, rows, made.gpu) for text, rows in made.programs.items())
    if not entries:
        raise CatalogueError(
            str(made.path), "calls no kernel: compile it with inductor_configs=comfuse.options()"
        )
    return Catalogue(made.path.stem, "", made.gpu, entries)


def text_of(programs: Iterable[tuple[str, int | None]], gpu: str, description: str = "") -> str:
    """A catalogue file of programs, each with a number of rows that it runs with, None: any number."""
    numbers: dict[str, list[int | None]] = {}
    for text, number in programs:
        numbers.setdefault(text, []).append(number)
    lines = [f"description = {json.dumps(description)}", f"gpu = {json.dumps(gpu)}"]
    for text, found in numbers.items():
        lines += ["", "[[kernel]]", f"spec = {json.dumps(text)}"]  # a string of JSON is one of TOML
        entry = entry_of(text, [] if None in found else [n for n in found if n is not None], gpu)
        # Classes of a program's own cannot be named in a catalogue: it gets all of them.
        if entry.rows is not None and classes_on(entry.spec, gpu) == M_CLASSES:
            lines.append(
                f"rows = {json.dumps([values.MANY if hint is None else hint for hint in entry.rows])}"
            )
    return "\n".join(lines) + "\n"


def entry_of(text: str, rows: Sequence[int], gpu: str) -> Entry:
    """An entry for a program that runs with these numbers of rows, any if there are none."""
    program = parse_program(text)
    classes = classes_on(program, gpu)
    served = dict.fromkeys(m_class(number, classes) for number in rows)
    return Entry(label_of(program), program, tuple(served) or None)


def parse(name: str, data: dict[str, Any]) -> Catalogue:
    """The catalogue in a parsed TOML file.  Raises CatalogueError."""
    unknown = set(data) - {"description", "gpu", "kernel"}
    if unknown:
        raise CatalogueError(name, f"has {', '.join(sorted(unknown))}; allowed: description, gpu, kernel")
    gpu = str(data.get("gpu", "h200"))
    try:
        gpus.find(gpu)
    except ValueError as e:
        raise CatalogueError(name, str(e)) from None
    entries: list[Entry] = []
    tables = data.get("kernel", [])
    if not (isinstance(tables, list) and all(isinstance(table, dict) for table in tables)):
        raise CatalogueError(name, f"kernel is {tables!r}; allowed: tables, [[kernel]]")
    for number, table in enumerate(tables, 1):
        try:
            for entry in _entries(table):
                signature(entry.spec)  # raises for what is no program
                entries.append(entry)
        except (SpecError, ValueError, TypeError, KeyError) as e:
            raise CatalogueError(name, f"kernel {number}: {e}") from e
    if not entries:
        raise CatalogueError(name, "has no [[kernel]]")
    return Catalogue(name, str(data.get("description", "")), gpu, tuple(entries))


def _entries(table: dict[str, Any]) -> Iterator[Entry]:
    rows = values.rows(table.get("rows"))
    constants = values.constants(table.get("constants", {}))
    if "spec" in table:
        values.only(table, ("spec", "constants", "rows"))
        program = parse_program(values.text("spec", table["spec"]))
        yield Entry(label_of(program), _bound(program, constants), rows)
        return
    name = table.get("program")
    if not isinstance(name, str) or name not in _PROGRAMS:
        raise ValueError(f"program is {name!r}; allowed: {', '.join(_PROGRAMS)}, or a spec")
    function = getattr(catalog, name)
    parameters = list(inspect.signature(function).parameters)[_PROGRAMS[name] + 1 :]
    of_one = ("layouts", "operands")  # a chain's are those of its links
    reserved = [key for key in _RESERVED if key not in of_one or "layouts" in parameters]
    values.only(table, (*reserved, *parameters))
    hints = get_type_hints(function)
    options = {
        key: values.several(key, value, hints[key]) for key, value in table.items() if key not in reserved
    }
    layouts = {"layouts": values.layouts(table.get("layouts", {}))} if "layouts" in parameters else {}
    shapes = values.shapes(table.get("shapes"), _PROGRAMS[name])
    dtypes = [values.dtype(dtype) for dtype in values.several("dtype", table.get("dtype", "bf16"))]
    for shape, dtype, *given in itertools.product(shapes, dtypes, *options.values()):
        chosen = dict(zip(options, given, strict=True))
        arguments = {key: values.argument(key, value, dtype, hints[key]) for key, value in chosen.items()}
        spec = _bound(function(*shape, dtype, **layouts, **arguments), constants)
        if "operands" in table:
            spec = ordered(spec, values.names("operands", table["operands"]))
        said = [f"{key}={value}" for key, value in {**chosen, **constants}.items()]
        yield Entry(" ".join([name, "x".join(map(str, shape)), dtype.value, *said]), spec, rows)


def label_of(program: FusedSpec | ChainSpec) -> str:
    """What messages call a program that has no other name."""
    if isinstance(program, ChainSpec):
        return f"chain {program.last.n}x{program.links[0].k}x{program.last.k}"
    return f"spec {program.n}x{program.k}"


def _bound(program: Any, constants: dict[str, float]) -> Any:
    """:func:`bound`, of a chain in the link that has the scalar."""
    if isinstance(program, FusedSpec):
        return bound(program, constants)
    links = [{o.name for o in link.operands if o.space is Space.SCALAR} for link in program.links]
    unknown = set(constants).difference(*links)
    if unknown:
        raise ValueError(f"constants: {', '.join(sorted(unknown))}: no scalars of the chain")
    return ChainSpec(
        tuple(
            bound(link, {name: value for name, value in constants.items() if name in known})
            for link, known in zip(program.links, links, strict=True)
        )
    )


def bound(spec: FusedSpec, constants: dict[str, float]) -> FusedSpec:
    """The program with some of its run-time scalars made constants, as tracing a function makes them.

    Raises:
        ValueError: it has no scalar of that name.
    """
    names = [o.name for o in spec.operands if o.space is Space.SCALAR]
    for name in constants:
        if name not in names:
            raise ValueError(f"constants: {name!r} is no scalar of the program, which has {names}")
    kept = [i for i, operand in enumerate(spec.operands) if operand.name not in constants]
    nodes = []
    for node in spec.nodes:
        if node.op == "load" and node.operand not in kept:
            assert node.operand is not None
            value = float(constants[spec.operands[node.operand].name])
            nodes.append(replace(node, op="const", operand=None, value=value))
        elif node.op == "load":
            nodes.append(replace(node, operand=kept.index(node.operand)))
        else:
            nodes.append(node)
    return replace(spec, operands=tuple(spec.operands[i] for i in kept), nodes=tuple(nodes))


def ordered(spec: FusedSpec, names: Sequence[str]) -> FusedSpec:
    """The program with its operands in this order.

    Raises:
        ValueError: these are not the names of all its operands.
    """
    known = [operand.name for operand in spec.operands]
    if sorted(names) != sorted(known):
        raise ValueError(f"operands: {list(names)}; allowed: {known}, in any order")
    moved = [list(names).index(name) for name in known]
    nodes = [
        replace(node, operand=moved[node.operand]) if node.op == "load" and node.operand is not None else node
        for node in spec.nodes
    ]
    operands = tuple(spec.operands[known.index(name)] for name in names)
    return replace(spec, operands=operands, nodes=tuple(nodes))
