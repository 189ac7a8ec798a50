"""`muster.air.session`, and what becomes of Ray's own `report` inside a trial of ours."""

from __future__ import annotations

import pytest

from muster import tune
from muster.air import session
from muster.engines.worker.exit_report import failed_exit
from muster.engines.worker.run_trainable import refuse_rays_session
from muster.session.session import install, uninstall

RAYS = {
    "get_checkpoint",
    "get_experiment_name",
    "get_local_rank",
    "get_local_world_size",
    "get_metadata",
    "get_node_rank",
    "get_storage",
    "get_trial_dir",
    "get_trial_id",
    "get_trial_name",
    "get_trial_resources",
    "get_world_rank",
    "get_world_size",
    "report",
}


def run(tmp_path, trainable, **space):
    config = tune.RunConfig(name="e", storage_path=str(tmp_path), verbose=0, engine="local")
    return tune.Tuner(trainable, param_space=space, run_config=config).fit()


def test_it_has_rays_names_and_outside_of_a_trial_they_answer_none():
    assert set(session.__all__) == RAYS
    assert session.get_trial_id() is None


@pytest.mark.slow
def test_a_trial_reports_and_asks_who_it_is(tmp_path):
    def train(config):
        from muster.air.session import get_trial_dir, get_trial_name

        for step in range(2):
            names = {"id": session.get_trial_id(), "name": get_trial_name(), "dir": get_trial_dir()}
            session.report({"step": step, "experiment": session.get_experiment_name(), **names})

    (result,) = run(tmp_path, train)
    seen = {key: result.metrics[key] for key in ("step", "experiment", "id", "dir")}
    expected = {"step": 1, "experiment": "e", "id": result.metrics["trial_id"], "dir": result.path}
    assert (seen, result.metrics["name"].startswith("train_")) == (expected, True)


@pytest.fixture
def in_a_trial():
    refuse_rays_session()
    token = install(object(), whole_process=True)  # type: ignore[arg-type]  # only that there is one matters
    yield
    uninstall(token)


@pytest.mark.slow
@pytest.mark.parametrize("module", ["ray.air.session", "ray.tune", "ray.train"])
def test_rays_own_report_is_refused_in_a_trial(in_a_trial, module):
    rays = pytest.importorskip(module)
    for _ in range(2):  # Ray warns once per process
        with pytest.raises(RuntimeError) as refused:
            rays.report({"loss": 1.0})
        last = failed_exit(refused.value).message.splitlines()[-1]
        assert "muster compat" in last


@pytest.mark.slow
def test_outside_of_a_trial_it_stays_what_it_is():
    rays = pytest.importorskip("ray.air.session")
    refuse_rays_session()
    with pytest.warns(UserWarning, match="Tuner or Trainer"):
        assert rays.report({"loss": 1.0}) is None


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_leftover_import_fails_the_trial_at_its_first_report(tmp_path):
    pytest.importorskip("ray")

    def train(config):
        from ray.air import session as rays

        for step in range(1000):
            rays.report({"step": step})

    (result,) = run(tmp_path, train)
    assert isinstance(result.error, RuntimeError)
    assert "muster compat" in str(result.error)
