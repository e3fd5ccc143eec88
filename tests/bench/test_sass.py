"""The counting of machine instructions, on a listing by hand."""

from __future__ import annotations

from bench.sass import CLASSES, Code

LISTING = """
.text.kernel:
        /*0000*/                   MOV R1, c[0x0][0x28] ;
.L_tiles:
        /*0010*/                   IADD3 R0, R0, 0x1, RZ ;
.L_k:
        /*0020*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR4], R24 ;
        /*0030*/                   HGMMA.64x128x16.F32.BF16 R24, gdesc[UR8], R24 ;
        /*0040*/               @P0 BRA `(.L_k) ;
        /*0050*/                   FFMA R2, R24, R3, R4 ;
        /*0060*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R6 ;
        /*0070*/               @P1 BRA `(.L_over) ;
.L_spin:
        /*0080*/                   SYNCS.PHASECHK.TRANS64.TRYWAIT P1, [UR4], R6 ;
        /*0090*/                   IADD3 R7, R7, 0x1, RZ ;
        /*00a0*/              @!P1 BRA `(.L_spin) ;
.L_over:
        /*00b0*/                   MUFU.EX2 R2, R2 ;
        /*00c0*/               @P2 STG.E.128 desc[UR16][R22.64], R16 ;
        /*00d0*/              @!P3 BRA `(.L_tiles) ;
        /*00e0*/                   EXIT ;
"""


def test_the_epilogue_is_the_shortest_way_around_the_loop_over_k() -> None:
    assert Code(LISTING).epilogue() == ["FFMA", "SYNCS", "BRA", "MUFU", "STG", "BRA", "IADD3"]


def test_two_loops_over_k() -> None:
    """The second product's own, behind which the epilogue begins; before the first one it ends."""
    second = """.L_k2:
        /*0048*/                   HGMMA.64x128x16.F32.BF16 R88, gdesc[UR4], R88 ;
        /*004c*/               @P0 BRA `(.L_k2) ;
"""
    first, rest = LISTING.split("        /*0050*/")
    two = Code(f"{first}        /*0044*/                   MOV R9, R8 ;\n{second}        /*0050*/{rest}")
    assert two.epilogue() == Code(LISTING).epilogue()


def test_a_chain_s_tile_has_two_parts() -> None:
    """What lies between its products, and what is behind them up to the next tile's first one."""
    second = "        /*0030*/                   HGMMA"
    text = LISTING.replace(second, f"        /*0028*/                   FADD R2, R2, R3 ;\n{second}")
    between, behind = Code(text).of_chain()
    assert between == ["FADD"]
    assert behind == ["BRA", "FFMA", "SYNCS", "BRA", "MUFU", "STG", "BRA", "IADD3"]


def test_an_opcode_is_of_one_class() -> None:
    opcodes = [opcode for of_class in CLASSES.values() for opcode in of_class]
    assert len(opcodes) == len(set(opcodes))
