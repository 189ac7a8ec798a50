"""One server for the session's process; clusters of tests have names of their own."""

from __future__ import annotations

import logging
import warnings

import pytest

LAUNCHER_IP = "203.0.113.7"


@pytest.fixture(scope="session")
def ec2_process():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pytest.importorskip("moto.server", reason="moto[server] is not installed")
        from tests.providers.aws.ec2_server import Ec2Server

        logging.getLogger("werkzeug").setLevel(logging.ERROR)
        server = Ec2Server()
    yield server
    server.close()


@pytest.fixture
def ec2(ec2_process, monkeypatch, tmp_path):
    """Return the server without faults, and let boto3 find it; clusters of other tests may be there."""
    ec2_process.faults.reset()
    for name, value in ec2_process.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("AWS_PROFILE", raising=False)
    monkeypatch.setattr("muster.providers.aws.ssh_access.public_address", lambda: LAUNCHER_IP)
    return ec2_process


@pytest.fixture
def empty_ec2(ec2):
    """Return the server with nothing in it, which takes a moment."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ec2.reset()
    return ec2
