"""Processes that a trial started report to it over its socket."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest

from muster.base.clock import SystemClock
from muster.base.framing import FrameKind, FrameReader, frame, pack, unpack
from muster.engines.worker.channel import WorkerChannel
from muster.engines.worker.child_reports import MAX_PATH, ChildReports, new_path
from muster.engines.worker.protocol import StartOrder
from muster.engines.worker.session import TrialSession
from muster.session.report import rank_of

CONTINUE, STOP = frame(FrameKind.CONTINUE), frame(FrameKind.STOP, pack(False))


class Trial:
    """A trial whose socket is open, and the driver's ends of its pipes."""

    def __init__(self, folder):
        self._streams = []
        to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        channel = WorkerChannel(beat_s=60.0)
        channel.connect(to_read, to_write, os.getppid())
        order = StartOrder("id", "name", "f", {}, ([{"CPU": 2.0}], "PACK"), str(folder), "exp")
        self.session = TrialSession(order, channel, SystemClock())
        self.path = str(folder / "reports" / "s.sock")
        self.thread = ChildReports(self.path)
        self.thread.serve(self.session)
        self.thread.open()

    def answers(self, *frames):
        os.write(self._write, b"".join(frames))

    def reports(self):
        frames = FrameReader().feed(os.read(self._read, 1 << 16))
        return [unpack(payload)[0] for kind, payload in frames if kind == FrameKind.REPORT]

    def connect(self):
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(self.path)
        self._streams.append(connection.makefile("rw"))
        connection.close()  # with the stream
        return self._streams[-1]

    def close(self):
        self.thread.serve(None)
        for stream in self._streams:
            stream.close()


@pytest.fixture
def trial(tmp_path):
    made = Trial(tmp_path)
    yield made
    made.close()


def say(stream, line):
    stream.write((line if isinstance(line, str) else json.dumps(line)) + "\n")
    stream.flush()
    return stream.readline().rstrip("\n")


def test_any_program_reports_by_lines_of_json(trial):
    program = trial.connect()
    trial.answers(CONTINUE, CONTINUE)
    assert say(program, {"loss": 0.5}) == "c"
    assert say(program, {"metrics": {"loss": 0.25}, "rank": 0}) == "c"
    assert trial.reports() == [{"loss": 0.5}, {"loss": 0.25}]


def test_a_stop_answers_this_and_every_later_report(trial):
    program = trial.connect()
    trial.answers(STOP)
    assert [say(program, {"loss": 1}) for _ in range(2)] == ["s", "s"]


@pytest.mark.parametrize(
    "line",
    ["loss=1", "[1]", '{"metrics": {"loss": 1}, "checkpoint": "/no/such/place"}', '{"ask": "price"}'],
)
def test_what_is_no_result_is_refused_and_the_next_line_is_heard(trial, line):
    program = trial.connect()
    assert say(program, line).startswith("e ")
    trial.answers(CONTINUE)
    assert say(program, {"loss": 1}) == "c"


def test_a_process_may_ask_for_names_and_notices(trial, tmp_path):
    program = trial.connect()
    context = json.loads(say(program, {"ask": "context"}))
    assert (context["trial_id"], context["trial_dir"], context["checkpoint"]) == ("id", str(tmp_path), None)
    assert context["resources"]["required_resources"] == {"CPU": 2.0}
    assert json.loads(say(program, {"ask": "notice"})) == {"notice": None, "should_checkpoint": False}


def test_a_second_process_without_a_rank_is_refused_with_both_pids_while_the_first_lives(trial):
    first, second = trial.connect(), trial.connect()
    trial.answers(CONTINUE)
    assert say(first, {"loss": 1}) == "c"
    refusal = say(second, {"loss": 2})
    assert refusal.startswith("e ")
    assert refusal.count(str(os.getpid())) == 2  # both connections are this process's
    first.close()
    trial.answers(CONTINUE)
    assert say(second, {"loss": 3}) == "c"


def test_a_process_of_the_trial_that_reports_itself_is_the_only_one(trial):
    trial.answers(CONTINUE)
    trial.session.report({"loss": 1})
    assert say(trial.connect(), {"loss": 2}).startswith("e ")


CHILD = """
import os, sys
from muster.session import get_checkpoint, get_context, report
report({"loss": 1.5, "name": get_context().get_trial_name(), "from": get_checkpoint()})
os.environ["RANK"] = "1"
report({"loss": 2.5})
os.environ["RANK"] = "0"
try:
    report({"loss": object()})
except Exception as error:
    print(type(error).__name__)
assert not {"numpy", "msgspec", "muster.tune"} & set(sys.modules)
report({"loss": 3.5})
print("not reached")
"""


def test_a_python_child_needs_nothing_but_the_variable(trial):
    trial.answers(CONTINUE)
    trial.answers(STOP)
    env = {**os.environ, "MUSTER_REPORT_TO": trial.path}
    command = [sys.executable, "-c", CHILD]
    done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=60, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "TuneError\n", "")
    assert trial.reports() == [{"loss": 1.5, "name": "name", "from": None}, {"loss": 3.5}]


def test_after_the_trial_processes_are_stopped(trial):
    program = trial.connect()
    trial.thread.serve(None)
    assert say(program, {"loss": 1}) == "s"


def test_the_socket_is_for_this_user_and_its_path_is_short(trial):
    assert os.stat(os.path.dirname(trial.path)).st_mode & 0o777 == 0o700
    assert len(new_path({"TMPDIR": "/tmp/" + "x" * 90})) <= MAX_PATH


@pytest.mark.parametrize(
    ("variables", "rank"),
    [
        ({}, None),
        ({"RANK": "0"}, 0),
        ({"OMPI_COMM_WORLD_RANK": "2"}, 2),
        ({"PMI_RANK": "3"}, 3),
        ({"SLURM_PROCID": "1", "MUSTER_OUTER_RANKS": "RANK=0 SLURM_PROCID=1"}, None),
        ({"RANK": "1", "MUSTER_OUTER_RANKS": "RANK=0"}, 1),
    ],
)
def test_ranks_of_the_trial_are_told_from_those_of_the_driver(variables, rank):
    assert rank_of(variables) == rank


def test_a_shell_script_reports_with_muster_report(trial, tmp_path, monkeypatch):
    from click.testing import CliRunner

    from muster.cli.main import cli

    def run(*words):
        return CliRunner().invoke(cli, ["report", *words])

    assert run("loss=1").exit_code == 2
    monkeypatch.setenv("MUSTER_REPORT_TO", trial.path)
    trial.answers(CONTINUE)
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "model").write_text("1")
    assert run("loss=nan", "name=a b", "n=3", "--checkpoint", str(tmp_path / "made")).exit_code == 0
    assert run("loss").exit_code == 2
    trial.answers(STOP)
    assert run("loss=2").exit_code == 3
    first = trial.reports()[0]
    assert (first["loss"] != first["loss"], first["name"], first["n"]) == (True, "a b", 3)
    assert (tmp_path / "checkpoint_000000" / "model").read_text() == "1"
