"""Programs whose result is the A of the next: GEMMs back to back.

A :class:`ChainSpec` is ``Y = program1(program0(X @ W0.T) @ W1.T)``, or longer.  What one link hands to the
next is one (M, H) tile; it is rounded once, to the element type of the factors, and lives on chip only.  A
kernel may round what :mod:`comfuse.generator.deferral` makes of it instead.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

from comfuse.generator.errors import SpecError
from comfuse.generator.passes import normalize
from comfuse.generator.passes.infer import spaces
from comfuse.generator.spec import SPEC_VERSION, FusedSpec, Operand, Output, Space


@dataclass(frozen=True)
class ChainSpec:
    """Links in the order in which they run.

    The A of the first is given; that of each other one is the output of the link before it, of which there is
    exactly one.  Operands and outputs are those of the links, link by link, each link's in its own order.
    """

    links: tuple[FusedSpec, ...]

    def text(self) -> str:
        """Canonical text: equal chains give equal text, and :meth:`parse` restores the chain."""
        return f'{{"version":{SPEC_VERSION},"links":[{",".join(link.text() for link in self.links)}]}}'

    @staticmethod
    def parse(text: str) -> ChainSpec:
        """The chain whose canonical text this is.

        Raises:
            ValueError: the text is not that of a chain of this version.
        """
        try:
            data = json.loads(text)
            if data["version"] != SPEC_VERSION:
                raise ValueError(f"spec version {data['version']}, this ComFuse reads {SPEC_VERSION}")
            return ChainSpec(tuple(FusedSpec.parse(json.dumps(link)) for link in data["links"]))
        except (KeyError, TypeError) as e:
            raise ValueError(f"not the text of a ChainSpec: {e!r}") from e

    @property
    def last(self) -> FusedSpec:
        """The link whose outputs are stored."""
        return self.links[-1]

    @property
    def operands(self) -> tuple[Operand, ...]:
        """Of all links."""
        return tuple(operand for link in self.links for operand in link.operands)

    @property
    def outputs(self) -> tuple[Output, ...]:
        return self.last.outputs


def parse_program(text: str) -> FusedSpec | ChainSpec:
    """The program whose canonical text this is: a chain where it has links.

    Raises:
        ValueError: the text is neither that of a spec nor that of a chain of this version.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as e:
        raise ValueError(f"not the text of a program, which is JSON: {e}") from None
    is_chain = isinstance(data, dict) and "links" in data
    return ChainSpec.parse(text) if is_chain else FusedSpec.parse(text)


def verify_chain(chain: ChainSpec) -> ChainSpec:
    """The chain itself.

    Raises:
        SpecError: a link is malformed, or does not fit the one before it; names the link, or the output that
            it should read.
    """
    if len(chain.links) < 2:
        raise SpecError("chain", f"a chain has at least two links, got {len(chain.links)}")
    links = [normalize(link) for link in chain.links]
    for number, link in enumerate(links):
        if link.second is not None:
            raise SpecError(f"link {number}", "all products of a link of a chain share its A")
    for number, (link, following) in enumerate(pairwise(links)):
        _check_hand_over(number, link)
        _check_fit(number + 1, link, following)
    return chain


def _check_hand_over(number: int, link: FusedSpec) -> None:
    if len(link.outputs) != 1:
        names = ", ".join(o.name for o in link.outputs)
        raise SpecError(f"link {number}", f"has to hand on exactly one output, it has {names}")
    (output,) = link.outputs
    space = spaces(link)[output.node]
    if space is not Space.TILE:
        raise SpecError(output.name, f"link {number} has to hand on an (M, H) tile, this is a {space.value}")
    if output.strided:  # a head-split output always is
        raise SpecError(output.name, "what a link hands on is never stored, it cannot have strides or heads")
    if output.dtype is not link.dtype:
        raise SpecError(
            output.name,
            f"what link {number} hands on has to be {link.dtype.value} like its factors, got"
            f" {output.dtype.value}",
        )


def _check_fit(number: int, before: FusedSpec, link: FusedSpec) -> None:
    where = f"link {number}"
    if link.dtype is not before.dtype:
        raise SpecError(where, f"A and B are {link.dtype.value}, but its A is a {before.dtype.value} result")
    if link.k != before.n:
        raise SpecError(where, f"K = {link.k}, but its A has the N = {before.n} columns of link {number - 1}")
    if link.batched is not before.batched:
        raise SpecError(where, "either all links of a chain are batched or none")


@lru_cache(maxsize=256)
def normalize_chain(chain: ChainSpec) -> ChainSpec:
    """The canonical form of a chain: every link in its own.

    Idempotent.

    Raises:
        SpecError: the chain is malformed.
    """
    return ChainSpec(tuple(normalize(link) for link in verify_chain(chain).links))
