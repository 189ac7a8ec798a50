"""Settings take four shapes between `Tuner` and the first trial: see docs/architecture.md."""

from __future__ import annotations

import ast
from pathlib import Path

import muster

SOURCE = Path(muster.__file__).parent


def classes_with(field: str) -> set[str]:
    return {
        node.name
        for folder in ("tune", "trials", "engines", "session")
        for file in (SOURCE / folder).rglob("*.py")
        if "analysis" not in file.parts  # reads what a trial had
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
        and any(isinstance(part, ast.AnnAssign) and ast.unparse(part.target) == field for part in node.body)
    }


def test_a_trainable_name_passes_through_one_class_per_shape():
    assert classes_with("trainable_name") == {"ExperimentSpec", "TrialTemplate", "StartTrial", "StartOrder"}


def test_a_storage_path_is_an_attribute_of_the_run_config_alone():
    assert classes_with("storage_path") == {"RunConfig"}


def test_the_reuse_of_actors_is_configured_once_and_resolved_once():
    assert classes_with("reuse_actors") == {"TuneConfig", "Settings"}
