from __future__ import annotations

import doctest
import importlib

import numpy as np
import pytest

from muster.tune.reporting import formats


@pytest.mark.conformance("C-204")
@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0s"),
        (65, "1min 5s"),
        (3605, "1hr 0min 5s"),
        (86400, "1d 0hr 0min 0s"),
        (-3, "0s"),
        (59.99, "59s"),
    ],
)
def test_durations_begin_with_their_first_part(seconds, text):
    assert formats.duration(seconds) == text


@pytest.mark.conformance("C-206")
@pytest.mark.parametrize(
    ("text", "length", "shown"),
    [
        ("some_name", 5, "...me"),
        ("exact", 5, "exact"),
        ("x" * 21, 20, "..." + "x" * 17),
        ("abcdef", 3, "def"),
    ],
)
def test_long_names_keep_their_tail(text, length, shown):
    assert formats.shortened(text, length) == shown


@pytest.mark.conformance("C-206")
@pytest.mark.parametrize(
    ("text", "shown"),
    [("short", "short"), ("abcdefgh", "abcde\nfgh"), ("0123456789abc", "...67\n89abc")],
)
def test_headers_wrap_to_two_lines(text, shown):
    assert formats.wrapped(text, 5) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (None, ""),
        (True, "True"),
        (12, "12"),
        (0.0, "0"),
        (9.1, "9.1"),
        (1 / 3, "0.33333"),
        (1e-9, "1e-09"),
        (float("nan"), "nan"),
        (np.float32(0.5), "0.5"),
        (np.int64(3), "3"),
        ("a" * 30, "..." + "a" * 17),
        ([1, 2], "[1, 2]"),
    ],
)
def test_a_table_shows_numbers_with_five_digits(value, shown):
    assert formats.cell(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (1.5, "1.5"),
        (2.0, "2.0"),
        (0.123456789, "0.12346"),
        (1e-7, "1e-07"),
        (float("inf"), "inf"),
        ("text", "text"),
        (3, "3"),
    ],
)
def test_a_result_shows_five_decimals_without_zeros_at_the_end(value, shown):
    assert formats.detail(value) == shown


def test_parameters_in_a_log_line_are_short():
    values = {"x": 3.3219280948, "k": 1, "name": "y" * 80}
    assert formats.assignments(values) == "{'x': 3.3219, 'k': 1, 'name': '" + "y" * 56 + "...}"


@pytest.mark.parametrize(
    ("per_second", "text"),
    [
        (1500.0, "1,500 trials/s"),
        (1.26, "1.3 trials/s"),
        (0.05, "3 trials/min"),
        (0.0005, "1.8 trials/h"),
        (0.0, "0 trials/h"),
    ],
)
def test_a_rate_has_the_unit_that_can_be_read(per_second, text):
    assert formats.rate(per_second) == text


def test_a_path_below_home_is_shortened_only_there():
    assert formats.home_relative("/nest/me/r", "/nest/me") == "~/r"
    assert formats.home_relative("/nest/men/r", "/nest/me") == "/nest/men/r"
    assert formats.home_relative("/r", "") == "/r"
    assert formats.home_relative("/r", "/") == "/r"


def test_control_characters_of_users_reach_no_terminal():
    evil = "a\x1b[2Jb\nc\x07"
    assert formats.printable(evil) == "a?[2Jb c?"
    assert formats.cell(evil) == "a?[2Jb c?"
    assert formats.detail(evil) == "a?[2Jb c?"
    assert formats.cell("größe") == "größe"


@pytest.mark.parametrize(
    ("module", "examples"), [("muster.tune.reporting.formats", 4), ("muster.tune.progress_reporter", 3)]
)
def test_the_examples_do_what_they_say(module, examples):
    found = doctest.testmod(importlib.import_module(module))
    assert (found.failed, found.attempted) == (0, examples)
