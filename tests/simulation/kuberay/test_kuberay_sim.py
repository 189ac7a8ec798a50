"""A simulated RayCluster: the real provider, an operator that lags, an API server that fails."""

from __future__ import annotations

import pytest
from tests.series import length
from tests.simulation.kuberay.run import FAULTS, KubeRayRun

from muster.providers.kuberay import scaling

# The first seeds, one with a right that is taken (15), and those that once failed: a suspended cluster that
# took nodes joined by hand for pods (272, 322) and gave up busy pods (252, 688), a pod that grew forever
# after the right to resize was lost (544). The checker was wrong about 11100 and 11971: a change of size was
# called late in a tick that saw the machine or its node, not both.
FOUND = (
    *(15, 39, 252, 272, 322, 544, 688, 11100, 11971),
    950274,  # a partial report: a node that had ended was forgotten, and taken for that of another machine
    360010,  # a machine had the type of a node that named it, so its own node did not hold it
    *(7000108, 7100268),  # (the checker) the record of a lost head ends one look after its node is given up
    7100023,  # (the checker) a node with a cloned id may be on any machine
    9300073,  # (the checker) a suspended cluster's records end at the look after their nodes are lost
)
SEEDS = (*range(length(4, 500)), *FOUND)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_property_and_all_faults_of_kubernetes_were_there():
    reports = [KubeRayRun(seed).to_end() for seed in SEEDS]
    assert {report.seed: report.violations for report in reports if report.violations} == {}
    assert FAULTS.keys() - {kind for report in reports for kind in report.faults} == set()
    assert sum(report.machines_launched for report in reports) > 100


@pytest.mark.slow
def test_two_runs_of_one_seed_are_equal():
    assert KubeRayRun(5).to_end() == KubeRayRun(5).to_end()


@pytest.mark.slow
def test_a_scaler_that_forgets_what_it_asked_for_is_found(monkeypatch):
    monkeypatch.setattr(scaling, "applied_requests", lambda cluster: ())
    reports = [KubeRayRun(seed).to_end() for seed in (204, 208, 215, 216, 222, 228)]
    assert any("asked for" in text for report in reports for text in report.violations)
