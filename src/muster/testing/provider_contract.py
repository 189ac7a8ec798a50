"""Provide the test classes that every NodeProvider, and every CloudProvider, pass. Subclass the right one.

Example:
    class TestMyProvider(ProviderContract):
        node_config = {"InstanceType": "small"}

        def make_provider(self, cluster_name):
            return MyProvider({"region": "here"}, cluster_name)

    class TestMyCloud(CloudProviderContract):
        def open_provider(self):
            return MyCloud(types=("cpu",))
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, ClassVar

import pytest

from muster.base.clock import Clock, SystemClock
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import FailureKind, LaunchFailure, NodeKind, Offer
from muster.cluster.ports import CloudProvider
from muster.providers.contract.end import end_machines, left_text
from muster.providers.contract.run import CHECKS
from muster.providers.contract.subject import (
    Check,
    CheckSizes,
    DoesNotApply,
    MachineOrder,
    ProviderSubject,
    RefusedOrder,
)
from muster.providers.contract.watch import promised

__all__ = ["CloudProviderContract", "ProviderContract"]

_numbers = itertools.count(1)
END_S = 20.0


class ProviderContract:
    """Tests of what a v1 provider promises, one for each line of the contract; a failure names the promise.

    `muster provider check` runs the same lines.
    """

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
        """Return a new object for this cluster; one made later must find the same nodes."""
        raise NotImplementedError(f"{type(self).__name__} must define make_provider(self, cluster_name)")

    def make_refused(self, kind: FailureKind, cluster_name: str) -> RefusedOrder | None:
        """Return an object whose create call fails for this reason; None if nothing provokes it.

        Args:
            kind: The kind of the refusal.
            cluster_name: The cluster.
        """
        return None

    @pytest.fixture
    def subject(self) -> Iterator[ProviderSubject]:
        """Return the provider as the checks use it; whatever is left of its clusters is ended."""
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
    test.__doc__ = f"Check that {check.name.replace('_', ' ')}."
    test.__qualname__ = f"ProviderContract.{test.__name__}"
    return test


for _check in CHECKS:
    setattr(ProviderContract, f"test_{_check.name}", _test_of(_check))


FIRST, SECOND = RequestId("r-first"), RequestId("r-second")


class CloudProviderContract:
    """Tests of what the autoscaler's loop relies on, for any implementation of the port."""

    node_type: ClassVar[str] = "cpu"
    unknown_type: ClassVar[str] = "no-such-type"
    offer: ClassVar[Offer] = Offer(zone="a", market="on-demand")  # for a provider that buys offers
    patience: ClassVar[int] = 500  # how often `pass_time` is called before something counts as not happening

    def open_provider(self) -> CloudProvider:
        """Return the provider under test."""
        raise NotImplementedError(f"{type(self).__name__} must define open_provider(self)")

    def pass_time(self) -> None:
        """Let time pass: a moment of real time, unless the world is simulated."""
        SystemClock().sleep(0.01)

    @pytest.fixture
    def port(self) -> CloudProvider:
        return self.open_provider()

    def workers(self, port: CloudProvider) -> list[CloudId]:
        """Return the ids of the listed workers."""
        return [m.cloud_id for m in port.list_instances().values() if m.kind is NodeKind.WORKER]

    def comes_true(self, holds: Callable[[], bool]) -> bool:
        """Return whether a condition holds within the patience of the test."""
        for _ in range(self.patience):
            if holds():
                return True
            self.pass_time()
        return holds()

    def quiet(self) -> None:
        """Wait long enough for anything wrong to show."""
        for _ in range(20):
            self.pass_time()

    def launched(self, port: CloudProvider, request_id: RequestId, count: int) -> list[CloudId]:
        """Launch machines and return their ids once they are listed.

        Args:
            port: The provider.
            request_id: The id of the request.
            count: How many machines.
        """
        before = len(self.workers(port))
        port.launch(request_id, {self.node_type: count})
        came = self.comes_true(lambda: len(self.workers(port)) >= before + count)
        promised(
            came,
            f"a launch of {count} left {len(self.workers(port)) - before} new machines",
            "requested machines are listed, unless poll_launch_failures reports their failure",
        )
        return self.workers(port)

    def test_a_launch_brings_as_many_machines_as_asked_for(self, port: CloudProvider) -> None:
        """Check that a launch creates the requested number of machines."""
        self.launched(port, FIRST, 3)
        self.quiet()
        listed = [m for m in port.list_instances().values() if m.kind is NodeKind.WORKER]
        shown = [(m.node_type, m.request_id) for m in listed]
        promised(
            shown == [(self.node_type, FIRST)] * 3,
            f"a launch of 3 {self.node_type} shows (type, request) {shown}",
            "exactly the machines asked for come, marked with the request they came from",
        )
        promised(
            all(key == machine.cloud_id for key, machine in port.list_instances().items()),
            "list_instances() has keys that are not the cloud_id of their machine",
            "machines are listed by their id",
        )

    def test_a_repeated_request_buys_nothing_more(self, port: CloudProvider) -> None:
        """Check that a repeated request buys nothing more."""
        port.launch(FIRST, {self.node_type: 2})
        port.launch(FIRST, {self.node_type: 2})
        self.comes_true(lambda: len(self.workers(port)) >= 2)
        port.launch(FIRST, {self.node_type: 2})
        self.quiet()
        promised(
            len(self.workers(port)) == 2,
            f"the same request for 2 machines, sent three times, left {len(self.workers(port))}",
            "launch is idempotent per request id, while the first call is under way and after it",
        )

    def test_another_request_buys_more_and_so_does_a_retry(self, port: CloudProvider) -> None:
        """Check that another request buys more and so does a retry."""
        self.launched(port, FIRST, 1)
        self.launched(port, SECOND, 1)
        last = self.launched(port, RequestId(f"{FIRST}~2.t-7"), 1)
        promised(
            len(last) == 3,
            f"two requests and the second attempt of one, one machine each, left {len(last)}",
            "request ids are compared as a whole: the second attempt of a request is a new one",
        )

    def test_released_machines_go_and_the_others_stay(self, port: CloudProvider) -> None:
        """Check that released machines go and the others stay."""
        first, *others = self.launched(port, FIRST, 3)
        port.terminate(RequestId("t-1"), [first])
        gone = self.comes_true(lambda: sorted(self.workers(port)) == sorted(others))
        promised(
            gone and not port.poll_terminate_failures(),
            f"terminate({first!r}) left {self.workers(port)}",
            "exactly the machines named go",
        )

    def test_terminating_again_or_terminating_strangers_is_a_success(self, port: CloudProvider) -> None:
        """Check that terminating again or terminating strangers is a success."""
        ids = self.launched(port, FIRST, 2)
        for request in ("t-1", "t-1", "t-2"):
            port.terminate(RequestId(request), [*ids, CloudId("nobody-knows-this-machine")])
        self.comes_true(lambda: not self.workers(port))
        port.terminate(RequestId("t-3"), ids)
        self.quiet()
        failures = port.poll_terminate_failures()
        promised(
            not failures and not self.workers(port),
            f"terminating the same again and again, with a stranger: {failures}, left {self.workers(port)}",
            "terminate is idempotent, and machines already gone are a success",
        )

    def test_units_that_fail_are_reported_one_by_one_and_once_and_the_others_come(
        self, port: CloudProvider
    ) -> None:
        """Check that units that fail are reported one by one and once and the others come."""
        port.launch(FIRST, {self.unknown_type: 2, self.node_type: 1})
        failures: list[LaunchFailure] = []
        self.comes_true(lambda: _collect(failures, port.poll_launch_failures()) >= 2)
        came = self.comes_true(lambda: len(self.workers(port)) == 1)
        shown = [(f.request_id, f.node_type, f.kind) for f in failures]
        promised(
            came and shown == [(FIRST, self.unknown_type, FailureKind.CONFIG)] * 2,
            f"2 of an unknown type and 1 of another: failures {shown}, {len(self.workers(port))} came",
            "each machine that will not come is one failure with its request and type; the others come",
        )
        self.quiet()
        again = port.poll_launch_failures()
        promised(
            not again, f"a second poll returned {again} again", "a failure is reported once: poll clears"
        )

    def test_a_launch_from_an_offer_is_as_idempotent_as_any_other(self, port: CloudProvider) -> None:
        """Check that a launch from an offer is as idempotent as any other."""
        if not port.traits().buys_offers:
            pytest.skip("traits().buys_offers is False: it is never given an offer")
        port.launch(FIRST, {self.node_type: 2}, (self.offer,))
        self.comes_true(lambda: len(self.workers(port)) >= 2)
        port.launch(FIRST, {self.node_type: 2}, (self.offer,))
        self.quiet()
        listed = [m for m in port.list_instances().values() if m.kind is NodeKind.WORKER]
        ways = {(m.zone, m.market) for m in listed if m.zone or m.market}
        promised(
            len(listed) == 2 and ways <= {(self.offer.zone, self.offer.market)},
            f"an offer for 2 machines, sent twice, left {len(listed)} with zone and market {ways}",
            "exactly the machines asked for come, from this offer and no other",
        )

    def test_nothing_asked_for_is_nothing_done(self, port: CloudProvider) -> None:
        """Check that a request for nothing does nothing."""
        port.launch(FIRST, {})
        port.launch(SECOND, {self.node_type: 0})
        port.terminate(RequestId("t-1"), [])
        self.quiet()
        done = self.workers(port), port.poll_launch_failures(), port.poll_terminate_failures()
        promised(done == ([], (), ()), f"empty requests left {done}", "an empty request changes nothing")


def _collect(failures: list[LaunchFailure], more: Sequence[LaunchFailure]) -> int:
    failures.extend(more)
    return len(failures)
