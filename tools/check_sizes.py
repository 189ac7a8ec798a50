"""Check that files, functions and packages stay small: the limits of CONTRIBUTING.md, which only fall.

Run by `make sizes`. Exceptions stand in pyproject.toml under [tool.muster.sizes.allowed], each with the
size it has today: it may get smaller, not larger, and leaves the list once it is within the limit. The lines
of each package have a budget under [tool.muster.sizes.packages]. A budget SLACK lines above the package
must be lowered; a larger one needs an ADR that says what was tried first.
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
SLACK = 150

Function = ast.FunctionDef | ast.AsyncFunctionDef


def oversized(root: Path) -> dict[str, int]:
    """Return everything over its limit: `path` or `path::function` to lines."""
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
    """Return the lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def complaints(found: Mapping[str, int], allowed: Mapping[str, int]) -> list[str]:
    """Return what is too big and not allowed to be, and what no longer needs to be allowed."""
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


def package_sizes(root: Path) -> dict[str, int]:
    """Return the lines of each package of src/muster."""
    folders = [folder for folder in (root / "src" / "muster").iterdir() if (folder / "__init__.py").exists()]
    return {
        folder.name: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob("*.py"))
        for folder in sorted(folders)
    }


def budget_complaints(lines: Mapping[str, int], budgets: Mapping[str, int]) -> list[str]:
    """Return the packages over their budget, and the budgets that must fall or go."""
    over = [
        f"{name}: {size} lines, its budget is {budgets.get(name, 0)}; merge or remove something"
        for name, size in lines.items()
        if size > budgets.get(name, 0)
    ]
    loose = [
        f"{name}: the budget is {budget}, the package has {lines.get(name, 0)} lines; lower it"
        for name, budget in budgets.items()
        if budget - lines.get(name, 0) > SLACK
    ]
    return over + loose


def settings(root: Path, table: str) -> dict[str, int]:
    """Return one table of [tool.muster.sizes] in pyproject.toml."""
    config = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    sizes: dict[str, int] = config["tool"]["muster"]["sizes"][table]
    return sizes


def main() -> int:
    problems = complaints(oversized(ROOT), settings(ROOT, "allowed"))
    problems += budget_complaints(package_sizes(ROOT), settings(ROOT, "packages"))
    sys.stdout.write("".join(f"{line}\n" for line in problems) or "sizes: all within limits\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
