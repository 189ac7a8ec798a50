from __future__ import annotations

import sqlite3
from pathlib import Path

import pytest
from tests.page.samples import (
    BEGAN,
    end_fact,
    facts_of_start,
    open_store,
    report_fact,
    trial_id,
    write_experiment,
)

from muster.errors import StoreError
from muster.stores.experiment.codec import DECIDED
from muster.stores.experiment.follower import follow
from muster.trials.events import TrialDecided


def test_each_look_returns_what_was_committed_since_the_last_one(tmp_path: Path):
    with open_store(tmp_path) as store:
        follower = follow(tmp_path)
        store.append(facts_of_start(0))
        first = [(one.trial_id, one.status, one.reports) for one in follower.poll().digests]
        store.append([report_fact(0, 1)])
        second = [(one.trial_id, one.status, one.reports) for one in follower.poll().digests]
        third = follower.poll()
        follower.close()
    assert (first, second) == ([(trial_id(0), "RUNNING", 0)], [(trial_id(0), "RUNNING", 1)])
    assert third.digests == []


def test_a_snapshot_of_what_was_seen_returns_only_trials_with_another_status(tmp_path: Path):
    with open_store(tmp_path) as store:
        follower = follow(tmp_path)
        store.append([*facts_of_start(0), *facts_of_start(1)])
        follower.poll()
        store.snapshot(b"\x80", {}, {trial_id(1): "PAUSED"})
        step = follower.poll()
        follower.close()
    assert [(digest.trial_id, digest.status) for digest in step.digests] == [(trial_id(1), "PAUSED")]


def test_a_snapshot_of_what_was_not_seen_returns_those_trials_whole(tmp_path: Path):
    with open_store(tmp_path) as store:
        follower = follow(tmp_path)
        store.append([*facts_of_start(0), *facts_of_start(1)])
        store.snapshot(b"\x80", {})
        follower.poll()
        store.append([report_fact(1, 1), end_fact(1, 1)])
        store.snapshot(b"\x80", {})
        step = follower.poll()
        follower.close()
    assert [(digest.trial_id, digest.reports) for digest in step.digests] == [(trial_id(1), 1)]


def test_a_decision_of_a_trial_that_was_over_is_seen_though_a_snapshot_holds_it_already(tmp_path: Path):
    with open_store(tmp_path) as store:
        follower = follow(tmp_path)
        store.append([*facts_of_start(0), *facts_of_start(1), end_fact(0, 0)])
        store.snapshot(b"\x80", {}, {trial_id(0): "TERMINATED"})
        follower.poll()
        store.append([TrialDecided(trial_id=trial_id(0), at=BEGAN, decision="stopped", reason="it lags")])
        store.snapshot(b"\x80", {}, {trial_id(0): "TERMINATED"})
        step = follower.poll()
        follower.close()
    assert [(digest.trial_id, DECIDED in digest.kept) for digest in step.digests] == [(trial_id(0), True)]


def test_one_trial_is_put_together_from_the_snapshot_and_what_came_after(tmp_path: Path):
    with open_store(tmp_path) as store:
        store.append([*facts_of_start(0), report_fact(0, 1)])
        store.snapshot(b"\x80", {})
        store.append([report_fact(0, 2)])
        follower = follow(tmp_path)
        found = follower.trial(trial_id(0))
        assert (found.reports, found.result["training_iteration"], follower.trial("no")) == (2, 2, None)
        follower.close()


def test_a_follower_never_locks_the_writer_out(tmp_path: Path):
    with open_store(tmp_path) as store:
        follower = follow(tmp_path)
        for number in range(20):
            store.append(facts_of_start(number))
            follower.poll()
        store.snapshot(b"\x80", {})
        with sqlite3.connect(store.path, timeout=0) as other:  # the log can be emptied: no reader holds it
            busy, *_ = other.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
        other.close()
        follower.close()
    assert busy == 0


def test_a_store_that_another_replaced_is_noticed(tmp_path: Path):
    write_experiment(tmp_path / "one", 1, 1)
    write_experiment(tmp_path / "other", 2, 1)
    follower = follow(tmp_path / "one")
    (tmp_path / "other" / "experiment.sqlite").replace(tmp_path / "one" / "experiment.sqlite")
    with pytest.raises(StoreError, match=r"one/experiment\.sqlite "):
        follower.poll()
    follower.close()
