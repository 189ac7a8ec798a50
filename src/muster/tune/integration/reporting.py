"""Selects metrics and reports them, with a checkpoint of one file, for the callbacks of all frameworks."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from muster.session.checkpoint import Checkpoint
from muster.session.report import report

Metrics = str | Sequence[str] | Mapping[str, str] | None


def chosen(metrics: Metrics, found: Mapping[str, Any], framework: str) -> dict[str, Any]:
    """Returns the metrics to report: all, those named, or renamed ones (`{reported: found}`)."""
    if metrics is None:
        return dict(found)
    names = (metrics,) if isinstance(metrics, str) else metrics
    wanted = dict(names) if isinstance(names, Mapping) else {name: name for name in names}
    missing = sorted(set(wanted.values()) - set(found))
    if missing:
        raise KeyError(
            f"{framework} has no metric {', '.join(missing)}; it has {', '.join(sorted(found)) or 'none yet'}"
        )
    return {name: found[source] for name, source in wanted.items()}


def send(values: Mapping[str, Any], save: Callable[[str], object] | None = None) -> None:
    """Reports metrics; with `save`, which is given an empty directory, also a checkpoint."""
    if save is None:
        report(dict(values))
        return
    with tempfile.TemporaryDirectory() as directory:
        save(directory)
        report(dict(values), checkpoint=Checkpoint.from_directory(directory))


def opened(checkpoint: Checkpoint, read: Callable[[str], Any]) -> Any:  # noqa: ANN401 - a framework's model
    """Returns what `read` makes of a checkpoint's directory."""
    with checkpoint.as_directory() as directory:
        return read(directory)
