"""Check the built site: links and anchors, and in Chromium its search, widths, colours and console.

Run by `make docs` and `make docs-check`. Chromium alone is enough: a page of our own (tools/site_check.html),
served beside the site, opens every page in a frame and posts what it found. `--no-browser` leaves that out.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from html.parser import HTMLParser
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote, urlsplit

ROOT = Path(__file__).resolve().parent.parent
SITE = ROOT / "build" / "docs" / "html"
HARNESS = ROOT / "tools" / "site_check.html"
# A reader types these, and one of the first three results must be the page.
ANSWERS = {
    "docs/schedulers": ("ASHA", "prune bad trials"),
    "docs/checkpoints": ("checkpoint", "resume", "preempted", "delete old checkpoints"),
    "docs/reference/search": ("OptunaSearch",),
    "docs/gpus": ("CUDA_VISIBLE_DEVICES", "no gpu found"),
    "docs/cluster-yaml": ("idle_timeout_minutes", "price file"),
    "docs/tracking": ("TensorBoard",),
    "docs/providers": ("NodeProvider",),
    "docs/verdicts": ("infeasible",),
    "docs/troubleshooting": ("log of a worker", "out of memory", "cluster does not scale up"),
    "docs/tune": ("see trial output", "how many trials at once", "use all cores", "progress bar"),
    "docs/cost": ("cheapest machine",),
    "docs/laptop-cluster": ("delete cluster",),
    "docs/results": ("where are results stored", "load best model"),
    "docs/search-spaces": ("grid search", "learning rate log scale"),
    "docs/stoppers-callbacks": ("stop after one hour",),
    "docs/tutorials/notebook": ("jupyter",),
    "docs/searchers": ("multi objective", "add more trials"),
    "docs/tune-cli": ("kill a trial",),
    "docs/aws": ("aws credentials",),
    "docs/support": ("which version of ray",),
    "docs/tutorials/shell-command": ("run a bash script",),
    "docs/ray-on-slurm": ("pending job slurm",),
}
WORDS = {word: page for page, words in ANSWERS.items() for word in words}
WIDTHS = (400, 1280)
PICTURED = (
    "docs/index.html",
    "docs/tutorials/scikit-learn.html",
    "docs/cluster-yaml.html",
    "docs/reference/tune.html",
)
BROWSERS = ("chromium", "chromium-browser", "google-chrome")
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync"),
    *("--disable-dev-shm-usage", "--hide-scrollbars", "--enable-logging=stderr"),
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
CONSOLE = re.compile(r":CONSOLE[:(]\d+\)?\] (.*)")
PROOF = "the console is heard"
TIMEOUT_S = 600.0


class Links(HTMLParser):
    """Links collects the targets and the anchors of one page."""

    def __init__(self) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = {name: value for name, value in attrs if value}
        self.anchors.update(found[name] for name in ("id", "name") if name in found)
        self.targets += [found[name] for name in ("href", "src") if name in found]


class Site:
    """The built pages in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def pages(self) -> dict[Path, Links]:
        found = {}
        for path in sorted(self.root.rglob("*.html")):
            if "_static" not in path.parts:
                found[path] = Links()
                found[path].feed(path.read_text(encoding="utf-8"))
        return found

    def broken_links(self) -> Iterator[str]:
        """Yield links to files or anchors that the site does not have; web addresses are not visited."""
        for page, links in self.pages.items():
            for target in dict.fromkeys(links.targets):
                parts = urlsplit(target)
                if parts.scheme or parts.netloc:
                    continue
                file = (page.parent / unquote(parts.path)).resolve() if parts.path else page
                anchors = self.pages[file].anchors if file in self.pages else None
                is_there = file.exists() and (
                    anchors is None or not parts.fragment or parts.fragment in anchors
                )
                if not is_there:
                    yield f"{page.relative_to(self.root)}: broken link {target}"


class _Server(ThreadingHTTPServer):
    """Keeps what the browser reported, and what it asked for in vain."""

    daemon_threads = True

    def __init__(self, *args: Any) -> None:  # noqa: ANN401 - those of the base
        super().__init__(*args)
        self.report: list[str] = []
        self.missing: list[str] = []
        self.is_done = threading.Event()

    def handle_error(self, request: Any, client_address: Any) -> None:  # noqa: ANN401 - those of the base
        """Pass over connections that the browser closes when a frame is removed."""


class _Handler(SimpleHTTPRequestHandler):
    """Serves the site and our page, and takes the report."""

    server: _Server

    def do_GET(self) -> None:
        if urlsplit(self.path).path != "/site_check.html":
            super().do_GET()
            return
        body = HARNESS.read_bytes()
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.report = json.loads(self.rfile.read(length))
        self.send_response(204)
        self.end_headers()
        self.server.is_done.set()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: ANN401 - the signature of the base
        if len(args) > 1 and str(args[0]).startswith("GET ") and str(args[1]) >= "400":
            self.server.missing.append(str(args[0]))


class Browser:
    """Chromium with an empty profile, and the server whose pages it opens."""

    def __init__(self, command: str, root: Path, profile: Path) -> None:
        self._command = [command, *FLAGS, f"--user-data-dir={profile}"]
        self._log = profile.parent / "browser.log"
        self.server = _Server(("127.0.0.1", 0), partial(_Handler, directory=str(root)))
        self._address = f"http://127.0.0.1:{self.server.server_port}/site_check.html"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def report(self, question: dict[str, Any]) -> list[str]:
        """Return what our page found wrong, what the console showed, and what could not be loaded."""
        with self._log.open("w", encoding="utf-8") as log, self._opened(question, log) as process:
            self.server.is_done.wait(TIMEOUT_S)
            process.terminate()
        shown = CONSOLE.findall(self._log.read_text(encoding="utf-8", errors="replace"))
        report = self.server.report or ["the browser gave no answer"]
        if not any(PROOF in line for line in shown):
            report.append("the browser's console cannot be read")
        report = [line for line in report if line != "done"]
        missing = [f"not found: {line}" for line in self.server.missing]
        return [*report, *(f"console: {line}" for line in shown if PROOF not in line), *missing]

    def _opened(self, question: dict[str, Any], log: Any) -> subprocess.Popen[bytes]:  # noqa: ANN401 - a file
        return subprocess.Popen([*self._command, self._url(question)], stdout=log, stderr=log)

    def _url(self, question: dict[str, Any]) -> str:
        return f"{self._address}#{quote(json.dumps(question))}"

    def picture(self, page: str, width: int, theme: str, path: Path) -> None:
        """Save what a window of this width shows of a page."""
        address = self._url({"show": page, "width": width, "theme": theme})
        size = f"--window-size={max(width, 500)},1400"
        command = [*self._command, size, "--virtual-time-budget=4000", f"--screenshot={path}", address]
        subprocess.run(command, check=True, capture_output=True, timeout=TIMEOUT_S)


def browser_problems(
    root: Path, command: str, words: Mapping[str, str], pictures: Path | None = None
) -> list[str]:
    """Return what is wrong with a site in a browser; saves pictures of some pages on request."""
    pages = [page.relative_to(root).as_posix() for page in Site(root).pages if page != root / "index.html"]
    with tempfile.TemporaryDirectory(prefix="muster-site-") as folder:
        browser = Browser(command, root, Path(folder) / "profile")
        try:
            question = {"pages": pages, "widths": WIDTHS, "words": words, "proof": PROOF}
            found = browser.report(question)
            for page in PICTURED if pictures else ():
                for width in WIDTHS:
                    for theme in ("light", "dark"):
                        name = f"{Path(page).stem}-{width}-{theme}.png"
                        browser.picture(page, width, theme, pictures / name)  # type: ignore[operator]
        finally:
            browser.server.shutdown()
            browser.server.server_close()
    return found


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Checks the built site.")
    parser.add_argument("--no-browser", action="store_true")
    parser.add_argument("--pictures", type=Path, help="save pictures of some pages here")
    options = parser.parse_args(arguments)
    site = Site(SITE)
    problems = list(site.broken_links()) if site.pages else [f"{SITE} has no pages: run `make docs`"]
    command = next(filter(None, map(shutil.which, BROWSERS)), None)
    if not options.no_browser and command is None:
        problems.append("there is no Chromium: install it (apt-get install chromium), or use --no-browser")
    elif not options.no_browser and command and not problems:
        if options.pictures:
            options.pictures.mkdir(parents=True, exist_ok=True)
        problems = browser_problems(SITE, command, WORDS, options.pictures)
    sys.stdout.write(
        "".join(f"{line}\n" for line in problems) or f"site: {len(site.pages)} pages are correct\n"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
