from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace
from tests.support.builders import instance

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import ClusterRecord, write_record
from muster.base.clock import ManualClock, SystemClock
from muster.cli.main import cli
from muster.cluster.model import StatusChange
from muster.cluster.plan import Plan
from muster.cluster.snapshot import Memory
from muster.cluster.states import InstanceState
from muster.host.processes import end_process, identify, is_alive
from muster.stores.ledger.store import SqliteInstanceStore

STUBBORN = """
import signal, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("on", flush=True)
time.sleep(300)
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ClusterHome:
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    made = ClusterHome.of("laptop", tmp_path / "clusters")
    made.path.mkdir(parents=True)
    return made


def record(**changes) -> ClusterRecord:
    return replace(
        ClusterRecord(cluster_name="laptop", config="laptop.yaml", address="127.0.0.1:1"), **changes
    )


def down(*words: str):
    return CliRunner().invoke(cli, ["down", "laptop", *words])


def test_a_record_whose_monitor_is_gone_is_cleared_away(home: ClusterHome):
    nobody = replace(identify(os.getpid()), pid=2**22 + 1)
    write_record(home, record(monitor=nobody, monitor_pid=nobody.pid))
    done = down("-y")
    assert (done.exit_code, done.output.split()[0], home.cluster.exists()) == (0, "laptop", False)
    assert done.output.count("\n") == 1


def test_the_spend_is_told_and_the_history_kept(home: ClusterHome):
    write_record(home, record())
    with SqliteInstanceStore(home.ledger, clock=ManualClock(100.0)) as store:
        ended = instance(
            "i-1",
            InstanceState.QUEUED,
            node_type="small",
            history=(StatusChange(InstanceState.QUEUED, 100.0, ""),),
        )
        plan = Plan(tick_id="t-1", at=100.0, writes=(ended,), memory=Memory(spent=1.25))
        store.commit(store.load().version, plan)
    assert down("-y").output.splitlines()[1].endswith(" $1.25")
    assert home.ledger.exists()
    assert CliRunner().invoke(cli, ["why", "small", "laptop"]).exit_code == 0
    down("-y", "--purge")
    assert not home.path.exists()


def test_a_question_is_asked_unless_told_otherwise(home: ClusterHome):
    write_record(home, record())
    asked = CliRunner().invoke(cli, ["down", "laptop"], input="n\n")
    question = asked.output.splitlines()[0]
    assert (asked.exit_code, "'laptop'" in question, question.endswith("? [Y/n]: n")) == (1, True, True)
    assert home.cluster.exists()


def test_a_process_that_does_not_listen_is_killed():
    process = subprocess.Popen([sys.executable, "-c", STUBBORN], stdout=subprocess.PIPE)
    with process:
        process.stdout.readline()
        mark = identify(process.pid)
        assert end_process(mark, clock=SystemClock(), patience_s=0.2)
        assert not is_alive(mark)
        assert not end_process(mark, clock=SystemClock(), patience_s=0.2)


def test_a_later_process_with_the_same_number_is_not_touched():
    impostor = replace(identify(os.getpid()), started="1")
    assert not end_process(impostor, clock=SystemClock(), patience_s=0.1)


def test_without_a_terminal_the_option_that_confirms_is_named(home: ClusterHome):
    write_record(home, record())
    asked = down()
    assert (asked.exit_code, asked.stderr.count("\n"), " -y" in asked.stderr) == (2, 1, True)
    assert asked.stdout.endswith("\n")
    assert home.cluster.exists()


def test_an_answer_from_a_pipe_is_an_answer(home: ClusterHome):
    write_record(home, record())
    refused = CliRunner().invoke(cli, ["down", "laptop"], input="n\n")
    assert (refused.exit_code, home.cluster.exists()) == (1, True)
    agreed = CliRunner().invoke(cli, ["down", "laptop"], input="y\n")
    assert (agreed.exit_code, home.cluster.exists()) == (0, False)
