"""A browser and servers for `python -m bench page`, and what is measured inside the page."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil

FLAGS = (
    *("--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--enable-precise-memory-info"),
)
# Notes when something is first on the page, by its own clock.
WATCH = """
window.seen = {};
const wanted = {head: "[data-test=figures]", table: "tr[data-place]", curves: ".u-over",
  parallel: "[data-test=parallel]", scatter: "[data-test=scatter]", importance: "[data-test=importance]",
  timeline: "[data-test=timeline]"};
const note = (name) => requestAnimationFrame(() => { window.seen[name] ??= performance.now(); });
const look = () => {
  for (const [name, selector] of Object.entries(wanted))
    if (!(name in window.seen) && document.querySelector(selector)) note(name);
};
new MutationObserver(look).observe(document, {childList: true, subtree: true});
"""
BRUSH = """async () => {
  const canvas = document.querySelector("[data-test=parallel]"), box = canvas.getBoundingClientRect();
  const send = (kind, y) => canvas.dispatchEvent(new PointerEvent(kind,
    {clientX: box.left + 46, clientY: box.top + y, pointerId: 1, bubbles: true}));
  const taken = [];
  canvas.setPointerCapture = () => {};
  send("pointerdown", 40);
  for (let step = 1; step <= 40; step++) {
    await new Promise((done) => setTimeout(done, 30));
    const before = performance.now();
    const drawn = new Promise((done) => { // when the canvas was drawn, and what is drawn with it
      canvas.getContext("2d").clearRect = function (...box) {
        delete this.clearRect;
        this.clearRect(...box);
        setTimeout(done, 0);
      };
      setTimeout(done, 2000);
    });
    send("pointermove", 40 + step * 5);
    await drawn;
    taken.push(performance.now() - before);
  }
  send("pointerup", 240);
  return taken;
}"""
# The newest report is the first row of the table, sorted by when it was sent: how old is it when painted?
LATENCY = """(seconds) => new Promise((done) => {
  const samples = [], end = performance.now() + seconds * 1000;
  let shown = NaN;
  const newest = () => Math.max(...[...document.querySelectorAll("tr[data-place='0'] td")]
    .map((cell) => Number(cell.textContent.replaceAll(",", ""))).filter((value) => value > 1000));
  const frame = () => {
    const value = newest();
    if (Number.isFinite(value) && value !== shown) {
      const now = Date.now() % 1000000, paint = 8;
      if (value > shown && value - shown < 5000)
        for (let sent = shown + 1; sent <= value; sent++) samples.push(now - sent + paint);
      shown = value;
    }
    if (performance.now() < end) requestAnimationFrame(frame); else done(samples);
  };
  requestAnimationFrame(frame);
})"""


# Events that a bench makes up go the way of those of the server.
SOURCES = """
window.sources = [];
window.EventSource = class extends EventSource {
  constructor(url) { super(url); this.handlers = {}; window.sources.push(this); }
  addEventListener(kind, handler) { this.handlers[kind] = handler; super.addEventListener(kind, handler); }
};
"""
# Changes ten trials, `count` times, as fast as the page can show it.
DELTAS = """async (count) => {
  const source = window.sources[window.sources.length - 1], url = new URL(source.url);
  const [generation, change] = url.searchParams.get("since").split("-");
  const table = await (await fetch(url.pathname.replace("/events", "/table"))).arrayBuffer();
  const length = new DataView(table).getUint32(0, true), text = new TextDecoder();
  const head = JSON.parse(text.decode(new Uint8Array(table, 4, length)));
  const ids = text.decode(new Uint8Array(table, 4 + length, head.id_bytes)).split("\\n");
  for (let at = 0; at < count; at++) {
    const rows = Array.from({ length: 10 }, (_, each) => {
      const row = (at * 10 + each) % head.rows;
      return [row, ids[row], ...head.columns.map((column) => (column.kind === "word" ? 0 : at + each / 10))];
    });
    const { zero_time, summary } = head, number = Number(change) + at;
    const delta = { generation, change: number, zero_time, rows, words: {}, summary };
    source.handlers.delta({ data: JSON.stringify(delta) });
    if (at % 60 === 59) await new Promise(requestAnimationFrame);
  }
}"""


class BenchServer:
    """A BenchServer is `muster dashboard` in a separate process."""

    def __init__(self, process: subprocess.Popen, link: str) -> None:
        self._process = process
        self.link = link
        self._ps = psutil.Process(process.pid)

    def cpu_ms(self) -> float:
        used = self._ps.cpu_times()
        return 1000 * (used.user + used.system)

    def mb(self) -> float:
        return self._ps.memory_info().rss / 1e6

    @property
    def address(self) -> str:
        return self.link.partition("/?")[0]


@contextlib.contextmanager
def page_server(place: Path, home: Path) -> Iterator[BenchServer]:
    command = [sys.executable, "-m", "muster", "page", str(place), "--port", "0"]
    state = {"XDG_STATE_HOME": str(home), "HOME": str(home), "MUSTER_HOME": str(home)}
    with subprocess.Popen(command, env={**os.environ, **state}, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield BenchServer(process, process.stdout.readline().split()[-1])
        finally:
            process.kill()


@contextlib.contextmanager
def chromium() -> Iterator[object]:
    """Raise RuntimeError with what to install where there is no browser."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError as error:
        raise RuntimeError("bench page needs playwright: pip install playwright") from error
    program = shutil.which("chromium") or shutil.which("google-chrome")
    if program is None:
        raise RuntimeError("bench page needs a browser: apt install chromium")
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        yield browser
        browser.close()


class Tab:
    """Counts what it receives over the wire."""

    def __init__(self, browser: object) -> None:
        self.context = browser.new_context(viewport={"width": 1280, "height": 900})
        self.page = self.context.new_page()
        self.page.set_default_timeout(180_000)
        self.page.add_init_script(WATCH)
        self.page.add_init_script(SOURCES)
        self.bytes = 0
        session = self.context.new_cdp_session(self.page)
        session.send("Network.enable")
        session.on("Network.loadingFinished", self._add)
        self._session = session

    def _add(self, event: dict) -> None:
        self.bytes += event["encodedDataLength"]

    def open(self, link: str) -> dict[str, float]:
        """Open the page; return when each band was painted, in milliseconds."""
        self.page.goto(link)
        for name in (".u-over", "tr[data-place]", "[data-test=importance]", "[data-test=timeline]"):
            self.page.locator(name).first.wait_for()
        return self.page.evaluate("window.seen")

    def heap_mb(self) -> float:
        self._session.send("HeapProfiler.enable")
        self._session.send("HeapProfiler.collectGarbage")
        return self.page.evaluate("performance.memory.usedJSHeapSize") / 1e6

    def close(self) -> None:
        self.context.close()


def renderer_mb() -> float:
    """Return the memory of the largest tab that this process has started, shared pages counted in part."""
    found = [0.0]
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            if any(part == "--type=renderer" for part in child.cmdline()):
                found.append(child.memory_full_info().pss / 1e6)
    return max(found)
