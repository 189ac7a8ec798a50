"""Sweep files of W&B in the shapes that public repositories have, and what muster must make of each."""

from __future__ import annotations

from typing import NamedTuple


class SweepFile(NamedTuple):
    """A file, and whether it is read, or what its refusal names."""

    name: str
    text: str
    refused: str = ""
    remarks: tuple[str, ...] = ()  # words, each of them in one remark


def _sweep(body: str, method: str = "random", metric: str = "{name: loss, goal: minimize}") -> str:
    return f"program: train.py\nmethod: {method}\nmetric: {metric}\nparameters:\n{body}"


FILES = [
    SweepFile(
        "choices", _sweep("  lr: {values: [0.1, 0.01]}\n  batch: {values: [16, 32]}\n  epochs: {value: 5}\n")
    ),
    SweepFile("grid", _sweep("  lr: {values: [0.1, 0.01]}\n  seed: {min: 1, max: 3}\n", "grid")),
    SweepFile("bayes_ranges", _sweep("  lr: {min: 0.0001, max: 0.1}\n  layers: {min: 1, max: 5}\n", "bayes")),
    SweepFile(
        "log_values", _sweep("  lr: {distribution: log_uniform_values, min: 1e-5, max: 1e-1}\n", "bayes")
    ),
    SweepFile("log_exponents", _sweep("  lr: {distribution: log_uniform, min: -9.21, max: -2.3}\n")),
    SweepFile(
        "log_exponents_of_ten",
        _sweep("  lr: {distribution: log_uniform, min: -5, max: -1}\n"),
        remarks=("exponents of e",),
    ),
    SweepFile(
        "log_exponents_as_values",
        _sweep("  lr: {distribution: log_uniform, min: 1e-5, max: 1e-1}\n"),
        remarks=("exponents of e",),
    ),
    SweepFile("steps", _sweep("  units: {distribution: q_uniform, min: 16, max: 256, q: 16}\n")),
    SweepFile("fine_steps", _sweep("  dropout: {distribution: q_uniform, min: 0, max: 0.5, q: 0.1}\n")),
    SweepFile(
        "widened_steps",
        _sweep("  units: {distribution: q_uniform, min: 10, max: 100, q: 16}\n"),
        remarks=("0..112",),
    ),
    SweepFile(
        "log_steps", _sweep("  batch_size: {distribution: q_log_uniform_values, q: 8, min: 32, max: 256}\n")
    ),
    SweepFile(
        "log_steps_by_exponent",
        _sweep("  batch_size: {distribution: q_log_uniform, q: 1, min: 3.4657359, max: 5.5451775}\n"),
        remarks=("multiples of q = 1",),
    ),
    SweepFile(
        "normal",
        _sweep(
            "  noise: {distribution: normal, mu: 0, sigma: 0.1}\n"
            "  shift: {distribution: q_normal, mu: 10, sigma: 3, q: 0.5}\n"
        ),
    ),
    SweepFile(
        "booleans",
        _sweep("  amp: {values: [true, false]}\n  lr: {values: [1e-3, 3e-4]}\n  tag: {value: null}\n"),
    ),
    SweepFile(
        "hyperband_first",
        _sweep("  lr: {min: 0.0, max: 0.1}\n", "bayes")
        + "early_terminate: {type: hyperband, min_iter: 3, eta: 2}\n",
    ),
    SweepFile(
        "hyperband_last",
        _sweep("  lr: {min: 0.0, max: 0.1}\n")
        + "early_terminate: {type: hyperband, max_iter: 27, s: 2, eta: 3, strict: true}\n",
        remarks=("strict",),
    ),
    SweepFile(
        "hydra",
        "program: run.py\nproject: template\nentity: us\nmethod: bayes\n"
        "metric: {name: val/acc, goal: maximize}\nparameters:\n  model.lr: {min: 0.0001, max: 0.1}\n"
        "  datamodule.batch_size: {values: [32, 64]}\n"
        "command:\n  - ${interpreter}\n  - ${program}\n  - ${args_no_hyphens}\n  - logger=wandb\n",
        remarks=("project", "entity"),
    ),
    SweepFile(
        "flags",
        _sweep("  lr: {values: [0.1]}\n  bf16: {values: [true, false]}\n")
        + "command: ['${env}', python3, '${program}', --epochs, 3, '${args_no_boolean_flags}']\n",
    ),
    SweepFile(
        "spaces",
        _sweep("  lr: {values: [0.1, 0.2]}\n  name: {value: a b}\n")
        + "command: ['${env}', '${interpreter}', -m, pkg.train, '${args_no_equals}']\n",
    ),
    SweepFile(
        "json",
        _sweep("  lr: {values: [0.1, 0.2]}\n  amp: {value: true}\n")
        + "command: ['${interpreter}', '${program}', --config, '${args_json}']\n",
    ),
    SweepFile(
        "torchrun",
        _sweep("  learning_rate: {distribution: log_uniform_values, min: 1.0e-6, max: 1.0e-4}\n", "bayes")
        + "run_cap: 12\nname: fine-tuning\ndescription: ranks\n"
        "command: [torchrun, --nproc_per_node=2, '${program}', '${args}']\n",
        remarks=("ignored name",),
    ),
    SweepFile(
        "nested",
        _sweep(
            "  epochs: {value: 2}\n  optimizer:\n    parameters:\n      lr: {values: [0.1, 0.2]}\n"
            "      kind: {value: sgd}\n"
        ),
    ),
    SweepFile(
        "weighted", _sweep("  opt: {values: [a, b], probabilities: [0.9, 0.1]}\n"), refused="probabilities"
    ),
    SweepFile("beta", _sweep("  x: {distribution: beta, a: 2, b: 5}\n"), refused="beta"),
    SweepFile(
        "launch",
        "method: random\njob: us/project/job:latest\nmetric: {name: loss}\nparameters: {lr: {value: 1}}\n",
        refused="job",
    ),
    SweepFile("custom", _sweep("  lr: {values: [1, 2]}\n", "custom"), refused="method custom"),
    SweepFile(
        "inverse",
        _sweep("  gamma: {distribution: inv_log_uniform_values, min: 0.9, max: 0.999}\n"),
        refused="inv_log",
    ),
    SweepFile("typo", _sweep("  lr: {vlaues: [1, 2]}\n"), refused="lr"),
    SweepFile("grid_of_floats", _sweep("  lr: {min: 0.0, max: 1.0}\n", "grid"), refused="method grid"),
]
