"""Provides ProviderContract, the test class every NodeProvider passes. Subclass it, define `make_provider`.

It has one test for each line of the contract; `muster provider check` runs the same lines.

Example:
    class TestMyProvider(ProviderContract):
        node_config = {"InstanceType": "small"}

        def make_provider(self, cluster_name):
            return MyProvider({"region": "here"}, cluster_name)
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from typing import Any, ClassVar

import pytest

from muster.base.clock import Clock, SystemClock
from muster.cluster.model import FailureKind
from muster.providers.contract.check import Check, DoesNotApply
from muster.providers.contract.end import end_machines, left_text
from muster.providers.contract.run import CHECKS
from muster.providers.contract.subject import CheckSizes, MachineOrder, ProviderSubject, RefusedOrder

__all__ = ["ProviderContract"]

_numbers = itertools.count(1)
END_S = 20.0


class ProviderContract:
    """A ProviderContract tests what a v1 provider promises; a failure names the promise."""

    node_type: ClassVar[str] = "contract"
    node_config: ClassVar[Mapping[str, Any]] = {}
    resources: ClassVar[Mapping[str, float]] = {"CPU": 1}
    labels: ClassVar[Mapping[str, str]] = {}
    several: ClassVar[int] = 3  # nodes where more than one is needed
    crowd: ClassVar[int] = 8  # threads at a time, a node each
    starts_within_s: ClassVar[float] = 10.0  # from created to running
    call_limit_s: ClassVar[float] = 60.0  # a call that takes longer has failed
    clock: ClassVar[Clock] = SystemClock()

    def make_provider(self, cluster_name: str) -> Any:  # noqa: ANN401 - any v1 class
        """Returns a new object for this cluster; one made later must find the same nodes."""
        raise NotImplementedError(f"{type(self).__name__} must define make_provider(self, cluster_name)")

    def make_refused(self, kind: FailureKind, cluster_name: str) -> RefusedOrder | None:
        """Returns an object whose create call is refused for this reason; None where nothing provokes it."""
        return None

    @pytest.fixture
    def subject(self) -> Iterator[ProviderSubject]:
        """Returns the provider as the checks use it; whatever is left of its clusters is ended."""
        made = ProviderSubject(
            self.make_provider,
            lambda: f"contract-{next(_numbers)}",
            machine=MachineOrder(self.node_type, self.node_config, self.resources, self.labels),
            sizes=CheckSizes(self.several, self.crowd, self.starts_within_s, self.call_limit_s),
            make_refused=self.make_refused,
            clock=self.clock,
        )
        yield made
        left = end_machines(made, patience_s=END_S)
        made.close()
        assert not left, "; ".join(left_text(name, one) for name, one in left.items())


def _test_of(check: Check) -> Callable[[ProviderContract, ProviderSubject], None]:
    def test(self: ProviderContract, subject: ProviderSubject) -> None:
        try:
            check.show(subject)
        except DoesNotApply as reason:
            pytest.skip(str(reason))

    test.__name__ = f"test_{check.name}"
    test.__qualname__ = f"ProviderContract.{test.__name__}"
    return test


for _check in CHECKS:
    setattr(ProviderContract, f"test_{_check.name}", _test_of(_check))
