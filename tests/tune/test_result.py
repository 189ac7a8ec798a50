from __future__ import annotations

import pickle
import re
import sys

import pytest
from tests.tune.experiments import add_checkpoint, logged_row, write_csv, write_error, write_json

from muster.errors import ConfigError
from muster.session import Checkpoint
from muster.session.checkpoint import as_fsspec
from muster.tune import result as keys
from muster.tune.analysis.result_files import TrialFolder, parse_csv, parse_json_lines
from muster.tune.result import Result

CONFIG = {"lr": 0.1, "net": {"width": 4}}


def rows_with_checkpoints() -> list[dict]:
    rows = [
        logged_row("1e234567", step, CONFIG, score=score) for step, score in ((1, 3.0), (2, 9.0), (3, 4.0))
    ]
    for index, row in enumerate(rows):
        row["checkpoint_dir_name"] = f"checkpoint_{index:06d}"
    return rows


def test_a_trial_is_read_from_its_directory(tmp_path):
    rows = rows_with_checkpoints()
    write_json(tmp_path, rows)
    for index in range(3):
        add_checkpoint(tmp_path, index)
    write_error(tmp_path, ValueError("it broke"))
    result = Result.from_path(tmp_path)
    assert result.metrics == rows[-1]
    assert result.config == CONFIG
    assert result.path == str(tmp_path)
    assert result.checkpoint == Checkpoint(tmp_path / "checkpoint_000002")
    assert [(each.path[-6:], metrics["score"]) for each, metrics in result.best_checkpoints] == [
        ("000000", 3.0),
        ("000001", 9.0),
        ("000002", 4.0),
    ]
    assert (type(result.error), str(result.error)) == (ValueError, "it broke")
    assert result.metrics_history == rows


def test_a_checkpoint_that_no_result_tells_of_has_no_metrics_and_warns(tmp_path, caplog):
    write_json(tmp_path, rows_with_checkpoints()[:1])
    add_checkpoint(tmp_path, 0)
    add_checkpoint(tmp_path, 5)
    found = Result.from_path(str(tmp_path)).best_checkpoints
    assert [metrics.get("score") for _, metrics in found] == [3.0, None]
    assert found[1][1] == {}
    (record,) = caplog.records
    assert re.search(rf"^{tmp_path}: .*\bcheckpoint_000005$", record.getMessage())


def test_without_folder_or_log_there_is_no_result(tmp_path):
    with pytest.raises(RuntimeError, match=r"^Trial .*/none "):
        Result.from_path(tmp_path / "none")
    with pytest.raises(RuntimeError, match=r"result\.json.*progress\.csv"):
        Result.from_path(tmp_path)


def test_a_trial_is_read_from_any_filesystem(tmp_path):
    from fsspec.implementations.memory import MemoryFileSystem

    memory = MemoryFileSystem()
    write_json(tmp_path, rows_with_checkpoints())
    add_checkpoint(tmp_path, 1)
    memory.put(str(tmp_path), "/read-any/trial", recursive=True)
    for result in (
        Result.from_path("memory://read-any/trial"),
        Result.from_path("/read-any/trial", storage_filesystem=memory),
    ):
        assert (result.path, as_fsspec(result.filesystem).protocol) == ("/read-any/trial", "memory")
        assert result.metrics["score"] == 4.0
        with result.checkpoint.as_directory() as folder, open(f"{folder}/state", encoding="utf-8") as stream:
            assert stream.read() == "1"


@pytest.mark.conformance("C-212")
def test_rows_of_json_and_csv_are_equal(tmp_path):
    rows = [
        logged_row("12345678", 1, CONFIG, loss=1.5, deep={"a": {"b": 2}}, flag=True, name="x", count=3),
        logged_row(
            "12345678", 2, CONFIG, loss=float("inf"), deep={"a": {"b": -1}}, flag=False, name="y z", count=0
        ),
    ]
    write_json(tmp_path / "json", rows)
    write_csv(tmp_path / "csv", rows, CONFIG)
    one, other = (Result.from_path(tmp_path / kind).metrics_dataframe for kind in ("json", "csv"))
    assert sorted(one.columns) == sorted(other.columns)
    assert one.to_dict("records") == other[list(one.columns)].to_dict("records")
    assert other["trial_id"].tolist() == ["12345678", "12345678"]


def test_ids_that_look_like_numbers_stay_text():
    text = "trial_id,loss,step,name,empty\n1e234567,1e-3,10,a_1,\n12_3,nan,-2,True,\n"
    first, second = parse_csv(text, {})
    assert first == {"trial_id": "1e234567", "loss": 0.001, "step": 10, "name": "a_1", "empty": None}
    assert (second["trial_id"], second["step"], second["name"]) == ("12_3", -2, True)
    assert second["loss"] != second["loss"]


def test_a_line_that_a_crash_cut_off_is_left_out_and_a_damaged_one_is_not():
    assert parse_json_lines('{"a": 1}\n{"a": 2}\n{"a": ') == [{"a": 1}, {"a": 2}]
    assert parse_json_lines('{"a": 1}\n{"a": 2}') == [{"a": 1}, {"a": 2}]
    assert parse_json_lines("") == []
    assert parse_csv("a,b\r\n1,2\r\n3,4.0", {}) == [{"a": 1, "b": 2}]
    assert parse_csv("", {}) == []
    with pytest.raises(ValueError):
        parse_json_lines('{"a": \n{"a": 2}\n')


def test_the_table_of_a_trial_has_flat_columns_in_order(tmp_path):
    write_json(tmp_path, [logged_row("t", step, CONFIG, loss=step, deep={"a": 1}) for step in (1, 2)])
    table = Result.from_path(tmp_path).metrics_dataframe
    assert list(table.columns) == [
        "loss",
        "timestamp",
        "checkpoint_dir_name",
        "done",
        "training_iteration",
        "trial_id",
        "date",
        "time_this_iter_s",
        "time_total_s",
        "pid",
        "hostname",
        "node_ip",
        "time_since_restore",
        "iterations_since_restore",
        "deep/a",
        "config/lr",
        "config/net/width",
    ]
    assert table["loss"].tolist() == [1, 2]


def test_without_pandas_the_error_names_the_extra(tmp_path, monkeypatch):
    write_json(tmp_path, [logged_row("t", 1, CONFIG, loss=1)])
    result = Result.from_path(tmp_path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ConfigError) as caught:
        _ = result.metrics_dataframe
    assert re.search(r'^Result\.metrics_dataframe .*"muster-ml\[pandas\]"', str(caught.value))
    assert len(result.metrics_history) == 1


def scored(*metrics: dict) -> Result:
    made = [(Checkpoint(f"/c/{index}"), each) for index, each in enumerate(metrics)]
    return Result({}, None, None, "/trial", best_checkpoints=made)


@pytest.mark.conformance("C-213")
def test_the_best_checkpoint_by_any_metric():
    result = scored({"a": 1.0, "n": {"b": 5}}, {"a": 3.0, "n": {"b": 2}}, {"a": 2.0}, {"a": float("nan")})
    best = [result.get_best_checkpoint(*asked).path for asked in (("a", "max"), ("a", "min"), ("n/b", "max"))]
    assert best == ["/c/1", "/c/0", "/c/0"]
    assert result.get_best_checkpoint("n/b", "min").path == "/c/1"


def test_what_is_wrong_with_the_question_for_a_checkpoint_is_told():
    with pytest.raises(ValueError, match=r"min.*max"):
        scored({"a": 1}).get_best_checkpoint("a", "up")
    with pytest.raises(RuntimeError, match="/trial"):
        scored().get_best_checkpoint("a", "max")
    with pytest.raises(RuntimeError, match=r"'b'.*/trial .*: a$"):
        scored({"a": 1}).get_best_checkpoint("b", "max")


@pytest.mark.conformance("C-215")
def test_the_repr_hides_what_was_filled_in():
    row = {**logged_row("t", 1, CONFIG, loss=2.0), "experiment_tag": "0"}
    assert repr(Result(row, Checkpoint("/c"), None, "/trial")) == (
        "Result(\n"
        "  metrics={'loss': 2.0},\n"
        f"  config={CONFIG!r},\n"
        "  path='/trial',\n"
        "  filesystem='local',\n"
        "  checkpoint=Checkpoint(filesystem=local, path=/c)\n"
        ")"
    )
    assert repr(Result(None, None, KeyError("x"), "/trial")) == (
        "Result(\n  error='KeyError',\n  metrics={},\n  config=None,\n  path='/trial',\n"
        "  filesystem='local',\n  checkpoint=None\n)"
    )


def test_the_config_of_a_trial_that_never_reported_is_known():
    assert Result({"trial_id": "t"}, None, None, "/trial", config=CONFIG).config == CONFIG
    assert Result(None, None, None, "/trial").config is None


def test_results_can_be_pickled(tmp_path):
    write_json(tmp_path, rows_with_checkpoints())
    result = pickle.loads(pickle.dumps(Result.from_path(tmp_path)))
    assert (result.metrics["score"], len(result.metrics_history)) == (4.0, 3)


def test_errors_are_exceptions_else_nothing(tmp_path):
    assert TrialFolder(str(tmp_path)).error() is None
    entry = "Failure # {} (occurred at 2026-11-18_03-00-00)\n{}\n"
    write_error(tmp_path, None, entry.format(1, "KeyError: 'x'") + entry.format(2, "killed by signal 9"))
    assert repr(TrialFolder(str(tmp_path)).error()) == "TuneError('killed by signal 9')"
    write_error(tmp_path, KeyError("x"))
    assert repr(TrialFolder(str(tmp_path)).error()) == "KeyError('x')"
    assert repr(TrialFolder(str(tmp_path)).error(pickle.dumps(OSError("y")))) == "OSError('y')"


def test_an_exception_that_cannot_be_built_again_leaves_its_text(tmp_path, caplog):
    write_error(tmp_path, None, "the text")
    assert repr(TrialFolder(str(tmp_path)).error(b"not a pickle")) == "TuneError('the text')"
    assert [record.levelname for record in caplog.records] == ["WARNING"]


def test_the_module_has_the_names_of_result_keys():
    assert (keys.TRAINING_ITERATION, keys.DEFAULT_METRIC, keys.TIME_TOTAL_S) == (
        "training_iteration",
        "_metric",
        "time_total_s",
    )
    assert "config" in keys.DEBUG_METRICS
