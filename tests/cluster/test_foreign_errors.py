"""What a port raises is a failure of that port: it never leaves the tick, nor is it blamed on the ledger."""

from __future__ import annotations

import asyncio

import pytest
from tests.cluster.fakes import Stage
from tests.cluster.worlds import spec
from tests.mistakes.views import assert_line
from tests.support.builders import demand, node_type

from muster.base.untrusted import ForeignExit, call_safely, describe, error_text
from muster.cluster.controller import LEDGER_SOURCE, ClusterController
from muster.errors import QuotaExceeded


class Mute(Exception):
    def __str__(self):
        raise ValueError("no words")

    __repr__ = __str__


class MuteRefusal(QuotaExceeded):
    __str__ = Mute.__str__


class Abort(BaseException):
    pass


WORST = [SystemExit(3), asyncio.CancelledError(), Abort("enough"), GeneratorExit(), Mute(), MuteRefusal()]
PORTS = [
    ("provider", "list_instances"),
    ("provider", "traits"),
    ("provider", "launch"),
    ("provider", "terminate"),
    ("provider", "poll_launch_failures"),
    ("provider", "poll_terminate_failures"),
    ("runtime", "read"),
    ("runtime", "publish"),
    ("drainer", "drain"),
    ("drainer", "poll"),
    ("spec", "current"),
]


def ticked(stage, controller):
    stage.clock.advance(1)
    return controller.tick()


@pytest.mark.parametrize("error", WORST, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize(("port", "method"), PORTS)
def test_no_error_of_a_port_leaves_the_tick_or_is_blamed_on_the_ledger(port, method, error):
    stage = Stage(installer=False, wishes=spec(node_type("cpu")))
    controller = ClusterController(stage.ports, stage.ambient)
    ticked(stage, controller)
    stage.runtime.demands = [demand()]
    getattr(stage, port).answers[method] = error
    results = [ticked(stage, controller) for _ in range(3)]
    notes = [note for result in results for note in result.plan.quarantined]
    assert [note for note in notes if note.source == LEDGER_SOURCE] == []
    assert all(isinstance(note.message, str) for note in notes)


def test_a_launch_that_exits_stays_in_the_outbox_like_any_unknown_outcome():
    stage = Stage(installer=False, wishes=spec(node_type("cpu")))
    controller = ClusterController(stage.ports, stage.ambient)
    ticked(stage, controller)
    stage.runtime.demands = [demand()]
    stage.provider.answers["launch"] = SystemExit("bye")
    result = ticked(stage, controller)
    assert (len(result.ledger.outbox), result.port_errors.launch) == (1, 1)
    del stage.provider.answers["launch"]
    assert ticked(stage, controller).ledger.outbox == ()
    (first, again) = stage.provider.called("launch")
    assert first == again


def test_a_value_without_a_repr_is_set_aside_under_its_own_name():
    stage = Stage(installer=False)
    controller = ClusterController(stage.ports, stage.ambient)
    stage.provider.answers["list_instances"] = lambda: {"c-1": Mute()}
    stage.provider.answers["poll_launch_failures"] = [Mute()]
    notes = ticked(stage, controller).plan.quarantined
    text = "<Mute: repr() raised ValueError>"
    assert {(n.source, n.message) for n in notes} >= {
        ("machine c-1", f"the provider's entry is not usable: {text}"),
        ("launch failures", f"not usable: {text}"),
    }


def test_a_users_ctrl_c_is_not_a_failure_of_a_port():
    stage = Stage(installer=False)
    stage.provider.answers["list_instances"] = KeyboardInterrupt()
    with pytest.raises(KeyboardInterrupt):
        ClusterController(stage.ports, stage.ambient).tick()


def test_what_is_raised_is_told_by_type_and_message():
    def leave():
        raise SystemExit("no key")

    with pytest.raises(ForeignExit, match="SystemExit"):
        call_safely(leave)
    assert error_text(ValueError("wrong")) == "ValueError: wrong"
    assert_line("cluster", "error without a message", error_text(Mute()))
    assert error_text(ForeignExit("SystemExit: 3")) == "SystemExit: 3"
    assert (describe("x" * 200), describe(Mute())) == ("'" + "x" * 99, "<Mute: repr() raised ValueError>")
