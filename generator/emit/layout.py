"""Line breaks as clang-format (Google style, 110 columns) sets them."""

from __future__ import annotations

COLUMNS = 110


def declaration(name: str, template: str, arguments: list[str]) -> list[str]:
    """``using name = template<arguments>;`` over as many lines as it needs, aligned to the bracket.

    The break behind ``=`` comes first where it costs no further line.
    """
    pieces = [f"{a}," for a in arguments[:-1]] + [f"{arguments[-1] if arguments else ''}>;"]
    here = _packed(f"using {name} = {template}<", pieces)
    below = [f"using {name} =", *_packed(f"    {template}<", pieces)]
    return below if 1 < len(here) >= len(below) else here


def _packed(head: str, pieces: list[str]) -> list[str]:
    lines = [head + pieces[0]]
    for piece in pieces[1:]:
        if len(lines[-1]) + 1 + len(piece) <= COLUMNS:
            lines[-1] += f" {piece}"
        else:
            lines.append(" " * len(head) + piece)
    return lines


def comment(text: str) -> list[str]:
    """``//   text`` over as many lines as it needs."""
    lines = ["//  "]
    for word in text.split(" "):
        if len(lines[-1]) + 1 + len(word) > COLUMNS and lines[-1].strip("/ "):
            lines.append("//      ")
        lines[-1] += f" {word}"
    return lines


def with_comments(lines: list[tuple[str, str]]) -> list[str]:
    """Code lines with trailing comments, the comments aligned."""
    width = max((len(code) for code, _ in lines), default=0)
    return [f"{code:<{width}}  // {text}" for code, text in lines]
