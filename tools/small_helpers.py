"""Count tiny private helpers with one caller, and the median length of a function.

A *tiny helper* is a private function of a module or a private method (`_name`, not a dunder) that

- spans at most five lines, from `def` to its last line, without its docstring and its decorators;
- is called by exactly one other function of its module, or only by the module's top level, and is not used
  in any other way: a callback, a `key=` or an entry of a table is a value, which nobody can inline. A method
  counts by its attribute name, inside its class where the module has several functions of that name;
- does not call itself, has no decorator, and is not imported by another module;
- is not a hook: no base class or subclass in `src` defines it too, and no subclass uses it.

The median is over every function of `src`, nested functions included, from `def` to the last line, docstring
included.

`python tools/small_helpers.py` prints both figures, `--files` the helpers per file, `--list PART` the helpers
of all files whose path contains PART, and `--root` measures another tree.
"""

from __future__ import annotations

import argparse
import ast
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MAX_LINES = 5

Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class Helper:
    """Place, name (`Class._name` for a method) and length of one tiny helper."""

    path: str
    line: int
    name: str
    lines: int


@dataclass(frozen=True)
class Figures:
    """Helpers of a tree, and the median length of its functions."""

    helpers: list[Helper]
    median: float


def measure(root: Path) -> Figures:
    """Measure the modules below `root`/src."""
    paths = sorted((root / "src").rglob("*.py"))
    trees = {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    imported = {alias.name for node in nodes if isinstance(node, ast.ImportFrom) for alias in node.names}
    hooks = _hooks([node for node in nodes if isinstance(node, ast.ClassDef)])
    helpers = [helper for path, tree in trees.items() for helper in _helpers(path, tree, imported, hooks)]
    lengths = [(node.end_lineno or 0) - node.lineno + 1 for node in nodes if isinstance(node, Function)]
    return Figures(helpers, statistics.median(lengths))


def length(function: Function) -> int:
    """Return the lines of a function without its docstring."""
    lines = (function.end_lineno or function.lineno) - function.lineno + 1
    first = function.body[0]
    if ast.get_docstring(function) is not None:
        lines -= (first.end_lineno or first.lineno) - first.lineno + 1
    return lines


def _hooks(classes: list[ast.ClassDef]) -> set[tuple[str, str]]:
    """Return (class name, method) for methods that a base class or a subclass shares."""
    bases: dict[str, set[str]] = defaultdict(set)
    methods: dict[str, set[str]] = defaultdict(set)
    attributes: dict[str, set[str]] = defaultdict(set)
    for node in classes:
        bases[node.name] |= {name for base in node.bases if (name := _used_name(base)) is not None}
        methods[node.name] |= {item.name for item in node.body if isinstance(item, Function)}
        attributes[node.name] |= {part.attr for part in ast.walk(node) if isinstance(part, ast.Attribute)}
    hooks: set[tuple[str, str]] = set()
    for name in list(methods):
        ancestors: set[str] = set()
        pending = set(bases[name])
        while pending:
            ancestors.add(base := pending.pop())
            pending |= bases.get(base, set()) - ancestors
        for base in ancestors - {name}:
            shared = methods[name] & methods.get(base, set())
            hooks |= {(owner, method) for owner in (name, base) for method in shared}
            hooks |= {(base, method) for method in methods.get(base, set()) & attributes[name]}
    return hooks


def _helpers(
    path: str, tree: ast.Module, imported: set[str], hooks: set[tuple[str, str]]
) -> Iterator[Helper]:
    names = Counter(node.name for node in ast.walk(tree) if isinstance(node, Function))
    uses = _uses(tree)
    for owner, function in _functions(tree):
        name, in_class = function.name, owner.name if owner is not None else ""
        is_private = name.startswith("_") and not name.startswith("__")
        if not is_private or length(function) > MAX_LINES or function.decorator_list or name in imported:
            continue
        if (in_class, name) in hooks:
            continue
        own = [use for use in uses[name] if use.in_class == in_class or not in_class or names[name] == 1]
        callers = {use.caller for use in own}
        if all(use.is_call for use in own) and len(callers) == 1 and function not in callers:
            yield Helper(path, function.lineno, f"{in_class}.{name}".lstrip("."), length(function))


def _functions(tree: ast.Module) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    """Yield the module's functions and its classes' methods, each with its class."""
    for node in tree.body:
        if isinstance(node, Function):
            yield None, node
        elif isinstance(node, ast.ClassDef):
            yield from ((node, item) for item in node.body if isinstance(item, Function))


@dataclass(frozen=True)
class Use:
    """One place where a name is used: in which class and function, and whether it is called."""

    in_class: str
    caller: Function | None
    is_call: bool


def _uses(tree: ast.Module) -> dict[str, list[Use]]:
    uses: dict[str, list[Use]] = defaultdict(list)
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    pending: list[tuple[ast.AST, str, Function | None]] = [(tree, "", None)]
    while pending:
        node, in_class, caller = pending.pop()
        if (name := _used_name(node)) is not None:
            uses[name].append(Use(in_class, caller, id(node) in called))
        if isinstance(node, ast.ClassDef) and not in_class:
            in_class = node.name
        if isinstance(node, Function) and caller is None:
            caller = node
        pending.extend((child, in_class, caller) for child in ast.iter_child_nodes(node))
    return uses


def _used_name(node: ast.AST) -> str | None:
    if isinstance(node, ast.Name):
        return node.id
    return node.attr if isinstance(node, ast.Attribute) else None


def main() -> None:
    parser = argparse.ArgumentParser(description="Count tiny private helpers with one caller.")
    parser.add_argument("--root", type=Path, default=ROOT)
    parser.add_argument("--files", action="store_true")
    parser.add_argument("--list", metavar="PART")
    options = parser.parse_args()
    figures = measure(options.root)
    if options.files:
        for path, count in Counter(helper.path for helper in figures.helpers).most_common():
            print(f"{count:4} {path}")
    if options.list is not None:
        for helper in figures.helpers:
            if options.list in helper.path:
                print(f"{helper.path}:{helper.line}: {helper.name} ({helper.lines})")
    print(f"tiny private helpers with one caller: {len(figures.helpers)}")
    print(f"median lines of a function: {figures.median:g}")


if __name__ == "__main__":
    main()
