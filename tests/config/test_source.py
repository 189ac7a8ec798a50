from __future__ import annotations

import pytest
from tests.config.conftest import GOOD

from muster.config.source import FileSpecSource
from muster.errors import ConfigError


def test_an_edit_is_seen_at_the_next_look(write):
    source = FileSpecSource(write(GOOD))
    assert source.current()[0].max_nodes == 11
    write(GOOD.replace("max_workers: 10", "max_workers: 20"))
    spec, problem = source.current()
    assert (spec.max_nodes, problem) == (21, "")


def test_an_edit_of_the_same_size_is_seen_too(write):
    source = FileSpecSource(write(GOOD))
    write(GOOD.replace("max_workers: 6", "max_workers: 7"))
    assert source.current()[0].node_types[1].max_nodes == 7


def test_a_bad_edit_keeps_the_last_good_spec_and_says_so_until_it_is_mended(write):
    path = write(GOOD)
    source = FileSpecSource(path)
    good = source.current()[0]
    write(GOOD.replace("max_workers: 10", "max_workers: .inf"))
    told = f"{path}:2: max_workers: inf must be from 0 to 1e+06 (the last good configuration stays in force)"
    assert [source.current(), source.current()] == [(good, told), (good, told)]
    write(GOOD)
    assert source.current() == (good, "")


def test_a_file_that_vanishes_keeps_the_last_good_spec(write):
    path = write(GOOD)
    source = FileSpecSource(path)
    good = source.current()[0]
    path.unlink()
    told = f"{path}: cannot be read: No such file or directory (the last good configuration stays in force)"
    assert source.current() == (good, told)
    write(GOOD)
    assert source.current() == (good, "")


def test_without_a_good_file_to_begin_with_there_is_no_source(write):
    with pytest.raises(ConfigError, match="max_workers"):
        FileSpecSource(write(GOOD.replace("max_workers: 10", "max_workers: x")))
