"""A separate layer of compat: list the names of Ray that a library uses, and which of them muster lacks."""

from __future__ import annotations

import ast
import contextlib
import importlib.metadata
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from muster.cli.console import emit
from muster.errors import ConfigError
from muster.ray_api.finder import has_name


def show_library(name: str) -> int:
    """Print what muster lacks for a library; return the exit code, 1 where it lacks something."""
    spec = find_spec(name.replace("-", "_"))
    if spec is None or not spec.submodule_search_locations:
        raise ConfigError(f"--library {name}: is not an installed package", fix="name what Python imports")
    folder = Path(next(iter(spec.submodule_search_locations)))
    uses: dict[str, str] = {}
    for path in sorted(folder.rglob("*.py")):
        for line, dotted in names_in(path):
            uses.setdefault(dotted, f"{path.relative_to(folder.parent)}:{line}")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        lacking = {dotted: where for dotted, where in uses.items() if not has_name(dotted)}
    lines = [f"{where}: {dotted}: muster does not have it" for dotted, where in lacking.items()]
    version = ""
    with contextlib.suppress(importlib.metadata.PackageNotFoundError):
        version = f" {importlib.metadata.version(name)}"
    summary = f"{name}{version}: {len(uses)} names of Ray, {len(lacking)} missing"
    emit("\n".join([*lines, summary]).encode())
    return 1 if lacking else 0


def names_in(path: Path) -> Iterator[tuple[int, str]]:
    """Yield (line, dotted name) of everything of Ray that a file imports or reads through its imports."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError, OSError):
        return
    bound: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.partition(".")[0] == "ray":
                    bound[alias.asname or "ray"] = alias.name if alias.asname else "ray"
                    yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom) and not node.level and str(node.module).split(".")[0] == "ray":
            for alias in node.names:
                dotted = f"{node.module}.{alias.name}".removesuffix(".*")
                bound[alias.asname or alias.name] = dotted
                yield node.lineno, dotted
    for node in ast.walk(tree) if bound else ():
        if isinstance(node, ast.Attribute) and (dotted := _dotted(node, bound)):
            yield node.lineno, dotted


def _dotted(node: ast.expr, bound: dict[str, str]) -> str:
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name) or node.id not in bound:
        return ""
    base = bound[node.id]
    is_module = base == "ray" or base.rpartition(".")[2][:1].islower()  # not a class
    return ".".join([base, *reversed(parts)]) if is_module else ""
