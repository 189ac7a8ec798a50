"""State as files and bytes: the newest by name, writes that a crash cannot halve, objects pickled."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any


def newest_state_file(directory: str, prefix: str) -> Path | None:
    """The last by name, because names end in the time of the session."""
    found = sorted(Path(directory).glob(f"{prefix}-*"), key=lambda path: path.name)
    return next((path for path in reversed(found) if not path.name.endswith(".tmp")), None)


def write_atomically(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f"{path.name}.{os.getpid()}.tmp")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def pickled(value: Any) -> bytes:  # noqa: ANN401 - a plug-in's own state
    """Pickled so that lambdas and classes of the user's script are included."""
    import cloudpickle  # type: ignore[import-untyped]

    return cloudpickle.dumps(value)  # type: ignore[no-any-return]
