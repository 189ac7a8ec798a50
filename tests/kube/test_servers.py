"""Which API servers the tests of Kubernetes ran on."""

from __future__ import annotations

import pytest
from tests.kube.real_server import MISSING, binaries


def test_the_real_server_was_there_too():
    """Pods are resized on the in-memory server alone: the real one is 1.20, which has no `pods/resize`."""
    if binaries() is None:
        pytest.skip(MISSING)
