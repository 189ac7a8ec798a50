"""How the monitor is put together: where the head is, how to authenticate, what is said when it cannot."""

from __future__ import annotations

import os
import threading

import pytest
from tests.mistakes.views import assert_line

from muster.autoscaler.build import MonitorOptions, StartCancelled, build_monitor, reach_head
from muster.autoscaler.connect import HeadAddress, find_head_address
from muster.autoscaler.home import ClusterHome
from muster.autoscaler.status_files import ClusterRecord, write_record
from muster.base.clock import ManualClock, SystemClock
from muster.errors import ClusterError, ConfigError, EngineUnreachable, LedgerLocked
from muster.runtimes.ray.client import GcsClient
from muster.runtimes.ray.node_source import FRESH_S, GcsNodeSource
from muster.stores.ledger.store import SqliteInstanceStore

CONFIG = """
cluster_name: c1
provider: {type: readonly}
available_node_types:
  head: {resources: {CPU: 1}, node_config: {}}
"""


@pytest.fixture
def home(tmp_path):
    path = tmp_path / "home"
    path.mkdir()
    return ClusterHome(path)


@pytest.fixture
def config(tmp_path):
    file = tmp_path / "cluster.yaml"
    file.write_text(CONFIG, encoding="utf-8")
    return file


def noted(home, **changes):
    record = ClusterRecord(cluster_name="c1", config="c.yaml", address="10.0.0.1:1", **changes)
    write_record(home, record)


def test_the_address_is_what_was_said_then_the_environment_then_what_up_noted(home):
    noted(home)
    environment = {"RAY_ADDRESS": "10.0.0.2:2"}
    assert find_head_address(home, "10.0.0.3:3", environment).address == "10.0.0.3:3"
    assert find_head_address(home, None, environment).address == "10.0.0.2:2"
    assert find_head_address(home, None, {}).address == "10.0.0.1:1"


def test_an_address_that_nobody_knows_is_asked_for(home):
    with pytest.raises(ClusterError, match="--address"):
        find_head_address(home, None, {})


def test_the_token_is_that_of_the_environment_then_of_up_then_of_the_home(home):
    home.token.write_text("secret", encoding="utf-8")
    of_home = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(home.token)}
    assert find_head_address(home, "h:1", {}).auth == of_home
    noted(home, auth={"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": "/elsewhere"})
    assert find_head_address(home, "h:1", {}).auth["RAY_AUTH_TOKEN_PATH"] == "/elsewhere"
    given = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret", "PATH": "/bin"}
    reach = find_head_address(home, "h:1", given)
    assert reach.auth == {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "secret"}
    assert "secret" not in repr(reach)


def options(config, home, address="127.0.0.1:1"):
    return MonitorOptions(config=config, home=home, head=HeadAddress(address))


@pytest.mark.slow
def test_a_ledger_that_is_in_use_is_said_with_the_process_that_has_it(config, home):

    with (
        SqliteInstanceStore(home.ledger, clock=SystemClock()),
        pytest.raises(LedgerLocked, match=f"{os.getpid()}"),
    ):
        build_monitor(options(config, home), {}, threading.Event())


def test_what_was_opened_is_closed_when_a_later_step_fails(config, home):
    stop = threading.Event()
    stop.set()
    for _ in range(2):  # were the ledger still locked, the second would say so
        with pytest.raises(StartCancelled):
            build_monitor(options(config, home), {}, stop)


def test_a_provider_that_cannot_be_built_is_refused_before_the_head_is_waited_for(config, home):
    config.write_text(CONFIG.replace("readonly", "spark"), encoding="utf-8")
    stop = threading.Event()
    stop.set()  # were the head waited for first, the start would be cancelled
    with pytest.raises(ConfigError, match="spark"):
        build_monitor(options(config, home), {}, stop)


def test_the_process_that_starts_nodes_imports_ray_while_the_head_is_waited_for(config, home):
    config.write_text(CONFIG.replace("readonly", "process"), encoding="utf-8")
    stop = threading.Event()
    stop.set()
    with pytest.raises(StartCancelled):
        build_monitor(options(config, home), {}, stop)
    assert (home.nodes / "fork_server.log").exists()


def test_an_address_that_cannot_be_one_is_not_waited_for(config, home):
    with pytest.raises(EngineUnreachable, match=r"auto.*GCS"):
        build_monitor(options(config, home, "auto"), {}, threading.Event())


def test_a_config_that_cannot_be_used_is_said_with_its_line(config, home):
    config.write_text(CONFIG.replace("CPU: 1", "CPU: lots"), encoding="utf-8")
    with pytest.raises(ConfigError, match=r"cluster.yaml:5: .*CPU"):
        build_monitor(options(config, home), {}, threading.Event())


class NoHead(GcsClient):
    """Refuses so often, then is still starting, then is there."""

    def __init__(self, refusals):
        super().__init__("127.0.0.1:1")
        self.left = refusals

    def connect(self):
        if self.left > 1:
            self.left -= 1
            raise EngineUnreachable("no Ray GCS answers")

    def session_name(self):
        self.left -= 1
        return "" if self.left == 0 else "session_1"


class Waits:
    def __init__(self):
        self.pauses = []

    def is_set(self):
        return False

    def wait(self, timeout):
        self.pauses.append(timeout)
        return False


def test_a_head_that_is_not_up_is_waited_for_and_said_once(caplog):
    waits = Waits()
    assert reach_head(NoHead(8), waits) == "session_1"
    assert waits.pauses == [0.25, 0.5, 1.0, 2.0, 4.0, 5.0, 5.0, 5.0]
    (warning,) = caplog.messages
    assert_line("autoscaler", "waiting for the head", warning)


def test_a_gcs_that_restarted_and_counts_from_zero_is_believed_at_once():
    from ray.core.generated import autoscaler_pb2

    class Counting(GcsClient):
        versions = iter([7, 8, 1, 2, 3, 1])

        def resource_state(self):
            reply = autoscaler_pb2.GetClusterResourceStateReply()
            reply.cluster_resource_state.cluster_resource_state_version = next(self.versions)
            return reply.SerializeToString()

    nodes = GcsNodeSource(Counting("127.0.0.1:1"))
    assert [nodes.read().version for _ in range(6)] == [7, 8, 9, 10, 11, 12]


def test_a_request_that_has_just_moved_to_a_new_node_is_not_bought_for_twice():
    """As seen on Ray: the new node is full, and the head still reports the request that it passed on."""
    clock = ManualClock(100.0)
    states = iter(
        [
            [("head", 0.0, 0.0)],
            [("head", 0.0, 0.0), ("new", 1.0, 1.0)],  # it joins, free
            [("head", 0.0, 0.0), ("new", 1.0, 0.0)],  # the request is on both
            [("head", 0.0, 0.0), ("new", 1.0, 0.0)],  # and now it is not
        ]
    )

    class Moving(GcsClient):
        def resource_state(self):
            from ray.core.generated import autoscaler_pb2

            reply = autoscaler_pb2.GetClusterResourceStateReply()
            for name, total, free in next(states):
                node = reply.cluster_resource_state.node_states.add(node_id=name.encode(), status=1)
                node.total_resources["CPU"], node.available_resources["CPU"] = total, free
            return reply.SerializeToString()

    nodes = GcsNodeSource(Moving("127.0.0.1:1"), clock)
    free = []
    for wait_s in (0.2, 0.2, 0.2, FRESH_S):
        clock.advance(wait_s)
        free.append([node.available.to_floats().get("CPU", 0) for node in nodes.read().nodes])
    assert free == [[0], [0, 1], [0, 1], [0, 0]]


def test_nodes_that_were_there_before_the_monitor_are_as_full_as_they_report():
    from ray.core.generated import autoscaler_pb2

    class Full(GcsClient):
        def resource_state(self):
            reply = autoscaler_pb2.GetClusterResourceStateReply()
            node = reply.cluster_resource_state.node_states.add(node_id=b"old", status=1)
            node.total_resources["CPU"], node.available_resources["CPU"] = 1.0, 0.0
            return reply.SerializeToString()

    (node,) = GcsNodeSource(Full("127.0.0.1:1"), ManualClock(100.0)).read().nodes
    assert node.available.to_floats().get("CPU", 0) == 0
