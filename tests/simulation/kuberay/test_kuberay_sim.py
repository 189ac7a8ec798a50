"""A simulated RayCluster: muster's own scaler, an operator that lags, an API server that fails."""

from __future__ import annotations

import pytest
from tests.series import length

from muster.providers.kuberay import scaling
from muster.sim.cluster.kuberay import FAULTS, KubeRayRun

# The first seeds, and those that once failed: a slice whose last host came while the others left (39), slices
# that were replaced (75), a minimum that keeps one of several idle slices (87), idle hosts beside a busy one
# (104), a request beside a slice that fills its group (197).
SEEDS = (*range(length(6, 500)), 39, 75, 87, 104, 197)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_no_seed_breaks_a_property_and_all_faults_of_kubernetes_were_there():
    reports = [KubeRayRun(seed).to_end() for seed in SEEDS]
    assert {report.seed: report.violations for report in reports if report.violations} == {}
    assert FAULTS.keys() - {kind for report in reports for kind in report.faults} == set()
    assert sum(report.machines_bought for report in reports) > 100


@pytest.mark.slow
def test_two_runs_of_one_seed_are_equal():
    assert KubeRayRun(5).to_end() == KubeRayRun(5).to_end()


@pytest.mark.slow
def test_a_scaler_that_forgets_what_it_asked_for_is_found(monkeypatch):
    monkeypatch.setattr(scaling, "applied_requests", lambda cluster: ())
    reports = [KubeRayRun(seed).to_end() for seed in (204, 208, 215, 216, 222, 228)]
    assert any("asked for" in text for report in reports for text in report.violations)
