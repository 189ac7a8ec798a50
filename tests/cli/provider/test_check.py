"""`muster provider check` and `end`: what is asked, shown and returned, and that nothing is left behind."""

from __future__ import annotations

import fcntl
import json
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner
from tests.mistakes.views import assert_view

from muster.cli.main import cli
from muster.providers.contract.run import CHECKS

CLOUD = "muster.testing.faulty_cloud.FaultyCloud"
INDENT = " " * 9
LINE = "as many nodes as asked for are listed when create returns"
FILE = """
cluster_name: mine
provider:
  type: external
  module: {module}
  state: {state}
  faults: {faults}
head_node_type: head
available_node_types:
  head: {{resources: {{CPU: 0}}}}
  small: {{resources: {{CPU: 1}}, price_per_hour: 0.5}}
"""


@pytest.fixture(autouse=True)
def _quickly(monkeypatch):
    monkeypatch.setattr("muster.providers.contract.run.QUIET_S", 0.0)


@pytest.fixture
def cloud(tmp_path):
    """`cloud(fault, ...)` writes the cluster file; `cloud.living()` is what really runs."""

    class Cloud:
        file, state = tmp_path / "mine.yaml", tmp_path / "cloud.json"

        def __call__(self, *faults):
            text = FILE.format(module=CLOUD, state=self.state, faults=json.dumps(faults))
            self.file.write_text(text)
            return ["--config", str(self.file), "--call-limit", "20", "--starts-within", "5"]

        def living(self):
            if not self.state.exists():
                return []
            with self.state.open() as file:
                fcntl.flock(file, fcntl.LOCK_SH)
                machines = json.loads(file.read() or '{"machines": {}}')["machines"]
            return sorted(name for name, one in machines.items() if one["state"] == "running")

    return Cloud()


def check(*words, command="check", **given):
    return CliRunner().invoke(cli, ["provider", command, *words], env={"COLUMNS": "200"}, **given)


@pytest.mark.slow
def test_every_line_is_reported_with_what_it_saw(cloud):
    done = check(*cloud(), "-y")
    lines = done.stdout.splitlines()
    assert [line[9:] for line in lines if line.startswith("passed ")] == [one.line for one in CHECKS[:-1]]
    assert any(line.endswith(f" {[f'machine-{number}' for number in (3, 4, 5)]}") for line in lines)
    assert re.findall(r"(\d+) (passed|failed|skipped)", lines[-2]) == [("19", "passed"), ("1", "skipped")]
    assert (lines[-1], done.exit_code, cloud.living()) == ("nothing is left", 0, [])


def test_a_broken_line_says_what_it_saw_and_what_was_promised(cloud):
    done = check(*cloud({"fault": "short"}), "-y", "--line", LINE)
    lines = done.stdout.splitlines()
    at = lines.index(f"failed   {LINE}")
    assert_view("cli/provider_check_failed", "\n".join(lines[at : at + 3]))
    assert (done.exit_code, cloud.living()) == (1, [])


def test_the_most_it_can_cost_is_shown_and_nothing_happens_without_a_yes(cloud):
    words = [*cloud(), "--line", LINE]
    asked = check(*words, input="n\n")
    assert re.search(r" 3 .* 2 min 40 s .* \$0\.07\b", asked.stdout)
    assert " muster-check-" in asked.stderr
    nobody = check(*words, input="")
    assert nobody.stderr.splitlines()[-1].startswith("error: ")
    assert (asked.exit_code, nobody.exit_code, cloud.state.exists()) == (1, 2, False)


def test_the_lines_and_the_cost_can_be_seen_without_doing_anything(cloud):
    done = check(*cloud(), "--list")
    assert [line.strip() for line in done.stdout.splitlines()[2:]] == [one.line for one in CHECKS]
    assert (done.exit_code, cloud.state.exists()) == (0, False)


def test_the_report_can_be_read_by_programs(cloud):
    done = check(*cloud({"fault": "short"}), "-y", "--json", "--line", LINE, "--line", "a repeated launch")
    found = json.loads(done.stdout)
    assert [(line["name"], line["status"]) for line in found["lines"]] == [
        ("as_many_nodes_as_asked_for_are_listed_when_create_returns", "failed"),
        ("a_repeated_launch_buys_nothing_more", "failed"),
    ]
    assert (found["provider"], found["kept"], found["left"], done.exit_code) == (CLOUD, False, {}, 1)
    assert (found["bound"]["machines"], found["bound"]["dollars"]) == (6, pytest.approx(0.1333, abs=1e-3))


def test_how_refusals_are_provoked_is_read_from_a_file(cloud, tmp_path):
    errors = tmp_path / "errors.yaml"
    fault = {"fault": "fail", "call": "create_node", "kind": "quota"}
    errors.write_text(json.dumps({"quota": {"provider": {"faults": [fault]}}}))
    done = check(*cloud(), "-y", "--errors", str(errors), "--line", "refusal")
    assert "quota: 'faulty cloud: create_node was refused (quota)'" in done.stdout
    assert done.exit_code == 0


@pytest.mark.slow
def test_what_is_left_is_named_and_ended_with_the_command_that_is_shown(cloud):
    words = cloud({"fault": "fail", "call": "terminate_node", "kind": "permission"})
    done = check(*words, "--call-limit", "0.2", "-y", "--line", LINE)
    *_, left, how = done.stderr.splitlines()
    assert (" muster-check-" in left, " machine-1, machine-2, machine-3" in left) == (True, True)
    command = how.partition("provider end ")[2].partition(" (or")[0].split()
    cloud()
    ended = check(*command, command="end")
    assert (ended.stdout, ended.exit_code, cloud.living()) == ("nothing is left\n", 0, [])


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["nosuch.Class", "--config", "FILE"],
            "mine.yaml: provider.module: 'nosuch.Class': there is no module",
        ),
        (
            ["--config", "FILE", "--type", "smal"],
            "mine.yaml: available_node_types: has no type 'smal'; did you",
        ),
        (["--config", "none.yaml"], "none.yaml"),
        (["--config", "FILE", "--line", "xyz"], "--line: no line of the contract has 'xyz'; see --list"),
        (["--config", "FILE", "--several", "0"], "--several"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_created(cloud, words, says):
    cloud()
    done = check(*(str(cloud.file) if word == "FILE" else word for word in words), "-y")
    assert says in done.stderr
    assert (len(done.stderr.splitlines()), done.exit_code, cloud.state.exists()) == (1, 2, False)


def test_a_fault_that_is_misspelt_is_named(cloud):
    done = check(*cloud({"fault": "shrot"}), "-y", "--line", LINE)
    assert (" provider.faults[0]: " in done.stderr, "mine.yaml" in done.stderr) == (True, True)
    assert " 'short'?" in done.stderr
    assert (done.exit_code, cloud.state.exists()) == (2, False)


def test_clusters_of_others_are_not_ended(cloud):
    cloud()
    done = check(CLOUD, "production", "--config", str(cloud.file), command="end")
    assert (done.exit_code, "muster" in done.stderr, " down" in done.stderr) == (2, True, True)


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_the_machines_first(cloud, number):
    """Create calls are slow from the second one on: one is under way when the signal comes."""
    words = cloud({"fault": "slow", "call": "create_node", "seconds": 0.7, "after": 1})
    program = [sys.executable, "-m", "muster", "provider", "check", *words, "-y"]
    running = subprocess.Popen(
        program,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "COLUMNS": "200"},
    )
    wait_until(lambda: cloud.living() or running.poll() is not None)
    running.send_signal(number)
    shown, told = running.communicate(timeout=60)
    assert (running.returncode, cloud.living()) == (130, [])
    assert "interrupted: " in shown
    assert shown.splitlines()[-1] == "nothing is left"
    assert "interrupted: " in told


def wait_until(holds, limit_s=60.0):
    end = time.monotonic() + limit_s
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)
