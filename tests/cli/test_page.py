from __future__ import annotations

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from tests.page.samples import write_experiment

from muster.cli.dashboard import catalog_of
from muster.cli.main import cli
from muster.errors import StoreError
from muster.page.serve import PageAddress, bind


def ran(*arguments: str):
    return CliRunner().invoke(cli, ["page", *arguments])


def test_the_help_names_both_uses():
    shown = ran("--help").output
    assert ("export" in shown, "--cluster" in shown) == (True, True)


def test_what_is_no_experiment_is_said_in_one_line(tmp_path: Path):
    found = [ran(str(tmp_path / "no")).output, ran(str(tmp_path)).output, ran("--cluster", "no").output]
    assert [text.count("\n") for text in found] == [1, 1, 1]


def test_a_directory_lists_every_experiment_below_it(tmp_path: Path):
    write_experiment(tmp_path / "mine", 1, 1)
    write_experiment(tmp_path / "team" / "yours", 2, 1)
    catalog = catalog_of([str(tmp_path)], [])
    listed = {row["name"]: row["counts"] for row in catalog.listing()["experiments"]}
    catalog.close()
    assert listed == {"mine": {"TERMINATED": 1}, "team/yours": {"TERMINATED": 2}}


def test_a_remote_directory_lists_the_experiments_in_it(tmp_path: Path):
    import fsspec

    memory = fsspec.filesystem("memory")
    for name, trials in (("a", 2), ("b", 3)):
        content = (write_experiment(tmp_path / name, trials, 1) / "experiment.sqlite").read_bytes()
        memory.makedirs(f"/shelf/{name}", exist_ok=True)
        memory.pipe(f"/shelf/{name}/experiment.sqlite", content)
    catalog = catalog_of(["memory://shelf"], [])
    listed = {row["name"]: (row["of"], row["address"]) for row in catalog.listing()["experiments"]}
    catalog.close()
    assert listed == {"a": (2, "memory://shelf/a"), "b": (3, "memory://shelf/b")}


def test_an_address_that_cannot_be_reached_is_an_error_with_the_address():
    with pytest.raises(StoreError, match="memory://nothing/here"):
        catalog_of(["memory://nothing/here"], [])


def test_a_remote_experiment_is_copied(tmp_path: Path):
    import fsspec

    write_experiment(tmp_path / "e", 3, 1)
    content = (tmp_path / "e" / "experiment.sqlite").read_bytes()
    memory = fsspec.filesystem("memory")
    memory.makedirs("/bucket/e", exist_ok=True)
    memory.pipe("/bucket/e/experiment.sqlite", content)
    catalog = catalog_of(["memory://bucket/e"], [])
    session = catalog.experiment(catalog.keys()[0])
    assert (session.name, len(session.table)) == ("e", 3)
    catalog.close()


def test_a_port_in_use_is_said_with_what_to_do():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        shown = ran("--port", port)
    assert (shown.exit_code, port in shown.output, "--port" in shown.output) == (2, True, True)


def test_the_page_listens_on_this_computer_only():
    with bind(PageAddress(port=0)) as listening:
        assert listening.getsockname()[0] == "127.0.0.1"


def test_a_report_into_a_directory_that_does_not_exist_is_refused(tmp_path: Path):
    place = write_experiment(tmp_path / "e", 1, 1)
    shown = ran("export", str(place), "-o", str(tmp_path / "no" / "report.html")).output
    assert "create" in shown


def test_a_report_holds_no_markup_of_the_user(tmp_path: Path):
    place = write_experiment(tmp_path / "e", 2, 1, metric="</script><script>alert(1)</script>")
    assert ran("export", str(place), "-o", str(tmp_path / "r.html")).exit_code == 0
    assert "</script><script>alert" not in (tmp_path / "r.html").read_text()


@pytest.mark.slow
def test_an_address_that_others_reach_is_noted_and_a_server_ends_with_its_process(tmp_path: Path):
    home = {
        **os.environ,
        "XDG_STATE_HOME": str(tmp_path),
        "MUSTER_HOME": str(tmp_path),
        "HOME": str(tmp_path),
    }
    parent = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    command = [sys.executable, "-m", "muster", "page", "--host", "0.0.0.0", "--port", "0"]
    server = subprocess.Popen(
        [*command, "--until", str(parent.pid)],
        env=home,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    link = server.stdout.readline()
    parent.communicate(b"\n")
    _, said = server.communicate(timeout=60)
    assert (link.startswith("muster dashboard: http://127.0.0.1:"), "--allow-host" in said) == (
        True,
        True,
    )
