"""Tests a provider through the adapter: what the autoscaler relies on when it restarts or repeats itself."""

from __future__ import annotations

from typing import Any

from muster.base.ids import CloudId, RequestId
from muster.cluster.model import CloudInstance
from muster.testing.provider_contract.fixture import ProviderFixture, promised


class AdapterPromises(ProviderFixture):
    """AdapterPromises test the provider as the autoscaler sees it."""

    def test_a_launched_machine_is_listed_with_its_type_request_and_hash(
        self,
        provider: Any,  # noqa: ANN401
        cluster_name: str,
    ) -> None:
        port = self.adapter(provider, cluster_name)
        port.launch(RequestId("r-1"), {self.node_type: 1})
        failures = port.poll_launch_failures()
        promised(not failures, f"the launch failed: {failures}", "a launch that can be served is served")
        listed = [(m.node_type, m.request_id, m.launch_hash) for m in port.list_instances().values()]
        promised(
            listed == [(self.node_type, "r-1", "hash")],
            f"one machine was launched; the autoscaler reads (type, request, hash) {listed}",
            "a machine can be matched to its launch by the tags it was created with",
        )

    def test_a_repeated_launch_buys_nothing_more(self, provider: Any, cluster_name: str) -> None:  # noqa: ANN401
        port = self.adapter(provider, cluster_name)
        for _ in range(2):
            port.launch(RequestId("r-1"), {self.node_type: self.several})
        self._expect(port.list_instances(), self.several, "the same launch request was sent twice")

    def test_a_launch_repeated_after_a_restart_buys_what_is_missing(
        self,
        provider: Any,  # noqa: ANN401
        cluster_name: str,
    ) -> None:
        self.adapter(provider, cluster_name).launch(RequestId("r-1"), {self.node_type: 1})
        restarted = self.adapter(self.make_provider(cluster_name), cluster_name)
        restarted.launch(RequestId("r-1"), {self.node_type: 2})
        self._expect(
            restarted.list_instances(), 2, "a launch request of 2, of which 1 was made before a restart"
        )

    def test_terminating_again_and_terminating_strangers_is_no_failure(
        self,
        provider: Any,  # noqa: ANN401
        cluster_name: str,
    ) -> None:
        port = self.adapter(provider, cluster_name)
        port.launch(RequestId("r-1"), {self.node_type: 2})
        ids = list(port.list_instances())
        port.terminate(RequestId("t-1"), ids)
        port.terminate(RequestId("t-2"), [*ids, CloudId("nobody-knows-this-node")])
        failures = port.poll_terminate_failures()
        promised(
            not failures and not port.list_instances(),
            f"terminating {ids}, then the same and an unknown id: failures {failures}",
            "machines already gone are no error (raising is fine, as long as they are not listed)",
        )

    def _expect(self, listed: Any, count: int, what: str) -> None:  # noqa: ANN401 - a mapping
        machines: list[CloudInstance] = list(listed.values())
        promised(
            len(machines) == count,
            f"{what}: there are {len(machines)} machines, not {count}",
            "machines of a request are found by non_terminated_nodes with its ray-launch-request tag, so that"
            " a repeated request never buys twice",
        )
