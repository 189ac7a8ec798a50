"""Small experiments that are tracked by the real packages; nothing leaves this machine."""

from __future__ import annotations

import pytest

from muster import tune


def train(config):
    for step in range(1, 4):
        tune.report({"loss": config["x"] / step, "net": {"norm": step}, "note": "fine"})
    if config["x"] == 2:
        raise ValueError("no luck")


@pytest.fixture
def tracked(tmp_path):
    """Run two trials, the second of which fails, with callbacks; gives the ResultGrid."""

    def run(*callbacks, name="tracked", trainable=train, **more):
        space = {"x": tune.grid_search([1, 2]), "deep": {"er": [1, 2]}}
        setup = tune.RunConfig(
            name=name, storage_path=str(tmp_path), callbacks=list(callbacks), verbose=0, **more
        )
        return tune.Tuner(trainable, param_space=space, run_config=setup).fit()

    return run
