"""A real Chromium for the tests of the page, and servers of it in processes of their own."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

FLAGS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)


@pytest.fixture(scope="module")  # not longer: playwright keeps an event loop running in this thread
def browser() -> Iterator[object]:
    playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
    if program is None:
        pytest.skip("there is no chromium here (apt install chromium)")
    with playwright.sync_playwright() as driver:
        started = driver.chromium.launch(executable_path=program, args=list(FLAGS))
        yield started
        started.close()


class PageServer:
    """A PageServer is `muster dashboard` in a process; `link` opens it once."""

    def __init__(self, process: subprocess.Popen, link: str) -> None:
        self.process, self.link = process, link

    @property
    def port(self) -> int:
        return int(self.link.partition("127.0.0.1:")[2].partition("/")[0])

    def kill(self) -> None:
        self.process.kill()
        self.process.wait(30)
        if self.process.stdout is not None:
            self.process.stdout.close()


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Callable[..., PageServer]]:
    """Start servers that share a token, as those of one user do."""
    started: list[PageServer] = []
    home = tmp_path / "home"

    def start(*arguments: object, port: int = 0) -> PageServer:
        command = [sys.executable, "-m", "muster", "page", *map(str, arguments), "--port", str(port)]
        state = {"XDG_STATE_HOME": str(home / "state"), "MUSTER_HOME": str(home), "HOME": str(home)}
        process = subprocess.Popen(command, env={**os.environ, **state}, stdout=subprocess.PIPE, text=True)
        line = process.stdout.readline()
        assert line.startswith("muster dashboard: http"), line
        started.append(PageServer(process, line.split()[-1]))
        return started[-1]

    yield start
    for each in started:
        each.kill()  # one that is dead has a pipe to close


@pytest.fixture
def open_tab(browser) -> Iterator[Callable[..., object]]:
    """Open tabs in a fresh profile; at the end, no error was logged and no other host was asked."""
    contexts, errors, hosts = [], [], set()

    def open_one(link: str, *, width: int = 1280, scheme: str = "light"):
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        contexts.append(context)
        tab = context.new_page()
        tab.set_default_timeout(60_000)
        tab.on("pageerror", lambda error: errors.append(str(error)))
        tab.on("console", lambda said: errors.append(said.text) if said.type == "error" else None)
        tab.on(
            "request",
            lambda asked: hosts.add(asked.url.partition("://")[2].partition("/")[0].partition(":")[0]),
        )
        tab.goto(link)
        return tab

    open_one.errors = errors
    yield open_one
    for context in contexts:
        context.close()
    assert (errors, hosts - {"127.0.0.1", "localhost", ""}) == ([], set())
