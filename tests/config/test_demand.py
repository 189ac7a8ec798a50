from __future__ import annotations

import pytest

from muster.base.resources import Resources
from muster.cluster.model import Constraint, Demand, Gang, LabelMatch, LabelOperator, Strategy
from muster.config.demand import NodeEntry, NodePhase, Wanted, load_demand, load_nodes
from muster.errors import ConfigError

IN, NOT_IN = LabelOperator.IN, LabelOperator.NOT_IN


def test_demands_gangs_constraints_and_nodes_become_the_planners_values(write):
    path = write("""\
demands:
  - {name: work, resources: {CPU: 0.5}, count: 4}
gangs:
  - strategy: STRICT_SPREAD
    bundles: [{resources: {GPU: 1}, count: 2}]
    fallbacks: [[{resources: {CPU: 1}}]]
constraints:
  - {resources: {CPU: 16}}
nodes:
  - {id: i-1, type: cpu, available: {CPU: 0}, idle_s: 3}
  - {type: gpu, count: 2, state: coming}
""")
    assert load_demand(path) == Wanted(
        demands=(Demand(shape=Resources.of(CPU=0.5), count=4, name="work"),),
        gangs=(
            Gang(
                gang_id="gang-1",
                strategy=Strategy.STRICT_SPREAD,
                options=(
                    (Demand(shape=Resources.of(GPU=1), count=2),),
                    (Demand(shape=Resources.of(CPU=1)),),
                ),
            ),
        ),
        constraints=(Constraint(demands=(Demand(shape=Resources.of(CPU=16)),)),),
        nodes=(
            NodeEntry(id="i-1", type="cpu", available={"CPU": 0.0}, idle_s=3.0),
            NodeEntry(type="gpu", count=2, state=NodePhase.COMING),
        ),
    )


def test_labels_are_one_selector_and_rays_label_strings_are_understood(write):
    path = write("""\
demands:
  - resources: {CPU: 1}
    labels: {zone: a, disk: [ssd, nvme], gen: "!old", arch: "in(x86, arm)", os: "!in(mac,win)"}
  - resources: {CPU: 1}
    selectors: [{zone: a}, {}]
""")
    first, second = load_demand(path).demands
    assert first.selectors == (
        (
            LabelMatch("zone", IN, ("a",)),
            LabelMatch("disk", IN, ("ssd", "nvme")),
            LabelMatch("gen", NOT_IN, ("old",)),
            LabelMatch("arch", IN, ("x86", "arm")),
            LabelMatch("os", NOT_IN, ("mac", "win")),
        ),
    )
    assert second.selectors == ((LabelMatch("zone", IN, ("a",)),), ())


def test_a_json_file_does_as_well(write):
    path = write('{"demands": [{"resources": {"memory": 1e9}}]}', "d.json")
    assert load_demand(path).demands == (Demand(shape=Resources.of(memory=1e9)),)


def test_an_empty_file_asks_for_nothing(write):
    assert load_demand(write("")) == Wanted()


def test_nodes_can_come_from_a_file_of_their_own(write):
    assert load_nodes(write("nodes:\n- {type: cpu, head: true}\n")) == (NodeEntry(type="cpu", head=True),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("demand: []", ":1: demand: unknown key; did you mean 'demands'?"),
        ("demands: {CPU: 1}", ":1: demands: must be a list, not a mapping"),
        ("demands:\n- CPU: 1", ":2: demands[0].CPU: unknown key; valid here: count, labels, name,"),
        ("demands:\n- resources: {CPU: -1}", ":2: demands[0].resources.CPU: -1 must be from 0 to"),
        ("demands:\n- resources: {CPU: .nan}", ":2: demands[0].resources.CPU: nan must be from 0 to"),
        ("demands:\n- resources: {CPU: 1}\n  count: 0", ":3: demands[0].count: 0 must be from 1 to"),
        (
            "demands:\n- {resources: {}, labels: {a: b}, selectors: [{a: c}]}",
            ":2: demands[0].selectors: give either 'labels' or 'selectors', not both",
        ),
        ("gangs:\n- bundles: []", ":2: gangs[0].bundles: is empty; a gang needs at least one bundle"),
        (
            "gangs:\n- bundles: [{resources: {}}]\n  strategy: STRICT",
            ":3: gangs[0].strategy: 'STRICT' is not one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD;",
        ),
        (
            "gangs:\n- {id: a, bundles: [{resources: {}}]}\n- {id: a, bundles: [{resources: {}}]}",
            ":3: gangs[1].id: 'a' is used by another gang; ids must differ",
        ),
        ("nodes:\n- {type: cpu, idle_s: -5}", ":2: nodes[0].idle_s: -5 must be from 0 to"),
        ("nodes:\n- {id: x}", ":2: nodes[0]: 'type' is missing; add it"),
    ],
)
def test_a_mistake_is_named_with_line_key_and_fix(write, text, message):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_demand(path)
    assert str(caught.value).startswith(f"{path}{message}")
