"""Checks the docs: links lead somewhere, and the commands shown print what is shown.

Run by `make docs`; `--write` puts the real output into the docs instead of comparing. Shown commands stand in
```console blocks that start with `$ muster `; the lines up to the next `$ muster ` are a command's output.
"""

from __future__ import annotations

import difflib
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(?<!!)\[[^\]]+\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)
CONSOLE = re.compile(r"^```console\n(\$ muster .*?)^```", re.MULTILINE | re.DOTALL)
TIMEOUT_S = 60


def pages(root: Path) -> list[Path]:
    """Returns every Markdown file of the project."""
    folders = [root, root / "docs", root / "changelog.d", root / "examples"]
    return sorted({page for folder in folders for page in _markdown(folder, deep=folder != root)})


def _markdown(folder: Path, *, deep: bool) -> Iterator[Path]:
    return folder.rglob("*.md") if deep else folder.glob("*.md")


def broken_links(page: Path) -> list[str]:
    """Returns links of one page to files or headings that do not exist; web addresses are not visited."""
    broken = []
    for target in LINK.findall(FENCE.sub("", page.read_text(encoding="utf-8"))):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name) if name else page
        if not file.exists() or (anchor and anchor not in _anchors(file)):
            broken.append(target)
    return broken


def _anchors(page: Path) -> set[str]:
    """Returns the names under which GitHub-style renderers know a page's headings."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def with_real_output(text: str) -> str:
    """Returns the page with each shown `muster` command followed by what it prints today."""
    return CONSOLE.sub(lambda block: f"```console\n{_session(block[1])}```", text)


def _session(shown: str) -> str:
    commands = [line[2:] for line in shown.splitlines() if line.startswith("$ muster ")]
    return "".join(f"$ {command}\n{_output(command)}" for command in commands)


def _output(command: str) -> str:
    """Returns what a `muster` command prints when its output is not a terminal."""
    words = shlex.split(command)
    run = subprocess.run(
        [sys.executable, "-m", "muster.cli.main", *words[1:]],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    return "".join(f"{line.rstrip()}\n" for line in run.stdout.splitlines())


def untrue_output(page: Path) -> list[str]:
    """Returns a diff from what the page shows to what its commands print; empty when they agree."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    real = with_real_output(text)
    return list(difflib.unified_diff(text.splitlines(), real.splitlines(), name, "real", lineterm="", n=1))


def main(arguments: list[str]) -> int:
    found = pages(ROOT)
    if "--write" in arguments:
        for page in found:
            page.write_text(with_real_output(page.read_text(encoding="utf-8")), encoding="utf-8")
    problems = [
        f"{page.relative_to(ROOT)}: broken link {link}" for page in found for link in broken_links(page)
    ]
    problems += [line for page in found for line in untrue_output(page)]
    sys.stdout.write("".join(f"{line}\n" for line in problems) or f"docs: {len(found)} pages are correct\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
