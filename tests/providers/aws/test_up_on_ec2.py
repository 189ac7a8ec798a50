"""`muster up --dry-run` and `muster down --purge` of the example, against the EC2 server."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from click.testing import CliRunner

from muster.autoscaler.lifecycle.open import LaunchContext, OpenCluster
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.cli.main import cli

ROOT = Path(__file__).parents[3]
pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def muster(monkeypatch, tmp_path):
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("COLUMNS", "200")
    logging.getLogger("muster").addHandler(logging.NullHandler())
    return lambda *words: CliRunner().invoke(cli, [str(word) for word in words])


@pytest.fixture
def example(tmp_path):
    file = tmp_path / "aws.yaml"
    file.write_text((ROOT / "examples" / "aws.yaml").read_text())
    return file


def test_a_dry_run_shows_what_would_be_made_with_its_price_and_makes_nothing(ec2, muster, example):
    done = muster("up", example, "--dry-run")
    assert done.exit_code == 0, done.output
    for text in (
        "aws: would be started on AWS (us-east-1)",
        "$0.096/h at first, at most $8.344/h",
        "a month of that: $70.08, at most $6,091.12",
        "key pair muster-aws-us-east-1, with its key in ~/.ssh/muster-aws-us-east-1.pem",
        "security group muster-aws; SSH only from 203.0.113.7/32",
        "ami-00000000",  # the newest Ubuntu
        '"ec2:CreateFleet"',
    ):
        assert text in done.output
    kinds = ("Create", "Import", "Run", "Authorize", "Put", "Add")
    made = {call: n for call, n in ec2.faults.calls.items() if call.startswith(kinds)}
    assert set(made) <= {"CreateFleet", "RunInstances", "CreateLaunchTemplate"}  # dry runs
    assert not ec2.faults.bodies


def test_up_shows_who_may_use_ssh_before_it_asks(ec2, muster, example):
    done = muster("up", example)
    assert done.exit_code != 0  # nobody answers
    assert "203.0.113.7/32" in done.output
    assert not ec2.faults.bodies


def test_an_image_that_is_nowhere_is_found_before_anything_is_made(ec2, muster, example):
    example.write_text(example.read_text().replace("InstanceType: m5.large", "InstanceType: m6g.large"))
    done = muster("up", example, "-y")
    assert done.exit_code == 2
    assert "arm64" in done.output
    assert not [call for call in ec2.faults.calls if call in ("CreateSecurityGroup", "ImportKeyPair")]


def test_a_dry_run_names_what_is_missing(ec2, muster, example):
    ec2.faults.denied.add("RunInstances")
    done = muster("up", example, "--dry-run")
    assert done.exit_code == 2
    assert '"Action": "ec2:RunInstances"' in done.output
    assert not ec2.faults.bodies


def test_what_up_prepares_is_removed_by_down_with_purge(empty_ec2, muster, example, tmp_path):
    context = LaunchContext(tmp_path / "home" / "clusters", {}, SystemClock(), RandomIds())
    with OpenCluster(context, example) as session:
        session.bootstrap()
        assert session.config.auth.ssh_private_key == "~/.ssh/muster-aws-us-east-1.pem"
        assert session.filled is None  # the file goes to the head as it is
    assert (tmp_path / ".ssh" / "muster-aws-us-east-1.pem").is_file()
    done = muster("down", example, "-y", "--purge")
    assert done.exit_code == 0, done.output
    assert not (tmp_path / ".ssh" / "muster-aws-us-east-1.pem").exists()
    calls = empty_ec2.faults.calls
    assert (calls["DeleteKeyPair"], calls["DeleteSecurityGroup"], calls["DeleteRole"]) == (1, 1, 1)


def test_nothing_secret_is_written_or_logged(ec2, muster, example, monkeypatch, tmp_path, caplog):
    secret = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY"
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)
    with caplog.at_level(logging.DEBUG, logger="muster"):
        done = muster("up", example, "--dry-run")
    written = [path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()]
    assert secret not in done.output + caplog.text
    assert not any(secret.encode() in text for text in written)
