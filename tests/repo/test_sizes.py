from __future__ import annotations

import pytest
from tools.check_sizes import (
    MAX_FILE_LINES,
    MAX_FUNCTION_LINES,
    SLACK,
    budget_complaints,
    complaints,
    oversized,
    package_sizes,
    settings,
)


@pytest.mark.slow
def test_files_and_functions_of_this_project_are_within_their_limits(root):
    assert complaints(oversized(root), settings(root, "allowed")) == []


def test_packages_are_within_their_budgets(root):
    assert budget_complaints(package_sizes(root), settings(root, "packages")) == []


def test_a_package_over_its_budget_and_a_budget_that_is_too_large_are_found(tmp_path):
    package = tmp_path / "src" / "muster" / "page"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("x = 1\n" * 10, encoding="utf-8")
    lines = package_sizes(tmp_path)
    assert lines == {"page": 10}
    assert budget_complaints(lines, {"page": 10}) == []
    assert len(budget_complaints(lines, {"page": 9})) == 1
    assert len(budget_complaints(lines, {})) == 1
    assert budget_complaints(lines, {"page": 10 + SLACK}) == []
    assert len(budget_complaints(lines, {"page": 11 + SLACK, "gone": SLACK + 1})) == 2


def test_a_file_and_a_function_over_the_limit_are_found_and_the_docstring_is_free(tmp_path):
    (tmp_path / "src").mkdir()
    docstring = '    """' + "\n".join(["word"] * 30) + '"""\n'
    fine = "def fine():\n" + docstring + "    x = 1\n" * (MAX_FUNCTION_LINES - 1)
    long = "def long():\n" + "    x = 1\n" * MAX_FUNCTION_LINES
    (tmp_path / "src" / "a.py").write_text(fine + long, encoding="utf-8")
    (tmp_path / "src" / "b.py").write_text("x = 1\n" * (MAX_FILE_LINES + 1), encoding="utf-8")
    assert oversized(tmp_path) == {"src/a.py::long": 51, "src/b.py": 501}


def test_the_list_of_exceptions_may_only_shrink():
    assert complaints({"src/a.py": 600}, {"src/a.py": 600}) == []
    assert complaints({"src/a.py": 601}, {"src/a.py": 600}) == [
        "src/a.py: 601 lines, at most 600; split it by responsibility"
    ]
    assert complaints({"src/a.py": 590}, {"src/a.py": 600}) == [
        "src/a.py: allowed 600 in pyproject.toml, has 590; shrink the list"
    ]
    assert complaints({}, {"src/a.py": 600}) == [
        "src/a.py: allowed 600 in pyproject.toml, has few enough; shrink the list"
    ]
