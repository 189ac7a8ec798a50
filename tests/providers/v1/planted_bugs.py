"""The dictionary provider with one bug each: what goes wrong in providers of real life.

`BUGS` says which promise each one breaks; `../contract/test_styles.py` runs the contract over them and
demands that every bug is found; pytest does not collect it by itself.
"""

from __future__ import annotations

import time

from tests.providers.v1 import dict_provider
from tests.providers.v1.dict_provider import DictNodeProvider

from muster.testing import ProviderContract


class SeenLate(DictNodeProvider):
    """New nodes are missing from the first listing: the cloud's list is behind."""

    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        self.hidden: set[str] = set()

    def create_node(self, node_config, tags, count):
        made = super().create_node(node_config, tags, count)
        self.hidden |= set(made)
        return made

    def non_terminated_nodes(self, tag_filters):
        hidden, self.hidden = self.hidden, set()
        return [n for n in super().non_terminated_nodes(tag_filters) if n not in hidden]


class OneTooFew(DictNodeProvider):
    """Swallows the error of the last node."""

    def create_node(self, node_config, tags, count):
        return super().create_node(node_config, tags, max(1, count - 1))


class LiesAboutIds(DictNodeProvider):
    """Returns the cloud's request numbers instead of node ids."""

    def create_node(self, node_config, tags, count):
        return {
            f"request-{number}": {} for number, _ in enumerate(super().create_node(node_config, tags, count))
        }


class GoneLate(DictNodeProvider):
    """Terminated nodes stay on the list while they shut down: for two looks."""

    def terminate_node(self, node_id):
        self.nodes[node_id]["looks_left"] = 2

    def non_terminated_nodes(self, tag_filters):
        for node_id, node in list(self.nodes.items()):
            if node.get("looks_left") == 0:
                super().terminate_node(node_id)
            elif "looks_left" in node:
                node["looks_left"] -= 1
        return super().non_terminated_nodes(tag_filters)


class EndsTheWrongOne(DictNodeProvider):
    """terminate_nodes ends everything."""

    def terminate_nodes(self, node_ids):
        for node_id in self.non_terminated_nodes({}):
            self.terminate_node(node_id)


class OldTagsAgain(DictNodeProvider):
    """Ids are places in a list: a free place is used again, and keeps what it was tagged with."""

    def create_node(self, node_config, tags, count):
        made = {}
        for _ in range(count):
            taken = set(self.non_terminated_nodes({}))
            free = next(f"slot-{n}" for n in range(1000) if f"slot-{n}" not in taken)
            kept = self.nodes.get(free, {"tags": tags})["tags"]
            self.nodes[free] = {"state": "running", "tags": {**tags, **kept}, "ip": f"10.9.0.{free[5:]}"}
            made[free] = {}
        return made


class OneAddress(DictNodeProvider):
    """Everything is on this computer."""

    def internal_ip(self, node_id):
        return "127.0.0.1"


class TagsLate(DictNodeProvider):
    """Tags are written by another call, after create returned: the first read is too early."""

    def create_node(self, node_config, tags, count):
        made = super().create_node(node_config, tags, count)
        for node_id in made:
            self.nodes[node_id]["unread"] = True
        return made

    def node_tags(self, node_id):
        return {} if self.nodes[node_id].pop("unread", False) else super().node_tags(node_id)


class TagsReplaced(DictNodeProvider):
    """set_node_tags forgets the other tags."""

    def set_node_tags(self, node_id, tags):
        self.nodes[node_id]["tags"] = dict(tags)


class TagsShared(DictNodeProvider):
    """All nodes of one create call share one dictionary of tags."""

    def create_node(self, node_config, tags, count):
        made = super().create_node(node_config, tags, count)
        for node_id in made:
            self.nodes[node_id]["tags"] = tags
        return made


class LooseFilter(DictNodeProvider):
    """One matching tag is enough."""

    def non_terminated_nodes(self, tag_filters):
        everything = super().non_terminated_nodes({})
        return [
            n for n in everything if not tag_filters or tag_filters.items() & self.nodes[n]["tags"].items()
        ]


class OneBigCluster(DictNodeProvider):
    """cluster_name is not looked at."""

    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        self.nodes = dict_provider._clusters.setdefault("all", {})


class Forgetful(DictNodeProvider):
    """What it knows dies with the object."""

    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        self.nodes = {}


class ForgetsTags(DictNodeProvider):
    """Nodes survive, tags do not."""

    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        for node in self.nodes.values():
            node["tags"] = {k: v for k, v in node["tags"].items() if k.startswith("ray-node")}


class NeverRuns(DictNodeProvider):
    """Nodes stay pending forever."""

    def is_running(self, node_id):
        return False


class RunsAfterDeath(DictNodeProvider):
    """A terminated node still counts as running."""

    def is_running(self, node_id):
        return True


class FindsTheDead(DictNodeProvider):
    """get_node_id answers with the first node it ever saw."""

    def get_node_id(self, ip_address, use_internal_ip=False):
        return next(iter(self.nodes))


class LosesInThreads(DictNodeProvider):
    """Tags are read, changed and written back without a lock."""

    def set_node_tags(self, node_id, tags):
        read = dict(self.nodes[node_id]["tags"])
        time.sleep(0.05)
        self.nodes[node_id]["tags"] = {**read, **tags}


class TripsInThreads(DictNodeProvider):
    """One call at a time, please."""

    busy = False

    def create_node(self, node_config, tags, count):
        if self.busy:
            raise RuntimeError("the connection is in use")
        self.busy = True
        time.sleep(0.05)
        try:
            return super().create_node(node_config, tags, count)
        finally:
            self.busy = False


class NoRequestTag(DictNodeProvider):
    """Keeps the tags it knows and drops the others, the request among them."""

    def create_node(self, node_config, tags, count):
        known = {k: v for k, v in tags.items() if k != "ray-launch-request"}
        return super().create_node(node_config, known, count)


class GoneIsAnError(DictNodeProvider):
    """An unknown id breaks the listing, too."""

    broken = False

    def terminate_node(self, node_id):
        self.broken = self.broken or node_id not in self.nodes
        super().terminate_node(node_id)

    def non_terminated_nodes(self, tag_filters):
        if self.broken:
            raise ConnectionError("the session is broken")
        return super().non_terminated_nodes(tag_filters)


# Bug -> the tests of the contract that must fail for it (others may fail as well).
BUGS: dict[type, tuple[str, ...]] = {
    SeenLate: ("test_as_many_nodes_as_asked_for_are_listed_when_create_returns",),
    OneTooFew: ("test_as_many_nodes_as_asked_for_are_listed_when_create_returns",),
    LiesAboutIds: ("test_ids_that_create_returns_are_those_listed",),
    GoneLate: ("test_a_terminated_node_is_not_listed_any_more_and_the_others_stay",),
    EndsTheWrongOne: ("test_several_are_terminated_with_one_call",),
    OldTagsAgain: ("test_an_id_that_is_used_again_stands_for_the_new_node",),
    OneAddress: ("test_no_two_living_nodes_have_the_same_address", "test_a_node_is_found_by_its_address"),
    TagsLate: ("test_tags_given_to_create_are_read_at_once",),
    TagsReplaced: ("test_tags_are_merged_and_read_at_once",),
    TagsShared: ("test_tags_are_merged_and_read_at_once",),
    LooseFilter: ("test_a_listing_by_tags_matches_all_of_them",),
    OneBigCluster: ("test_a_cluster_sees_only_its_own_nodes",),
    Forgetful: ("test_a_second_object_sees_and_ends_the_same_nodes",),
    ForgetsTags: ("test_a_second_object_sees_and_ends_the_same_nodes",),
    NeverRuns: ("test_running_and_terminated_agree_with_the_list",),
    RunsAfterDeath: ("test_running_and_terminated_agree_with_the_list",),
    FindsTheDead: ("test_a_node_is_found_by_its_address",),
    LosesInThreads: ("test_no_tag_is_lost_when_many_threads_tag_one_node",),
    TripsInThreads: ("test_nodes_made_tagged_and_ended_by_many_threads_come_out_right",),
    NoRequestTag: (
        "test_a_launched_machine_is_listed_with_its_type_request_and_hash",
        "test_a_launch_repeated_after_a_restart_buys_what_is_missing",
    ),
    GoneIsAnError: ("test_terminating_again_and_terminating_strangers_succeeds",),
}


def _contract_over(provider_class: type) -> type:
    def make_provider(self, cluster_name):
        return provider_class({}, cluster_name)

    body = {"make_provider": make_provider, "starts_within_s": 0.2}
    return type(f"Test{provider_class.__name__}", (ProviderContract,), body)


globals().update({f"Test{bug.__name__}": _contract_over(bug) for bug in BUGS})
