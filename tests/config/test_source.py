from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from tests.config.conftest import GOOD

from muster.cluster.model import ClusterSpec
from muster.config.source import FileSpecSource
from muster.errors import ConfigError
from muster.providers.kind import watch_file

KEPT = "(the last good configuration stays in force)"


def looked_twice(source: FileSpecSource) -> tuple[ClusterSpec, str]:
    source.current()
    return source.current()


def test_an_edit_counts_once_it_was_seen_twice(write):
    source = watch_file(write(GOOD))
    assert source.current()[0].max_nodes == 11
    write(GOOD.replace("max_workers: 10", "max_workers: 20"))
    assert [source.current()[0].max_nodes for _ in range(3)] == [11, 21, 21]


def test_an_edit_of_the_same_size_is_seen_too(write):
    source = watch_file(write(GOOD))
    write(GOOD.replace("max_workers: 6", "max_workers: 7"))
    assert looked_twice(source)[0].node_types[1].max_nodes == 7


def test_half_a_file_that_is_valid_by_itself_does_not_count_while_it_is_being_written(write):
    source = watch_file(write(GOOD))
    good = source.current()[0]
    edited = GOOD.replace("max_workers: 10", "max_workers: 20")
    seen = []
    for end in (0, 60, edited.index("  cpu:"), len(edited)):
        write(edited[:end])
        seen.append(source.current())
    assert seen == [(good, "")] * 4
    assert [t.name for t in source.current()[0].node_types] == ["head", "cpu"]
    assert source.current()[0].max_nodes == 21


def test_a_bad_edit_keeps_the_last_good_spec_and_is_reported_until_it_is_mended(write):
    path = write(GOOD)
    source = watch_file(path)
    good = source.current()[0]
    write(GOOD.replace("max_workers: 10", "max_workers: .inf"))
    told = f"{path}:2: max_workers: inf must be at least 0 and at most 1e+06 {KEPT}"
    assert [looked_twice(source), source.current()] == [(good, told), (good, told)]
    write(GOOD)
    assert looked_twice(source) == (good, "")


def test_a_file_that_vanishes_keeps_the_last_good_spec(write):
    path = write(GOOD)
    source = watch_file(path)
    good = source.current()[0]
    path.unlink()
    told = f"{path}: cannot be read: No such file or directory; check the path and its permissions {KEPT}"
    assert source.current() == (good, told)
    write(GOOD)
    assert source.current() == (good, "")


def test_without_a_good_file_to_begin_with_there_is_no_source(write):
    with pytest.raises(ConfigError, match="max_workers"):
        watch_file(write(GOOD.replace("max_workers: 10", "max_workers: x")))


@pytest.mark.conformance("CF-5")
def test_cf_5_the_config_is_kept_until_the_next_read(write):
    source = watch_file(write(GOOD))
    write(GOOD.replace("max_workers: 10", "max_workers: 20"))
    assert source.config.max_workers == 10
    looked_twice(source)
    assert source.config.max_workers == 20
    write("max_workers: [")
    looked_twice(source)
    assert source.config.max_workers == 20


@pytest.mark.parametrize(
    "text",
    ["", GOOD[: GOOD.index("2}")], GOOD[:3], "\x00", "cluster_name: demo\n", "[]", "- a\n- b\n", "just text"],
)
def test_an_edit_cut_short_keeps_the_last_good_spec(write, text):
    source = watch_file(write(GOOD))
    good = source.current()[0]
    write(text)
    spec, problem = looked_twice(source)
    assert spec == good
    assert problem.endswith("(the last good configuration stays in force)")


@pytest.mark.parametrize("spoil", [Path.mkdir, os.mkfifo, lambda path: path.write_bytes(b"\xff\xfe")])
def test_a_folder_a_pipe_or_bytes_in_place_of_the_file_keep_the_last_good_spec(write, spoil):
    path = write(GOOD)
    source = watch_file(path)
    good = source.current()[0]
    path.unlink()
    spoil(path)
    spec, problem = looked_twice(source)
    assert spec == good
    assert problem.startswith(f"{path}: is not ")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_a_file_that_may_not_be_read_keeps_the_last_good_spec(write):
    path = write(GOOD)
    source = watch_file(path)
    good = source.current()[0]
    path.chmod(0)
    spec, problem = source.current()
    assert (spec, os.strerror(errno.EACCES) in problem) == (good, True)
    assert problem.startswith(str(path)) and problem.endswith(KEPT)
