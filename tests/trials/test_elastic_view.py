"""What the core offers to schedulers that change resources: pauses that lose nothing, and how full it is."""

from tests.trials.scripted import First, ScriptedEngine, Stage, steps, trials

from muster.base.resources import Resources
from muster.trials.events import CheckpointSaved
from muster.trials.plugins import CONTINUE, PAUSE, Occupancy


class PausesOnce(First):
    """At the second result, and only if that costs no step."""

    def on_trial_result(self, tune_controller, trial, result):
        self.told.append(("result", result["training_iteration"]))
        if result["training_iteration"] != 2:
            return CONTINUE
        tune_controller.keep_steps(trial)
        return PAUSE


def saves_nothing(engine, trial_id):
    engine.events.append(CheckpointSaved(trial_id=trial_id, at=engine._tick(), checkpoint=None))


def test_a_careful_pause_is_carried_out_when_there_is_a_checkpoint():
    scheduler = PausesOnce()
    stage = Stage(steps(4), trials(1), scheduler=scheduler).run()
    assert [time for what, time in scheduler.told if what == "result"] == [1, 2, 3, 4]
    assert stage.hooks.fired.count(("on_trial_start", "t0")) == 2


def test_a_careful_pause_without_a_checkpoint_lets_the_trial_go_on(monkeypatch):
    monkeypatch.setattr(ScriptedEngine, "_save", saves_nothing)
    scheduler = PausesOnce()
    stage = Stage(steps(4), trials(1), scheduler=scheduler).run()
    assert [time for what, time in scheduler.told if what == "result"] == [1, 2, 3, 4]
    assert stage.hooks.fired.count(("on_trial_start", "t0")) == 1


def test_the_view_says_how_full_it_is():
    stage = Stage(steps(9), trials(4), capacity={"CPU": 3, "GPU": 0.5})
    stage.step()
    stage.state.end(0.0)
    stage.step()
    view = stage.state.plugins.view
    assert view.occupancy() == Occupancy(
        capacity=Resources.of(CPU=3, GPU=0.5), used=Resources.of(CPU=3), live=3, pending=0, paused=0
    )
    assert view.get_running_trials() == []  # they have processes, and are about to end
    reading = view._resource_updater
    assert (reading.get_num_cpus(), reading.get_num_gpus()) == (3, 0.5)
    assert type(reading.get_num_cpus()) is int
