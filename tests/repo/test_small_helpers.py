from __future__ import annotations

import pytest
from tools.small_helpers import measure

MAX_HELPERS = 300  # may only fall
MIN_MEDIAN = 7  # may only rise


@pytest.mark.slow
def test_tiny_helpers_with_one_caller_stay_few(root):
    figures = measure(root)
    assert len(figures.helpers) <= MAX_HELPERS
    assert figures.median >= MIN_MEDIAN


SOURCE = '''
def _once(value):
    """Docstrings are free.

    They may be long.
    """
    return value + 1

def _value(value):
    return -value

def _twice(value):
    return value

def _recursive(value):
    return _recursive(value - 1)

def _long(value):
    a = value
    b = a
    c = b
    d = c
    return d

def first(values):
    return sorted(map(_once(1), values), key=_value) + [_twice(1), _long(1), _recursive(1)]

def second():
    return _twice(2)

class Base:
    def run(self):
        self._hook()
        self._own()
        self._shared()

    def _hook(self):
        pass

    def _own(self):
        pass

    def _shared(self):
        pass

class Derived(Base):
    def _hook(self):
        self._shared()
'''


def test_only_what_one_function_calls_and_nobody_else_needs_is_counted(tmp_path):
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "a.py").write_text(SOURCE, encoding="utf-8")
    figures = measure(tmp_path)
    assert [(helper.name, helper.lines) for helper in figures.helpers] == [("_once", 2), ("Base._own", 2)]
    assert figures.median == 2
