"""Every line of the second half of the conformance list has a test, here or elsewhere, or a reason."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from tests.conformance.elsewhere2 import DIFFERENT, ELSEWHERE, NOT_HERE

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
NUMBERS = (*range(110, 135), *range(150, 183), *range(190, 194), *range(200, 217), *range(230, 250))
LINES = {f"C-{number}" for number in NUMBERS}


def named_tests(file):
    """The tests in a file, those in a class with its name before them."""
    found = set()
    for node in ast.parse(file.read_text(encoding="utf-8")).body:
        inner = [(node.name, each) for each in node.body] if isinstance(node, ast.ClassDef) else [("", node)]
        for outer, each in inner:
            if isinstance(each, ast.FunctionDef) and each.name.startswith("test_"):
                found.add(f"{outer}::{each.name}" if outer else each.name)
    return found


def lines_of(name):
    """The lines that a test's name says it is about: test_c154_c155_asha... is about two."""
    prefix = re.match(r"test((?:_c\d{3})+)_", name)
    return {f"C-{number}" for number in re.findall(r"\d{3}", prefix[1])} if prefix else set()


def lines_tested_here():
    names = [name for file in HERE.glob("test_*.py") for name in named_tests(file)]
    return {line for name in names for line in lines_of(name)} & LINES


def test_every_line_is_a_test_or_has_a_reason():
    assert lines_tested_here() | set(ELSEWHERE) | set(DIFFERENT) | set(NOT_HERE) == LINES


@pytest.mark.slow
def test_what_is_excused_is_not_tested():
    tested = lines_tested_here() | set(ELSEWHERE)
    assert tested & (set(DIFFERENT) | set(NOT_HERE)) == set()


@pytest.mark.slow
def test_every_test_that_is_named_exists():
    named = [name for names in ELSEWHERE.values() for name in names]
    missing = []
    for name in named:
        file, _, test = name.partition("::")
        if not (ROOT / file).is_file() or test not in named_tests(ROOT / file):
            missing.append(name)
    assert missing == []
