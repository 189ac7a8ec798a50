"""Count English sentences that tests assert outside tests/mistakes.

    python tools/test_wording.py [--list FOLDER]

Counted: a string literal with two or more words (two letters or more, with a space between) in `match=`, on
a side of `==`, `!=`, `in` or `not in`, as an element of a compared display, or searched for by
`startswith` and the like. Not counted: text that the test file passes in, such as the message of an error
that it raises. Wording belongs to tests/mistakes; other tests assert types, fields and outcomes.
"""

from __future__ import annotations

import ast
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

WORDS = re.compile(r"[A-Za-z']{2,}[,;:.]? [A-Za-z']{2,}")
SEARCHES = ("startswith", "endswith", "search", "fullmatch", "findall")
COMPARED = (ast.Eq, ast.NotEq, ast.In, ast.NotIn)


def sentences(tree: ast.AST) -> Iterator[ast.expr]:
    """Yield the literals with wording that a module asserts."""
    for node in ast.walk(tree):
        if isinstance(node, ast.keyword) and node.arg == "match":
            yield from filter(has_words, literals(node.value))
        elif isinstance(node, ast.Compare) and isinstance(node.ops[0], COMPARED):
            for side in (node.left, *node.comparators):
                yield from filter(has_words, literals(side))
        elif (
            isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in SEARCHES
        ):
            for argument in node.args:
                yield from filter(has_words, literals(argument))


def literals(node: ast.expr) -> Iterator[ast.expr]:
    """Yield the string literals of an expression, those in displays included."""
    if isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        yield node
    elif isinstance(node, ast.List | ast.Tuple | ast.Set):
        for element in node.elts:
            yield from literals(element)
    elif isinstance(node, ast.Dict):
        for element in (*filter(None, node.keys), *node.values):
            yield from literals(element)
    elif isinstance(node, ast.BinOp):
        yield from literals(node.left)
        yield from literals(node.right)


def has_words(node: ast.expr) -> bool:
    if isinstance(node, ast.JoinedStr):
        parts = [part.value if isinstance(part, ast.Constant) else " 0 " for part in node.values]
        return WORDS.search("".join(map(str, parts))) is not None
    return isinstance(node, ast.Constant) and WORDS.search(str(node.value)) is not None


def own_words(tree: ast.AST, asserted: list[ast.expr]) -> list[ast.expr]:
    """Return the asserted literals without those whose text the test itself passes in."""
    inside = {id(part) for literal in asserted for part in ast.walk(literal)}
    given = [
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in inside
    ]
    return [
        literal
        for literal in asserted
        if not (isinstance(literal, ast.Constant) and any(_text(literal) in text for text in given))
    ]


def _text(literal: ast.Constant) -> str:
    """Return the text without the type of an error in front of it."""
    return re.sub(r"^\w*(Error|Exception|Exit|Warning): ", "", str(literal.value)).strip()


def count(tests: Path) -> dict[Path, list[ast.expr]]:
    """Return the literals of each test file outside `mistakes`."""
    found = {}
    for file in sorted(tests.rglob("*.py")):
        if "mistakes" not in file.relative_to(tests).parts:
            tree = ast.parse(file.read_text(encoding="utf-8"))
            literals_of_file = own_words(tree, list(sentences(tree)))
            if literals_of_file:
                found[file] = literals_of_file
    return found


def _print(line: str) -> None:
    sys.stdout.write(line + "\n")


def main(arguments: list[str]) -> None:
    root = (
        Path(arguments[-1]) if arguments and arguments[0] != "--list" else Path(__file__).parents[1] / "tests"
    )
    if arguments[:1] == ["--list"]:
        for file, listed in count(Path(arguments[1])).items():
            for literal in listed:
                _print(f"{file}:{literal.lineno}: {ast.unparse(literal)[:100]}")
        return
    by_folder: Counter[str] = Counter()
    for file, listed in count(root).items():
        by_folder["/".join(file.relative_to(root).parts[:2][:-1] or file.relative_to(root).parts[:1])] += len(
            listed
        )
    for folder, number in by_folder.most_common():
        _print(f"{number:6} {folder}")
    _print(f"{sum(by_folder.values()):6} in all")


if __name__ == "__main__":
    main(sys.argv[1:])
