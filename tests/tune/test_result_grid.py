from __future__ import annotations

import pickle

import pytest
from tests.tune.experiments import add_checkpoint, trial, write_error

from muster.errors import ConfigError
from muster.session.checkpoint import as_fsspec
from muster.tune.analysis import ExperimentAnalysis
from muster.tune.result_grid import ResultGrid

NAN, INF = float("nan"), float("inf")


def grid(root, *trials, **defaults) -> ResultGrid:
    return ResultGrid(ExperimentAnalysis(root, trials=trials, **defaults))


@pytest.fixture
def three(tmp_path):
    losses = {"t1": [9.0, 1.0, 5.0], "t2": [4.0, 4.0, 4.0], "t3": [2.0, 8.0, 6.0]}
    return grid(tmp_path, *(trial(tmp_path, name, values) for name, values in losses.items()))


def lr(result) -> float:
    return result.config["lr"]


def test_a_grid_is_a_sequence_of_results(three, tmp_path):
    assert (len(three), lr(three[0]), lr(three[-1])) == (3, 0.1, 0.3)
    assert [lr(each) for each in three] == [0.1, 0.2, 0.3]
    assert [lr(each) for each in three[1:]] == [0.2, 0.3]
    assert (three.experiment_path, three[0].path) == (str(tmp_path), str(tmp_path / "t1"))
    assert "file" in as_fsspec(three.filesystem).protocol
    assert three[0] is three[0]


@pytest.mark.conformance("C-211")
@pytest.mark.parametrize(
    ("scope", "mode", "expected"),
    [
        ("last", "min", 0.2),
        ("last", "max", 0.3),
        ("all", "min", 0.1),
        ("all", "max", 0.1),
        ("avg", "min", 0.2),
        ("avg", "max", 0.3),
        ("last-5-avg", "max", 0.3),
        ("last-10-avg", "min", 0.2),
    ],
)
def test_the_best_result_by_scope(tmp_path, scope, mode, expected):
    losses = {"t1": [9.0, 1.0, 5.0], "t2": [4.0, 4.0, 4.0], "t3": [2.0, 8.0, 6.0]}
    made = grid(tmp_path, *(trial(tmp_path, name, values) for name, values in losses.items()))
    assert lr(made.get_best_result("loss", mode, scope)) == pytest.approx(expected)


def test_defaults_of_the_experiment_are_used_and_can_be_overridden(tmp_path):
    trials = [trial(tmp_path, "t1", [1.0]), trial(tmp_path, "t2", [2.0])]
    made = grid(tmp_path, *trials, default_metric="loss", default_mode="min")
    assert (lr(made.get_best_result()), lr(made.get_best_result(mode="max"))) == (0.1, 0.2)
    assert made.get_best_result() is made[0]


def test_the_first_of_equal_trials_wins(tmp_path):
    made = grid(tmp_path, trial(tmp_path, "t1", [2.0]), trial(tmp_path, "t2", [2.0]))
    assert [lr(made.get_best_result("loss", mode)) for mode in ("min", "max")] == [0.1, 0.1]


def test_a_metric_that_is_no_number_is_named_as_such(tmp_path):
    made = grid(tmp_path, trial(tmp_path, "t1", [(1.0, 2.0)]), trial(tmp_path, "t2", [None]))
    with pytest.raises(RuntimeError, match=r"'loss'.*\(1\.0, 2\.0\).*not a number"):
        made.get_best_result("loss", "min")


@pytest.mark.conformance("C-211")
def test_values_that_are_not_finite_are_left_out_unless_asked_for(tmp_path):
    made = grid(
        tmp_path, trial(tmp_path, "t1", [NAN]), trial(tmp_path, "t2", [-INF]), trial(tmp_path, "t3", [5.0])
    )
    assert lr(made.get_best_result("loss", "min")) == 0.3
    only = grid(tmp_path, trial(tmp_path, "t2", [-INF]), trial(tmp_path, "t3", [5.0]))
    assert lr(only.get_best_result("loss", "min", filter_nan_and_inf=False)) == 0.2
    none = grid(tmp_path, trial(tmp_path, "t1", [NAN]), trial(tmp_path, "t2", [INF]))
    with pytest.raises(RuntimeError, match=r"'loss': .*filter_nan_and_inf=False"):
        none.get_best_result("loss", "min")


@pytest.mark.conformance("C-211")
def test_one_trial_needs_no_metric(tmp_path):
    made = grid(tmp_path, trial(tmp_path, "t1", []))
    assert made.get_best_result() is made[0]


def test_several_trials_need_metric_and_mode(three):
    with pytest.raises(ValueError, match=r"metric=.*get_best_result"):
        three.get_best_result(mode="min")
    with pytest.raises(ValueError, match=r"mode=.*get_best_result"):
        three.get_best_result(metric="loss")
    with pytest.raises(ValueError, match=r"min.*max"):
        three.get_best_result("loss", "up")
    with pytest.raises(ValueError, match=r"last-5-avg.*last-10-avg"):
        three.get_best_result("loss", "min", "best")


def test_several_objectives_name_the_pareto_front(tmp_path):
    trials = [trial(tmp_path, "t1", [1.0]), trial(tmp_path, "t2", [2.0])]
    made = grid(tmp_path, *trials, default_metric=["loss", "lr"], default_mode=["min", "max"])
    front = r"2 metrics \(loss, lr\): name one, get_best_result\('loss', 'min'\), or use get_pareto_front\(\)"
    for call in (
        made.get_best_result,
        lambda: made.plot(tmp_path / "plot.html"),
        lambda: made._experiment_analysis.best_config,
        made._experiment_analysis.get_best_trial,
    ):
        with pytest.raises(ValueError, match=front):
            call()
    assert lr(made.get_best_result("loss", "max")) == 0.2
    assert made.plot(tmp_path / "plot.html", metric="loss", mode="min") == str(tmp_path / "plot.html")


def test_the_front_is_by_default_that_of_the_experiment_without_trials_that_violate_a_constraint(tmp_path):
    trials = [trial(tmp_path, f"t{one}", [float(one)]) for one in range(1, 5)]
    goal = {"default_metric": ["loss", "config/lr", "loss"], "default_mode": ["min", "max", "obs"]}
    made = grid(tmp_path, *trials, **goal)
    assert made.get_pareto_front() == made.get_pareto_front(["loss", "config/lr"], ["min", "max"])
    assert len(made.get_pareto_front()) == 4
    bounded = grid(tmp_path, *trials, **goal, constraints={"loss": 2.0})
    assert [one.metrics["loss"] for one in bounded.get_pareto_front()] == [1.0, 2.0]
    with pytest.raises(ValueError):
        grid(tmp_path, *trials, default_metric="loss", default_mode="min").get_pareto_front()


def test_a_trial_that_violates_a_constraint_is_best_only_when_all_do(tmp_path):
    trials = [trial(tmp_path, f"t{one}", [float(one)]) for one in range(1, 5)]
    goal = {"default_metric": "loss", "default_mode": "max"}
    for bound, best in (({"loss": 2.0}, 2.0), ({"loss": 0.5}, 4.0), ({"unknown": 1.0}, 4.0), ({}, 4.0)):
        made = grid(tmp_path, *trials, **goal, constraints=bound)
        assert made.get_best_result().metrics["loss"] == best
        assert made._experiment_analysis.best_result["loss"] == best


@pytest.mark.conformance("C-211")
def test_without_a_report_there_is_no_best_result(tmp_path):
    made = grid(tmp_path, trial(tmp_path, "t1", []), trial(tmp_path, "t2", []))
    with pytest.raises(RuntimeError) as caught:
        made.get_best_result("loss", "min")
    assert "'loss': " in str(caught.value)
    assert "filter_nan_and_inf" not in str(caught.value)


def test_an_unknown_metric_is_answered_with_the_known_ones(three):
    with pytest.raises(RuntimeError, match=r"'los': .* loss; .*'loss'\?$"):
        three.get_best_result("los", "min")


@pytest.mark.conformance("C-216")
def test_errors_hold_the_original_exceptions_and_counts_are_exact(tmp_path):
    write_error(tmp_path / "t1", RuntimeError("first"))
    write_error(tmp_path / "t3", None, "only text")
    write_error(tmp_path / "t4", OSError("an attempt that was made good"))
    made = grid(
        tmp_path,
        trial(tmp_path, "t1", [1.0], status="ERROR"),
        trial(tmp_path, "t2", [1.0]),
        trial(tmp_path, "t3", [], status="ERROR"),
        trial(tmp_path, "t4", [1.0]),
        trial(tmp_path, "t5", [1.0], status="RUNNING"),
    )
    assert [repr(error) for error in made.errors] == ["RuntimeError('first')", "TuneError('only text')"]
    assert (made.num_errors, made.num_terminated) == (2, 2)
    assert [made[index].error for index in (1, 3, 4)] == [None, None, None]


def test_the_table_has_one_line_per_trial_that_logged(tmp_path):
    made = grid(
        tmp_path,
        trial(tmp_path, "t1", [9.0, 1.0, 5.0]),
        trial(tmp_path, "t2", []),
        trial(tmp_path, "t3", [2.0, NAN, 6.0]),
    )
    table = made.get_dataframe()
    assert table["loss"].tolist() == [5.0, 6.0]
    assert table["logdir"].tolist() == ["t1", "t3"]
    assert table["done"].tolist() == [False, False]
    assert list(table.columns)[-3:] == ["config/lr", "config/net/width", "logdir"]
    assert table["config/lr"].tolist() == [0.1, 0.3]
    assert made.get_dataframe("loss", "min")["training_iteration"].tolist() == [2, 1]
    assert made.get_dataframe("loss", "max")["loss"].tolist() == [9.0, 6.0]


def test_defaults_are_not_applied_to_the_table(tmp_path):
    made = grid(tmp_path, trial(tmp_path, "t1", [1.0, 5.0]), default_metric="loss", default_mode="min")
    assert made.get_dataframe()["loss"].tolist() == [5.0]


def test_a_mode_needs_a_metric_and_must_be_one(three):
    with pytest.raises(ValueError, match=r"mode='min' .*metric="):
        three.get_dataframe(filter_mode="min")
    with pytest.raises(ValueError, match=r"min.*max"):
        three.get_dataframe("loss", "up")


def test_the_table_needs_pandas_and_the_best_result_does_not(three, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pandas", None)
    assert lr(three.get_best_result("loss", "min")) == 0.2
    with pytest.raises(ConfigError, match=r"^ExperimentAnalysis\.dataframe .*muster-ml\[pandas\]"):
        three.get_dataframe()


def test_checkpoints_of_a_result_are_the_retained_ones(tmp_path):
    kept = tuple(add_checkpoint(tmp_path / "t1", index, score=score) for index, score in ((2, 1.0), (0, 7.0)))
    made = grid(tmp_path, trial(tmp_path, "t1", [1.0], retained=kept, newest=kept[0]))
    assert made[0].checkpoint.path == kept[0].path
    assert [(each.path, metrics) for each, metrics in made[0].best_checkpoints] == [
        (kept[0].path, {"score": 1.0}),
        (kept[1].path, {"score": 7.0}),
    ]


def test_the_repr_indents_each_result(tmp_path):
    made = grid(tmp_path, trial(tmp_path, "t1", [1.0]))
    assert repr(made) == (
        "ResultGrid<[\n"
        "  Result(\n"
        "    metrics={'loss': 1.0},\n"
        "    config={'lr': 0.1, 'net': {'width': 4}},\n"
        f"    path='{tmp_path / 't1'}',\n"
        "    filesystem='local',\n"
        "    checkpoint=None\n"
        "  )\n"
        "]>"
    )


def test_a_notebook_shows_the_best_trials_first_with_their_configs_and_the_error(tmp_path):
    trials = [
        trial(tmp_path, name, values) for name, values in {"t1": [5.0], "t2": [1.0], "t3": [2.0]}.items()
    ]
    write_error(tmp_path / "t1", ValueError("<no luck>"))
    trials[0].status = "ERROR"
    page = grid(tmp_path, *trials, default_metric="loss", default_mode="min")._repr_html_()
    assert page.index("t2") < page.index("t3") < page.index(">t1<")
    assert "lr" in page
    assert "&lt;no luck&gt;" in page
    assert "<b>3 trials</b>, 1 failed" in page


def test_a_grid_can_be_pickled(three):
    assert len(three.get_dataframe()) == 3
    again = pickle.loads(pickle.dumps(three))
    assert lr(again.get_best_result("loss", "min")) == 0.2
    assert again[0].metrics_history == three[0].metrics_history


def test_the_table_shows_the_config_that_was_tried_not_its_logged_text(tmp_path):
    made = trial(tmp_path, "t1", [1.0])
    made.config["lr"] = (1, 2)  # a log would hold a list
    assert grid(tmp_path, made).get_dataframe()["config/lr"].tolist() == [(1, 2)]
