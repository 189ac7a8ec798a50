"""The table is the same whether trials come whole from a snapshot or fact by fact."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from tests.page.samples import BEGAN, config_of, end_fact, facts_of_start, open_store, report_fact, trial_id

from muster.base.clock import ManualClock
from muster.page.experiment_session import open_session
from muster.trials.events import TrialDecided, TrialExited, TrialReported

RESULTS = (  # the same keys, other ones, nested ones, and values that are not what the others are
    {"loss": 1.0, "acc": 0.5},
    {"loss": 2, "acc": None},
    {"loss": "diverged", "acc": 0.25},
    {"loss": 0.5, "eval": {"f1": 0.125, "names": ["a"]}},
    {"loss": float("nan"), "eval": {"f1": 10**400}},
    {"loss": True, "label": "x"},
    {"loss": 0.75, "label": 3},
)


def written(place: Path, *, saves: bool):
    with open_store(place, num_samples=len(RESULTS)) as store:
        for number, result in enumerate(RESULTS):
            told = report_fact(number, 1)
            own = {"training_iteration": 1, "time_total_s": "soon" if number == 1 else 0.5, **result}
            store.append(
                [*facts_of_start(number), TrialReported(trial_id=told.trial_id, at=told.at, result=own)]
            )
            store.append([end_fact(number, 1, fails=number == 3)] if number < 5 else [])
        if saves:
            store.snapshot(b"\x80", {})
    return open_session(str(place), clock=ManualClock(0.0))


def test_whole_trials_and_single_facts_make_the_same_table(tmp_path: Path):
    whole, single = (written(tmp_path / str(saves), saves=saves).table for saves in (True, False))
    assert (whole.ids, sorted(whole.columns)) == (single.ids, sorted(single.columns))
    for key, column in whole.columns.items():
        other, rows = single.columns[key], len(whole)
        assert (column.kind, column.odd, list(column.words)) == (other.kind, other.odd, list(other.words)), (
            key
        )
        np.testing.assert_array_equal(column.values[:rows], other.values[:rows], err_msg=key)


@pytest.mark.parametrize("saves", [True, False])
@pytest.mark.parametrize(("decision", "status"), [("paused", "PAUSED"), ("stopped", "STOPPED")])
def test_a_trial_that_was_paused_is_not_shown_as_done(
    tmp_path: Path, decision: str, status: str, saves: bool
):
    with open_store(tmp_path, num_samples=2) as store:
        store.append([*facts_of_start(0), report_fact(0, 1)])
        session = open_session(str(tmp_path), clock=ManualClock(0.0))
        decided = TrialDecided(trial_id=trial_id(0), at=BEGAN, decision=decision, reason="at rung 1")
        store.append([decided])
        if saves:
            store.snapshot(b"\x80", {})
        store.append([TrialExited(trial_id=trial_id(0), at=BEGAN)])
        session._clock.advance(2.0)
        session.refresh()
        assert session.summary()["counts"] == {status: 1}


@pytest.mark.parametrize("saves", [True, False])
def test_a_parameter_that_a_scheduler_changed_has_its_new_value(tmp_path: Path, saves: bool):
    with open_store(tmp_path, num_samples=1) as store:
        store.append([*facts_of_start(0), report_fact(0, 1)])
        changed = {**config_of(0), "lr": 1.15, "seed": 7}
        store.append([TrialReported(trial_id=trial_id(0), at=BEGAN, result={"loss": 1.0, "config": changed})])
        if saves:
            store.snapshot(b"\x80", {})
    columns = open_session(str(tmp_path), clock=ManualClock(0.0)).table.columns
    assert (columns["config/lr"].values[0], "config/seed" in columns) == (1.15, False)
