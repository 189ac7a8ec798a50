"""Provide TrialStoreContract, the test class of experiment stores. Subclass it, define `open_store`.

Example:
    class TestMyStore(TrialStoreContract):
        def open_store(self, place):
            return MyStore(place)
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol, get_args

import pytest
from tests.support.builders import START, created, exited, failed, reported, saved, started

from muster.session.session import PreemptionInfo
from muster.trials.events import (
    ExperimentEnded,
    ExperimentResumed,
    Fact,
    LimitsChanged,
    SearchExhausted,
    TrialAdmitted,
    TrialCharged,
    TrialCreated,
    TrialDecided,
    TrialExited,
    TrialMoved,
    TrialNoticed,
    TrialPriced,
    TrialReported,
    TrialStarted,
    TrialStopRequested,
    TrialSuspended,
)
from muster.trials.model import CheckpointRef
from muster.trials.ports import SavedExperiment, TrialStore

NOTHING = SavedExperiment(settings={}, snapshot=None, plugins={}, facts=())


class FullTrialStore(TrialStore, Protocol):
    """The port, and what every store of ours offers besides."""

    @property
    def appended(self) -> int: ...

    def save_settings(self, settings: Mapping[str, Any]) -> None: ...

    def sync(self) -> None: ...


def every_kind(root: str) -> tuple[Fact, ...]:
    """Return one fact of each kind with every field set, with and without optional parts."""
    ref = CheckpointRef(path=f"{root}/trial/checkpoint_000003", index=3, metrics={"a": {"b": None}})
    return (
        TrialCreated(
            trial_id="t",
            at=START + 0.125,
            config={"lr": 0.1, "layers": [1, 2], "nested": {"x": None}},
            evaluated_params={"lr": 0.1},
            experiment_tag="1_lr=0.1",
            trial_name="name",
            relative_logdir="dir/of/trial",
            resources=[[{"CPU": 2.0}], "SPREAD", [], {"lifetime": None}],
        ),
        TrialStarted(trial_id="t", at=1.0, location={"pid": 3}, reused=True),
        TrialReported(trial_id="t", at=2.0, result={"loss": 1.5, "n": 2}, checkpoint=ref),
        reported("t"),
        saved("t", ref, "words"),
        saved("t", None, "nothing to save"),
        TrialExited(trial_id="t", at=9.0, is_done=True, reusable=True),
        failed("t"),
        TrialAdmitted(trial_id="t", at=9.5),
        TrialAdmitted(trial_id="t", at=9.75, resources=[[{}, {"GPU": 0.5}], "PACK", [], {}]),
        TrialAdmitted(trial_id="t", at=9.8, repeats=True),
        TrialAdmitted(trial_id="t", at=9.9, resources=[[{}, {"GPU": 0.5}], "PACK", [], {}], repeats=True),
        TrialNoticed(trial_id="t", at=9.8, info=PreemptionInfo(129.5, "interruption", "aws", "ab")),
        TrialNoticed(trial_id="t", at=9.85),
        TrialMoved(trial_id="t", at=9.9),
        TrialDecided(trial_id="t", at=9.875, decision="stopped", reason="at rung 9: loss = 0.5 is worse"),
        TrialPriced(trial_id="t", at=9.8, usd_per_hour=0.125),
        TrialSuspended(trial_id="t", at=9.9, saves=True),
        TrialStopRequested(trial_id="t", at=9.9),
        LimitsChanged(at=9.9, cost_budget=7.5, deadline=None),
        TrialCharged(trial_id="t", at=9.9, cost_usd=0.25),
        TrialCharged(trial_id="t", at=9.95, cost_usd=None),
        SearchExhausted(at=10.0),
        ExperimentEnded(at=11.0),
        ExperimentResumed(at=12.0),
    )


class TrialStoreContract:
    """Tests what an experiment store promises."""

    def open_store(self, place: Path) -> FullTrialStore:
        """Open the store in `place`; called again after `close`, it finds what was there."""
        raise NotImplementedError

    @pytest.fixture
    def store(self, tmp_path: Path) -> Iterator[FullTrialStore]:
        opened = self.open_store(tmp_path)
        yield opened
        opened.close()

    def reopened(self, store: FullTrialStore, place: Path) -> FullTrialStore:
        """Return what the next process finds."""
        store.close()
        return self.open_store(place)

    def test_a_new_store_holds_nothing(self, store: FullTrialStore) -> None:
        assert (store.load(), store.appended) == (NOTHING, 0)

    def test_every_kind_of_fact_comes_back_whole_and_in_order(
        self, store: FullTrialStore, tmp_path: Path
    ) -> None:
        facts = every_kind(str(tmp_path))
        assert {type(fact) for fact in facts} == set(get_args(Fact))
        store.append(facts[:4])
        store.append(facts[4:])
        assert (tuple(store.load().facts), store.appended) == (facts, len(facts))
        again = self.reopened(store, tmp_path)
        assert (tuple(again.load().facts), again.appended) == (facts, len(facts))

    def test_an_empty_append_is_nothing(self, store: FullTrialStore) -> None:
        store.append([])
        assert (store.load(), store.appended) == (NOTHING, 0)

    def test_a_batch_that_cannot_be_packed_leaves_nothing(self, store: FullTrialStore) -> None:
        store.append([created()])
        with pytest.raises(KeyError):
            store.append([started(), object()])  # type: ignore[list-item]  # no fact: that is the point
        assert (store.load().facts, store.appended) == ((created(),), 1)
        store.append([started()])
        assert (store.load().facts, store.appended) == ((created(), started()), 2)

    def test_a_snapshot_stands_for_the_facts_before_it_and_later_ones_follow(
        self, store: FullTrialStore, tmp_path: Path
    ) -> None:
        store.append([created(), started()])
        store.snapshot(b"state 1", {"searcher": b"s1", "scheduler": b"a1"})
        store.append([reported()])
        store.append([exited()])
        expected = SavedExperiment(
            settings={},
            snapshot=b"state 1",
            plugins={"searcher": b"s1", "scheduler": b"a1"},
            facts=(reported(), exited()),
        )
        assert (store.load(), store.appended) == (expected, 4)
        again = self.reopened(store, tmp_path)
        assert (again.load(), again.appended) == (expected, 4)

    def test_a_snapshot_replaces_the_one_before_it(self, store: FullTrialStore, tmp_path: Path) -> None:
        store.snapshot(b"1" * 5000, {"searcher": b"s" * 5000, "gone": b"g", "same": b"x"})
        store.append([created()])
        store.snapshot(b"", {"searcher": b"s2", "same": b"x", "new": b""})
        expected = SavedExperiment(
            settings={}, snapshot=b"", plugins={"searcher": b"s2", "same": b"x", "new": b""}, facts=()
        )
        assert store.load() == expected
        assert self.reopened(store, tmp_path).load() == expected

    def test_trials_that_ended_are_kept_from_every_snapshot(
        self, store: FullTrialStore, tmp_path: Path
    ) -> None:
        for ended in (b"first", b"", b"second" * 1000):
            store.snapshot(b"state", {}, None, [ended] if ended else ())
        kept = (b"first", b"second" * 1000)
        assert store.load().ended == kept
        assert self.reopened(store, tmp_path).load().ended == kept

    def test_settings_come_back(self, store: FullTrialStore, tmp_path: Path) -> None:
        store.save_settings({"name": "old"})
        store.save_settings({"name": "e", "num_samples": 3, "shape": (1, 2)})
        assert self.reopened(store, tmp_path).load().settings == {
            "name": "e",
            "num_samples": 3,
            "shape": (1, 2),
        }

    def test_numbers_that_json_cannot_hold_come_back(self, store: FullTrialStore) -> None:
        store.append([reported(nan=math.nan, up=math.inf, down=-math.inf, big=2**70, small=-(2**63))])
        (fact,) = store.load().facts
        assert isinstance(fact, TrialReported)
        assert math.isnan(fact.result["nan"])
        assert [fact.result[k] for k in ("up", "down", "big", "small")] == [
            math.inf,
            -math.inf,
            2**70,
            -(2**63),
        ]

    def test_a_result_that_is_changed_later_is_stored_as_it_was(self, store: FullTrialStore) -> None:
        fact = reported(loss=1.0, nested={"a": 1})
        store.append([fact])
        fact.result["loss"] = 2.0
        fact.result["nested"]["a"] = 2
        (found,) = store.load().facts
        assert isinstance(found, TrialReported)
        assert (found.result["loss"], found.result["nested"]) == (1.0, {"a": 1})

    def test_what_load_gives_is_a_copy(self, store: FullTrialStore) -> None:
        store.append([reported(loss=1.0)])
        (found,) = store.load().facts
        assert isinstance(found, TrialReported)
        found.result["loss"] = 9.0
        assert store.load().facts == (reported(loss=1.0),)
