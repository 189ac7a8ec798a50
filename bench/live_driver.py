"""Run a Ray driver in a separate process that executes commands, one line of JSON at a time.

A process can be connected to one Ray only, and a killed driver must not take the test with it. The other end
is a script that calls `serve` with its commands.
"""

from __future__ import annotations

import contextlib
import json
import select
import subprocess
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, TextIO

ANSWER_S = 150.0


class Driver:
    """Sends commands: `ask("command", option=value)` returns what the command returned."""

    def __init__(self, script: Path, environment: Mapping[str, str], log: Path) -> None:
        self._log = log
        with open(log, "ab") as stream:
            self._process = subprocess.Popen(
                [sys.executable, str(script)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                env=dict(environment),
                cwd=log.parent,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, command: str, timeout_s: float = ANSWER_S, **options: Any) -> Any:
        assert self._process.stdin is not None
        order = json.dumps({"do": command, "with": options}) + "\n"
        self._process.stdin.write(order.encode())
        self._process.stdin.flush()
        answer = self._answer(command, timeout_s)
        if "error" in answer:
            raise RuntimeError(f"{command}: {answer['error']}")
        return answer["value"]

    def close(self) -> None:
        """Kill the process; its demand goes with it."""
        self._process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):  # an order it never read
                    stream.close()

    def _answer(self, command: str, timeout_s: float) -> dict[str, Any]:
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], timeout_s)
        line = self._process.stdout.readline() if ready else b""
        if not line:
            log = self._log.read_text(encoding="utf-8", errors="replace")[-3000:]
            raise RuntimeError(f"{command}: the driver did not answer within {timeout_s:.0f} s; {log}")
        return dict(json.loads(line))


def serve(commands: Mapping[str, Callable[..., Any]], answers: TextIO) -> None:
    """Answer commands until the input ends."""
    for line in sys.stdin:
        order = json.loads(line)
        try:
            reply = {"value": commands[order["do"]](**order["with"])}
        except Exception:  # noqa: BLE001 - any error is sent to the other side
            reply = {"error": traceback.format_exc()}
        print(json.dumps(reply), file=answers, flush=True)


def answers_only() -> TextIO:
    """Return the stream for answers; whatever else is printed goes to the log."""
    answers, sys.stdout = sys.stdout, sys.stderr
    return answers
