"""Check the rules of tests/ray_clusters.py: how many heads, in which order, one error for a failed head."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.ray_clusters import ORDER

pytestmark = pytest.mark.slow
HEAD = """
import os, subprocess, time
import pytest
from tests import ray_clusters
ray_clusters.MOST_HEADS = 1


@pytest.mark.parametrize("session", {sessions})
def test_it_starts_a_head(session):
    with subprocess.Popen([{program!r}, "--session-name=" + session]) as process:
        time.sleep(3 * ray_clusters.SAMPLE_S)
        process.kill()
"""
NO_HEAD = """
import pytest
from tests.support.ray_cluster import RayDidNotStart


@pytest.fixture(scope="session")
def head():
    raise RayDidNotStart("the head", "no time")


@pytest.fixture(scope="module")
def cluster(head):
    return head


def test_one(head): pass
def test_two(cluster): pass
def test_three(cluster): pass
"""


def run(root: Path, folder: Path, text: str) -> tuple[int, str]:
    file = folder / "test_it.py"
    file.write_text(text, encoding="utf-8")
    options = ("-q", "-p", "no:cacheprovider", "-p", "tests.ray_clusters", "--rootdir", str(folder), "-c")
    command = [sys.executable, "-m", "pytest", *options, "/dev/null", str(file)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=100, check=False)
    return done.returncode, done.stdout


@pytest.mark.parametrize(
    ("sessions", "code", "count"),
    [(["a", "a"], 0, 1), (["a", "b"], 1, 2)],
    ids=["the same head twice", "two heads"],
)
def test_heads_are_counted_by_their_sessions_and_too_many_fail_the_run(root, tmp_path, sessions, code, count):
    program = tmp_path / "gcs_server"
    program.write_text("#!/bin/sh\nsleep 20\n", encoding="utf-8")
    program.chmod(0o755)
    ended, said = run(root, tmp_path, HEAD.format(sessions=sessions, program=str(program)))
    assert "2 passed" in said, said
    assert f"Ray heads started: {count}, at most 1 are allowed" in said
    assert ended == code


def test_a_head_that_does_not_start_is_one_error_and_not_one_per_test(root, tmp_path):
    _, said = run(root, tmp_path, NO_HEAD)
    assert re.search(r"^2 skipped, 1 error in ", said, re.MULTILINE), said


def test_every_file_that_starts_ray_has_a_place_in_the_order(root):
    word = "pytest.mark." + "ray"  # in one piece it would count this file, too
    starting = {file for file in (root / "tests").rglob("test_*.py") if word in _text(file)}
    assert {file.relative_to(root).as_posix() for file in starting} <= set(ORDER)
    assert [name for name in ORDER if not (root / name).exists()] == []


def _text(file: Path) -> str:
    return file.read_text(encoding="utf-8")
