"""Experiments whose trials are several processes, which meet at MASTER_PORT as torch's ranks do.

Usage: python ranks_driver.py FOLDER [HOW]; runs or continues `train` there.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from muster import tune

WORKERS, STEPS = 3, 6


def rank():
    return int(os.environ["RANK"])


class Meeting:
    """All ranks wait for each other, as in a collective call; a rank that is gone raises in the others."""

    def __init__(self):
        address = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
        others = int(os.environ["WORLD_SIZE"]) - 1
        if rank() == 0:
            with socket.create_server(address) as server:
                self.peers = [server.accept()[0] for _ in range(others)]
            return
        while True:
            with contextlib.suppress(ConnectionRefusedError):
                self.peers = [socket.create_connection(address)]
                return
            time.sleep(0.005)

    def sum(self, number):
        if rank() == 0:
            total = number + sum(self._take(peer) for peer in self.peers)
        else:
            self.peers[0].sendall(bytes([number]))
            return self._take(self.peers[0])
        for peer in self.peers:
            peer.sendall(bytes([total]))
        return total

    @staticmethod
    def _take(peer):
        data = peer.recv(1)
        if not data:
            raise ConnectionError("a rank is gone")
        return data[0]


def note(folder, text):
    """Append a line; several processes do."""
    with open(Path(folder) / "notes", "a", encoding="utf-8") as stream:
        stream.write(f"{text}\n")


def notes(folder):
    file = Path(folder) / "notes"
    return [line.split() for line in file.read_text().splitlines()] if file.exists() else []


def leave_behind(folder):
    """Start a process in another session whose parent has ended, and one that ignores SIGTERM."""
    ignore = "import os, signal, time; signal.signal(15, signal.SIG_IGN)"
    code = f"{ignore}; print(os.getpid(), flush=True); time.sleep(600)"
    for session in (True, False):
        made = subprocess.Popen(
            [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=session
        )
        note(folder, f"pid {int(made.stdout.readline())}")


def train(config):
    """Report from all ranks, with a checkpoint from rank 0; `how` says which rank misbehaves and when."""
    folder, (how, when) = config["folder"], config.get("how", {}).get(rank(), ("", 0))
    if config.get("bad", config["x"]) != config["x"]:
        how = ""
    note(folder, f"pid {os.getpid()}")
    if how == "ignores":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if how == "leaves":
        leave_behind(folder)
    first, checkpoint = 0, tune.get_checkpoint()
    if checkpoint is not None:
        with checkpoint.as_directory() as path:
            first = json.loads(Path(path, "state").read_text())["step"] + 1
    note(folder, f"begin {rank()} {first}")
    meeting = Meeting()
    for step in range(first, config.get("steps", STEPS)):
        together = meeting.sum(1)
        if step == when and how in HOWS:
            sys.stdout.write(f"rank {rank()} is about to end\n")
            HOWS[how]()
        with tempfile.TemporaryDirectory() as path:
            Path(path, "state").write_text(json.dumps({"step": step}))
            saved = tune.Checkpoint.from_directory(path) if rank() == 0 else None
            tune.report({"step": step, "loss": config["x"] + rank(), "ranks": together}, checkpoint=saved)
        time.sleep(config.get("pause_s", 0.0))
    note(folder, f"end {rank()}")


def fail():
    raise ValueError("an error of the rank")


HOWS = {
    "raises": fail,
    "killed": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "exits": lambda: os._exit(3),
    "sleeps": lambda: time.sleep(600),
    "ignores": lambda: time.sleep(600),
}


def trainable():
    return tune.with_workers(train, workers=WORKERS, resources_per_worker={"CPU": 0.1})


def main(folder, how=""):
    path = str(Path(folder, "e"))
    if tune.Tuner.can_restore(path):
        tuner = tune.Tuner.restore(path, trainable=trainable())
    else:
        run = tune.RunConfig(name="e", storage_path=folder, verbose=0)
        space = {
            "x": tune.grid_search([0, 1]),
            "folder": folder,
            "pause_s": 0.1 if not how else 1000.0,
            "how": {0: (how, 0)},
        }
        tuner = tune.Tuner(trainable(), param_space=space, run_config=run)
    sys.stdout.write(json.dumps([result.metrics["step"] for result in tuner.fit()]) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
