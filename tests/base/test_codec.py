"""Record as tagged JSON and back."""

from __future__ import annotations

import json

import msgspec
import pytest

from muster.base import codec
from muster.base.resources import Resources
from muster.cluster.model import FailureKind, Instance, NodeType, StatusChange, StopCause
from muster.cluster.plan import Drain, Launch, Terminate
from muster.cluster.snapshot import Memory, TypeHealth
from muster.cluster.states import InstanceState

RECORD = Instance(
    instance_id="i-1",
    node_type="gpu",
    state=InstanceState.RAY_RUNNING,
    cloud_id="c-1",
    node_id="n-1",
    stop_cause=StopCause.IDLE,
    missing_since=12.5,
    history=(
        StatusChange(InstanceState.QUEUED, 1.0, "wanted"),
        StatusChange(InstanceState.REQUESTED, 2.0),
    ),
)
ACTIONS = (
    Launch(request_id="r-1", shape={"gpu": 2}, instance_ids=("i-1", "i-2")),
    Terminate(request_id="t-1", cloud_ids=("c-1",), instance_ids=("i-3",)),
    Drain(request_id="d-1", instance_id="i-4", node_id="n-4", cause=StopCause.MAX_NODES, deadline_s=60.0),
)


@pytest.mark.parametrize(
    ("value", "kind"),
    [
        (RECORD, Instance),
        (ACTIONS, tuple[Launch | Terminate | Drain, ...]),
        (NodeType(name="gpu", resources=Resources.of(CPU=0.1, GPU=0), max_nodes=3), NodeType),
        (
            Memory(health={"gpu": TypeHealth(failures=1.5, kind=FailureKind.QUOTA)}, ended_nodes={"n": 3.0}),
            Memory,
        ),
    ],
)
def test_what_was_written_is_read_back(value, kind):
    assert codec.decode(codec.encode(value), kind) == value


def test_the_text_is_tagged_json_with_quantities_as_people_write_them():
    text = codec.encode({"size": Resources.of(CPU=0.5)})
    assert json.loads(text) == {"v": 1, "d": {"size": {"CPU": 0.5}}}
    assert json.loads(codec.encode_plain({"size": Resources.of(CPU=0.5)})) == {"size": {"CPU": 0.5}}
    assert codec.to_builtins(Resources.of(CPU=0.5)) == {"CPU": 0.5}


@pytest.mark.parametrize("data", [b'{"v": 2, "d": {}}', b"[]", b"7"])
def test_another_format_is_refused_with_its_beginning(data):
    with pytest.raises(ValueError, match="unknown record format"):
        codec.decode(data, Instance)


def test_a_record_that_does_not_fit_says_where():
    damaged = codec.encode(RECORD).replace(b'"state":5', b'"state":99')
    with pytest.raises(msgspec.ValidationError, match=r"99.*\$\.state"):
        codec.decode(damaged, Instance)


def test_insane_quantities_are_refused_when_read():
    with pytest.raises(ValueError, match="CPU"):
        codec.convert({"name": "x", "resources": {"CPU": -1}}, NodeType)


def test_values_nobody_taught_the_codec_are_refused():
    with pytest.raises(NotImplementedError, match="cannot encode object"):
        codec.encode(object())
    with pytest.raises(NotImplementedError, match="cannot decode object"):
        codec.convert(3, type("object", (), {}))
