"""Mistakes of users, made in real scripts and commands: no frame of muster is shown, the last line helps."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.mistakes.commands import COMMANDS, CommandMistake, asked, write_files
from tests.mistakes.scripts import MISTAKES, NOTE, PRELUDE, TRIAL, Mistake

import muster

pytestmark = pytest.mark.slow
OURS = f'File "{Path(muster.__file__).parent}'
RUNNER = Path(__file__).with_name("runner.py")


def run(home: Path, tasks: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    """Run all of them in one process, as one user after another; returns what each saw, by name."""
    (home / "asked.json").write_text(json.dumps(tasks), encoding="utf-8")
    words = [sys.executable, str(RUNNER), str(home / "asked.json"), str(home / "seen.json")]
    package = str(Path(muster.__file__).parents[1])
    environment = {**os.environ, "HOME": str(home), "PYTHONPATH": package, "COLUMNS": "80"}
    subprocess.run(words, cwd=home, env=environment, check=True, timeout=300)
    return json.loads((home / "seen.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("mistakes")


@pytest.fixture(scope="module")
def scripts(home: Path) -> dict[str, Any]:
    return run(home, [(each.name, f"{PRELUDE}{each.script}\n") for each in MISTAKES])


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    folder = tmp_path_factory.mktemp("commands")
    write_files(folder)
    return run(folder, asked(folder))


def shown(mistake: Mistake, seen: dict[str, Any], home: Path) -> str:
    """Return what the user reads: the traceback, the trial's error, or the note that has all the words."""
    if mistake.how == TRIAL:
        return "".join(path.read_text() for path in (home / mistake.name).glob("run/*/error.txt"))
    if mistake.how == NOTE:
        lines = [line for line in seen["err"].splitlines() if all(word in line for word in mistake.says)]
        return "\n".join(lines)
    return seen["trace"]


@pytest.mark.parametrize("mistake", MISTAKES, ids=lambda each: each.name)
def test_a_script_shows_the_users_frames_and_then_a_sentence(mistake, scripts, home):
    seen = scripts[mistake.name]
    text = shown(mistake, seen, home)
    last = ["", *text.strip().splitlines()][-1]
    everything = text + seen["out"] + seen["err"] + seen["trace"]
    found = everything.count(OURS), [word for word in mistake.says if word not in last]
    assert found == (0, []), text
    assert mistake.how != NOTE or len(text.splitlines()) == 1  # once


@pytest.mark.parametrize("mistake", COMMANDS, ids=lambda each: each.name)
def test_a_command_prints_one_line(mistake: CommandMistake, commands):
    seen = commands[mistake.name]
    lines = seen["err"].strip().splitlines()
    missing = [word for word in mistake.says if word not in seen["err"]]
    assert (seen["code"], len(lines), missing, seen["trace"]) == (2, 1, [], ""), seen["err"]
