from __future__ import annotations

import re

import pytest

FOLDERS = ("src", "tests", "bench", "tools", "docs", "examples", "changelog.d", ".ci")
FILES = ("Makefile", "pyproject.toml", "README.md", ".importlinter", ".pre-commit-config.yaml")
SUFFIXES = (".py", ".md", ".yaml", ".toml", ".sh", ".txt", "")
# Both patterns are written so that they do not match themselves.
WRONG = {
    "an absolute path of somebody's machine": r"(?<![\w.}])/(?:work|root|home|Users)/\w",
    "the package of a stranger, which has our name on PyPI": r"pip install [\"']?muster(?!-ml)\b",
}


@pytest.mark.parametrize("pattern", WRONG.values(), ids=WRONG)
def test_no_file_names(root, pattern):
    files = [root / name for name in FILES]
    for folder in FOLDERS:
        files += [p for p in (root / folder).rglob("*") if p.is_file() and p.suffix in SUFFIXES]
    assert len(files) > 50
    found = [
        f"{path.relative_to(root)}:{number}: {line.strip()}"
        for path in files
        for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), 1)
        if re.search(pattern, line)
    ]
    assert found == []
