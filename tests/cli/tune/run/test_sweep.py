"""Sweep files of W&B: each is read or refused by name, and its parameters become the domains they mean."""

from __future__ import annotations

import json
import math

import pytest
import yaml
from tests.cli.tune.run.sweep_files import FILES

from muster import tune
from muster.cli.tune.run.sweep import FOREVER, read_sweep
from muster.errors import ConfigError
from muster.trials.template import TrialTemplate
from muster.tune.search import BasicVariantGenerator
from muster.tune.search.conditions import build_space


def read(text, tmp_path):
    file = tmp_path / "sweep.yaml"
    file.write_text(text)
    return read_sweep(file)


def file_named(name, tmp_path):
    return read(next(each.text for each in FILES if each.name == name), tmp_path)


@pytest.mark.parametrize("file", FILES, ids=lambda each: each.name)
def test_a_file_is_read_or_refused_by_name(file, tmp_path):
    if file.refused:
        with pytest.raises(ConfigError) as caught:
            read(file.text, tmp_path)
        assert file.refused in str(caught.value)
        return
    sweep = read(file.text, tmp_path)
    assert [[word in remark for remark in sweep.remarks].count(True) for word in file.remarks] == [1] * len(
        file.remarks
    )
    assert len(sweep.remarks) == len(file.remarks)
    assert build_space(sweep.entries)


def wandb_arguments(config):
    """What the agent of W&B makes of a run's values, by the names of its macros."""
    flags = [f"{key}={value}" for key, value in sorted(config.items())]
    plain = [
        flag for (_, value), flag in zip(sorted(config.items()), flags, strict=True) if value is not False
    ]
    named = [f"--{flag.removesuffix('=True')}" for flag in plain]
    return {
        "${env}": ["/usr/bin/env"],
        "${interpreter}": ["python"],
        "${args}": [f"--{flag}" for flag in flags],
        "${args_no_hyphens}": flags,
        "${args_no_boolean_flags}": named,
        "${args_no_equals}": [
            word for key, value in sorted(config.items()) for word in (f"--{key}", str(value))
        ],
        "${args_json}": [json.dumps(dict(sorted(config.items())))],
    }


@pytest.mark.parametrize("file", [each for each in FILES if not each.refused], ids=lambda each: each.name)
def test_a_trial_gets_the_words_that_w_and_b_would_pass(file, tmp_path):
    sweep, content = read(file.text, tmp_path), yaml.safe_load(file.text)
    space = build_space(sweep.entries)
    search = BasicVariantGenerator(random_state=1)
    search.add_configurations(TrialTemplate(trainable_name="train", param_space=space, num_samples=4))
    given = content.get("command", ["${env}", "${interpreter}", "${program}", "${args}"])
    for _ in range(4):
        config = search.next_trial().config
        macros = {"${program}": [content["program"]], **wandb_arguments(config)}
        expected = [word for each in given for word in macros.get(each, [str(each)])]
        assert tune.command(sweep.command).words(config, {}) == expected


def domain(text, tmp_path, method="random"):
    parameters = yaml.safe_load(text)
    sweep = read(
        yaml.safe_dump({"program": "t.py", "method": method, "parameters": {"x": parameters}}), tmp_path
    )
    return sweep.entries[0].domain


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{value: 3}", 3),
        ("{value: null}", None),
        ("{values: [a, 1]}", tune.choice(["a", 1])),
        ("{min: 1, max: 5}", tune.randint(1, 6)),
        ("{distribution: int_uniform, min: 1, max: 5}", tune.randint(1, 6)),
        ("{min: 0.0, max: 1}", tune.uniform(0.0, 1)),
        ("{distribution: uniform, min: 1, max: 5}", tune.uniform(1, 5)),
        ("{distribution: log_uniform, min: 0, max: 2}", tune.loguniform(1.0, math.exp(2))),
        ("{distribution: log_uniform_values, min: 1e-5, max: 0.1}", tune.loguniform(1e-5, 0.1)),
        ("{distribution: q_uniform, min: 0.0, max: 1.0, q: 0.25}", tune.quniform(0.0, 1.0, 0.25)),
        ("{distribution: q_uniform, min: 8, max: 64, q: 8}", tune.qrandint(8, 64, 8)),
        ("{distribution: q_uniform, min: 1, max: 4}", tune.randint(1, 5)),
        ("{distribution: q_uniform, min: 0.1, max: 0.9, q: 0.25}", tune.quniform(0.0, 1.0, 0.25)),
        ("{distribution: q_log_uniform_values, min: 8, max: 64, q: 8}", tune.qlograndint(8, 64, 8)),
        ("{distribution: q_log_uniform_values, min: 1, max: 64, q: 8}", tune.qlograndint(8, 64, 8)),
        ("{distribution: q_log_uniform_values, min: 0.5, max: 2, q: 0.5}", tune.qloguniform(0.5, 2.0, 0.5)),
        ("{distribution: normal}", tune.randn(0, 1)),
        ("{distribution: normal, mu: 1, sigma: 2}", tune.randn(1, 2)),
        ("{distribution: q_normal, mu: 1, sigma: 2, q: 0.5}", tune.qrandn(1, 2, 0.5)),
    ],
)
def test_a_parameter_becomes_its_domain(text, expected, tmp_path):
    assert repr(domain(text, tmp_path)) == repr(expected)


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("{values: [a, b]}", ["a", "b"]),
        ("{min: 1, max: 3}", [1, 2, 3]),
        ("{distribution: q_uniform, min: 0.0, max: 1.0, q: 0.5}", [0.0, 0.5, 1.0]),
        ("{distribution: q_uniform, min: 8, max: 24, q: 8}", [8, 16, 24]),
    ],
)
def test_method_grid_tries_every_value(text, values, tmp_path):
    assert domain(text, tmp_path, "grid") == {"grid_search": values}


def test_the_whole_file_becomes_options(tmp_path):
    first, last = file_named("hyperband_first", tmp_path), file_named("hyperband_last", tmp_path)
    assert (first.goals, first.search) == ({"loss": "min"}, "auto")
    assert first.command == ("${env}", "${interpreter}", "train.py", "${args}")
    asha = {"reduction_factor": 2, "grace_period": 3, "max_t": FOREVER, "stop_last_trials": False}
    assert first.scheduler == ("asha", asha)
    assert last.scheduler == ("asha", {**asha, "reduction_factor": 3, "max_t": 27})
    capped = file_named("torchrun", tmp_path)
    assert (capped.samples, [*capped.goals.values()]) == (12, ["min"])
    assert capped.command == ("torchrun", "--nproc_per_node=2", "train.py", "${args}")
    assert [*file_named("hydra", tmp_path).goals.values()] == ["max"]


@pytest.mark.parametrize(
    "text",
    [
        "program: t.py\nmethod: random\n",
        "program: t.py\nmethod: random\nparamaters: {lr: {value: 1}}\n",
        "program: t.py\nmethod: random\nparameters: {lr: 0.1}\n",
        "program: t.py\nmethod: random\nparameters: {lr: {values: 1}}\n",
        "program: t.py\nmethod: random\nparameters: {lr: {min: 1}}\n",
        "program: t.py\nmethod: random\nparameters: {lr: {min: 2, max: 1}}\n",
        "program: t.py\nmethod: random\nparameters: {lr: {min: a, max: 1}}\n",
        "program: t.py\nmethod: random\nparameters: {lr: {distribution: unifrom, min: 0, max: 1}}\n",
        "program: t.py\nmethod: random\nparameters: {lr: {distribution: q_uniform, min: 0, max: 1, q: 0}}\n",
        "program: t.py\nparameters: {lr: {distribution: log_uniform_values, min: 0, max: 1.0}}\n",
        "program: t.py\nmethod: random\nrun_cap: 0\nparameters: {lr: {value: 1}}\n",
        "program: t.py\nmethod: random\nmetric: loss\nparameters: {lr: {value: 1}}\n",
        "program: t.py\nmethod: random\nmetric: {name: loss, goal: min}\nparameters: {lr: {value: 1}}\n",
        "program: t.py\nmethod: random\nearly_terminate: {type: envelope}\nparameters: {lr: {value: 1}}\n",
        "program: t.py\nmethod: random\nearly_terminate: {type: hyperband}\nparameters: {lr: {value: 1}}\n",
        "method: random\ncommand: ['${program}']\nparameters: {lr: {value: 1}}\n",
        "method: random\ncommand: python t.py\nparameters: {lr: {value: 1}}\n",
    ],
)
def test_a_file_that_w_and_b_would_refuse_too(text, tmp_path):
    with pytest.raises(ConfigError):
        read(text, tmp_path)
