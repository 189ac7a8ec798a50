"""Writes CHANGELOG.md: what is new since the last release comes from the fragments in changelog.d.

Run by `make changelog`. Releases stand below the part that this tool writes, and are left as they are;
`--release VERSION DATE` makes a release of the new part and removes its fragments.
"""

from __future__ import annotations

import argparse
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
KINDS = ("added", "changed", "fixed", "removed")
TITLE = "# Changelog\n\nWhat users can see, newest first. The parts of the next release are in `changelog.d`."
NEXT = "## Not released yet"


def fragments(folder: Path) -> dict[str, list[Path]]:
    """Returns the fragments by kind, those of the newest issue first; ValueError for any other name."""
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
    """Returns a heading and the fragments below it, an item each."""
    parts = [heading]
    for kind in KINDS:
        if found[kind]:
            parts.append(f"### {kind.capitalize()}")
            parts += [
                "- " + textwrap.indent(path.read_text(encoding="utf-8").strip(), "  ")[2:]
                for path in found[kind]
            ]
    return "\n\n".join(parts)


def changelog(folder: Path, former: str, release: str | None = None) -> str:
    """Returns the whole text: the title, the new part, and the releases of the former text."""
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
