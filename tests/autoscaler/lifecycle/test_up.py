"""What `up` wants of a cluster file; the calls themselves are in the tests on hosts and in tests/e2e."""

from __future__ import annotations

import pytest

from muster.autoscaler.lifecycle.up import wanted_workers
from muster.config.document import Document
from muster.providers.kind import parse_config

RACK = "provider: {type: local, head_ip: h, worker_ips: [a, b]}\n"
OWN = "provider: {type: external, module: my.Cloud}\nhead_node_type: head\navailable_node_types:\n"


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (RACK, 2),  # all of them, as in Ray
        (RACK + "min_workers: 0\n", 0),
        (RACK + "min_workers: 1\n", 1),
        (OWN + "  head: {resources: {CPU: 1}}\n", 0),
        (OWN + "  head: {resources: {CPU: 1}, min_workers: 1, max_workers: 3}\n", 0),  # the head is one
        (
            OWN
            + "  head: {resources: {CPU: 1}}\n  big: {resources: {CPU: 8}, min_workers: 3}\nmax_workers: 3\n",
            3,
        ),
    ],
)
def test_workers_that_are_always_wanted_do_not_count_the_head(text, count):
    assert wanted_workers(parse_config(Document(text, "c.yaml"))) == count
