"""Checks that files and functions stay small: the limits of CONTRIBUTING.md; exceptions may only shrink.

Run by `make sizes`. Exceptions stand in pyproject.toml under [tool.muster.sizes.allowed], each with the
size it has today: it may get smaller, not larger, and leaves the list once it is within the limit.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parent.parent
FOLDERS = ("src", "tools", "bench")
MAX_FILE_LINES = 500
MAX_FUNCTION_LINES = 50

Function = ast.FunctionDef | ast.AsyncFunctionDef


def oversized(root: Path) -> dict[str, int]:
    """Returns everything over its limit: `path` or `path::function` to lines."""
    found: dict[str, int] = {}
    for folder in FOLDERS:
        for path in sorted((root / folder).rglob("*.py")):
            found.update(_oversized_in(path.relative_to(root).as_posix(), path.read_text(encoding="utf-8")))
    return found


def _oversized_in(name: str, text: str) -> Iterator[tuple[str, int]]:
    lines = len(text.splitlines())
    if lines > MAX_FILE_LINES:
        yield name, lines
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, Function) and _length(node) > MAX_FUNCTION_LINES:
            yield f"{name}::{node.name}", _length(node)


def _length(function: Function) -> int:
    """Returns the lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def complaints(found: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Returns what is too big and not allowed to be, and what no longer needs to be allowed."""
    problems = []
    for name, lines in found.items():
        limit = MAX_FUNCTION_LINES if "::" in name else MAX_FILE_LINES
        if lines > allowed.get(name, limit):
            problems.append(
                f"{name}: {lines} lines, at most {allowed.get(name, limit)}; split it by responsibility"
            )
    problems += [
        f"{name}: allowed {lines} in pyproject.toml, has {found.get(name, 'few enough')}; shrink the list"
        for name, lines in allowed.items()
        if found.get(name, 0) < lines
    ]
    return problems


def allowed_sizes(root: Path) -> dict[str, int]:
    """Returns the exceptions of pyproject.toml."""
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    sizes: dict[str, int] = config["tool"]["muster"]["sizes"]["allowed"]
    return sizes


def main() -> int:
    problems = complaints(oversized(ROOT), allowed_sizes(ROOT))
    sys.stdout.write("".join(f"{line}\n" for line in problems) or "sizes: all within limits\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
