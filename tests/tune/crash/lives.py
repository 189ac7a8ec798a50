"""Drivers that are killed and started again, and what must be true of the files at the end."""

from __future__ import annotations

import csv
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tests.series import SEED
from tests.tune.crash.victim import ITERATIONS, TRIALS, loss

from muster.stores.experiment.reader import open_trials
from muster.stores.storage import Storage
from muster.tune import Tuner

VICTIM = Path(__file__).with_name("victim.py")
LONGEST_S = 240.0  # of a life that nobody kills
RAY_S = 8.0  # in which most trials start there
JUMPS = ("pbt", "pb2")  # trials continue from the checkpoints of others, with another x
WHOLE = ("fifo", *JUMPS)  # every trial gets to its last step
# What depends on time, on the process and on the name that a trial got by chance.
VOLATILE = {
    *("timestamp", "date", "time_this_iter_s", "time_total_s", "time_since_restore"),
    *("iterations_since_restore", "pid", "hostname", "node_ip", "trial_id"),
}
Row = dict[str, Any]
ANOTHER = """
import tempfile
from muster import tune
run = tune.RunConfig(storage_path=tempfile.mkdtemp(), verbose=0)
other = tune.with_parameters(lambda config, data: {"size": len(data)}, data=bytes(1_000_000))
assert [each.metrics["size"] for each in tune.Tuner(other, run_config=run).fit()] == [1_000_000]
"""


@dataclass(frozen=True)
class Cell:
    """One kind of experiment of the series."""

    kind: str
    searcher: str = "random"
    crowd: str = "many"  # one: one trial at a time
    storage: str = "local"
    environment: Mapping[str, str] = field(default_factory=dict)  # of the Ray cluster, if it runs there
    objects: str = "plain"  # large: 50 MB of parameters, and objects of the script's own classes
    bucket: Mapping[str, str] = field(
        default_factory=dict
    )  # the environment of an S3 server, if storage is s3

    @property
    def engine(self) -> str:
        return "ray" if self.environment else "here"

    def __str__(self) -> str:
        objects = () if self.objects == "plain" else (self.objects,)
        return "-".join((self.kind, self.searcher, self.crowd, self.engine, self.storage, *objects))


@dataclass(frozen=True)
class Span:
    """How long a life may be that is killed."""

    seconds: float
    steps: int


@dataclass
class Experiment:
    """An experiment in a folder of its own, and its drivers, one after the other."""

    cell: Cell
    folder: Path
    lives: int = 0
    machines: int = 0  # a remote storage outlives the machine of the driver
    began: float = 0.0  # the last life that was not killed

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True)
        self.token = f"{os.getpid()}-{self.folder}"
        self.parent = f"s3://bucket/{self.token}" if self.cell.storage == "s3" else str(self.folder)

    def start(self, *, by_command: bool = False) -> subprocess.Popen[bytes]:
        """Start a driver: the script, or `muster tune resume`."""
        self.lives += 1
        (self.folder / "ready").unlink(missing_ok=True)
        cell, cache = self.cell, self.folder / f"machine-{self.machines}"
        kept = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
        own = {"MUSTER_VICTIM": self.token, "XDG_CACHE_HOME": str(cache), **cell.environment, **cell.bucket}
        storage = self.parent if cell.storage == "s3" else cell.storage
        words = [VICTIM, self.folder, cell.kind, cell.searcher, cell.crowd, storage, cell.objects]
        if by_command:
            words = ["-m", "muster.cli.main", "tune", "resume", f"{self.parent}/exp"]
        with open(self.folder / f"life-{self.lives}.log", "wb") as log:
            return subprocess.Popen(
                [sys.executable, *words],
                env={**kept, **own},
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def live(self) -> dict[str, Any]:
        """One life to its end; what it told its user."""
        driver = self.start()
        try:
            self._wait_for_start(driver)
            self.began = time.monotonic()
            driver.wait(LONGEST_S)
        finally:
            end(driver)
        self._assert_ended_well(driver.returncode)
        self.wait_for_nobody()
        told: dict[str, Any] = json.loads((self.folder / "told.json").read_text())
        return told

    def kill(self, moment: float, chance: random.Random, span: Span) -> str:
        """One life that is killed: how far the experiment was; "" when it ended well before that.

        `moment` below 0.3: at some time, whether trials make steps then or not.
        """
        driver = self.start()
        try:
            if moment < 0.1:  # it has hardly begun
                driver.wait(chance.uniform(0.05, 0.6))
            else:
                self._wait_for_start(driver)
                self._wait_for_moment(driver, moment, chance, span)
        except subprocess.TimeoutExpired:
            end(driver, whole_group=chance.random() < 0.4)
            self.wait_for_nobody()
            if self.cell.objects == "large":
                run_another()
            noted = f"{self.cell.engine} {self.cell.storage}: {self.steps()} steps, {self.rows_here()} rows"
            if self.cell.storage != "local" and chance.random() < 0.3:
                shutil.rmtree(self.folder / f"machine-{self.machines}", ignore_errors=True)
                self.machines += 1
                noted += ", then its machine was lost"
            return noted
        finally:
            end(driver)
        self._assert_ended_well(driver.returncode)
        return ""

    def _wait_for_moment(
        self, driver: subprocess.Popen[bytes], moment: float, chance: random.Random, span: Span
    ) -> None:
        """As soon as it continues, at any time, or (mostly) after some more steps, of any length."""
        if moment < 0.3:
            driver.wait(chance.uniform(0.0, 0.3 if moment < 0.2 else span.seconds))
        wanted, give_up = self.steps() + chance.randint(1, span.steps), time.monotonic() + LONGEST_S
        while self.steps() < wanted and driver.poll() is None:
            assert time.monotonic() < give_up, f"{self.cell}: life {self.lives} makes no step"
            time.sleep(0.005)
        driver.wait(chance.uniform(0.0, 0.1))

    def _assert_ended_well(self, code: int) -> None:
        log = (self.folder / f"life-{self.lives}.log").read_text(errors="replace")
        assert code == 0, f"{self.cell}, life {self.lives}: {log[-3000:]}"

    def _wait_for_start(self, driver: subprocess.Popen[bytes]) -> None:
        give_up = time.monotonic() + LONGEST_S
        while not (self.folder / "ready").exists() and driver.poll() is None:
            assert time.monotonic() < give_up, f"{self.cell}: life {self.lives} does not begin"
            time.sleep(0.01)

    def wait_for_nobody(self) -> None:
        """No process outlives its driver; those of Ray's are Ray's."""
        deadline = time.monotonic() + 30
        while (left := relatives(self.token)) and time.monotonic() < deadline:
            time.sleep(0.02)
        assert left == [], f"{self.cell}: processes that outlived their driver: {left}"

    def steps(self) -> int:
        """How many steps its trials have made, those that were lost and made again included."""
        file = self.folder / "notes" / "steps"
        return file.stat().st_size if file.exists() else 0

    def rows_here(self) -> int:
        """How many rows the files on the driver's machine have."""
        root = self.folder / ("exp" if self.cell.storage == "local" else f"machine-{self.machines}")
        return sum(len(file.read_bytes().splitlines()) for file in root.rglob("result.json"))

    def fetch(self) -> None:
        """Copy a finished experiment here, where `trials` and `tables` read it."""
        if self.cell.storage == "s3":
            Storage(f"{self.parent}/exp").download_dir("", self.folder / "exp")

    def resume_by_command(self) -> None:
        """One life of `muster tune resume` to its end, where that finds everything it needs."""
        address = f"{self.parent}/exp"
        if self.cell.objects == "plain" or self.cell.storage == "remote" or not Tuner.can_restore(address):
            return
        driver = self.start(by_command=True)
        try:
            driver.wait(LONGEST_S)
        finally:
            end(driver)
        self._assert_ended_well(driver.returncode)
        self.wait_for_nobody()

    def trials(self) -> list[Any]:
        with open_trials(self.folder / "exp") as reader:
            assert reader.integrity() == "ok"
            return list(reader.trials())

    def tables(self) -> list[tuple[list[Row], list[Row]]]:
        """The rows of both files of each trial, in the order in which trials were made."""
        return [rows_of(self.folder / "exp" / trial.relative_logdir) for trial in self.trials()]


def run_another() -> None:
    """Run another experiment with large parameters, which cleans up after drivers that were killed."""
    subprocess.run([sys.executable, "-c", ANOTHER], check=True, timeout=LONGEST_S, capture_output=True)


def end(driver: subprocess.Popen[bytes], *, whole_group: bool = False) -> None:
    if driver.poll() is None:
        (os.killpg if whole_group else os.kill)(driver.pid, signal.SIGKILL)
        driver.wait()


def relatives(token: str) -> list[int]:
    """Processes that were started by a victim with this token."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                content = (entry / "environ").read_bytes()
            except OSError:
                continue
            if f"MUSTER_VICTIM={token}\0".encode() in content:
                found.append(int(entry.name))
    return found


def rows_of(trial_dir: Path) -> tuple[list[Row], list[Row]]:
    in_json = [json.loads(line) for line in (trial_dir / "result.json").read_text().splitlines()]
    with open(trial_dir / "progress.csv", newline="") as file:
        return in_json, list(csv.DictReader(file))


def stable(rows: list[Row]) -> list[Row]:
    """Without what may differ from run to run."""
    kept = [{name: value for name, value in row.items() if name not in VOLATILE} for row in rows]
    return [{**row, "config": row["config"]["x"]} if "config" in row else row for row in kept]


def key(row: Row) -> tuple[int, float, str, str]:
    return int(row["training_iteration"]), float(row["loss"]), row["before"], row["chain"]


def verify(experiment: Experiment, told: dict[str, Any]) -> None:
    """No trial and no row is lost or doubled, each row is what its configuration and iteration make it."""
    assert (told["trials"], told["errors"]) == (TRIALS, [])
    experiment.fetch()
    trials, tables, kind = experiment.trials(), experiment.tables(), experiment.cell.kind
    assert Counter(trial.status for trial in trials) == {"TERMINATED": TRIALS}
    directories = {file.parent.name for file in (experiment.folder / "exp").glob("*/result.json")}
    assert directories == {trial.relative_logdir for trial in trials}
    assert len(directories) == TRIALS
    chains = {row["chain"]: row["training_iteration"] for rows, _ in tables for row in rows}
    for trial, (rows, records) in zip(trials, tables, strict=True):
        assert [key(row) for row in rows] == [key(record) for record in records], trial.trial_id
        assert list(gaps(rows, chains if kind in JUMPS else {})) == [], trial.trial_id
        assert trial.result["chain"] == rows[-1]["chain"], trial.trial_id
        assert all(row["loss"] == loss(row["config"]["x"], row["training_iteration"]) for row in rows)
        assert kind not in WHOLE or rows[-1]["training_iteration"] == ITERATIONS
    best = [min((row for rows, _ in tables for row in rows), key=lambda row: row["loss"])["chain"]]
    best += [min((rows[-1] for rows, _ in tables), key=lambda row: row["loss"])["chain"]]
    ends = {chain for _, chain, _ in told["ends"]}
    assert ends == {rows[-1]["chain"] for rows, _ in tables}
    assert told["best"][1][1] == best[1]
    assert told["best"][0][1] in {rows[-1]["chain"] for rows, _ in tables if holds(rows, best[0])}
    left = [str(each) for each in (experiment.folder / "exp").rglob("*") if is_half_done(each.name)]
    assert left == []


def holds(rows: list[Row], chain: str) -> bool:
    return any(row["chain"] == chain for row in rows)


def is_half_done(name: str) -> bool:
    return name.endswith((".partial", ".deleted"))


def gaps(rows: list[Row], elsewhere: Mapping[str, int]) -> Iterator[str]:
    """Where a row does not follow the one before it, nor the row of a trial that it was cloned from."""
    chain, iteration, seen = "", 0, set()
    for row in rows:
        now = row["training_iteration"]
        if row["chain"] in seen:
            yield f"row {now} is there twice"
        if (row["before"], now) != (chain, iteration + 1) and elsewhere.get(row["before"]) != now - 1:
            yield f"row {now} follows row {iteration}"
        chain, iteration = row["chain"], now
        seen.add(chain)


def run_cell(cell: Cell, count: int, folder: Path, kills: list[str]) -> None:
    """Kill as often as asked, over as many experiments as that takes; every one is verified at its end.

    The run without kills is one of this machine: where trials run makes no difference. What was killed is
    noted in `kills` at once.
    """
    chance, number = random.Random(f"{cell} {SEED}"), 0
    plain = Experiment(replace(cell, environment={}), folder / "plain")
    expected = plain.live()
    seconds = RAY_S if cell.environment else 0.8 * (time.monotonic() - plain.began)
    span = Span(seconds, 2 * plain.steps() // (count + 1))  # the kills are spread over the whole experiment
    verify(plain, expected)
    moments = [(part + chance.random()) / count for part in range(count)]  # some of every sort in each cell
    chance.shuffle(moments)
    while len(kills) < count:
        number += 1
        experiment = Experiment(cell, folder / str(number))
        while len(kills) < count and (noted := experiment.kill(moments[len(kills)], chance, span)):
            kills.append(noted)
        experiment.resume_by_command()
        told = experiment.live()
        verify(experiment, told)
        if cell.crowd == "one":
            for found, wanted in zip(experiment.tables(), plain.tables(), strict=True):
                assert tuple(map(stable, found)) == tuple(map(stable, wanted))
            assert told == expected
