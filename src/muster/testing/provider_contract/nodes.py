"""Tests nodes: seen at once, gone at once, each with its own id and address, none lost."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from muster.testing.provider_contract.fixture import ProviderFixture, promised


class NodePromises(ProviderFixture):
    """NodePromises test nodes from created to terminated."""

    def test_as_many_nodes_as_asked_for_are_listed_when_create_returns(self, provider: Any) -> None:  # noqa: ANN401
        new = self.create(provider, self.several)
        promised(
            len(new) == self.several and len(set(new)) == self.several,
            f"create_node(count={self.several}) returned, and non_terminated_nodes({{}}) lists {new}",
            "as many nodes as asked for, each once, are listed as soon as create_node returns",
        )

    def test_ids_that_create_returns_are_those_listed(self, provider: Any) -> None:  # noqa: ANN401
        returned = self.call_create(provider, self.tags(provider), self.several)
        listed = set(provider.non_terminated_nodes({}))
        promised(
            returned is None or (isinstance(returned, dict) and set(returned) == listed),
            f"create_node returned {returned!r}, listed are {sorted(listed)}",
            "create_node returns None, or a dict whose keys are the ids of the nodes it made",
        )

    def test_a_terminated_node_is_not_listed_any_more_and_the_others_stay(self, provider: Any) -> None:  # noqa: ANN401
        new = self.create(provider, self.several)
        provider.terminate_node(new[0])
        left = provider.non_terminated_nodes({})
        promised(
            new[0] not in left,
            f"terminate_node({new[0]!r}) returned, and the node is still listed",
            "a node is not listed any more once terminate_node has returned",
        )
        promised(
            set(left) == set(new[1:]),
            f"terminate_node({new[0]!r}) left {sorted(left)} of {sorted(new)}",
            "terminate_node ends the node it was asked to end and no other",
        )

    def test_several_are_terminated_with_one_call(self, provider: Any) -> None:  # noqa: ANN401
        new = self.create(provider, self.several)
        provider.terminate_nodes(new[:-1])
        left = provider.non_terminated_nodes({})
        promised(
            list(left) == new[-1:],
            f"terminate_nodes({new[:-1]}) left {left}",
            "terminate_nodes ends all nodes it is given, and no other",
        )

    def test_an_id_that_is_used_again_stands_for_the_new_node(self, provider: Any) -> None:  # noqa: ANN401
        first = self.create(provider, self.several)
        provider.terminate_nodes(first)
        second = self.create(provider, self.several, request="r-2")
        requests = {node_id: provider.node_tags(node_id).get("ray-launch-request") for node_id in second}
        promised(
            len(second) == self.several and set(requests.values()) == {"r-2"},
            f"after terminating {first}, new nodes of request r-2 are listed with requests {requests}",
            "an id may be used again once its node is terminated; it then has the tags of the new launch, by"
            " which the autoscaler tells the new node from the old one",
        )

    def test_no_two_living_nodes_have_the_same_address(self, provider: Any) -> None:  # noqa: ANN401
        new = self.create(provider, self.several)
        self.until(lambda: all(provider.internal_ip(node_id) for node_id in new))
        for question in ("internal_ip", "external_ip"):
            known = {n: getattr(provider, question)(n) for n in provider.non_terminated_nodes({})}
            shown = [ip for ip in known.values() if ip]
            promised(
                len(shown) == len(set(shown)),
                f"{question} of living nodes: {known}",
                "an address belongs to one living node (None while there is none)",
            )

    def test_running_and_terminated_agree_with_the_list(self, provider: Any) -> None:  # noqa: ANN401
        node_id = self.create(provider)[0]
        promised(
            not provider.is_terminated(node_id),
            f"is_terminated({node_id!r}) is True, although the node is listed",
            "a listed node is not terminated",
        )
        promised(
            self.until(lambda: provider.is_running(node_id)),
            f"is_running({node_id!r}) was not True within {self.starts_within_s:g} s",
            "a node that was created is running after a while (starts_within_s of your contract class)",
        )
        provider.terminate_node(node_id)
        promised(
            provider.is_terminated(node_id) and not provider.is_running(node_id),
            f"after terminate_node: is_terminated {provider.is_terminated(node_id)},"
            f" is_running {provider.is_running(node_id)}",
            "a node that was terminated is terminated and not running, also when asked later",
        )

    def test_a_node_is_found_by_its_address(self, provider: Any) -> None:  # noqa: ANN401
        new = self.create(provider, self.several)
        self.until(lambda: all(provider.internal_ip(node_id) for node_id in new))
        for node_id in new:
            ip = provider.internal_ip(node_id)
            if ip is None:
                continue
            found = provider.get_node_id(ip, use_internal_ip=True)
            promised(
                found == node_id,
                f"get_node_id({ip!r}, use_internal_ip=True) is {found!r}, not {node_id!r}",
                "get_node_id finds the living node with that address",
            )
        self._expect_value_error(provider)

    def _expect_value_error(self, provider: Any) -> None:  # noqa: ANN401
        try:
            found = provider.get_node_id("203.0.113.255", use_internal_ip=True)
        except ValueError:
            return
        raise AssertionError(
            f"get_node_id of an unused address returned {found!r}\n"
            "  The promise: it raises ValueError when no living node has the address"
        )

    def test_a_cluster_sees_only_its_own_nodes(self, clusters: Callable[[], str]) -> None:
        ours, theirs = self.make_provider(clusters()), self.make_provider(clusters())
        mine, other = self.create(ours), self.create(theirs)
        seen = ours.non_terminated_nodes({}), theirs.non_terminated_nodes({})
        promised(
            [list(ids) for ids in seen] == [mine, other],
            f"cluster {ours.cluster_name!r} made {mine} and sees {seen[0]};"
            f" cluster {theirs.cluster_name!r} made {other} and sees {seen[1]}",
            "nodes are kept apart by cluster_name: one cluster must never end another's machines",
        )

    def test_a_second_object_sees_and_ends_the_same_nodes(self, provider: Any, cluster_name: str) -> None:  # noqa: ANN401
        new = self.create(provider, self.several, note="kept")
        second = self.make_provider(cluster_name)
        listed = second.non_terminated_nodes({})
        promised(
            sorted(listed) == sorted(new),
            f"one object made {sorted(new)}; a new object for the same cluster lists {sorted(listed)}",
            "what is known of the nodes survives the object: the monitor is restarted now and then",
        )
        notes = [second.node_tags(node_id).get("note") for node_id in new]
        promised(
            notes == ["kept"] * self.several,
            f"the tag note='kept' reads {notes} through a new object for the same cluster",
            "tags survive the object: they show which cluster owns a machine",
        )
        second.terminate_node(new[0])
        left = self.make_provider(cluster_name).non_terminated_nodes({})
        promised(
            sorted(left) == sorted(new[1:]),
            f"a new object terminated {new[0]!r}; the next one lists {sorted(left)}",
            "any object of a cluster can terminate its nodes, and any other sees it",
        )
