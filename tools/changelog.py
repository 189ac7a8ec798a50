"""Write CHANGELOG.md from the fragments in changelog.d.

Run by `make changelog`. The tool keeps the releases below the unreleased part. `--release VERSION DATE`
turns the unreleased part into a release and removes its fragments.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "fixed", "removed")
TITLE = """# Changelog

Notable changes for users, in the form of [Keep a Changelog](https://keepachangelog.com). Entries of the next
release are in `changelog.d`."""
NEXT = "## Unreleased"


def fragments(folder: Path) -> dict[str, list[Path]]:
    """Return the fragments by kind, those of the newest issue first; ValueError for any other name."""
    found: dict[str, list[Path]] = {kind: [] for kind in KINDS}
    for path in folder.glob("*.md"):
        issue, _, kind = path.stem.partition(".")
        if path.name == "README.md":
            continue
        if not issue.isdigit() or kind not in KINDS:
            raise ValueError(f"{path}: name it ISSUE.KIND.md, KIND one of {', '.join(KINDS)}")
        found[kind].append(path)
    return {
        kind: sorted(paths, key=lambda path: -int(path.stem.partition(".")[0]))
        for kind, paths in found.items()
    }


def section(heading: str, found: dict[str, list[Path]]) -> str:
    """Return a heading and the fragments below it, an item each."""
    parts = [heading]
    for kind in KINDS:
        if found[kind]:
            parts.append(f"### {kind.capitalize()}")
            parts.append("\n".join(_items(path.read_text(encoding="utf-8")) for path in found[kind]))
    return "\n\n".join(parts)


def _items(text: str) -> str:
    """Return a fragment as list items: its own items, or the whole text as one."""
    stripped = text.strip()
    return stripped if stripped.startswith("- ") else "- " + textwrap.indent(stripped, "  ")[2:]


def changelog(folder: Path, former: str, release: str | None = None) -> str:
    """Return the whole text: the title, the new part, and the releases of the former text."""
    found = fragments(folder)
    former_parts = [f"## {part.strip()}" for part in former.split("\n## ")[1:]]
    parts = [section(release or NEXT, found)] if any(found.values()) else []
    parts += [part for part in former_parts if part.split("\n")[0] != NEXT]
    return "\n\n".join([TITLE, *parts]) + "\n"


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Writes CHANGELOG.md from changelog.d.")
    parser.add_argument("--release", nargs=2, metavar=("VERSION", "DATE"))
    options = parser.parse_args(arguments)
    path, folder = ROOT / "CHANGELOG.md", ROOT / "changelog.d"
    former = path.read_text(encoding="utf-8") if path.exists() else ""
    heading = "## {} ({})".format(*options.release) if options.release else None
    path.write_text(changelog(folder, former, heading), encoding="utf-8")
    for paths in fragments(folder).values() if options.release else ():
        for each in paths:
            each.unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
