"""Functions as class trainables, for scripts that call `wrap_function` themselves."""

from __future__ import annotations

from pathlib import Path

import pytest

from muster import tune
from muster.tune.trainable import FunctionTrainable, Trainable, wrap_function


def counting(config):
    checkpoint = tune.get_checkpoint()
    start = 0
    if checkpoint is not None:
        with checkpoint.as_directory() as folder:
            start = int(Path(folder, "at").read_text())
    for at in range(start + 1, config["last"] + 1):
        place = Path(config["folder"], str(at))
        place.mkdir(parents=True)
        (place / "at").write_text(str(at))
        tune.report({"at": at}, checkpoint=tune.Checkpoint.from_directory(place))


def yields(config):
    yield {"y": 1}
    yield 5


def fails(config):
    tune.report({"a": 1})
    raise ValueError("not today")


def test_each_step_is_one_report_and_the_last_is_repeated_as_done(tmp_path):
    made = wrap_function(counting)({"last": 2, "folder": str(tmp_path)})
    seen = [made.train() for _ in range(4)]
    assert [(row["at"], row["done"], row["training_iteration"]) for row in seen] == [
        (1, False, 1),
        (2, False, 2),
        (2, True, 3),
        (2, True, 4),
    ]
    assert issubclass(type(made), FunctionTrainable)
    assert type(made).__name__ == "counting"


def test_what_a_function_yields_or_returns_is_reported():
    made = wrap_function(yields)({})
    assert [made.train().get(key) for key in ("y", "_metric")] == [1, 5]
    assert wrap_function(lambda config: {"y": config["x"] ** 2})({"x": 3}).train()["y"] == 9


def test_it_continues_from_a_checkpoint(tmp_path):
    first = wrap_function(counting)({"last": 9, "folder": str(tmp_path / "first")})
    first.train(), first.train()
    second = wrap_function(counting)({"last": 9, "folder": str(tmp_path / "second")})
    second.restore(first.save())
    assert second.train()["at"] == 3


def test_an_exception_is_raised_by_the_step_that_meets_it_and_stop_ends_the_function():
    made = wrap_function(fails)({})
    made.train()
    with pytest.raises(ValueError, match="not today"):
        made.train()
    endless = wrap_function(yields)({})
    endless.train()
    endless.stop()
    endless._thread.join(5)
    assert not endless._thread.is_alive()


@pytest.mark.slow
def test_a_tuner_runs_the_function_and_a_subclass_runs_step_by_step(tmp_path):
    class More(wrap_function(yields)):
        @classmethod
        def default_resource_request(cls, config):
            return tune.PlacementGroupFactory([{"CPU": 1}])

    for kind, name in (
        (wrap_function(yields), "yields"),
        (wrap_function(yields, "mine"), "mine"),
        (More, "More"),
    ):
        found = tune.run(kind, storage_path=str(tmp_path / name), verbose=0)
        (trial,) = found.trials
        assert (trial.status, trial.last_result["_metric"], trial.trainable_name) == ("TERMINATED", 5, name)


def test_a_function_that_takes_no_config_is_refused():
    with pytest.raises(ValueError, match=r"tune\.with_parameters$"):
        wrap_function(lambda: None)
    assert issubclass(wrap_function(yields), Trainable)
