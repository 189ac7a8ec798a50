"""Check the environment variables: each is read or refused, and the docs list all of them."""

from __future__ import annotations

import ast
import json
import logging
import re
from pathlib import Path

import pytest
from tools import variables

from muster import tune
from muster.tune import RunConfig, TuneConfig
from muster.tune.constants import NO_EFFECT, TUNE_ENV_VARS, VARIABLES, number_in
from muster.tune.execution.assemble import settings_of
from muster.tune.execution.launch import check_variables

SOURCE = Path(tune.__file__).parents[1]
INTERNAL = {
    "MUSTER_COMMAND_ID",
    "MUSTER_FORK_SERVER",
    "MUSTER_NODE",
    "MUSTER_SERVICE",
    "MUSTER_TEXT",
    "MUSTER_METRICS",
    "MUSTER_OUTER_RANKS",
    "MUSTER_WORKERS_MAY_WAIT",
}  # muster sets them for itself


def literals():
    """Return every text in the source that looks like a variable of the tuner."""
    for file in SOURCE.rglob("*.py"):
        if file.name != "constants.py":
            for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
                if isinstance(node, ast.Constant) and isinstance(node.value, str):
                    yield node.value


@pytest.mark.slow
def test_every_variable_that_is_read_is_in_the_table():
    pattern = r"(TUNE|MUSTER|RAY_(AIR|AUTH|TLS|TRAIN|TUNE|USE|CHDIR|STORAGE|TMPDIR))_?[A-Z_]*"
    found = {text for text in literals() if re.fullmatch(pattern, text) and not text.endswith("_")}
    assert found - VARIABLES.keys() - INTERNAL == {"RAY_AUTH"}  # the prefix of three


def test_the_docs_list_all_variables():
    assert variables.written() == variables.PAGE.read_text(encoding="utf-8")


def test_rays_set_has_rays_variables_only():
    assert {"TUNE_MAX_LEN_IDENTIFIER", "RAY_TUNE_CALLBACKS"} <= TUNE_ENV_VARS
    assert "MUSTER_PAGE" not in TUNE_ENV_VARS


@pytest.mark.parametrize("given", ["many", "-1", "nan", "1e999"])
def test_a_value_that_is_no_number_is_refused_with_the_name_of_its_variable(given):
    with pytest.raises(ValueError, match="TUNE_WARN_THRESHOLD_S"):
        number_in({"TUNE_WARN_THRESHOLD_S": given}, float, "TUNE_WARN_THRESHOLD_S")


def test_numbers_have_the_default_of_the_table_unless_set():
    name = "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S"
    right = name.replace("CENT", "CIENT")
    cases = [{}, {name: ""}, {name: "auto"}, {name: "2.5"}, {right: "3"}]
    assert [number_in(each, float, name) for each in cases] == [60.0, 60.0, 60.0, 2.5, 3.0]


def test_settings_hold_what_the_environment_says():
    def read(**environment):
        made = settings_of(TuneConfig(), RunConfig(name="x"), "/d", 200, environment)
        return made.result_buffer, made.idle_warning_s, made.max_pending

    assert read() == ((1, 0.0, 100.0), (60.0, 60.0), 200)
    environment = {
        "TUNE_RESULT_BUFFER_LENGTH": "7",
        "TUNE_RESULT_BUFFER_MIN_TIME_S": "0.5",
        "TUNE_RESULT_BUFFER_MAX_TIME_S": "2.5",
        "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S": "1.5",
        "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S_AUTOSCALER": "600",
        "TUNE_MAX_PENDING_TRIALS_PG": "3",
    }
    assert read(**environment) == ((7, 0.5, 2.5), (1.5, 600.0), 3)
    assert read(TUNE_MAX_PENDING_TRIALS_PG="0")[2] == 1  # with 0, no trial would ever start


@pytest.mark.parametrize("name", [name for name in VARIABLES if VARIABLES[name][1].startswith(NO_EFFECT)])
def test_a_variable_without_an_effect_is_named_in_a_warning(caplog, name):
    check_variables({name: "1"})
    assert [(record.levelno, name in record.getMessage()) for record in caplog.records] == [
        (logging.WARNING, True)
    ]


@pytest.mark.parametrize("name", ["TUNE_RESULT_DIR", "RAY_AIR_LOCAL_CACHE_DIR"])
def test_a_removed_variable_is_an_error(name):
    with pytest.raises(DeprecationWarning, match=name):
        check_variables({name: "/somewhere"})


def test_variables_that_are_read_are_not_warned_of(caplog):
    check_variables({name: "1" for name, (_, effect) in VARIABLES.items() if ": " not in effect[:12]})
    assert caplog.records == []


class Fails(tune.Trainable):
    """Fails raises in its third step."""

    def step(self):
        if self.iteration == 3:
            raise ValueError("the third step")
        return {"loss": 1.0 / (1 + self.iteration), "other": 1}

    def save_checkpoint(self, checkpoint_dir):
        Path(checkpoint_dir, "x").write_text("x")


@pytest.mark.slow
def test_a_run_follows_the_variables(tmp_path, monkeypatch, capsys):
    chosen = {
        "TUNE_MAX_LEN_IDENTIFIER": "7",
        "TUNE_ONLY_STORE_CHECKPOINT_SCORE_ATTRIBUTE": "1",
        "TUNE_PRINT_ALL_TRIAL_ERRORS": "0",
    }
    for name, value in chosen.items():
        monkeypatch.setenv(name, value)
    policy = tune.CheckpointConfig(checkpoint_frequency=1, checkpoint_score_attribute="loss")
    run = RunConfig(name="run", storage_path=str(tmp_path), checkpoint_config=policy)
    (result,) = tune.Tuner(Fails, param_space={"x": 1}, run_config=run).fit()
    assert re.fullmatch(r"Fails_\w_\d{4}-.*", Path(result.path).name)
    assert [list(metrics) for _, metrics in result.best_checkpoints] == [["loss"]] * 3
    shown = capsys.readouterr().out.partition("Number of errored trials")[0]
    assert ("errored" in shown, "third" in shown) == (True, False)
    assert json.loads(Path(result.path, "params.json").read_text()) == {"x": 1}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        *("TUNE_GLOBAL_CHECKPOINT_S", "TUNE_WARN_THRESHOLD_S", "TUNE_MAX_LEN_IDENTIFIER"),
        *("TUNE_RESULT_BUFFER_MIN_TIME_S", "TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S_AUTOSCALER"),
    ],
)
def test_a_bad_value_ends_a_run_before_its_first_trial(tmp_path, monkeypatch, name):
    monkeypatch.setenv(name, "soon")
    run = RunConfig(name="bad", storage_path=str(tmp_path), verbose=0)
    with pytest.raises(ValueError, match=f"{name}='soon'"):
        tune.Tuner(Fails, run_config=run).fit()
    assert list(tmp_path.glob("bad/*/")) == []  # no trial has a directory
