"""muster.autoscaler.sdk: arguments, before any cluster is asked. On a real Ray: tests/runtimes/ray."""

from __future__ import annotations

import inspect
import subprocess
import sys
from typing import Any

import pytest
from tests.mistakes.views import assert_line

from muster.autoscaler import sdk
from muster.errors import EngineUnreachable


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)


def test_the_signatures_are_rays() -> None:
    assert [
        (name, parameter.default)
        for name, parameter in inspect.signature(sdk.request_resources).parameters.items()
    ] == [("num_cpus", None), ("bundles", None), ("bundle_label_selectors", None)]
    assert list(inspect.signature(sdk.get_cluster_status).parameters) == ["gcs_address", "timeout"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_cpus": -1}, "num_cpus: -1 is not a whole number of CPUs"),
        ({"num_cpus": 1.5}, "num_cpus: 1.5 is not a whole number of CPUs"),
        ({"num_cpus": True}, "num_cpus: True is not a whole number of CPUs"),
        (
            {"bundle_label_selectors": [{"a": "b"}]},
            "bundle_label_selectors without bundles: each selector belongs to one bundle",
        ),
        ({"bundles": [{"CPU": float("nan")}]}, "bundle 0: resource 'CPU': nan is not between 0 and 9e+14"),
    ],
)
def test_nonsense_is_refused_before_the_cluster_is_asked(arguments: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError) as caught:
        sdk.request_resources(**arguments)
    assert str(caught.value) == message


def test_a_program_without_a_cluster_is_told_what_to_do() -> None:
    for ask in (sdk.request_resources, sdk.get_cluster_status):
        with pytest.raises(EngineUnreachable) as caught:
            ask()
        assert_line("runtimes", "no address", str(caught.value))


def test_the_module_is_found_in_every_way_and_costs_no_ray() -> None:
    code = (
        "import sys\n"
        "import muster.autoscaler\n"
        "assert 'muster.autoscaler.sdk' not in sys.modules\n"
        "first = muster.autoscaler.sdk.request_resources\n"
        "from muster.autoscaler import sdk\n"
        "from muster.autoscaler.sdk import request_resources\n"
        "assert first is sdk.request_resources is request_resources\n"
        "assert 'sdk' in dir(muster.autoscaler)\n"
        "assert 'ray' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", code], timeout=60, check=True)


def test_equal_bundles_are_counted_together() -> None:
    one, two = {"CPU": 1}, {"GPU": 1, "CPU": 2}
    assert sdk.count_requests([one, two, {"CPU": 2, "GPU": 1.0}, one, one], []) == {
        ((("CPU", 1.0),), ()): 3,
        ((("CPU", 2.0), ("GPU", 1.0)), ()): 2,
    }


def test_the_same_bundle_on_other_nodes_is_another_wish() -> None:
    made = sdk.count_requests([{"CPU": 1}] * 3, [{}, {"tier": "in(a, b)", "region": "!us"}, {}])
    assert made == {
        ((("CPU", 1.0),), ()): 2,
        ((("CPU", 1.0),), (("region", "!us"), ("tier", "in(a,b)"))): 1,
    }


@pytest.mark.parametrize(
    ("bundles", "selectors", "message"),
    [
        ([{"CPU": -1}], [], "bundle 0: resource 'CPU': -1 is not between 0 and 9e+14"),
        ([{"CPU": 1}, {}], [], "bundle 1: {} is not a mapping like {'CPU': 1}"),
        ([{"CPU": "x"}], [], "bundle 0: resource 'CPU': 'x' is not a number"),
        ([{"CPU": 1}], [{}, {}], "2 label selectors for 1 bundles: give one each, {} for any node"),
        ([{"CPU": 1}], ["tier=a"], "label selector 0: 'tier=a' is not a mapping of label to value"),
        (
            [{"CPU": 1}],
            [{"tier": "in(a"}],
            "label selector 0: 'tier': 'in(a' is none of 'value', '!value', 'in(a, b)', '!in(a, b)'",
        ),
    ],
)
def test_nonsense_is_refused_with_its_place(bundles: list, selectors: list, message: str) -> None:
    with pytest.raises(ValueError) as caught:
        sdk.count_requests(bundles, selectors)
    assert str(caught.value) == message
