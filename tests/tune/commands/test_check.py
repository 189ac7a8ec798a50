"""What is refused before the first trial."""

import contextlib

import pytest

from muster import tune
from muster.errors import CommandError
from muster.slurm.wire import SlurmMissing
from muster.tune.commands.check import SpaceKeys, check_command, space_keys

SPACE = {
    "lr": tune.loguniform(1e-5, 1e-1),
    "batch_size": tune.choice([16, 32]),
    "epochs": 10,
    "opt": {"momentum": tune.uniform(0, 1)},
}


def check(line, space=SPACE, find_program=lambda name: name, **given):
    check_command(tune.command(line, **given), space_keys(space), find_program)


@pytest.mark.parametrize(
    ("line", "given"),
    [
        ("prog {lr} {batch_size} {opt.momentum}", {}),
        ("prog {lr} {args}", {}),
        ("prog {config}", {}),
        ("prog ${args}", {}),
        ("prog", {"env_args": ""}),
        ("prog {opt} {lr:.3g} {batch_size:04d}", {}),
        ("prog {lr}-{batch_size} {opt/momentum:--m}", {}),
        ("prog --out {trial_dir} {config.yaml} {port} {resume:--r}", {}),
        ("prog $HOME {lr} | tee x {args}", {"shell": True}),
        ("prog", {"env": {"X": "{lr} {batch_size} {opt.momentum}"}}),
    ],
)
def test_a_command_that_gets_every_key_passes(line, given):
    check(line, **given)


@pytest.mark.parametrize(
    ("line", "given", "fix"),
    [
        ("prog {args} {batch}", {}, "batch_size"),
        ("prog {args} {trialdir}", {}, "trial_dir"),
        ("prog {args} ${HOME}", {}, "envvar"),
        ("prog {args} ${arg}", {}, "args"),
        ("prog {args} ${program}", {}, "program"),
        ("prog {lr}", {}, "{batch_size}"),
        ("prog {args} --x={lr:--lr}", {}, "spaces"),
        ("prog {args}{lr}", {}, "spaces"),
        ("prog {args} {lr:nonsense}", {}, ".4g"),
        ("prog '{lr}' {args}", {"shell": True}, "quotes"),
        ("prog {args}", {"cwd": None, "find_program": lambda name: None}, "name"),
        ("./prog {args}", {"find_program": lambda name: None}, "name"),
        ("python no_such_script.py {args}", {}, "cwd"),
    ],
)
def test_a_command_that_would_fail_in_every_trial_is_refused(line, given, fix):
    with pytest.raises(CommandError) as caught:
        check(line, **given)
    assert fix in caught.value.fix


@pytest.mark.parametrize(
    ("script", "is_refused"),
    [
        (b"echo {}\n", True),
        (b"", True),
        (b"#!/bin/sh\r\necho {}\r\n", True),
        (b"#!/no/such/interpreter -x\n", True),
        (b"#! /bin/sh -e\necho {}\n", False),
        (b"\x7fELF\x02\x01\x01\0\0", False),
    ],
)
def test_a_script_that_only_a_shell_could_start_is_refused(tmp_path, script, is_refused):
    (tmp_path / "run").write_bytes(script)
    refusal = pytest.raises(CommandError) if is_refused else contextlib.nullcontext()
    with refusal:
        check(f"{tmp_path}/run {{args}}")


@pytest.mark.parametrize(
    "given",
    [
        {"command": ""},
        {"command": []},
        {"command": "prog 'open"},
        {"command": ["prog", 3]},
        {"command": ["prog"], "shell": True},
        {"command": "prog", "args": "equal"},
        {"command": "prog", "report": "jsonlines:x"},
        {"command": "prog", "report": "csv"},
        {"command": "prog", "report": "auto:x"},
        {"command": "prog", "report": "regex:(?P<loss"},
        {"command": "prog", "report": "regex:loss"},
        {"command": "prog", "stop_signal": "TERM"},
        {"command": "prog", "grace_s": -1},
        {"command": "prog", "log_limit": "big"},
    ],
)
def test_settings_that_cannot_be_used_are_refused(given):
    with pytest.raises(CommandError) as caught:
        tune.command(**given)
    assert caught.value.fix


def test_a_key_of_some_trials_is_used_as_a_flag_or_through_args():
    space = {"opt": tune.choice([{"kind": "sgd", "momentum": tune.uniform(0, 1)}, {"kind": "adam"}])}
    assert space_keys(space) == SpaceKeys(
        ("opt", "opt.kind", "opt.momentum"), frozenset({"opt.momentum"}), ("opt", "opt.kind", "opt.momentum")
    )
    check("prog {opt.kind} {opt.momentum:--momentum}", space)
    check("prog {args}", space)
    with pytest.raises(CommandError):
        check("prog {opt.kind} {opt.momentum}", space)


def test_a_key_with_the_name_of_a_placeholder_is_refused_where_it_is_used():
    check("prog {args}", {"port": tune.randint(1, 9)})
    with pytest.raises(CommandError):
        check("prog {port}", {"port": tune.randint(1, 9)})


def test_without_known_keys_only_the_rest_is_checked():
    check("prog {anything}", {})


@pytest.mark.parametrize("engine", ["slurm", tune.SlurmConfig(setup=["module load R"])])
def test_a_program_that_only_compute_nodes_have_is_not_refused(engine, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    run = tune.RunConfig(storage_path=str(tmp_path), engine=engine, verbose=0)
    with pytest.raises(SlurmMissing):  # the next thing that is looked for
        tune.Tuner(tune.command("Rscript {args}"), param_space=SPACE, run_config=run).fit()
    with pytest.raises(CommandError):
        tune.Tuner(tune.command("sh none.sh {args}"), param_space=SPACE, run_config=run).fit()
