"""Run as a script: one load of a study by optuna-dashboard, its CPU time and its bytes."""

from __future__ import annotations

import json
import sqlite3
import sys
import time
from contextlib import closing
from threading import Thread
from typing import Any
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, make_server

from bench.page_data import BEGAN, config_of, result_of

_PARAM = "trial_id, param_name, param_value, distribution_json"
_STEP = "trial_id, step, intermediate_value, intermediate_value_type"
_VALUE = "trial_id, objective, value, value_type"


def main(file: str, trials: int, results: int) -> None:
    import optuna
    from optuna.distributions import CategoricalDistribution, FloatDistribution, IntDistribution
    from optuna_dashboard import wsgi

    optuna.logging.set_verbosity(optuna.logging.ERROR)
    storage = optuna.storages.RDBStorage(f"sqlite:///{file}")
    study = optuna.create_study(storage=storage, study_name="bench")
    kinds = {
        "lr": FloatDistribution(1e-5, 0.1, log=True),
        "layers": IntDistribution(1, 8),
        "activation": CategoricalDistribution(["relu", "tanh", "gelu"]),
        "dropout": FloatDistribution(0, 0.5),
        "batch": CategoricalDistribution([16, 32, 64]),
        "decay": FloatDistribution(1e-6, 1e-2, log=True),
    }
    config = config_of(0)
    first = optuna.trial.create_trial(
        params=config, distributions=kinds, value=1.0, intermediate_values=_losses(0, results)
    )
    study.add_trial(first)
    _add_the_others(file, trials, results, kinds)
    storage = optuna.storages.RDBStorage(f"sqlite:///{file}")  # as a dashboard that knows nothing yet
    server = make_server("127.0.0.1", 0, wsgi(storage), handler_class=_Quiet)
    Thread(target=server.serve_forever, daemon=True).start()
    before = time.process_time()
    with urlopen(
        f"http://127.0.0.1:{server.server_port}/api/studies/{study._study_id}?after=0", timeout=600
    ) as answer:
        size = len(answer.read())
    print(json.dumps({"cpu_ms": 1000 * (time.process_time() - before), "kb": size / 1000}), flush=True)


def _losses(number: int, results: int) -> dict[int, float]:
    config = config_of(number)
    return {step: result_of(number, step, config, BEGAN)["loss"] for step in range(1, results + 1)}


def _add_the_others(file: str, trials: int, results: int, kinds: dict[str, Any]) -> None:
    """Write the rows that `add_trials` would, in seconds instead of minutes, after those of the first."""
    with closing(sqlite3.connect(file)) as database, database:
        read = database.execute
        _, _, study, state, began, ended = read("SELECT * FROM trials").fetchone()
        shapes = dict(read("SELECT param_name, distribution_json FROM trial_params").fetchall())
        more = range(1, trials)
        add = database.executemany
        add(
            "INSERT INTO trials VALUES (?, ?, ?, ?, ?, ?)",
            ((n + 1, n, study, state, began, ended) for n in more),
        )
        params = (
            (n + 1, name, kinds[name].to_internal_repr(value), shapes[name])
            for n in more
            for name, value in config_of(n).items()
        )
        add(f"INSERT INTO trial_params ({_PARAM}) VALUES (?, ?, ?, ?)", params)
        losses = ((n + 1, step, loss) for n in more for step, loss in _losses(n, results).items())
        add(f"INSERT INTO trial_intermediate_values ({_STEP}) VALUES (?, ?, ?, 'FINITE')", losses)
        last = ((n + 1, _losses(n, results)[results]) for n in more)
        add(f"INSERT INTO trial_values ({_VALUE}) VALUES (?, 0, ?, 'FINITE')", last)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
