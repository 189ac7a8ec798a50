"""A batch returns the facts it was made of, whether reports are stored one by one or together."""

from __future__ import annotations

import math

import msgspec
import pytest
from tests.support.builders import created, started

from muster.stores.experiment.codec import ExperimentLocation, pack, pack_batch, unpack, unpack_batch
from muster.stores.experiment.trial_rows import RowBuffer
from muster.trials.events import TrialReported
from muster.trials.model import CheckpointRef

PLACE = ExperimentLocation("/experiment")


def report(step, trial_id="t1", checkpoint=None, **more):
    result = {"loss": 1.0 / step, "training_iteration": step, "done": False, "config": {"lr": 0.1}, **more}
    return TrialReported(trial_id=trial_id, at=float(step), result=result, checkpoint=checkpoint)


def facts_again(facts):
    data, pickles, _ = pack_batch(facts, PLACE)
    return [unpack(each, PLACE, trust=True) for each in unpack_batch(data, pickles)]


def reports(values, name="x"):
    return [report(step, **{name: value}) for step, value in enumerate(values * 2, start=1)]


@pytest.mark.parametrize(
    "values",
    [
        [1, 1, 1, 1],
        [1, True, 1.0, 1],
        [0.0, -0.0, 0.0, 0.0],
        [-0.0, 0.0, 0.0, 0.0],
        [math.nan, math.inf, -math.inf, 1.5],
        [None, "a", b"b", 2**70],
        ["ok", "\ud800", "ok", "ok"],
        [(1, 2), (1, 2), (1, 2), (1, 2)],
        [{"a": [1, {"b": None}]}, {"a": [1]}, {}, {"a": [[]]}],
        [[1], [1], [1], [2]],
        [{1: 2}, {1: 2}, {1: 2}, {1: 2}],
    ],
    ids=repr,
)
def test_reports_stored_together_come_back_as_they_were(values):
    facts = reports(values)
    assert repr(facts_again(facts)) == repr(facts)


def test_keys_that_are_no_text_come_back_too():
    facts = [TrialReported(trial_id="t1", at=0.5, result={1: step, None: 2}) for step in range(6)]
    assert facts_again(facts) == facts


def test_the_order_is_kept_between_reports_of_several_trials_and_other_facts():
    saved = CheckpointRef(path="/experiment/t1/checkpoint_000000", index=0, metrics={"loss": 0.5})
    facts = [
        created(),
        started(),
        *[report(step, trial_id) for step in (1, 2, 3, 4) for trial_id in ("t1", "t2")],
        report(5, checkpoint=saved),
        *[report(step, other=1) for step in (6, 7)],
        *[report(step) for step in range(8, 20)],
    ]
    assert facts_again(facts) == facts
    kinds = [kind for kind, *_ in msgspec.msgpack.decode(pack_batch(facts, PLACE).data)]
    assert kinds == [1, 2, 13, 7, 3, 3, 13]


def test_a_config_is_stored_once_for_all_reports_that_share_it():
    config = {"text": "a" * 1000}
    few, many = ([report(step, config=config) for step in range(1, n)] for n in (11, 21))
    assert len(pack_batch(many, PLACE).data) < len(pack_batch(few, PLACE).data) + 10 * 30


def test_a_trial_has_the_same_digest_whether_its_reports_were_stored_together_or_not():
    facts = [created(), *[report(step, each) for step in range(1, 9) for each in ("t1", "t2")], report(9)]
    together, one_by_one = RowBuffer(), RowBuffer()
    together.note(pack_batch(facts, PLACE).stored)
    one_by_one.note(pack(fact, PLACE) for fact in facts)

    def shown(rows):
        return {key: (digest.reports, digest.kept) for key, digest in rows.digests.items()}

    assert shown(together) == shown(one_by_one)
    assert shown(together)["t1"][0] == 9


@pytest.mark.parametrize(
    "table",
    [
        None,
        [4],
        [4, ["x"], [[0, "t1"], [1, [1.0]], [1, [1, 2, 3]]]],
        [4, ["x", "y"], [[0, "t1"], [0, 1.0], [0, 1]]],
        [4, ["x"], [[0, "t1"], [0, 1.0], [2, [1], [0, 0, 7, 0]]]],
        ["4", ["x"], [[0, "t1"], [0, 1.0], [0, 1]]],
    ],
)
def test_a_damaged_table_of_reports_is_an_error_and_not_a_wrong_result(table):
    data = msgspec.msgpack.encode([(13, "", msgspec.Raw(msgspec.msgpack.encode(table)))])
    with pytest.raises(ValueError, match=r"."):
        list(unpack_batch(data, None))
