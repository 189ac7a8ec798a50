"""date_str and warn_if_slow."""

from __future__ import annotations

import logging
import re

from muster.tune.utils import date_str, warn_if_slow


def test_a_date_as_it_stands_in_names():
    assert re.fullmatch(r"\d{4}-\d\d-\d\d_\d\d-\d\d-\d\d", date_str())


def test_a_slow_block_is_told_unless_that_is_disabled(caplog):
    with caplog.at_level(logging.WARNING):
        with warn_if_slow("slow", threshold=-1):
            pass
        with warn_if_slow("said otherwise", threshold=-1, message="{name}!"):
            pass
        with warn_if_slow("not told", threshold=-1, disable=True):
            pass
        with warn_if_slow("quick", threshold=3600):
            pass
    assert [message.split(" took")[0] for message in caplog.messages] == ["slow", "said otherwise!"]
