"""List where code outside `providers` tests what a provider, a port or an engine is, instead of asking it.

`python tools/provider_tests.py` prints the places: reads of `provider.type`, `isinstance` of a provider or a
port, and `getattr` or `hasattr` of a provider, a port or an engine. Texts for people may name the type.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[1] / "src" / "muster"
_PROVIDER = re.compile(r"(^|_)provider$")
_PORT = re.compile(r"(^|_)(provider|port|engine)$")


def places(source: Path = SOURCE) -> list[str]:
    """Return `file:line: code` of each test, in the order of the files."""
    found = []
    for path in sorted(source.rglob("*.py")):
        name = path.relative_to(source)
        if name.parts[0] == "providers":
            continue
        text = path.read_text(encoding="utf-8")
        found += [f"{name}:{node.lineno}: {ast.unparse(node)}" for node in type_tests(ast.parse(text))]
    return found


def type_tests(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the expressions that test a provider's type or class, or look for its methods."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.JoinedStr | ast.FormattedValue):
            continue  # a text for people
        if isinstance(node, ast.keyword) and node.arg == "type":
            continue  # passed on
        if isinstance(node, ast.expr) and _is_test(node):
            yield node
        yield from type_tests(node)


def _is_test(node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr == "type" and _named(node.value, _PROVIDER)
    if isinstance(node, ast.Subscript):
        return _named(node.value, _PROVIDER) and _is_text(node.slice, "type")
    if not isinstance(node, ast.Call) or not node.args:
        return False
    if isinstance(node.func, ast.Attribute) and node.func.attr == "get":
        return _named(node.func.value, _PROVIDER) and _is_text(node.args[0], "type")
    called = node.func.id if isinstance(node.func, ast.Name) else ""
    return called in ("isinstance", "getattr", "hasattr") and _named(node.args[0], _PORT)


def _named(node: ast.expr, pattern: re.Pattern[str]) -> bool:
    """Return whether an expression ends in such a name: `config.provider`, `self._port`, `provider`."""
    if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
        return pattern.search(str(node.slice.value)) is not None
    name = node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
    return pattern.search(name) is not None


def _is_text(node: ast.expr, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


if __name__ == "__main__":
    listed = places()
    sys.stdout.write("".join(f"{line}\n" for line in listed))
    sys.exit(bool(listed))
