"""The docs name only files, modules, classes and make targets that exist."""

from __future__ import annotations

import ast
import importlib
import re
from pathlib import Path

import pytest
from msgspec import inspect
from tools import check_docs

from muster.config.schema import ClusterConfig

ROOT = check_docs.ROOT
PAGES = [*check_docs.pages(ROOT), ROOT / "bench" / "README.md"]
# A path with at least one folder that is not a part of a web address or of an absolute path.
FILE = re.compile(r"(?<![\w./~$*<>-])((?:\.\./)*[\w-][\w.-]*/[\w./-]*\.(?:py|md|ya?ml|toml))\b")
BASES = ("", "src/muster", "tests", "bench", "docs")
DOTTED = re.compile(r"(?<![\w./-])muster((?:\.\w+)+)(?![\w/])")
TARGET = re.compile(r"`make ([a-z][a-z-]*)")
CLASS = re.compile(r"`([A-Z][a-z]+(?:[A-Z][a-z]*)+)\b")
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
# Classes of other libraries.
FOREIGN = {
    *("CmaEsSampler", "GPSampler", "ResourceDemandScheduler"),
    "RegisterAsNodeAddress",  # a value of KubeRay's
    *("AutoMLP", "HyperTuning", "PipelineTuner", "RayTrainable"),  # of libraries that were tried
}


def missing_files(text: str, page: Path) -> list[str]:
    """Return the paths in a text that exist neither beside the page nor below one of the BASES."""
    folders = (page.parent, *(ROOT / base for base in BASES))
    return [name for name in FILE.findall(text) if not any((folder / name).exists() for folder in folders)]


def missing_modules(text: str) -> list[str]:
    """Return dotted names below `muster` that are not module, attribute, cluster key or logger."""
    names = [f"muster{rest}" for rest in DOTTED.findall(text)]
    return [name for name in names if not (_is_code(name) or _is_key(name) or _is_quoted(name))]


def missing_imports(text: str) -> list[str]:
    """Return the names that Python blocks import from muster and that do not exist."""
    missing = []
    for block in BLOCK.findall(text):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "muster":
                names = [f"{node.module}.{alias.name}" for alias in node.names]
                missing += [name for name in names if not _is_code(name)]
    return missing


def missing_classes(text: str, known: set[str]) -> list[str]:
    """Return names in backticks that look like classes and occur nowhere in the source."""
    return [name for name in CLASS.findall(text) if name not in known]


def missing_targets(text: str) -> list[str]:
    """Return the targets of `make` that the Makefile does not have."""
    known = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    return [name for name in TARGET.findall(text) if name not in known]


def _is_code(name: str) -> bool:
    parts = name.split(".")
    for end in range(len(parts), 0, -1):
        try:
            found = importlib.import_module(".".join(parts[:end]))
        except ImportError as error:  # muster.as_ray refuses where Ray is imported
            if (error.name or "").split(".")[0] == "muster":
                continue
            return True  # the module is there, the library that it adapts is not
        if found.__file__ is None:
            return False  # a folder that a moved module left behind
        for attribute in parts[end:]:
            if not hasattr(found, attribute):
                return False
            found = getattr(found, attribute)
        return True
    return False


def _is_key(name: str) -> bool:
    """Return whether the name is a key of the cluster file, which has a section `muster`."""
    info = inspect.type_info(ClusterConfig)
    for part in name.split("."):
        kinds = info.types if isinstance(info, inspect.UnionType) else (info,)
        fields = {
            field.encode_name: field.type
            for kind in kinds
            if isinstance(kind, inspect.StructType)
            for field in kind.fields
        }
        if part not in fields:
            return False
        info = fields[part]
    return True


def _is_quoted(name: str) -> bool:
    return f'getLogger("{name}")' in _source()


def _source() -> str:
    if not _texts:
        _texts.append("\n".join(file.read_text(encoding="utf-8") for file in ROOT.glob("src/**/*.py")))
    return _texts[0]


_texts: list[str] = []


@pytest.fixture(scope="module")
def known() -> set[str]:
    return set(re.findall(r"\b[A-Z]\w+", _source())) | FOREIGN


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_what_a_page_names_exists(page, known):
    text = page.read_text(encoding="utf-8")
    assert missing_files(text, page) == []
    assert missing_modules(text) == []
    assert missing_imports(text) == []
    assert missing_targets(text) == []
    assert missing_classes(text, known) == []


def test_a_file_that_was_moved_is_found():
    text = (
        "`cluster/ports.py` [a](../README.md) tests/repo/conftest.py https://example.org/b.py /etc/y.yaml\n"
        "`cluster/gone.py`, docs/gone.md and ../gone/x.yaml"
    )
    missing = ["cluster/gone.py", "docs/gone.md", "../gone/x.yaml"]
    assert missing_files(text, ROOT / "docs" / "page.md") == missing


def test_a_module_or_attribute_that_was_renamed_is_found():
    text = (
        "`muster.tune`, `muster.tune.Tuner`, `muster.limits.max_concurrent`, the log `muster.events`.\n"
        "`muster.tune.gone`, `muster.gone.Tuner`, `muster.limits.gone`"
    )
    assert missing_modules(text) == ["muster.tune.gone", "muster.gone.Tuner", "muster.limits.gone"]


def test_an_import_that_fails_is_found():
    block = "```python\nfrom muster import tune\nfrom muster.tune import Tuner, Gone\nimport json\n```\n"
    assert missing_imports(block) == ["muster.tune.Gone"]


def test_a_target_that_was_renamed_is_found():
    assert missing_targets("`make test`, `make test-fast PYTEST_ARGS=x`, `make gone-now`") == ["gone-now"]


def test_a_class_that_was_renamed_is_found(known):
    assert missing_classes("`Tuner.fit()`, `ProcessEngine`, `FormerEngine(x)`, FormerEngine", known) == [
        "FormerEngine"
    ]
