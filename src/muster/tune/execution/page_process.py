"""Imported lazily, for RunConfig(page=True) or MUSTER_PAGE=1: starts `muster dashboard` beside a run.

The page is a separate process that reads the experiment's file; it ends with this one.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from typing import Any

from muster.host.machine import child_environment
from muster.trials.model import Trial
from muster.tune.callback import Callback
from muster.tune.reporting.reporter import Reporter, in_notebook

_FRAME = """<iframe width="100%" height="760" style="border:1px solid #8884" title="muster"></iframe>
<script>(() => {{ const frames = document.querySelectorAll('iframe[title="muster"]');
frames[frames.length - 1].src = `${{location.protocol}}//${{location.hostname}}:{port}/{rest}`;
}})();</script>"""


class PageProcess(Callback):
    """Shows the page's address as soon as it is known; what the page does cannot stop a run."""

    def __init__(self, directory: str, reporter: Reporter) -> None:
        self._directory, self._reporter = directory, reporter
        self._line = ""

    def setup(self, *args: Any, **info: Any) -> None:  # noqa: ANN401 - Ray's signature
        """Start the page; by now there is a file to read."""
        directory = self._directory
        command = [sys.executable, "-m", "muster", "dashboard", directory, "--until", str(os.getpid())]
        self._process = subprocess.Popen(
            command,
            env=child_environment({}),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # Ctrl-C is for the run; the page ends with this process
            text=True,
        )
        self._thread = threading.Thread(target=self._read, name="muster-page", daemon=True)
        self._thread.start()

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        if self._line:
            self._show()

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:  # noqa: ANN401
        self._thread.join(10.0)
        self._show()

    def _read(self) -> None:
        stream = self._process.stdout
        self._line = stream.readline().strip() if stream is not None else ""
        self._process.returncode = 0  # it ends by itself: no warning that it still runs

    def _show(self) -> None:
        line, self._line = self._line, ""
        if not line:
            return
        if not line.startswith("muster dashboard:"):
            self._reporter.note(f"warning: the page could not be started: {line.removeprefix('error: ')}")
        elif in_notebook():
            from IPython.display import HTML, display  # type: ignore[import-not-found,unused-ignore]

            display(HTML(frame_of(line.split()[-1])))  # in a frame below the cell
        else:
            self._reporter.note(line)


def frame_of(link: str) -> str:
    """Return the frame; its cookie is the notebook's neighbour only under the same host name.

    Example:
        >>> ":8787/?launch=x`" in frame_of("http://127.0.0.1:8787/?launch=x")
        True
    """
    port, _, rest = link.partition("://")[2].partition(":")[2].partition("/")
    return _FRAME.format(port=port, rest=rest)
