"""Run the code blocks of a page as a reader would; called by tools/check_docs.py.

Every page has a directory of its own, in which its blocks run in the order of the page:

- ```python blocks form one program, which runs where its last block stands;
- ```console blocks hold commands (`$ ...`), each followed by what it prints;
- ```sh blocks hold commands that must succeed.

A comment above a block, `<!-- docs: WORD -->`, changes that: `new` starts another program, `file NAME` writes
the block to a file instead of running it, `similar` compares output without its numbers, `serves` leaves the
commands running until the page ends, `installs` leaves them to `make docs`, `needs EXTRA` (for all later
blocks too; `needs nothing` ends it) runs them with everything installed instead of the base install.
`<!-- setup` ... `-->` holds Python that readers do not see. Programs that it writes to `bin` come first in
PATH: they stand for those of a site, such as Slurm's.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
from pathlib import Path
from typing import IO, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parent.parent
BLOCK = re.compile(
    r"^<!-- docs: (?P<words>[^\n]*) -->$|^<!-- setup\n(?P<setup>.*?)^-->$|"
    r"^```(?P<language>[\w{}-]*)[^\n]*\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)
RUN = ("python", "console", "sh")
OUTPUT = re.compile(r"^\$ [^\n]*\n(?!\$ )[^\n]", re.MULTILINE)  # a command, and a line that is none
MARKS = ("new", "file", "similar", "serves", "needs", "installs")
TIMEOUT_S = 300
SERVED_S = 8
# The port of a Ray head in commands: another one, that is free, takes its place.
HEAD_PORT = "6379"
# What stands for the directory of a page in the output that is shown.
SHOWN_DIRECTORY = "/data"
# Too large for everyone: blocks that need these are left out where they are not installed, with a message.
MODULES = {"torch": "torch"}
NUMBERS = (
    (
        re.compile(
            r"[0-9a-f]{5}_\d{5}(?:_\d+)?|(?<![a-z0-9.])[0-9a-f]{8}(?![a-z0-9])|"
            r"\bt-[0-9a-f]{12}\b|(?<=-)[0-9a-f]{6}(?![a-z0-9])"
        ),
        "ID",
    ),
    (re.compile(r"\d{4}-\d\d-\d\d[ _]\d\d[:-]\d\d(?:[:-]\d\d)?"), "DATE"),
    (re.compile(r"-?(?<![a-z])\d+(?:\.\d+)?(?:e[+-]?\d+)?(?![a-z0-9])(?: (?:ms|s|min|h)\b)?"), "#"),
    (re.compile(r"\s+"), " "),
)


class Block(NamedTuple):
    """One fenced block, or one hidden set-up, with what the comments above it say."""

    language: str
    text: str
    line: int
    marks: dict[str, str]
    needs: str

    @property
    def is_program(self) -> bool:
        return self.language in ("python", "setup") and "file" not in self.marks


class Environment(NamedTuple):
    """Names the interpreters that blocks run with, and the directory of all pages.

    Blocks that need a word of `absent` are left out.
    """

    base: Path
    full: Path
    directory: Path
    absent: frozenset[str] = frozenset()


def blocks_of(text: str) -> list[Block]:
    """Return the blocks of a page that are run or written to a file."""
    found: list[Block] = []
    marks: dict[str, str] = {}
    needs = ""
    for match in BLOCK.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        if match["words"] is not None:
            word, _, rest = match["words"].partition(" ")
            marks[word] = rest
            needs = marks.get("needs", needs).replace("nothing", "")
            continue
        language = "setup" if match["setup"] is not None else match["language"]
        if language in (*RUN, "setup") or "file" in marks:
            found.append(Block(language, match["setup"] or match["text"] or "", line, marks, needs))
        marks = {}
    return found


def wrong_marks(text: str) -> list[str]:
    """Return comments that mean nothing, output that is not checked, and extras that a page does not name."""
    blocks = blocks_of(text)
    wrong = [f"line {block.line}: {mark}" for block in blocks for mark in block.marks if mark not in MARKS]
    wrong += [
        f"output that is not checked: {match['text'].splitlines()[0]}"
        for match in BLOCK.finditer(text)
        if match["language"] == "text" and OUTPUT.search(match["text"])
    ]
    visible = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    needed = {word for block in blocks for word in block.needs.split()}
    return wrong + [
        f"needs {word}, but does not say how to install it"
        for word in sorted(needed)
        if not re.search(rf"pip install[^`\n]*\b{re.escape(word)}\b", visible)
    ]


def steps_of(blocks: list[Block]) -> list[list[Block]]:
    """Return the steps of a page in order: a program of several blocks, or one block of another kind."""
    steps: list[list[Block]] = []
    program: list[Block] = []
    for block in blocks:
        if not block.is_program:
            steps.append([block])
            continue
        if program and "new" not in block.marks:
            steps.remove(program)
            program = [*program, block]
        else:
            program = [block]
        steps.append(program)
    return steps


def masked(line: str) -> str:
    """Return a line of output without ids, dates, numbers and widths of columns."""
    for pattern, word in NUMBERS:
        line = pattern.sub(word, line)
    return line.strip()


class PageRun:
    """Runs the steps of one page; `problems` and the page with its real output are the result."""

    def __init__(self, name: str, text: str, environment: Environment) -> None:
        self.text = text
        self.problems: list[str] = []
        self.skipped: list[str] = []
        self._name = name
        self._environment = environment
        self._directory = environment.directory / re.sub(r"[^\w]+", "-", name)
        self._served: list[subprocess.Popen[str]] = []
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._port = str(free.getsockname()[1])

    def run(self) -> PageRun:
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        for shared in ("examples", "deploy"):
            (self._directory / shared).symlink_to(ROOT / shared)
        try:
            for step in steps_of(blocks_of(self.text)):
                self._step(step)
        finally:
            self._end_all()
        return self

    def _step(self, step: list[Block]) -> None:
        first = step[0]
        absent = self._environment.absent
        words = [*first.needs.split(), *first.marks]
        missing = [word for word in words if word in absent or not _is_there(word)]
        if missing:
            self.skipped.append(f"{self._name}:{first.line}: skipped, {' '.join(missing)} is not installed")
        elif "file" in first.marks:
            (self._directory / first.marks["file"]).write_text(first.text, encoding="utf-8")
        elif first.is_program:
            self._program(step)
        elif first.language == "sh":
            self._shell(first)
        else:
            self._console(first)

    def _program(self, step: list[Block]) -> None:
        script = self._directory / f"block_{step[0].line}.py"
        script.write_text("\n\n".join(block.text for block in step), encoding="utf-8")
        done = self._done(["python", script.name], step[-1].needs)
        if done.returncode:
            self._fail(step[0], done.stdout)

    def _shell(self, block: Block) -> None:
        if "serves" in block.marks:
            self._serve(block)
            return
        done = self._done(["bash", "-euo", "pipefail", "-c", block.text], block.needs)
        if done.returncode:
            self._fail(block, done.stdout)

    def _console(self, block: Block) -> None:
        shown = re.findall(r"^\$ ([^\n]*)\n((?:(?!\$ )[^\n]*\n)*)", block.text, re.MULTILINE)
        real = [(command, output, self._printed(command, block.needs)) for command, output in shown]
        is_same = all(self._equal(output, printed, block) for _, output, printed in real)
        if not is_same:
            session = "".join(f"$ {command}\n{printed}" for command, _, printed in real)
            self.text = self.text.replace(f"```console\n{block.text}", f"```console\n{session}", 1)

    @staticmethod
    def _equal(shown: str, printed: str, block: Block) -> bool:
        if "similar" not in block.marks:
            return shown == printed
        return [masked(line) for line in shown.splitlines()] == [
            masked(line) for line in printed.splitlines()
        ]

    def _printed(self, command: str, needs: str) -> str:
        output = self._done(["bash", "-c", command], needs).stdout
        home = str(self._directory)
        lines = output.replace(f"{home}/.muster", "~/.muster").replace(home, SHOWN_DIRECTORY).splitlines()
        return "".join(f"{line.rstrip()}\n" for line in lines)

    def _done(self, command: list[str], needs: str) -> subprocess.CompletedProcess[str]:
        with self._started(command, needs) as process:
            try:
                output, _ = process.communicate(timeout=TIMEOUT_S)
            except subprocess.TimeoutExpired:
                _end(process)
                output = f"it took more than {TIMEOUT_S} s\n"
        return subprocess.CompletedProcess(command, process.returncode or 0, output)

    def _serve(self, block: Block) -> None:
        """Start commands that end with the page; they must still run after some seconds."""
        with self._log(block).open("w", encoding="utf-8") as log:
            process = self._started(["bash", "-c", f"exec {block.text}"], block.needs, log)
        self._served.append(process)
        try:
            process.wait(SERVED_S)
        except subprocess.TimeoutExpired:
            return
        self._fail(block, self._log(block).read_text(encoding="utf-8"))

    def _log(self, block: Block) -> Path:
        return self._directory / f"block_{block.line}.log"

    def _started(
        self, command: list[str], needs: str, output: IO[str] | int = subprocess.PIPE
    ) -> subprocess.Popen[str]:
        python = self._environment.full if needs else self._environment.base
        return subprocess.Popen(
            [word.replace(HEAD_PORT, self._port) for word in command],
            cwd=self._directory,
            env=variables(python, self._directory),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _fail(self, block: Block, output: str) -> None:
        last = "\n".join(output.splitlines()[-25:])
        self.problems.append(f"{self._name}:{block.line}: the block fails:\n{last}")

    def _end_all(self) -> None:
        """End what the page started; what outlives its commands is a problem, and is ended too."""
        for process in reversed(self._served):
            _end(process)
        for left in processes_at_home(self._directory):
            self.problems.append(f"{self._name}: left running: {' '.join(left.cmdline())[:200]}")
            left.kill()


def variables(python: Path, home: Path) -> dict[str, str]:
    """Return the environment of a block: a home of its own, and one interpreter's commands first."""
    kept = {
        name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "MUSTER_", "TUNE_"))
    }
    kept.pop("VIRTUAL_ENV", None)
    return {
        **kept,
        "PATH": os.pathsep.join((str(home / "bin"), str(python.parent), os.environ["PATH"])),
        "HOME": str(home),
        "MUSTER_HOME": str(home / ".muster"),
        "MUSTER_GIT": ROOT.as_uri(),
        "RAY_TMPDIR": str(home.parent),  # a head here does not become the cluster of other users' `auto`
        "MPLBACKEND": "agg",
        "WANDB_MODE": "offline",
        "PYTHONWARNINGS": "ignore",
    }


def processes_at_home(home: Path) -> list[psutil.Process]:
    """Return the processes whose home is this directory: those that the blocks of a page started."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.status() != psutil.STATUS_ZOMBIE and process.environ().get("HOME") == str(home):
                found.append(process)
    return found


def _end(process: subprocess.Popen[str]) -> None:
    """End the process group of a command: first politely, then for certain."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(20)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue


def _is_there(word: str) -> bool:
    return word not in MODULES or importlib.util.find_spec(MODULES[word]) is not None
