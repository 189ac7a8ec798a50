"""An interrupted `muster up` leaves nothing on real hosts: no process, no file, no crontab line, no lock."""

from __future__ import annotations

import random
import signal
import threading
import time

import pytest
from tests.rack import BIN, RackCluster, wait_until
from tests.series import SEED, length

pytestmark = pytest.mark.slow
HOSTS = 2
# Not Ray, which takes a minute: the monitor waits for a GCS that never answers.
START = f"true {BIN}/ray start --head; nohup sleep 1000 >/dev/null 2>&1 & sleep 1"
SETUP = "setup_commands: ['sleep 1']\n"
FIRST_WITH_RAY = 10  # of the whole series
RAY = (
    f"{BIN}/ray start --head --port=6379 --num-cpus=0 --include-dashboard=false --disable-usage-stats "
    "--object-store-memory=80000000"
)
# The steps in which `up` is interrupted, by the words with which they are announced.
POINTS = (
    "looking for the head",
    "getting a machine",
    "waiting for the machine",
    "setting up: ",
    "writing the cluster's files",
    "installing muster",
    "starting Ray: ",
    "starting the monitor",
    "waiting for the monitor",
)


@pytest.fixture
def rack(hosts, tmp_path):
    made = RackCluster(hosts, tmp_path)
    made.write(SETUP, start=START)
    yield made
    made.clear()


def send_after(rack, words, wait_s, *signals):
    """Start `up`, send signals a while after a step was announced, and returns what was printed."""
    process = rack.start("up", "FILE", "-y", "--no-check")
    lines = []

    def read():
        lines.extend(line.strip() for line in process.stderr)

    reader = threading.Thread(target=read)
    with process:
        reader.start()
        wait_until(lambda: any(words in line for line in lines) or process.poll() is not None, words)
        time.sleep(wait_s)
        assert process.poll() is None, lines
        for number in signals:
            rack.signal(process, number)
            time.sleep(0.2)
        process.wait(timeout=200)
        reader.join()
    return lines


def moment(rack, number, name):
    """Return when `up` is interrupted; the later ones of a series start a real Ray."""
    draw = random.Random(f"{name}-{SEED}-{number}")
    words, wait_s = draw.choice(POINTS), draw.uniform(0.0, 1.5)
    if number < FIRST_WITH_RAY:
        return words, wait_s
    rack.write(SETUP, start=f"{RAY} --node-ip-address={rack.hosts[0].ip}")
    return words, 4 * wait_s if words.startswith("starting Ray") else wait_s


@pytest.mark.parametrize("number", range(length(3, 20)))
def test_an_interrupted_up_leaves_nothing(rack, number, kills):
    """Every other time the user presses Ctrl-C twice."""
    words, wait_s = moment(rack, number, "interrupt")
    lines = send_after(rack, words, wait_s, *[signal.SIGINT] * (1 + number % 2))
    kills.append(f"up: {words} + {wait_s:.2f} s")
    assert rack.left(without_logs=True) == {}, lines


@pytest.mark.parametrize("number", range(length(1, 20)))
def test_down_after_a_killed_up_leaves_nothing(rack, number, kills):
    words, wait_s = moment(rack, number, "kill")
    send_after(rack, words, wait_s, signal.SIGKILL)
    kills.append(f"up: {words} + {wait_s:.2f} s")
    done = rack.run("down", "FILE", "-y")
    assert (done.returncode, rack.left()) == (0, {}), done.stderr
