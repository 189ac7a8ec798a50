"""Provides CloudProviderContract: what the autoscaler's loop relies on, for any implementation of the port.

Example:
    class TestMyCloud(CloudProviderContract):
        def open_provider(self):
            return MyCloud(types=("cpu",))
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import pytest

from muster.base.clock import SystemClock
from muster.base.ids import CloudId, RequestId
from muster.cluster.model import FailureKind, LaunchFailure, NodeKind, Offer
from muster.cluster.ports import CloudProvider
from muster.providers.contract.watch import promised

FIRST, SECOND = RequestId("r-first"), RequestId("r-second")


class CloudProviderContract:
    """A CloudProviderContract opens a provider without workers, and defines how time passes for it."""

    node_type: ClassVar[str] = "cpu"
    unknown_type: ClassVar[str] = "no-such-type"
    offer: ClassVar[Offer] = Offer(zone="a", market="on-demand")  # for a provider that buys offers
    patience: ClassVar[int] = 500  # how often `pass_time` is called before something counts as not happening

    def open_provider(self) -> CloudProvider:
        raise NotImplementedError(f"{type(self).__name__} must define open_provider(self)")

    def pass_time(self) -> None:
        """Lets time pass: a moment of real time, unless the world is simulated."""
        SystemClock().sleep(0.01)

    @pytest.fixture
    def port(self) -> CloudProvider:
        return self.open_provider()

    def workers(self, port: CloudProvider) -> list[CloudId]:
        return [m.cloud_id for m in port.list_instances().values() if m.kind is NodeKind.WORKER]

    def comes_true(self, holds: Callable[[], bool]) -> bool:
        for _ in range(self.patience):
            if holds():
                return True
            self.pass_time()
        return holds()

    def quiet(self) -> None:
        """Waits long enough for anything wrong to show."""
        for _ in range(20):
            self.pass_time()

    def bought(self, port: CloudProvider, request_id: RequestId, count: int) -> list[CloudId]:
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
        self.bought(port, FIRST, 3)
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
        self.bought(port, FIRST, 1)
        self.bought(port, SECOND, 1)
        last = self.bought(port, RequestId(f"{FIRST}~2.t-7"), 1)
        promised(
            len(last) == 3,
            f"two requests and the second attempt of one, one machine each, left {len(last)}",
            "request ids are compared as a whole: the second attempt of a request is a new one",
        )

    def test_machines_given_back_go_and_the_others_stay(self, port: CloudProvider) -> None:
        first, *others = self.bought(port, FIRST, 3)
        port.terminate(RequestId("t-1"), [first])
        gone = self.comes_true(lambda: sorted(self.workers(port)) == sorted(others))
        promised(
            gone and not port.poll_terminate_failures(),
            f"terminate({first!r}) left {self.workers(port)}",
            "exactly the machines named go",
        )

    def test_giving_back_again_or_giving_back_strangers_is_a_success(self, port: CloudProvider) -> None:
        ids = self.bought(port, FIRST, 2)
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
        port.launch(FIRST, {})
        port.launch(SECOND, {self.node_type: 0})
        port.terminate(RequestId("t-1"), [])
        self.quiet()
        done = self.workers(port), port.poll_launch_failures(), port.poll_terminate_failures()
        promised(done == ([], (), ()), f"empty requests left {done}", "an empty request changes nothing")


def _collect(failures: list[LaunchFailure], more: Sequence[LaunchFailure]) -> int:
    failures.extend(more)
    return len(failures)
