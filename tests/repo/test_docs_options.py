"""The pages name every option of the commands, and no option that a command does not have."""

from __future__ import annotations

import re

import click
import pytest
from tools import check_docs

from muster.cli.main import cli

PAGES = {
    "plan": "docs/plan.md",
    "sim": "docs/simulator.md",
    "sim tune": "docs/sim-tune.md",
    **dict.fromkeys(
        (
            *("up", "down", "exec", "submit", "attach", "rsync-up", "rsync-down", "logs"),
            *("get-head-ip", "get-worker-ips", "kill-random-node"),
        ),
        "docs/on-premise.md",
    ),
    "status": "docs/laptop-cluster.md",
    "why": "docs/laptop-cluster.md",
    "backtest": "docs/backtest.md",
    "estimate": "docs/estimates.md",
    "gc": "docs/node-setup.md",
    "monitor": "docs/monitor.md",
    "kuberay-autoscaler": "docs/kubernetes.md",
    "dashboard": "docs/dashboard.md",
    "provider": "docs/providers.md",
    "tune": "docs/tune-cli.md",
    "compat": "docs/compat.md",
    "report": "docs/commands.md",
    "as-ray": "docs/compat.md",
}
QUOTED = re.compile(r"'[^']*'")
COMMAND = re.compile(r"(?:^|`|\$ )muster ([a-z][^`\n]*)", re.MULTILINE)


def commands(command=cli, path="", *, groups=False):
    """Yield the words of every visible command, and the command; with `groups`, also those of groups."""
    if groups or not isinstance(command, click.Group):
        yield path.strip(), command
    if not isinstance(command, click.Group):
        return
    context = click.Context(command)
    for name in command.list_commands(context):
        inner = command.get_command(context, name)
        if not inner.hidden:
            yield from commands(inner, f"{path} {name}", groups=groups)


FOUND = dict(commands())


def options_of(command) -> list[str]:
    return [name for each in command.params if isinstance(each, click.Option) for name in each.opts]


def unknown_options(text: str) -> list[str]:
    """Return the options in shown calls of `muster` that the command does not have."""
    unknown = []
    for line in COMMAND.findall(text):
        call = re.split("#| -- | [|] ", QUOTED.sub("", line))[0]  # without words of other commands
        name = next((" ".join(call.split()[:n]) for n in (2, 1) if " ".join(call.split()[:n]) in FOUND), None)
        if name is not None:
            known = {*options_of(FOUND[name]), "--help", "-h"}
            shown = re.findall(r"(?<=\s)--?[a-z][\w-]*", call)
            unknown += [f"muster {name} {option}" for option in shown if option not in known]
    return unknown


@pytest.mark.parametrize(("name", "command"), list(commands(groups=True)), ids=str)
def test_every_help_has_examples_and_whole_summaries(name, command):
    text = command.get_help(click.Context(command, info_name=f"muster {name}"))
    summaries = text.partition("Options:")[2] if isinstance(command, click.Group) else ""
    assert "Examples:" in text
    assert [line for line in summaries.splitlines() if line.endswith("...")] == []


def test_a_file_and_the_name_of_a_cluster_have_different_options():
    options = [option for command in FOUND.values() for option in command.params]
    is_file = {
        name: {isinstance(each.type, click.Path) for each in options if name in each.opts}
        for name in ("--cluster", "--cluster-name", "--cluster-file")
    }
    assert is_file == {"--cluster": {False}, "--cluster-name": {False}, "--cluster-file": {True}}


@pytest.mark.parametrize("name", FOUND)
def test_the_page_of_a_command_names_its_options(root, name):
    page = PAGES.get(name) or PAGES[name.split()[0]]
    text = (root / page).read_text(encoding="utf-8")
    long = [option for option in options_of(FOUND[name]) if option.startswith("--")]
    assert [option for option in long if not re.search(rf"{option}(?![\w-])", text)] == []


@pytest.mark.parametrize("page", check_docs.pages(check_docs.ROOT), ids=lambda page: page.name)
def test_a_page_shows_no_option_that_does_not_exist(page):
    assert unknown_options(page.read_text(encoding="utf-8")) == []


def test_an_option_that_was_renamed_is_found():
    text = (
        "`muster plan FILE --demand X --goal cost`\nmuster tune ls --sort a --sorted # --x\n$ muster gone --x"
    )
    assert unknown_options(text) == ["muster plan --goal", "muster tune ls --sorted"]
