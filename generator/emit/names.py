"""Names in emitted code, and the name of a kernel: the only place that makes either."""

from __future__ import annotations

import hashlib
import re

from comfuse.generator.plan.chain import ChainPlan
from comfuse.generator.plan.kernel_plan import KernelPlan
from comfuse.generator.spec import FusedSpec

# C++17 keywords, alternative tokens, and macros of the C, POSIX and CUDA headers that look like names.
_RESERVED_WORDS = """
    alignas alignof and and_eq asm auto bitand bitor bool break case catch char char16_t char32_t class
    compl const constexpr const_cast continue decltype default delete do double dynamic_cast else enum
    explicit export extern false float for friend goto if inline int long mutable namespace new noexcept
    not not_eq nullptr operator or or_eq private protected public register reinterpret_cast return short
    signed sizeof static static_assert static_cast struct switch template this thread_local throw true try
    typedef typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq char8_t
    concept consteval constinit requires co_await co_return co_yield final override import module assert
    errno linux unix major minor stdin stdout stderr isnan isinf isfinite signbit offsetof cf comfuse std
    Kernel Gemms Operands Program RowTail ColTail FullTail RowTailColumns RowTailEffects ColTailEffects
    FullTailEffects Middle TilesOfMiddle ColumnsOfMiddle LetsOfMiddle EffectsOfMiddle
    Values TilesOfValues ColumnsOfValues LetsOfValues EffectsOfValues
    Exponentials ColumnsOfExponentials LetsOfExponentials EffectsOfExponentials
    Handed HandedColumns HandedEffects Vectors
    Middle1 TilesOfMiddle1 ColumnsOfMiddle1 LetsOfMiddle1 EffectsOfMiddle1 Further
"""
_RESERVED = frozenset(_RESERVED_WORDS.split())


MAX_LENGTH = 40


class Namer:
    """Hands out C++ identifiers, each once."""

    def __init__(self) -> None:
        self._taken: set[str] = set()

    def unique(self, wanted: str) -> str:
        """``wanted`` as an identifier that is free; numbered on collision."""
        base = sanitise(wanted)
        name, number = base, 1
        while name in self._taken:
            number += 1
            name = f"{base}_{number}"
        self._taken.add(name)
        return name


def sanitise(name: str) -> str:
    """A C++ identifier that is no keyword, no macro and not reserved to the implementation."""
    name = re.sub(r"[^0-9A-Za-z]+", "_", name).strip("_") or "value"
    if len(name) > 1 and name.upper() == name:
        name = name.lower()  # capitals are for macros
    if name[0].isdigit():
        name = f"v{name}"
    name = name[:MAX_LENGTH].rstrip("_")
    if name in _RESERVED or re.fullmatch(r"(Phase|Tiles|Columns|Lets|Effects|Groups)\d+", name):
        name = f"{name}_value"
    return name


def stem(plan: KernelPlan, text: str) -> str:
    """The one name of a kernel: file, symbol, profiler.  ``text`` is its source with a placeholder name."""
    tile = f"{plan.tile_m}x{plan.tile_n}x{plan.tile_k}_c{plan.cluster_m}x{plan.cluster_n}"
    return f"cf_sm90_gemm_{_dtypes(plan.spec)}_{tile}_{plan.schedule}_{_digest(text)}"


def chain_stem(plan: ChainPlan, text: str) -> str:
    """The name of a chain's kernel, as of :func:`stem`: K, H and N of its GEMMs and its warpgroups."""
    links = plan.spec.links
    sizes = "x".join(map(str, (links[0].k, *(link.n for link in links))))
    return f"cf_sm90_chain_{_dtypes(links[-1])}_{sizes}_w{plan.shape.warpgroups}_{_digest(text)}"


def _dtypes(spec: FusedSpec) -> str:
    """Of the factors and the outputs, each once."""
    return "_".join(dict.fromkeys([spec.dtype.value, *(o.dtype.value for o in spec.outputs)]))


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]
