"""`muster up` applies a RayCluster as kubectl does on the server's side: also on a real API server."""

from __future__ import annotations

from tests.kube.api_server import NAMESPACE
from tests.kube.operator import ray_cluster, worker_group

from muster.providers.kuberay.client import KubePaths
from muster.providers.kuberay.manage import RayClusterManager


def test_fields_that_left_the_file_are_removed_and_those_of_others_stay(world, request):
    client = world.client(token=world.server.admin_token)
    request.addfinalizer(client.close)
    manager = RayClusterManager(client, KubePaths(NAMESPACE, "demo"))
    made = ray_cluster("demo", worker_group("small", 1), autoscalerOptions={"idleTimeoutSeconds": 9})
    made["metadata"]["annotations"] = {"mine": "1"}
    assert [manager.apply(made), manager.apply(made)] == ["created", "as it was"]
    world.admin.edit_group(0, replicas=3)
    world.admin.merge_cluster({"metadata": {"annotations": {"theirs": "2"}}})
    del made["spec"]["autoscalerOptions"]
    made["metadata"]["annotations"] = {}
    assert manager.apply(made) == "changed"
    found = world.admin.cluster()
    assert "autoscalerOptions" not in found["spec"]
    assert (found["metadata"]["annotations"], world.size()[0]) == ({"theirs": "2"}, 3)
