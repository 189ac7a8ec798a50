"""Classes of `__main__`, in a process that runs the script and in one that does not."""

from __future__ import annotations

import enum
import pickle
import sys
from types import ModuleType

import pytest

from muster.base import by_value

SOURCE = """
import enum

class Mode(enum.Enum):
    SLOW = 1
    FAST = 2

class Outer:
    class Inner:
        pass

class First:
    def second(self):
        return Second()

class Second:
    def first(self):
        return First()

def local():
    class Local:
        pass
    return Local()
"""


@pytest.fixture
def script(monkeypatch):
    """A script as `__main__`."""
    main = ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    for name, empty in (("_made", {}), ("_unfilled", []), ("_scripts", [])):
        monkeypatch.setattr(by_value, name, empty)
    exec(SOURCE, vars(main))
    return main


def elsewhere(monkeypatch):
    """Another program runs from here on, without what this process knows of the script's classes."""
    import cloudpickle.cloudpickle as tracked

    monkeypatch.setitem(sys.modules, "__main__", ModuleType("__main__"))
    tracked._DYNAMIC_CLASS_TRACKER_BY_ID.clear()
    tracked._DYNAMIC_CLASS_TRACKER_BY_CLASS.clear()


def test_the_script_gets_its_own_classes_back(script):
    values = [script.Mode.FAST, script.Outer.Inner(), script.First().second()]
    found = pickle.loads(by_value.dumps(values))
    assert found[0] is script.Mode.FAST
    assert [type(each) for each in found] == [script.Mode, script.Outer.Inner, script.Second]


def test_another_program_gets_one_class_from_all_pickles(script, monkeypatch):
    pickles = [
        by_value.dumps(each) for each in (script.Mode.FAST, script.Mode, script.First(), script.Second)
    ]
    elsewhere(monkeypatch)
    fast, mode, first, second = map(pickle.loads, pickles)
    assert fast is mode.FAST
    assert issubclass(mode, enum.Enum)
    assert type(first.second()) is second
    assert type(first.second().first()) is type(first)


def test_what_another_program_sends_back_is_of_the_scripts_class(script, monkeypatch):
    sent = by_value.dumps(script.Mode.SLOW)
    elsewhere(monkeypatch)
    answer = by_value.dumps([pickle.loads(sent)])
    monkeypatch.setitem(sys.modules, "__main__", script)
    assert pickle.loads(answer)[0] is script.Mode.SLOW


def test_a_script_that_changed_is_not_overwritten_by_its_pickles(script):
    data = by_value.dumps(script.First())
    script.First.second = lambda self: "changed"
    assert pickle.loads(data).second() == "changed"


def test_a_class_that_its_name_does_not_lead_to_travels_without_it(script):
    old = script.First()
    script.First = type("First", (), {"__module__": "__main__"})
    assert type(pickle.loads(by_value.dumps(old))) is not script.First
    assert type(pickle.loads(by_value.dumps(script.local()))).__name__ == "Local"


def test_a_class_whose_pickle_could_not_be_read_is_read_again(script, monkeypatch):
    script.First.needed = by_value  # an import that fails at first
    data = by_value.dumps(script.First)
    elsewhere(monkeypatch)
    with monkeypatch.context() as broken:
        broken.setitem(sys.modules, "muster.base.by_value", None)
        with pytest.raises(ImportError):
            pickle.loads(data)
    assert pickle.loads(data).needed is by_value


def test_a_script_that_was_loaded_as_a_module_stands_for_main(script, monkeypatch):
    data = by_value.dumps(script.Mode.FAST)
    elsewhere(monkeypatch)
    loaded = ModuleType("loaded")
    exec(SOURCE, vars(loaded))
    by_value.adopt(loaded)
    assert pickle.loads(data) is loaded.Mode.FAST
