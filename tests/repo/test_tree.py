"""The rules for the tree of CONTRIBUTING.md, and proof that their checks find what they look for."""

from __future__ import annotations

from pathlib import Path

import pytest
from tools.tree import (
    Module,
    folder_sizes,
    import_cycles,
    lone_files,
    read_tree,
    repeated_classes,
)

MAX_FILES_PER_FOLDER = 21  # `trials` has the most: its domain is one idea per file
MAX_FILES = (
    680  # of src: 600, 25 at module paths of Ray (32), 55 of commands, ranks, Slurm and actions (31 to 34)
)
PART_OF_ITS_IMPORTER_BELOW = 120  # lines
# Those of `remote` are kinds of runners or layers below one; the provider contract is three files by subject.
# Of AWS, KubeRay, the page and the simulated EC2 it is the parts of a provider or a server, an idea each.
MAX_LONE_FILES = 67  # 58; 9 of commands, Slurm, as_ray and the plots of the dashboard (31 to 34)
MAX_CYCLES = 3
# Names of Ray's that stand in one module for each framework.
SHARED_NAMES = {"TuneReportCallback", "TuneReportCheckpointCallback"}
# A short file that only its neighbour imports says one of these in its first line.
REASONS = ("Run in another process", "Runs in another process", "Imported lazily", "A separate layer")


@pytest.fixture(scope="module")
def tree() -> dict[str, Module]:
    return read_tree()


def unexplained(tree: dict[str, Module]) -> list[str]:
    """Short files with one importer in their folder whose first line does not say why they are files."""
    short = lone_files(tree, shorter_than=PART_OF_ITS_IMPORTER_BELOW)
    return [
        f"{name} ({tree[name].lines} lines) is only imported by {importer}: make it a part of that file"
        for name, importer in short.items()
        if not any(reason in tree[name].first_line for reason in REASONS)
    ]


def test_no_folder_has_too_many_files(tree):
    crowded = {name: count for name, count in folder_sizes(tree).items() if count > MAX_FILES_PER_FOLDER}
    assert crowded == {}


def test_a_public_class_name_is_used_once(tree):
    assert set(repeated_classes(tree)) == SHARED_NAMES


def test_a_short_file_that_only_its_neighbour_imports_is_a_part_of_that_neighbour(tree):
    assert unexplained(tree) == []


def test_the_tree_stays_small(tree):
    assert len(tree) <= MAX_FILES
    assert len(lone_files(tree)) <= MAX_LONE_FILES
    assert len(import_cycles(tree)) <= MAX_CYCLES


def write(folder: Path, **files: str) -> dict[str, Module]:
    (folder / "pack").mkdir()
    (folder / "pack" / "__init__.py").write_text("")
    for name, text in files.items():
        (folder / "pack" / f"{name}.py").write_text(text)
    return read_tree(folder)


def test_a_file_with_one_importer_is_found_unless_it_says_why(tmp_path):
    tree = write(
        tmp_path,
        user="import pack.helper\nfrom pack import other\ndef run():\n    import pack.late\n",
        helper="x = 1\n",
        other="from pack import helper\n",
        late='"""Imported lazily, because it loads much."""\n',
    )
    assert lone_files(tree) == {"pack.other": "pack.user", "pack.late": "pack.user"}
    assert unexplained(tree) == [
        "pack.other (1 lines) is only imported by pack.user: make it a part of that file"
    ]


def test_an_import_under_type_checking_closes_a_cycle(tmp_path):
    tree = write(
        tmp_path,
        one="from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from pack.two import Two\n",
        two="from pack import three\nclass Two: ...\n",
        three="from pack.one import x\nclass Two: ...\n",
        apart="def later():\n    import pack.one\n",
    )
    assert import_cycles(tree) == [["pack.one", "pack.three", "pack.two"]]
    assert repeated_classes(tree) == {"Two": ["pack.three", "pack.two"]}
    assert folder_sizes(tree) == {"pack": 4}
