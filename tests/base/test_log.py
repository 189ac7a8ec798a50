"""Log lines as key=value fields, and logging on change."""

from __future__ import annotations

import logging

from muster.base.log import OnChange, fields


def test_fields_are_keys_and_values_with_quotes_where_needed():
    line = fields({"tick": "t-1", "launch": 2, "price": 0.5, "why": "sold out", "empty": ""})
    assert line == "tick=t-1 launch=2 price=0.5 why='sold out' empty=''"
    assert fields({}) == ""


def test_a_repeated_text_is_logged_once_per_key(caplog):
    changes = OnChange(logging.getLogger("muster.test"))
    with caplog.at_level(logging.INFO, logger="muster.test"):
        for text in ("sold out", "sold out", "back", "back", "sold out"):
            changes.log(logging.WARNING, "gpu", text)
        changes.log(logging.INFO, "cpu", "sold out")
    assert [(r.levelname, r.getMessage()) for r in caplog.records] == [
        ("WARNING", "sold out"),
        ("WARNING", "back"),
        ("WARNING", "sold out"),
        ("INFO", "sold out"),
    ]


def test_a_forgotten_key_is_logged_again(caplog):
    changes = OnChange(logging.getLogger("muster.test"))
    with caplog.at_level(logging.INFO, logger="muster.test"):
        changes.log(logging.INFO, "a", "same")
        changes.forget("a")
        changes.forget("never seen")
        changes.log(logging.INFO, "a", "same")
    assert len(caplog.records) == 2


def test_percent_signs_in_a_text_are_left_alone(caplog):
    with caplog.at_level(logging.INFO, logger="muster.test"):
        OnChange(logging.getLogger("muster.test")).log(logging.INFO, "a", "100%s full")
    assert caplog.messages == ["100%s full"]
