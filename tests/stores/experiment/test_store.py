"""The SQLite experiment store: users' values, readers, compaction, moves, and what can go wrong."""

from __future__ import annotations

import enum
import math
import os
import shutil
import sqlite3
import subprocess
import sys
from collections import OrderedDict, namedtuple
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.support.builders import START, created, exited, failed, reported, saved, started

from muster.errors import LedgerCorrupt, LedgerLocked, StoreError
from muster.stores.experiment import values as trial_values
from muster.stores.experiment.reader import open_trials
from muster.stores.experiment.store import STORE_NAME, SqliteTrialStore
from muster.stores.experiment.summary import TrialSummary
from muster.stores.experiment.values import Pickled
from muster.trials.events import SearchExhausted, TrialAdmitted
from muster.trials.model import CheckpointRef
from muster.tune.execution.between_steps import decode_snapshot, encode_snapshot

CHILD = str(Path(__file__).with_name("trial_child.py"))
Point = namedtuple("Point", "x y")


class Colour(str, enum.Enum):
    RED = "red"


def opened(place, **options):
    return SqliteTrialStore(place, wait_s=0.0, **options)


def back(value, trust=False):
    return trial_values.decode(*trial_values.encode(value), trust=trust)


# Values


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False)
    | st.text()
    | st.binary(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(
            st.text(max_size=5) | st.integers(0, 9) | st.tuples(st.booleans()), inner, max_size=4
        )
    ),
    max_leaves=12,
)


@pytest.mark.slow
@settings(max_examples=200, derandomize=True, deadline=None)
@given(VALUES)
def test_data_comes_back_as_it_was_with_its_types(value):
    data, pickles = trial_values.encode(value)
    assert pickles is None
    assert repr(trial_values.decode(data)) == repr(value)


def test_half_of_a_surrogate_pair_comes_back():
    assert back({"a\ud800": "b\udfff"}) == {"a\ud800": "b\udfff"}


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (np.float64(0.1), 0.1),
        (np.float32(0.5), 0.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.str_("a"), "a"),
        (np.arange(4).reshape(2, 2), [[0, 1], [2, 3]]),
        (OrderedDict(b=1, a=np.int8(2)), {"b": 1, "a": 2}),
    ],
)
def test_numpy_and_odd_containers_become_plain_data(value, plain):
    data, pickles = trial_values.encode({"x": value})
    found = trial_values.decode(data)["x"]
    assert (found, type(found), pickles) == (plain, type(plain), None)


@pytest.mark.parametrize(
    "value", [np.arange(6.0).reshape(2, 3).T, np.zeros((0, 2), np.int8), np.array(["a", "bc"])]
)
def test_who_resumes_gets_arrays_back_as_arrays(value):
    data, pickles = trial_values.encode({"x": value})
    found = trial_values.decode(data, trust=True)["x"]
    assert (found.dtype, found.tolist(), pickles) == (value.dtype, value.tolist(), None)
    found[...] = found  # a trial may write to it


def test_a_large_array_of_many_configs_is_stored_once(tmp_path):
    array = np.random.default_rng(1).random(100_000)
    size, count = array.nbytes, 20
    with opened(tmp_path) as store:
        store.append([created(str(number), {"a": array, "n": number}) for number in range(count)])
        tried = {"a": array, "inner": {"a": array}}
        store.append([reported(str(number), config=tried) for number in range(count)])
        first = encode_snapshot({"trials": [{"config": {"a": array}}] * count})
        store.snapshot(first, {})
        store.append([created("last", {"a": np.array(array)})])
    assert size < (tmp_path / STORE_NAME).stat().st_size < 1.5 * size
    trial_values.large_arrays.clear()  # another process
    with open_trials(tmp_path) as reader:
        trials = reader.trials()
        assert [trial.config["a"] == array.tolist() for trial in trials] == [True] * (count + 1)
        assert trials[0].result["config"]["inner"]["a"] == array.tolist()
    with opened(tmp_path, trust_pickles=True) as store:
        saved = store.load()
        found = [
            saved.facts[0].config,
            *(each["config"] for each in decode_snapshot(saved.snapshot)["trials"]),
        ]
        assert all(np.array_equal(config["a"], array) for config in found)
        assert len({config["a"].__array_interface__["data"] for config in found}) == 1  # in memory, too


def test_a_large_array_of_a_result_goes_with_its_fact(tmp_path):
    with opened(tmp_path) as store:
        store.append([created(), reported(image=np.ones(100_000))])
    with sqlite3.connect(tmp_path / STORE_NAME) as connection:
        assert connection.execute("SELECT 1 FROM sqlite_master WHERE name = 'arrays'").fetchall() == []
    with opened(tmp_path, trust_pickles=True) as store:
        assert store.load().facts[1].result["image"].sum() == 100_000


@pytest.mark.parametrize("value", [{1, 2}, Point(1, 2), Colour.RED, 1j, Path("/a")])
def test_what_is_no_data_is_pickled_beside_it_and_loaded_only_when_trusted(value):
    found = back({"x": [1, (value,)]})["x"][1][0]
    assert (type(found), found.shown, found.load()) == (Pickled, repr(value), value)
    assert back({"x": [1, (value,)]}, trust=True) == {"x": [1, (value,)]}


def test_lambdas_come_back_when_trusted():
    assert back({"f": lambda x: x + 1}, trust=True)["f"](2) == 3


class _Evil:
    def __reduce__(self):
        return (os.mkdir, ("evil-was-here",))


def test_no_reader_runs_the_code_of_a_pickle(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with opened(tmp_path) as store:
        store.save_settings({"x": _Evil()})
        store.append([created(config={"x": _Evil()})])
        store.snapshot(b"", {})
        store.append([reported(x=_Evil())])
    with open_trials(tmp_path) as reader:
        (trial,) = reader.trials()
        kinds = [type(trial.config["x"]), type(trial.result["x"]), type(reader.settings()["x"])]
    with opened(tmp_path) as store:
        kinds.append(type(store.load().facts[0].result["x"]))
    assert (kinds, (tmp_path / "evil-was-here").exists()) == ([Pickled] * 4, False)
    with opened(tmp_path, trust_pickles=True) as store:
        store.load()
    assert (tmp_path / "evil-was-here").exists()


class _Stubborn:
    def __reduce__(self):
        raise RuntimeError("not me")

    def __repr__(self):
        raise RuntimeError("nor my name")


def test_what_cannot_be_pickled_is_described_and_nothing_else_is_lost():
    found = back({"x": _Stubborn(), "y": 1}, trust=True)
    assert found == {"x": "<a _Stubborn could not be pickled: RuntimeError('not me')>", "y": 1}


def test_a_list_inside_itself_is_stored():
    knot = []
    knot += [knot, knot]
    found = back({"x": knot, "y": 1}, trust=True)
    assert (found["y"], len(found["x"]), found["x"][0][0] is found["x"][0]) == (1, 2, True)


def test_the_pickles_of_one_fact_do_not_meet_those_of_another(tmp_path):
    with opened(tmp_path, trust_pickles=True) as store:
        store.append([reported("a", x={1}), reported("b", x=2), reported("c", x={3}, y={4})])
        assert [fact.result["x"] for fact in store.load().facts] == [{1}, 2, {3}]


# Readers and compaction


def life(trial_id, results=3):
    return [
        created(trial_id),
        started(trial_id),
        *(reported(trial_id, k + 1, loss=k) for k in range(results)),
    ]


def summary(trial_id, status, **changes):
    values = {
        "trial_name": f"train_{trial_id}",
        "relative_logdir": f"train_{trial_id}_dir",
        "experiment_tag": f"tag-{trial_id}",
        "config": {"lr": 0.5},
        "evaluated_params": {"lr": 0.5},
        "created_at": START,
    }
    return TrialSummary(trial_id=trial_id, status=status, **{**values, **changes})


def expected_summaries(root):
    last = {"training_iteration": 3, "done": False, "loss": 2}
    ran = {"starts": 1, "reports": 3, "started_at": START + 1, "reported_at": START + 4}
    ref = CheckpointRef(path=f"{root}/b/checkpoint_000000", index=0)
    return (
        summary(
            "a", "TERMINATED", result={**last, "trial_id": "a"}, ended_at=START + 90, returned=True, **ran
        ),
        summary("b", "RUNNING", result={**last, "trial_id": "b"}, checkpoint=ref, **ran),
        summary(
            "c",
            "ERROR",
            result={**last, "trial_id": "c"},
            failures=1,
            failure=failed().failure,
            ended_at=START + 90,
            **ran,
        ),
        summary("d", "PENDING"),
    )


def story(root):
    ref = CheckpointRef(path=f"{root}/b/checkpoint_000000", index=0)
    facts = [*life("a"), exited("a"), *life("b"), saved("b", ref), saved("b", None, "nothing new")]
    return [*facts, *life("c"), failed("c"), created("d"), SearchExhausted(at=START)]


@pytest.mark.parametrize("snapshots", ["none", "last", "each"])
def test_a_reader_sees_the_same_trials_wherever_the_snapshots_fell(tmp_path, snapshots):
    with opened(tmp_path) as store:
        for fact in story(tmp_path):
            store.append([fact])
            if snapshots == "each":
                store.snapshot(b"", {})
        if snapshots == "last":
            store.snapshot(b"", {})
        with open_trials(tmp_path) as reader:  # while the writer lives
            assert reader.trials() == expected_summaries(tmp_path)
            assert reader.writer() == os.getpid()
        assert store.reader.trials() == expected_summaries(tmp_path)
    with open_trials(tmp_path / STORE_NAME) as reader:
        assert reader.trials() == expected_summaries(tmp_path)
        assert reader.writer() is None


def test_the_core_may_say_what_facts_cannot(tmp_path):
    with opened(tmp_path) as store:
        store.append([*life("a"), exited("a"), *life("b"), exited("b")])
        store.snapshot(b"", {}, {"a": "PAUSED"})
        assert [t.status for t in store.reader.trials()] == ["PAUSED", "TERMINATED"]
        store.snapshot(b"", {}, {"b": "PAUSED"})
        store.append([started("a", START + 95)])
        assert [(t.status, t.ended_at, t.starts) for t in store.reader.trials()] == [
            ("RUNNING", None, 2),
            ("PAUSED", START + 90, 1),
        ]


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_trial_that_is_tried_again_is_pending_then_running(tmp_path, snapshots):
    facts = [*life("a"), failed("a"), TrialAdmitted(trial_id="a", at=START + 92), started("a", START + 93)]
    seen = []
    with opened(tmp_path) as store:
        for fact in facts:
            store.append([fact])
            if snapshots:
                store.snapshot(b"", {})
            (trial,) = store.reader.trials()
            seen.append((trial.status, trial.ended_at, trial.failures))
    ran = [("PENDING", None, 0), *[("RUNNING", None, 0)] * 4]
    assert seen == [*ran, ("ERROR", START + 90, 1), ("PENDING", None, 1), ("RUNNING", None, 1)]


@pytest.mark.parametrize("snapshots", [False, True])
def test_a_trial_that_began_again_stands_at_its_checkpoint_until_it_reports(tmp_path, snapshots):
    at_two = reported("a", 2, CheckpointRef(path=f"{tmp_path}/train_a_dir/checkpoint_000000", index=0))
    facts = [created("a"), started("a"), reported("a"), at_two, reported("a", 3), failed("a")]
    seen = []
    with opened(tmp_path) as store:
        for fact in [*facts, started("a", START + 93), replace(reported("a", 7), at=START + 94)]:
            store.append([fact])
            if snapshots:
                store.snapshot(b"", {})
            (trial,) = store.reader.trials()
            seen.append(trial.result.get("training_iteration"))
    assert seen == [None, None, 1, 2, 3, 3, 2, 7]


def test_a_reader_sees_committed_batches_only_and_the_newest_of_them(tmp_path):
    with opened(tmp_path) as store, open_trials(tmp_path) as reader:
        assert (reader.trials(), reader.appended()) == ((), 0)
        store.append([created("a")])
        store.append([created("b"), started("b")])
        assert ([t.status for t in reader.trials()], reader.appended()) == (["PENDING", "RUNNING"], 3)
        assert reader.saved() == store.load()


def test_the_file_follows_the_trials_not_the_results(tmp_path):
    def size_of(results):
        place = tmp_path / str(results)
        place.mkdir()
        with opened(place) as store:
            for number in range(60):
                store.append(life(f"t{number:03d}", results))
                store.append([exited(f"t{number:03d}")])
                if number % 20 == 19:
                    store.snapshot(b"", {})
        return (place / STORE_NAME).stat().st_size

    assert size_of(100) <= size_of(1) * 1.1


def test_a_trivial_finished_trial_takes_less_than_400_bytes(tmp_path):
    count = 1000
    with opened(tmp_path) as store:
        for number in range(count):
            config = {"lr": math.sin(number), "momentum": math.cos(number)}
            metrics = {f"metric_{key}": math.sin(number * key) for key in range(10)}
            trial_id = f"ab12c_{number:05d}"
            store.append([created(trial_id, config), started(trial_id), reported(trial_id, 1, **metrics)])
            store.append([exited(trial_id)])
        store.snapshot(b"", {})
    assert (tmp_path / STORE_NAME).stat().st_size / count < 400


def test_a_copy_is_a_whole_file_of_its_own(tmp_path):
    (tmp_path / "copy").mkdir()
    with opened(tmp_path) as store:
        store.append(life("a"))
        store.snapshot(b"s", {"p": b"1"})
        store.append([exited("a")])
        with open_trials(tmp_path) as reader:
            reader.copy_to(tmp_path / "copy" / STORE_NAME)
        assert [p.name for p in (tmp_path / "copy").iterdir()] == [STORE_NAME]
        with opened(tmp_path / "copy") as copied:
            assert (copied.load(), copied.appended) == (store.load(), store.appended)


# Places


def test_a_moved_experiment_finds_its_checkpoints_where_they_are_now(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    old.mkdir()
    ref = CheckpointRef(path=f"{old}/trial/checkpoint_000001", index=1)
    elsewhere = CheckpointRef(path="/mnt/other/checkpoint_000002", index=2)
    beside = CheckpointRef(path=f"{old}er/checkpoint_000003", index=3)
    with opened(old) as store:
        store.append([reported("t", 1, ref), saved("t", elsewhere), saved("t", beside)])
    shutil.move(old, new)
    with opened(new) as store:
        paths = [fact.checkpoint.path for fact in store.load().facts]
    assert paths == [f"{new}/trial/checkpoint_000001", elsewhere.path, beside.path]
    assert str(old).encode() + b"/" not in (new / STORE_NAME).read_bytes()


def test_checkpoints_on_remote_storage_are_relative_to_its_root(tmp_path):
    ref = CheckpointRef(path="s3://bucket/exp/trial/checkpoint_000001", index=1)
    with opened(tmp_path, root="s3://bucket/exp") as store:
        store.append([saved("t", ref)])
    with opened(tmp_path, root="memory://elsewhere") as store:
        assert store.load().facts[0].checkpoint.path == "memory://elsewhere/trial/checkpoint_000001"


def test_a_linked_directory_counts_as_the_directory(tmp_path):
    real, link = tmp_path / "real", tmp_path / "link"
    real.mkdir()
    link.symlink_to(real)
    with opened(link) as store:
        for root in (real, link):
            store.append([saved("t", CheckpointRef(path=f"{root}/c", index=1))])
        assert [fact.checkpoint.path for fact in store.load().facts] == [f"{link}/c"] * 2


# What can go wrong


def test_a_second_writer_is_refused_with_the_file_and_the_process(tmp_path):
    with opened(tmp_path), pytest.raises(LedgerLocked, match=rf"{STORE_NAME}.*process {os.getpid()}"):
        opened(tmp_path)
    opened(tmp_path).close()


def test_closing_twice_is_harmless(tmp_path):
    store = opened(tmp_path)
    store.close()
    store.close()
    opened(tmp_path).close()


def test_a_file_that_grows_beyond_what_is_allowed_is_an_error_and_nothing_is_half_written(tmp_path):
    command = [sys.executable, CHILD, "full", str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, check=True)
    first, second, count, is_prefix = run.stdout.splitlines()
    for line in (first, second):
        assert f"{tmp_path}/{STORE_NAME}" in line
        assert "nothing was written" in line
    assert (int(count) > 50, is_prefix) == (True, "True")
    with opened(tmp_path) as store:  # and it continues once there is room
        assert (store.appended, len(store.load().facts), store.load().snapshot) == (
            int(count),
            int(count),
            None,
        )
        store.append([reported("t")])
        assert (store.appended, store.reader.integrity()) == (int(count) + 1, "ok")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_directory_that_may_not_be_written_is_an_error(tmp_path):
    tmp_path.chmod(0o555)
    try:
        with pytest.raises(StoreError, match="write"):
            opened(tmp_path)
    finally:
        tmp_path.chmod(0o755)


def test_a_side_file_that_may_not_be_written_is_an_error(tmp_path):
    (tmp_path / f"{STORE_NAME}.lock").mkdir()
    with pytest.raises(StoreError, match=r"experiment\.sqlite\.lock: "):
        opened(tmp_path)


def test_a_place_that_does_not_exist_is_an_error(tmp_path):
    with pytest.raises(StoreError, match=r"/no/experiment\.sqlite: .*/no "):
        opened(tmp_path / "no" / STORE_NAME)
    with pytest.raises(StoreError, match=r"experiment\.sqlite: .*\?$"):
        open_trials(tmp_path)


def test_another_kind_of_file_is_refused_untouched(tmp_path):
    path = tmp_path / STORE_NAME
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE mine (x)")
    other.close()
    before = path.read_bytes()
    for opening in (opened, open_trials):
        with pytest.raises(LedgerCorrupt, match=r"experiment\.sqlite: .*\bSQLite\b"):
            opening(tmp_path)
    assert path.read_bytes() == before


def test_a_file_of_garbage_is_refused_with_what_to_do(tmp_path):
    (tmp_path / STORE_NAME).write_bytes(b"no database" * 1000)
    with pytest.raises(LedgerCorrupt, match=r"experiment\.sqlite: damaged .*-wal "):
        opened(tmp_path)


@pytest.mark.parametrize("column", ["facts", "pickles", "record", "snapshot", "settings"])
def test_damage_inside_is_named_and_never_a_bare_decoding_error(tmp_path, column):
    with opened(tmp_path) as store:
        store.append([*life("a"), exited("a")])
        store.snapshot(b"s" * 100, {})
        store.append([reported("a", 9, x={1})])
    table = {"facts": "batches", "pickles": "batches", "record": "trials"}.get(column, "experiment")
    with sqlite3.connect(tmp_path / STORE_NAME) as raw:
        raw.execute(f"UPDATE {table} SET {column} = x'FFC1C1'")
    raw.close()
    with pytest.raises(LedgerCorrupt, match="damaged"), open_trials(tmp_path) as reader:
        reader.trials()
        reader.saved()


def test_sync_flushes_from_any_state(tmp_path):
    store = opened(tmp_path)
    store.append([created()])
    store.sync()
    store.close()
    store.sync()
    with opened(tmp_path) as again:
        assert again.load().facts == (created(),)
