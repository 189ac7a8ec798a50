"""The copies that a running monitor makes."""

from __future__ import annotations

import logging
import time

from tests.autoscaler.scenes import Scene
from tests.mistakes.views import assert_line
from tests.support.builders import NOW, plan, record

from muster.autoscaler.backup import LedgerBackup, backups_of
from muster.base.clock import ManualClock
from muster.config.schema import BackupConfig, ClusterConfig, MusterConfig, ProviderConfig
from muster.stores.ledger.backup import LedgerBackups
from muster.stores.ledger.store import SqliteInstanceStore


class Counted(LedgerBackups):
    """Copies that are counted; `failing` is raised instead."""

    done, failing = 0, None

    def write(self, ledger):
        try:
            if self.failing is not None:
                raise self.failing
            return super().write(ledger)
        finally:
            self.done += 1


def until(what):
    give_up = time.monotonic() + 60
    while not what():
        assert time.monotonic() < give_up
        time.sleep(0.005)


def backed_up(tmp_path):
    clock = ManualClock(NOW)
    store = SqliteInstanceStore(tmp_path / "ledger.db", clock=clock)
    copies = Counted(tmp_path / "copies", "c1")
    return clock, store, copies, LedgerBackup(copies, store.path, 300.0, clock)


def test_no_place_means_no_copies():
    known = {"cluster_name": "c1", "provider": ProviderConfig(type="local")}
    assert backups_of(ClusterConfig(**known)) is None
    muster = MusterConfig(backup=BackupConfig(to="/mnt/x", keep=2))
    assert backups_of(ClusterConfig(**known, muster=muster)) is not None


def test_a_change_is_copied_at_once_quiet_ticks_after_the_interval_and_the_end_always(tmp_path):
    clock, store, copies, backup = backed_up(tmp_path)
    scene = Scene()
    scene.tick()
    tick = scene.heard.ticks[-1]
    backup.on_tick(tick)
    until(lambda: copies.done == 1)
    backup.on_tick(tick)  # nothing has changed
    clock.advance(301)
    backup.on_tick(tick)
    until(lambda: copies.done == 2)
    store.commit(0, plan(record("a")))
    backup.close()
    store.close()
    assert (copies.done, [copy.generation for copy in copies.copies()]) == (3, [2, 1])


def test_a_place_that_fails_is_logged_once_and_never_ends_the_monitor(tmp_path, caplog):
    clock, store, copies, backup = backed_up(tmp_path)
    copies.failing = OSError("no route to host")
    scene = Scene()
    scene.tick()
    with caplog.at_level(logging.WARNING):
        for number in (1, 2):
            backup.on_tick(scene.heard.ticks[-1])
            until(lambda number=number: copies.done == number)
            clock.advance(301)
        backup.close()
    store.close()
    (warning,) = caplog.messages
    assert_line("autoscaler", "ledger not copied", warning)
