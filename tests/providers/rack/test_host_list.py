from __future__ import annotations

import pytest

from muster.config.document import Document
from muster.config.to_spec import to_spec
from muster.errors import ConfigError
from muster.providers.kind import parse_config
from muster.providers.rack.host_list import RackHost, rack_hosts

TYPES = (
    "available_node_types: {small: {resources: {CPU: 2}}, big: {resources: {CPU: 64}}}\n"
    "head_node_type: small\n"
)


def parsed(text: str):
    return parse_config(Document(text, "c.yaml"))


def refusal(text: str) -> str:
    with pytest.raises(ConfigError) as caught:
        parsed(text)
    return str(caught.value)


def test_hosts_have_their_own_size_port_and_user_and_the_rest_from_auth():
    config = parsed(
        "provider:\n  type: local\n  head_ip: 10.0.0.1\n  worker_ips: [10.0.0.3]\n  hosts:\n"
        "  - {ip: 10.0.0.2, type: small}\n  - {ip: rack-12, type: big, ssh_port: 2222, user: ops}\n"
        "auth: {ssh_user: me, ssh_private_key: /k, ssh_proxy_command: 'nc %h'}\n" + TYPES
    )
    shared = {"private_key": "/k", "proxy_command": "nc %h"}
    assert list(rack_hosts(config).values()) == [
        RackHost(ip="10.0.0.1", node_type="small", is_head=True, user="me", **shared),
        RackHost(ip="10.0.0.2", node_type="small", user="me", **shared),
        RackHost(ip="rack-12", node_type="big", port=2222, user="ops", **shared),
        RackHost(ip="10.0.0.3", node_type="big", user="me", **shared),  # the only type beside the head's
    ]


def test_there_are_as_many_of_a_type_as_are_listed_and_their_size_may_be_left_to_the_hosts():
    config = parsed(
        "provider: {type: local,\n"
        "  hosts: [{ip: h, head: true, ssh_port: 23}, {ip: a, type: big}, {ip: b, type: big}]}\n"
        "available_node_types: {small: {resources: {CPU: 2}}, big: {}}\nhead_node_type: small\n"
    )
    limits = {name: (t.min_workers, t.max_workers) for name, t in config.available_node_types.items()}
    assert (config.max_workers, limits) == (2, {"small": (0, 0), "big": (0, 2)})
    assert config.available_node_types["big"].resources == {}
    assert rack_hosts(config)["h"].port == 23


def test_the_planner_knows_how_many_computers_there_are_whatever_the_limits_say():
    config = parsed(
        "provider: {type: local, head_ip: h, hosts: [{ip: a, type: big}, {ip: b, type: big}]}\n"
        "available_node_types: {small: {resources: {CPU: 2}}, big: {resources: {CPU: 8}, max_workers: 9}}\n"
        "head_node_type: small\nmax_workers: 9\n"
    )
    known = [(t.name, t.max_nodes, t.existing, t.most_nodes) for t in to_spec(config).node_types]
    assert known == [("small", 1, 1, 1), ("big", 9, 2, 2)]


def test_rays_own_list_is_the_head_and_the_workers():
    config = parsed("provider: {type: local, head_ip: h, worker_ips: [a, b]}\n")
    assert [(host.ip, host.is_head) for host in rack_hosts(config).values()] == [
        ("h", True),
        ("a", False),
        ("b", False),
    ]


@pytest.mark.parametrize(("written", "least"), [("", 3), ("min_workers: 1\n", 2), ("min_workers: 0\n", 0)])
def test_every_worker_of_the_list_is_wanted_beside_the_head(written, least):
    config = parsed(f"provider: {{type: local, head_ip: h, worker_ips: [a, b]}}\n{written}")
    (only,) = to_spec(config).node_types
    assert (only.min_nodes, only.max_nodes) == (least, 3)


@pytest.mark.parametrize(
    ("provider", "message"),
    [
        (
            "head_ip: h, worker_ips: [a, a]",
            "worker_ips[1]: 'a' is listed twice (first as worker_ips[0]); remove one",
        ),
        (
            "head_ip: h, worker_ips: [a, h]",
            "worker_ips[1]: 'h' is the head already (provider.head_ip); remove it",
        ),
        ("head_ip: h, hosts: [{ip: h}]", "hosts[0]: 'h' is the head already (provider.head_ip); remove it"),
        (
            "head_ip: h, worker_ips: [a], hosts: [{ip: a}]",
            "hosts[0]: 'a' is listed twice (first as worker_ips[0])",
        ),
        ("head_ip: h, hosts: [{ip: a, head: true}]", "hosts[0]: is a second head; a cluster has one"),
        (
            "hosts: [{ip: a}]",
            "provider: 'head_ip' is missing; name the head's address, or mark a host with head",
        ),
        (
            "head_ip: h, hosts: [{ip: a, type: bg}]",
            "hosts[0].type: 'bg' is not in available_node_types; did you",
        ),
        (
            "head_ip: h, hosts: [{ip: a, ssh_port: 0}]",
            "hosts[0].ssh_port: 0 must be at least 1 and at most 65,535",
        ),
        ("head_ip: h, hosts: [{ip: a, ssh_prot: 1}]", "hosts[0].ssh_prot: unknown key; did you mean"),
        ("head_ip: h, hosts: [{type: big}]", "hosts[0]: 'ip' is missing; add it"),
        ("head_ip: h, hosts: [10.0.0.1]", "hosts[0]: must be a mapping, not '10.0.0.1'"),
        (
            "head_ip: '-oProxyCommand=x', hosts: [{ip: a}]",
            "head_ip: '-oProxyCommand=x' is not an address or a name",
        ),
        (
            "head_ip: h, hosts: [{ip: 'a; rm -rf b'}]",
            "hosts[0]: 'a; rm -rf b' is not an address or a name of a",
        ),
        ("head_ip: h, hosts: [{ip: a, user: '$(id)'}]", "hosts[0].user: '$(id)' is not the name of a user"),
        (
            "head_ip: h, hosts: [{ip: a}], lock_dir: tmp",
            "lock_dir: 'tmp' must be an absolute directory of the hosts",
        ),
    ],
)
def test_a_list_that_cannot_be_right_is_refused_with_its_entry(provider, message):
    said = refusal(f"provider: {{type: local, {provider}}}\n{TYPES}")
    assert said.removeprefix("c.yaml:1: ").removeprefix("provider.").startswith(message)
