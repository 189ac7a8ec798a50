"""Experiments and clusters on the disk, for the tests of the page: written through the real stores."""

from __future__ import annotations

import json
import math
import os
import random
from pathlib import Path

from msgspec.structs import replace
from tests.support.builders import instance

from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import ClusterRecord, PublishedStatus, write_record, write_status
from muster.base.clock import ManualClock
from muster.cluster.model import Offer, StatusChange
from muster.cluster.plan import Launch, Plan, Reason, Subject, Verdict
from muster.cluster.states import InstanceState
from muster.cluster.status import StatusSnapshot
from muster.host.processes import identify
from muster.stores.experiment.store import SqliteTrialStore
from muster.stores.history.entries import ForecastEntry, HistoryEntry, to_line
from muster.stores.history.files import TAIL
from muster.stores.ledger.store import SqliteInstanceStore
from muster.trials.events import (
    TrialAdmitted,
    TrialCreated,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialReported,
    TrialStarted,
)

BEGAN = 1_794_900_000.0
SETTINGS = {"metric": "loss", "mode": "min", "num_samples": 1, "scheduler": "ASHA", "search_alg": "Basic"}
_S = InstanceState


def config_of(number: int) -> dict[str, object]:
    stream = random.Random(number)
    return {
        "lr": 10 ** stream.uniform(-5, -1),
        "layers": stream.randint(1, 8),
        "act": stream.choice(["relu", "tanh", "gelu"]),
        "dropout": stream.random() / 2,
    }


def result_of(number: int, iteration: int) -> dict[str, object]:
    config = config_of(number)
    floor = abs(math.log10(config["lr"]) + 2.5) * 0.2 + config["dropout"] * 0.3
    noise = random.Random(number * 1000 + iteration).random() * 0.05
    return {
        "loss": floor + 2 / (iteration + 1) + noise,
        "acc": 1 - floor / 2 - 0.5 / iteration,
        "training_iteration": iteration,
        "time_total_s": iteration * 0.3,
        "timestamp": int(BEGAN + iteration),
        "trial_id": trial_id(number),
        "config": config,
    }


def trial_id(number: int) -> str:
    return f"ab12c_{number:05d}"


def folder_of(number: int) -> str:
    return f"train_{trial_id(number)}"


def facts_of_start(number: int, began: float = BEGAN) -> list[object]:
    at, config = began + number * 3.0, config_of(number)
    created = TrialCreated(
        trial_id=trial_id(number),
        at=at,
        config=config,
        evaluated_params=config,
        experiment_tag=f"{number}_x",
        trial_name=f"train_{trial_id(number)}",
        relative_logdir=folder_of(number),
    )
    place = {"pid": 1, "hostname": "host", "node_ip": f"10.0.0.{1 + number % 4}"}
    return [
        created,
        TrialAdmitted(trial_id=trial_id(number), at=at),
        TrialStarted(trial_id=trial_id(number), at=at + 0.2, location=place),
    ]


def report_fact(number: int, iteration: int, began: float = BEGAN) -> TrialReported:
    at = began + number * 3.0 + iteration * 0.3
    return TrialReported(trial_id=trial_id(number), at=at, result=result_of(number, iteration))


def end_fact(number: int, results: int, *, fails: bool = False, began: float = BEGAN) -> TrialExited:
    failure = None
    if fails:
        text = "Traceback (most recent call last):\n  ...\nValueError: the learning rate is odd"
        failure = TrialFailure(
            kind=TrialFailureKind.USER_ERROR, message="ValueError: the learning rate is odd", traceback=text
        )
    at = began + number * 3.0 + results * 0.3 + 0.1
    return TrialExited(trial_id=trial_id(number), at=at, failure=failure, is_done=not fails)


def log_results(place: Path, number: int, iterations: range) -> None:
    """Append to result.json, as the log writer does."""
    folder = place / folder_of(number)
    folder.mkdir(parents=True, exist_ok=True)
    with open(folder / "result.json", "a", encoding="utf-8") as stream:
        for iteration in iterations:
            stream.write(json.dumps(result_of(number, iteration)) + "\n")


def open_store(place: Path, **settings: object) -> SqliteTrialStore:
    os.makedirs(place, exist_ok=True)
    store = SqliteTrialStore(place)
    store.save_settings({**SETTINGS, **settings})
    return store


def write_experiment(
    place: Path, trials: int, results: int, *, began: float = BEGAN, **settings: object
) -> Path:
    """Write a finished experiment; every eleventh trial failed."""
    with open_store(place, **{"num_samples": trials, **settings}) as store:
        for number in range(trials):
            facts = facts_of_start(number, began)
            facts += [report_fact(number, each, began) for each in range(1, results + 1)]
            facts.append(end_fact(number, results, fails=number % 11 == 5, began=began))
            store.append(facts)
            log_results(place, number, range(1, results + 1))
        store.snapshot(b"\x80", {})
    return place


def write_cluster(
    root: Path, name: str = "laptop", *, began: float = BEGAN, machines: int = 8
) -> ClusterHome:
    """Write the ledger of a cluster that is gone: machines that came, worked and went, and one refusal."""
    home = ClusterHome.of(name, root)
    home.path.mkdir(parents=True)
    with SqliteInstanceStore(home.ledger, clock=ManualClock(began)) as store:
        version = store.load().version
        for number in range(machines):
            at, kind = began + number * 20, "gpu" if number % 3 == 0 else "cpu"
            price, market = (0.9, "spot") if kind == "gpu" else (0.12, "on-demand")
            record = _machine(number, kind, at, Offer(zone="z1", market=market, price_per_hour=price))
            waits = Verdict(
                subject=Subject.DEMAND,
                subject_id="d1",
                reason=Reason.WAITING_FOR_LAUNCH,
                count=machines - number,
                target=kind,
                detail="2 CPUs each",
            )
            never = Verdict(subject=Subject.DEMAND, subject_id="d2", reason=Reason.INFEASIBLE, count=2)
            chosen = Verdict(
                subject=Subject.NODE_TYPE,
                subject_id=kind,
                reason=Reason.TYPE_CHOSEN,
                detail=f"the cheapest that holds it, ${price} per hour",
            )
            launch = Launch(
                request_id=f"r-{number}",
                shape={kind: 1},
                instance_ids=(record.instance_id,),
                offers=() if record.offer is None else (record.offer,),
            )
            plan = Plan(
                tick_id=f"t-{number}",
                at=at,
                writes=(record,),
                actions=(launch,),
                verdicts=(waits, never, chosen),
            )
            version = store.commit(version, plan)
    return home


BUDGET = "$10.00 spent and $2.40 reserved of $40 of this day, $27.60 left, $3.20 of $6 per hour"


def keep_up(home: ClusterHome, at: float, forecasts: dict[str, ForecastEntry]) -> None:
    """Make a cluster one that is up at `at`, with a budget, whose tuners expect something."""
    mark = identify(os.getpid())
    write_record(
        home, ClusterRecord(cluster_name="laptop", config="c.yaml", address="127.0.0.1:1", monitor=mark)
    )
    now = StatusSnapshot(at=at, instances={}, price_per_hour=3.2, spent=10.0, verdicts=(), quarantined=())
    status = PublishedStatus(
        cluster_name="laptop",
        at=at,
        tick_id="t",
        version=1,
        interval_s=5.0,
        monitor_pid=os.getpid(),
        status=replace(now, budget=BUDGET),
        instances=(),
        runtime=None,
    )
    write_status(home, status)
    home.history.mkdir()
    entry = HistoryEntry(seq=1, at=at, is_whole=True, cluster="laptop", forecasts=forecasts)
    (home.history / TAIL).write_bytes(to_line(entry))


def machine_id(number: int) -> str:
    return f"t-{number:012d}-i1"


def _machine(number: int, kind: str, at: float, offer: Offer):
    if number == 4:
        steps = [(_S.QUEUED, 0, ""), (_S.REQUESTED, 1, ""), (_S.ALLOCATION_FAILED, 6, "capacity: sold out")]
    else:
        steps = [
            (_S.QUEUED, 0, "wanted for 2 requests"),
            (_S.REQUESTED, 1, "asked for"),
            (_S.ALLOCATED, 12, ""),
            (_S.RAY_INSTALLING, 20, ""),
            (_S.RAY_RUNNING, 45, ""),
            (_S.RAY_STOP_REQUESTED, 200 + 10 * number, "idle for 31 of 30 s"),
            (_S.RAY_STOPPED, 202 + 10 * number, ""),
            (_S.TERMINATING, 203 + 10 * number, ""),
            (_S.TERMINATED, 211 + 10 * number, "gone from the list"),
        ]
    history = tuple(StatusChange(state, at + after, said) for state, after, said in steps)
    return instance(
        machine_id(number),
        steps[-1][0],
        node_type=kind,
        history=history,
        price_per_hour=offer.price_per_hour,
        offer=offer,
        cloud_id=f"c-{number}",
        internal_ip=f"10.0.0.{1 + number % 4}",
    )
