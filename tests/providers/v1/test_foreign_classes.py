"""What classes written for Ray may override, and settings that they are used with."""

from __future__ import annotations

import pytest
from tests.providers.v1.dict_provider import DictNodeProvider
from tests.providers.v1.scripted import LAUNCHES, adapted

from muster.autoscaler import BatchingNodeProvider, tags
from muster.base.clock import ManualClock
from muster.base.ids import CountingIds
from muster.cluster.model import NodeKind
from muster.config.document import Document
from muster.providers.batching import NodeData, submitting
from muster.providers.kind import ProviderContext, parse_config
from muster.providers.v1.kind import adapt


class Sized(DictNodeProvider):
    """Overrides the method between Ray's oldest and newest."""

    sizes: list

    def create_node_with_resources(self, node_config, tags, count, resources):
        self.sizes.append(resources)
        return self.create_node(node_config, tags, count)


class Labeled(Sized):
    """Overrides the newest as well, in a class of its own."""

    def create_node_with_resources_and_labels(self, node_config, tags, count, resources, labels):
        self.sizes.append((resources, labels))
        return self.create_node(node_config, tags, count)


class Collecting(BatchingNodeProvider):
    def __init__(self, provider_config, cluster_name):
        settings = ("disable_node_updaters", "disable_launch_config_check", "foreground_node_launch")
        super().__init__({**provider_config, **dict.fromkeys(settings, True)}, cluster_name)
        self.sizes = []

    def get_node_data(self):
        return {"head": NodeData(kind="head", type="head", ip="10.0.0.1", status="up-to-date")}

    def submit_scale_request(self, scale_request):
        pass

    def create_node_with_resources(self, node_config, tags, count, resources):
        self.sizes.append(resources)
        self.create_node(node_config, tags, count)


@pytest.mark.parametrize(
    ("kind", "received"),
    [(Sized, {"CPU": 4}), (Labeled, ({"CPU": 4}, {"zone": "a"})), (Collecting, {"CPU": 4})],
)
def test_the_method_that_a_class_overrides_is_called(kind, received):
    provider = kind({}, f"overrides-{kind.__name__}")
    provider.sizes = []
    port = adapted(submitting(provider))
    port.launch("r-1", {"cpu": 1})
    assert (provider.sizes, port.poll_launch_failures()) == ([received], ())


class Recorded(DictNodeProvider):
    """Keeps machines that are terminated, as a class with local state does; `ended` has every call."""

    def __init__(self, provider_config, cluster_name):
        super().__init__(provider_config, cluster_name)
        self.ended = []

    def nodes_for_teardown(self, tag_filters):
        return [name for name, node in self.nodes.items() if tag_filters.items() <= node["tags"].items()]

    def external_ip(self, node_id):
        return f"outside-{node_id}"

    def terminate_node(self, node_id):
        self.ended.append(node_id)
        super().terminate_node(node_id)


def made(provider, kind):
    return next(iter(provider.create_node({}, {tags.TAG_RAY_NODE_KIND: kind}, 1)))


def test_machines_for_teardown_alone_are_those_that_are_not_listed():
    provider = Recorded({}, "teardown")
    gone, alive = made(provider, "worker"), made(provider, "worker")
    head = made(provider, "head")
    provider.terminate_node(gone)
    port = adapted(provider)
    assert port.left_to_tear_down(NodeKind.WORKER) == [gone]
    assert alive in [machine.node_id for machine in port.machines(NodeKind.WORKER)]
    assert (port.left_to_tear_down(NodeKind.HEAD), head in provider.nodes) == ([], True)


FILE = """
cluster_name: addresses
provider: {{type: external, module: a.B, use_internal_ips: {inside}, use_external_head_ip: {outside}}}
available_node_types: {{head: {{resources: {{}}}}, cpu: {{resources: {{CPU: 1}}}}}}
head_node_type: head
"""


@pytest.mark.parametrize(
    ("inside", "outside", "head_is_outside", "worker_is_outside"),
    [(False, False, True, True), (True, False, False, False), (True, True, True, False)],
)
def test_commands_reach_the_head_by_its_external_address_where_the_file_says_so(
    tmp_path, inside, outside, head_is_outside, worker_is_outside
):
    provider = Recorded({}, f"addresses-{inside}-{outside}")
    head, worker = made(provider, "head"), made(provider, "worker")
    text = FILE.format(inside=str(inside).lower(), outside=str(outside).lower())
    config = parse_config(Document(text, "cluster.yaml"))
    context = ProviderContext(
        cluster_name="addresses", home=tmp_path, address="", clock=ManualClock(), ids=CountingIds()
    )
    port = adapt(config, provider, lambda: LAUNCHES, context)
    reached = [port.address(node_id, is_inside=False) for node_id in (head, worker)]
    assert [ip.startswith("outside") for ip in reached] == [head_is_outside, worker_is_outside]
    assert port.machines(NodeKind.HEAD)[0].ip == reached[0]
    assert not port.address(head, is_inside=True).startswith("outside")  # workers are in the same network
    port.close()


def test_rays_names_of_tags_have_rays_values():
    assert {name: value for name, value in vars(tags).items() if name.isupper()} == {
        "NODE_KIND_HEAD": "head",
        "NODE_KIND_UNMANAGED": "unmanaged",
        "NODE_KIND_WORKER": "worker",
        "NODE_TYPE_LEGACY_HEAD": "ray-legacy-head-node-type",
        "NODE_TYPE_LEGACY_WORKER": "ray-legacy-worker-node-type",
        "STATUS_SETTING_UP": "setting-up",
        "STATUS_SYNCING_FILES": "syncing-files",
        "STATUS_UNINITIALIZED": "uninitialized",
        "STATUS_UPDATE_FAILED": "update-failed",
        "STATUS_UP_TO_DATE": "up-to-date",
        "STATUS_WAITING_FOR_SSH": "waiting-for-ssh",
        "TAG_RAY_CLUSTER_NAME": "ray-cluster-name",
        "TAG_RAY_FILE_MOUNTS_CONTENTS": "ray-file-mounts-contents",
        "TAG_RAY_LAUNCH_CONFIG": "ray-launch-config",
        "TAG_RAY_LAUNCH_REQUEST": "ray-launch-request",
        "TAG_RAY_NODE_KIND": "ray-node-type",
        "TAG_RAY_NODE_NAME": "ray-node-name",
        "TAG_RAY_NODE_STATUS": "ray-node-status",
        "TAG_RAY_REPLICA_INDEX": "ray-replica-index",
        "TAG_RAY_RUNTIME_CONFIG": "ray-runtime-config",
        "TAG_RAY_USER_NODE_TYPE": "ray-user-node-type",
    }
