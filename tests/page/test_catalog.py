from __future__ import annotations

import os
from pathlib import Path

from tests.page.samples import BEGAN, facts_of_start, open_store, result_of, write_experiment

from muster.base.clock import ManualClock
from muster.page.catalog import Catalog


def listed(root: Path, clock: ManualClock | None = None) -> list[tuple[str, str]]:
    catalog = Catalog(clock=clock or ManualClock(0.0), roots=[str(root)])
    try:
        return [(row["name"], row["state"]) for row in catalog.listing()["experiments"]]
    finally:
        catalog.close()


def test_experiments_are_listed_by_what_happened_last_in_them(tmp_path: Path):
    for name, began in (("old", BEGAN), ("new", BEGAN + 9000), ("older", BEGAN - 9000)):
        write_experiment(tmp_path / name, 3, 2, began=began)
    os.utime(tmp_path / "older" / "experiment.sqlite")  # somebody copied or looked at it
    assert listed(tmp_path) == [("new", "finished"), ("old", "finished"), ("older", "finished")]


def test_the_list_notices_that_a_driver_went_away_without_a_write(tmp_path: Path):
    store = open_store(tmp_path / "e", num_samples=3)
    store.append(facts_of_start(0))
    clock = ManualClock(0.0)
    catalog = Catalog(clock=clock, roots=[str(tmp_path)])
    before = [row["state"] for row in catalog.listing()["experiments"]]
    os.utime(tmp_path / "e" / "experiment.sqlite", (1, 1))
    store.close()
    os.utime(tmp_path / "e" / "experiment.sqlite", (1, 1))
    clock.advance(1.0)
    assert (before, [row["state"] for row in catalog.listing()["experiments"]]) == (
        ["running"],
        ["interrupted"],
    )
    catalog.close()


def test_an_experiment_whose_fit_raised_is_listed_as_failed(tmp_path: Path):
    write_experiment(tmp_path / "e", 3, 2, raised="TuneError: the scheduler raised")
    assert listed(tmp_path) == [("e", "failed")]


def test_the_best_of_the_list_violates_no_constraint_where_a_trial_fits(tmp_path: Path):
    found = sorted((result_of(number, 2) for number in range(6)), key=lambda result: result["loss"])
    for place, bounds in enumerate(({"loss": found[0]["loss"]}, {"loss": 0.0}, {"unknown": 1.0})):
        write_experiment(tmp_path / str(place), 6, 2, mode="max", constraints=bounds)
    catalog = Catalog(clock=ManualClock(0.0), roots=[str(tmp_path)])
    best = {row["name"]: round(row["best"], 6) for row in catalog.listing()["experiments"]}
    catalog.close()
    lowest, highest = (round(found[at]["loss"], 6) for at in (0, -1))
    assert best == {"0": lowest, "1": highest, "2": highest}
