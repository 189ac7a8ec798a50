from __future__ import annotations

import pytest
import yaml

from muster.autoscaler.lifecycle.head_file import (
    Overrides,
    gcs_port,
    head_file,
    ray_program,
    with_overrides,
    without_own_autoscaler,
)
from muster.errors import ClusterError


def test_the_head_gets_its_own_paths_and_copies_of_the_keys():
    made = head_file(
        {
            "cluster_name": "c",
            "provider": {
                "type": "local",
                "head_ip": "h",
                "hosts": [{"ip": "a", "ssh_private_key": "/other", "ssh_proxy_command": "x"}, {"ip": "b"}],
            },
            "auth": {
                "ssh_user": "me",
                "ssh_private_key": "/mine",
                "ssh_proxy_command": "nc",
                "ssh_public_key": "/p",
            },
            "file_mounts": {"/data": "~/here"},
        }
    )
    assert yaml.safe_load(made.text) == {
        "cluster_name": "c",
        "provider": {
            "type": "local",
            "head_ip": "h",
            "hosts": [{"ip": "a", "ssh_private_key": "~/ray_bootstrap_key_1.pem"}, {"ip": "b"}],
        },
        "auth": {"ssh_user": "me", "ssh_private_key": "~/ray_bootstrap_key.pem"},
        "file_mounts": {"/data": "/data"},
    }
    assert made.keys == {"~/ray_bootstrap_key.pem": "/mine", "~/ray_bootstrap_key_1.pem": "/other"}


def test_the_price_file_goes_along():
    data = {"provider": {"type": "external"}, "muster": {"prices": "/here/p.csv", "objective": "cost"}}
    made = head_file(data)
    assert yaml.safe_load(made.text)["muster"] == {"prices": "~/muster_prices.csv", "objective": "cost"}
    assert made.prices == "/here/p.csv"
    assert data["muster"]["prices"] == "/here/p.csv"


def test_what_a_provider_has_filled_in_is_kept_and_marked_so_that_it_is_not_asked_again():
    data = {"provider": {"type": "external", "module": "a.B"}, "available_node_types": {"t": {}}}
    filled = {
        "provider": {**data["provider"], "subnet": "s-1"},
        "available_node_types": {"t": {"node_config": {"x": 1}}},
    }
    text = yaml.safe_load(head_file(data, filled).text)
    assert text["provider"] == {
        "type": "external",
        "module": "a.B",
        "subnet": "s-1",
        "muster_bootstrapped": True,
    }
    assert text["available_node_types"] == {"t": {"node_config": {"x": 1}}}


@pytest.mark.parametrize(
    ("written", "run"),
    [
        (
            "ulimit -n 65536; ray start --head --port=6379 --autoscaling-config=~/ray_bootstrap_config.yaml",
            "ulimit -n 65536; ray start --head --no-monitor --port=6379",
        ),
        ("/v/bin/ray start --head --autoscaling-config '~/a b.yaml'", "/v/bin/ray start --head --no-monitor"),
        ("ray start --head --no-monitor", "ray start --head --no-monitor"),
        ("ray stop", "ray stop"),
        ("echo --head", "echo --head"),
    ],
)
def test_the_heads_commands_leave_scaling_to_muster(written, run):
    assert without_own_autoscaler(written) == run


def test_port_and_program_are_read_from_the_commands():
    commands = ["ray stop", "cd /x && /v/bin/ray start --head --port 6380 --dashboard-port=1"]
    assert (gcs_port(commands), ray_program(commands)) == (6380, "/v/bin/ray")
    assert (gcs_port(["ray start --head"]), ray_program([])) == (6379, "ray")


def test_counts_of_the_command_line_win_over_the_file():
    local = {"provider": {"type": "local"}}
    assert with_overrides(local, Overrides(min_workers=1, max_workers=2)) == {
        **local,
        "min_workers": 1,
        "max_workers": 2,
    }
    typed = {"available_node_types": {"h": {}, "w": {"resources": {}}}, "head_node_type": "h"}
    assert with_overrides(typed, Overrides(min_workers=3))["available_node_types"]["w"] == {
        "resources": {},
        "min_workers": 3,
    }
    several = {"available_node_types": {"h": {}, "w": {}, "v": {}}, "head_node_type": "h"}
    with pytest.raises(ClusterError, match=r"--min-workers.*min_workers"):
        with_overrides(several, Overrides(min_workers=1))
