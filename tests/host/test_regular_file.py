"""Files of a directory that somebody else has written: nothing is waited for, and no link is followed."""

from __future__ import annotations

import os
import socket

import pytest

from muster.host.regular_file import open_regular, read_regular


def test_a_regular_file_is_read_whole(tmp_path):
    (tmp_path / "a").write_bytes(b"content")
    with open_regular(tmp_path / "a") as stream:
        assert stream.read(3) == b"con"
    assert read_regular(tmp_path / "a") == b"content"


@pytest.fixture(params=["fifo", "link", "dangling", "device", "directory", "socket"])
def odd(request, tmp_path, monkeypatch):
    place = tmp_path / "odd"
    (tmp_path / "secret").write_text("secret")
    if request.param == "fifo":
        os.mkfifo(place)
    elif request.param == "directory":
        place.mkdir()
    elif request.param == "socket":
        monkeypatch.chdir(tmp_path)  # an address of a socket is short
        with socket.socket(socket.AF_UNIX) as server:
            server.bind("odd")
    else:
        place.symlink_to(
            {"link": tmp_path / "secret", "dangling": "nowhere", "device": "/dev/zero"}[request.param]
        )
    return place


def test_anything_else_is_refused_at_once(odd):
    with pytest.raises(OSError, match="odd") as refused:
        read_regular(odd)
    assert not isinstance(refused.value, FileNotFoundError)


def test_a_missing_file_is_missing(tmp_path):
    with pytest.raises(FileNotFoundError):
        read_regular(tmp_path / "nothing")


def test_a_file_beyond_the_limit_is_refused_unread(tmp_path):
    with open(tmp_path / "sparse", "wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(OSError, match="sparse"):
        read_regular(tmp_path / "sparse")
    assert read_regular(tmp_path / "sparse", beginning=4) == b"\0" * 4
