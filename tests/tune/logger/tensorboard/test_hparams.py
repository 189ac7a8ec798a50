"""Configs in event files, read back by TensorBoard's hparams plugin."""

from __future__ import annotations

import math
import warnings
from types import SimpleNamespace

import numpy as np
import pytest
from tests.tune.logger.tensorboard_reading import hparams_tab

from muster.tune.logger.tensorboard import hparams as event_hparams
from muster.tune.logger.tensorboard.events import EventEncoder, opening
from muster.tune.logger.tensorboard.hparams import HparamsEncoder, hparams_of

tensorboard = pytest.importorskip("tensorboard")


def write(directory, record, rows=()):
    directory.mkdir()
    scalars = EventEncoder().records([(20.0 + row["training_iteration"], row) for row in rows])
    (directory / "events.out.tfevents.1.h").write_bytes(opening(10.0) + scalars + record)


def sessions(directory):
    """The plugin's own messages: (start info, end info)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_file_loader import RawEventFileLoader
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.plugins.hparams import metadata

        path = directory / "events.out.tfevents.1.h"
        last = [Event.FromString(raw) for raw in RawEventFileLoader(str(path)).Load()][-1]
        start, end = (value.metadata.plugin_data for value in last.summary.value)
        assert [value.tensor for value in last.summary.value] == [metadata.NULL_TENSOR] * 2
        assert {start.plugin_name, end.plugin_name} == {metadata.PLUGIN_NAME}
        return (
            metadata.parse_session_start_info_plugin_data(start.content),
            metadata.parse_session_end_info_plugin_data(end.content),
        )


def told(info):
    return {
        name: getattr(value, value.WhichOneof("kind")) if value.WhichOneof("kind") else None
        for name, value in info.hparams.items()
    }


def test_the_hparams_tab_shows_config_last_metrics_status_and_times_of_each_trial(tmp_path):
    encoder = HparamsEncoder()
    for number, (lr, failed) in enumerate([(0.5, False), (0.25, True)]):
        config = {"lr": lr, "layers": 3, "wide": True, "opt": {"name": "adam"}}
        rows = [{"loss": lr * n, "training_iteration": n} for n in (1, 2)]
        write(tmp_path / f"t{number}", encoder.record(hparams_of(config), 11.5, 99.25, failed), rows)
    types, shown = hparams_tab(tmp_path)
    assert types == {
        "lr": "DATA_TYPE_FLOAT64",
        "layers": "DATA_TYPE_FLOAT64",
        "wide": "DATA_TYPE_BOOL",
        "opt/name": "DATA_TYPE_STRING",
    }
    common = {"layers": 3.0, "wide": True, "opt/name": "adam"}
    assert shown == {
        "t0": ({"lr": 0.5, **common}, {"ray/tune/loss": 1.0}, "STATUS_SUCCESS", (11.5, 99.25)),
        "t1": ({"lr": 0.25, **common}, {"ray/tune/loss": 0.5}, "STATUS_FAILURE", (11.5, 99.25)),
    }


def test_trials_with_different_configs_share_the_tab(tmp_path):
    encoder = HparamsEncoder()
    write(tmp_path / "a", encoder.record({"x": 1.0, "kind": "linear"}, 1.0, 2.0, failed=False))
    write(tmp_path / "b", encoder.record({"kind": "deep", "depth": 5.0}, 1.0, 2.0, failed=False))
    types, shown = hparams_tab(tmp_path)
    assert sorted(types) == ["depth", "kind", "x"]
    assert {run: row[0] for run, row in shown.items()} == {
        "a": {"x": 1.0, "kind": "linear"},
        "b": {"kind": "deep", "depth": 5.0},
    }


def test_numbers_of_numpy_count_and_those_json_cannot_say_are_text(tmp_path):
    config = {
        "f32": np.float32(0.5),
        "i64": np.int64(-7),
        "flag": np.bool_(True),
        "text": np.str_("s"),
        "nan": math.nan,
        "inf": -math.inf,
        "huge": 10**400,
        "big": 2**60,
    }
    write(tmp_path / "t", HparamsEncoder().record(hparams_of(config), 1.0, 2.0, failed=False))
    start, _ = sessions(tmp_path / "t")
    assert told(start) == {
        "f32": 0.5,
        "i64": -7.0,
        "flag": True,
        "text": "s",
        "nan": "nan",
        "inf": "-inf",
        "huge": str(10**400),
        "big": float(2**60),
    }
    assert set(hparams_tab(tmp_path)[1]["t"][0]) == set(config)  # the tab's JSON can be made


def test_short_lists_are_text_as_in_tensorboards_own_hparams(tmp_path):
    config = {"layers": [64, 32], "betas": (0.9, 0.999), "none": []}
    write(tmp_path / "t", HparamsEncoder().record(hparams_of(config), 1.0, 2.0, failed=False))
    assert told(sessions(tmp_path / "t")[0]) == {"layers": "[64, 32]", "betas": "(0.9, 0.999)", "none": "[]"}


class Odd:
    dtype = property(lambda self: 1 / 0)


@pytest.mark.conformance("C-200")
def test_unsupported_values_are_left_out_and_named_once_in_the_log(caplog):
    caplog.set_level("INFO", event_hparams.__name__)
    event_hparams._warn.cache_clear()
    config = {"lr": 1, "rows": [[1]], "act": len, "a": {"b": np.zeros(2), "c": Odd()}, "none": None, 3: "k"}
    assert hparams_of(config) == {"lr": 1.0, "3": "k"}
    assert hparams_of({"rows": [[2]], "many": list(range(33))}) == {}
    assert [record.args for record in caplog.records] == [
        ("rows", "list"),
        ("act", "builtin_function_or_method"),
        ("a/b", "ndarray"),
        ("a/c", "Odd"),
        ("many", "list"),
    ]


def test_a_config_that_never_ends_is_cut():
    config = {"lr": 0.5}
    config["me"] = config
    assert set(hparams_of(config)) == {"me/" * level + "lr" for level in range(21)}


def test_what_can_be_shown_of_hparams_is_all_of_them():
    hparams = hparams_of({"n": 3, "flag": np.bool_(True), "a": {"b": [1]}, "inf": math.inf, "s": "s"})
    assert hparams_of(hparams) == hparams == {"n": 3.0, "flag": True, "a/b": "[1]", "inf": "inf", "s": "s"}
    assert list(map(type, hparams.values())) == [float, bool, str, str, str]


@pytest.mark.parametrize("config", [{}, None, SimpleNamespace(lr=1), {"only": [len]}, {"a": {"b": {}}}])
def test_without_anything_to_show_there_is_no_record(config):
    assert HparamsEncoder().record(hparams_of(config), 1.0, 2.0, failed=False) == b""


def test_many_trials_of_one_layout_and_a_config_too_long_for_it_are_readable(tmp_path):
    encoder = HparamsEncoder()
    for number in range(30):
        config = {"lr": number / 7, "opt": "ab"[number % 2]}
        write(
            tmp_path / f"t{number}",
            encoder.record(hparams_of(config), number, number * 2, failed=number % 3 == 0),
        )
        start, end = sessions(tmp_path / f"t{number}")
        assert (told(start), start.start_time_secs) == (config, number)
        assert (end.status, end.end_time_secs) == (2 if number % 3 == 0 else 1, number * 2)
    long = {f"parameter_{n:03}": n * 0.5 for n in range(200)} | {"prompt": "é" * 5000}
    write(tmp_path / "long", encoder.record(hparams_of(long), 1.0, 2.0, failed=False))
    assert told(sessions(tmp_path / "long")[0]) == long
