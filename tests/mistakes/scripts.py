"""List mistakes in scripts: the script, and what the sentence that helps must contain.

A script starts with PRELUDE. Most mistakes raise; some fail the trial (`TRIAL`: the last line of its error),
and some let the run continue and are noted on the error stream once (`NOTE`).
"""

from __future__ import annotations

from typing import NamedTuple

PRELUDE = """\
import os, sys
from muster import tune
from muster.tune import RunConfig, TuneConfig, Tuner
RUN = RunConfig(storage_path=os.getcwd(), name="run", verbose=0, engine="local")
def train(config):
    tune.report({"loss": float(config.get("x", 1.0))})
def fit(trainable=train, **more):
    return Tuner(trainable, **{"run_config": RUN, **more}).fit()
"""
RAYS = """\
class theirs:  # stands for a class that was imported from Ray by mistake
    __module__, __qualname__ = "ray.tune.search.some_module", "{0}"
    __call__ = stop_all = lambda self, *_: None
theirs.__name__ = "{0}"
"""
RAISES, TRIAL, NOTE = "raises", "trial", "note"


class Mistake(NamedTuple):
    name: str
    script: str
    says: tuple[str, ...]  # what, where, what to do
    how: str = RAISES


LISTED = [
    Mistake(
        "metric_typo",
        'fit(tune_config=TuneConfig(metric="los", mode="min"))',
        ("'los'", "loss", "TuneConfig"),
    ),
    Mistake(
        "optuna_without_metric",
        "from muster.tune.search.optuna import OptunaSearch\n"
        'fit(param_space={"x": tune.uniform(0, 1)}, tune_config=TuneConfig(search_alg=OptunaSearch()))',
        ("OptunaSearch", "metric", "mode"),
    ),
    Mistake(
        "bounds_swapped",
        'Tuner(train, param_space={"model": {"lr": tune.uniform(1, 0)}})',
        ("param_space['model']['lr']", "uniform(1, 0)", "lower", "upper"),
    ),
    Mistake("report_a_number", "fit(lambda config: tune.report(0.5))", ("report(", "0.5", "{'"), TRIAL),
    Mistake(
        "text_as_bound",
        'Tuner(train, param_space={"x": tune.uniform("0", 1)})',
        ("uniform('0', 1)", "number"),
    ),
    Mistake(
        "stop_typo",
        'fit(run_config=RunConfig(storage_path=os.getcwd(), stop={"los": 1}, verbose=0, engine="local"))',
        ("stop", "'los'", "loss"),
        NOTE,
    ),
    Mistake(
        "text_metric",
        'def train(config):\n    tune.report({"loss": "0.5"})\n'
        'fit(train, tune_config=TuneConfig(metric="loss", mode="min"))',
        ("'loss'", "'0.5'", "float("),
    ),
    Mistake(
        "scheduler_by_short_name_typo",
        'fit(tune_config=TuneConfig(metric="loss", mode="min", scheduler="ashaa"))',
        ("'ashaa'", "'asha'"),
    ),
    Mistake(
        "relative_path",
        'open("data.csv", "w").close()\ndef train(config):\n    open("data.csv")\nfit(train)',
        ("'data.csv'", "own directory", "/relative_path/data.csv"),
        TRIAL,
    ),
    Mistake(
        "large_array_in_space",
        'import numpy\nTuner(train, param_space={"data": numpy.zeros(1_000_000)})',
        ("param_space['data']", "8 MB", "tune.with_parameters"),
        NOTE,
    ),
]

OWN = [
    Mistake("trainable_called", 'Tuner({"loss": 1.0})', ("{'loss': 1.0}", "function of the config")),
    Mistake(
        "trainable_with_two_arguments",
        "def train(config, data): pass\nTuner(train)",
        ("train(config, data)", "with_parameters"),
    ),
    Mistake(
        "space_is_a_list", "Tuner(train, param_space=[tune.uniform(0, 1)])", ("param_space", "dict", "list")
    ),
    Mistake("keyword_typo", "TuneConfig(num_sample=3)", ("TuneConfig", "'num_sample'", "'num_samples'")),
    Mistake("space_by_position", 'Tuner(train, {"x": 1})', ("Tuner", "param_space=")),
    Mistake(
        "modes_too_few",
        'TuneConfig(metric=["loss", "latency_ms"], mode=["min"])',
        ("2 metrics need as many modes", "not 1"),
    ),
    Mistake(
        "modes_all_observed",
        'TuneConfig(metric=["loss", "latency_ms"], mode=["obs", "obs"])',
        ("'min' or 'max'",),
    ),
    Mistake(
        "constraint_that_is_a_word", 'TuneConfig(constraints={"latency_ms": "50 ms"})', ("'50 ms'", "number")
    ),
    Mistake(
        "several_metrics_for_pbt",
        "from muster.tune.schedulers import PopulationBasedTraining\n"
        'pbt = PopulationBasedTraining(hyperparam_mutations={"lr": tune.uniform(0, 1)})\n'
        'fit(tune_config=TuneConfig(metric=["loss", "latency_ms"], mode=["min", "min"], scheduler=pbt))',
        ("PopulationBasedTraining", "one metric", "ASHAScheduler"),
    ),
    Mistake("mode_misspelt", 'TuneConfig(metric="loss", mode="minimize")', ("'minimize'", "'min' or 'max'")),
    Mistake("budget_below_zero", "TuneConfig(cost_budget=-5)", ("cost_budget=-5", "number of dollars")),
    Mistake(
        "budget_without_a_price",
        "fit(tune_config=TuneConfig(cost_budget=5.0))",
        ("cost_budget=5", "cannot be held", "price_per_hour"),
    ),
    Mistake(
        "price_that_is_no_number",
        'RunConfig(price_per_hour=float("nan"))',
        ("price_per_hour=nan", "number of dollars"),
    ),
    Mistake(
        "deadline_over",
        "from datetime import datetime, timezone\n"
        "TuneConfig(deadline=datetime(2020, 1, 1, tzinfo=timezone.utc))",
        ("deadline=datetime", "in the past", "later"),
    ),
    Mistake(
        "deadline_without_zone",
        "from datetime import datetime\nTuneConfig(deadline=datetime(2999, 1, 1))",
        ("has no zone", "tzinfo=timezone.utc"),
    ),
    Mistake(
        "deadline_as_a_moment_in_seconds",
        "TuneConfig(deadline=1_900_000_000)",
        ("deadline=1900000000", "years from now", "datetime with its zone"),
    ),
    Mistake("samples_as_text", 'TuneConfig(num_samples="10")', ("num_samples='10'", "whole number")),
    Mistake(
        "best_without_metric",
        "fit(tune_config=TuneConfig(num_samples=2)).get_best_result()",
        ("metric", "get_best_result", "TuneConfig"),
    ),
    Mistake(
        "best_by_unreported_metric",
        'fit(tune_config=TuneConfig(num_samples=2)).get_best_result("accuracy", "max")',
        ("'accuracy'", "loss"),
    ),
    Mistake(
        "best_of_failed_trials",
        "def train(config):\n    raise OSError('no data')\n"
        'fit(train, tune_config=TuneConfig(metric="loss", mode="min", num_samples=2)).get_best_result()',
        ("'loss'", "2 of 2 trials failed", "no data"),
    ),
    Mistake(
        "choice_of_nothing",
        'Tuner(train, param_space={"act": tune.choice([])})',
        ("param_space['act']", "at least one"),
    ),
    Mistake("choice_of_a_number", "tune.choice(5)", ("choice(5)", "list")),
    Mistake(
        "choice_with_many_arguments", 'tune.choice("adam", "sgd")', ("choice()", "write choice(categories)")
    ),
    Mistake("exponents_as_bounds", "tune.loguniform(-4, -1)", ("loguniform(-4, -1)", "1e-4")),
    Mistake("float_bounds_of_integers", "tune.randint(0.5, 2)", ("randint(0.5, 2)", "whole number")),
    Mistake(
        "empty_integer_range",
        'Tuner(train, param_space={"n": tune.randint(3, 3)})',
        ("param_space['n']", "randint(3, 3)", "below"),
    ),
    Mistake("step_does_not_divide", "tune.quniform(0, 1, 0.3)", ("0.3", "multiple")),
    Mistake("grid_of_a_number", "tune.grid_search(0.1)", ("grid_search(0.1)", "list")),
    Mistake(
        "grid_as_space",
        "Tuner(train, param_space=tune.grid_search([1]))",
        ("param_space", "grid_search([1])"),
    ),
    Mistake("sample_from_a_value", "tune.sample_from(3)", ("sample_from(3)", "function")),
    Mistake("searcher_misspelt", 'fit(tune_config=TuneConfig(search_alg="optna"))', ("'optna'", "'optuna'")),
    Mistake(
        "scheduler_class",
        "from muster.tune.schedulers import ASHAScheduler\nTuneConfig(scheduler=ASHAScheduler)",
        ("scheduler", "AsyncHyperBandScheduler("),
    ),
    Mistake(
        "scheduler_without_mode",
        "from muster.tune.schedulers import ASHAScheduler\n"
        'fit(tune_config=TuneConfig(metric="loss", scheduler=ASHAScheduler()))',
        ("mode", "AsyncHyperBandScheduler", "TuneConfig"),
    ),
    Mistake(
        "metric_given_twice",
        "from muster.tune.schedulers import ASHAScheduler\n"
        'asha = ASHAScheduler(metric="loss", mode="min")\n'
        'fit(tune_config=TuneConfig(metric="loss", mode="min", scheduler=asha))',
        ("its own metric or mode", "once"),
    ),
    Mistake("resources_misspelt", 'tune.with_resources(train, {"gpus": 1})', ("'gpus'", "'gpu'")),
    Mistake(
        "resources_no_machine_has", 'fit(tune.with_resources(train, {"cpu": 4000}))', ("4000", "CPU"), TRIAL
    ),
    Mistake(
        "checkpoint_is_a_file",
        "def train(config):\n    open('model.pt', 'w').close()\n"
        "    tune.report({'loss': 1}, checkpoint=tune.Checkpoint.from_directory('model.pt'))\nfit(train)",
        ("model.pt", "directory"),
        TRIAL,
    ),
    Mistake(
        "checkpoint_is_a_path",
        "def train(config):\n    tune.report({'loss': 1}, checkpoint='model.pt')\nfit(train)",
        ("'model.pt'", "Checkpoint.from_directory"),
        TRIAL,
    ),
    Mistake("restore_from_nowhere", 'Tuner.restore("nowhere", train)', ("nowhere", "no tuner.pkl")),
    Mistake(
        "restore_other_trainable",
        "fit()\ndef other(config): pass\nTuner.restore('run', other)",
        ("'train'", "'other'"),
    ),
    Mistake(
        "storage_below_a_file",
        'open("file", "w").close()\nfit(run_config=RunConfig(storage_path="file/below", verbose=0))',
        ("file/below", "storage_path"),
    ),
    Mistake(
        "name_too_long",
        'fit(run_config=RunConfig(storage_path=os.getcwd(), name="n" * 300, verbose=0))',
        ("name=", "300 bytes", "255", "shorter"),
    ),
    Mistake("stop_is_a_number", "fit(run_config=RunConfig(stop=5, verbose=0))", ("stop", "5", "dict")),
    Mistake(
        "stop_takes_only_results",
        "fit(run_config=RunConfig(stop=lambda result: True, verbose=0))",
        ("(trial_id, result)",),
    ),
    Mistake("one_callback", "RunConfig(callbacks=tune.Callback())", ("callbacks", "list")),
    Mistake("callback_class", "RunConfig(callbacks=[tune.Callback])", ("callbacks", "Callback()")),
    Mistake("callback_without_hooks", "RunConfig(callbacks=[print])", ("callbacks", "tune.Callback")),
    Mistake(
        "config_is_a_dict", 'Tuner(train, tune_config={"num_samples": 3})', ("tune_config", "TuneConfig(")
    ),
    Mistake("run_config_is_a_dict", 'Tuner(train, run_config={"name": "x"})', ("run_config", "RunConfig(")),
    Mistake(
        "configs_swapped",
        "Tuner(train, tune_config=RunConfig())",
        ("tune_config", "RunConfig", "run_config="),
    ),
    *(
        Mistake(f"{name}_of_ray", f"{RAYS.format(what)}{script}", ("Ray's own", what, "muster compat"), *how)
        for name, what, script, *how in (
            ("run_config", "RunConfig", "Tuner(train, run_config=theirs())"),
            ("tune_config", "TuneConfig", "Tuner(train, tune_config=theirs())"),
            ("failure_config", "FailureConfig", "RunConfig(failure_config=theirs())"),
            ("checkpoint_config", "CheckpointConfig", "tune.run(train, checkpoint_config=theirs())"),
            ("domain", "Float", 'Tuner(train, param_space={"a": {"lr": theirs()}})'),
            ("domain_in_a_choice", "Float", 'Tuner(train, param_space={"a": tune.choice([1, theirs()])})'),
            ("searcher", "OptunaSearch", "fit(tune_config=TuneConfig(search_alg=theirs()))"),
            ("stopper", "MaximumIterationStopper", "fit(run_config=RunConfig(stop=theirs()))"),
            ("trainable", "Trainable", "class Mine(theirs): pass\nTuner(Mine)"),
            ("resources", "PlacementGroupFactory", "tune.with_resources(train, theirs())"),
            ("with_resources", "PlacementGroupFactory", "train._resources = theirs()\nfit()"),
            (
                "checkpoint",
                "Checkpoint",
                'fit(lambda config: tune.report({"a": 1}, checkpoint=theirs()))',
                TRIAL,
            ),
        )
    ),
    Mistake(
        "captured_lock",
        "import threading\nlock = threading.Lock()\ndef train(config):\n    lock.acquire()\nTuner(train)",
        ("train > lock", "lock", "inside of the trainable"),
    ),
    Mistake("trial_returns_a_list", "fit(lambda config: [0.5])", ("dict", "list"), TRIAL),
    Mistake("results_before_fit", "Tuner(train).get_results()", ("fit()",)),
    Mistake("unregistered_name", 'tune.run("trainn")', ("trainn", "register_trainable")),
    Mistake(
        "plot_kind_misspelt",
        'fit().plot("a.html", metric="loss", mode="min", kind="curve")',
        ("'curve'", "curves"),
    ),
    Mistake("plot_as_pdf", 'fit().plot("a.pdf", metric="loss", mode="min")', ("a.pdf", ".html")),
    Mistake(
        "pandas_missing", 'sys.modules["pandas"] = None\nfit().get_dataframe()', ("pandas", "pip install")
    ),
    Mistake(
        "optuna_missing",
        'sys.modules["optuna"] = None\nfrom muster.tune.search.optuna import OptunaSearch\nOptunaSearch()',
        ("optuna", "pip install"),
    ),
    Mistake("parameter_unknown", "tune.with_parameters(train, data=[1])", ("data", "train(config)")),
    Mistake("fit_with_arguments", "Tuner(train).fit(train)", ("fit", "no arguments")),
    Mistake("misspelt_function", "tune.lograndom(1, 2)", ("'lograndom'", "lograndint")),
    Mistake(
        "reduction_factor_of_one",
        "from muster.tune.schedulers import ASHAScheduler\nASHAScheduler(reduction_factor=1)",
        ("reduction_factor", "1"),
    ),
    Mistake(
        "pbt_without_mutations",
        "from muster.tune.schedulers import PopulationBasedTraining\n"
        "PopulationBasedTraining(metric='loss', mode='min')",
        ("hyperparam_mutations",),
    ),
    Mistake(
        "report_by_keyword",
        "fit(lambda config: tune.report(loss=0.5))",
        ("report(loss=...)", "report({'loss': ...})"),
        NOTE,
    ),
    Mistake(
        "run_with_failed_trials",
        "def train(config):\n    raise OSError('no data')\n"
        "tune.run(train, name='run', storage_path=os.getcwd(), verbose=0)",
        ("1 failed", "OSError: no data", "error.txt"),
    ),
    Mistake(
        "space_function_not_called",
        'Tuner(train, param_space={"x": tune.uniform})',
        ("param_space['x']", "tune.uniform(...)"),
    ),
    Mistake(
        "time_not_reported",
        "from muster.tune.schedulers import ASHAScheduler\n"
        'asha = ASHAScheduler(time_attr="epoch")\n'
        'fit(tune_config=TuneConfig(metric="loss", mode="min", scheduler=asha))',
        ("time_attr='epoch'", "it has loss"),
        NOTE,
    ),
    Mistake(
        "restore_without_trainable",
        "fit()\nos.remove('run/trainable.pkl')\nTuner.restore('run')",
        ("trainable.pkl", "trainable=..."),
    ),
    Mistake(
        "best_config_without_mode",
        "tune.run(train, name='run', storage_path=os.getcwd(), verbose=0, num_samples=2).best_config",
        ("best_config", "metric", "mode"),
    ),
    Mistake("old_checkpoint", "tune.Checkpoint.from_dict({'a': 1})", ("from_dict", "from_directory"), NOTE),
    Mistake("trainer_of_ray", "from muster.train import ScalingConfig", ("ScalingConfig", "ray")),
    Mistake("result_beyond_the_last", "fit()[10]", ("result 10", "1 in all")),
    Mistake(
        "trial_name_is_a_number",
        "fit(tune_config=TuneConfig(trial_name_creator=lambda trial: 5))",
        ("trial_name_creator", "5", "str("),
    ),
    Mistake(
        "scheduler_is_a_number", "fit(tune_config=TuneConfig(scheduler=5))", ("scheduler=5", "TrialScheduler")
    ),
    Mistake(
        "callback_raises",
        "class Mine(tune.Callback):\n"
        "    def on_trial_result(self, iteration, trials, trial, result, **info):\n"
        "        result['accuracy']\n"
        "fit(run_config=RunConfig(storage_path=os.getcwd(), verbose=0, callbacks=[Mine()]))",
        ("Mine.on_trial_result", "'accuracy'", "Fix the callback"),
    ),
    Mistake(
        "stopper_raises",
        "def stop(trial_id, result):\n    return result['accuracy'] > 1\n"
        "fit(run_config=RunConfig(storage_path=os.getcwd(), verbose=0, stop=stop))",
        ("KeyError", "'accuracy'", "fix it and resume"),
    ),
    Mistake(
        "scheduler_raises_on_add",
        "class Mine(tune.schedulers.FIFOScheduler):\n"
        "    def on_trial_add(self, tune_controller, trial):\n"
        "        self.brackets[trial.trial_id] = 0\n"
        "fit(tune_config=TuneConfig(scheduler=Mine()))",
        ("Mine.on_trial_add", "'brackets'", "fix it and resume"),
    ),
    Mistake(
        "controller_of_ray_core",
        "class Mine(tune.schedulers.FIFOScheduler):\n"
        "    def on_trial_add(self, tune_controller, trial):\n"
        "        tune_controller.trial_executor.get_actor(trial)\n"
        "fit(tune_config=TuneConfig(scheduler=Mine()))",
        ("Mine.on_trial_add", "get_actor", "get_live_trials"),
    ),
    Mistake(
        "parameter_is_gone",  # with the driver and, by mistake, with its directory
        "import shutil\n"
        "from muster.tune.trainable import stored_object\n"
        "def train(config, data):\n    return {'loss': 1.0}\n"
        "wrapped = tune.with_parameters(train, data=bytes(100_000))\n"
        "fit(wrapped)\n"
        "stored_object._scratch.remove()\n"
        "shutil.rmtree('run/parameters')\n"
        "Tuner.restore(os.path.abspath('run'), wrapped).fit()",
        ("/run: parameters of train", "damaged: data", "tune.with_parameters(train, data=...)"),
    ),
    Mistake("samples_given_to_the_tuner", "Tuner(train, num_samples=3)", ("TuneConfig(num_samples=...)",)),
    Mistake(
        "threshold_is_a_text",
        'fit(run_config=RunConfig(stop={"loss": "0.1"}, verbose=0))',
        ("stop", "'0.1'", "number"),
    ),
    Mistake(
        "grid_for_optuna",
        "from muster.tune.search.optuna import OptunaSearch\n"
        'fit(param_space={"x": tune.grid_search([1])}, '
        'tune_config=TuneConfig(metric="loss", mode="min", search_alg=OptunaSearch()))',
        ("OptunaSearch", "grid_search at 'x'", "choice()"),
    ),
    Mistake(
        "checkpoint_frequency_of_a_function",
        "often = tune.CheckpointConfig(checkpoint_frequency=2)\n"
        "fit(run_config=RunConfig(storage_path=os.getcwd(), verbose=0, checkpoint_config=often))",
        ("checkpoint_frequency=2", "tune.report(metrics, checkpoint=...)"),
    ),
    Mistake(
        "unknown_storage",
        'fit(run_config=RunConfig(storage_path="foo://bucket/x", verbose=0))',
        ("foo://bucket/x", "install"),
    ),
    Mistake(
        "step_returns_nothing",
        "class Mine(tune.Trainable):\n    def step(self): pass\nfit(Mine)",
        ("step()", "dict", "NoneType"),
        TRIAL,
    ),
    Mistake(
        "preset_point_outside_of_the_space",
        "from muster.tune.search import BasicVariantGenerator\n"
        'first = BasicVariantGenerator(points_to_evaluate=[{"lr": 5}])\n'
        'fit(param_space={"x": tune.uniform(0, 1)}, tune_config=TuneConfig(search_alg=first))',
        ("points_to_evaluate", "'lr'", "known here: x"),
    ),
    Mistake("bundles_as_a_dict", 'tune.PlacementGroupFactory({"CPU": 1})', ("list of dicts", "[{'CPU': 1}]")),
    Mistake(
        "unknown_trial_told",
        'Tuner(param_space={"x": 1}, run_config=RUN).tell("zz", {"loss": 1})',
        ("'zz'", "ask()"),
    ),
    Mistake(
        "variable_that_is_no_number",
        'os.environ["TUNE_RESULT_BUFFER_MAX_TIME_S"] = "a minute"\n'
        'try:\n    fit()\nfinally:\n    del os.environ["TUNE_RESULT_BUFFER_MAX_TIME_S"]',
        ("TUNE_RESULT_BUFFER_MAX_TIME_S", "'a minute'", "number of seconds", "unset"),
    ),
    Mistake(
        "variable_without_an_effect",
        'os.environ["TUNE_STATE_REFRESH_PERIOD"] = "1"\nfit()\ndel os.environ["TUNE_STATE_REFRESH_PERIOD"]',
        ("TUNE_STATE_REFRESH_PERIOD", "no effect", "unset"),
        NOTE,
    ),
    Mistake(
        "error_that_cannot_be_shown",
        "class Mute(Exception):\n    def __str__(self):\n        raise KeyError\n"
        "def train(config):\n    raise Mute\nfit(train)",
        ("Mute: <",),
        TRIAL,
    ),
    Mistake(
        "scheduler_that_starts_nothing",
        "from muster.tune.schedulers import FIFOScheduler\n"
        "class Shy(FIFOScheduler):\n    def choose_trial_to_run(self, controller):\n        return None\n"
        'os.environ["TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S"] = "0.2"\n'
        "fit(tune_config=TuneConfig(scheduler=Shy(), time_budget_s=0.35))\n"
        'del os.environ["TUNE_WARN_INSUFFICENT_RESOURCE_THRESHOLD_S"]',
        ("no trial has run", "Shy", "1 PENDING", "fix"),
        NOTE,
    ),
    Mistake("session_in_the_driver", 'tune.report({"loss": 1.0})', ("report()", "outside of a trial"), NOTE),
]
WILD = [
    Mistake(
        "trainable_called_at_fit", "Tuner(train({})).fit()", ("Tuner(None)", "did you call it?", "ask()")
    ),
    Mistake("trainable_called_at_run", "tune.run(train({}))", ("tune.run(None)", "did you call it?")),
    Mistake(
        "trainable_called_for_resources",
        'tune.with_resources(train({}), {"cpu": 1})',
        ("with_resources", "did you call it?"),
    ),
    Mistake("workers_of_a_call", "tune.with_workers(train({}), 2)", ("with_workers", "did you call it?")),
    Mistake(
        "workers_of_a_class",
        "class Net(tune.Trainable): ...\ntune.with_workers(Net, 2)",
        ("Net is a class", "pass a function"),
    ),
    Mistake("no_workers", "tune.with_workers(train, 0)", ("workers=0", "positive")),
    Mistake(
        "workers_with_resources",
        'tune.with_workers(tune.with_resources(train, {"cpu": 1}), 2)',
        ("resources already", "resources_per_worker"),
    ),
    Mistake(
        "rank_that_fails",
        """def train(config):
    if __import__("os").environ["RANK"] == "1":
        raise ValueError("an error of a rank")
    __import__("time").sleep(60)
fit(tune.with_workers(train, 2, {"cpu": 0.1}))""",
        ("rank 1 of 2 failed: ValueError: an error of a rank",),
        TRIAL,
    ),
    Mistake("too_many_arguments", 'Tuner(train, {"x": 1}, RUN)', ("too many positional", "param_space=...")),
    Mistake("no_samples", "fit(tune_config=TuneConfig(num_samples=0))", ("num_samples=0", "above 0", "-1")),
    Mistake("no_samples_of_run", "tune.run(train, num_samples=0)", ("num_samples=0", "above 0", "-1")),
    Mistake(
        "text_metric_that_is_no_number",
        'def train(config):\n    tune.report({"loss": "bad"})\n'
        'fit(train, tune_config=TuneConfig(metric="loss", mode="min", num_samples=3))',
        ("'loss'", "'bad'", "not a number", "float(...)"),
    ),
    Mistake(
        "best_of_killed_trials",
        "fit(lambda config: os.kill(os.getpid(), 9), "
        'tune_config=TuneConfig(metric="loss", mode="min", num_samples=2)).get_best_result()',
        ("'loss'", "2 of 2 trials failed", "the first with killed by signal 9"),
    ),
    Mistake(
        "session_report_by_keyword",
        "from muster.air import session\nfit(lambda config: session.report(loss=0.5))",
        ("report(loss=...)", "report({'loss': ...})"),
        NOTE,
    ),
    Mistake(
        "checkpoint_by_position",
        "fit(lambda config: tune.report({'loss': 1}, tune.Checkpoint.from_directory('.')))",
        ("report()", "checkpoint=..."),
        TRIAL,
    ),
    Mistake("result_by_name", "fit()['loss']", ("'loss'", "1 in all", "0 to 0")),
    Mistake(
        "reporter_class",
        "RunConfig(progress_reporter=tune.CLIReporter)",
        ("progress_reporter", "CLIReporter()"),
    ),
    Mistake(
        "stopper_class",
        "from muster.tune.stopper import MaximumIterationStopper\n"
        "fit(run_config=RunConfig(stop=MaximumIterationStopper, verbose=0))",
        ("stop", "is a class", "MaximumIterationStopper(...)"),
    ),
    Mistake(
        "searcher_class",
        "from muster.tune.search.optuna import OptunaSearch\nTuneConfig(search_alg=OptunaSearch)",
        ("search_alg", "is a class", "OptunaSearch(...)"),
    ),
    Mistake(
        "constructor_of_a_trainable",
        "class Mine(tune.Trainable):\n    def __init__(self): self.x = 1\nfit(Mine)",
        ("Mine(config=...)", "setup(self, config)"),
    ),
    Mistake(
        "object_as_trainable",
        "class Mine(tune.Trainable):\n    def step(self): return {}\nfit(Mine({}))",
        ("Mine object", "subclass of tune.Trainable"),
    ),
    Mistake(
        "class_that_is_no_trainable",
        "class Mine:\n    def step(self): return {}\nfit(Mine)",
        ("the class Mine", "subclass of tune.Trainable"),
    ),
    Mistake(
        "points_as_a_dict",
        "from muster.tune.search.optuna import OptunaSearch\nOptunaSearch(points_to_evaluate={'x': 1})",
        ("OptunaSearch", "points_to_evaluate", "list of dicts"),
    ),
    Mistake(
        "repeat_of_nothing",
        "from muster.tune.search import Repeater\nfrom muster.tune.search.optuna import OptunaSearch\n"
        "Repeater(OptunaSearch(), repeat=0)",
        ("Repeater", "repeat=0", "at least 1"),
    ),
    Mistake(
        "sample_from_an_unknown_key",
        'fit(param_space={"x": tune.sample_from(lambda spec: spec.config.lr)})',
        ("no 'lr'", "it has x"),
    ),
    Mistake(
        "scheduler_in_the_run_config",
        "from muster.tune.schedulers import ASHAScheduler\nRunConfig(scheduler=ASHAScheduler())",
        ("RunConfig()", "'scheduler'", "TuneConfig(scheduler=...)"),
    ),
    Mistake(
        "stop_in_the_tune_config",
        'TuneConfig(stop={"training_iteration": 3})',
        ("TuneConfig()", "'stop'", "RunConfig(stop=...)"),
    ),
    Mistake(
        "grace_period_above_max_t",
        "from muster.tune.schedulers import ASHAScheduler\nASHAScheduler(max_t=5, grace_period=10)",
        ("grace_period (10)", "max_t (5)"),
    ),
    Mistake(
        "mutation_is_a_number",
        "from muster.tune.schedulers import PopulationBasedTraining\n"
        "PopulationBasedTraining(metric='loss', mode='min', hyperparam_mutations={'lr': 0.1})",
        ("hyperparam_mutations['lr']", "0.1", "tune.uniform"),
    ),
    Mistake(
        "nested_metric",
        'def train(config):\n    tune.report({"eval": {"loss": 1.0}})\n'
        'fit(train, tune_config=TuneConfig(metric="loss", mode="min"))',
        ("no 'loss'", "did you mean 'eval/loss'?"),
    ),
    Mistake("time_budget_as_text", 'TuneConfig(time_budget_s="1h")', ("time_budget_s", "'1h'", "seconds")),
    Mistake(
        "restore_of_a_trial",
        "Tuner.restore(fit()[0].path, train)",
        ("run/train_", "no tuner.pkl", "<storage_path>/<name>"),
    ),
    Mistake(
        "restore_of_rays_directory",
        "os.makedirs('rays')\nfor name in ('tuner.pkl', 'experiment_state-1.json'):\n"
        "    open(f'rays/{name}', 'w').close()\nTuner.restore('rays', train)",
        ("rays cannot be resumed", "Ray Tune wrote it", "muster compat --experiment"),
    ),
    Mistake(
        "open_file_in_a_trainable",
        "file = open('x.txt', 'w')\ndef train(config):\n    file.write('x')\nfit(train)",
        ("train > file", "TextIOWrapper", "inside of the trainable"),
    ),
    Mistake(
        "mlflow_in_a_folder",
        "from muster.air.integrations.mlflow import MLflowLoggerCallback\n"
        "MLflowLoggerCallback(tracking_uri='mlruns')",
        ("tracking_uri='mlruns'", "sqlite:///mlflow.db", "MLFLOW_ALLOW_FILE_STORE=true"),
    ),
    Mistake(
        "slurm_without_sbatch",
        "os.environ['PATH'] = ''\nfit(run_config=RunConfig(storage_path=os.getcwd(), engine='slurm'))",
        ("sbatch", "not on this computer", "login node"),
    ),
    Mistake(
        "slurm_time_as_words",
        "tune.SlurmConfig(time='two hours')",
        ("SlurmConfig(time='two hours')", "2:00:00"),
    ),
    Mistake(
        "slurm_option_that_is_ours",
        "tune.SlurmConfig(extra=['--array=0-9'])",
        ("SlurmConfig(extra=", "--array"),
    ),
    Mistake(
        "slurm_short_option_that_is_ours",
        "tune.SlurmConfig(extra=['-N2'])",
        ("SlurmConfig(extra=", "(-N)"),
    ),
    Mistake(
        "slurm_half_a_cpu",
        "tune.SlurmConfig(pilot_cpus=0.5)",
        ("pilot_cpus=0.5", "whole number"),
    ),
    Mistake(
        "slurm_memory_without_unit",
        "tune.SlurmConfig(pilot_memory='lots')",
        ("pilot_memory='lots'", "16G"),
    ),
]
X = '{"x": tune.uniform(0, 1)}'
OF_COMMANDS = [
    Mistake(
        "command_placeholder_typo",
        'fit(tune.command("echo {learning}"), param_space={"learning_rate": tune.uniform(0, 1)})',
        ("{learning}", "search space", "learning_rate"),
    ),
    Mistake("command_ignores_key", f'fit(tune.command("echo"), param_space={X})', ("x", "{x}", "{args}")),
    Mistake("command_not_on_path", f'fit(tune.command("ech0 {{x}}"), param_space={X})', ("ech0", "PATH")),
    Mistake(
        "command_script_missing",
        f'fit(tune.command("python trian.py {{x}}"), param_space={X})',
        ("trian.py", "not found", "cwd="),
    ),
    Mistake("command_bad_pattern", 'tune.command("echo", report="regex:(")', ("regex:(", "(?P<loss>")),
    Mistake(
        "command_unknown_way", 'tune.command("echo", report="tensorbord:x")', ("tensorbord", "tensorboard")
    ),
    Mistake("command_open_quote", 'tune.command("echo \'x")', ("echo 'x", "quotes")),
    Mistake("command_args_style", 'tune.command("echo", args="hydra+++")', ("hydra+++", "hydra++")),
    Mistake("command_signal", 'tune.command("echo", stop_signal="TERM")', ("TERM", "SIGTERM")),
    Mistake(
        "command_flag_inside_a_word",
        f'fit(tune.command("echo --x={{x:--x}}"), param_space={X})',
        ("{x:--x}", "alone", "spaces"),
    ),
    Mistake(
        "command_macro_of_a_sweep",
        f'fit(tune.command("python ${{program}} {{x}}"), param_space={X})',
        ("${program}", "sweep", "program itself"),
    ),
    Mistake(
        "command_quotes_in_a_shell",
        f"fit(tune.command(\"echo '{{x}}'\", shell=True), param_space={X})",
        ("{x}", "quotes", "muster quotes"),
    ),
    Mistake(
        "command_without_a_named_value",
        'fit(tune.command("echo", report="text"))',
        ("text", "metric", "also="),
    ),
    Mistake(
        "command_fails",
        'fit(tune.command("echo lost >&2; exit 3", shell=True))',
        ("exit code 3", "output.log"),
        TRIAL,
    ),
]

MISTAKES = [*LISTED, *OWN, *WILD, *OF_COMMANDS]
