from __future__ import annotations

import pytest
from tests.config.conftest import GOOD

from muster.cluster.model import Timeouts
from muster.config.document import Document
from muster.config.environment import VARIABLES, with_environment
from muster.config.schema import MusterConfig
from muster.errors import ConfigError
from muster.providers.kind import load_config, parse_config, watch_file

PREFIX = "RAY_AUTOSCALER_RECONCILE_"
# variable, text, the setting within `muster`, its value
SETTINGS = [
    (f"{PREFIX}REQUEST_STATUS_TIMEOUT_S", "7", ("timeouts", "request_s"), 7.0),
    (f"{PREFIX}ALLOCATE_STATUS_TIMEOUT_S", "7.5", ("timeouts", "allocate_s"), 7.5),
    (f"{PREFIX}RAY_INSTALL_STATUS_TIMEOUT_S", "inf", ("timeouts", "install_s"), 315_360_000.0),
    (f"{PREFIX}TERMINATING_STATUS_TIMEOUT_S", "7", ("timeouts", "terminating_s"), 7.0),
    (f"{PREFIX}RAY_STOP_REQUESTED_STATUS_TIMEOUT_S", "7", ("timeouts", "stop_requested_s"), 7.0),
    (f"{PREFIX}TRANSIENT_STATUS_WARN_INTERVAL_S", "0", ("timeouts", "warn_s"), 0.0),
    (f"{PREFIX}MAX_NUM_RETRY_REQUEST_TO_ALLOCATE", "inf", ("limits", "max_request_retries"), 1_000_000),
    ("AUTOSCALER_MAX_CONCURRENT_LAUNCHES", "inf", ("limits", "max_concurrent"), 1_000_000),
    ("AUTOSCALER_MAX_LAUNCH_BATCH", "2", ("limits", "max_launch_batch"), 2),
    ("AUTOSCALER_NODE_START_WAIT_S", "60", ("setup", "ready_s"), 60.0),
    ("AUTOSCALER_NODE_SSH_INTERVAL_S", "0.5", ("setup", "interval_s"), 0.5),
    ("AUTOSCALER_UPDATE_INTERVAL_S", "0.5", ("monitor", "interval_s"), 0.5),
    ("AUTOSCALER_METRIC_PORT", "0", ("monitor", "metrics_port"), 0),
    ("AUTOSCALER_CONSERVE_GPU_NODES", "0", ("conserve_gpus",), False),
    ("RAY_AUTOSCALER_PENDING_NODE_IDLE_TIMEOUT_S", "30", ("timeouts", "pending_idle_s"), 30.0),
    ("RAY_AUTOSCALER_PENDING_NODE_IDLE_TIMEOUT_S", "-1", ("timeouts", "pending_idle_s"), None),
    ("RAY_AUTOSCALER_AVAILABILITY_RECOVERY_S", "60", ("backoff", "recovery_s"), 60.0),
]


def muster_of(text: str, environment: dict[str, str]) -> MusterConfig:
    return parse_config(Document(text, "c.yaml"), environment).muster


def at(muster: MusterConfig, path: tuple[str, ...]) -> object:
    found: object = muster
    for step in path:
        found = getattr(found, step)
    return found


@pytest.mark.parametrize(("name", "text", "path", "value"), SETTINGS)
def test_a_variable_stands_over_the_default(name, text, path, value):
    assert at(muster_of(GOOD, {name: text}), path) == value


def test_every_variable_is_tested():
    assert {name for name, *_ in SETTINGS} == {variable.name for variable in VARIABLES}


def test_the_file_stands_over_a_variable_key_by_key():
    text = GOOD + "muster: {timeouts: {request_s: 50}, conserve_gpus: true}\n"
    environment = {
        f"{PREFIX}REQUEST_STATUS_TIMEOUT_S": "7",
        f"{PREFIX}TERMINATING_STATUS_TIMEOUT_S": "8",
        "AUTOSCALER_CONSERVE_GPU_NODES": "0",
    }
    muster = muster_of(text, environment)
    assert muster == MusterConfig(timeouts=Timeouts(request_s=50.0, terminating_s=8.0))


def test_variables_that_are_empty_or_not_ours_change_nothing():
    data = {"a": 1}
    assert with_environment(data, {"AUTOSCALER_MAX_LAUNCH_BATCH": " ", "HOME": "x"}) == data


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("AUTOSCALER_MAX_LAUNCH_BATCH", "many", "must be a whole number, not 'many'"),
        ("AUTOSCALER_MAX_LAUNCH_BATCH", "0", "0 must be at least 1 and at most 1e+06"),
        ("AUTOSCALER_MAX_CONCURRENT_LAUNCHES", "2.5", "must be a whole number, not 2.5"),
        ("AUTOSCALER_MAX_CONCURRENT_LAUNCHES", "nan", "nan must be at least 0 and at most 1e+06"),
        ("AUTOSCALER_UPDATE_INTERVAL_S", "inf", "inf must be at least 0.05 and at most 86,400"),
        ("AUTOSCALER_CONSERVE_GPU_NODES", "maybe", "must be 1 or 0, not 'maybe'"),
        (f"{PREFIX}REQUEST_STATUS_TIMEOUT_S", "0", "0 must be above 0 and at most 3.1536e+08"),
    ],
)
def test_a_bad_value_is_refused_with_the_name_of_the_variable(name, text, message):
    with pytest.raises(ConfigError) as caught:
        muster_of(GOOD, {name: text})
    assert str(caught.value) == f"environment: {name}: {message}"


def test_files_and_sources_take_the_environment_too(write):
    path = write(GOOD)
    environment = {"AUTOSCALER_MAX_CONCURRENT_LAUNCHES": "3"}
    assert load_config(path, environment).muster.limits.max_concurrent == 3
    source = watch_file(path, environment)
    write(GOOD + "# edited\n")
    source.current()
    assert source.current()[0].limits.max_concurrent == 3
