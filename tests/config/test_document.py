from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.mistakes.views import assert_line

from muster.config.document import MAX_DEPTH, MAX_VALUES, Document, dotted
from muster.errors import ConfigError


def test_every_key_knows_its_line():
    document = Document("a: 1\nb:\n  c: [x,\n      y]\n", "f.yaml")
    assert document.data == {"a": 1, "b": {"c": ["x", "y"]}}
    assert [document.line(path) for path in (("a",), ("b", "c"), ("b", "c", 1), ("b", "gone"))] == [
        1,
        3,
        4,
        2,
    ]


def test_paths_are_written_the_way_users_read_them():
    assert dotted(("demands", 0, "resources", "CPU")) == "demands[0].resources.CPU"
    assert dotted(("labels", "two\nlines", "")) == r"labels.'two\nlines'.''"


def test_a_merged_mapping_keeps_its_own_keys_and_gains_the_others():
    document = Document("base: &b {x: 1, y: 2}\nmine:\n  <<: *b\n  y: 3\n", "f.yaml")
    assert document.data["mine"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: 1\nb: 3\na: 2\n", "f.yaml:3: a: is on line 1 already; Ray takes the last, line 3: keep one"),
        ("a: [1\nb: 2\n", "f.yaml:2: is not valid YAML: "),
        ("? [1, 2]\n: 3\n", "f.yaml:1: has a key that is a list or a mapping; a key must be text"),
        ("a: !!timestamp x\n", "f.yaml:1: a: x is not of type timestamp; correct it or put it in quotes"),
        ("a:\n  b: !!bool maybe\n", "f.yaml:2: a.b: maybe is not of type bool; "),
        ("a: !!int ''\n", "f.yaml:1: a: '' is not of type int; "),
        ("a: 2001-99-99\n", "f.yaml:1: a: 2001-99-99 is not of type timestamp; "),
        ("a: <<\n", "f.yaml:1: a: has the tag merge; remove it, and put text in quotes"),
        ("a: *y\n", "f.yaml:1: a: *y has no complete &y above it; define it first"),
        ("a: &x {<<: *x}\n", "f.yaml:1: a.<<: *x has no complete &x above it; define it first"),
        (
            "a: \n  <<: 1\n",
            "f.yaml:2: a.<<: must stand for a mapping or a list of mappings, such as *defaults",
        ),
        ("a: 1\nb: \0\n", "f.yaml:2: is not valid YAML: unacceptable character"),
        ("a: !!python/object:os.system {}\n", "f.yaml:1: a: has the tag tag:yaml.org,2002:python/"),
        ("a: &x [*x]\n", "f.yaml:1: a[0]"),
        (
            "--- 1\n--- 2\n",
            "f.yaml:2: is not valid YAML: expected a single document; keep one",
        ),
        (f"{'k' * 200}: !x 1\n", f"f.yaml:1: {'k' * 77}...: has the tag !x; "),
    ],
)
def test_what_is_not_a_plain_document_is_refused_with_its_line(text, message):
    with pytest.raises(ConfigError) as caught:
        Document(text, "f.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_the_first_of_several_merged_mappings_wins_and_own_keys_win_over_all():
    text = "a: &a {x: 1, y: 1, z: 1}\nb: &b {y: 2, w: 2}\nc:\n  z: 3\n  <<: [*a, *b]\n"
    document = Document(text, "f.yaml")
    assert document.data["c"] == yaml.safe_load(text)["c"] == {"x": 1, "y": 1, "z": 3, "w": 2}
    assert [document.line(("c", key)) for key in "xyzw"] == [1, 1, 4, 2]


def test_the_lines_of_a_shared_mapping_are_found_through_an_alias():
    document = Document("a: &a\n  b: [1,\n    2]\nc: *a\n", "f.yaml")
    assert [document.line(path) for path in (("c",), ("c", "b"), ("c", "b", 1))] == [4, 2, 3]


LEVELS = range(1, 40)
HUGE = {
    "aliases": ["l0: &l0 [x]", *(f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in LEVELS)],
    "merges": ["l0: &l0 {k: 1}", *(f"l{n}: &l{n} {{<<: [{f'*l{n - 1},' * 9}], k{n}: 1}}" for n in LEVELS)],
    "one merge, often": [f"a: &a {{{','.join(f'k{n}: 1' for n in range(9000))}}}", "b:", "  <<: *a\n" * 9000],
    "values": ["- x"] * (MAX_VALUES + 1),
}


@pytest.mark.parametrize("name", HUGE)
def test_a_file_that_stands_for_too_many_values_is_refused_at_once(name):
    began = time.process_time()
    with pytest.raises(ConfigError, match=f"{MAX_VALUES:,}") as refused:
        Document("\n".join(HUGE[name]), "f.yaml")
    assert time.process_time() - began < 2
    assert (refused.value.file, refused.value.line is None) == ("f.yaml", False)


def test_thirty_thousand_keys_in_one_mapping_take_less_than_a_second():
    began = time.process_time()
    document = Document("\n".join(f"k{n}: {n}" for n in range(30_000)), "f.yaml")
    assert time.process_time() - began < 1
    assert (len(document.data), document.line(("k29999",))) == (30_000, 30_000)


def test_numbers_chosen_to_collide_as_keys_are_refused():
    began = time.process_time()
    with pytest.raises(ConfigError) as refused:
        Document("\n".join(f"{n * (2**61 - 1)}: 1" for n in range(30_000)), "f.yaml")
    assert time.process_time() - began < 1
    assert_line("config", "key that is not a string", str(refused.value))


@pytest.mark.parametrize("name", ["f.yaml", "f.json"])
def test_deep_nesting_is_refused(name):
    assert Document("[" * MAX_DEPTH + "]" * MAX_DEPTH, name).data
    with pytest.raises(ConfigError, match="100"):
        Document("[" * (MAX_DEPTH + 5) + "]" * (MAX_DEPTH + 5), name)


@pytest.mark.parametrize("name", ["f.yaml", "f.json"])
@pytest.mark.parametrize("unit", ["[", '{"a":'])
def test_a_hundred_thousand_open_brackets_do_not_end_the_process(name, unit):
    code = f"""
from muster.config.document import Document
from muster.errors import ConfigError
try:
    Document({unit!r} * 100_000, {name!r})
except ConfigError as problem:
    print(problem)
"""
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout.count("\n")) == (0, 1), run.stderr
    where, _, text = run.stdout.rstrip().rpartition(": ")
    assert where.startswith(f"{name}:1: ")
    assert_line("config", "nested too deep", text)


def test_an_endless_file_is_not_read_to_its_end():
    with pytest.raises(ConfigError, match="/dev/zero"):
        Document.load(Path("/dev/zero"))


SCALARS = st.one_of(
    st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=9), st.dates()
)
KEYS = st.text(max_size=3) | st.integers(0, 9)
TREES = st.recursive(SCALARS, lambda kids: st.lists(kids) | st.dictionaries(KEYS, kids), max_leaves=12)


@pytest.mark.slow
@settings(max_examples=300, deadline=None, derandomize=True)
@given(TREES, st.booleans())
def test_any_tree_that_yaml_writes_is_read_as_yaml_reads_it(tree, in_one_line):
    text = yaml.safe_dump(tree, default_flow_style=in_one_line, allow_unicode=True)
    assert Document(text, "f.yaml").data == yaml.safe_load(text)


def test_json_keeps_json_numbers_and_may_be_indented_with_tabs():
    document = Document('{\n\t"a": 1e5,\n\t"b": {"c": "x"}\n}', "f.json")
    assert document.data == {"a": 100000.0, "b": {"c": "x"}}
    assert document.line(("b", "c")) == 3


def test_json_may_have_characters_that_only_json_escapes():
    document = Document(json.dumps({"a": {"name": "\U0001f600"}}), "f.json")
    assert document.data == {"a": {"name": "\U0001f600"}}
    with pytest.raises(ConfigError, match="JSON"):
        Document('{"a": "\\ud800"}', "f.json")


def test_a_key_that_stands_twice_in_json_is_refused_with_both_lines():
    with pytest.raises(ConfigError) as refused:
        Document('{"a": 1,\n"a": 2}', "f.json")
    assert_line("config", "key twice in JSON", str(refused.value))


def test_a_yaml_file_that_pretends_to_be_json_is_refused():
    with pytest.raises(ConfigError, match="JSON"):
        Document("a: 1\n", "f.json")


def test_a_file_that_is_missing_or_not_text_is_named(tmp_path):
    with pytest.raises(ConfigError, match=os.strerror(errno.ENOENT)) as missing:
        Document.load(tmp_path / "no.yaml")
    assert missing.value.file == str(tmp_path / "no.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="UTF-8"):
        Document.load(tmp_path / "b.yaml")
