"""Which callbacks an experiment gets."""

from __future__ import annotations

import pytest

from muster.tune.callback import Callback
from muster.tune.logger.csv import CSVLoggerCallback
from muster.tune.logger.files.writer import FailureFiles
from muster.tune.logger.json import JsonLoggerCallback
from muster.tune.logger.logger import default_callbacks
from muster.tune.logger.tensorboardx import TBXLoggerCallback

JSON_PATH = "muster.tune.logger.JsonLoggerCallback"


def kinds(callbacks):
    return [type(callback) for callback in callbacks]


def test_users_callbacks_come_first_then_the_environments_the_reporter_and_the_loggers():
    class Mine(Callback):
        pass

    class Reporter(Callback):
        pass

    environment = {"RAY_TUNE_CALLBACKS": "muster.tune.callback.Callback"}
    assert kinds(default_callbacks([Mine()], environment, Reporter())) == [
        Mine,
        Callback,
        Reporter,
        CSVLoggerCallback,
        JsonLoggerCallback,
        TBXLoggerCallback,
        FailureFiles,
    ]


def test_a_logger_that_is_there_is_not_added_again():
    class Mine(CSVLoggerCallback):
        pass

    environment = {"RAY_TUNE_CALLBACKS": JSON_PATH}
    assert kinds(default_callbacks([Mine()], environment)) == [
        Mine,
        JsonLoggerCallback,
        TBXLoggerCallback,
        FailureFiles,
    ]


def test_loggers_can_be_turned_off_but_not_error_files():
    assert kinds(default_callbacks(None, {"TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"})) == [FailureFiles]


def test_several_names_may_have_blanks_between_them():
    environment = {
        "RAY_TUNE_CALLBACKS": f" {JSON_PATH} , , muster.tune.callback.Callback,",
        "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1",
    }
    assert kinds(default_callbacks((), environment)) == [JsonLoggerCallback, Callback, FailureFiles]


@pytest.mark.conformance("C-202")
@pytest.mark.parametrize(
    ("path", "cause"),
    [
        ("no.such.module.Thing", ModuleNotFoundError),
        ("muster.tune.callback.Nothing", AttributeError),
        ("Thing", ValueError),
        ("muster.errors.InvalidTransition", TypeError),
    ],
)
def test_a_name_that_does_not_work_is_told_with_its_cause(path, cause):
    with pytest.raises(ValueError, match=f"{path}") as caught:
        default_callbacks((), {"RAY_TUNE_CALLBACKS": path})
    assert type(caught.value.__cause__) is cause
