from __future__ import annotations

import json
import time
from pathlib import Path

import numpy as np
import pytest
from tests.page.samples import log_results, result_of, write_experiment

from muster.base.clock import ManualClock
from muster.page.result_curves import (
    MAX_RAW_POINTS,
    CurveBands,
    ResultReader,
    ResultRows,
    last_result,
    rollup,
    scattered,
)


def rows_of(points: list[tuple[int, float, float]]) -> ResultRows:
    rows = ResultRows(["loss"])
    for trial, iteration, value in points:
        rows.add(trial, np.array([[iteration, value]], dtype=np.float32))
    return rows


def test_a_rollup_has_the_range_and_the_middle_of_every_iteration():
    rows = rows_of(
        [(trial, iteration, trial * 10.0 + iteration) for trial in range(5) for iteration in (1, 2)]
    )
    found = rollup(rows, "loss")
    assert (found["x"], found["bands"]) == (
        [1.0, 2.0],
        [[1.0, 2.0], [5.0, 6.0], [21.0, 22.0], [37.0, 38.0], [41.0, 42.0]],
    )


def test_the_bands_are_the_quantiles_of_even_and_odd_counts():
    values = np.random.default_rng(7).random(31)
    for count in (1, 2, 3, 4, 30, 31):
        found = rollup(rows_of([(trial, 1, values[trial]) for trial in range(count)]), "loss")
        wanted = np.quantile(values[:count].astype(np.float32), (0.0, 0.1, 0.5, 0.9, 1.0))
        assert [band[0] for band in found["bands"]] == [
            pytest.approx(each, rel=1e-5) for each in wanted.tolist()
        ]


def test_a_result_that_is_logged_after_its_fact_is_read_then(tmp_path: Path):
    write_experiment(tmp_path, 1, 2)
    clock = ManualClock(0.0)
    reader = ResultReader(str(tmp_path), clock.monotonic)
    reader.start(["loss"])
    reader.want(0, "train_ab12c_00000", last_result(result_of(0, 3)))
    reader.read(1.0)
    log_results(tmp_path, 0, range(3, 4))
    clock.advance(0.5)
    assert (reader.read(1.0), reader.rows.count, reader.behind) == (True, 3, 0)


def test_lines_that_a_restart_replaced_are_read_again(tmp_path: Path):
    write_experiment(tmp_path, 1, 3)
    reader = ResultReader(str(tmp_path), lambda: 0.0)
    reader.start(["loss"])
    reader.want(0, "train_ab12c_00000")
    reader.read(1.0)
    file = tmp_path / "train_ab12c_00000" / "result.json"
    kept = file.read_text().splitlines(True)[0]
    again = [json.dumps({**result_of(0, each), "loss": 9.0 + each}) + "\n" for each in (2, 3, 4)]
    file.write_text(kept + "".join(again))
    reader.want(0, "train_ab12c_00000")
    reader.read(1.0)
    assert reader.rows.of(0, "loss")[1][1:] == [11.0, 12.0, 13.0]


def test_a_rollup_counts_only_the_trials_that_are_asked_for():
    rows = rows_of([(trial, 1, float(trial)) for trial in range(4)])
    found = rollup(rows, "loss", np.array([False, True, False, False]))
    assert (found["points"], found["bands"][2]) == (1, [1.0])


def test_values_that_are_no_numbers_are_left_out_of_a_rollup():
    rows = rows_of([(0, 1, float("nan")), (1, 1, 2.0), (2, 1, float("inf"))])
    assert rollup(rows, "loss")["points"] == 1


def test_bands_that_follow_new_results_equal_those_made_anew():
    stream, rows, bands = np.random.default_rng(3), ResultRows(["loss"]), CurveBands("loss")
    for trial in range(60):
        first = int(stream.integers(1, 400))
        points = [[first + each, stream.random()] for each in range(int(stream.integers(1, 5)))]
        if trial % 7 == 3:
            points.append([float("nan"), 1.0])
            points.append([2.0, float("inf")])
        if trial % 20 == 19:
            rows.remove(trial - 5)
        rows.add(trial, np.array(points, dtype=np.float32))
        assert bands.of(rows) == rollup(rows, "loss"), trial


def test_a_few_new_results_among_a_million_cost_little():
    rows, bands = ResultRows(["loss"]), CurveBands("loss")
    values = np.random.default_rng(1).random(1_000_000)
    rows.add(0, np.stack([np.arange(1_000_000) % 100, values], axis=1).astype(np.float32))
    bands.of(rows)
    before = time.process_time()
    for trial in range(1, 11):
        rows.add(trial, np.array([[1.0, 0.5]], dtype=np.float32))
        bands.of(rows)
    assert time.process_time() - before < 1.0  # 0.01 s alone; all of it again would take 0.5 s


def test_a_million_results_are_rolled_up_in_a_moment():
    rows = ResultRows(["loss"])
    stream = np.random.default_rng(1)
    for trial in range(100):
        values = stream.random(10_000)
        rows.add(trial, np.stack([np.arange(10_000) % 100, values], axis=1).astype(np.float32))
    before = time.process_time()
    found = rollup(rows, "loss")
    assert found["points"] == 1_000_000
    assert time.process_time() - before < 2.0  # 0.05 s alone


def test_files_are_read_from_where_the_last_look_ended(tmp_path: Path):
    reader = ResultReader(str(tmp_path), time.monotonic)
    reader.start(["loss"])
    log_results(tmp_path, 0, range(1, 4))
    reader.want(0, "train_ab12c_00000")
    reader.read(10.0)
    log_results(tmp_path, 0, range(4, 6))
    reader.want(0, "train_ab12c_00000")
    reader.read(10.0)
    xs, ys = reader.rows.of(0, "loss")
    assert (xs, [round(y, 3) for y in ys]) == (
        [1, 2, 3, 4, 5],
        [round(result_of(0, each)["loss"], 3) for each in range(1, 6)],
    )


def test_when_there_are_other_metrics_every_trial_is_read_again(tmp_path: Path):
    reader = ResultReader(str(tmp_path), time.monotonic)
    reader.start(["loss"])
    for number in (0, 1):
        log_results(tmp_path, number, range(1, 4))
        reader.want(number, f"train_ab12c_{number:05d}")
    reader.read(10.0)
    reader.start(["loss", "acc"])
    reader.read(10.0)
    assert [len(reader.rows.of(number, "acc")[0]) for number in (0, 1)] == [3, 3]


def test_a_file_that_was_made_anew_replaces_its_results(tmp_path: Path):
    reader = ResultReader(str(tmp_path), time.monotonic)
    reader.start(["loss"])
    log_results(tmp_path, 0, range(1, 9))
    reader.want(0, "train_ab12c_00000")
    reader.read(10.0)
    (tmp_path / "train_ab12c_00000" / "result.json").write_text("")
    log_results(tmp_path, 0, range(1, 3))
    reader.want(0, "train_ab12c_00000")
    reader.read(10.0)
    assert reader.rows.of(0, "loss")[0] == [1, 2]


def test_nan_nested_metrics_and_a_line_cut_by_a_crash_are_read(tmp_path: Path):
    folder = tmp_path / "t"
    folder.mkdir()
    lines = [
        json.dumps({"training_iteration": 1, "eval": {"loss": 1.5}}),
        '{"training_iteration": 2, "eval": {"loss": NaN}}',
        '{"training_iteration": 3, "ev',
    ]
    (folder / "result.json").write_text("\n".join(lines))
    reader = ResultReader(str(tmp_path), time.monotonic)
    reader.start(["eval/loss"])
    reader.want(0, "t")
    reader.read(10.0)
    assert reader.rows.of(0, "eval/loss") == [[1, 2], [1.5, None]]


def test_a_trial_directory_outside_the_experiment_is_not_read(tmp_path: Path):
    write_experiment(tmp_path / "other", 1, 3)
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "link").symlink_to(tmp_path / "other" / "train_ab12c_00000")
    reader = ResultReader(str(tmp_path / "mine"), time.monotonic)
    reader.start(["loss"])
    reader.want(0, "../other/train_ab12c_00000")
    reader.want(1, "link")
    reader.read(10.0)
    assert reader.rows.count == 0


def test_a_long_curve_keeps_its_peaks():
    rows = ResultRows(["loss"])
    values = np.zeros((50_000, 2), dtype=np.float32)
    values[:, 0] = np.arange(50_000)
    values[31_234, 1] = 9.0
    rows.add(0, values)
    xs, ys = rows.of(0, "loss")
    assert (len(xs) <= MAX_RAW_POINTS, max(ys)) == (True, 9.0)


def test_the_first_files_that_are_read_are_far_apart():
    first = [value for value, _ in zip(scattered(list(range(10_000))), range(50), strict=False)]
    assert max(first) - min(first) > 9_000


def test_long_trials_are_thinned_out_and_short_ones_stay_whole():
    rows = ResultRows(["loss"])
    for start in (0, 2500):  # in two parts, with another trial between them
        steps = np.arange(start, start + 2500)
        rows.add(0, np.stack([steps, steps], axis=1).astype(np.float32))
        rows.add(1, np.array([[start, 1.0]], dtype=np.float32))
    before = rows.version
    rows.thin_out()
    of_long, of_short = (rows.iterations[rows.trials[: rows.count] == trial].tolist() for trial in (0, 1))
    assert (of_long, of_short, rows.version) == (list(range(0, 5000, 2)), [0, 2500], before + 1)


def test_results_beyond_the_limit_are_left_out_and_counted(tmp_path: Path, monkeypatch):
    monkeypatch.setattr("muster.page.result_curves.MAX_ROWS", 50)
    reader = ResultReader(str(tmp_path), time.monotonic)
    reader.start(["loss"])
    for number in range(30):
        log_results(tmp_path, number, range(1, 11))
        reader.want(number, f"train_ab12c_{number:05d}")
    while reader.behind:
        reader.read(10.0, most=5)
    assert (reader.rows.count, reader.left_out) == (50, 25)
