"""The map of docs/architecture.md leads a contributor to the right place, in two files at most."""

from __future__ import annotations

import re

import pytest

TASKS = {
    "ASHA stops a trial": {
        "tune/schedulers/async_hyperband.py": "return math.isnan(score) or (self._cut[0] is not None and",
        "trials/decide.py": "STOP",
    },
    "an idle node is chosen to be removed": {
        "cluster/planner/limits.py": "def remove_idle(",
        "cluster/rules/scale.py": "def scale_down(",
    },
    "how a trial's directory is named": {
        "tune/search/paths.py": "def trial_dirname(",
        "tune/execution/paths.py": "trial_dirname(trial",
    },
    "add a provider": {
        "providers/kind.py": "KINDS: dict[str, tuple[str, str]] = {",
        "cluster/ports.py": "class CloudProvider",
    },
    "add a command": {
        "cli/main.py": "COMMANDS = {",
        "cli/compat.py": "@click.command(",
    },
}


def rows(root) -> dict[str, list[str]]:
    """Return the rows of the map: what is looked for, and the files."""
    text = (root / "docs" / "architecture.md").read_text(encoding="utf-8")
    table = text.partition("## Where is ...?")[2].partition("\n## ")[0]
    found = re.findall(r"^\| (.+?) \| (.+) \|$", table, re.MULTILINE)
    return {what: re.findall(r"`([\w/]+(?:\.py|/))`", files) for what, files in found}


@pytest.mark.parametrize("task", TASKS)
def test_a_task_of_a_contributor_takes_two_files(root, task):
    named = {what: files for what, files in rows(root).items() if what.startswith(task)}
    assert [set(files) for files in named.values()] == [set(TASKS[task])]
    for file, text in TASKS[task].items():
        assert text in (root / "src" / "muster" / file).read_text(encoding="utf-8")


def test_every_row_of_the_map_names_one_or_two_places_that_exist(root):
    found = {what: files for what, files in rows(root).items() if what not in ("behavior", "---")}
    assert len(found) > 25
    assert {what: files for what, files in found.items() if not 1 <= len(files) <= 2} == {}
    places = [root / "src" / "muster" / file for files in found.values() for file in files]
    assert [place for place in places if not place.exists()] == []
