"""The types of an emitted kernel, as its aliases spell them."""

from __future__ import annotations

import re
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Type:
    """``cf::name<arguments>``; aliases are resolved when they are read."""

    name: str
    arguments: tuple[Type, ...] = ()

    def index(self) -> int:
        return int(self.arguments[0].name)


@dataclass
class Kernel:
    aliases: dict[str, Type]
    phases: list[Type]
    tails: dict[str, Type]
    operands: list[Type]
    constants: dict[str, list[int]] = field(default_factory=dict)  # Pingpong, Cluster, Stages, ...
    middle: Type | None = None  # of a chain: the phase between its GEMMs, or both
    further: list[Type] = field(default_factory=list)  # of a chain: the phases between its later GEMMs
    handed: Type | None = None  # of a chain: what comes behind the last columns of the middle


def parse(text: str) -> Kernel:
    """The aliases of a kernel, each resolved as it stands."""
    code = re.sub(r"//[^\n]*|/\*.*?\*/", "", text)
    code = code[code.index("namespace program {") :]
    aliases: dict[str, Type] = {}
    for name, definition in re.findall(r"using (\w+) = ?\s*([^;]*);", code):
        assert name not in aliases, f"{name} is declared twice"
        aliases[name] = _Parser(definition, aliases).parse()
    kernel = aliases["Kernel"]
    assert kernel.name in ("FusedGemm", "FusedChain")
    middle = next((part for part in kernel.arguments if part.name in ("Phase", "Online")), None)
    assert (middle is not None) == (kernel.name == "FusedChain")
    parts = {part.name: part for part in kernel.arguments}
    numbers = {
        name: [int(a.name) for a in part.arguments if a.name.isdigit()] for name, part in parts.items()
    }
    program = list(parts["Program"].arguments)
    phases = [part for part in program if part.name == "Phase"]
    tails = {part.name: part for part in program[len(phases) :]}
    assert program[: len(phases)] == phases, "the phases, then the tails"
    assert list(tails) == [name for name in ("RowTail", "ColTail", "FullTail") if name in tails]
    assert len(tails) == len(program) - len(phases)
    links_behind = parts["Further"].arguments if "Further" in parts else ()
    assert all([part.name for part in link.arguments] == ["Phase", "Gemm"] for link in links_behind)
    further = [link.arguments[0] for link in links_behind]
    numbers["Further"] = [int(link.arguments[1].arguments[1].name) for link in links_behind]
    if middle is not None:
        links = [middle, *further, *phases]
        read = {v for link in links for v in within(link, "Vector")}
        assert list(parts["Vectors"].arguments) == sorted(read, key=parts["Vectors"].arguments.index)
    operands = list(parts["Operands"].arguments)
    return Kernel(aliases, phases, tails, operands, numbers, middle, further, parts.get("Handed"))


class _Parser:
    def __init__(self, text: str, aliases: dict[str, Type]) -> None:
        self.tokens = re.findall(r"[\w:]+|[<>,]", text)
        self.aliases = aliases
        self.position = 0

    def parse(self) -> Type:
        result = self._type()
        assert self.position == len(self.tokens), self.tokens
        return result

    def _type(self) -> Type:
        token = self._next()
        if not token.startswith("cf::"):
            if re.fullmatch(r"0x[0-9a-f]{8}|\d+|true|false", token):
                return Type(token)
            assert token in self.aliases, f"{token} is used before it is declared"
            return self.aliases[token]
        name = token.removeprefix("cf::").removeprefix("sm90::")
        arguments: list[Type] = []
        if self._peek() == "<":
            self._next()
            while self._peek() != ">":
                arguments.append(self._type())
                if self._peek() == ",":
                    self._next()
            self._next()
        return Type(name, tuple(arguments))

    def _peek(self) -> str:
        return self.tokens[self.position] if self.position < len(self.tokens) else ""

    def _next(self) -> str:
        self.position += 1
        return self.tokens[self.position - 1]


def within(x: Type, kind: str) -> set[Type]:
    if x.name == kind:
        return {x}
    return {c for a in x.arguments for c in within(a, kind)}
