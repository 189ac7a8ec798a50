"""Measure `muster dashboard`: bytes, CPU of the server, time to paint, age of what is shown, memory.

`python -m bench page [--quick] [--only load|brush|delta|hour|live|peer|large]`; wall times need quiet.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from urllib.request import Request, urlopen

from bench import table
from bench.measure import calibration_s
from bench.options import Options
from bench.page_browser import BRUSH, DELTAS, LATENCY, BenchServer, Tab, chromium, page_server, renderer_mb
from bench.page_data import BEGAN, log_results, trial_facts, write_experiment
from muster.page.app import static_files
from muster.page.guard import load_token

RATE = 1000.0  # results per second
DELTAS_PER_HOUR = 36_000  # ten a second, which is the most that a server sends


def run(options: Options) -> dict[str, float]:
    """Run the cases that are asked for."""
    figures: dict[str, float] = {"app_kb": sum(len(c) for c, _, _ in static_files().values()) / 1000}
    table.note(f"calibration loop: {calibration_s():.2f} s of CPU")
    trials, results = (1_000, 20) if options.quick else (10_000, 100)
    with tempfile.TemporaryDirectory(prefix="bench-page-") as folder, chromium() as browser:
        place, home = Path(folder, "experiment"), Path(folder, "home")
        if any(map(options.wants, ("load", "brush", "delta"))):
            table.progress(f"page: writing {trials:,} trials of {results} results")
            write_experiment(place, trials, results, began=BEGAN)
            figures |= _loaded(browser, place, home, options)
        if options.wants("hour"):
            write_experiment(Path(folder, "hour"), trials, 1, began=BEGAN)
            figures |= _hour(browser, Path(folder, "hour"), home, 2_000 if options.quick else DELTAS_PER_HOUR)
        if options.wants("live"):
            figures |= _live(browser, Path(folder, "runs"), home, 15.0 if options.quick else 25.0)
        if options.wants("peer") and options.with_peer:
            figures |= _peer(Path(folder), trials, results, figures)
        if options.wants("large") and not options.quick:
            large = Path(folder, "large")
            table.progress("page: writing 100,000 trials of 100 results")
            write_experiment(large, 100_000, 100, began=BEGAN)
            figures |= _large(browser, large, home)
    rows = [(name, f"{value:,.4g}") for name, value in sorted(figures.items())]
    table.show(f"page: {trials:,} trials of {results} results", ("figure", "value"), rows)
    return figures


def _loaded(browser: object, place: Path, home: Path, options: Options) -> dict[str, float]:
    loads = []
    for _ in range(1 if options.quick else 3):  # each with a server that knows nothing yet
        with page_server(place, home) as server:
            tab, before = Tab(browser), server.cpu_ms()
            seen = tab.open(server.link)
            loads.append((server.cpu_ms() - before, tab.bytes / 1000, seen["head"], max(seen.values())))
            tab.close()
    cpu, wire, paint, bands = (statistics.median(each) for each in zip(*loads, strict=True))
    figures = {"first_load_cpu_ms": cpu, "wire_kb": wire, "paint_ms": paint, "bands_ms": bands}
    with page_server(place, home) as server:
        tab, before = Tab(browser), server.cpu_ms()
        tab.open(server.link)
        if options.wants("brush"):
            figures["brush_ms"] = statistics.median(tab.page.evaluate(BRUSH))
        _wait_for_curves(server, home)
        figures["all_results_cpu_ms"] = server.cpu_ms() - before  # until every result of every trial is read
        if options.wants("delta"):
            figures |= _deltas(server, place, home)
        figures |= {"server_mb": server.mb(), "tab_mb": renderer_mb(), "tab_heap_mb": tab.heap_mb()}
        tab.close()
    return figures


def _hour(browser: object, place: Path, home: Path, deltas: int) -> dict[str, float]:
    """Send a tab as many changes as an hour brings; its memory in the middle and at the end."""
    with page_server(place, home) as server:
        tab = Tab(browser)
        tab.open(server.link)
        tab.page.evaluate(DELTAS, deltas // 2)
        middle = _at_rest(tab)
        tab.page.evaluate(DELTAS, deltas // 2)
        figures = {"tab_hour_growth": _at_rest(tab) / middle, "tab_hour_mb": renderer_mb()}
        tab.close()
    return figures


def _at_rest(tab: Tab) -> float:
    """Return the heap once the last frame is drawn: what is held, not what is just being used."""
    found = []
    for _ in range(4):
        tab.page.wait_for_timeout(700)
        found.append(tab.heap_mb())
    return min(found)


def _asked(server: BenchServer, home: Path, path: str) -> bytes:
    token = load_token(home / "muster" / "page-token")
    request = Request(f"{server.address}{path}", headers={"Authorization": f"Bearer {token}"})
    with urlopen(request, timeout=60) as answer:
        content: bytes = answer.read()
    if answer.headers.get("content-encoding") == "gzip":
        import gzip

        content = gzip.decompress(content)
    return content


def _key(server: BenchServer, home: Path) -> str:
    listed = json.loads(_asked(server, home, "/api/list"))
    return str(listed["experiments"][0]["key"])


def _wait_for_curves(server: BenchServer, home: Path) -> None:
    key, end = _key(server, home), time.monotonic() + 600
    while time.monotonic() < end:
        found = json.loads(_asked(server, home, f"/api/experiment/{key}/curves?metric=accuracy"))
        if not found["behind"]:
            return
        time.sleep(2.0)


def _deltas(server: BenchServer, place: Path, home: Path) -> dict[str, float]:
    """Add ten trials, thirty times, and count what that costs the server beyond doing nothing."""
    from muster.stores.experiment.store import SqliteTrialStore

    times, first = 30, 1_000_000
    idle = server.cpu_ms()
    time.sleep(times * 0.5)
    idle = server.cpu_ms() - idle
    with SqliteTrialStore(place) as store:
        time.sleep(2.0)
        before = server.cpu_ms()
        for turn in range(times):
            numbers = [first + turn * 10 + each for each in range(10)]
            store.append([fact for number in numbers for fact in trial_facts(number, 1, BEGAN)])
            for number in numbers:
                log_results(place, number, 1, BEGAN)
            time.sleep(0.5)
        spent = server.cpu_ms() - before - idle
    return {"delta_cpu_ms": max(0.0, spent) / times, "delta_kb": _delta_bytes(server, home) / 1000}


def _delta_bytes(server: BenchServer, home: Path) -> int:
    """Ask for the last change alone, as a client does that was away for it."""
    key = _key(server, home)
    content = _asked(server, home, f"/api/experiment/{key}/table")
    head = json.loads(content[4 : 4 + int.from_bytes(content[:4], "little")])
    since = f"{head['generation']}-{head['change'] - 1}"
    token = load_token(home / "muster" / "page-token")
    headers = {"Authorization": f"Bearer {token}", "Last-Event-ID": since}
    request = Request(f"{server.address}/api/experiment/{key}/events", headers=headers)
    with urlopen(request, timeout=60) as stream:
        while not (line := stream.readline()).startswith(b"data:"):
            pass
        return len(line)


def _live(browser: object, runs: Path, home: Path, seconds: float) -> dict[str, float]:
    """Run an experiment at a paced rate, alone and with a page open, in turns."""
    alone, watched, samples = [], [], []
    for turn in range(1 if seconds < 20 else 3):
        alone.append(_driver(runs / f"alone{turn}", seconds).finish())
        driver = _driver(runs / f"watched{turn}", seconds)
        place = runs / f"watched{turn}" / "live"
        while not (place / "experiment.sqlite").exists():
            time.sleep(0.05)
        with page_server(place, home) as server:
            tab = Tab(browser)
            tab.page.goto(server.link)
            tab.page.locator("tr[data-place='0']").wait_for()
            tab.page.evaluate("location.hash += '&sort=metric%2Fsent_ms&down=1'")
            tab.page.wait_for_timeout(1000)
            samples += tab.page.evaluate(LATENCY, seconds * 0.6)
            watched.append(driver.finish())
            tab.close()
    samples.sort()
    ratio = statistics.median(w / a for w, a in zip(watched, alone, strict=True))
    table.note(f"driver CPU per result: alone {alone}, watched {watched}; {len(samples)} samples of age")
    return {
        "driver_cpu_ratio": ratio,
        "pixel_ms.p50": samples[len(samples) // 2] if samples else float("nan"),
        "pixel_ms.p99": samples[int(len(samples) * 0.99)] if samples else float("nan"),
    }


class _Driver:
    """An experiment in a separate process."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process = process

    def finish(self) -> float:
        """Return the driver's CPU seconds per result."""
        out, _ = self._process.communicate(timeout=300)
        found = json.loads(out.splitlines()[-1])
        return found["cpu_s"] / found["results"]


def _driver(storage: Path, seconds: float) -> _Driver:
    command = [sys.executable, "-m", "bench.page_live", str(storage), str(RATE), str(seconds)]
    return _Driver(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))


def _peer(folder: Path, trials: int, results: int, figures: dict[str, float]) -> dict[str, float]:
    """Load the same trials once from optuna-dashboard, and compares the servers' CPU."""
    command = [sys.executable, "-m", "bench.page_peer", str(folder / "optuna.db"), str(trials), str(results)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        table.note(f"optuna-dashboard did not run: {done.stderr.strip().splitlines()[-1:]}")
        return {}
    found = json.loads(done.stdout.splitlines()[-1])
    ours = figures.get("first_load_cpu_ms")
    more = {} if not ours else {"first_load_ratio": found["cpu_ms"] / ours}
    return {"peer.first_load_cpu_ms": found["cpu_ms"], "peer.wire_kb": found["kb"], **more}


def _large(browser: object, place: Path, home: Path) -> dict[str, float]:
    with page_server(place, home) as server:
        tab, before = Tab(browser), time.monotonic()
        seen = tab.open(server.link)
        figures = {"large_bands_s": max(max(seen.values()) / 1000, time.monotonic() - before)}
        figures["large_paint_s"] = max(seen["head"], seen["table"]) / 1000
        began = time.monotonic()
        tab.page.locator("tr[data-place='0']").press("End")
        tab.page.locator("tr[data-place='99999']").wait_for()
        figures["large_end_s"] = time.monotonic() - began
        figures |= {"large_server_mb": server.mb(), "large_wire_kb": tab.bytes / 1000}
        tab.close()
    return figures
