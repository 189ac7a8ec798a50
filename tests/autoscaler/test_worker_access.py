"""`file_mounts_sync_continuously`: what changes on the head comes to the workers that run."""

from __future__ import annotations

import os
import shutil

import pytest
from tests.autoscaler.scenes import Scene
from tests.mistakes.views import assert_line

from muster.autoscaler.worker_access import LOOK_S, MountSync, stamp_of
from muster.base.clock import ManualClock
from muster.config.schema import ClusterConfig, ProviderConfig
from muster.errors import Unreachable


class Worker:
    """A directory; `is_off`: it does not answer."""

    def __init__(self, home):
        self.home, self.copies, self.is_off = home, 0, False

    async def sync_up(self, source, target, *, exclude=(), filters=()):
        if self.is_off:
            raise Unreachable("it does not answer")
        self.copies += 1
        shutil.copytree(source, self.home / target, dirs_exist_ok=True)

    async def close(self):
        pass


class Workers(dict):
    runner_of = dict.get


@pytest.fixture
def code(tmp_path):
    made = tmp_path / "code"
    made.mkdir()
    (made / "train.py").write_text("1")
    return made


def sync_of(workers, code, clock=None, *, is_continuous=True):
    config = ClusterConfig(
        cluster_name="c",
        provider=ProviderConfig(type="local"),
        file_mounts={"there": str(code)},
        file_mounts_sync_continuously=is_continuous,
    )
    return MountSync(workers, lambda: config, clock or ManualClock()), config


def test_a_changed_file_goes_to_every_worker_and_an_equal_one_to_none(tmp_path, code):
    workers = Workers({name: Worker(tmp_path / name) for name in ("a", "b")})
    sync, config = sync_of(workers, code)
    for text in ("1", "1", "22"):
        (code / "train.py").write_text(text) if text != "1" else None
        sync.look(config, ["a", "b"])
    assert [(one.copies, (one.home / "there/train.py").read_text()) for one in workers.values()] == [
        (2, "22"),
        (2, "22"),
    ]


def test_a_worker_that_does_not_answer_gets_it_later_and_holds_up_no_other(tmp_path, code, caplog):
    workers = Workers({name: Worker(tmp_path / name) for name in ("a", "b")})
    sync, config = sync_of(workers, code)
    workers["a"].is_off = True
    for _ in range(2):
        sync.look(config, ["a", "b", "gone"])
    assert ([one.copies for one in workers.values()], len(caplog.records)) == ([0, 1], 1)
    (warning,) = caplog.messages
    assert_line("autoscaler", "mounts not copied", warning)
    workers["a"].is_off = False
    sync.look(config, ["a", "b"])
    assert [one.copies for one in workers.values()] == [1, 1]


def test_the_monitors_ticks_start_a_look_now_and_then_and_only_where_the_file_says_so(tmp_path, code):
    scene, looked = Scene(), []
    for is_continuous in (False, True):
        clock = ManualClock()
        sync, _ = sync_of(Workers(), code, clock, is_continuous=is_continuous)
        sync.look = lambda config, workers: looked.append(list(workers))
        for seconds in (0.0, 1.0, LOOK_S):
            clock.advance(seconds)
            sync.on_tick(scene.tick())
            sync.close()
    assert looked == [[], []]


def test_a_stamp_changes_with_names_sizes_times_and_absence(code):
    seen = {stamp_of([(str(code), "x")])}
    (code / "more").mkdir()
    seen.add(stamp_of([(str(code), "x")]))
    (code / "train.py").rename(code / "main.py")
    seen.add(stamp_of([(str(code), "x")]))
    os.utime(code / "main.py", ns=(1, 1))
    seen.add(stamp_of([(str(code), "x")]))
    shutil.rmtree(code)
    seen.add(stamp_of([(str(code), "x")]))
    assert len(seen) == 5
