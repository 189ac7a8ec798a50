"""Event files, read back by TensorBoard itself."""

from __future__ import annotations

import math
import struct
import warnings

import numpy as np
import pytest

from muster.tune.logger.tensorboard.crc32c import KnownRecord, crc32c, crc32c_long, masked
from muster.tune.logger.tensorboard.events import EventEncoder, opening, varint

tensorboard = pytest.importorskip("tensorboard")


def read(data, tmp_path):
    """(step, wall time, {tag: value}) of each event, as TensorBoard sees them; a bad checksum raises."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event

        path = tmp_path / "events.out.tfevents.1.h"
        path.write_bytes(data)
        events = [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()]
    return [(e.step, e.wall_time, {v.tag: shown(v) for v in e.summary.value}) for e in events], events


def shown(value):
    """A number; of an array, how it is shown."""
    kind = value.WhichOneof("value")
    return value.simple_value if kind == "simple_value" else kind


def f32(value):
    return struct.unpack("<f", struct.pack("<f", value))[0]


def test_checksums_are_those_of_the_standard():
    assert [crc32c(data) for data in (b"", b"123456789", bytes(32), b"\xff" * 32)] == [
        0,
        0xE3069283,
        0x8A9136AA,
        0x62A8AB43,
    ]


@pytest.mark.parametrize("length", [0, 1, 255, 256, 257, 70_001])
def test_the_checksum_of_something_long_is_the_same(length):
    data = bytes(n * n % 253 for n in range(length))
    assert crc32c_long(data) == crc32c(data)


def test_a_known_record_has_the_same_checksum_one_by_one_and_side_by_side():
    places = [0, 3, 4, 40, 41]
    base = bytearray(range(42))
    for place in places:
        base[place] = 0
    known = KnownRecord(bytes(base), places)
    records = []
    for n in range(70):
        record = bytearray(base)
        for place in places:
            record[place] = (n * 37 + place * 11) & 255
        records.append(bytes(record))
    expected = [masked(crc32c(record)) for record in records]
    assert known.masked_crcs(records) == expected
    assert [known.masked_crcs([record])[0] for record in records] == expected


def test_integers_are_protocol_buffers_varints():
    assert [varint(n) for n in (0, 127, 128, 300)] == [b"\x00", b"\x7f", b"\x80\x01", b"\xac\x02"]
    assert len(varint(-1)) == 10


@pytest.mark.conformance("C-200")
def test_tensorboard_reads_many_rows_with_growing_steps(tmp_path):
    rows = [
        (1e9 + n, {"loss": n * 0.37, "done": False, "training_iteration": n, "pid": 7, "host": "h"})
        for n in range(1, 400)
    ]
    found, events = read(opening(1e9) + EventEncoder().records(rows), tmp_path)
    assert events[0].file_version == "brain.Event:2"
    assert found[1:] == [
        (n, 1e9 + n, {"ray/tune/loss": f32(n * 0.37), "ray/tune/done": 0.0}) for n in range(1, 400)
    ]


def test_what_ray_shows_is_shown_and_what_it_skips_is_skipped(tmp_path):
    row = {
        "loss": 1.0,
        "nan": math.nan,
        "inf": math.inf,
        "flag": True,
        "s": "text",
        "np32": np.float32(0.1),
        "npi": np.int64(3),
        "none": None,
        "done": False,
        "config": {},
        "pid": 1,
        "timestamp": 2,
        "time_total_s": 3.0,
        "training_iteration": 4,
        "nest/a/b": 0,
        "huge": 10**400,
        "wide": -1e300,
        "arr": np.arange(3.0),
        "picture": np.zeros((3, 8, 8), np.uint8),
        "lst": [1, 2],
        "names": ["a"],
        "tuple": (1, 2),
    }
    found, _ = read(EventEncoder().records([(5.0, row)]), tmp_path)
    expected = {
        "loss": 1.0,
        "inf": math.inf,
        "flag": 1.0,
        "np32": f32(0.1),
        "npi": 3.0,
        "done": 0.0,
        "nest/a/b": 0.0,
        "huge": math.inf,
        "wide": -math.inf,
        "arr": "histo",
        "picture": "image",
        "lst": "histo",
    }
    assert found == [(4, 5.0, {f"ray/tune/{key}": value for key, value in expected.items()})]


def test_a_large_picture_beside_scalars_is_readable(tmp_path):
    noise = np.random.default_rng(1).integers(0, 255, (3, 100, 100), np.uint8)
    rows = [(1.0, {"loss": 2.0, "eval/picture": noise, "training_iteration": 3})]
    data = EventEncoder().records(rows)
    assert len(data) > 30_000
    expected = {"ray/tune/loss": 2.0, "ray/tune/eval/picture": "image"}
    assert read(data, tmp_path)[0] == [(3, 1.0, expected)]


def test_a_row_with_nothing_but_an_array_that_cannot_be_shown_has_no_record():
    assert (
        EventEncoder().records([(1.0, {"a": np.array(["x"]), "b": [None], "training_iteration": 1})]) == b""
    )


def test_timesteps_come_before_iterations_as_the_step(tmp_path):
    rows = [(1.0, {"a": 1.0, "training_iteration": 2, "timesteps_total": 900})]
    assert read(EventEncoder().records(rows), tmp_path)[0] == [
        (900, 1.0, {"ray/tune/a": 1.0, "ray/tune/timesteps_total": 900.0})
    ]


def test_rows_of_changing_shape_keep_their_order(tmp_path):
    rows = [
        (1.0, {"a": 1.0, "training_iteration": 1}),
        (2.0, {"a": math.nan, "training_iteration": 2}),
        (3.0, {"a": None, "training_iteration": 3}),
        (4.0, {"b": 2, "training_iteration": 4}),
        (5.0, {"a": 1, "b": 2.5, "training_iteration": 5}),
    ]
    found, _ = read(EventEncoder().records(rows), tmp_path)
    assert found == [
        (1, 1.0, {"ray/tune/a": 1.0}),
        (4, 4.0, {"ray/tune/b": 2.0}),
        (5, 5.0, {"ray/tune/a": 1.0, "ray/tune/b": 2.5}),
    ]


def test_a_resumed_file_voids_the_steps_it_repeats(tmp_path):
    _, events = read(opening(1.0, first_step=7), tmp_path)
    assert [(e.step, e.session_log.status) for e in events[1:]] == [(7, 1)]


def test_a_very_long_row_is_readable_too(tmp_path):
    row = {f"metric_{n:04d}": float(n) for n in range(200)} | {"training_iteration": 1}
    found, _ = read(EventEncoder().records([(1.0, row)] * 2), tmp_path)
    assert [len(values) for _, _, values in found] == [200, 200]
