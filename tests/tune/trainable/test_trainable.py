from __future__ import annotations

import os
import re

import cloudpickle
import pytest
from tests.contracts.engine_contract.fixture import Driver

from muster.base.clock import ManualClock, SystemClock
from muster.engines.local.engine import LocalEngine
from muster.engines.local.worker_pool import LocalOptions
from muster.session import Checkpoint
from muster.tune.trainable import Trainable
from muster.tune.trainable.trainable import TrainingResult

AUTO_KEYS = [
    "done",
    "training_iteration",
    "trial_id",
    "date",
    "timestamp",
    "time_this_iter_s",
    "time_total_s",
    "pid",
    "hostname",
    "node_ip",
    "config",
    "time_since_restore",
    "iterations_since_restore",
]


class Counter(Trainable):
    def setup(self, config):
        config["seen"] = True  # a copy: nobody else may notice
        self.value = config.get("start", 0)

    def step(self):
        self.value += 1
        return {"value": self.value, "before": self.iteration}

    def save_checkpoint(self, checkpoint_dir):
        return {"value": self.value}

    def load_checkpoint(self, checkpoint):
        self.value = checkpoint["value"]

    def reset_config(self, new_config):
        self.value = new_config["start"]
        return True


class Files(Counter):
    def save_checkpoint(self, checkpoint_dir):
        with open(os.path.join(checkpoint_dir, "value"), "w", encoding="utf-8") as stream:
            stream.write(str(self.value))
        return checkpoint_dir

    def load_checkpoint(self, checkpoint):
        with open(os.path.join(checkpoint, "value"), encoding="utf-8") as stream:
            self.value = int(stream.read())


@pytest.fixture
def clock(monkeypatch):
    made = ManualClock(now=1_700_000_000.0)
    monkeypatch.setattr(Trainable, "_clock", made)
    return made


def test_a_trained_result_has_the_automatic_keys_in_order(clock):
    config = {"start": 4}
    trainable = Counter(config)
    result = trainable.train()
    assert list(result) == ["value", "before", *AUTO_KEYS]
    assert [
        result[key] for key in ("value", "before", "done", "training_iteration", "trial_id", "timestamp")
    ] == [
        5,
        0,
        False,
        1,
        "default",
        1_700_000_000,
    ]
    assert result["config"] is config
    assert config == {"start": 4}


def test_times_and_iterations_are_counted(clock):
    class Slow(Counter):
        def step(self):
            clock.advance(2.5)
            return super().step()

    trainable = Slow()
    trainable.train()
    result = trainable.train()
    assert (result["time_this_iter_s"], result["time_total_s"], result["before"]) == (2.5, 5.0, 1)
    assert (trainable.iteration, trainable.training_iteration) == (2, 2)


@pytest.mark.conformance("C-079")
def test_timesteps_are_summed_and_a_reported_total_is_kept():
    class Steps(Trainable):
        def step(self):
            return dict(self.config)

    without = Steps({"value": 1}).train()
    assert "timesteps_total" not in without
    counting = Steps({"timesteps_this_iter": 5})
    assert [counting.train()["timesteps_total"] for _ in range(3)] == [5, 10, 15]
    assert counting.train()["timesteps_since_restore"] == 20
    assert Steps({"timesteps_this_iter": 0}).train()["timesteps_total"] == 0
    assert Steps({"timesteps_this_iter": 5, "timesteps_total": 70}).train()["timesteps_total"] == 70


def test_a_step_must_return_a_dict():
    class Wrong(Trainable):
        def step(self):
            return 3

    with pytest.raises(TypeError, match=r"Wrong\.step"):
        Wrong().train()


def test_what_is_not_defined_says_so():
    bare = Trainable()
    for call, told in (
        (bare.step, "Trainable must define step()"),
        (lambda: bare.save_checkpoint("x"), "Trainable must define save_checkpoint() to be saved"),
        (lambda: bare.load_checkpoint({}), "Trainable must define load_checkpoint() to be restored"),
    ):
        with pytest.raises(NotImplementedError) as caught:
            call()
        assert str(caught.value) == told
    assert (bare.reset_config({}), Trainable.default_resource_request({}), Trainable.resource_help({})) == (
        False,
        None,
        "",
    )


@pytest.mark.conformance("C-075")
@pytest.mark.parametrize("kind", [Counter, Files])
def test_saving_and_restoring_commute(kind):
    first = kind({"start": 10})
    first.train()
    first.train()
    saved = first.save()
    second = kind({"start": 0})
    second.restore(saved)
    assert (second.value, second.iteration) == (12, 2)
    assert second.train()["iterations_since_restore"] == 1
    third = kind({"start": 0})
    third.restore(saved.checkpoint.path)
    fourth = kind({"start": 0})
    fourth.restore(Checkpoint(saved.checkpoint.path))
    assert [(each.value, each.iteration) for each in (third, fourth)] == [(12, 2), (12, 2)]
    assert second.train()["training_iteration"] == 4


@pytest.mark.conformance("C-074")
def test_no_checkpoint_directory_is_used_twice(tmp_path):
    trainable = Files({"start": 0}, storage=tmp_path)
    for _ in range(3):
        trainable.train()
        trainable.restore(trainable.save())
    again = Files({"start": 50}, storage=tmp_path)
    again.save()
    assert sorted(os.listdir(tmp_path)) == [f"checkpoint_00000{number}" for number in range(4)]
    kept = [(tmp_path / f"checkpoint_00000{number}" / "value").read_text() for number in range(4)]
    assert kept == ["1", "2", "3", "50"]


def test_saving_into_a_given_directory_keeps_it(tmp_path):
    saved = Counter({"start": 3}).save(tmp_path / "mine")
    assert saved.checkpoint.path == str(tmp_path / "mine")
    assert sorted(os.listdir(tmp_path / "mine")) == [".metadata.json", "_dict_checkpoint.pkl"]


def test_save_checkpoint_may_not_answer_another_directory(tmp_path):
    class Elsewhere(Counter):
        def save_checkpoint(self, checkpoint_dir):
            return str(tmp_path / "elsewhere")

    with pytest.raises(ValueError, match=r"Elsewhere\.save_checkpoint"):
        Elsewhere().save(tmp_path / "mine")


def test_restoring_what_is_gone_is_a_value_error(tmp_path):
    gone = TrainingResult(Checkpoint(tmp_path / "gone"), {"training_iteration": 3})
    with pytest.raises(ValueError, match=r"/gone .*num_to_keep"):
        Counter().restore(gone)


def test_a_reset_swaps_the_config_and_begins_to_count_anew():
    trainable = Counter({"start": 1})
    trainable.train()
    assert trainable.reset({"start": 7}) is True
    assert (trainable.config, trainable.iteration, trainable.train()["value"]) == ({"start": 7}, 0, 8)

    class Fixed(Counter):
        def reset_config(self, new_config):
            return False

    assert Fixed().reset({"start": 1}) is False


def test_training_is_buffered_by_time_number_and_done(clock):
    class Ends(Counter):
        def step(self):
            clock.advance(1.0)
            result = super().step()
            return {**result, "done": result["value"] == self.config["ends"]}

    assert len(Ends({"ends": 4}).train_buffered(100.0)) == 4
    assert len(Ends({"ends": 99}).train_buffered(100.0, max_buffer_length=7)) == 7
    assert len(Ends({"ends": 99}).train_buffered(3.0)) == 3


def test_automatic_metrics_can_be_asked_for_without_training(clock):
    trainable = Counter({"start": 0})
    trainable.train()
    told = trainable.get_auto_filled_metrics(debug_metrics_only=True)
    assert list(told) == ["trial_id", "date", "timestamp", "pid", "hostname", "node_ip", "config"]
    assert trainable.get_auto_filled_metrics()["training_iteration"] == 1
    assert trainable.get_auto_filled_metrics(timestamp=5)["timestamp"] == 5
    assert trainable.iteration == 1


def test_results_are_logged_where_they_are_made():
    seen = []

    class Logs(Counter):
        def log_result(self, result):
            seen.append((result["value"], result["training_iteration"]))

    trainable = Logs()
    trainable.train()
    trainable.train()
    assert seen == [(1, 1), (2, 2)]


@pytest.mark.conformance("C-097")
def test_models_are_exported_in_any_format_that_the_class_knows(tmp_path):
    class Exports(Counter):
        def _export_model(self, export_formats, export_dir):
            return {each: f"{export_dir}/{each}" for each in export_formats}

    trainable = Exports(storage=tmp_path)
    assert trainable.export_model("model") == {"model": f"{tmp_path}/model"}
    assert trainable.export_model(["checkpoint", "h5"], "/out") == {
        "checkpoint": "/out/checkpoint",
        "h5": "/out/h5",
    }
    assert trainable.export_model("mine") == {"mine": f"{tmp_path}/mine"}
    with pytest.raises(ValueError, match="export_dir"):
        Exports().export_model("model")


def test_a_slow_setup_gets_a_hint(clock, caplog):
    class Slow(Trainable):
        def setup(self, config):
            clock.advance(10.5)

    with caplog.at_level("INFO", logger="muster"):
        Slow()
    (record,) = caplog.records
    assert re.search(r"^Slow\.setup .*\b10\.5 s: .*reset_config.*reuse_actors=True", record.getMessage())


def test_outside_of_a_trial_there_are_no_trial_names():
    trainable = Counter()
    assert (trainable.trial_id, trainable.trial_name, trainable.trial_resources, trainable.logdir) == (
        "default",
        "default",
        None,
        None,
    )


class Tells(Counter):
    def step(self):
        names = {"id": self.trial_id, "name": self.trial_name, "dir": self.logdir}
        return {**super().step(), **names, "done": self.iteration == 2}


@pytest.mark.conformance("C-090")
@pytest.mark.slow
def test_inside_of_a_trial_it_knows_its_names_and_iterations(tmp_path):
    blobs = {"Tells": cloudpickle.dumps(Tells)}
    engine = LocalEngine(
        clock=SystemClock(), trainables=blobs, capacity={"CPU": 1}, options=LocalOptions(quiet=True)
    )
    try:
        driver = Driver(engine, tmp_path)
        driver.start("a", "Tells", {"start": 5})
        result = driver.to_report("a").result
        assert [result[key] for key in ("value", "before", "id", "name", "dir")] == [
            6,
            0,
            "a",
            "Tells_a",
            str(tmp_path / "a"),
        ]
    finally:
        engine.close()
