from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fsspec.implementations.local import LocalFileSystem
from fsspec.implementations.memory import MemoryFileSystem

from muster.session.checkpoint import Checkpoint, as_arrow, as_fsspec
from muster.stores.storage import Storage


class Handler:
    """As pyarrow's FSSpecHandler holds what it wraps."""

    def __init__(self, fs):
        self.fs = fs


class Wrapping:
    """As pyarrow's PyFileSystem holds its handler."""

    def __init__(self, handler):
        self.handler = handler


def test_what_is_fsspecs_stays_and_what_pyarrow_wrapped_is_unwrapped():
    memory = MemoryFileSystem()
    assert as_fsspec(None) is None
    assert as_fsspec(memory) is memory
    assert as_fsspec(Wrapping(Handler(memory))) is memory


@pytest.mark.parametrize("kind", [Storage, Checkpoint])
def test_anything_else_is_refused_where_it_is_given(kind):
    with pytest.raises(ValueError, match=r"fsspec.*pyarrow\.fs.*\bint: 5"):
        kind("/place", 5)


def test_pyarrows_own_file_systems_keep_directories(tmp_path):
    arrow = pytest.importorskip("pyarrow.fs")
    assert isinstance(as_fsspec(arrow.LocalFileSystem()), LocalFileSystem)
    inner = arrow.SubTreeFileSystem(str(tmp_path), arrow.LocalFileSystem())
    storage = Storage("/results", inner)
    storage.validate()
    (tmp_path / "file").write_text("hello")
    storage.upload_file(tmp_path / "file", "a/b/file")
    assert (storage.read("a/b/file"), storage.listing("a")) == (b"hello", ("b",))
    assert storage.sizes("a") == {"b/file": 5}
    assert (tmp_path / "results" / "a" / "b" / "file").read_text() == "hello"
    checkpoint = Checkpoint("/results/a", inner)
    with checkpoint.as_directory() as directory:
        assert Path(directory, "b", "file").read_text() == "hello"
    storage.delete_dir("a")
    assert storage.listing("a") == ()


def test_without_pyarrow_users_get_fsspecs(monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    memory = MemoryFileSystem()
    assert (type(as_arrow(None)), as_arrow(memory)) == (LocalFileSystem, memory)


def test_with_pyarrow_users_get_its_own_or_a_wrapped_one(tmp_path):
    arrow = pytest.importorskip("pyarrow.fs")
    memory, inner = MemoryFileSystem(), arrow.SubTreeFileSystem(str(tmp_path), arrow.LocalFileSystem())
    assert isinstance(as_arrow(None), arrow.LocalFileSystem)
    assert as_arrow(as_fsspec(inner)) == inner
    memory.pipe_file("/as-arrow/file", b"hello")
    wrapped = as_arrow(memory)
    assert (wrapped.open_input_stream("/as-arrow/file").read(), as_fsspec(wrapped)) == (b"hello", memory)
