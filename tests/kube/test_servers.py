"""Which API servers the tests of Kubernetes ran on."""

from __future__ import annotations

import pytest
from tests.kube.real_server import MISSING, binaries
from tests.kube.summary import real_server_line


def test_the_real_server_was_there_too():
    """Pods are resized on the in-memory server alone: the real one is 1.20, which has no `pods/resize`."""
    if binaries() is None:
        pytest.skip(MISSING)


def test_the_summary_of_a_run_says_whether_a_real_server_was_there():
    here = "tests/providers/kuberay/test_pods.py::test_a"
    assert real_server_line(["tests/cli/test_up.py::test_real[real]"], "why") is None
    text, is_good = real_server_line([f"{here}[memory]", f"{here}[real]", f"{here}[real-3]", here], "why")
    assert (is_good, " 2 of 4 " in text) == (True, True)
    text, is_good = real_server_line([f"{here}[memory]", here], "why")
    assert (is_good, "NOT TESTED" in text, "why" in text) == (False, True, True)
