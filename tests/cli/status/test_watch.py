from __future__ import annotations

import os
import pty
import sys
from pathlib import Path

import pytest
from rich.console import Console
from tests.cli.cluster_samples import AT, published

from muster.cli.status.command import FOOTER, fitted
from muster.cli.status.report import build_report


def screen(width: int, height: int, **changes) -> list[str]:
    console = Console(width=width, height=height, force_terminal=False, highlight=False)
    with console.capture() as kept:
        console.print(fitted(build_report(published(**changes), now=AT), console, verbose=False))
    return [line.rstrip() for line in kept.get().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("width", "height"), [(60, 24), (80, 24), (120, 24), (80, 50), (80, 10), (60, 5)])
def test_the_picture_never_outgrows_the_screen_and_ends_with_the_footer(width: int, height: int):
    lines = screen(width, height)
    assert len(lines) <= height
    assert max(map(len, lines)) <= width
    assert lines[-1] == FOOTER[:width]


def test_machines_are_the_last_rows_to_be_cut():
    lines = screen(80, 24)
    assert sum(line.startswith("  t-") for line in lines) == 4
    assert any(line.startswith("  ... and 2 ") for line in lines)


def test_a_large_screen_shows_everything():
    assert not [line for line in screen(80, 50) if "more; --json" in line]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo terminal")
def test_q_ends_the_watch_and_the_terminal_is_as_before(tmp_path: Path):
    """The real command on a real terminal."""
    from muster.autoscaler.home import ClusterHome
    from muster.autoscaler.status_files import write_status
    from muster.base.clock import SystemClock

    home = ClusterHome.of("laptop", tmp_path / "clusters")
    home.path.mkdir(parents=True)
    home.ledger.touch()
    write_status(home, published(at=SystemClock().now()))
    pid, terminal = pty.fork()
    if pid == 0:  # pragma: no cover - the child
        os.environ["MUSTER_HOME"] = str(tmp_path)
        os.execv(sys.executable, [sys.executable, "-m", "muster.cli.main", "status", "--watch"])
    shown = b""
    while FOOTER.encode()[:7] not in shown:
        shown += os.read(terminal, 65_536)
    os.write(terminal, b"q")
    while True:
        try:
            piece = os.read(terminal, 65_536)
        except OSError:  # the terminal closes with its last process
            break
        if not piece:
            break
        shown += piece
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(terminal)
    assert b"laptop" in shown
    assert (
        shown.rstrip().endswith(b"\x1b[?25h") or b"\x1b[?1049l" in shown
    )  # the screen and cursor are released
