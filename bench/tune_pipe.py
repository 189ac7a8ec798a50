"""What a result would cost if it were only a message: round trips over a pipe between two processes."""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection


def round_trips_per_s(rounds: int) -> float:
    """A child sends a small dict, we answer with a word; `rounds` times."""
    context = multiprocessing.get_context("spawn")
    here, there = context.Pipe()
    child = context.Process(target=reporting, args=(there, rounds), daemon=True)
    child.start()
    there.close()
    here.recv()
    started = time.perf_counter()
    for _ in range(rounds):
        here.send(True)
        here.recv()
    wall_s = time.perf_counter() - started
    child.join()
    return rounds / wall_s


def reporting(pipe: Connection, rounds: int) -> None:
    pipe.send("ready")
    for step in range(rounds):
        pipe.recv()
        pipe.send({"score": 0.5, "training_iteration": step})
