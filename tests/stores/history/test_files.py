"""The files of a history: nothing of it is lost by a crash, nothing grows without bound, damage is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.sim.backtest.recorded import RecordedCluster, read_past

from muster.errors import HistoryDamaged, StoreError
from muster.stores.history.files import (
    TAIL,
    HistoryLimits,
    HistoryWriter,
    RoomPerDay,
    read_history,
    segments,
)
from muster.stores.history.past import HistoryFollower

SMALL = HistoryLimits(block_bytes=6000, segment_bytes=6000, total_bytes=20_000)


@pytest.fixture
def recorded(tmp_path):
    cluster = RecordedCluster(tmp_path / "history")
    cluster.reopen(SMALL)
    cluster.submit(6, 100.0, CPU=2)
    cluster.run(400.0)
    cluster.submit(3, 100.0, CPU=3)
    cluster.run(400.0)
    return cluster


def seqs(folder: Path) -> list[int]:
    return [entry.seq for entry in read_history(folder)]


def test_every_entry_is_read_once_whether_it_is_packed_or_not(recorded):
    found = seqs(recorded.folder)
    assert segments(recorded.folder)
    assert found == list(range(1, len(found) + 1))


def test_a_torn_last_line_and_a_torn_last_block_are_cut_and_the_next_monitor_continues(recorded):
    whole = seqs(recorded.folder)
    with open(recorded.folder / TAIL, "ab") as file:
        file.write(b'{"seq":99,"at":17')
    with open(segments(recorded.folder)[-1], "ab") as file:
        file.write(b"\x10\x27\x00\x00\x01\x02\x03\x04half of a block")
    assert seqs(recorded.folder) == whole
    recorded.reopen(SMALL)
    recorded.run(20.0)
    found = list(read_history(recorded.folder))
    assert [entry.seq for entry in found[: len(whole)]] == whole
    assert (found[len(whole)].seq, found[len(whole)].is_whole) == (whole[-1] + 1, True)


def test_entries_that_a_crash_left_in_both_places_are_read_once(recorded):
    recorded.run(400.0)
    found = seqs(recorded.folder)
    packed = b"".join(
        b'{"seq":%d,"at":1.0,"is_whole":true}\n' % entry for entry in found[-5:]
    )  # as if the tail had not been cut after it was packed
    recorded.reopen(SMALL)  # packs the tail
    (recorded.folder / TAIL).write_bytes(packed)
    assert seqs(recorded.folder) == found


@pytest.mark.slow
def test_the_oldest_files_go_and_what_is_left_begins_with_a_whole_entry(tmp_path):
    cluster = RecordedCluster(tmp_path / "h")
    cluster.reopen(HistoryLimits(block_bytes=4000, segment_bytes=1500, total_bytes=8000))
    cluster.busy(1800.0, 60.0)
    total = sum(path.stat().st_size for path in segments(cluster.folder))
    found = list(read_history(cluster.folder))
    assert total <= 8000
    assert found[0].seq > 1 and found[0].is_whole and found[0].spec is not None
    assert read_past(found).machines


def test_a_block_that_was_changed_is_named_and_the_next_file_is_read(recorded):
    recorded.run(2000.0)
    recorded.submit(20, 100.0, CPU=1)
    recorded.run(1500.0)
    first = segments(recorded.folder)[0]
    content = bytearray(first.read_bytes())
    content[len(content) // 2] ^= 0xFF
    first.write_bytes(content)
    with pytest.raises(HistoryDamaged, match=r"00000001\.history: damaged .*\b\d+\b"):
        list(read_history(recorded.folder))
    said: list[str] = []
    found = list(read_history(recorded.folder, said.append))
    assert len(said) == 1
    assert not found or found[0].is_whole


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"SQLite format 3\0 and so on", "not a history of a cluster"),
        (b"", "not a history of a cluster"),
        (b"muster history 7\n", "a history of format 7, this muster reads up to 1; upgrade muster"),
        (b'{"cluster_name": "x"}\n', "not a history of a cluster"),
        (b'{"seq":1,"at":"noon"}\n', "damaged"),
    ],
)
def test_what_is_not_a_history_is_named_in_one_sentence(tmp_path, content, said):
    file = tmp_path / "x.history"
    file.write_bytes(content)
    with pytest.raises(StoreError, match=said) as error:
        list(read_history(file))
    assert "\n" not in str(error.value)


def test_a_directory_without_a_history_says_so(tmp_path):
    with pytest.raises(StoreError, match="`history`"):
        list(read_history(tmp_path))
    with pytest.raises(StoreError, match="/nothing: "):
        list(read_history(tmp_path / "nothing"))


def test_a_newer_or_foreign_segment_is_left_alone_and_a_new_one_is_begun(tmp_path):
    newer = tmp_path / "00000001.history"
    newer.write_bytes(b"muster history 9\nwho knows")
    HistoryWriter(tmp_path)
    cluster = RecordedCluster(tmp_path)
    cluster.reopen(SMALL)
    cluster.submit(3, 60.0, CPU=1)
    cluster.run(900.0)
    assert newer.read_bytes() == b"muster history 9\nwho knows"


def test_a_write_that_fails_is_made_good_by_a_whole_entry(recorded):
    tail, aside = recorded.folder / TAIL, recorded.folder / "aside"
    tail.rename(aside)
    tail.mkdir()
    recorded.submit(2, 50.0, CPU=1)
    with pytest.raises(OSError, match="directory"):
        recorded.run(5.0)
    tail.rmdir()
    aside.rename(tail)
    recorded.run(5.0)
    assert list(read_history(recorded.folder))[-1].is_whole


def test_a_follower_reads_only_what_is_new_and_finds_the_same(recorded):
    follower = HistoryFollower(recorded.folder)
    assert follower.refresh().until == read_past(read_history(recorded.folder)).until
    mark = follower.mark()
    recorded.submit(9, 100.0, CPU=1)
    recorded.run(600.0)
    assert follower.mark() != mark
    followed, read = follower.refresh(), read_past(read_history(recorded.folder))
    assert followed.machines == read.machines
    assert (followed.demand, followed.spent, followed.decisions) == (read.demand, read.spent, read.decisions)


def test_a_day_has_its_bytes_however_much_happens():
    room, written, at = RoomPerDay(900_000), 0.0, 0.0
    last = -1e9
    while at < 86_400.0:
        if at - last >= room.pace_s(at):
            room.take(at, 500.0)
            written, last = written + 500.0, at
        at += 1.0
    assert 600_000 < written <= 901_000


def test_a_calm_cluster_is_not_slowed_down():
    room = RoomPerDay(900_000)
    paces = []
    for at in range(0, 3600, 30):
        paces.append(room.pace_s(float(at)))
        room.take(float(at), 100.0)
    assert set(paces) == {0.0}
