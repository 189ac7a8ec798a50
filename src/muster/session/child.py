"""Report from a process that a trial started, over the socket that MUSTER_REPORT_TO names.

The protocol is for any language: one JSON object per line, one line as the answer. `c` lets the process
continue, `s` stops it, `e TEXT` refuses the report. `{"ask": "context"}` and `{"ask": "notice"}` are answered
by a JSON object. A training script imports this file: few imports.
"""

from __future__ import annotations

import _socket  # `socket` itself takes as long to import as all the rest
import json
import os
import threading
from collections.abc import Mapping
from functools import cached_property, lru_cache
from types import SimpleNamespace
from typing import Any

from muster.base.clock import SystemClock
from muster.errors import TuneError
from muster.host.machine import environment
from muster.session.checkpoint import Checkpoint
from muster.session.progress import Progress
from muster.session.report import REPORT_TO, rank_of
from muster.session.session import PreemptionInfo, TrialStopped, TuneContext

CONNECT_S, RETRY_S = 5.0, 0.02  # the trial's process opens its socket when it starts its first child
_CHUNK = 1 << 16


class ReportClient:
    """One connection to the process of the trial."""

    def __init__(self, path: str) -> None:
        self._path, self._pid, self._turn = path, os.getpid(), threading.Lock()
        self._socket = _connect(path)

    def ask(self, message: Mapping[str, Any]) -> str:
        """Send one line and return the answer; "s" when the trial has ended."""
        with self._turn:
            if self._pid != os.getpid():  # a fork needs another connection
                self._pid, self._socket = os.getpid(), _connect(self._path)
            try:
                self._socket.sendall(_line(message))
                answer = b""
                while more := self._socket.recv(_CHUNK):
                    answer += more
                    if answer.endswith(b"\n"):
                        return answer[:-1].decode()
            except OSError:
                pass
            return "s"


def _connect(path: str) -> _socket.socket:
    clock = SystemClock()
    deadline = clock.monotonic() + CONNECT_S
    while True:
        connection = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
        try:
            connection.connect(path)
        except OSError as error:
            connection.close()
            if clock.monotonic() >= deadline:
                raise TuneError(
                    f"{REPORT_TO}={path}: the process of the trial does not answer ({error.strerror})",
                    fix=f"unset {REPORT_TO} if this process is not part of a trial",
                ) from None
            clock.sleep(RETRY_S)
        else:
            os.set_inheritable(connection.fileno(), False)
            return connection


def _line(message: Mapping[str, Any]) -> bytes:
    try:
        return _encode(message).encode() + b"\n"
    except (TypeError, ValueError) as error:
        fix = "report numbers, text, lists and dicts, and put the rest into a checkpoint"
        raise TuneError(
            f"a result cannot be sent from a child of the trial's process: {error}", fix=fix
        ) from None


def _plain(value: Any) -> object:  # noqa: ANN401 - numbers and arrays of any library
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a value has the type {type(value).__name__}")


_encode = json.JSONEncoder(default=_plain).encode


class RankContext(TuneContext):
    """Context of a rank: also its place among the processes that train together, by torch's variables."""

    @staticmethod
    def _rank_shim(name: str, answer: int) -> int:
        variable = "RANK" if name == "get_world_rank" else name.removeprefix("get_").upper()
        text = environment().get("GROUP_RANK" if name == "get_node_rank" else variable, "")
        return int(text) if text.isdigit() else answer


class ChildSession:
    """The Session of a process that a trial started: every call is a line to the trial's own process."""

    def __init__(self, path: str) -> None:
        self._client = ReportClient(path)
        self.progress = Progress()

    def report(self, metrics: Mapping[str, Any], checkpoint: Checkpoint | None = None) -> None:
        rank = rank_of(environment())
        if rank:
            return  # rank 0 reports for all
        if not isinstance(metrics, Mapping):
            raise TypeError("metrics must be a dict")
        message: dict[str, Any] = {"metrics": dict(metrics)}
        if checkpoint is not None:
            is_here = isinstance(checkpoint, Checkpoint) and checkpoint._is_local
            message["checkpoint"] = os.path.abspath(checkpoint.path if is_here else checkpoint.to_directory())
        if rank is not None:
            message["rank"] = rank
        answer = self._client.ask(message)
        if answer.startswith("e "):
            raise TuneError(answer[2:])
        if answer != "c":
            raise TrialStopped
        self.progress.advance(metrics, elapsed_s=0.0, now=0.0)

    def _ask(self, what: str) -> dict[str, Any]:
        answer = self._client.ask({"ask": what})
        return dict(json.loads(answer)) if answer.startswith("{") else {}

    @cached_property
    def context(self) -> TuneContext:
        told = self._ask("context")
        kind = TuneContext if rank_of(environment()) is None else RankContext
        return kind(
            experiment_name=told.get("experiment_name"),
            trial_name=told.get("trial_name"),
            trial_id=told.get("trial_id"),
            trial_dir=told.get("trial_dir"),
            resources=SimpleNamespace(**told.get("resources", {})),
        )

    def get_checkpoint(self) -> Checkpoint | None:
        path = self._ask("context").get("checkpoint")
        return None if path is None else Checkpoint(path)

    def get_preemption_info(self) -> PreemptionInfo | None:
        notice = self._ask("notice").get("notice")
        return None if notice is None else PreemptionInfo(*notice)

    def should_checkpoint(self) -> bool:
        return bool(self._ask("notice").get("should_checkpoint"))


_session_of = lru_cache(maxsize=1)(ChildSession)


def child_session() -> ChildSession | None:
    """Return the session of a process below a trial; None in a process that no trial started."""
    path = environment().get(REPORT_TO)
    return _session_of(path) if path else None
