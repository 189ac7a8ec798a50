"""What a traceback shows of an error that left muster: the user's frames, and muster's only for a bug."""

from __future__ import annotations

import inspect
import pickle
import subprocess
import sys
import traceback
from functools import cached_property
from pathlib import Path

import pytest

import muster
from muster.errors import ConfigError, InvalidTransition, StoreError, hide_frames, is_deliberate, public

HERE = "test_public.py"
OURS = "ours"


def code(text, *, module="muster.made_up", file=OURS):
    """Return the names that `text` defines, as if it were a module of muster (or another one)."""
    names = {
        "__name__": module,
        "public": public,
        "cached_property": cached_property,
        "ConfigError": ConfigError,
        "T": InvalidTransition,
    }
    exec(compile(text, file, "exec"), names)
    return names


MODULE = """
def deep(what):
    if what == "config": raise ConfigError("sentence")
    if what == "chained":
        try: {}["a"]
        except KeyError as error: raise ValueError("sentence") from error
    if what == "context":
        try: {}["a"]
        except KeyError: raise ValueError("sentence")
    if what == "bug": return {}["a"]
    if what == "assertion": assert what is None
    if what == "transition": raise T("i-1", "A", "B")
    if callable(what): return what()
@public
def entry(what): return deep(what)
@public
class Entry:
    def __init__(self, what=None, *, other=1): deep(what)
    def method(self, what): return entry(what)
    @classmethod
    def made(cls, what): return cls(what)
    @property
    def plain(self): return deep("config")
    @cached_property
    def cached(self): return deep("config")
"""


def seen(call, *args, **kwargs):
    """Return what Python would print, without its frame for this function."""
    try:
        call(*args, **kwargs)
    except Exception as error:
        return "".join(traceback.format_exception(error))
    return ""


def frames(text):
    return text.count(f'File "{OURS}"')


@pytest.fixture
def made():
    return code(MODULE)


@pytest.mark.parametrize("what", ["config", "chained", "context"])
@pytest.mark.parametrize("way", ["entry", "Entry", "method", "made"])
def test_an_error_on_purpose_shows_the_callers_frame_and_one_sentence(made, what, way):
    ways = {"entry": made["entry"], "Entry": made["Entry"]}
    ways |= {"method": made["Entry"]().method, "made": made["Entry"].made}
    text = seen(ways[way], what)
    assert (frames(text), text.count("Traceback"), text.count('File "')) == (0, 1, 1)
    assert text.splitlines()[-1].endswith("sentence")


@pytest.mark.parametrize("name", ["plain", "cached"])
def test_properties_are_called_by_users_too(made, name):
    text = seen(getattr, made["Entry"](), name)
    assert (frames(text), text.splitlines()[-1]) == (0, "muster.errors.ConfigError: sentence")


@pytest.mark.parametrize("what", ["bug", "assertion", "transition"])
def test_a_bug_keeps_its_frames(made, what):
    assert frames(seen(made["Entry"]().method, what)) >= 2


def test_an_error_of_the_users_own_code_shows_all_their_frames_and_none_of_ours(made):
    def callback():
        return int("x")

    text = seen(made["entry"], callback)
    assert (frames(text), text.count("in callback")) == (0, 1)


def test_the_cause_is_shown_where_users_have_a_part_in_it(made):
    def callback():
        return int("x")

    outer = code(
        "def wrap(call):\n"
        "  try: call()\n"
        "  except ValueError as error: raise ConfigError('sentence') from error\n"
        "@public\n"
        "def entry(call): wrap(call)\n"
    )
    text = seen(outer["entry"], callback)
    assert (frames(text), text.count("in callback"), text.splitlines()[-1].endswith("sentence")) == (
        0,
        1,
        True,
    )


def test_an_error_of_a_library_that_muster_called_wrongly_keeps_its_frames():
    bad = code("import json\n@public\ndef entry(): return json.loads('{')\n")
    assert frames(seen(bad["entry"])) == 1


@pytest.mark.parametrize(
    ("arguments", "keywords", "sentence"),
    [
        ((), {"othr": 1}, "Entry() has no parameter 'othr': did you mean 'other'?"),
        ((), {"entirely": 1}, "Entry() has no parameter 'entirely': it takes what, other"),
        (
            (1, 2),
            {},
            "Entry() got too many positional arguments: write Entry(what=..., other=...)",
        ),
    ],
)
def test_a_wrong_call_says_what_the_parameters_are(made, arguments, keywords, sentence):
    text = seen(made["Entry"], *arguments, **keywords)
    assert (frames(text), text.splitlines()[-1]) == (0, f"TypeError: {sentence}")


def test_a_type_error_inside_of_the_function_is_no_wrong_call():
    bad = code("@public\ndef entry(x): return x + 'a'\n")
    assert frames(seen(bad["entry"], 1)) == 1


def test_what_is_marked_stays_what_it_was(made):
    class_ = made["Entry"]
    assert str(inspect.signature(class_)) == "(what=None, *, other=1)"
    assert (made["entry"].__name__, class_.method.__qualname__) == ("entry", "Entry.method")
    from muster.tune import uniform

    assert pickle.loads(pickle.dumps(uniform)) is uniform


def test_an_error_that_is_not_raised_again_can_be_stripped_too(made):
    try:
        made["deep"]("config")
    except ConfigError as error:
        assert is_deliberate(error)
        hide_frames(error)
        assert HERE in traceback.extract_tb(error.__traceback__)[-1].filename


@pytest.mark.parametrize(("words", "shown"), [((), False), (("-X", "dev"), True)])
def test_development_mode_shows_everything(words, shown):
    source = str(Path(muster.__file__).parents[1])
    script = f"import sys; sys.path.insert(0, {source!r}); from muster import tune; tune.uniform('0', 1)"
    done = subprocess.run([sys.executable, *words, "-c", script], capture_output=True, text=True, check=False)
    assert ("muster/tune/search/sample.py" in done.stderr) is shown


def test_an_error_keeps_its_fix_next_to_its_place_and_ends_with_it():
    error = ConfigError("is missing", path="provider.type", file="c.yaml", line=3, fix="add it")
    assert (error.path, error.file, error.line, error.fix) == ("provider.type", "c.yaml", 3, "add it")
    assert str(error) == "c.yaml:3: provider.type: is missing; add it"
    again = pickle.loads(pickle.dumps(StoreError("is locked", fix="wait")))
    assert (str(again), again.fix, StoreError("is locked").fix) == ("is locked; wait", "wait", "")
