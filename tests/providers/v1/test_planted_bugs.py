"""The test class finds bugs in words for people; that all of them are found: test_styles.py."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest
from tests.providers.v1.planted_bugs import BUGS, OneAddress, TagsReplaced

pytestmark = pytest.mark.slow
HERE = Path(__file__).resolve().parent
RUN = (OneAddress, TagsReplaced)


@pytest.fixture(scope="module")
def failures(tmp_path_factory):
    """(class, test) -> what the contract said, from one run of pytest over two bugs."""
    report = tmp_path_factory.mktemp("planted") / "report.xml"
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    chosen = [f"{HERE / 'planted_bugs.py'}::Test{bug.__name__}" for bug in RUN]
    subprocess.run(
        [*command, *chosen], cwd=HERE.parent.parent, stdout=subprocess.DEVNULL, timeout=100, check=False
    )
    told = {}
    for case in ET.parse(report).iter("testcase"):
        failure = case.find("failure")
        bug = case.get("classname").rpartition(".Test")[2]
        told[bug, case.get("name")] = None if failure is None else failure.get("message")
    return told


@pytest.mark.parametrize(("bug", "test"), [(bug.__name__, test) for bug in RUN for test in BUGS[bug]])
def test_a_planted_bug_fails_its_test(failures, bug, test):
    assert (bug, test) in failures, sorted(failures)
    said = failures[bug, test]
    assert said is not None, f"the contract did not find {bug}"
    assert "The promise: " in said
