from __future__ import annotations

import re

FOLDERS = ("src", "tests", "bench", "tools", "docs", "examples", "changelog.d", ".ci")
FILES = ("Makefile", "pyproject.toml", "README.md", ".importlinter", ".pre-commit-config.yaml")
SUFFIXES = (".py", ".md", ".yaml", ".toml", ".sh", ".txt", "")
# Absolute paths of somebody's machine; this pattern is written so that it does not match itself.
FOREIGN = re.compile(r"(?<![\w.}])/(?:work|root|home|Users)/\w")


def test_no_file_names_a_path_of_one_machine(root):
    files = [root / name for name in FILES]
    for folder in FOLDERS:
        files += [p for p in (root / folder).rglob("*") if p.is_file() and p.suffix in SUFFIXES]
    assert len(files) > 50
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if FOREIGN.search(line)
    ]
    assert found == []
