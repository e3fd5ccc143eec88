"""Device headers for the host: each asm statement becomes a call that emulates the instruction.

The headers are otherwise compiled as they are, against stand-ins for the few CUDA, CUTLASS and CuTe headers
that they include, and for their own of mbarriers and of TMA.
"""

from __future__ import annotations

import re
from pathlib import Path

#: The function for an asm statement's text, of include/emulator/instructions.hpp or tensor_core.hpp.
_FUNCTIONS = {
    "cvt.rn.bf16x2.f32 %0, %1, %2;": "cvt_bf16x2",
    "cvt.rn.f16x2.f32 %0, %1, %2;": "cvt_f16x2",
    "cvt.rn.f16x2.e4m3x2 %0, %1;": "cvt_f16x2_of_e4m3x2",
    "cvt.pack.sat.s8.s32.b32 %0, %1, %2, 0;": "cvt_pack_s8",
    "cvt.pack.sat.s8.s32.b32 %0, %1, %2, %3;": "cvt_pack_s8",
    "cvt.pack.sat.u8.s32.b32 %0, %1, %2, 0;": "cvt_pack_u8",
    "cvt.pack.sat.u8.s32.b32 %0, %1, %2, %3;": "cvt_pack_u8",
    "atom.acq_rel.gpu.global.inc.u32 %0, [%1], %2;": "atomic_inc",
    "st.relaxed.gpu.global.u64 [%0], %1;": "store_shared_word",
    "ld.relaxed.gpu.global.u64 %0, [%1];": "load_shared_word",
    "ld.relaxed.gpu.global.u32 %0, [%1];": "load_shared_word",
    "red.relaxed.gpu.global.inc.u32 [%0], %1;": "reduce_inc",
    "st.volatile.global.u32 [%0], 0;": "illegal_address",
    "mapa.shared::cluster.u32 %0, %1, %2;": "address_of_peer",
    "st.async.shared::cluster.mbarrier::complete_tx::bytes.u64 [%0], %1, [%2];": "store_async",
    "fence.proxy.async.shared::cta;": "proxy_fence",
    "mov.u32 %0, %%nctaid.x;": "grid_size",
    "bar.sync %0, %1;": "bar_sync",
    "bar.sync 1, %0;": "bar_sync_1",
    "bar.arrive %0, %1;": "bar_arrive",
    "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];": "ldmatrix",
    "ld.global.v2.u32 {%0, %1}, [%2]": "load_v2",
    "ld.global.v4.u32 {%0, %1, %2, %3}, [%4]": "load_v4",
    "ld.global.u32 %0, [%1]": "load_word<uint32_t>",
    "ld.global.u16 %0, [%1]": "load_word<uint16_t>",
    "ld.global.u8 %0, [%1]": "load_word<uint8_t>",
    "st.global.v2.u32 [%0], {%1, %2}": "store_v2",
    "st.global.v4.u32 [%0], {%1, %2, %3, %4}": "store_v4",
    "st.global.u32 [%0], %1": "store_word<uint32_t>",
    "st.global.u16 [%0], %1": "store_word<uint16_t>",
    "st.global.u8 [%0], %1": "store_word<uint8_t>",
}
_PREDICATED = re.compile(r'CF_PREDICATED\("%\d", "(.*)"\)')
#: The emulator passes parameters by reference: the launch function does not know their size.  Each CTA has
#: shared memory of its own.
_REPLACED = (
    (
        "extern __shared__ __align__(1024) uint8_t memory[];",
        "uint8_t* const memory = emulator::machine.cta->memory;",
    ),
    ("const __grid_constant__ KERNEL::Params params", "KERNEL::Params const& params"),
    ("void (*kFunction)(typename Kernel::Params)", "void (*kFunction)(typename Kernel::Params const&)"),
)


def rewrite_headers(include: Path, to: Path) -> None:
    """Copies all headers under ``include``, rewritten."""
    for header in sorted(p for p in include.rglob("*") if p.suffix in (".h", ".hpp")):
        target = to / header.relative_to(include)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(rewrite(header.read_text()))


def rewrite(text: str) -> str:
    for old, new in _REPLACED:
        text = text.replace(old, new)
    result, at = [], 0
    for found in re.finditer(r"\basm(?:\s+volatile)?\s*(?=\()", text):
        end = _closing(text, found.end())
        result += [text[at : found.start()], _call(text[found.end() + 1 : end])]
        at = end + 1
    return "".join([*result, text[at:]])


def _closing(text: str, opening: int) -> int:
    """Where the parenthesis that opens here closes."""
    depth = 0
    for match in re.compile(r'"(?:[^"\\]|\\.)*"|[()]').finditer(text, opening):
        depth += {"(": 1, ")": -1}.get(match.group(), 0)
        if depth == 0:
            return match.start()
    raise ValueError(f"unbalanced: {text[opening : opening + 60]}")


def _call(statement: str) -> str:
    template, *operands = _split(statement, ":")
    names = [_operand(o) for part in operands[:2] for o in _split(part, ",") if o.strip()]
    template = template.strip()
    if template == '""':
        is_output = len(operands) > 0 and operands[0].strip().startswith('"=f"')
        return f"emulator::{'forget' if is_output else 'nothing'}({', '.join(names)})"
    predicated = _PREDICATED.fullmatch(template)
    instruction = predicated.group(1) if predicated else template.strip('"')
    return f"emulator::{_FUNCTIONS.get(instruction, 'not_emulated')}({', '.join(names)})"


def _operand(text: str) -> str:
    """The expression of ``"r"(expression)``."""
    return text[text.index("(") + 1 : text.rindex(")")]


def _split(text: str, separator: str) -> list[str]:
    """At separators outside of parentheses, braces, and strings."""
    parts, depth = [""], 0
    for match in re.finditer(r'"(?:[^"\\]|\\.)*"|.', text, re.DOTALL):
        token = match.group()
        depth += (token in "([{") - (token in ")]}") if len(token) == 1 else 0
        if token == separator and depth == 0:
            parts.append("")
        else:
            parts[-1] += token
    return parts
