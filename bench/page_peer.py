"""Runs as a script: one load of a study by optuna-dashboard, its CPU time and its bytes."""

from __future__ import annotations

import json
import sys
import time
from threading import Thread
from urllib.request import urlopen
from wsgiref.simple_server import WSGIRequestHandler, make_server

from bench.page_data import BEGAN, config_of, result_of


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
    for start in range(0, trials, 500):
        made = []
        for number in range(start, min(trials, start + 500)):
            config = config_of(number)
            losses = {step: result_of(number, step, config, BEGAN)["loss"] for step in range(1, results + 1)}
            one = optuna.trial.create_trial(
                params=config, distributions=kinds, value=losses[results], intermediate_values=losses
            )
            made.append(one)
        study.add_trials(made)
    storage = optuna.storages.RDBStorage(f"sqlite:///{file}")  # as a dashboard that knows nothing yet
    server = make_server("127.0.0.1", 0, wsgi(storage), handler_class=_Quiet)
    Thread(target=server.serve_forever, daemon=True).start()
    before = time.process_time()
    with urlopen(
        f"http://127.0.0.1:{server.server_port}/api/studies/{study._study_id}?after=0", timeout=600
    ) as answer:
        size = len(answer.read())
    print(json.dumps({"cpu_ms": 1000 * (time.process_time() - before), "kb": size / 1000}), flush=True)


class _Quiet(WSGIRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
