"""PilotJobs and commands that fail: which errors end an experiment, and which are waited out."""

from __future__ import annotations

import threading

import pytest

from muster.base.clock import SystemClock
from muster.engines.slurm import pilot_jobs
from muster.engines.slurm.pilot_jobs import PilotJobs, PilotLedger
from muster.slurm.wire import SlurmRefused, SlurmUnreachable


class HeldSlurm:
    """It answers nothing before it is released; it notes what is submitted."""

    def __init__(self):
        self.released, self.arrays = threading.Event(), []

    def config(self):
        assert self.released.wait(10.0)
        return {"MaxArraySize": "1001"}

    def sbatch(self, options, script):
        self.arrays += [option for option in options if option.startswith("--array=")]
        return "7"

    def squeue(self):
        return []


class FailingSlurm:
    """Its `squeue` fails as scripted, then works."""

    def __init__(self, errors):
        self.errors, self.lists = list(errors), 0

    def config(self):
        return {}

    def squeue(self):
        self.lists += 1
        if self.errors:
            raise self.errors.pop(0)
        return []


@pytest.fixture
def views(tmp_path, monkeypatch):
    """A function that returns what PilotJobs publishes until a list has worked, or refusals say no."""
    monkeypatch.setattr(pilot_jobs, "LOOK_S", 0.001)

    def collect(errors):
        found, ended = [], threading.Event()

        def on_view(view):
            found.append(view)
            if view.refusal is not None or not wire.errors:
                ended.set()

        wire, ledger = FailingSlurm(errors), PilotLedger(tmp_path)
        jobs = PilotJobs(wire, ledger, SystemClock(), on_view)
        assert ended.wait(10.0)
        jobs.close(cancels=False)
        return [view.refusal for view in found]

    return collect


@pytest.mark.parametrize(
    "errors",
    [
        [SlurmRefused("squeue: nobody knows what this means")] * 2,
        [SlurmUnreachable("squeue: no answer", fix="wait")] * 9,
    ],
)
def test_a_list_that_fails_for_a_moment_is_no_refusal(views, errors):
    assert set(views(errors)) == {None}


@pytest.mark.parametrize(
    "errors",
    [
        [SlurmRefused("squeue: nobody knows what this means")] * 3,
        [SlurmRefused("squeue: no configuration", fix="set SLURM_CONF")],
    ],
)
def test_a_list_that_keeps_failing_and_one_with_a_known_cause_are_refusals(views, errors):
    assert views(errors)[0] is errors[-1]


@pytest.mark.parametrize(("cancelled", "arrays"), [(0, ["--array=0-2"]), (1, ["--array=0-1"]), (3, [])])
def test_pilots_cancelled_before_their_submission_are_not_submitted(tmp_path, monkeypatch, cancelled, arrays):
    monkeypatch.setattr(pilot_jobs, "FIRST_LOOK_S", 0.0)
    wire, looked = HeldSlurm(), threading.Event()
    jobs = PilotJobs(wire, PilotLedger(tmp_path), SystemClock(), lambda view: looked.set())
    jobs.request(3, [], "")
    jobs.cancel(list(jobs.alive())[:cancelled])
    wire.released.set()
    assert looked.wait(10.0)
    jobs.close(cancels=False)
    assert wire.arrays == arrays
