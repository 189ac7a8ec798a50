"""Checkpoints are copied whole or not at all; links that lead astray are named; a full disk is waited for."""

from __future__ import annotations

import errno
import os
import subprocess

import pytest

from muster.base.clock import ManualClock
from muster.session.publish import FULL_DISK_S, publish_copy, when_there_is_room


@pytest.fixture
def source(tmp_path):
    folder = tmp_path / "source"
    (folder / "inner").mkdir(parents=True)
    (folder / "inner" / "weights").write_text("1")
    (tmp_path / "trial").mkdir()
    return folder


def test_links_to_files_and_directories_are_copied_as_what_they_lead_to(source, tmp_path):
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "data").write_text("2")
    (source / "file").symlink_to(tmp_path / "elsewhere" / "data")
    (source / "folder").symlink_to(tmp_path / "elsewhere")
    target = publish_copy(str(source), str(tmp_path / "trial"), "checkpoint_000000")
    (tmp_path / "elsewhere" / "data").unlink()
    for name in ("file", "folder/data"):
        with open(os.path.join(target, name)) as file:
            assert file.read() == "2"


@pytest.mark.parametrize(
    ("leads_to", "reason"),
    [
        ("nowhere", "leads nowhere"),
        ("..", "directory above"),
        (".", "directory above"),
        ("/", "directory above"),
    ],
)
def test_a_link_that_leads_astray_is_named_and_nothing_is_left(source, tmp_path, leads_to, reason):
    (source / "inner" / "link").symlink_to(leads_to)
    with pytest.raises(OSError, match=f"checkpoint_000000.*{reason}"):
        publish_copy(str(source), str(tmp_path / "trial"), "checkpoint_000000")
    assert list((tmp_path / "trial").iterdir()) == []


@pytest.mark.parametrize("saved", [".", ".."])
def test_a_trial_that_saves_its_whole_directory_saves_no_checkpoint_again(source, tmp_path, saved):
    trial = source / "trial"
    (trial / "checkpoint_best").mkdir(parents=True)
    (trial / "checkpoint_best" / "weights").write_text("2")
    for number in range(3):
        target = publish_copy(str(trial / saved), str(trial), f"checkpoint_{number:06d}")
    kept = os.path.join(target, "" if saved == "." else "trial")
    assert sorted(set(os.listdir(kept)) - {".muster_manifest.json"}) == ["checkpoint_best"]
    assert os.listdir(os.path.join(kept, "checkpoint_best")) == ["weights"]
    names = ["checkpoint_000000", "checkpoint_000001", "checkpoint_000002", "checkpoint_best"]
    assert sorted(os.listdir(trial)) == names


def test_a_checkpoint_without_files_is_kept_with_a_warning(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.warns(UserWarning, match="without any file"):
        target = publish_copy(str(tmp_path / "empty"), str(tmp_path), "checkpoint_000000")
    assert os.path.isdir(target)


def test_links_that_lead_to_each_other_are_refused(source, tmp_path):
    for name, other in (("a", "b"), ("b", "a")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "next").symlink_to(tmp_path / other)
    (source / "link").symlink_to(tmp_path / "a")
    with pytest.raises(OSError, match="directory above"):
        publish_copy(str(source), str(tmp_path / "trial"), "checkpoint_000000")


class FillsUp:
    """An action that fails on a full disk until a time."""

    def __init__(self, clock, until, code=errno.ENOSPC):
        self.clock, self.until, self.code = clock, until, code

    def __call__(self):
        if self.clock.monotonic() < self.until:
            raise OSError(self.code, os.strerror(self.code), "/full")
        return "written"


def test_a_full_disk_is_waited_for():
    clock = ManualClock()
    assert when_there_is_room(FillsUp(clock, clock.monotonic() + 30), "", clock=clock) == "written"


def test_a_disk_that_stays_full_is_an_error_in_the_end():
    clock = ManualClock()
    began = clock.monotonic()
    with pytest.raises(OSError, match=r"\[Errno 28\]"):
        when_there_is_room(FillsUp(clock, began + 900), "", clock=clock)
    assert FULL_DISK_S <= clock.monotonic() - began < FULL_DISK_S + 5


def test_any_other_error_is_raised_at_once():
    clock = ManualClock()
    began = clock.monotonic()
    with pytest.raises(OSError, match="Permission"):
        when_there_is_room(FillsUp(clock, began + 900, errno.EACCES), "", clock=clock)
    assert clock.monotonic() == began


@pytest.fixture
def disk(tmp_path):
    """A file system of 2 MB."""
    place = tmp_path / "disk"
    place.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(place)], check=False, capture_output=True
    )
    if mounted.returncode:
        pytest.skip("a small disk needs the right to mount one")
    yield place
    subprocess.run(["umount", str(place)], check=True)


class LooksAndFrees(ManualClock):
    """A clock whose sleeper looks at what lies on the disk, then makes room."""

    def __init__(self, disk):
        super().__init__()
        self.disk, self.seen = disk, []

    def sleep(self, seconds):
        super().sleep(seconds)
        self.seen.append(sorted(entry.name for entry in self.disk.iterdir()))
        (self.disk / "other").unlink(missing_ok=True)


def test_a_checkpoint_waits_for_room_and_nothing_incomplete_takes_it_meanwhile(source, disk):
    (source / "large").write_bytes(b"x" * 600_000)
    (disk / "other").write_bytes(b"y" * 1_700_000)
    clock = LooksAndFrees(disk)
    target = publish_copy(str(source), str(disk), "checkpoint_000000", clock)
    assert os.path.getsize(os.path.join(target, "large")) == 600_000
    assert clock.seen == [["other"]]


def test_a_checkpoint_leaves_room_for_the_results_of_other_trials(source, disk):
    (source / "large").write_bytes(b"x" * 600_000)
    (disk / "other").write_bytes(b"y" * 700_000)  # it would fit, but leave 0.7 MB
    clock = LooksAndFrees(disk)
    publish_copy(str(source), str(disk), "checkpoint_000000", clock)
    assert clock.seen == [["other"]]
