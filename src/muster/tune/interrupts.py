"""Ctrl-C: the first one ends the loop after its step, the second one acts as ever. SIGUSR1 ends it too."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import FrameType

NO_HANDLER = "TUNE_DISABLE_SIGINT_HANDLER"


@contextmanager
def gentle_stop(environment: Mapping[str, str]) -> Iterator[threading.Event]:
    """An event that is set when somebody wants the experiment to end. Only the main thread can be told."""
    wanted = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield wanted
        return
    signals = [] if environment.get(NO_HANDLER, "0") not in ("", "0") else [signal.SIGINT]
    if hasattr(signal, "SIGUSR1"):
        signals.append(signal.SIGUSR1)
    before = {number: signal.getsignal(number) for number in signals}

    def note(number: int, frame: FrameType | None) -> None:
        wanted.set()
        if number == signal.SIGINT:
            signal.signal(number, before[signal.SIGINT])

    for number in signals:
        signal.signal(number, note)
    try:
        yield wanted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
