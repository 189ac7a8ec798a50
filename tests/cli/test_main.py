from __future__ import annotations

import errno
import os
import subprocess
import sys

import click
from click.testing import CliRunner

from muster import __version__
from muster.cli import main


def test_help_names_every_command_and_imports_none_of_them():
    code = (
        "import sys\n"
        "from muster.cli.main import cli\n"
        "cli(['--help'], standalone_mode=False)\n"
        "heavy = {'muster.cli.plan.command', 'muster.cli.sim.command', 'numpy', 'rich', 'yaml'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    lines = run.stdout.splitlines()
    assert lines[-1] == "[]"
    named = [line.split()[0] for line in lines[lines.index("Tune:") :] if line.startswith("  ")]
    assert [name for name in named if name in main.COMMANDS] == list(main.COMMANDS)


def test_the_version_is_told(muster):
    assert muster("--version").output == f"muster {__version__}\n"


def test_an_unknown_command_is_bad_input(muster):
    result = muster("paln")
    said = "error: cli: no such command 'paln'. Did you mean 'plan'?\n"  # click's runner has no program name
    assert (result.exit_code, result.output) == (2, said)


def test_our_errors_become_one_line_without_a_traceback(muster):
    result = muster("plan", "no.yaml", "--demand", "none.yaml")
    assert result.exit_code == 2
    assert result.output.startswith("error: no.yaml: ")
    assert (result.output.count("\n"), os.strerror(errno.ENOENT) in result.output) == (1, True)


def test_every_command_named_can_be_loaded():
    group = main.cli
    context = click.Context(group)
    assert all(isinstance(group.get_command(context, name), click.Command) for name in main.COMMANDS)


def test_commands_are_listed_in_five_groups():
    lines = CliRunner().invoke(main.cli, ["--help"]).output.splitlines()
    titles = [line[:-1] for line in lines if line.endswith(":") and not line.startswith(" ")]
    assert titles == ["Options", *main.GROUPS]


def test_earlier_names_run_the_same_command_and_are_not_listed():
    context = click.Context(main.cli)
    for alias, name in main.ALIASES.items():
        assert main.cli.get_command(context, alias) is main.cli.get_command(context, name)
        assert alias not in main.cli.list_commands(context)


def test_a_mistyped_command_is_answered_with_the_nearest():
    said = CliRunner().invoke(main.cli, ["tunee"]).output
    assert (" 'tunee'" in said, " 'tune'?" in said) == (True, True)


def test_python_m_muster_is_the_same_command():
    done = subprocess.run(
        [sys.executable, "-m", "muster", "--version"], capture_output=True, text=True, check=True
    )
    assert done.stdout == f"muster {__version__}\n"


def test_on_windows_the_import_says_where_it_runs():
    code = "import sys; sys.platform = 'win32'; import muster"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stderr.splitlines()[-1].endswith(" WSL2")
