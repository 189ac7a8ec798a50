"""Check the docs: links lead somewhere, and the commands shown print what is shown.

Run by `make docs`; `--write` puts the real output into the docs instead of comparing. tools/doc_blocks.py
says which blocks are run, and how.
"""

from __future__ import annotations

import argparse
import difflib
import os
import re
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

if __name__ == "__main__":  # `python tools/check_docs.py`
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from tools.doc_blocks import Environment, PageRun, wrong_marks

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
HEADING = re.compile(r"^#+ +(.+?) *$", re.MULTILINE)
FENCE = re.compile(r"^```.*?^```", re.MULTILINE | re.DOTALL)


def pages(root: Path) -> list[Path]:
    """Return every Markdown file of the project."""
    folders = [root, root / "docs", root / "changelog.d", root / "examples"]
    return sorted({page for folder in folders for page in _markdown(folder, deep=folder != root)})


def _markdown(folder: Path, *, deep: bool) -> Iterator[Path]:
    return folder.rglob("*.md") if deep else folder.glob("*.md")


def broken_links(page: Path) -> list[str]:
    """Return links of one page to files or headings that do not exist; web addresses are not visited."""
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
    """Return the names under which GitHub-style renderers know a page's headings."""
    headings = HEADING.findall(FENCE.sub("", page.read_text(encoding="utf-8")))
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def untrue_output(page: Path, environment: Environment) -> list[str]:
    """Return why blocks of a page fail, and a diff from what the page shows to what its commands print."""
    text = page.read_text(encoding="utf-8")
    name = page.relative_to(ROOT).as_posix()
    run = PageRun(name, text, environment).run()
    sys.stdout.write("".join(f"{line}\n" for line in run.skipped))
    diff = difflib.unified_diff(text.splitlines(), run.text.splitlines(), name, "real", lineterm="", n=1)
    return [*wrong_marks(text), *run.problems, *diff]


def write_real_output(page: Path, environment: Environment) -> None:
    """Put what the commands of a page print today into the page."""
    text = page.read_text(encoding="utf-8")
    page.write_text(PageRun(page.name, text, environment).run().text, encoding="utf-8")


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Checks the links of the docs and runs their blocks.")
    parser.add_argument("pages", nargs="*", type=Path, help="all pages if none is given")
    parser.add_argument("--write", action="store_true", help="put the real output into the pages")
    parser.add_argument(
        "--base", type=Path, help="the Python of a base install", default=Path(sys.executable)
    )
    options = parser.parse_args(arguments)
    os.environ.pop("PYTHONPATH", None)
    found = [page.resolve() for page in options.pages] or pages(ROOT)
    with tempfile.TemporaryDirectory(prefix="muster-docs-") as directory:
        environment = Environment(options.base.absolute(), Path(sys.executable), Path(directory))
        if options.write:
            for page in found:
                write_real_output(page, environment)
        problems = [
            f"{page.relative_to(ROOT)}: broken link {link}" for page in found for link in broken_links(page)
        ]
        for page in found:
            sys.stdout.write(f"docs: {page.relative_to(ROOT)}\n")
            sys.stdout.flush()
            problems += untrue_output(page, environment)
    sys.stdout.write("".join(f"{line}\n" for line in problems) or f"docs: {len(found)} pages are correct\n")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
