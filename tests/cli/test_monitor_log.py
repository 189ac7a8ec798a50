"""The log of `muster monitor` and of the sidecar, in both formats."""

from __future__ import annotations

import json
import logging

import pytest

from muster.cli.monitor import log_to_stderr


@pytest.fixture
def logger():
    root = logging.getLogger("muster")
    before = root.handlers[:], root.propagate, root.level
    yield logging.getLogger("muster.monitor")
    root.handlers[:], root.propagate, root.level = before


def test_a_json_log_has_an_object_per_line_and_keeps_tracebacks_in_it(logger, capsys):
    log_to_stderr("json")
    logger.info("adding %d nodes\nof type %r", 2, "gpu")
    try:
        raise ValueError("why")
    except ValueError:
        logger.exception("a tick failed")
    first, second = (json.loads(line) for line in capsys.readouterr().err.splitlines())
    at = first.pop("time")
    assert first == {"level": "info", "logger": "muster.monitor", "message": "adding 2 nodes\nof type 'gpu'"}
    assert at.endswith("+00:00") and second["level"] == "error" and "ValueError: why" in second["traceback"]


def test_the_environment_chooses_where_a_command_cannot(logger, capsys, monkeypatch):
    monkeypatch.setenv("MUSTER_LOG_FORMAT", "json")
    log_to_stderr()
    logger.warning("here")
    assert json.loads(capsys.readouterr().err)["message"] == "here"
    log_to_stderr("text")
    logger.warning("there")
    assert "WARNING muster.monitor: there" in capsys.readouterr().err
