"""Draw what may go wrong, and how often in this run.

The seed turns each kind on or off and draws its rate (swarm testing: runs differ in kind, not only in luck).
"""

from __future__ import annotations

from collections.abc import Mapping

from muster.base.rng import Seed
from muster.sim.cluster.faults import Faults

# kind -> (lowest, highest) chance per opportunity. The name says what an opportunity is: a call, a machine
# that boots, a listing, or (every_tick) the pause between two ticks.
EVERY_CALL: Mapping[str, tuple[float, float]] = {
    "launch_refused": (0.05, 0.6),  # a ProviderError of a drawn kind; nothing launched
    "launch_broken": (0.02, 0.3),  # an exception that is not a ProviderError; nothing launched
    "launch_reply_lost": (0.02, 0.3),  # the same exception, but the machines come
    "launch_dropped": (0.02, 0.2),  # accepted and forgotten
    "launch_slow": (0.05, 0.4),  # the machines come much later
    "unit_refused": (0.05, 0.5),  # one machine of a batch is refused, reported later by poll
    "terminate_refused": (0.05, 0.4),  # a ProviderError
    "terminate_unit_refused": (0.05, 0.4),  # reported later by poll
    "terminate_lost": (0.05, 0.3),  # accepted and forgotten
    "terminate_slow": (0.05, 0.4),
    "list_fails": (0.02, 0.3),
    "list_late": (0.05, 0.5),  # per machine: not listed for its first while
    "list_omits": (0.002, 0.02),  # per listing: one machine is left out for a while
    "list_ghost": (0.005, 0.04),  # per listing: a machine that does not exist, for a while
    "list_garbage": (0.005, 0.04),  # per listing: a machine without a type, or an unmanaged one
    "join_late": (0.05, 0.5),  # per machine that boots
    "join_never": (0.02, 0.3),
    "report_stale": (0.01, 0.06),  # the runtime shows an old report for a while
    "report_fails": (0.01, 0.08),  # the runtime cannot be read for a while
    "report_garbage": (0.01, 0.1),
    "publish_fails": (0.01, 0.3),
    "drain_refused": (0.05, 0.5),
    "drain_lost": (0.05, 0.4),
    "install_fails": (0.05, 0.4),
    "install_hangs": (0.02, 0.3),
    "store_write_fails": (0.01, 0.1),  # nothing written
    "store_write_unclear": (0.005, 0.05),  # written, yet the call fails
    "store_read_fails": (0.005, 0.05),
    "edit_invalid": (0.01, 0.1),  # the newest config does not validate; the last good one stands
}
EVERY_TICK: Mapping[str, tuple[float, float]] = {
    "sold_out": (0.005, 0.03),  # a type is unavailable for a while
    "machine_dies": (0.002, 0.02),
    "node_dies": (0.002, 0.02),  # the runtime's process dies, the machine stays and costs
    "node_restarts": (0.002, 0.02),  # the same machine comes back under a new node id
    "preempted": (0.002, 0.02),  # gone without notice
    "preempted_with_notice": (0.002, 0.02),  # drains first
    "killed": (0.005, 0.06),  # the controller dies between two of its steps
    "clock_jumps": (0.002, 0.02),  # the wall clock, forwards or backwards
    "config_edited": (0.005, 0.03),
}
# Drawn after the others, so that a seed keeps the rates it had for them.
ADDED: Mapping[str, tuple[float, float]] = {
    "joins_first": (0.1, 0.6),  # per machine: its node joins before the cloud lists it
    "list_only_head": (0.005, 0.03),  # per listing: this one shows only the head
    "list_omits_passing": (0.02, 0.2),  # per listing: it lacks one that boots, drains or lost its node
    "list_fails_often": (0.005, 0.03),  # per listing: for a while, two of three cannot be read
    "unit_dropped": (0.02, 0.2),  # per machine of a batch: not made, and nothing is said
    "node_without_id": (0.05, 0.4),  # per node that joins: it has its ip, but no cloud id
    "node_without_ip": (0.02, 0.15),  # per node that joins: neither cloud id nor ip
    "joined_by_hand": (0.005, 0.03),  # per tick: somebody joins a node of their own for a while
    "offer_sold_out": (0.02, 0.15),  # per tick, with offers: one of them is unavailable for a while
    "offer_price_changes": (0.02, 0.15),  # per tick, with offers: one of them costs more or less from now on
    "refusal_names_offer": (0.2, 0.8),  # per machine refused, with offers: the failure says which one
    "head_lost": (0.002, 0.015),  # per tick: head and nodes are gone; a new head has an older ledger
    "resize_refused": (0.05, 0.4),  # per call: a ProviderError, of the kind that passes or not
    "resize_broken": (0.02, 0.3),  # per call: an exception that is not a ProviderError
    "resize_lost": (0.02, 0.2),  # per call: accepted and forgotten
    "resize_put_off": (0.05, 0.5),  # per growth: the host has no room now, and may say how much it has
    "resize_fails": (0.05, 0.4),  # per growth: an error of the host, perhaps after half of it
    "node_resize_lost": (0.02, 0.3),  # per call to the runtime
    "node_resize_refused": (0.02, 0.3),
    "report_partial": (0.01, 0.08),  # per report: half of the workers are missing from it, this once
    "node_with_other_id": (0.05, 0.3),  # per node that joins: an image of a running node, with its cloud id
    "type_tag_wrong": (0.02, 0.2),  # per machine: it is listed with the type of another, or with none
    "list_twice": (0.005, 0.04),  # per listing: it shows one machine under a second id, too
    "head_replaced": (0.002, 0.015),  # per tick: a new head with the same ledger; the old one stays listed
    "clock_far_ahead": (0.002, 0.02),  # per tick: the wall clock is 30 days ahead for a while
    "list_other_case": (0.01, 0.1),  # per listing, where ids ignore case: ids are in upper case
    "setup_broken": (0.5, 1.2),  # per set-up of one type or offer, the run's `broken_setup`: often or always
}
KINDS = (*EVERY_CALL, *EVERY_TICK, *ADDED)


def draw_faults(seed: Seed) -> Faults:
    """Draw about half of the kinds, each with its own rate; one run in twelve has none at all."""
    draw = seed.derive("sim.faults")
    none_at_all = draw.random() < 1 / 12
    rates = {}
    for kind, (low, high) in (*EVERY_CALL.items(), *EVERY_TICK.items(), *ADDED.items()):
        on, rate = draw.random() < 0.5, draw.uniform(low, high)
        if on and not none_at_all:
            rates[kind] = round(rate, 4)
    return Faults(seed, rates)
