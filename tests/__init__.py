"""The tests; a package, so that helpers are imported by their full names."""

from __future__ import annotations
