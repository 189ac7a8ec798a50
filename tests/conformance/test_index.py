"""Check that every behaviour of behaviours.md and autoscaler.md has a test that carries its id."""

from __future__ import annotations

import ast
import re
from pathlib import Path

HERE = Path(__file__).parent
NOT_IN_MUSTER = "Not in muster"


PAGES = ("behaviours.md", "autoscaler.md")
ID = r"[A-Z]+-\d+"


def listed():
    """Return the ids of both pages by page and heading."""
    return {
        (page, text.partition("\n")[0]): re.findall(rf"^- ({ID}): .", text, re.MULTILINE)
        for page in PAGES
        for text in re.split(r"^## ", (HERE / page).read_text(encoding="utf-8"), flags=re.MULTILINE)
    }


def carried():
    """Return the ids in the conformance markers of all tests, with the tests."""
    found = {}
    for file in sorted(HERE.parent.rglob("test_*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                for line in ids_of(node):
                    found.setdefault(line, []).append(f"{file.name}::{node.name}")
    return found


def ids_of(function):
    for decorator in function.decorator_list:
        if isinstance(decorator, ast.Call) and ast.unparse(decorator.func) == "pytest.mark.conformance":
            yield from map(ast.literal_eval, decorator.args)


def test_every_behaviour_has_a_test_and_every_id_is_listed():
    sections = listed()
    left_out = {line for page in PAGES for line in sections.pop((page, NOT_IN_MUSTER))}
    expected = {line for lines in sections.values() for line in lines}
    found = carried()
    assert {"without a test": expected - found.keys(), "not listed": found.keys() - expected - left_out} == {
        "without a test": set(),
        "not listed": set(),
    }
    assert [(line, found[line]) for line in left_out & found.keys()] == []


def test_no_id_is_listed_twice():
    ids = [line for lines in listed().values() for line in lines]
    assert len(ids) == len(set(ids))
    assert len([line for line in ids if line.startswith("C-")]) == 196


def test_the_code_itself_cites_no_id():
    root = HERE.parent.parent / "src"
    kinds = sorted({line.partition("-")[0] for lines in listed().values() for line in lines})
    cites = re.compile(rf"\b({'|'.join(kinds)})-\d+\b")
    cited = [str(file) for file in root.rglob("*.py") if cites.search(file.read_text("utf-8"))]
    assert cited == []
