"""The dashboard and the alerts in deploy/ name only what a monitor with some history exports."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from tests.autoscaler.scenes import Scene
from tests.cluster.worlds import HEAD_NODE, spec
from tests.support.builders import demand, node_type

from muster.autoscaler.metrics import Metrics
from muster.cluster.model import Offer
from muster.cluster.plan import Reason, Subject
from muster.cluster.snapshot import ProviderTraits
from muster.errors import CapacityExhausted

LABEL_VALUES = {"reason": {reason.value for reason in Reason}, "subject": {one.value for one in Subject}}
FUNCTIONS = {"time": 0, "absent": 1, "increase": 1, "rate": 1, "histogram_quantile": 2}
FUNCTIONS |= {"last_over_time": 1, "avg_over_time": 1}
AGGREGATIONS = {"sum", "max", "min", "avg", "count"}
TOKEN = re.compile(
    r"\s*(?:(?P<string>\"[^\"]*\")|(?P<range>\[(?:\d+[smhd](?::\d+[smhd])?|\$__range)\])|(?P<number>\d+(?:\.\d+)?)"
    r"|(?P<name>[a-zA-Z_][a-zA-Z0-9_]*)|(?P<sign>==|!=|>=|<=|=~|!~|[-+*/<>=(){},]))"
)


class Query:
    """A query of Prometheus, read by the part of its grammar that deploy/ uses. Raises ValueError."""

    def __init__(self, text: str) -> None:
        self.metrics: dict[str, dict[str, str]] = {}  # name -> labels that it is asked for, and their values
        self.grouped: set[str] = set()  # labels of by and on
        self._tokens = list(self._read(text))
        self._at = 0
        self._binary()
        if self._at != len(self._tokens):
            raise ValueError(f"unexpected {self._tokens[self._at][1]!r} in {text}")

    @staticmethod
    def _read(text: str) -> Iterator[tuple[str, str]]:
        position = 0
        while position < len(text.rstrip()):
            found = TOKEN.match(text, position)
            if found is None:
                raise ValueError(f"cannot be read: {text[position:]}")
            yield found.lastgroup, found[found.lastgroup]
            position = found.end()

    def _next(self, *wanted: str) -> str:
        kind, text = self._tokens[self._at] if self._at < len(self._tokens) else ("end", "the end")
        if text not in wanted and kind not in wanted:
            raise ValueError(f"{text!r} where {wanted} should be")
        self._at += 1
        return text

    def _has(self, *wanted: str) -> bool:
        return self._at < len(self._tokens) and bool({*self._tokens[self._at]} & {*wanted})

    def _binary(self) -> None:
        self._one()
        while self._has("-", "+", "*", "/", ">", "<", "==", "!=", ">=", "<=", "or"):
            self._next("sign", "or")
            if self._has("bool"):
                self._next("bool")
            if self._has("on", "ignoring"):
                self._next("name")
                self._names()
            self._one()

    def _one(self) -> None:
        if self._has("number"):
            self._next("number")
        elif self._has("("):
            self._next("(")
            self._binary()
            self._next(")")
            if self._has("range"):  # of a subquery
                self._next("range")
        else:
            self._named(self._next("name"))

    def _named(self, name: str) -> None:
        if name in AGGREGATIONS:
            if self._has("by"):
                self._next("by")
                self._names()
            self._arguments(1)
        elif name in FUNCTIONS:
            self._arguments(FUNCTIONS[name])
        else:
            self._selector(self.metrics.setdefault(name, {}))

    def _arguments(self, count: int) -> None:
        self._next("(")
        for position in range(count):
            if position:
                self._next(",")
            self._binary()
        self._next(")")

    def _names(self) -> None:
        self._next("(")
        self.grouped.add(self._next("name"))
        while self._has(","):
            self._next(",")
            self.grouped.add(self._next("name"))
        self._next(")")

    def _selector(self, labels: dict[str, str]) -> None:
        if self._has("{"):
            self._next("{")
            while not self._has("}"):
                name = self._next("name")
                self._next("=", "!=", "=~", "!~")
                labels[name] = self._next("string").strip('"')
                if self._has(","):
                    self._next(",")
            self._next("}")
        if self._has("range"):
            self._next("range")


@pytest.fixture(scope="module")
def exported() -> dict[str, set[str]]:
    """Sample -> its labels: a machine was launched and lost, another refused, and requests wait."""
    metrics = Metrics("session", "demo")
    offers = (Offer(zone="z1", market="spot", price_per_hour=1.0),)
    types = (node_type("cpu", price_per_hour=1.0), node_type("gpu", {"GPU": 1}, offers=offers))
    scene = Scene(wishes=spec(*types), outlets=[metrics], metrics=metrics)
    scene.stage.provider.answers["traits"] = ProviderTraits(buys_offers=True)
    scene.tick()
    scene.stage.runtime.demands = [demand()]
    scene.tick()
    ((request, _),) = scene.stage.provider.called("launch")
    scene.machine_for("w", request)
    scene.tick()
    scene.stage.runtime.nodes, scene.stage.provider.machines = [HEAD_NODE], {}
    scene.stage.provider.answers["launch"] = CapacityExhausted("sold out")
    scene.stage.runtime.demands = [demand({"GPU": 1}), demand({"TPU": 1})]
    for _ in range(3):
        scene.tick()
    samples = [sample for family in metrics.registry.collect() for sample in family.samples]
    return {sample.name: {*sample.labels} for sample in samples}


def alerts(root):
    document = yaml.safe_load((root / "deploy" / "prometheus-alerts.yaml").read_text(encoding="utf-8"))
    return [rule for group in document["groups"] for rule in group["rules"]]


def board(root):
    return json.loads((root / "deploy" / "grafana-dashboard.json").read_text(encoding="utf-8"))


def board_queries(root) -> list[tuple[str, str]]:
    """Query and legend of every panel, and what the variables are filled from."""
    targets = [target for panel in board(root)["panels"] for target in panel["targets"]]
    found = [(target["expr"], target["legendFormat"]) for target in targets]
    for variable in board(root)["templating"]["list"]:
        asked = re.fullmatch(r"label_values\((.+), (\w+)\)", variable["query"])
        if asked is not None:
            found.append((asked[1], f"{{{{{asked[2]}}}}}"))
    return found


def unknown(text: str, words: str, exported: dict[str, set[str]]) -> list[str]:
    """What a query, or the text that shows its answer, names and nobody exports."""
    query = Query(text)
    problems = [name for name in query.metrics if name not in exported]
    for name, labels in query.metrics.items():
        problems += [f"{name}{{{label}}}" for label in labels if label not in exported.get(name, set())]
        for label, value in labels.items():
            known = LABEL_VALUES.get(label, set(value.split("|")))
            problems += [f"{label}={one}" for one in value.split("|") if one not in known]
    every = set().union(*(exported.get(name, set()) for name in query.metrics))
    shown = set(re.findall(r"\$labels\.(\w+)", words)) | set(re.findall(r"\{\{(\w+)\}\}", words))
    return problems + sorted((query.grouped | shown) - every)


def test_every_alert_names_what_is_exported_and_says_what_to_do(root, exported):
    assert len({rule["alert"] for rule in alerts(root)}) == len(alerts(root)) >= 12
    for rule in alerts(root):
        words = " ".join(rule["annotations"].values())
        assert unknown(rule["expr"], words, exported) == [], rule["alert"]
        assert words.count("{{") == words.count("}}")
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert re.fullmatch(r"\d+[mhd]", rule.get("for", "1m"))


def test_every_panel_names_what_is_exported(root, exported):
    found = board_queries(root)
    assert len(found) > 25
    assert [(text, problems) for text, shown in found if (problems := unknown(text, shown, exported))] == []
    panels = board(root)["panels"]
    assert len({panel["id"] for panel in panels}) == len({panel["title"] for panel in panels}) == len(panels)


def test_every_metric_of_ours_is_on_the_dashboard_or_in_an_alert(root, exported):
    texts = " ".join([text for text, _ in board_queries(root)] + [rule["expr"] for rule in alerts(root)])
    ours = {name for name in exported if name.startswith("muster_") and not name.endswith("_created")}
    assert {name for name in ours if name not in texts} == set()


@pytest.mark.parametrize(
    ("text", "problems"),
    [
        ("muster_spend > 1", ["muster_spend"]),
        ('muster_verdicts{why="x"} > 1', ["muster_verdicts{why}"]),
        ('muster_verdicts{reason="unhappy"}', ["reason=unhappy"]),
        ("sum by (zone) (muster_verdicts)", ["zone"]),
    ],
)
def test_a_name_that_is_not_exported_is_found(text, problems, exported):
    assert unknown(text, "", exported) == problems


@pytest.mark.parametrize(
    "text", ["sum by (a) (b", "rate(b[5x])", "a > ", "a b", "histogram_quantile(a)", "a{b=c}"]
)
def test_a_query_that_does_not_parse_is_found(text):
    with pytest.raises(ValueError, match=r"where|unexpected|cannot be read"):
        Query(text)


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool") or shutil.which(Path(sys.prefix) / "prometheus" / "usr/bin/promtool")
    if found is None:
        pytest.skip(
            "there is no promtool (apt or brew install prometheus, or: make setup): not tested is when each"
            " alert fires"
        )
    return found


def test_promtool_agrees(root, promtool):
    subprocess.run([promtool, "check", "rules", root / "deploy" / "prometheus-alerts.yaml"], check=True)


def test_every_alert_fires_when_it_must_and_only_then(root, promtool, tmp_path):
    """The sentences are left out: promtool would compare them, and they are checked above."""
    document = yaml.safe_load((root / "deploy" / "prometheus-alerts.yaml").read_text(encoding="utf-8"))
    for group in document["groups"]:
        group["rules"] = [{**rule, "annotations": {}} for rule in group["rules"]]
    (tmp_path / "alerts.yaml").write_text(yaml.safe_dump(document))
    cases = alert_cases(root)
    (tmp_path / "cases.yaml").write_text(yaml.safe_dump({**cases, "rule_files": ["alerts.yaml"]}))
    done = subprocess.run(
        [promtool, "test", "rules", tmp_path / "cases.yaml"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def alert_cases(root):
    return yaml.safe_load((root / "tests" / "repo" / "prometheus_alerts_test.yaml").read_text("utf-8"))


def test_every_alert_has_a_case_in_which_it_fires(root):
    cases = [case for test in alert_cases(root)["tests"] for case in test["alert_rule_test"]]
    firing = {case["alertname"] for case in cases if case["exp_alerts"]}
    assert firing == {rule["alert"] for rule in alerts(root)}
