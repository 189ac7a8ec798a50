"""The grammar of `--space` and of space files, against the domains of Python."""

from __future__ import annotations

import pytest

from muster import tune
from muster.cli.tune.run.space import parse_file, parse_options
from muster.errors import ConfigError
from muster.tune.search.conditions import KeyCondition, build_space


def entry(text):
    return parse_options([text])[0]


def shown(domain):
    return repr(domain)


@pytest.mark.parametrize(
    ("spec", "domain"),
    [
        ("uniform:0:1", tune.uniform(0, 1)),
        ("uniform:-1.5:.5", tune.uniform(-1.5, 0.5)),
        ("quniform:0:1:0.1", tune.quniform(0, 1, 0.1)),
        ("loguniform:1e-5:1e-1", tune.loguniform(1e-5, 1e-1)),
        ("qloguniform:1:100:5", None),
        ("qloguniform:5:100:5", tune.qloguniform(5, 100, 5)),
        ("randn:0:2", tune.randn(0, 2)),
        ("qrandn:0:2:0.5", tune.qrandn(0, 2, 0.5)),
        ("randint:1:10", tune.randint(1, 10)),
        ("qrandint:0:64:8", tune.qrandint(0, 64, 8)),
        ("lograndint:1:1e3", tune.lograndint(1, 1000)),
        ("qlograndint:8:64:8", tune.qlograndint(8, 64, 8)),
        ("choice:a,b,c", tune.choice(["a", "b", "c"])),
        ("choice:1,2.5,1e-3,true,null,x y", tune.choice([1, 2.5, 1e-3, True, None, "x y"])),
        ("choice:[[16, 16],[32, 32]]", tune.choice([[16, 16], [32, 32]])),
        ("choice:[16,16],[32,32]", tune.choice([[16, 16], [32, 32]])),
        ("choice:{a: 1},{a: 2}", tune.choice([{"a": 1}, {"a": 2}])),
        ("choice:'1','a,b'", tune.choice(["1", "a,b"])),
        ("grid:1,2", tune.grid_search([1, 2])),
        ("10", 10),
        ("1e-3", 1e-3),
        ("resnet50", "resnet50"),
        ("cuda:0", "cuda:0"),
        ("uniform", "uniform"),
        ("http://host:80/x", "http://host:80/x"),
        ("[1, 1e-2]", [1, 1e-2]),
        ("true", True),
        ("what if it rains", "what if it rains"),
    ],
)
def test_a_spec_stands_for_a_domain_or_a_constant(spec, domain):
    if domain is None:
        with pytest.raises(ConfigError):
            entry(f"x={spec}")
    else:
        assert shown(entry(f"x={spec}").domain) == shown(domain)


@pytest.mark.parametrize(
    ("text", "key"),
    [("lr=1", ("lr",)), ("a.b=1", ("a", "b")), (r"a\.b=1", ("a.b",)), (r"a.b\.c.d=x=y", ("a", "b.c", "d"))],
)
def test_dots_nest_and_the_first_equals_sign_ends_the_key(text, key):
    assert entry(text).key == key


@pytest.mark.parametrize(
    ("spec", "condition"),
    [
        ("0.9 if optimizer==sgd", KeyCondition(("optimizer",), ["sgd"])),
        ("uniform:0:1 if optimizer == sgd", KeyCondition(("optimizer",), ["sgd"])),
        ("uniform:0:1 if model.depth != 2", KeyCondition(("model", "depth"), [2], is_negated=True)),
        ("choice:a,b if use==true", KeyCondition(("use",), [True])),
        ("0.9 if optimizer in [sgd, 'rms prop']", KeyCondition(("optimizer",), ["sgd", "rms prop"])),
    ],
)
def test_a_condition_names_a_key_and_its_values(spec, condition):
    assert entry(f"x={spec}").condition == condition


@pytest.mark.parametrize(
    "text",
    [
        "lr",
        "=uniform:0:1",
        "lr=",
        "a..b=1",
        "a/b=1",
        "lr=loguniforn:1e-5:1e-1",
        "lr=normal:0:1",
        "lr=uniform:0",
        "lr=uniform:0:one",
        "lr=uniform:1:0",
        "lr=loguniform:-4:-1",
        "lr=quniform:0:1:0.3",
        "n=randint:3:3",
        "n=randint:0.5:3",
        "x=choice:",
        "x=choice:[]",
        "x=grid:",
        "x=choice:a,*b",
        "x=[1, 2",
        "x=1 if y in 3",
        "x=randn:0:0",
    ],
)
def test_a_spec_that_means_nothing_is_refused(text):
    with pytest.raises(ConfigError) as caught:
        entry(text)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


FILE = """
lr: loguniform:1e-5:1e-1
width: {domain: randint, lower: 16, upper: 257}
noise: {domain: qrandn, mean: 0, sd: 1, q: 0.5}
optimizer: {choice: [sgd, adam]}
momentum: {domain: uniform, lower: 0.5, upper: 0.99, if: {optimizer: sgd}}
nesterov: choice:true,false if optimizer==sgd
beta: 0.9 if optimizer==adam
model:
  depth: {grid: [1, 2]}
  kind: "12"
  sizes: [1, 1e-3]
data.path: /tmp/x:y
"""


def test_a_space_file_has_specs_mappings_and_nested_keys(tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(FILE)
    entries = {each.key: each for each in parse_file(file)}
    assert {key: shown(each.domain) for key, each in entries.items()} == {
        ("lr",): shown(tune.loguniform(1e-5, 1e-1)),
        ("width",): shown(tune.randint(16, 257)),
        ("noise",): shown(tune.qrandn(0, 1, 0.5)),
        ("optimizer",): shown(tune.choice(["sgd", "adam"])),
        ("momentum",): shown(tune.uniform(0.5, 0.99)),
        ("nesterov",): shown(tune.choice([True, False])),
        ("beta",): "0.9",
        ("model", "depth"): shown(tune.grid_search([1, 2])),
        ("model", "kind"): "'12'",
        ("model", "sizes"): "[1, 0.001]",
        ("data", "path"): "'/tmp/x:y'",
    }
    conditions = {key: each.condition for key, each in entries.items() if each.condition}
    assert conditions == {
        ("momentum",): KeyCondition(("optimizer",), ["sgd"]),
        ("nesterov",): KeyCondition(("optimizer",), ["sgd"]),
        ("beta",): KeyCondition(("optimizer",), ["adam"]),
    }
    assert list(build_space(entries.values())) == ["lr", "width", "noise", "if optimizer", "model", "data"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "- lr",
        "lr: [",
        "1: 2",
        "lr: {domain: uniforn, lower: 0, upper: 1}",
        "lr: {domain: uniform, lower: 0}",
        "lr: {domain: uniform, lower: 0, uper: 1}",
        "lr: {domain: uniform, lower: zero, upper: 1}",
        "lr: {domain: uniform, lower: 1, upper: 0}",
        "x: {choice: 3}",
        "x: {choice: []}",
        "x: {choice: [3], if: optimizer}",
        "lr: uniform:0",
    ],
)
def test_a_space_file_that_means_nothing_is_refused(text, tmp_path):
    file = tmp_path / "space.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        parse_file(file)
    assert str(file) in str(caught.value)


def test_a_missing_space_file_is_refused(tmp_path):
    with pytest.raises(ConfigError):
        parse_file(tmp_path / "none.yaml")
