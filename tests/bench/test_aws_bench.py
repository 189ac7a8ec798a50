"""The figures of `python -m bench aws` follow from counted calls."""

from __future__ import annotations

from bench.peer.aws import document

from bench import aws


def test_the_ratio_is_the_smaller_of_launches_and_ticks():
    sides = {"ours": {"launch": 20.0, "tick": 0.25}, "ray": {"launch": 220.0, "tick": 2.5}}
    assert aws.compared(sides, 1000) == {
        "calls_per_tick.1000": 0.25,
        "calls_per_launch": 0.02,
        "ray_calls_per_tick.1000": 2.5,
        "ray_calls_per_launch": 0.22,
        "calls_ratio": 10.0,
        "calls_ratio_launch": 11.0,
        "calls_ratio_tick": 10.0,
    }


def test_without_ray_there_is_no_ratio():
    found = aws.compared({"ours": {"launch": 20.0, "tick": 0.25}}, 1000)
    assert sorted(found) == ["calls_per_launch", "calls_per_tick.1000"]


def test_the_peer_is_asked_for_all_machines_at_once_and_reaches_none_of_them():
    file = document(7, "us-east-1", {"InstanceType": "m5.large"})
    worker = file["available_node_types"]["worker"]
    assert (worker["min_workers"], worker["max_workers"], file["max_workers"]) == (7, 7, 7)
    assert file["provider"]["disable_node_updaters"] is True
