"""Run seeds on the simulated Slurm: nothing doubled or leaked, limits held, queues waited for."""

from __future__ import annotations

import pytest
from tests.series import length
from tests.simulation.slurm.cloud import FAULTS
from tests.simulation.slurm.run import SlurmRun

from muster.providers.slurm import provider as slurm

# Seeds that once broke a property, and why.
FOUND = {
    131: "an outdated list took the notice of a time limit back: the node served beside its replacement",
    1111: "(the simulator) a process that was gone submitted jobs",
    1362: "a refused drain under notice was not repeated without a report: one node too many",
    1484: "(the checker) after a gap, a head's record is closed after two more lists",
    1708: "(the checker) a partial report in a tick without a list",
    1892: "(the checker) a node that came before its machine was listed could be on a lost one without an ip",
    340112: "a report lacked every other node: a cancelled machine was given up under one that it lacked",
}
SEEDS = (*range(length(12, 500)), *FOUND)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_property_and_all_faults_of_slurm_were_there():
    reports = [SlurmRun(seed).to_end() for seed in SEEDS]
    assert {report.replay: report.violations for report in reports if report.violations} == {}
    assert FAULTS.keys() - {kind for report in reports for kind in report.faults} == set()
    assert sum(report.machines_launched for report in reports) > 100


@pytest.mark.slow
def test_two_runs_of_one_seed_are_equal():
    assert SlurmRun(5).to_end() == SlurmRun(5).to_end()


@pytest.mark.slow
def test_a_provider_that_repeats_a_submission_too_early_is_found(monkeypatch):
    monkeypatch.setattr(slurm, "LATE_S", -1.0)
    monkeypatch.setattr(slurm, "_is_same", lambda known, tag: False)
    reports = (SlurmRun(seed).to_end() for seed in range(60))
    assert any(report.violations for report in reports)
