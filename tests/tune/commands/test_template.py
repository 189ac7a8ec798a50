"""What the placeholders of a command become."""

import pickle

import pytest

from muster import tune
from muster.errors import CommandError

CONFIG = {
    "lr": 1e-05,
    "layers": 3,
    "name": "a b",
    "nesterov": True,
    "bias": False,
    "none": None,
    "sizes": [16, 32],
    "opt": {"kind": "sgd", "momentum": 0.9},
}
PLACES = {
    "trial_id": "t1",
    "trial_dir": "/run/t1",
    "config": "/run/t1/config.json",
    "resume": "",
    "checkpoint": "/run/t1/ckpt",
    "env:HOME": "/var/me",
}


def filled(line, config=CONFIG, **given):
    return tune.command(line, **given).words(config, PLACES)


@pytest.mark.parametrize(
    ("word", "words"),
    [
        ("{lr}", ["1e-05"]),
        ("--lr={lr:.2f}", ["--lr=0.00"]),
        ("{layers}{layers:03d}", ["3003"]),
        ("x-{name}", ["x-a b"]),
        ("{nesterov}", ["True"]),
        ("{nesterov:01}", ["1"]),
        ("{bias:01}", ["0"]),
        ("{none}", ["None"]),
        ("{sizes}", ["[16, 32]"]),
        ("{sizes:json}", ["[16, 32]"]),
        ("{sizes:csv}", ["16,32"]),
        ("{sizes:words}", ["16", "32"]),
        ("{opt.momentum}", ["0.9"]),
        ("{opt/kind}", ["sgd"]),
        ("{opt}", ['{"kind": "sgd", "momentum": 0.9}']),
        ("{lr:--lr}", ["--lr", "1e-05"]),
        ("{nesterov:--nesterov}", ["--nesterov"]),
        ("{bias:--bias}", []),
        ("{none:--none}", []),
        ("{absent:--absent}", []),
        ("{nesterov:--[no-]nesterov}", ["--nesterov"]),
        ("{bias:--[no-]bias}", ["--no-bias"]),
        ("{absent:--[no-]bias}", []),
        ("{trial_id}/{trial_dir}", ["t1//run/t1"]),
        ("{resume}", [""]),
        ("{resume:--resume}", []),
        ("{checkpoint}", ["/run/t1/ckpt"]),
        ("{{lr}}", ["{lr}"]),
        ('{"a": {"b": [1, {}]}}', ['{"a": {"b": [1, {}]}}']),
        ('{"lr": {lr}}', ['{"lr": 1e-05}']),
        ('{{"a": {"lr": {lr}}}}', ['{"a": {"lr": 1e-05}}']),
        ("${envvar:HOME}/x", ["/var/me/x"]),
        ("${args_json_file}", ["/run/t1/config.json"]),
        ("${env}", ["/usr/bin/env"]),
        ("${interpreter}", ["python"]),
    ],
)
def test_a_placeholder_becomes(word, words):
    assert filled(["prog", word]) == ["prog", *words]


SMALL = {"a": 1, "b": {"c": True}, "d": False}


@pytest.mark.parametrize(
    ("style", "words"),
    [
        ("equals", ["--a=1", "--b.c=True", "--d=False"]),
        ("space", ["--a", "1", "--b.c", "True", "--d", "False"]),
        ("hydra", ["a=1", "b.c=True", "d=False"]),
        ("hydra+", ["+a=1", "+b.c=True", "+d=False"]),
        ("hydra++", ["++a=1", "++b.c=True", "++d=False"]),
        ("json", ['{"a": 1, "b": {"c": true}, "d": false}']),
        ("flags", ["--a", "1", "--b.c"]),
    ],
)
def test_args_has_every_key_in_its_style(style, words):
    assert filled("prog {args}", SMALL, args=style) == ["prog", *words]


def test_args_leaves_out_what_the_command_names():
    assert filled("prog {args} {b} {a:--a}", SMALL)[1] == "--d=False"


@pytest.mark.parametrize(
    ("macro", "words"),
    [
        ("args", ["--a=1", "--b={'c': True}", "--d=False"]),
        ("args_no_hyphens", ["a=1", "b={'c': True}", "d=False"]),
        ("args_no_equals", ["--a", "1", "--b", "{'c': True}", "--d", "False"]),
        ("args_no_boolean_flags", ["--a=1", "--b={'c': True}"]),
        ("args_json", ['{"a": 1, "b": {"c": true}, "d": false}']),
        ("args_append_hydra", ["+a=1", "+b={'c': True}", "+d=False"]),
        ("args_override_hydra", ["++a=1", "++b={'c': True}", "++d=False"]),
    ],
)
def test_macros_of_weights_and_biases(macro, words):
    assert filled(f"prog ${{{macro}}}", SMALL) == ["prog", *words]


def test_a_value_never_makes_a_second_word_and_no_shell_sees_it():
    assert filled("prog --name {name}; rm", {"name": "x y; $(rm)"}) == ["prog", "--name", "x y; $(rm);", "rm"]


def test_a_shell_gets_quoted_values_and_its_own_variables():
    words = filled("echo $HOME ${HOME} {name} {args} | wc", {"name": "$(a) b", "x": "'"}, shell=True)
    assert words == ["/bin/sh", "-c", """echo $HOME ${HOME} '$(a) b' '--x='"'"'' | wc"""]


def test_numbers_and_arrays_of_numpy_are_plain_values():
    numpy = pytest.importorskip("numpy")
    config = {"x": numpy.float64(0.5), "n": numpy.int64(3), "v": numpy.arange(2)}
    assert filled("prog {x} {n} {v}", config) == ["prog", "0.5", "3", "[0, 1]"]


def test_variables_get_placeholders_and_every_key():
    command = tune.command("prog", env={"OUT": "{trial_dir}/x"}, env_args="HP_")
    assert command.variables(SMALL, PLACES) == {
        "OUT": "/run/t1/x",
        "HP_a": "1",
        "HP_b_c": "True",
        "HP_d": "False",
    }


@pytest.mark.parametrize(
    ("line", "config"),
    [("p {x}", {}), ("p {x}", {"x": object()}), ("p {x:.2f}", {"x": "a"}), ("p ${envvar:NO_SUCH}", {})],
)
def test_a_value_that_cannot_be_filled_in_is_an_error(line, config):
    with pytest.raises(CommandError):
        filled(line, config)


def test_a_command_can_be_pickled_and_is_named_after_its_script():
    command = tune.command("python src/train-model.py --lr {lr}", report=["auto", "csv:{trial_dir}/m.csv"])
    assert pickle.loads(pickle.dumps(command)) == command
    assert command.__name__ == "train_model"
