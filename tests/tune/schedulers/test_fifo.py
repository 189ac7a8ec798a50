import pickle

from tests.mistakes.views import assert_view
from tests.tune.schedulers.fleet import Fleet, Search

from muster.trials.model import Trial
from muster.trials.states import TrialState
from muster.tune.schedulers import FIFOScheduler


def fleet_with(*statuses):
    fleet = Fleet(FIFOScheduler(), Search(0), lambda name, time: 0.0)
    for index, status in enumerate(statuses, 1):
        trial = Trial("f", trial_id=f"t{index}")
        trial.state = TrialState(status)
        fleet.index.add(trial)
    return fleet


def test_the_first_pending_trial_runs_before_any_paused_one():
    assert (
        FIFOScheduler().choose_trial_to_run(fleet_with("PAUSED", "PENDING", "PENDING").view).trial_id == "t2"
    )
    assert (
        FIFOScheduler().choose_trial_to_run(fleet_with("RUNNING", "PAUSED", "PAUSED").view).trial_id == "t2"
    )
    assert FIFOScheduler().choose_trial_to_run(fleet_with("RUNNING", "ERROR").view) is None


def test_a_controller_that_only_has_get_trials_is_enough():
    class Other:
        def __init__(self, *trials):
            self._trials = trials

        def get_trials(self):
            return list(self._trials)

    trials = fleet_with("PAUSED", "RUNNING", "PENDING").index.order
    assert FIFOScheduler().choose_trial_to_run(Other(*trials)) is trials[2]
    assert FIFOScheduler().choose_trial_to_run(Other(*trials[:2])) is trials[0]
    assert FIFOScheduler().choose_trial_to_run(Other()) is None


def test_every_trial_runs_to_its_end_in_order():
    fleet = Fleet(FIFOScheduler(), Search(3), lambda name, time: 0.0, workers=1)
    for _ in range(3):
        fleet.step()
    assert fleet.jobs == ["t1@0"]
    assert [decision for _, _, decision in fleet.decisions] == ["CONTINUE"] * 3


def test_it_describes_itself_as_ray_does():
    assert_view("schedulers/fifo", FIFOScheduler().debug_string())


def test_its_state_survives_saving_and_pickling():
    scheduler = FIFOScheduler()
    assert scheduler.set_search_properties("loss", "min") is True
    again = FIFOScheduler()
    again.restore_state(scheduler.save_state())
    assert again.metric == "loss"
    assert pickle.loads(pickle.dumps(scheduler)).metric == "loss"
