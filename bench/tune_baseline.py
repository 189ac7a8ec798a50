"""Measure what this machine can do at best: messages between two processes, and the files of a trial.

A result cannot be cheaper than the one, nor a trial with loggers than the other.
"""

from __future__ import annotations

import multiprocessing
import time
from multiprocessing.connection import Connection
from pathlib import Path

FILES = {  # what the default loggers leave in the directory of a trial with one result: bytes
    "params.json": 50,
    "params.pkl": 50,
    "result.json": 450,
    "progress.csv": 350,
    "events.out.tfevents": 750,
}


def round_trips_per_s(rounds: int) -> float:
    """A child sends a small dict and gets a short answer, `rounds` times."""
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


def files_s(trials: int, storage: str) -> float:
    """Return wall seconds per directory with five small files."""
    started = time.perf_counter()
    for number in range(trials):
        place = Path(storage) / f"train_00000_{number:05d}"
        place.mkdir()
        for name, size in FILES.items():
            (place / name).write_bytes(bytes(size))
    return (time.perf_counter() - started) / trials
