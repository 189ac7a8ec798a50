"""Every line of the conformance list is a test here or elsewhere, or it is said why not."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from tests.conformance.elsewhere import DIFFERENT, ELSEWHERE, IDS, NOT_HERE

HERE = Path(__file__).parent


def ids_here():
    """Ids in the names of the tests of this directory (`test_c021_c022_...` has two)."""
    found = set()
    for file in HERE.glob("test_*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef) and (name := re.match(r"test((?:_c\d{3})+)_", node.name)):
                found.update(f"C-{digits}" for digits in re.findall(r"\d{3}", name[1]))
    return found


def test_every_line_is_somewhere():
    known = ids_here() | ELSEWHERE.keys() | DIFFERENT.keys() | NOT_HERE.keys()
    assert [line for line in IDS if line not in known] == []


def test_no_line_is_left_out_that_has_its_test_here():
    assert ids_here() & NOT_HERE.keys() == set()
    assert set(ELSEWHERE) & (DIFFERENT.keys() | NOT_HERE.keys()) == set()
    assert {*ELSEWHERE, *DIFFERENT, *NOT_HERE} <= set(IDS)


NAMED = [
    *((line, name) for line, names in ELSEWHERE.items() for name in names),
    *((line, name) for line, (_, name) in DIFFERENT.items()),
]


@pytest.mark.parametrize(("line", "name"), NAMED)
def test_what_is_named_exists(line, name):
    path, *parts = name.split("::")
    found = importlib.import_module(path.removesuffix(".py").replace("/", "."))
    for part in parts:
        found = getattr(found, part)
    assert callable(found), f"{line}: {name}"
