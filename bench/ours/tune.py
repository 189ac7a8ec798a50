"""Run muster.tune on the jobs of `bench.tune_job`, and Optuna alone, in a child process."""

from __future__ import annotations

from bench import tune_job
from bench.tune_job import Fit, Job


def start() -> None:
    """Import; nothing runs between two fits."""
    tune_job.settle({})
    import muster.tune.tuner  # noqa: F401


def fit(job: Job, storage: str, look_at: tuple[int, ...] = ()) -> Fit:
    from muster import tune

    return tune_job.fit(tune, job, storage, look_at)


def restore(job: Job, directory: str, then: str) -> float:
    from muster import tune

    return tune_job.restore(tune, job, directory, then)


def with_optuna(trials: int, storage: str) -> float:
    """Return wall seconds of `trials` trivial trials that TPE chooses, through Tuner.fit."""
    import optuna

    from muster.tune.search.optuna import OptunaSearch

    return _chosen_by(OptunaSearch(sampler=optuna.samplers.TPESampler(seed=1)), trials, storage)


def with_model(trials: int, storage: str) -> float:
    """Return wall seconds of the same with muster's own model."""
    import muster.tune.search.tpe.model  # noqa: F401 - with numpy, as `import optuna` of the other two

    return _chosen_by("auto", trials, storage)


def _chosen_by(search: object, trials: int, storage: str) -> float:
    from muster import tune

    def train(config: dict[str, float]) -> None:
        tune.report({tune_job.METRIC: valley(config["x"], config["y"])})

    def run() -> None:
        tuner = tune.Tuner(
            train,
            param_space={"x": tune.uniform(-1.0, 1.0), "y": tune.uniform(-1.0, 1.0)},
            tune_config=tune.TuneConfig(
                metric=tune_job.METRIC,
                mode="min",
                num_samples=trials,
                reuse_actors=True,
                search_alg=search,
            ),
            run_config=tune.RunConfig(name="bench", storage_path=storage, verbose=0),
        )
        tune_job.check_results(tuner.fit(), Job(trials))

    return tune_job.timed(run)


def optuna_alone(trials: int) -> float:
    """Return wall seconds of the same with study.optimize in this process, the study in memory."""
    import optuna

    optuna.logging.set_verbosity(optuna.logging.ERROR)

    def objective(trial: optuna.Trial) -> float:
        return valley(trial.suggest_float("x", -1.0, 1.0), trial.suggest_float("y", -1.0, 1.0))

    study = optuna.create_study(sampler=optuna.samplers.TPESampler(seed=1))
    return tune_job.timed(lambda: study.optimize(objective, n_trials=trials))


def valley(x: float, y: float) -> float:
    return (x - 0.3) ** 2 + (y + 0.5) ** 2
