"""A contract is worth what it finds: every planted bug fails the test made for it, in words for people."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tests.providers.v1.planted_bugs import BUGS

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """(class, test) -> what the contract said, from one run over all bugs."""
    report = tmp_path_factory.mktemp("planted") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    subprocess.run(
        [*command, str(HERE / "planted_bugs.py")],
        cwd=HERE.parent.parent,
        stdout=subprocess.DEVNULL,
        timeout=100,
        check=False,
    )
    told = {}
    for case in ET.parse(report).iter("testcase"):
        failure = case.find("failure")
        bug = case.get("classname").rpartition(".Test")[2]
        told[bug, case.get("name")] = None if failure is None else failure.get("message")
    return told


@pytest.mark.parametrize(
    ("bug", "test"), [(bug.__name__, test) for bug, tests in BUGS.items() for test in tests]
)
def test_a_planted_bug_is_found(failures, bug, test):
    assert (bug, test) in failures, sorted(failures)
    said = failures[bug, test]
    assert said is not None, f"the contract did not find {bug}"
    assert "The promise: " in said


def test_every_test_of_the_contract_finds_some_bug(failures):
    """A test that nothing fails proves nothing."""
    found = {name for (_, name), said in failures.items() if said is not None}
    assert found == {name for _, name in failures}
