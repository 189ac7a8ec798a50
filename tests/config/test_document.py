from __future__ import annotations

import pytest

from muster.config.document import MAX_DEPTH, Document, dotted
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
        ("a: 1\na: 2\n", "f.yaml:1: a: appears twice; keep one"),
        ("a: [1\nb: 2\n", "f.yaml:2: is not valid YAML: "),
        ("? [1, 2]\n: 3\n", "f.yaml:1: a key must be text"),
        ("a: !!python/object:os.system {}\n", "f.yaml:1: a: has the tag tag:yaml.org,2002:python/"),
        ("a: &x [*x]\n", "f.yaml:1: a[0]"),
        ("--- 1\n--- 2\n", "f.yaml:2: is not valid YAML: expected a single document"),
    ],
)
def test_what_is_not_a_plain_document_is_refused_with_its_line(text, message):
    with pytest.raises(ConfigError) as caught:
        Document(text, "f.yaml")
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_a_small_file_with_many_aliases_is_refused_instead_of_filling_memory():
    levels = [f"l{n}: &l{n} [{', '.join([f'*l{n - 1}'] * 10)}]" for n in range(1, 12)]
    with pytest.raises(ConfigError, match="too many or too deeply nested"):
        Document("\n".join(["l0: &l0 [x]", *levels]), "f.yaml")


def test_deep_nesting_is_refused():
    with pytest.raises(ConfigError, match="too many or too deeply nested"):
        Document("[" * (MAX_DEPTH + 5) + "]" * (MAX_DEPTH + 5), "f.yaml")


def test_json_keeps_json_numbers_and_may_be_indented_with_tabs():
    document = Document('{\n\t"a": 1e5,\n\t"b": {"c": "x"}\n}', "f.json")
    assert document.data == {"a": 100000.0, "b": {"c": "x"}}
    assert document.line(("b", "c")) == 3


def test_a_yaml_file_that_pretends_to_be_json_is_refused():
    with pytest.raises(ConfigError, match=r"f\.json:1: is not valid JSON"):
        Document("a: 1\n", "f.json")


def test_a_file_that_is_missing_or_not_text_is_named(tmp_path):
    with pytest.raises(ConfigError, match=r"no\.yaml: cannot be read: No such file"):
        Document.load(tmp_path / "no.yaml")
    (tmp_path / "b.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match=r"b\.yaml: is not UTF-8 text"):
        Document.load(tmp_path / "b.yaml")
