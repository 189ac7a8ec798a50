from __future__ import annotations

import os
import stat

import pytest

from muster.host.atomic_write import atomic_write, replacing


def test_a_file_is_made_and_replaced(tmp_path):
    file = tmp_path / "a.json"
    atomic_write(file, b"one")
    atomic_write(os.fspath(file), b"two", fsync=True)
    assert file.read_bytes() == b"two"
    assert os.listdir(tmp_path) == ["a.json"]


def test_the_new_file_has_the_mode_that_was_asked_for(tmp_path):
    file = tmp_path / "secret"
    file.write_bytes(b"open to all")
    atomic_write(file, b"not any more", mode=0o600)
    assert stat.S_IMODE(file.stat().st_mode) == 0o600


def test_a_failed_write_leaves_the_old_content_and_no_draft(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes(b"old")

    def fill_up(draft: str) -> None:
        with open(draft, "wb") as stream:
            stream.write(b"half")
        raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"), replacing(file) as draft:
        fill_up(draft)
    assert (file.read_bytes(), os.listdir(tmp_path)) == (b"old", ["a.txt"])


def test_a_draft_is_of_a_kind_that_uploads_leave_out(tmp_path):
    with replacing(tmp_path / "a.txt") as draft:
        assert draft.endswith(".partial")
        assert os.path.dirname(draft) == os.fspath(tmp_path)
        open(draft, "wb").close()
