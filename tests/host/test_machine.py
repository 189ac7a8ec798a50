"""How this user's shell calls muster."""

from __future__ import annotations

import os
import sysconfig

import pytest

from muster.host.machine import program

SCRIPTS = sysconfig.get_path("scripts")


@pytest.mark.skipif(not os.path.exists(f"{SCRIPTS}/muster"), reason="muster has no script here")
def test_suggested_commands_can_be_typed_in_an_environment_that_is_not_activated(monkeypatch, tmp_path):
    assert program() == "muster"
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    monkeypatch.chdir(os.path.dirname(SCRIPTS))
    assert program() == os.path.join("bin", "muster")
    monkeypatch.chdir(tmp_path)
    assert program() == os.path.join(SCRIPTS, "muster")


def test_without_a_script_the_interpreter_is_named(monkeypatch, tmp_path):
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    monkeypatch.setattr("sys.executable", "/some where/python")
    assert program() == "'/some where/python' -m muster"
