"""A real S3 server on loopback, for tests of remote storage; a plugin of tests/conftest.py."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from tests.support.ray_cluster import free_ports

START_S = 120.0


def wait_for(done, within_s=START_S):
    give_up = time.monotonic() + within_s
    while not done():
        assert time.monotonic() < give_up, "gave up waiting"
        time.sleep(0.2)


class Bucket:
    """An S3 server in a separate process."""

    def __init__(self, log: Path) -> None:
        (port,) = free_ports(1)
        self.environment = {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
            "AWS_ACCESS_KEY_ID": "muster",
            "AWS_SECRET_ACCESS_KEY": "muster",
            "AWS_DEFAULT_REGION": "us-east-1",
            "AWS_MAX_ATTEMPTS": "1",
        }
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        with log.open("wb") as said:
            self.process = subprocess.Popen(command, stdout=said, stderr=said, start_new_session=True)

    def close(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


@pytest.fixture(scope="module")
def bucket(tmp_path_factory):
    s3fs = pytest.importorskip("s3fs")
    made = Bucket(tmp_path_factory.mktemp("s3") / "log")
    before = dict(os.environ)
    os.environ.update(made.environment)
    try:
        filesystem = s3fs.S3FileSystem(skip_instance_cache=True)

        def is_up():
            try:
                filesystem.mkdir("bucket")
            except Exception:
                assert made.process.poll() is None
                return False
            return True

        wait_for(is_up)
        s3fs.S3FileSystem.clear_instance_cache()  # one of another module has the port of its server
        yield made
    finally:
        made.close()
        os.environ.clear()
        os.environ.update(before)
