"""Values in lines and files, checkpoints in directories, and output that is kept: no processes."""

from __future__ import annotations

import json
import math
import os
import time

import pytest
from tests.tune.commands.trainer_events import event

from muster.errors import CommandError
from muster.session.checkpoint import Checkpoint
from muster.tune.commands.checkpoints import SETTLED_S, CheckpointFinder, resume_path
from muster.tune.commands.files import claim, follow
from muster.tune.commands.output import HEAD_BYTES, MAX_LINE, CappedLog, Carry, LineReader, Lines, parse_way


def values(way, *lines, names=("loss", "val/acc")):
    reader = LineReader([parse_way(way)], names)
    return [found for line in lines for found in reader.read(line.encode())]


@pytest.mark.parametrize(
    ("way", "line", "found"),
    [
        ("auto", '  {"loss": 1, "a": [1]}', [{"loss": 1, "a": [1]}]),
        ("auto", "loss=1", []),
        ("auto", '{"loss": ', []),
        ("auto", "[1]", []),
        ("text", "epoch 3: loss=0.5, val/acc: 9e-1", [{"loss": 0.5, "val/acc": 0.9}]),
        ("text", "Loss : -1.5", [{"loss": -1.5}]),
        ("text", "train_loss=1 my.loss=2 losses=3 loss=abc", []),
        ("text", "loss: inf", [{"loss": math.inf}]),
        (r"regex:L(?P<loss>\d+)(?P<x>x)?", "L1 L2x", [{"loss": 1}, {"loss": 2, "x": "x"}]),
        ("regex:(?P<loss>[\\d.]+)%", "12.5% done", [{"loss": 12.5}]),
    ],
)
def test_values_of_a_line(way, line, found):
    assert values(way, line) == found


def test_nan_is_a_value():
    (found,) = values("text", "loss=nan")
    assert math.isnan(found["loss"])


def test_a_result_is_made_when_the_metric_is_seen_and_other_values_are_carried_over():
    carry = Carry(["loss"])
    lines = [{"lr": 1}, {"loss": 3}, {"lr": 2, "acc": 1}, {"loss": 2}]
    assert list(carry.add(lines)) == [{"lr": 1, "loss": 3}, {"lr": 2, "loss": 2, "acc": 1}]
    assert list(carry.seen) == ["lr", "loss", "acc"]


def test_several_metrics_make_a_result_once_all_are_known():
    found = Carry(["loss", "val/acc"]).add([{"loss": 1}, {"val": {"acc": 2}}, {"loss": 3}])
    assert [each["loss"] for each in found] == [1, 3]


def test_without_a_metric_every_object_with_a_number_is_a_result():
    assert list(Carry([]).add([{"text": "a"}, {"n": 1}])) == [{"text": "a", "n": 1}]


def test_lines_end_at_newlines_and_returns_and_lose_their_colors():
    lines = Lines()
    assert lines.feed(b"a\r\x1b[1mb\x1b[0m\nc") == [b"a", b"b"]
    assert lines.feed(b"d\r\n") == [b"cd"]
    assert (lines.feed(b"last"), lines.end(), lines.end()) == ([], [b"last"], [])


def test_a_line_that_is_too_long_is_cut_and_the_next_one_is_whole():
    lines = Lines()
    assert [len(line) for line in lines.feed(b"x" * (MAX_LINE + 5))] == [MAX_LINE]
    assert lines.feed(b"x" * 100) == []
    assert lines.feed(b"x\nnext\n") == [b"next"]


def test_a_log_keeps_its_first_megabyte_and_its_end(tmp_path):
    log = CappedLog(str(tmp_path / "log"), HEAD_BYTES + 400)
    for number in range(30_000):
        log.write(b"%099d\n" % number)
    log.close()
    kept = (tmp_path / "log").read_bytes()
    assert (kept[:100], kept[-100:]) == (b"%099d\n" % 0, b"%099d\n" % 29_999)
    assert len(kept) <= HEAD_BYTES + 400 + 100
    assert [path.name for path in tmp_path.iterdir()] == ["log"]
    assert log.last_lines().splitlines()[-1].endswith("29999")


def read(file, **given):
    return list(file.read(**given))


def test_json_lines_of_a_file_that_appears_grows_and_is_replaced(tmp_path):
    path = tmp_path / "m.jsonl"
    file = follow(parse_way("jsonl:x"), str(tmp_path / "*.jsonl"))
    assert read(file) == []
    path.write_text('{"a": 1}\n{"a"')
    assert read(file) == [{"a": 1}]
    with path.open("a") as stream:
        stream.write(": 2}\nno json\n{}")
    assert read(file) == [{"a": 2}]
    assert read(file, is_last=True) == [{}]
    (tmp_path / "new").write_text('{"b": 1}\n')
    os.rename(tmp_path / "new", path)
    assert read(file) == [{"b": 1}]


def test_what_was_in_a_file_before_is_no_result(tmp_path):
    path = tmp_path / "m.csv"
    path.write_text("step,loss\n1,0.5\n")
    file = follow(parse_way("csv:x"), str(path))
    assert read(file) == []
    with path.open("a") as stream:
        stream.write("2,0.25\n")
    assert read(file) == [{"step": 2, "loss": 0.25}]


def test_a_csv_file_that_is_written_again_as_a_whole_gives_its_new_rows_only(tmp_path):
    path = tmp_path / "m.csv"
    file = follow(parse_way("csv:x"), str(path))
    path.write_text("step,loss,acc\n1,0.5,\n")
    assert read(file) == [{"step": 1, "loss": 0.5}]
    path.write_text("step,loss,acc\n")  # in the middle of it
    assert read(file) == []
    path.write_text('step,loss,acc\n1,0.5,\n2,,"0.9"\n')
    assert read(file) == [{"step": 2, "acc": 0.9}]


def test_events_of_tensorboard_are_one_result_per_step(tmp_path):
    file = follow(parse_way("tensorboard:x"), str(tmp_path))
    (tmp_path / "run").mkdir()
    path = tmp_path / "run" / "events.out.tfevents.1"
    data = event(1, "loss", 0.5) + event(1, "acc", 0.25) + event(2, "loss", 0.125)
    path.write_bytes(data[:-5])
    assert read(file) == [{"step": 1, "loss": 0.5, "acc": 0.25}]
    path.write_bytes(data)
    assert read(file) == [{"step": 2, "loss": 0.125}]


@pytest.mark.slow
def test_events_that_tensorboard_itself_writes_are_read(tmp_path):
    writer_of = pytest.importorskip("tensorboard.summary._writer", reason="needs TensorBoard")
    from tensorboard.compat.proto.event_pb2 import Event
    from tensorboard.compat.proto.summary_pb2 import Summary
    from tensorboard.compat.proto.tensor_pb2 import TensorProto
    from tensorboard.summary.writer.event_file_writer import EventFileWriter

    assert writer_of
    file, writer = follow(parse_way("tensorboard:x"), str(tmp_path)), EventFileWriter(str(tmp_path))
    tensor = TensorProto(dtype=1, float_val=[0.75])
    scalars = [Summary.Value(tag="val/loss", simple_value=1.5), Summary.Value(tag="acc", tensor=tensor)]
    writer.add_event(Event(step=300, summary=Summary(value=scalars)))
    writer.close()
    assert read(file) == [{"step": 300, "val/loss": 1.5, "acc": 0.75}]


def test_a_document_is_read_at_the_end_with_the_history_of_transformers(tmp_path):
    path = tmp_path / "trainer_state.json"
    path.write_text("{}")
    file = follow(parse_way("json:x"), str(tmp_path / "*.json"))
    assert read(file, is_last=True) == []
    history = [{"loss": 2, "step": 1}, {"eval_loss": 1, "step": 2}]
    path.write_text(json.dumps({"best_metric": 1, "log_history": history}))
    os.utime(path, (1, 1))
    assert read(file) == []
    assert read(file, is_last=True) == [{"loss": 2, "step": 2, "eval_loss": 1, "best_metric": 1}]
    path.write_text("{")
    with pytest.raises(CommandError):
        read(file, is_last=True)


def test_two_trials_do_not_follow_one_file(tmp_path):
    held = claim(str(tmp_path / "m.csv"))
    with pytest.raises(CommandError):
        claim(str(tmp_path / "m.csv"))
    held.close()
    claim(str(tmp_path / "m.csv")).close()


def make(folder, name, text="1"):
    (folder / name).mkdir()
    (folder / name / "model").write_text(text)


def test_a_checkpoint_is_complete_when_it_was_renamed_or_has_not_changed_for_a_second(tmp_path):
    make(tmp_path, "before")
    found = CheckpointFinder(f"{tmp_path}/*")
    assert found.newest() is None
    make(tmp_path, "step-1")
    seen = found.newest()
    assert [found.is_complete(seen, now) for now in (0.0, SETTLED_S / 2, SETTLED_S)] == [False, False, True]
    assert found.take(seen, str(tmp_path / ".staging")) == Checkpoint(tmp_path / "step-1")
    assert found.newest() is None
    make(tmp_path, ".tmp")
    time.sleep(0.02)  # the times of files have the kernel's resolution
    os.rename(tmp_path / ".tmp", tmp_path / "step-2")
    assert found.is_complete(found.newest(), 0.0)


def test_a_checkpoint_that_changes_is_not_complete(tmp_path):
    found = CheckpointFinder(f"{tmp_path}/*")
    make(tmp_path, "step-1")
    assert not found.is_complete(found.newest(), 0.0)
    (tmp_path / "step-1" / "more").write_text("2")
    assert not found.is_complete(found.newest(), SETTLED_S)


def test_a_single_file_is_a_checkpoint_and_the_command_continues_from_that_file(tmp_path):
    found = CheckpointFinder(f"{tmp_path}/*.pt")
    (tmp_path / "last.pt").write_text("1")
    taken = found.take(found.newest(), str(tmp_path / "staging"))
    assert resume_path(taken) == str(tmp_path / "staging" / "last.pt")
    assert resume_path(None) == ""
