"""What is announced about a machine reaches the code of a trial, over real pipes."""

from __future__ import annotations

import os

import numpy as np
import pytest

from muster.base.clock import ManualClock
from muster.base.framing import FrameKind, FrameReader, frame, pack, unpack, unpickle
from muster.engines.worker.channel import WorkerChannel
from muster.engines.worker.protocol import StartOrder
from muster.engines.worker.session import TrialSession
from muster.session import get_preemption_info, should_checkpoint
from muster.session.checkpoint import Checkpoint
from muster.session.session import PreemptionInfo, install, uninstall

INFO = PreemptionInfo(deadline=120.0, kind="interruption", source="AWS", node_id="ab")
CONTINUE, SAVE = frame(FrameKind.CONTINUE), frame(FrameKind.SAVE, pack(False))


class Wire:
    """The session of a trial, and the driver's ends of its pipes."""

    def __init__(self, folder, **order):
        self.to_read, self._write = os.pipe()
        self._read, to_write = os.pipe()
        channel = WorkerChannel(beat_s=60.0)
        channel.connect(self.to_read, to_write, os.getppid())
        asked = StartOrder("a", "a", "f", {}, ([{}], "PACK"), str(folder), "e", **order)
        self.clock = ManualClock()
        self.session = TrialSession(asked, channel, self.clock)
        self.folder = folder

    def tell(self, *frames):
        os.write(self._write, b"".join(frames))

    def sent(self):
        return [kind for kind, _ in FrameReader().feed(os.read(self._read, 1 << 16))]

    def reports(self, **more):
        self.tell(CONTINUE)
        self.session.report({"loss": 1.0}, **more)

    def checkpoint(self):
        made = self.folder / "made"
        made.mkdir(exist_ok=True)
        (made / "model").write_bytes(b"1")
        return Checkpoint.from_directory(made)


def notice(info=INFO):
    return frame(FrameKind.NOTICE, pack(None if info is None else tuple(info)))


@pytest.fixture
def wire(tmp_path):
    made = Wire(tmp_path)
    token = install(made.session, whole_process=True)
    yield made
    uninstall(token)


def seen():
    return get_preemption_info(), should_checkpoint()


def test_outside_of_a_trial_nothing_is_announced():
    assert seen() == (None, False)


def test_a_notice_is_seen_in_the_middle_of_a_step_until_a_checkpoint_answers_it(wire):
    assert seen() == (None, False)
    wire.tell(notice())
    assert seen() == (INFO, True)
    wire.reports()
    assert seen() == (INFO, True)
    wire.reports(checkpoint=wire.checkpoint())
    assert seen() == (INFO, False)
    wire.tell(notice())  # repeated
    assert seen() == (INFO, False)


def test_a_notice_that_comes_with_an_answer_is_seen(wire):
    wire.tell(notice(), CONTINUE)
    wire.session.report({"loss": 1.0})
    assert seen() == (INFO, True)


def test_a_notice_that_is_taken_back_wants_no_checkpoint(wire):
    wire.tell(notice())
    assert seen() == (INFO, True)
    wire.tell(notice(None))
    assert seen() == (None, False)


def test_a_save_of_a_class_is_an_answer(wire):
    wire.session.on_save = lambda is_optional: (0, "")
    wire.tell(notice(), SAVE, CONTINUE)
    wire.session.report({"loss": 1.0})
    assert (seen(), wire.sent()) == ((INFO, False), [FrameKind.REPORT, FrameKind.SAVED])


def test_no_checkpoint_is_wanted_that_would_take_too_long(wire):
    wire.session._publish_s = 30.0
    wire.tell(notice())
    wire.clock.advance(89.0)
    assert should_checkpoint()
    wire.clock.advance(2.0)
    assert seen() == (INFO, False)


def test_other_answers_that_have_arrived_are_kept(wire):
    wire.tell(notice(), CONTINUE)
    assert should_checkpoint()
    wire.session.report({"loss": 1.0})  # the answer is there already
    assert wire.sent() == [FrameKind.REPORT]


def test_results_are_not_kept_back_on_a_machine_that_will_be_taken(tmp_path):
    wire = Wire(tmp_path, buffering=(10, 100.0, 100.0, 0))
    wire.session.report({"loss": 1.0})  # waits for others
    wire.tell(notice(), CONTINUE)
    wire.session.report({"loss": 2.0})
    assert wire.sent() == [FrameKind.REPORT, FrameKind.REPORT]


def test_an_answer_may_change_how_long_results_wait(tmp_path):
    wire = Wire(tmp_path, buffering=(10, 0.0, 100.0, 0))
    wire.tell(frame(FrameKind.CONTINUE, pack(1.0)))
    wire.session.report({"loss": 1.0})
    wire.session.report({"loss": 2.0})  # waits for others
    wire.clock.advance(1.0)
    wire.tell(CONTINUE)
    wire.session.report({"loss": 3.0})
    assert wire.sent() == [FrameKind.REPORT] * 3


def test_a_fork_does_not_take_the_answers_of_its_trial(wire):
    wire.tell(notice())
    child = os.fork()
    if child == 0:
        os._exit(0 if seen() == (None, False) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert seen() == (INFO, True)


def test_the_announcement_has_the_names_of_ray_train():
    assert (INFO.deadline_ms, INFO.preempted_node_ids, INFO.preempted_ranks) == (120_000, ["ab"], [0])
    assert INFO.preempted_node_to_ranks == {"ab": [0]}
    assert PreemptionInfo().deadline_ms is None
    assert unpack(pack(tuple(INFO))) == tuple(INFO)


@pytest.mark.parametrize("one", [np.array([0.5]), np.array([[0.5]], dtype=np.float32)])
def test_an_array_of_one_element_is_reported_as_its_number(wire, one):
    wire.tell(CONTINUE)
    several = np.array([1, 2])
    wire.session.report({"loss": one, "eval": {"loss": one, "several": several}, "name": np.array(["a"])})
    ((_, payload),) = FrameReader().feed(os.read(wire._read, 1 << 16))
    sent = unpickle(unpack(payload)[0])
    assert (sent["loss"], sent["eval"]["loss"], type(sent["loss"])) == (0.5, 0.5, float)
    assert (sent["eval"]["several"].tolist(), sent["name"].tolist()) == ([1, 2], ["a"])
