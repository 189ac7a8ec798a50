"""Trials are runs of an MLflow experiment (docs: MLflowLoggerCallback)."""

import logging
import os

import mlflow
from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback

IS_COSTLY = True
NEEDS = ("mlflow", "sqlalchemy", "alembic")


def train(config):
    for step in range(2):
        tune.report({"loss": config["x"] / (step + 1)})


def main(storage):
    logging.getLogger("alembic").setLevel(logging.ERROR)
    logging.getLogger("mlflow").setLevel(logging.ERROR)
    database = os.path.join(storage, "runs.db")
    uri = f"sqlite:///{database}"
    callback = MLflowLoggerCallback(tracking_uri=uri, experiment_name="one", tags={"who": "me"})
    tune.Tuner(
        train,
        param_space={"x": tune.grid_search([1, 2])},
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
        run_config=tune.RunConfig(name="mlflow", storage_path=storage, verbose=0, callbacks=[callback]),
    ).fit()
    client = mlflow.MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name("one").experiment_id])
    os.remove(database)
    found = [
        [
            run.data.params,
            run.data.metrics["loss"],
            run.data.metrics["training_iteration"],
            run.info.status,
            sorted(tag for tag in run.data.tags if "." not in tag),
        ]
        for run in runs
    ]
    return sorted(found, key=str)
