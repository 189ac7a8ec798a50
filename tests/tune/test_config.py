from __future__ import annotations

import inspect
import os
import pickle
import subprocess
import sys
from datetime import timedelta
from pathlib import Path

import pytest

from muster.tune.config import CheckpointConfig, FailureConfig, RunConfig, SyncConfig, log_files, seconds
from muster.tune.search.search_generator import SearchGenerator
from muster.tune.search.searcher import Searcher
from muster.tune.tune_config import ResumeConfig, TuneConfig, goal_of


def defaults(kind) -> dict:
    return {name: parameter.default for name, parameter in inspect.signature(kind).parameters.items()}


def in_order(values: dict) -> list:
    return list(values.items())


def test_tune_config_has_the_reference_fields_in_their_order():
    assert in_order(defaults(TuneConfig)) == in_order(
        {
            "mode": None,
            "metric": None,
            "search_alg": None,
            "scheduler": None,
            "num_samples": 1,
            "max_concurrent_trials": None,
            "time_budget_s": None,
            "reuse_actors": False,
            "trial_name_creator": None,
            "trial_dirname_creator": None,
            "chdir_to_trial_dir": "DEPRECATED",
            "cost_budget": None,
            "deadline": None,
            "constraints": None,
        }
    )


def test_run_config_has_the_reference_fields_and_ours_last():
    assert in_order(defaults(RunConfig)) == in_order(
        {
            "name": None,
            "storage_path": None,
            "storage_filesystem": None,
            "failure_config": None,
            "checkpoint_config": None,
            "sync_config": None,
            "verbose": None,
            "stop": None,
            "callbacks": None,
            "progress_reporter": None,
            "log_to_file": False,
            "local_dir": None,
            "engine": "auto",
            "trial_time_limit_s": None,
            "page": False,
            "price_per_hour": None,
        }
    )


def test_the_parts_have_the_reference_fields_in_their_order():
    assert in_order(defaults(CheckpointConfig)) == in_order(
        {
            "num_to_keep": None,
            "checkpoint_score_attribute": None,
            "checkpoint_score_order": "max",
            "checkpoint_frequency": 0,
            "checkpoint_at_end": None,
            "_checkpoint_keep_all_ranks": "DEPRECATED",
            "_checkpoint_upload_from_workers": "DEPRECATED",
        }
    )
    assert in_order(defaults(FailureConfig)) == in_order({"max_failures": 0, "fail_fast": False})
    assert in_order(defaults(SyncConfig)) == in_order(
        {
            "sync_period": 300,
            "sync_timeout": 1800,
            "sync_artifacts": False,
            "sync_artifacts_on_checkpoint": True,
        }
    )
    kind = ResumeConfig.ResumeType
    assert in_order(defaults(ResumeConfig)) == in_order(
        {"finished": kind.SKIP, "unfinished": kind.RESUME, "errored": kind.SKIP}
    )
    assert [each.value for each in kind] == ["resume", "restart", "skip"]


def test_a_run_config_fills_in_fresh_parts(monkeypatch):
    monkeypatch.delenv("RAY_STORAGE", raising=False)
    monkeypatch.delenv("RAY_AIR_NEW_OUTPUT", raising=False)
    one, other = RunConfig(), RunConfig()
    assert one.storage_path == os.path.expanduser("~/ray_results")
    assert one.verbose == 1
    assert (one.failure_config, one.checkpoint_config, one.sync_config) == (
        FailureConfig(),
        CheckpointConfig(),
        SyncConfig(),
    )
    assert one.failure_config is not other.failure_config
    assert one == other


def test_the_old_console_has_another_default_verbosity(monkeypatch):
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    assert RunConfig().verbose == 3


def test_a_path_object_becomes_text_and_text_stays_as_it_is():
    assert RunConfig(storage_path=Path("/data/results")).storage_path == "/data/results"
    assert RunConfig(storage_path="s3://bucket/results").storage_path == "s3://bucket/results"


def test_the_old_environment_variable_for_storage_works_with_a_warning(monkeypatch):
    monkeypatch.setenv("RAY_STORAGE", "s3://bucket/old")
    with pytest.warns(DeprecationWarning, match="RAY_STORAGE.*s3://bucket/old"):
        assert RunConfig().storage_path == "s3://bucket/old"
    assert RunConfig(storage_path="/here").storage_path == "/here"


@pytest.mark.conformance("C-249")
@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: RunConfig(local_dir="/x"), "use storage_path"),
        (lambda: TuneConfig(chdir_to_trial_dir=False), "RAY_CHDIR_TO_TRIAL_DIR=0"),
        (lambda: CheckpointConfig(_checkpoint_keep_all_ranks=True), "leave it out"),
        (lambda: CheckpointConfig(_checkpoint_upload_from_workers=False), "leave it out"),
    ],
)
def test_removed_options_raise_their_deprecation(make, told):
    with pytest.raises(DeprecationWarning, match=told):
        make()


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: TuneConfig(mode="maximum"), "TuneConfig(mode='maximum'): must be 'min' or 'max'"),
        (lambda: TuneConfig(mode=["min", "up"]), "TuneConfig(mode=['min', 'up']): must be 'min' or 'max'"),
        (lambda: TuneConfig(num_samples=2.5), "TuneConfig(num_samples=2.5): must be a whole number"),
        (lambda: TuneConfig(num_samples=-2), "TuneConfig(num_samples=-2): must be a whole number"),
        (
            lambda: TuneConfig(num_samples=0),
            "TuneConfig(num_samples=0): must be a whole number above 0",
        ),
        (lambda: TuneConfig(max_concurrent_trials=-1), "TuneConfig(max_concurrent_trials=-1): must be"),
        (
            lambda: TuneConfig(time_budget_s="1h"),
            "TuneConfig(time_budget_s=...): must be a number of seconds",
        ),
        (lambda: CheckpointConfig(num_to_keep=0), "CheckpointConfig(num_to_keep=0): must be at least 1"),
        (lambda: CheckpointConfig(num_to_keep=-1), "CheckpointConfig(num_to_keep=-1): must be at least 1"),
        (
            lambda: CheckpointConfig(checkpoint_score_order="up"),
            "CheckpointConfig(checkpoint_score_order='up'): must be 'max' or 'min'",
        ),
        (
            lambda: CheckpointConfig(checkpoint_frequency=-1),
            "CheckpointConfig(checkpoint_frequency=-1): must be 0 (never) or more",
        ),
        (
            lambda: FailureConfig(fail_fast="yes"),
            "FailureConfig(fail_fast='yes'): must be True, False or 'raise'",
        ),
        (lambda: FailureConfig(fail_fast=1), "FailureConfig(fail_fast=1): must be True, False or 'raise'"),
        (
            lambda: FailureConfig(max_failures=1, fail_fast=True),
            "FailureConfig(max_failures=1, fail_fast=True): a run that ends at the first failure",
        ),
        (
            lambda: FailureConfig(max_failures=-1, fail_fast="raise"),
            "FailureConfig(max_failures=-1, fail_fast='raise'): a run that ends at the first failure",
        ),
        (lambda: SyncConfig(sync_period=-1), "SyncConfig(sync_period=-1): must be a number of seconds"),
        (lambda: ResumeConfig(errored="again"), "ResumeConfig(errored='again'): must be one of 'resume'"),
        (lambda: RunConfig(engine="dask"), "RunConfig(engine='dask'): must be one of 'auto', 'local', 'ray'"),
        (lambda: RunConfig(storage_path="s3://"), "RunConfig(storage_path='s3://'): write s3://bucket/"),
        (lambda: RunConfig(storage_path=Path("s3://b/c")), "RunConfig(storage_path='s3:/b/c'): write s3://"),
        (lambda: TuneConfig(time_budget_s=-1), "TuneConfig(time_budget_s=-1): must be more than 0"),
        (lambda: RunConfig(verbose=4), "RunConfig(verbose=4): must be 0, 1, 2 or 3"),
        (lambda: RunConfig(callbacks=object()), "RunConfig(callbacks=...): must be a list of callbacks"),
        (
            lambda: RunConfig(checkpoint_config={"num_to_keep": 1}),
            "RunConfig(checkpoint_config=...): got a dict; pass CheckpointConfig(**{...})",
        ),
        (lambda: RunConfig(trial_time_limit_s=0), "RunConfig(trial_time_limit_s=0.0): must be more than 0"),
        (lambda: RunConfig(log_to_file=3), "log_to_file=3: must be False, True, the name of one file"),
        (lambda: RunConfig(log_to_file=("a", "b", "c")), "log_to_file=('a', 'b', 'c'): must be False, True"),
    ],
)
def test_a_wrong_value_is_refused_where_it_is_said(make, told):
    with pytest.raises(ValueError) as caught:
        make()
    assert str(caught.value).startswith(told)


def test_values_at_the_edge_are_accepted():
    assert TuneConfig(num_samples=-1).num_samples == -1
    assert TuneConfig(max_concurrent_trials=0).max_concurrent_trials == 0
    assert TuneConfig(mode=["min", "max"], metric=["a", "b"]).mode == ["min", "max"]
    assert FailureConfig(fail_fast="RAISE").raises_first is True
    assert FailureConfig(fail_fast=True).raises_first is False
    assert FailureConfig(max_failures=-1).max_failures == -1
    assert CheckpointConfig(num_to_keep=1, checkpoint_score_order="min").num_to_keep == 1
    assert ResumeConfig(errored="restart").errored is ResumeConfig.ResumeType.RESTART
    assert RunConfig(verbose=0).verbose == 0
    assert [RunConfig(verbose=each).verbose for each in (False, True)] == [0, 1]


@pytest.mark.conformance("C-089")
def test_log_to_file_has_four_forms():
    assert log_files(False) == (None, None)
    assert log_files(True) == ("stdout", "stderr")
    assert log_files("both.log") == ("both.log", "both.log")
    assert log_files(("out.log", "err.log")) == ("out.log", "err.log")


def test_durations_are_numbers_or_timedeltas():
    assert seconds(None, "x") is None
    assert seconds(90, "x") == 90.0
    assert seconds(timedelta(minutes=2), "x") == 120.0


def test_configs_show_only_what_was_said_and_can_be_pickled(monkeypatch):
    monkeypatch.delenv("RAY_STORAGE", raising=False)
    config = RunConfig(name="first", failure_config=FailureConfig(3), trial_time_limit_s=60)
    assert repr(config) == (
        "RunConfig(name='first', failure_config=FailureConfig(max_failures=3), trial_time_limit_s=60)"
    )
    assert repr(RunConfig(storage_path="/data")) == "RunConfig(storage_path='/data')"
    assert repr(TuneConfig("min", "loss")) == "TuneConfig(mode='min', metric='loss')"
    assert pickle.loads(pickle.dumps((config, ResumeConfig()))) == (config, ResumeConfig())


def test_importing_the_value_classes_loads_nothing_heavy():
    modules = "config, result_grid, analysis, trainable"
    heavy = "[n for n in ('numpy', 'pandas', 'rich', 'fsspec', 'cloudpickle') if n in sys.modules]"
    code = f"import sys; from muster.tune import {modules}; print({heavy})"
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert said.stdout == "[]\n"


def test_a_searcher_with_several_objectives_sets_the_goal_of_an_experiment_without_one():
    searcher = Searcher(metric=["acc", "lat"], mode=["max", "min"])
    assert goal_of(None, None, SearchGenerator(searcher)) == (["acc", "lat"], ["max", "min"])
    assert goal_of("loss", "min", searcher) == ("loss", "min")
    assert goal_of(None, None, Searcher(metric="loss", mode="min")) == (None, None)
