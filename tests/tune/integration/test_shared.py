from __future__ import annotations

import pytest
from tests.tune.integration.recorded import recorded

from muster.tune.integration import chosen, send

FOUND = {"a": 1, "b": 2}


@pytest.mark.parametrize(
    ("metrics", "expected"),
    [
        (None, {"a": 1, "b": 2}),
        ("a", {"a": 1}),
        (["b", "a"], {"b": 2, "a": 1}),
        ({"loss": "b"}, {"loss": 2}),
        ([], {}),
    ],
)
def test_metrics_are_all_or_named_or_renamed(metrics, expected):
    assert chosen(metrics, FOUND, "F") == expected


def test_a_metric_that_is_not_there_is_told_with_those_that_are():
    with pytest.raises(KeyError, match=r"F .*\bc, d; .*\ba, b"):
        chosen({"x": "d", "y": "c", "z": "a"}, FOUND, "F")
    with pytest.raises(KeyError, match=r"F .*\ba; .*none"):
        chosen("a", {}, "F")


def test_a_report_may_bring_a_checkpoint(tmp_path):
    def save(directory):
        with open(f"{directory}/weights", "w", encoding="utf-8") as stream:
            stream.write("1 2")

    with recorded(tmp_path) as session:
        send({"a": 1})
        send({"a": 2}, save)
    assert (session.reports, session.files()) == ([{"a": 1}, {"a": 2}], {2: ["weights"]})
    with session.checkpoints[2].as_directory() as directory, open(f"{directory}/weights") as stream:
        assert stream.read() == "1 2"
