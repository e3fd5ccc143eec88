"""Line breaks as clang-format (Google style, 110 columns) sets them."""

from __future__ import annotations

COLUMNS = 110


def declaration(name: str, template: str, arguments: list[str]) -> list[str]:
    """``using name = template<arguments>;`` over as many lines as it needs, aligned to the bracket.

    The break behind ``=`` comes first where it costs no further line, or makes room for a long argument.
    """
    pieces = [f"{a}," for a in arguments[:-1]] + [f"{arguments[-1] if arguments else ''}>;"]
    here = _packed(f"using {name} = {template}<", pieces)
    below = [f"using {name} =", *_packed(f"    {template}<", pieces)]
    if len(here) == 1 and not _overflows(here):
        return here
    return min(below, here, key=lambda lines: (_overflows(lines), len(lines)))


def alias(name: str, definition: str) -> list[str]:
    """``using name = definition;``, in two lines if it is too long for one."""
    line = f"using {name} = {definition};"
    return [line] if len(line) <= COLUMNS else [f"using {name} =", f"    {definition};"]


def fits_an_argument(text: str, template: str) -> bool:
    """Whether :func:`declaration` can place this argument of ``template`` within the columns."""
    return len(f"    {template}<{text}>;") <= COLUMNS


def _overflows(lines: list[str]) -> bool:
    return any(len(line) > COLUMNS for line in lines)


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
    for word in _short_words(text):
        if len(lines[-1]) + 1 + len(word) > COLUMNS and lines[-1].strip("/ "):
            lines.append("//      ")
        lines[-1] += f" {word}"
    return lines


def _short_words(text: str) -> list[str]:
    most = COLUMNS - len("//       ")
    return [word[i : i + most] for word in text.split(" ") for i in range(0, len(word), most)]


def with_comments(lines: list[tuple[str, str]]) -> list[str]:
    """Code lines with trailing comments, the comments aligned."""
    width = max((len(code) for code, _ in lines), default=0)
    return [f"{code:<{width}}  // {text}" for code, text in lines]
