"""`muster up` and `muster down` with bad input, as people call them; a cluster that lives is in tests/e2e."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from muster.autoscaler.home import ClusterHome
from muster.host.processes import table, was_started_with

pytestmark = pytest.mark.slow

CLUSTER = """\
cluster_name: life
provider: {type: process}
head_node_type: head
max_workers: 1
available_node_types:
  head: {resources: {CPU: 1}}
  worker: {resources: {CPU: 1}, price_per_hour: 0.1}
"""
NO_RAY = """
import sys
class Block:
    def find_spec(self, name, path=None, target=None):
        if name == "ray" or name.startswith("ray."):
            raise ModuleNotFoundError("No module named 'ray'", name="ray")
sys.meta_path.insert(0, Block())
from muster.cli.main import cli
cli(sys.argv[1:])
"""


@pytest.fixture
def muster(tmp_path: Path):
    """`muster("up", "-y")`: the real command on a cluster file in a home of its own."""
    file = tmp_path / "life.yaml"
    file.write_text(CLUSTER, encoding="utf-8")

    def run(
        *words: str,
        text: str | None = None,
        answer: str | None = None,
        program: tuple[str, ...] = ("-m", "muster.cli.main"),
    ):
        if text is not None:
            file.write_text(text, encoding="utf-8")
        return subprocess.run(
            [sys.executable, *program, *(str(file) if word == "FILE" else word for word in words)],
            env={**os.environ, "MUSTER_HOME": str(tmp_path)},
            input=answer,
            capture_output=True,
            text=True,
            timeout=240,
            check=False,
        )

    run.home = ClusterHome.of("life", tmp_path / "clusters")
    run.file = file
    yield run
    run("down", "life", "-y")


def left_of(home: ClusterHome) -> list[str]:
    entry = f"MUSTER_HOME={home.path.parent.parent}"
    return [f"{one.pid} {one.name}" for one in table() if one.is_alive and was_started_with(one.pid, entry)]


def test_without_ray_the_fix_is_told_and_nothing_is_made(muster):
    done = muster("up", "FILE", "-y", program=("-c", NO_RAY))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("error: Ray ")
    assert (done.stderr.count("\n"), " 'muster-ml[ray]'" in done.stderr) == (1, True)
    assert not muster.home.path.exists()


@pytest.mark.parametrize("name", ["../../victim", "team/vision"])
def test_a_name_that_leads_elsewhere_is_refused_before_anything_is_written(muster, tmp_path, name):
    (tmp_path / "clusters").mkdir()
    victim = tmp_path.parent / "victim"
    victim.mkdir(mode=0o755, exist_ok=True)
    done = muster("up", "FILE", "-y", text=CLUSTER.replace("life", name))
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"error: {muster.file}:1: cluster_name: {name!r} ")
    assert done.stderr.count("\n") == 1
    assert (sorted(victim.iterdir()), victim.stat().st_mode & 0o777) == ([], 0o755)
    assert sorted((tmp_path / "clusters").iterdir()) == []


def test_invalid_yaml_names_file_and_line(muster):
    done = muster("up", "FILE", "-y", text="cluster_name: life\nprovider: {type: process\n")
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: {muster.file}:")
    assert done.stderr.count("\n") == 1


def test_a_file_that_is_not_there_is_one_line(muster):
    done = muster("up", "nowhere.yaml", "-y")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert done.stderr.startswith("error: nowhere.yaml: ")


def test_a_port_in_use_is_one_line_and_leaves_nothing(muster):
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = muster("up", "FILE", "-y", "--port", str(port))
    assert done.returncode == 2
    assert done.stderr.startswith(f"error: port {port} ")
    assert left_of(muster.home) == []
    assert not muster.home.cluster.exists()


def test_a_head_larger_than_this_computer_is_one_line(muster):
    done = muster(
        "up",
        "FILE",
        "-y",
        text=CLUSTER.replace("head: {resources: {CPU: 1}}", "head: {resources: {CPU: 1, memory: 9.0e+14}}"),
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: ")
    assert done.stderr.count("\n") == 1
    assert left_of(muster.home) == []


def test_a_question_that_is_answered_no_starts_nothing(muster):
    done = muster("up", "FILE", answer="n\n")
    assert done.returncode == 1
    assert not muster.home.path.exists()


def test_a_question_that_nobody_answers_names_the_option(muster):
    done = muster("up", "FILE", answer="")
    assert done.returncode == 2
    assert " -y" in done.stderr
    assert not muster.home.path.exists()


def test_an_unknown_cluster_cannot_be_taken_down(muster):
    done = muster("down", "lief", "-y")
    assert done.returncode == 2
    assert " 'lief' " in done.stderr


def test_without_a_terminal_the_option_that_confirms_is_named(muster):
    done = muster("up", "FILE")
    assert (done.returncode, done.stderr.count("\n"), " -y" in done.stderr) == (2, 1, True)
    assert not muster.home.path.exists()
