from __future__ import annotations

import base64
import json
from pathlib import Path

import numpy as np
from msgspec.structs import replace
from tests.page.samples import end_fact, facts_of_start, folder_of, open_store, trial_id

from muster.base.clock import ManualClock
from muster.page.catalog import Catalog
from muster.page.export import report_data
from muster.page.trial_arrays import MASK, MAX_COLUMNS, TrialArrays


def made(rows: int = 3) -> TrialArrays:
    table = TrialArrays()
    table.begin_change()
    for number in range(rows):
        row = table.row_of(f"t{number}")
        table.set_times([row], "created", [1000.0 + number])
        table.set(row, "status", "RUNNING")
        table.set_many(row, "config", {"lr": 0.5 * number, "act": "relu" if number else "tanh"})
    return table


def head_of(content: bytes) -> dict:
    length = int.from_bytes(content[:4], "little")
    return json.loads(content[4 : 4 + length])


def test_the_encoded_table_has_one_aligned_piece_per_column():
    content = made().encode({"summary": {}})
    head = head_of(content)
    sizes = [head["id_bytes"]] + [head["rows"] * (4 if c["kind"] == "number" else 2) for c in head["columns"]]
    padded = sum(size + -size % 4 for size in sizes)
    assert (len(content), head["rows"], head["zero_time"]) == (
        4 + int.from_bytes(content[:4], "little") + padded,
        3,
        1000.0,
    )


def test_a_delta_holds_the_rows_that_changed_and_nothing_else():
    table = made(200)
    before = table.change
    table.begin_change()
    table.set(table.row_of("t7"), "status", "TERMINATED")
    assert [(row[0], row[1]) for row in table.delta(before)["rows"]] == [(7, "t7")]


def test_a_delta_holds_words_that_are_new():
    table = made()
    before = table.change
    table.begin_change()
    table.set_many(table.row_of("t3"), "config", {"act": "gelu"})
    place = list(table.columns).index("config/act")
    assert table.delta(before)["words"] == {str(place): [[2, "gelu"]]}


def test_a_delta_of_ten_trials_is_small():
    table = made(10_000)
    before = table.change
    table.begin_change()
    for number in range(10):
        table.set(table.row_of(f"t{number}"), "training_iteration", 5)
    assert len(json.dumps(table.delta(before))) < 6_000


def test_a_metric_that_is_sometimes_text_and_sometimes_nan_keeps_its_numbers():
    table = made(0)
    for number, value in enumerate([1.5, "diverged", float("nan"), 2.5, float("inf")]):
        table.set_many(table.row_of(f"t{number}"), "metric", {"loss": value})
    column = table.columns["metric/loss"]
    assert (column.odd, [str(v) for v in column.values[:5]]) == (1, ["1.5", "nan", "nan", "2.5", "inf"])


def test_a_parameter_that_is_a_number_or_a_word_becomes_words_and_clients_load_anew():
    table = made(0)
    table.set_many(table.row_of("a"), "config", {"depth": 3})
    generation = head_of(table.encode({}))["generation"]
    table.set_many(table.row_of("b"), "config", {"depth": "auto"})
    column = table.columns["config/depth"]
    assert (list(column.words), table.generation != generation) == (["3", "auto"], True)


def test_two_thousand_columns_are_counted_and_the_first_ones_shown():
    table = made(1)
    table.set_many(table.row_of("t0"), "config", {f"p{number}": number for number in range(2000)})
    head = head_of(table.encode({}))
    assert (len(head["columns"]), head["left_out"]) == (MAX_COLUMNS, 2000 - (MAX_COLUMNS - 15))


def test_a_parameter_name_of_five_megabytes_is_cut():
    table = made(1)
    table.set_many(table.row_of("t0"), "config", {"x" * 5_000_000: 1.0})
    assert len(table.encode({})) < 10_000


def test_markup_in_names_stays_text():
    table = made(1)
    table.set_many(table.row_of("t0"), "metric", {"<img src=x onerror=alert(1)>": 1.0})
    assert head_of(table.encode({}))["columns"][-1]["name"] == "<img src=x onerror=alert(1)>"


def test_many_rows_keep_their_values_when_the_arrays_grow():
    table = made(5000)
    held = table.columns["config/lr"].values[:5000]
    assert np.array_equal(held, np.arange(5000) * 0.5)


def test_values_named_like_secrets_are_masked_in_reports(tmp_path: Path):
    config = {"hf_token": "hf_abc", "db": {"password": 12345}, "max_tokens": 7, "lr": 0.1}
    with open_store(tmp_path / "e", num_samples=2) as store:
        created, *rest = facts_of_start(0)
        store.append([replace(created, config=config, evaluated_params=config), *rest, end_fact(0, 0)])
    output = tmp_path / "e" / folder_of(0) / "stdout"
    output.parent.mkdir()
    output.write_text("signed in with hf_abc, 12345 of 7 tokens")
    shown = {}
    for masks in (True, False):
        catalog = Catalog(clock=ManualClock(0.0), experiments=[str(tmp_path / "e")])
        shown[masks] = report_data(catalog, masks=masks)
        catalog.close()
    key = next(iter(shown[True]["trials"]))
    found = {masks: dict(data["trials"][key][trial_id(0)]["config"]) for masks, data in shown.items()}
    assert found == {
        True: {"hf_token": MASK, "db/password": MASK, "max_tokens": "7", "lr": "0.1"},
        False: {"hf_token": "hf_abc", "db/password": "12345", "max_tokens": "7", "lr": "0.1"},
    }
    logs = {masks: data["trials"][key][trial_id(0)]["logs"]["stdout"] for masks, data in shown.items()}
    assert logs == {True: f"signed in with {MASK}, 12345 of 7 tokens", False: output.read_text()}
    tables = {masks: base64.b64decode(data["tables"][key]) for masks, data in shown.items()}
    assert (b"hf_abc" in tables[True], b"hf_abc" in tables[False]) == (False, True)
