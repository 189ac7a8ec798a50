"""Ray 2.0: air.session with Checkpoint.from_dict."""

from ray import air, tune
from ray.air import session
from ray.air.checkpoint import Checkpoint


def objective(config):
    start = 0
    loaded = session.get_checkpoint()
    if loaded:
        start = loaded.to_dict()["step"] + 1
    for step in range(start, 3):
        session.report(
            {"score": config["a"] * step}, checkpoint=Checkpoint.from_dict({"step": step, "a": config["a"]})
        )


tuner = tune.Tuner(
    objective,
    param_space={"a": tune.grid_search([1, 2])},
    tune_config=tune.TuneConfig(metric="score", mode="max"),
    run_config=air.RunConfig(name="air", verbose=0),
)
best = tuner.fit().get_best_result()
assert best.checkpoint.to_dict() == {"step": 2, "a": 2}
