from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest
from tests.page.samples import (
    BEGAN,
    end_fact,
    facts_of_start,
    log_results,
    open_store,
    report_fact,
    trial_id,
    write_experiment,
)

from muster.base.clock import ManualClock
from muster.errors import StoreError
from muster.page.experiment_session import ExperimentSession, open_session
from muster.page.trial_drawer import describe, inside, log_tail
from muster.trials.events import TrialDecided, TrialExited


def look(session: ExperimentSession, clock: ManualClock) -> ExperimentSession:
    clock.advance(2.0)
    session.refresh()
    return session


def statuses(session: ExperimentSession) -> list[str]:
    column = session.table.columns["trial/status"]
    words = list(column.words)
    return [words[int(code)] for code in column.values[: len(session.table)]]


def test_a_finished_experiment_is_read_whole(tmp_path: Path):
    session = open_session(str(write_experiment(tmp_path / "e", 12, 5)), clock=ManualClock(0.0))
    summary = session.summary()
    assert (summary["state"], summary["counts"], summary["of"], summary["metric"], summary["mode"]) == (
        "finished",
        {"TERMINATED": 11, "ERROR": 1},
        12,
        "loss",
        "min",
    )


def test_a_long_first_look_is_followed_by_the_table_not_by_result_files(tmp_path: Path, monkeypatch):
    clock, follow = ManualClock(0.0), ExperimentSession._follow
    monkeypatch.setattr(ExperimentSession, "_follow", lambda self: (follow(self), clock.advance(1.5)))
    session = open_session(str(write_experiment(tmp_path / "e", 3, 1)), clock=clock)
    session.refresh()
    assert session.curves.done == 0
    look(session, clock)
    assert session.curves.done == 3


def test_what_the_writer_appends_is_a_small_delta(tmp_path: Path):
    clock = ManualClock(0.0)
    with open_store(tmp_path, num_samples=3) as store:
        store.append([*facts_of_start(0), *facts_of_start(1)])
        session = look(open_session(str(tmp_path), clock=clock), clock)
        before = session.table.change
        store.append([report_fact(1, 1)])
        delta = look(session, clock).delta(before)
        assert ([row[1] for row in delta["rows"]], delta["summary"]["state"]) == ([trial_id(1)], "running")


def test_limits_are_part_of_the_summary_and_so_is_what_ended_the_experiment(tmp_path: Path):
    clock, limits = ManualClock(0.0), {"cost_budget": 25.0, "deadline": 1_794_903_600.0}

    def shown(session: ExperimentSession) -> tuple[object, ...]:
        summary = look(session, clock).summary()
        return tuple(summary[name] for name in ("cost_budget", "deadline", "ended_by"))

    with open_store(tmp_path, num_samples=3, **limits) as store:
        store.append(facts_of_start(0))
        session = open_session(str(tmp_path), clock=clock)
        assert shown(session) == (25.0, 1_794_903_600.0, "")
        store.save_settings({**limits, "ended_by": "budget"})
    assert shown(session) == (25.0, 1_794_903_600.0, "budget")
    with open_store(tmp_path, num_samples=3, cost_budget=50.0):  # resumed
        assert shown(session) == (50.0, None, "")


def test_a_snapshot_that_came_between_two_looks_loses_nothing(tmp_path: Path):
    clock = ManualClock(0.0)
    with open_store(tmp_path, num_samples=3) as store:
        store.append(facts_of_start(0))
        session = look(open_session(str(tmp_path), clock=clock), clock)
        store.append([report_fact(0, 1), report_fact(0, 2), *facts_of_start(1)])
        store.snapshot(b"\x80", {}, {trial_id(1): "PAUSED"})
        store.append([report_fact(0, 3)])
        look(session, clock)
    assert (
        statuses(session),
        session.table.get(0, "reports"),
        session.table.get(0, "training_iteration"),
    ) == (
        ["RUNNING", "PAUSED"],
        3.0,
        3.0,
    )


def test_a_stop_that_came_with_a_snapshot_between_two_looks_is_an_early_one(tmp_path: Path):
    clock = ManualClock(0.0)
    with open_store(tmp_path, num_samples=3) as store:
        store.append([*facts_of_start(0), report_fact(0, 1)])
        session = look(open_session(str(tmp_path), clock=clock), clock)
        store.append([TrialDecided(trial_id=trial_id(0), at=BEGAN, decision="stopped", reason="it lags")])
        store.append([TrialExited(trial_id=trial_id(0), at=BEGAN + 9)])  # no result since the last look
        store.snapshot(b"\x80", {})
        look(session, clock)
    table = session.table
    assert (statuses(session), table.get(0, "ended") + table.zero_time) == (["STOPPED"], BEGAN + 9)


def test_looks_without_news_change_nothing(tmp_path: Path):
    clock = ManualClock(0.0)
    session = look(open_session(str(write_experiment(tmp_path / "e", 3, 2)), clock=clock), clock)
    before = session.table.change
    for _ in range(5):
        look(session, clock)
    assert session.table.change == before


def test_trials_that_ran_when_the_writer_went_away_are_interrupted(tmp_path: Path):
    clock = ManualClock(0.0)
    store = open_store(tmp_path, num_samples=3)
    store.append([*facts_of_start(0), *facts_of_start(1), end_fact(1, 0)])
    session = look(open_session(str(tmp_path), clock=clock), clock)
    store.close()
    look(session, clock)
    assert (statuses(session), session.summary()["state"]) == (["INTERRUPTED", "TERMINATED"], "interrupted")


def test_an_interrupted_experiment_keeps_the_total_that_was_asked_for(tmp_path: Path):
    with open_store(tmp_path, num_samples=2, total_trials=60) as store:
        store.append([*facts_of_start(0), end_fact(0, 0)])
    summary = open_session(str(tmp_path), clock=ManualClock(0.0)).summary()
    assert (summary["of"], summary["counts"]) == (60, {"TERMINATED": 1})


def test_the_users_note_is_part_of_the_summary(tmp_path: Path):
    (write_experiment(tmp_path / "e", 1, 1) / "note.txt").write_text("the first try")
    assert open_session(str(tmp_path / "e"), clock=ManualClock(0.0)).summary()["note"] == "the first try"


def test_pilots_on_slurm_are_shown_while_their_driver_runs(tmp_path):
    folder = write_experiment(tmp_path / "e", 1, 1)
    (folder / ".slurm").mkdir()
    (folder / ".slurm" / "pilots.txt").write_text("2 on n1, 1 waiting for Priority")
    session = open_session(str(folder), clock=ManualClock(0.0))
    assert session.summary()["pilots"] == ""
    session._writer = os.getpid()
    assert session.summary()["pilots"] == "2 on n1, 1 waiting for Priority"


def test_an_experiment_whose_fit_raised_has_failed_until_it_is_resumed(tmp_path: Path):
    clock = ManualClock(0.0)
    with open_store(tmp_path, num_samples=2, raised="ValueError: odd") as store:
        store.append([*facts_of_start(0), end_fact(0, 0)])
    session = open_session(str(tmp_path), clock=clock)
    assert (session.summary()["state"], session.summary()["raised"]) == ("failed", "ValueError: odd")
    with open_store(tmp_path, num_samples=2):
        assert look(session, clock).summary()["state"] == "running"


def test_trials_of_a_resumed_experiment_run_at_the_first_look(tmp_path: Path):
    clock = ManualClock(0.0)
    with open_store(tmp_path, num_samples=3) as store:
        store.append(facts_of_start(0))
    session = look(open_session(str(tmp_path), clock=clock), clock)
    change = session.table.change
    with open_store(tmp_path, num_samples=3) as store:
        clock.advance(0.1)
        session.refresh()
        assert (session.delta(change)["summary"]["state"], session.table.change > change) == ("running", True)
        store.append(facts_of_start(1))
        clock.advance(0.1)
        session.refresh()
        assert statuses(session) == ["INTERRUPTED", "RUNNING"]


def test_a_directory_that_is_deleted_meanwhile_leaves_what_was_read(tmp_path: Path):
    clock = ManualClock(0.0)
    session = open_session(str(write_experiment(tmp_path / "e", 3, 2)), clock=clock)
    shutil.rmtree(tmp_path / "e")
    look(session, clock)
    assert (len(session.table), "is gone" in session.problem) == (3, True)


@pytest.mark.parametrize("kind", ["missing", "empty", "damaged", "newer", "foreign"])
def test_what_is_no_experiment_is_explained(tmp_path: Path, kind: str):
    place = tmp_path / "e"
    if kind != "missing":
        place.mkdir()
    if kind == "damaged":
        (place / "experiment.sqlite").write_bytes(b"SQLite format 3\0" + b"\xff" * 4096)
    if kind == "foreign":
        (place / "experiment.sqlite").write_bytes(b"no database at all, but long enough" * 50)
    if kind == "newer":
        import sqlite3

        write_experiment(place, 1, 1)
        with sqlite3.connect(place / "experiment.sqlite") as connection:
            connection.execute("UPDATE schema_version SET version = 99")
    words = {"missing": "no such directory", "empty": "no experiment.sqlite", "newer": "newer muster"}
    with pytest.raises(StoreError, match=words.get(kind, "damaged")):
        open_session(str(place), clock=ManualClock(0.0))


def test_a_damaged_trial_is_counted_and_the_rest_is_shown(tmp_path: Path):
    import sqlite3

    write_experiment(tmp_path, 5, 2)
    with sqlite3.connect(tmp_path / "experiment.sqlite") as connection:
        connection.execute("UPDATE trials SET record = x'01ffff' WHERE number = 2")
    session = open_session(str(tmp_path), clock=ManualClock(0.0))
    assert (len(session.table), session._loader.unreadable) == (4, 1)


def test_a_clock_that_jumped_back_gives_times_before_zero_and_no_error(tmp_path: Path):
    with open_store(tmp_path, num_samples=2) as store:
        store.append([*facts_of_start(0, 5_000.0), *facts_of_start(1, 1_000.0), end_fact(1, 1, began=900.0)])
        session = open_session(str(tmp_path), clock=ManualClock(0.0))
        assert session.table.get(1, "created") == pytest.approx(-3997.0)


def test_the_copies_of_a_population_are_read_from_its_policy_file(tmp_path: Path):
    write_experiment(tmp_path, 3, 2)
    (tmp_path / "pbt_global.txt").write_text('["1_x", "0_x", 4, 5, {}, {}]\nhalf a li')
    session = open_session(str(tmp_path), clock=ManualClock(0.0))
    assert session.lineage() == [[0, 1, 4, 5]]


def test_the_drawer_explains_a_failure_in_words_and_shows_the_end_of_the_log(tmp_path: Path):
    write_experiment(tmp_path, 6, 3)
    folder = tmp_path / "train_ab12c_00005"
    (folder / "stdout").write_text("x" * 40_000 + "the end")
    (folder / "note.txt").write_text("look at its data")
    (folder / "checkpoint_000001").mkdir()
    session = open_session(str(tmp_path), clock=ManualClock(0.0))
    shown = describe(session.trial(trial_id(5)), session.path, session.folder_of(trial_id(5)))
    assert (shown["why"], shown["checkpoints"], len(shown["logs"]["stdout"]) < 17_000) == (
        "It failed after 3 results, because its code raised an exception: "
        "ValueError: the learning rate is odd",
        ["checkpoint_000001"],
        True,
    )
    assert shown["logs"]["stdout"].endswith("the end")
    assert shown["logs"]["note.txt"] == "look at its data"


def test_log_tails_stay_inside_the_experiment(tmp_path: Path):
    (tmp_path / "secret").write_text("secret")
    root = tmp_path / "e"
    write_experiment(root, 1, 1)
    (root / "train_ab12c_00000" / "stdout").symlink_to(tmp_path / "secret")
    log_results(root, 0, range(2, 3))
    assert (
        log_tail(str(root), str(root / "train_ab12c_00000" / "stdout")),
        inside(str(root), "../secret"),
        inside(str(root), "/etc/passwd"),
        inside(str(root), "."),
    ) == ("", None, None, None)
