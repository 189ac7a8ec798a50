"""Launch request ids: one base per record, one id per call."""

from __future__ import annotations

import pytest

from muster.cluster.plan import attempt_id, attempt_of, base_id


def test_the_first_attempt_is_the_base_itself():
    assert attempt_id("r-1", 1, "t-9") == "r-1"
    assert (base_id("r-1"), attempt_of("r-1")) == ("r-1", 1)


def test_a_retry_names_its_attempt_and_its_tick():
    assert attempt_id("r-1", 2, "t-9") == "r-1~2.t-9"
    assert attempt_id("r-1", 2, "t-9") != attempt_id("r-1", 2, "t-10")


@pytest.mark.parametrize("attempt", [1, 2, 3, 11])
def test_both_parts_can_be_read_back(attempt):
    made = attempt_id("t-0.000007-r1", attempt, "t-0.000009")
    assert (base_id(made), attempt_of(made)) == ("t-0.000007-r1", attempt)


@pytest.mark.parametrize("foreign", ["r-1~", "r-1~x", "r-1~.2", "~"])
def test_an_id_that_is_none_of_ours_is_no_attempt(foreign):
    assert attempt_of(foreign) == 0
