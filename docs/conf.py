"""Configures the documentation site: `make docs` builds it into build/docs/html.

The source folder is the root of the repository, so that a link between two pages leads to the same place on
the site, in an editor and on a page that shows the repository.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click

import muster
from muster.cli.main import cli

ROOT = Path(__file__).resolve().parent.parent
# Pictures that tools/pictures.py has just made; without them the site shows those of the repository.
NEW_PICTURES = ROOT / "build" / "docs" / "pictures"

project = "muster"
author = "the authors of muster"
project_copyright = "the authors of muster"
release = muster.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.autosummary", "sphinx.ext.napoleon"]
root_doc = "docs/index"
source_suffix = {".md": "markdown"}
include_patterns = ["*.md", "docs/*.md", "docs/*/*.md", "bench/README.md", "changelog.d/README.md"]
exclude_patterns = [".*", "build", "dist", "src", "tests", "tools", "deploy", "examples"]
highlight_language = "text"

# Anchors of headings are those of the usual renderers of Markdown: `page.md#a-heading` works in all of them.
myst_heading_anchors = 4

# Docstrings are plain text, with names in single backticks and Google's sections.
default_role = "code"
napoleon_use_ivar = True
autosummary_generate = False
autodoc_member_order = "groupwise"
autodoc_default_options = {"members": True, "undoc-members": False}
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
toc_object_entries_show_parents = "hide"

html_theme = "furo"
html_title = "muster"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_extra_path = ["site/root"]
html_search_scorer = str(Path(__file__).with_name("site") / "scorer.js")
html_copy_source = False
html_show_sourcelink = False

# What readers type into the search, by the heading that answers it. Verdicts are added by `verdicts_of`.
SEARCH_WORDS = {
    "docs/aws": {
        "What the head may do": ("IAM", "IAM permissions", "IAM policy"),
        "Preflight checks": ("AWS credentials",),
        "Prices": ("spot prices",),
    },
    "docs/budgets": {"Enforce a budget": ("budget", "what a budget includes")},
    "docs/checkpoints": {
        "*": ("resume", "checkpoint", "old checkpoints", "retry", "crash", "kill"),
        "Resume an experiment": ("continue after a crash",),
        "What survives a crash": ("S3", "remote storage", "storage_path"),
        "Preemption": ("preemption", "preempted", "SIGTERM"),
    },
    "docs/cluster-yaml": {
        "*": ("idle timeout", "idle_timeout_minutes", "max_workers", "min_workers"),
        "Offers: zones, markets and prices": ("price file", "price list"),
        "Containers: `docker`": ("docker", "podman", "containers"),
    },
    "docs/cost": {
        "*": ("cheapest machine", "save money", "lower costs"),
        "Spot or on-demand": ("spot", "spot machines", "spot instances"),
    },
    "docs/dashboard": {
        "*": ("dashboard",),
        "Access": ("remote access", "token"),
        "Actions": ("stop button",),
    },
    "docs/estimates": {"*": ("estimate cost", "cost forecast", "price of an experiment")},
    "docs/from-ray-tune": {"*": ("not supported", "differences", "unsupported features")},
    "docs/gpus": {"*": ("GPU", "half a GPU", "fractional GPU", "no GPU found")},
    "docs/installation": {"*": ("install", "extras", "Windows", "macOS")},
    "docs/kubernetes": {"*": ("kubernetes", "kuberay", "helm"), "Waiting pods": ("pending pod",)},
    "docs/laptop-cluster": {"Stop the cluster": ("delete cluster", "stop cluster", "shut down cluster")},
    "docs/metrics": {"*": ("prometheus", "grafana", "alerts")},
    "docs/monitor": {"*": ("monitor", "shadow mode")},
    "docs/node-setup": {
        "Recover from a lost head": ("lost head", "head failed"),
        "Find orphaned machines with `muster gc`": ("orphaned machines", "leaked machines"),
    },
    "docs/reference/commands": {"Exit codes": ("exit codes", "exit code 1", "exit code 2", "exit code 3")},
    "docs/providers": {"*": ("NodeProvider", "custom provider", "own cloud")},
    "docs/ray-on-slurm": {"Jobs that wait": ("pending Slurm job",)},
    "docs/results": {
        "*": ("best config", "best result", "best model", "dataframe"),
        "Files": ("stored results", "result files", "results folder"),
    },
    "docs/schedulers": {
        "*": ("early stopping", "pruning", "scheduler", "bad trials"),
        "ASHAScheduler": ("ASHA",),
        "HyperBandScheduler": ("HyperBand", "BOHB"),
        "PopulationBasedTraining": ("PBT", "PB2"),
    },
    "docs/search-spaces": {
        "*": ("nested search space",),
        "Domains": ("log scale", "learning rate in log scale", "range of a parameter"),
        "Grids": ("grid", "grid search"),
        "Conditional spaces": ("conditional search space",),
    },
    "docs/searchers": {
        "Reuse earlier results": ("add trials", "warm start"),
        "*": ("optuna", "bayesian optimization", "hyperopt", "multi objective", "several objectives"),
        "Repeat a search": ("seed", "reproducible", "random seed"),
    },
    "docs/security": {"Ports": ("port", "ports", "open ports", "firewall")},
    "docs/stoppers-callbacks": {
        "Stop trials": ("stopper", "timeout", "time limit", "stop after hour", "maximum iterations"),
        "React to events": ("callback", "callbacks"),
    },
    "docs/tracking": {"*": ("mlflow", "wandb", "tensorboard", "weights & biases")},
    "docs/support": {"*": ("Ray version", "supported versions", "tested versions")},
    "docs/troubleshooting": {
        "Tuning": ("out of memory", "stuck trial", "pending trial", "hang"),
        "Clusters": ("worker log", "cluster does not scale", "failed setup", "no workers"),
    },
    "docs/tune": {
        "How trials run": ("concurrent trials", "parallel trials", "many trials", "CPU cores", "all cores"),
        "Output": ("trial output", "log file", "live view", "progress bar"),
    },
    "docs/tune-cli": {
        "`stop` and `set`: change a running experiment": (
            *("stop trial", "stop one trial", "stop experiment", "kill trial", "cancel trial"),
        ),
        "`resume`: continue an interrupted experiment": ("resume experiment",),
    },
    "docs/tutorials/ddp": {"*": ("DDP", "distributed training", "several GPUs per trial", "torchrun")},
    "docs/tutorials/notebook": {"*": ("jupyter", "notebook", "colab")},
    "docs/tutorials/ray-up": {"*": ("ray up", "ray autoscaler")},
    "docs/tutorials/shell-command": {"*": ("bash script", "shell script")},
    "docs/slurm": {"*": ("slurm",)},
}


def add_search_words(app: object, name: str, source: list[str]) -> None:
    """Add index entries, which the search ranks first, below the headings that `SEARCH_WORDS` names."""
    words = verdicts_of(source[0]) if name == "docs/verdicts" else SEARCH_WORDS.get(name, {})
    for heading, entries in words.items():
        line = source[0].partition("\n")[0] if heading == "*" else f"## {heading}"
        if f"{line}\n" not in source[0]:
            raise ValueError(f"docs/conf.py: {name}.md has no heading {heading!r}; change SEARCH_WORDS")
        index = ", ".join(f"! {entry}" for entry in entries)
        source[0] = source[0].replace(f"{line}\n", f"{line}\n\n```{{index}} {index}\n```\n", 1)


def verdicts_of(page: str) -> dict[str, list[str]]:
    """Return the verdicts in the tables below each heading."""
    sections = (section.partition("\n") for section in page.split("\n## ")[1:])
    return {heading: re.findall(r"^\| `([\w-]+)`", text, re.MULTILINE) for heading, _, text in sections}


def show_new_pictures(app: object, exception: Exception | None) -> None:
    """Replace the pictures of the repository by those that were just made."""
    images = ROOT / "build" / "docs" / "html" / "_images"
    for picture in NEW_PICTURES.glob("*.*") if exception is None else ():
        shutil.copy(picture, images / picture.name)


def add_help_texts(app: object, name: str, source: list[str]) -> None:
    """Add the help text of every command to the page about commands."""
    if name == "docs/reference/commands":
        source[0] += "".join(help_texts(cli, click.Context(cli, info_name="muster")))


def help_texts(command: click.Command, context: click.Context) -> Iterator[str]:
    """Yield a heading and the help text of a command, then those of its sub-commands."""
    yield f"\n## `{context.command_path}`\n\n```text\n{command.get_help(context)}\n```\n"
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None and not inner.hidden:
                yield from help_texts(inner, click.Context(inner, parent=context, info_name=name))


def keep_first_paragraph(app: object, what: str, name: str, *rest: Any) -> None:  # noqa: ANN401
    """Leave out what the docstring of a module says to its maintainers."""
    lines = rest[-1]
    if what == "module" and "" in lines:
        del lines[lines.index("") :]


def setup(app: object) -> None:
    app.connect("autodoc-process-docstring", keep_first_paragraph)  # type: ignore[attr-defined]
    app.connect("build-finished", show_new_pictures)  # type: ignore[attr-defined]
    app.connect("source-read", add_search_words)  # type: ignore[attr-defined]
    app.connect("source-read", add_help_texts)  # type: ignore[attr-defined]
