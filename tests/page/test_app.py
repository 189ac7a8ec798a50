from __future__ import annotations

import gzip
import json
import re
import time
from pathlib import Path

import pytest
from tests.page.asgi import ask
from tests.page.samples import facts_of_start, open_store, trial_id, write_cluster, write_experiment

from muster.autoscaler.known_clusters import find_cluster
from muster.base.clock import SystemClock
from muster.errors import ClusterError
from muster.page.app import PageApp, static_files
from muster.page.catalog import Catalog, key_of
from muster.page.cluster_source import LedgerSource


def app_of(*paths: Path, clusters=tuple, **more) -> PageApp:
    catalog = Catalog(
        clock=SystemClock(), experiments=[str(path) for path in paths], clusters=clusters, **more
    )
    return PageApp(catalog, monotonic=time.monotonic)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_experiment(tmp_path_factory.mktemp("page") / "e", 6, 4)


def key(place: Path) -> str:
    return key_of(str(place))


def test_the_list_has_the_best_value_and_the_states(place: Path):
    found = ask(app_of(place).starlette(), "/api/list").json["experiments"][0]
    chosen = {name: found[name] for name in ("name", "state", "counts", "of", "metric")}
    assert chosen == {
        "name": "e",
        "state": "finished",
        "counts": {"TERMINATED": 5, "ERROR": 1},
        "of": 6,
        "metric": "loss",
    }
    assert found["best"] > 0


def test_experiments_of_the_default_directory_are_listed_the_newest_first(tmp_path: Path):
    import os

    for number, name in enumerate(["old", "new"]):
        made = write_experiment(tmp_path / name, 1, 1)
        os.utime(made / "experiment.sqlite", (1000 + number, 1000 + number))
    listed = ask(app_of(roots=[str(tmp_path)]).starlette(), "/api/list").json["experiments"]
    assert [each["name"] for each in listed] == ["new", "old"]


def test_an_experiment_that_cannot_be_read_is_listed_with_the_reason(tmp_path: Path):
    write_experiment(tmp_path / "good", 1, 1)
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "experiment.sqlite").write_bytes(b"garbage" * 500)
    listed = ask(app_of(roots=[str(tmp_path)]).starlette(), "/api/list").json["experiments"]
    assert sorted((each["name"], each["state"]) for each in listed) == [
        ("bad", "unreadable"),
        ("good", "finished"),
    ]


@pytest.mark.parametrize(
    "path", ["/api/experiment/{}/table", "/api/cluster/{}/view", "/api/cluster/{}/why", "/static/{}"]
)
@pytest.mark.parametrize("key", ["nothing", "..%2f..%2fetc", "../../etc/passwd", "/etc/passwd", "%00"])
def test_unknown_keys_and_paths_find_nothing(place: Path, path: str, key: str):
    assert ask(app_of(place).starlette(), path.format(key)).status == 404


def test_a_trial_is_found_by_its_id_and_by_nothing_else(place: Path):
    app = app_of(place).starlette()
    base = f"/api/experiment/{key(place)}/trial"
    shown = ask(app, f"{base}/{trial_id(1)}").json
    assert (
        shown["trial_id"],
        ask(app, f"{base}/../../../etc/passwd").status,
        ask(app, f"{base}/no").status,
    ) == (
        trial_id(1),
        404,
        404,
    )


def test_curves_come_as_bands_and_single_ones_as_points(place: Path):
    app, path = app_of(place).starlette(), f"/api/experiment/{key(place)}/curves"
    deadline = time.monotonic() + 60
    while (band := ask(app, path, query="metric=loss").json)["behind"] and time.monotonic() < deadline:
        ask(app, f"/api/experiment/{key(place)}/table")
        time.sleep(0.1)
    raw = ask(app, path, query="metric=loss&rows=2,99999,x").json["rows"]
    assert (band["points"], band["x"], raw["2"][0], raw["99999"]) == (
        24,
        [1, 2, 3, 4],
        [1, 2, 3, 4],
        [[], []],
    )


@pytest.mark.parametrize("query", ["metric=loss&keep=!!!", "metric=", "metric=nothing", "rows=1", ""])
def test_odd_requests_for_curves_are_answered(place: Path, query: str):
    assert ask(app_of(place).starlette(), f"/api/experiment/{key(place)}/curves", query=query).status == 200


def events(text: str) -> list[tuple[str, str, dict]]:
    found = re.findall(r"event: (\w+)\nid: ([^\n]*)\ndata: ([^\n]*)\n", text)
    return [(kind, number, json.loads(data)) for kind, number, data in found]


def test_a_stream_resumes_after_the_last_event_that_was_seen(tmp_path: Path):
    with open_store(tmp_path / "e", num_samples=3) as store:
        store.append(facts_of_start(0))
        page = app_of(tmp_path / "e")
        app, path = page.starlette(), f"/api/experiment/{key(tmp_path / 'e')}/events"
        first = events(ask(app, path, stop_after=60).text)[0]
        store.append(facts_of_start(1))
        time.sleep(0.15)
        kind, number, delta = next(
            e for e in events(ask(app, path, stop_after=80, last_event_id=first[1]).text)
        )
        unknown = events(ask(app, path, stop_after=60, last_event_id="other-3").text)[0]
    assert (first[0], kind, [row[1] for row in delta["rows"]], unknown[0]) == (
        "reset",
        "delta",
        [trial_id(1)],
        "reset",
    )
    assert number != first[1]


def test_more_streams_than_allowed_are_refused(place: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("muster.page.app.MAX_STREAMS", 0)
    assert ask(app_of(place).starlette(), f"/api/experiment/{key(place)}/events").status == 503


def test_the_application_alone_is_small():
    assert sum(len(content) for content, _, _ in static_files().values()) < 200_000


def test_the_vendored_files_are_what_was_looked_at():
    """Hashes of the files from npm: htm 3.1.1 (preact/standalone.module.js), uplot 1.6.32 (dist)."""
    import hashlib

    from muster.page import app

    vendor = Path(app.__file__).parent / "static" / "vendor"
    found = {
        file.name: hashlib.sha256(file.read_bytes()).hexdigest() for file in sorted(vendor.glob("*.[jc]s*"))
    }
    noted = dict(line.split()[::-1] for line in (vendor / "SHA256SUMS").read_text().splitlines())
    assert found == noted


def test_no_file_of_the_page_names_another_host():
    for name, (content, _, _) in static_files().items():
        if not name.startswith("vendor/") and not name.endswith(".svg"):
            assert re.findall(rb"https?://[a-z0-9.-]+", gzip.decompress(content)) == [], name


def cluster_app(tmp_path: Path, why=lambda name, subject: {"subject": subject}) -> tuple[PageApp, str]:
    root = tmp_path / "clusters"
    write_cluster(root)
    source = LedgerSource(find_cluster("laptop", root), clock=SystemClock(), why=why)
    return app_of(clusters=lambda: [source]), key_of("cluster laptop")


def test_a_cluster_that_is_gone_shows_its_machines_and_money(tmp_path: Path):
    page, name = cluster_app(tmp_path)
    view = ask(page.starlette(), f"/api/cluster/{name}/view").json
    assert (len(view["machines"]), view["is_up"], view["failures"], len(view["decisions"])) == (
        8,
        False,
        {"capacity": 1},
        8,
    )
    assert view["spent"] == pytest.approx(sum(each["cost"] for each in view["machines"]))
    assert view["demand"][0][1] == {"waiting-for-launch": 8, "infeasible": 2}


def test_a_question_about_nothing_known_is_answered_with_the_choices(tmp_path: Path):
    def why(name: str, subject: str) -> object:
        raise ClusterError(f"nothing here is called {subject!r}; give one of these")

    page, name = cluster_app(tmp_path, why)
    answer = ask(page.starlette(), f"/api/cluster/{name}/why", query="subject=x")
    assert (answer.status, answer.json["problem"]) == (404, "nothing here is called 'x'; give one of these")


def test_a_damaged_ledger_is_a_problem_on_the_page(tmp_path: Path):
    page, name = cluster_app(tmp_path)
    (tmp_path / "clusters" / "laptop" / "ledger.db").write_bytes(b"garbage" * 1000)
    view = ask(page.starlette(), f"/api/cluster/{name}/view").json
    assert (view["machines"], "damaged" in view["problem"]) == ([], True)
