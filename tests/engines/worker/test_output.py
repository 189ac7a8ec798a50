"""Whose line it is: the trial's name before each line that it prints."""

from __future__ import annotations

import io
import sys

import pytest

from muster.engines.worker.output import NamedLines, Output


@pytest.mark.parametrize(
    ("written", "shown"),
    [
        (["hello\n"], "(t) hello\n"),
        (["a", " ", "b", "\n", "c\n"], "(t) a b\n(t) c\n"),
        (["one\ntwo\n\nthree"], "(t) one\n(t) two\n\n(t) three"),
        (["10%\r", "20%\r", "done\n"], "(t) 10%\r(t) 20%\r(t) done\n"),
        (["", "x\n"], "(t) x\n"),
    ],
)
def test_each_line_has_the_name_once(written, shown):
    stream = io.StringIO()
    named = NamedLines(stream, "t")
    assert [named.write(text) for text in written] == [len(text) for text in written]
    assert stream.getvalue() == shown


def test_everything_else_is_the_streams_own():
    stream = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    named = NamedLines(stream, "t")
    named.writelines(["a\n", "b\n"])
    named.flush()
    assert (named.encoding, named.buffer.getvalue()) == ("utf-8", b"(t) a\n(t) b\n")


def test_after_the_trial_the_streams_are_as_before(tmp_path):
    before, output = (sys.stdout, sys.stderr), Output()
    output.begin("t", str(tmp_path), (None, None))
    assert isinstance(sys.stdout, NamedLines)
    output.restore()
    assert (sys.stdout, sys.stderr) == before
