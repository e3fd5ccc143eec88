"""How a row of the table is called in C++."""

from __future__ import annotations


def camel_case(name: str) -> str:
    """``leaky_relu`` -> ``LeakyRelu``."""
    return "".join(part.capitalize() for part in name.split("_"))
