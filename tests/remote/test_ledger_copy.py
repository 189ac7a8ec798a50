"""A head's ledger comes here and goes to a new head, by real commands."""

from __future__ import annotations

import asyncio
import sys

import pytest
from tests.mistakes.views import assert_line
from tests.remote.local_runner import LocalRunner
from tests.support.builders import plan, record

from muster.autoscaler.backup import restore_if_lost
from muster.autoscaler.home import ClusterHome
from muster.base.clock import SystemClock
from muster.base.ids import CountingIds
from muster.config.schema import BackupConfig, ClusterConfig, MusterConfig, ProviderConfig
from muster.errors import StoreError
from muster.remote.ledger_copy import pull_ledger, push_ledger
from muster.stores.ledger.store import SqliteInstanceStore


def config(**backup):
    return ClusterConfig(
        cluster_name="c1",
        provider=ProviderConfig(type="local"),
        muster=MusterConfig(backup=BackupConfig(**backup)),
    )


def start(home, **backup):
    return restore_if_lost(config(**backup), home, SystemClock(), CountingIds())


def test_a_lost_head_is_followed_by_one_with_the_ledger_that_the_launcher_has(tmp_path):
    runner, kept = LocalRunner(tmp_path), tmp_path / "kept"
    old, new = (ClusterHome(tmp_path / name) for name in ("old's", "new"))
    old.path.mkdir(), new.path.mkdir()
    pull = {"python": sys.executable, "directory": str(old.path), "cluster": "c1", "target": kept}
    assert asyncio.run(pull_ledger(runner, **pull)) is None
    push = {"directory": str(new.path), "cluster": "c1", "source": kept}
    assert asyncio.run(push_ledger(runner, **push)) is None
    assert start(new) is None
    with SqliteInstanceStore(old.ledger, clock=SystemClock()) as store:
        store.commit(0, plan(record("a")))
        pulled = asyncio.run(pull_ledger(runner, **pull))
    assert sorted(path.name for path in old.path.iterdir()) == ["ledger.db", "ledger.db.lock"]
    assert asyncio.run(push_ledger(runner, **push)) == pulled
    assert start(new).copy == pulled
    assert start(new) is None  # it has a ledger now
    with SqliteInstanceStore(new.ledger, clock=SystemClock()) as store:
        assert list(store.load().instances) == ["a"]


def test_copies_of_the_backup_come_first_and_damaged_ones_everywhere_are_an_error(tmp_path):
    home = ClusterHome(tmp_path)
    home.backups.mkdir()
    (home.backups / "c1.000000009.0123456789abcdef.ledger").write_bytes(b"x")
    with pytest.raises(StoreError) as refused:
        start(home, to=str(tmp_path / "nothing"))
    assert_line("remote", "damaged ledger copies", str(refused.value).replace(str(tmp_path), "TMP"))
