"""The base class: what a scheduler written for Ray finds when only its import was switched."""

import json
import logging
import pickle
from pathlib import Path

import pytest
from tests.tune.schedulers.fleet import Fleet, Search

from muster.errors import RestoreError
from muster.trials.model import Trial
from muster.tune.schedulers import ASHAScheduler, FIFOScheduler, TrialScheduler
from muster.tune.schedulers.trial_scheduler import FIFOScheduler as FIFOFromRaysPath
from muster.tune.schedulers.trial_scheduler import offer_search_properties


class Tournament(TrialScheduler):
    """In the style of user code: no super().__init__, trials as keys, scans of get_trials, status strings."""

    def __init__(self):
        self.best_of = {}
        self.log = lambda text: text  # plain pickle cannot take this

    def on_trial_add(self, tune_controller, trial):
        self.best_of[trial] = float("-inf")

    def on_trial_error(self, tune_controller, trial):
        self.best_of.pop(trial, None)

    def on_trial_result(self, tune_controller, trial, result):
        self.best_of[trial] = max(self.best_of[trial], result["score"])
        running = [t for t in tune_controller.get_trials() if t.status == "RUNNING" and t is not trial]
        if result["training_iteration"] >= 5:
            return TrialScheduler.STOP
        beaten = any(self.best_of[other] > self.best_of[trial] for other in running)
        return TrialScheduler.PAUSE if beaten else TrialScheduler.CONTINUE

    def on_trial_complete(self, tune_controller, trial, result):
        pass

    def on_trial_remove(self, tune_controller, trial):
        self.best_of.pop(trial, None)

    def choose_trial_to_run(self, tune_controller):
        for status in ("PENDING", "PAUSED"):
            for trial in tune_controller.get_trials():
                if trial.status == status:
                    return trial
        return None

    def debug_string(self):
        return "Tournament"


def test_a_scheduler_written_for_ray_runs_an_experiment_unchanged():
    fleet = Fleet(Tournament(), Search(4), lambda name, time: int(name[1:]) * time, workers=2).run()
    assert fleet.statuses() == dict.fromkeys(("t1", "t2", "t3", "t4"), "TERMINATED")


def test_its_state_keeps_trials_by_reference_and_functions_by_value():
    scheduler, trials = Tournament(), {name: Trial("f", trial_id=name) for name in ("a", "b")}
    for trial in trials.values():
        scheduler.on_trial_add(None, trial)
    again = Tournament()
    again.restore_state(scheduler.save_state(), trials)
    assert again.best_of == {trials["a"]: float("-inf"), trials["b"]: float("-inf")}
    assert again.log("x") == "x"


def test_a_saved_trial_that_is_gone_is_named():
    scheduler = Tournament()
    scheduler.on_trial_add(None, Trial("f", trial_id="lost"))
    with pytest.raises(RestoreError, match=r"Tournament: .*\blost\b"):
        Tournament().restore_state(scheduler.save_state())


def test_what_cannot_be_saved_is_an_error_with_a_fix():
    scheduler = Tournament()
    scheduler.file = open(__file__, "rb")  # noqa: SIM115
    with pytest.raises(RestoreError, match=r"Tournament .*save_state\(\)"):
        scheduler.save_state()
    scheduler.file.close()


def test_own_save_and_restore_methods_are_used():
    class Counting(FIFOScheduler):
        count = 0

        def save(self, checkpoint_path):
            Path(checkpoint_path).write_text(str(self.count))

        def restore(self, checkpoint_path):
            self.count = int(Path(checkpoint_path).read_text())

    scheduler, again = Counting(), Counting()
    scheduler.count = 3
    assert scheduler.save_state() == b"3"
    again.restore_state(b"3")
    assert again.count == 3


def test_save_methods_that_extend_ours_do_not_go_in_circles(tmp_path):
    class Extending(FIFOScheduler):
        saved = 0

        def save(self, checkpoint_path):
            self.saved += 1
            super().save(checkpoint_path)

        def restore(self, checkpoint_path):
            super().restore(checkpoint_path)

    scheduler, again = Extending(), Extending()
    scheduler.extra = "kept"
    again.restore_state(scheduler.save_state())
    assert (again.extra, again.saved) == ("kept", 1)
    scheduler.save(str(tmp_path / "state"))
    again.restore(str(tmp_path / "state"))
    assert again.saved == 2


def test_attributes_of_a_subclass_of_a_stock_scheduler_are_saved_too():
    class Patient(ASHAScheduler):
        patience = 0

    scheduler, again = Patient(metric="m", mode="max"), Patient()
    scheduler.patience = 7
    again.restore_state(scheduler.save_state())
    assert (again.patience, again.metric) == (7, "m")


def test_stock_schedulers_save_plain_data():
    assert json.loads(FIFOScheduler().save_state()) == {
        "kind": "fifo",
        "version": 1,
        "state": {"_metric": None},
    }


@pytest.mark.parametrize(
    ("state", "message"),
    [
        (b"{broken", "FIFOScheduler: its saved state is damaged"),
        (b'{"kind":"pbt","version":1,"state":{}}', "is of kind 'pbt'"),
        (b'{"kind":"fifo","version":2,"state":{}}', "saved by a newer muster"),
        (b"\x80garbage", "FIFOScheduler: its saved state is damaged"),
    ],
)
def test_a_state_that_does_not_fit_is_refused_with_the_reason(state, message):
    with pytest.raises(RestoreError, match=message):
        FIFOScheduler().restore_state(state)


def test_a_damaged_pickle_of_a_user_class_is_refused_with_the_reason():
    with pytest.raises(RestoreError, match=r"Tournament: "):
        Tournament().restore_state(b"\x80garbage")


def test_the_constants_are_strings_of_their_own_name():
    kinds = (TrialScheduler.CONTINUE, TrialScheduler.PAUSE, TrialScheduler.STOP, TrialScheduler.NOOP)
    assert kinds == ("CONTINUE", "PAUSE", "STOP", "NOOP")
    assert TrialScheduler().supports_buffered_results is True


def test_a_metric_is_taken_once_and_defaults_to_rays_anonymous_one():
    scheduler = FIFOScheduler()
    assert (scheduler.metric, scheduler.set_search_properties(None, None)) == (None, True)
    assert scheduler.metric == "_metric"
    assert scheduler.set_search_properties("loss", "min") is False
    fresh = FIFOScheduler()
    assert (fresh.set_search_properties("loss", "min"), fresh.metric) == (True, "loss")


def test_an_old_override_without_spec_is_called_without_it(caplog):
    class Old(FIFOScheduler):
        def set_search_properties(self, metric, mode):
            self.given = (metric, mode)
            return True

    scheduler = Old()
    with caplog.at_level(logging.WARNING):
        assert offer_search_properties(scheduler, "loss", "min", total_samples=3) is True
    assert scheduler.given == ("loss", "min")
    (record,) = caplog.records
    assert all(
        word in record.getMessage() for word in ("Old.set_search_properties", "**spec", "total_samples")
    )


def test_names_are_importable_from_rays_paths():
    from muster.tune.schedulers import AsyncHyperBandScheduler
    from muster.tune.schedulers.async_hyperband import ASHAScheduler as FromRaysPath

    assert FromRaysPath is ASHAScheduler is AsyncHyperBandScheduler
    assert FIFOFromRaysPath is FIFOScheduler
    assert issubclass(ASHAScheduler, FIFOScheduler)


def test_the_base_class_says_which_hook_is_missing():
    with pytest.raises(NotImplementedError):
        TrialScheduler().on_trial_add(None, None)


def test_pickling_a_stock_scheduler_needs_nothing_special():
    assert (
        pickle.loads(pickle.dumps(ASHAScheduler(max_t=9))).save_state() == ASHAScheduler(max_t=9).save_state()
    )
