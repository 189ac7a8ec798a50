"""Measure the source tree: folder sizes, repeated class names, files with one importer, import cycles.

`python tools/tree.py` prints the figures and what is behind them. tests/repo/test_tree.py holds the limits.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src"


@dataclass(frozen=True)
class Module:
    """One file: its dotted name, its lines, and what it defines and imports."""

    name: str
    path: Path
    lines: int
    first_line: str
    classes: tuple[str, ...]
    imports: frozenset[str] = field(repr=False)
    lazy_imports: frozenset[str] = field(repr=False)

    @property
    def package(self) -> str:
        return self.name if self.path.name == "__init__.py" else self.name.rpartition(".")[0]


def read_tree(source: Path = SOURCE) -> dict[str, Module]:
    """Every module below `source`, by its dotted name."""
    names = {_dotted(path, source): path for path in sorted(source.rglob("*.py"))}
    return {name: _read(name, path, set(names)) for name, path in names.items()}


def folder_sizes(tree: dict[str, Module]) -> Counter[str]:
    """How many files each folder holds; `__init__.py` does not count."""
    files = (module for module in tree.values() if module.path.name != "__init__.py")
    return Counter(module.package for module in files)


def repeated_classes(tree: dict[str, Module]) -> dict[str, list[str]]:
    """Public class names that more than one module defines."""
    found: dict[str, list[str]] = defaultdict(list)
    for module in tree.values():
        for name in module.classes:
            if not name.startswith("_"):
                found[name].append(module.name)
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def lone_files(tree: dict[str, Module], shorter_than: int = 10**9) -> dict[str, str]:
    """Files that exactly one module imports, from the same folder: file to importer."""
    importers: dict[str, set[str]] = defaultdict(set)
    for module in tree.values():
        for imported in module.imports | module.lazy_imports:
            importers[imported].add(module.name)
    return {
        name: only
        for name, module in tree.items()
        if module.path.name != "__init__.py" and module.lines < shorter_than
        for only in (importers[name] if len(importers[name]) == 1 else ())
        if tree[only].package == module.package and tree[only].path.name != "__init__.py"
    }


def import_cycles(tree: dict[str, Module]) -> list[list[str]]:
    """Groups of modules that import each other at the top of the file, `TYPE_CHECKING` included."""
    graph = {name: sorted(module.imports) for name, module in tree.items()}
    return [sorted(group) for group in _strong_components(graph) if len(group) > 1]


def _dotted(path: Path, source: Path) -> str:
    parts = path.relative_to(source).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _read(name: str, path: Path, known: set[str]) -> Module:
    text = path.read_text(encoding="utf-8")
    tree = ast.parse(text)
    top = frozenset(_imports(tree, known, at_top=True)) - {name}
    return Module(
        name=name,
        path=path,
        lines=text.count("\n"),
        first_line=text.partition("\n")[0],
        classes=tuple(node.name for node in tree.body if isinstance(node, ast.ClassDef)),
        imports=top,
        lazy_imports=frozenset(_imports(tree, known, at_top=False)) - top - {name},
    )


def _imports(tree: ast.Module, known: set[str], *, at_top: bool) -> Iterator[str]:
    for node in _top_nodes(tree) if at_top else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if alias.name in known)
        elif isinstance(node, ast.ImportFrom) and node.module in known:
            for alias in node.names:
                submodule = f"{node.module}.{alias.name}"
                yield submodule if submodule in known else node.module


def _top_nodes(tree: ast.Module) -> Iterator[ast.stmt]:
    for node in tree.body:
        yield node
        if isinstance(node, ast.If):
            yield from node.body


def _strong_components(graph: dict[str, list[str]]) -> list[list[str]]:
    """Tarjan's algorithm, with a stack of its own: import chains may be deeper than the recursion limit."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    on_stack: set[str] = set()
    found: list[list[str]] = []
    for root, first in graph.items():
        work = [(root, iter(first))] if root not in index else []
        while work:
            node, edges = work[-1]
            if node not in index:
                index[node] = low[node] = len(index)
                stack.append(node)
                on_stack.add(node)
            for target in edges:
                if target not in index:
                    work.append((target, iter(graph[target])))
                    break
                if target in on_stack:
                    low[node] = min(low[node], index[target])
            else:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == index[node]:
                    group = stack[stack.index(node) :]
                    del stack[-len(group) :]
                    on_stack.difference_update(group)
                    found.append(group)
    return found


def main() -> None:
    tree = read_tree(Path(sys.argv[1]) if len(sys.argv) > 1 else SOURCE)
    sizes, repeated, lone, cycles = (
        folder_sizes(tree),
        repeated_classes(tree),
        lone_files(tree),
        import_cycles(tree),
    )
    print(f"files {len(tree)}, lines {sum(module.lines for module in tree.values())}")
    print(f"largest folders: {', '.join(f'{name} {count}' for name, count in sizes.most_common(5))}")
    print(f"class names used more than once: {len(repeated)}")
    for name, places in repeated.items():
        print(f"  {name}: {', '.join(places)}")
    print(f"files with one importer in their own folder: {len(lone)}")
    for name, only in lone.items():
        print(f"  {name} ({tree[name].lines}) <- {only}")
    print(f"import cycles, TYPE_CHECKING included: {len(cycles)}")
    for group in cycles:
        print(f"  {', '.join(group)}")


if __name__ == "__main__":
    main()
