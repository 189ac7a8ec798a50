"""Run the contract over a class as `muster provider check` does: by its name, from a cluster file."""

from __future__ import annotations

from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.config.document import Document
from muster.providers.contract.live import RefusalFile, live_provider, run_name
from muster.providers.contract.run import CHECKS, ContractRun
from muster.providers.contract.subject import CheckSizes
from muster.providers.kind import parse_config

FILE = """
cluster_name: mine
provider: {{type: external, module: {module}, {settings}}}
max_workers: 20
head_node_type: head
available_node_types:
  head: {{resources: {{CPU: 0}}}}
  {node_type}: {{resources: {{CPU: 1}}, price_per_hour: 0.5}}
"""
QUICK = CheckSizes(starts_within_s=0.2, call_limit_s=20.0)


def subjects(module, sizes=QUICK, refusals=None, node_type="small", **settings):
    words = ", ".join(f"{key}: {value}" for key, value in settings.items())
    config = parse_config(
        Document(FILE.format(module=module, settings=words, node_type=node_type), "mine.yaml")
    )
    clock = SystemClock()
    name = run_name(RandomIds())
    live = live_provider(config, None, node_type).completed(name, sizes, clock)
    return live.subjects(name, sizes, refusals or RefusalFile(), clock)


def run(module, checks=CHECKS, **given):
    return ContractRun(subjects(module, **given), quiet_s=0.0).run(checks)


def named(report, status):
    return [result.name for result in report.results if result.status == status]


def by_name(*names):
    return [check for check in CHECKS if check.name in names]
