"""The page in a real browser, on experiments that are written meanwhile."""

from __future__ import annotations

import csv
import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
from msgspec.structs import replace
from tests.page.samples import (
    BEGAN,
    BUDGET,
    end_fact,
    facts_of_start,
    keep_up,
    log_results,
    machine_id,
    open_store,
    report_fact,
    trial_id,
    write_cluster,
    write_experiment,
)
from tests.tune.test_user_requests import Driver

from muster.stores.history.entries import ForecastEntry
from muster.trials.events import (
    TrialDecided,
    TrialExited,
    TrialFailure,
    TrialFailureKind,
    TrialReported,
)

pytestmark = pytest.mark.slow

HERE = Path(__file__).parent
SLOW_TABLES = """
window.loads = window.problems = 0;
const ask = window.fetch;
window.fetch = async (path, ...more) => {
  const answer = await ask(path, ...more);
  if (!String(path).endsWith("/table")) return answer;
  window.loads += 1;
  await new Promise((done) => setTimeout(done, 500));
  return answer;
};
new MutationObserver(() => { if (document.querySelector("[data-test=problem]")) window.problems += 1; })
  .observe(document.body, { childList: true, subtree: true }); 0"""
SCATTER = "document.querySelector('[data-test=scatter]')"
BANDS = ("figures", "trials-band", "curves", "scatter", "parallel", "table", "importance", "timeline")


def part(tab, name: str):
    return tab.locator(f"[data-test={name}]")


def says(tab, name: str, words: str) -> None:
    """Wait until a part of the page contains these words."""
    part(tab, name).filter(has_text=re.compile(words)).first.wait_for()


def becomes(tab, condition: str) -> None:
    """Wait until an expression is true; the page's policy refuses `wait_for_function` a second try."""
    end = time.monotonic() + 60
    while not tab.evaluate(condition):
        assert time.monotonic() < end, condition
        tab.wait_for_timeout(20)


def picture(tab, name: str) -> None:
    """Take a screenshot, where MUSTER_PAGE_PICTURES says to."""
    folder = os.environ.get("MUSTER_PAGE_PICTURES")
    if folder:
        tab.wait_for_timeout(1500)
        from PIL import Image

        file = f"{folder}/{name}.png"
        tab.screenshot(path=file, full_page=name[:9] not in ("page-list", "page-draw"))
        with Image.open(file) as taken:
            taken.convert("RGB").quantize(256).save(file, optimize=True)


def violations(tab) -> list[str]:
    """Return what axe finds."""
    tab.evaluate((HERE / "axe.min.js").read_text(encoding="utf-8") + ";0")
    found = tab.evaluate("axe.run({ resultTypes: ['violations'] })")
    return [
        f"{each['id']}: {each['nodes'][0]['html'][:200]} {each['nodes'][0]['failureSummary'][:300]}"
        for each in found["violations"]
    ]


def test_every_band_and_the_drawer_follow_a_live_experiment(tmp_path: Path, serve, open_tab):
    began = time.time() - 240
    write_cluster(tmp_path / "home" / "clusters", began=began)
    place = tmp_path / "live"
    with open_store(place, num_samples=40) as store:
        for number in range(30):
            store.append(facts_of_start(number, began))
            store.append([report_fact(number, each, began) for each in range(1, 9)])
            log_results(place, number, range(1, 9))
        store.append([end_fact(number, 8, fails=number == 5, began=began) for number in range(24)])
        tab = open_tab(serve(place, "--cluster", "laptop").link)
        for name in (*BANDS, "cluster-band", "machines", "capacity", "demand", "spend", "why-band"):
            part(tab, name).wait_for()
        says(tab, "figures", "24 of 40")
        says(tab, "connection", "live")
        store.append([end_fact(24, 8, began=began)])
        says(tab, "figures", "25 of 40")
        store.append(
            [
                TrialReported(
                    trial_id=trial_id(26), at=began + 99, result={**report_fact(26, 9).result, "loss": 0.0001}
                )
            ]
        )
        says(tab, "best", "1.00e-4")
        tab.locator("tr[data-place='5']").click()
        says(tab, "why-words", "It failed after 8 results, because its code raised")
        tab.keyboard.press("Escape")
        part(tab, "drawer").wait_for(state="detached")
        part(tab, "why-band").get_by_role("button", name=machine_id(7)).first.click()
        says(tab, "drawer", "RAY_RUNNING")
        assert machine_id(7) in tab.url


def test_money_is_on_the_page(tmp_path: Path, serve, open_tab):
    """What trials, machines and the experiment cost, what is left of budgets, and what is still to come."""
    began = time.time() - 240
    home, place = write_cluster(tmp_path / "home" / "clusters", began=began), tmp_path / "live"
    wide = ForecastEntry(running=4, movable=3, coming=(({"CPU": 2.0}, 30, 1.0),), budget_left=7.5)
    keep_up(home, time.time(), {str(place): wide})
    with open_store(place, num_samples=40, cost_budget=25.0, deadline=time.time() + 3600) as store:
        for number in range(4):
            paid = report_fact(number, 1, began)
            store.append(
                [*facts_of_start(number, began), replace(paid, result={**paid.result, "cost_usd": 0.5})]
            )
        tab = open_tab(serve(place, "--cluster", "laptop").link)
        says(tab, "figures", r"\$2\.00 of \$25\.00 spent by trials")
        says(tab, "deadline", r"deadline .*, in 60 min")
        part(tab, "spend").focus()
        tab.keyboard.press("ArrowLeft")
        says(tab, "tip", r"\$.* per hour")
        better = report_fact(3, 2, began)
        store.append([replace(better, result={**better.result, "loss": 0.125, "cost_usd": 0.5})])
        says(tab, "figures", r"0\.125")
        says(tab, "tip", r"\$.* per hour")  # the other charts that are drawn again hide only their own
        says(tab, "budget", re.escape(BUDGET))
        says(tab, "forecasts", r"live.*4.*3.*30 × 2 CPU.*and more.*\$7\.50")
        says(tab, "cluster-band", rf"{machine_id(7)} \$0\.0")
        tab.locator("tr[data-place='1']").click()
        says(tab, "drawer", r"It has cost \$0\.50")
        tab.keyboard.press("Escape")
        assert violations(tab) == []
        for scheme in ("light", "dark"):
            for width in (400, 1400):
                tab.emulate_media(color_scheme=scheme)
                tab.set_viewport_size({"width": width, "height": 900})
                tab.wait_for_timeout(200)
                assert tab.evaluate("document.documentElement.scrollWidth") <= width
                picture(tab, f"money-{scheme}-{width}")
        store.save_settings({"cost_budget": 25.0, "ended_by": "budget"})
    says(tab, "ended-by", "Ended by its budget, with everything saved")


def test_a_brush_filters_everything_and_the_url_holds_it(tmp_path: Path, serve, open_tab):
    tab = open_tab(serve(write_experiment(tmp_path / "e", 60, 3)).link)
    says(tab, "passing", "60 of 60")
    tab.locator(".u-over").wait_for()  # nothing moves any more
    part(tab, "importance").wait_for()
    part(tab, "parallel").scroll_into_view_if_needed()
    tab.wait_for_timeout(300)
    box = part(tab, "parallel").bounding_box()
    tab.mouse.move(box["x"] + 46, box["y"] + 40)
    tab.mouse.down()
    for step in range(1, 8):
        tab.mouse.move(box["x"] + 46, box["y"] + 40 + step * 12)
    tab.mouse.up()
    part(tab, "clear").wait_for()
    tab.wait_for_url(re.compile("r=.*config%2Flr"))
    # 84 of 244 pixels of four decades: the whole drag, not its first step.
    becomes(
        tab,
        """(() => {
          const ranges = JSON.parse(new URLSearchParams(location.hash.slice(1)).get("r"));
          return Math.log10(ranges["config/lr"][1] / ranges["config/lr"][0]) > 1.2;
        })()""",
    )
    shown = part(tab, "passing").inner_text()
    assert 0 < int(shown.split()[0]) < 60
    tab.locator(f"table[aria-rowcount='{int(shown.split()[0]) + 1}']").wait_for()
    tab.reload()
    says(tab, "passing", re.escape(shown))
    picture(tab, "page-brush")
    part(tab, "clear").click()
    says(tab, "passing", "60 of 60")
    tab.go_back()  # the clearing, then the brush
    says(tab, "passing", re.escape(shown))
    tab.go_back()
    says(tab, "passing", "60 of 60")


def test_back_undoes_a_filter_and_an_order(tmp_path: Path, serve, open_tab):
    tab = open_tab(serve(write_experiment(tmp_path / "e", 44, 3)).link)
    says(tab, "passing", "44 of 44")
    tab.get_by_role("button", name="failed 4").click()
    says(tab, "passing", "4 of 44")
    tab.wait_for_timeout(900)  # another gesture
    tab.get_by_role("button", name="loss", exact=True).click()
    tab.locator("th[aria-sort=ascending]").wait_for()
    tab.go_back()
    tab.locator("th[aria-sort=ascending]").wait_for(state="detached")
    says(tab, "passing", "4 of 44")
    tab.go_back()
    says(tab, "passing", "44 of 44")


def test_failures_show_what_was_raised_and_the_users_own_line(tmp_path: Path, serve, open_tab):
    trace = (
        'Traceback (most recent call last):\n  File "/project/train.py", line 31, in train\n'
        '    loss = model.fit(data)\n  File "/x/site-packages/torch/nn.py", line 5, in fit\n    raise E\n'
        "ValueError: odd data"
    )
    kind = TrialFailureKind.USER_ERROR
    with open_store(tmp_path / "e", num_samples=30, raised="TuneError: 1 trial failed") as store:
        store.append([*facts_of_start(0), report_fact(0, 1)])
        failure = TrialFailure(kind=kind, message="ValueError: odd data", traceback=trace)
        store.append([TrialExited(trial_id=trial_id(0), at=BEGAN + 2, failure=failure)])
    tab = open_tab(serve(tmp_path / "e").link)
    says(tab, "table", "ValueError: odd data.*train.py:31 in train: loss = model.fit")
    says(tab, "raised", "1 trial failed")
    says(tab, "resume", "tune resume .*/e")
    says(tab, "figures", "1 of 30")
    tab.locator("tr[data-place='0']").click()
    says(tab, "why-words", "ValueError: odd data, at train.py:31 in train: loss = model.fit")
    tab.keyboard.press("Escape")
    part(tab, "drawer").wait_for(state="detached")
    part(tab, "history").scroll_into_view_if_needed()
    box = part(tab, "history").bounding_box()
    tab.mouse.move(box["x"] + 58 + (box["width"] - 70) / 2, box["y"] + 86)
    says(tab, "tip", f"{trial_id(0)} · failed")


def test_filters_by_text_state_and_range_work_from_the_keyboard(tmp_path: Path, serve, open_tab):
    tab = open_tab(serve(write_experiment(tmp_path / "e", 44, 3)).link)
    says(tab, "passing", "44 of 44")
    tab.keyboard.press("/")
    tab.keyboard.type("00005")
    says(tab, "passing", "1 of 44")
    tab.keyboard.press("Control+A")
    tab.keyboard.press("Delete")
    says(tab, "passing", "44 of 44")
    tab.get_by_role("button", name="failed 4").focus()
    tab.keyboard.press("Enter")
    says(tab, "passing", "4 of 44")
    tab.locator(
        "tr[data-place='1']", has_text=trial_id(16)
    ).wait_for()  # rows follow the count a moment later
    tab.locator("tr[data-place='0']").focus()
    tab.keyboard.press("ArrowDown")
    tab.keyboard.press("Enter")
    says(tab, "drawer", trial_id(16))
    tab.keyboard.press("Escape")
    part(tab, "drawer").wait_for(state="detached")
    assert tab.evaluate("document.activeElement.dataset.place") == "1"


def test_escape_closes_a_drawer_as_soon_as_it_is_drawn(tmp_path: Path, serve, open_tab):
    """However late effects run: the key comes in the same task as the drawer."""
    tab = open_tab(serve(write_experiment(tmp_path / "e", 4, 2)).link)
    tab.locator("tr[data-place='1']").focus()
    tab.evaluate("""window.focused = new Promise((done) => new MutationObserver((_, seen) => {
        if (!document.querySelector("[data-test=drawer]")) return;
        seen.disconnect();
        done(document.activeElement.getAttribute("aria-label"));
        document.body.dispatchEvent(new KeyboardEvent("keydown", { key: "Escape", bubbles: true }));
    }).observe(document.body, { childList: true, subtree: true })); 0""")
    tab.keyboard.press("Enter")
    assert tab.evaluate("window.focused") == "Close"
    part(tab, "drawer").wait_for(state="detached", timeout=10_000)
    tab.keyboard.press("Enter")
    says(tab, "drawer", trial_id(1))
    tab.get_by_role("checkbox", name=f"Compare trial {trial_id(2)}").focus()
    tab.keyboard.press("Escape")
    part(tab, "drawer").wait_for(state="detached", timeout=10_000)
    tab.get_by_role("checkbox", name=f"Compare trial {trial_id(2)}").focus()
    tab.keyboard.press("/")
    assert tab.evaluate("document.activeElement.id") == "find"


def test_the_page_comes_back_after_its_server_was_killed(tmp_path: Path, serve, open_tab):
    place = tmp_path / "e"
    with open_store(place, num_samples=9) as store:
        store.append([*facts_of_start(0), report_fact(0, 1)])
        server = serve(place)
        tab = open_tab(server.link)
        says(tab, "connection", "live")
        server.kill()
        says(tab, "connection", "Disconnected")
        picture(tab, "page-disconnected")
        store.append([end_fact(0, 1), *facts_of_start(1)])
        again = serve(place, port=server.port)
        says(tab, "problem", "no longer signed in")  # the cookie was a secret of the first server
        tab.context.new_page().goto(again.link)
        says(tab, "figures", "1 of 9")
        says(tab, "connection", "live")
    open_tab.errors.clear()  # the browser logs that a connection was refused


def test_an_experiment_that_is_deleted_meanwhile_is_said_to_be_gone(tmp_path: Path, serve, open_tab):
    place = write_experiment(tmp_path / "e", 5, 3)
    tab = open_tab(serve(place).link)
    says(tab, "figures", "5 of 5")
    shutil.rmtree(place)
    says(tab, "problem", "is gone")
    says(tab, "figures", "5 of 5")


def test_an_experiment_without_trials_says_so_and_fills_itself(tmp_path: Path, serve, open_tab):
    with open_store(tmp_path / "e", num_samples=4) as store:
        tab = open_tab(serve(tmp_path / "e").link)
        says(tab, "empty", "No trial has been made yet")
        store.append([*facts_of_start(0), report_fact(0, 1)])
        part(tab, "table").get_by_text(trial_id(0)).wait_for()
        tab.evaluate(SLOW_TABLES)
        for loads, name in enumerate(
            ("first", "second")
        ):  # the columns change again while the table is loaded for the first
            result = {**report_fact(0, 2).result, name: 1.0}
            store.append([TrialReported(trial_id=trial_id(0), at=BEGAN + 1, result=result)])
            becomes(tab, f"window.loads > {loads}")
        tab.locator("option", has_text="second").first.wait_for(state="attached")
        assert tab.evaluate("window.problems") == 0


def test_markup_in_names_and_values_is_text(tmp_path: Path, serve, open_tab):
    evil = "<img src=x onerror=window.hurt=1>"
    place = tmp_path / "<b>e"
    with open_store(place, num_samples=3, metric=evil) as store:
        for number in range(3):
            created = facts_of_start(number)[0]
            config = {"lr": 0.1 * number, evil: evil, "many": f"{evil}{number}"}
            created = type(created)(
                **{
                    **{f: getattr(created, f) for f in created.__struct_fields__},
                    "config": config,
                    "evaluated_params": config,
                }
            )
            result = {evil: float(number), "training_iteration": 1, "text": evil}
            told = TrialReported(trial_id=trial_id(number), at=BEGAN, result=result)
            store.append([created, *facts_of_start(number)[1:], told, end_fact(number, 1, fails=number == 1)])
    tab = open_tab(serve(place).link)
    says(tab, "figures", re.escape(evil))
    tab.locator("tr[data-place='1']").click()
    says(tab, "drawer", re.escape(evil))
    assert (tab.evaluate("window.hurt"), tab.locator("#page img").count()) == (None, 0)


def test_both_themes_are_readable_at_both_widths(tmp_path: Path, serve, open_tab):
    write_cluster(tmp_path / "home" / "clusters")
    tab = open_tab(serve(write_experiment(tmp_path / "resnet", 120, 20), "--cluster", "laptop").link)
    for scheme, width in (("light", 1280), ("dark", 1280), ("dark", 400), ("light", 400)):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        tab.locator(f"html[data-theme={scheme}]").wait_for()
        for name in (*BANDS, "cluster-band", "why-band"):
            part(tab, name).wait_for()
        assert tab.evaluate("document.documentElement.scrollWidth") <= width
        picture(tab, f"page-{scheme}-{width}")
        assert violations(tab) == []
    for scheme, width in (("light", 1280), ("dark", 400)):
        tab.set_viewport_size({"width": width, "height": 900})
        tab.emulate_media(color_scheme=scheme)
        tab.locator(f"html[data-theme={scheme}]").wait_for()
        tab.locator("tr[data-place='5']").click()
        says(tab, "why-words", "It failed")
        assert violations(tab) == []
        picture(tab, f"page-drawer-{scheme}-{width}")
        tab.keyboard.press("Escape")
        part(tab, "drawer").wait_for(state="detached")


def test_the_list_shows_experiments_and_clusters_and_opens_them(tmp_path: Path, serve, open_tab):
    write_cluster(tmp_path / "home" / "clusters")
    write_experiment(tmp_path / "home" / "ray_results" / "one", 4, 2)
    write_experiment(tmp_path / "home" / "ray_results" / "two", 3, 2)
    tab = open_tab(serve().link)
    says(tab, "list", "4 of 4")
    assert violations(tab) == []
    picture(tab, "page-list")
    tab.get_by_role("link", name="two").click()
    says(tab, "figures", "3 of 3")
    tab.go_back()
    tab.get_by_role("link", name="laptop").click()
    part(tab, "cluster-band").wait_for()
    assert (violations(tab), tab.title()) == ([], "laptop · muster")


def test_a_report_opens_from_the_disk_without_a_server(tmp_path: Path, open_tab):
    from click.testing import CliRunner

    from muster.cli.main import cli

    place = write_experiment(tmp_path / "e", 20, 5)
    write_cluster(tmp_path / "clusters")
    command = ["page", "export", str(place), "--cluster", "laptop", "-o", str(tmp_path / "report.html")]
    done = CliRunner().invoke(cli, command, env={"MUSTER_HOME": str(tmp_path)})
    assert done.exit_code == 0, done.output
    tab = open_tab(f"file://{tmp_path}/report.html")
    for name in (*BANDS, "cluster-band"):
        part(tab, name).wait_for()
    says(tab, "figures", "20 of 20")
    tab.locator("tr[data-place='5']").click()
    says(tab, "why-words", "It failed after 5 results")


def test_a_notebook_shows_the_page_in_a_frame_and_other_sites_cannot_read_it(tmp_path: Path, serve, open_tab):
    import http.server
    import threading

    from muster.tune.execution.page_process import frame_of

    server = serve(write_experiment(tmp_path / "e", 4, 2))
    steal = f"<script>fetch('http://127.0.0.1:{server.port}/api/list',{{credentials:'include'}}).then(()=>window.got=1,()=>window.got=0)</script>"
    pages = {"/notebook": frame_of(server.link), "/other": steal}

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            body = f"<!doctype html><title>x</title>{pages.get(self.path, '')}".encode()
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as notebook:
        threading.Thread(target=notebook.serve_forever, daemon=True).start()
        tab = open_tab(f"http://127.0.0.1:{notebook.server_address[1]}/notebook")
        tab.frame_locator("iframe").locator("[data-test=figures]").filter(has_text="4 of 4").wait_for()
        tab.goto(f"http://127.0.0.1:{notebook.server_address[1]}/other")
        becomes(tab, "window.got !== undefined")
        assert tab.evaluate("window.got") == 0
        notebook.shutdown()
    open_tab.errors.clear()  # the browser logs the refusal


def write_population(place: Path, **settings: object) -> list[tuple[float, float]]:
    """Write a run of PBT with two goals, a cost and reasons; return loss and accuracy of each trial."""
    values = []
    with open_store(place, num_samples=8, metric=["loss", "acc"], mode=["min", "max"], **settings) as store:
        for number in range(8):
            told = report_fact(number, 4)
            accuracy = 0.5 + 0.05 * (number * 5 % 8)  # so that several trials are on the front
            result = {**told.result, "acc": accuracy, "cost_usd": 0.25 * (number + 1)}
            values.append((result["loss"], result["acc"]))
            store.append(
                [*facts_of_start(number), TrialReported(trial_id=told.trial_id, at=told.at, result=result)]
            )
            log_results(place, number, range(1, 5))
        why = "from trial ab12c_00003 at iteration 2, with lr 0.1 -> 0.12: loss = 2 is among the worst 25 %"
        store.append([TrialDecided(trial_id=trial_id(1), at=BEGAN + 9, decision="copied", reason=why)])
        why = "at rung 4: loss = 0.9 is worse than loss = 0.5, the cut of 12 results"
        store.append([TrialDecided(trial_id=trial_id(2), at=BEGAN + 9, decision="stopped", reason=why)])
        ended = end_fact(2, 4)
        store.append([TrialExited(trial_id=trial_id(2), at=ended.at)])
    lines = [["1_x", "3_x", 2, 2, {}, {}], ["5_x", "3_x", 3, 2, {}, {}]]
    (place / "pbt_global.txt").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    return values


def test_the_pareto_front_the_lineage_the_cost_and_the_reasons_are_shown(tmp_path: Path, serve, open_tab):
    values = write_population(tmp_path / "population")
    tab = open_tab(serve(tmp_path / "population").link)
    beaten = [any(o != v and o[0] <= v[0] and o[1] >= v[1] for o in values) for v in values]
    part(tab, "lineage").wait_for()
    assert part(tab, "lineage").get_attribute("aria-label") == "2 copies among 3 trials."
    assert part(tab, "lineage").locator(".copy").count() == 2
    assert tab.get_by_role("checkbox", name="Pareto front").is_checked()  # with two goals
    says(tab, "figures", r"best loss \(min\).*best acc \(max\).*on the Pareto front")
    front = f"8 trials, {beaten.count(False)} of them on the Pareto front"
    tab.locator(f"[data-test=scatter][aria-label*='{front}']").wait_for()
    heads = tab.locator("[data-test=table] thead th").all_inner_texts()
    column = f"[data-test=table] tbody td:nth-child({heads.index('front') + 1})"
    assert tab.locator(column).all_inner_texts().count("0") == beaten.count(False)
    says(tab, "trial-cost", re.escape("$9.00"))
    picture(tab, "page-population")
    tab.locator("tr[data-place='1']").click()
    says(tab, "why-words", "It was copied, from trial ab12c_00003 at iteration 2, with lr 0.1 -> 0.12")
    says(tab, "drawer", re.escape("It has cost $0.50"))
    tab.keyboard.press("Escape")
    tab.locator("tr[data-place='2']").click()
    says(tab, "why-words", "It was stopped after 1 result, at rung 4: loss = 0.9 is worse than loss = 0.5")
    picture(tab, "page-drawer")
    assert violations(tab) == []


def test_a_front_has_no_trial_that_violates_a_constraint_and_the_scatter_shows_a_distribution(
    tmp_path: Path, serve, open_tab
):
    values = [v for v in write_population(tmp_path / "e", constraints={"acc": 0.7}) if v[1] <= 0.7]
    front = [v for v in values if not any(o != v and o[0] <= v[0] and o[1] >= v[1] for o in values)]
    tab = open_tab(serve(tmp_path / "e").link)
    says(tab, "figures", f"{len(front)} on the Pareto front")
    assert tab.get_by_text("violates a constraint").count() == 0
    allowed = sorted(acc for _, acc in values)
    says(tab, "best-too", f"^{allowed[-1]:g}$")  # the best acc violates it
    part(tab, "scatter").wait_for()
    assert f", {len(front)} of them on the Pareto front" in part(tab, "scatter").get_attribute("aria-label")
    tab.get_by_role("button", name="on the Pareto front").click()
    says(tab, "passing", f"{len(front)} of 8")
    with tab.expect_download() as download:
        tab.get_by_role("button", name="Save as CSV").click()
    with download.value.path().open(newline="") as stream:
        saved = [float(row["metric/loss"]) for row in csv.DictReader(stream)]
    assert saved == pytest.approx([loss for loss, _ in front], rel=1e-5)
    part(tab, "clear").click()
    tab.locator("label", has_text=re.compile("^y")).locator("select").select_option(label="share of trials")
    tab.locator("label", has_text=re.compile("^x")).locator("select").select_option(label="loss")
    tab.get_by_role("checkbox", name="Pareto front").uncheck()
    tab.locator("[data-test=scatter][aria-label='trial/share against metric/loss, 8 trials.']").wait_for()
    shown = tab.evaluate(
        "(async () => { const m = await import('/static/data.js'); const s = m.openSource();"
        "const t = await s.table((await s.list()).experiments[0].key);"
        "return [...t.column(m.SHARE).values] })()"
    )
    losses = [loss for loss, _ in write_population(tmp_path / "again")]
    assert shown == [sum(other <= loss for other in losses) / len(losses) for loss in losses]


def test_a_surface_shows_the_metric_between_the_trials_of_two_parameters(tmp_path: Path, serve, open_tab):
    tab = open_tab(serve(write_experiment(tmp_path / "e", 40, 4)).link)
    tab.get_by_role("checkbox", name="surface").focus()
    tab.keyboard.press("Space")
    label = "config/.+ against config/.+, 40 trials, over a surface of metric/loss between them"
    becomes(tab, f"/{label.replace('/', '.')}/.test({SCATTER}.getAttribute('aria-label'))")
    tab.wait_for_url(re.compile("surface=1"))
    box, told = part(tab, "scatter").bounding_box(), []
    for step in range(12):
        tab.mouse.move(box["x"] + 90 + step * 30, box["y"] + 60 + step * 12)
        told += re.findall("loss: about ([0-9.e-]+), from trials nearby", part(tab, "tip").inner_text())
    shown = tab.evaluate(
        "(async () => { const m = await import('/static/data.js'); const s = m.openSource();"
        "return [...(await s.table((await s.list()).experiments[0].key)).column('metric/loss').values] })()"
    )
    assert told
    assert all(min(shown) <= float(each) <= max(shown) for each in told)
    for width, theme in ((1440, "Dark"), (390, "Light")):
        tab.set_viewport_size({"width": width, "height": 900})
        part(tab, "scatter").scroll_into_view_if_needed()
        assert violations(tab) == []
        picture(tab, f"page-draw-surface-{width}-{theme}")
        tab.get_by_role("button", name=theme).click()
        part(tab, "scatter").scroll_into_view_if_needed()
        assert violations(tab) == []
        picture(tab, f"page-draw-surface-{width}")


def test_trials_are_compared_and_the_drawer_leaves_the_plots_visible(tmp_path: Path, serve, open_tab):
    tab = open_tab(serve(write_experiment(tmp_path / "e", 20, 4)).link, width=1440)
    tab.get_by_role("checkbox", name=f"Compare trial {trial_id(1)}").check()
    tab.get_by_role("checkbox", name=f"Compare trial {trial_id(3)}").check()
    says(tab, "compare", f"{trial_id(1)}.*{trial_id(3)}.*parameters.*lr")
    says(tab, "curve-legend", f"{trial_id(1)}.*{trial_id(3)}")
    tab.wait_for_url(re.compile(f"cmp={trial_id(1)}%2C{trial_id(3)}"))
    assert violations(tab) == []
    tab.reload()
    says(tab, "compare", trial_id(3))
    tab.locator("tr[data-place='2']").click()
    part(tab, "own-curve").locator(".u-over").wait_for()
    says(tab, "drawer", f"e/train_{trial_id(2)}.*Copy the config as JSON")
    drawer, plot = part(tab, "drawer").bounding_box(), part(tab, "parallel").bounding_box()
    assert plot["x"] + plot["width"] <= drawer["x"]
    tab.set_viewport_size({"width": 390, "height": 900})
    becomes(
        tab, "document.querySelector('[data-test=own-curve] canvas').getBoundingClientRect().right <= 390"
    )
    tab.set_viewport_size({"width": 1440, "height": 900})
    assert violations(tab) == []
    picture(tab, "page-compare")


def test_experiments_are_found_ordered_and_compared_from_the_list(tmp_path: Path, serve, open_tab):
    for name, trials in (("alpha", 4), ("beta", 9), ("gamma", 6)):
        write_experiment(tmp_path / "runs" / name, trials, 2)
    write_cluster(tmp_path / "home" / "clusters")
    with open_store(tmp_path / "runs" / "delta", num_samples=8) as store:
        store.append([*facts_of_start(0), report_fact(0, 1), end_fact(0, 1), *facts_of_start(1)])
    tab = open_tab(serve(tmp_path / "runs", "--cluster", "laptop").link)
    says(tab, "list", "4 of 4.*9 of 9|9 of 9.*4 of 4")
    says(tab, "list", "delta.*1 of 8")  # one of its two trials is over
    tab.get_by_role("button", name="trials").click()
    becomes(tab, "document.querySelector('tbody a')?.textContent === 'delta'")
    tab.get_by_label("Find").fill("a")
    says(tab, "listed", "4 of 4")
    tab.get_by_label("Find").fill("bet")
    says(tab, "listed", "1 of 4")
    tab.get_by_role("checkbox", name="Compare beta").check()
    tab.get_by_label("Find").fill("")
    tab.get_by_role("checkbox", name="Compare gamma").check()
    assert violations(tab) == []
    tab.get_by_role("button", name="Compare 2").click()
    says(tab, "compare-experiments", "beta.*gamma.*parameters of the best trial.*lr")
    tab.locator("[data-test=compare-experiments] .u-over").hover()
    says(tab, "tip", r"trials\s+beta: .*\s+gamma: ")
    assert violations(tab) == []
    picture(tab, "page-experiments")
    tab.get_by_role("link", name="gamma").click()
    says(tab, "figures", "6 of 6")


def test_a_trial_is_stopped_from_the_page_only_when_that_is_allowed(tmp_path: Path, serve, open_tab):
    driver = Driver(tmp_path, steps=40_000)  # not over before the tabs are open
    driver.start()
    first, _ = driver.ids()
    tab = open_tab(serve(driver.place, "--allow-actions").link)
    reader = open_tab(serve(driver.place).link)
    for each in (tab, reader):
        each.on("dialog", lambda dialog: dialog.accept())
        each.locator("tr[data-place='0']", has_text=first).click()
        says(each, "drawer", "Compare")
    assert (part(reader, "actions").count(), reader.get_by_text("Stop this trial").count()) == (0, 0)
    tab.get_by_role("button", name="Stop this trial").click()
    says(tab, "said", "Requested")
    says(tab, "why-words", "It was stopped after .* the user asked for it")
    says(reader, "figures", "1 stopped early")
    tab.get_by_role("button", name="Stop the experiment").click()
    says(tab, "resume", "tune resume")
    driver.join(30)
