from __future__ import annotations

import pytest
from tests.support.builders import cluster_spec, node_type, pack_node

from muster.base.resources import Resources
from muster.cluster.model import Constraint, Demand, Gang, LabelMatch, LabelOperator, Strategy
from muster.cluster.planner.pack import PlannedDemand
from muster.cluster.states import InstanceState
from muster.config.demand_file import load_demand
from muster.errors import ConfigError

IN, NOT_IN = LabelOperator.IN, LabelOperator.NOT_IN
CPU, GPU = node_type("cpu", {"CPU": 8}), node_type("gpu", {"CPU": 4, "GPU": 1})
SPEC = cluster_spec([CPU, GPU])


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
    assert load_demand(path, SPEC) == PlannedDemand(
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
        constraints=(Constraint(demands=(Demand(shape=Resources.of(CPU=16), name="constraint-1"),)),),
        nodes=(
            pack_node("i-1", CPU, available={"CPU": 0}, idle_s=3.0),
            pack_node("gpu-1", GPU, state=InstanceState.ALLOCATED),
            pack_node("gpu-2", GPU, state=InstanceState.ALLOCATED),
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
    first, second = load_demand(path, SPEC).demands
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
    assert load_demand(path, SPEC).demands == (Demand(shape=Resources.of(memory=1e9), name="demand-1"),)


def test_an_empty_file_asks_for_nothing(write):
    assert load_demand(write(""), SPEC) == PlannedDemand()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("demand: []", ":1: demand: unknown key; did you mean 'demands'?"),
        ("demands: {CPU: 1}", ":1: demands: must be a list, not a mapping"),
        ("demands:\n- CPU: 1", ":2: demands[0].CPU: unknown key; valid here: count, labels, name,"),
        (
            "demands:\n- resources: {CPU: -1}",
            ":2: demands[0].resources.CPU: -1 must be at least 0 and at most",
        ),
        (
            "demands:\n- resources: {CPU: .nan}",
            ":2: demands[0].resources.CPU: nan must be at least 0 and at most",
        ),
        (
            "demands:\n- resources: {CPU: 1}\n  count: 0",
            ":3: demands[0].count: 0 must be at least 1 and at most",
        ),
        (
            "demands:\n- {resources: {}, labels: {a: b}, selectors: [{a: c}]}",
            ":2: demands[0].selectors: give either 'labels' or 'selectors', not both",
        ),
        ("gangs:\n- bundles: []", ":2: gangs[0].bundles: is empty; a gang needs at least one bundle"),
        (
            "gangs:\n- bundles: [{resources: {}}]\n  fallbacks: [[]]",
            ":3: gangs[0].fallbacks[0]: is empty; a gang needs at least one bundle",
        ),
        (
            "gangs:\n- bundles: [{resources: {}, count: 6000}, {resources: {CPU: 1}, count: 6000}]",
            ":2: gangs[0].bundles: has more than 10,000 bundles; lower their count, or split the gang",
        ),
        (
            "gangs:\n- bundles: [{resources: {}}]\n  strategy: STRICT",
            ":3: gangs[0].strategy: 'STRICT' is not one of PACK, SPREAD, STRICT_PACK, STRICT_SPREAD;",
        ),
        (
            "gangs:\n- {id: a, bundles: [{resources: {}}]}\n- {id: a, bundles: [{resources: {}}]}",
            ":3: gangs[1].id: 'a' is used by another gang; ids must differ",
        ),
        (
            "demands:\n- {name: a, resources: {}}\n- {name: a, resources: {}}",
            ":3: demands[1].name: 'a' is used by another entry; names must differ",
        ),
    ],
)
def test_a_mistake_is_named_with_line_key_and_fix(write, text, message):
    path = write(text)
    with pytest.raises(ConfigError) as caught:
        load_demand(path, SPEC)
    assert str(caught.value).startswith(f"{path}{message}")
