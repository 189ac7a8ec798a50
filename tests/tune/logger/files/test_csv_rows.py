"""progress.csv as Ray writes it, and wider when it must be."""

from __future__ import annotations

import csv
import io

import numpy as np

from muster.tune.logger.files.csv_rows import Table, fields_of, flat_row, records_of, widened


def test_a_row_looks_as_ray_writes_it():
    row = {
        "loss": 1.0,
        "nan": float("nan"),
        "inf": float("inf"),
        "flag": True,
        "s": 'a,"b"\n',
        "np32": np.float32(0.1),
        "arr": np.arange(3.0),
        "lst": [1, 2, 3],
        "nest": {"a": {"b": 0}, "e": {}},
        "none": None,
        "config": {"x": 1},
        "é": "ü",
        "done": False,
    }
    flat = flat_row(row)
    table = Table()
    table = table.widened(table.new_columns([flat]))
    assert table.header() == "loss,nan,inf,flag,s,np32,arr,lst,none,é,done,nest/a/b\r\n".encode()
    seen_from_ray = '1.0,nan,inf,True,"a,""b""\n",0.1,[0. 1. 2.],"[1, 2, 3]",,ü,False,0\r\n'
    assert table.encode([flat]) == seen_from_ray.encode()


def test_missing_keys_are_empty_and_order_follows_the_header():
    table = Table(["a", "b", "c"])
    assert table.encode([{"c": 3, "a": 1, "b": 2}, {"b": 5}]) == b"1,2,3\r\n,5,\r\n"


def test_one_column_is_a_table_too():
    table = Table(["a"])
    assert table.encode([{"a": 1}, {"a": 2}]) == b"1\r\n2\r\n"


def test_new_columns_are_found_once_in_order_of_appearance():
    table = Table(["a"])
    assert table.new_columns([{"a": 1}, {"z": 1, "a": 1}, {"b": 1}, {"z": 2}]) == ["z", "b"]


def test_records_end_where_quotes_are_closed():
    data = b'a,b\r\n1,"x\r\n""y"\r\n2,z\r\n3,"to'
    assert records_of(data) == [b"a,b\r\n", b'1,"x\r\n""y"\r\n', b"2,z\r\n", b'3,"to']
    assert fields_of(records_of(data)[1]) == ["1", 'x\r\n"y']


def test_a_wider_file_has_the_old_rows_with_empty_fields():
    data = b'a,b\r\n1,"x\ny"\r\n2,z\r\n'
    wide = widened(data, b"a,b,c,d\r\n", 2)
    assert list(csv.reader(io.StringIO(wide.decode(), newline=""))) == [
        ["a", "b", "c", "d"],
        ["1", "x\ny", "", ""],
        ["2", "z", "", ""],
    ]
