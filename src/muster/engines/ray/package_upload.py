"""Runs in another process, of a node that lacks this package: UploadingActor unpacks it there."""

from __future__ import annotations

import hashlib
import io
import re
import sys
import zipfile
from pathlib import Path
from typing import Any

import muster

NEEDED = ("msgspec", "cloudpickle", "fsspec", "typing_extensions")  # what every node needs beside the package
_MISSING = re.compile(r"No module named '([\w.]+)'")
_STAMP = (2020, 1, 1, 0, 0, 0)  # the same files make the same archive


def missing_module(outcome: BaseException | None) -> str | None:
    """Returns the top-level name of the module whose lack kept an actor from starting."""
    found = _MISSING.search(str(outcome)) if outcome is not None else None
    return found[1].partition(".")[0] if found else None


def is_other_version(outcome: BaseException | None) -> bool:
    """Returns whether the code of the actor itself failed, not its process: a muster of another version.

    This version must not fail so; another one may be given what it does not know.
    """
    is_own_error = type(outcome).__name__.startswith("RayTaskError")
    return is_own_error or bool(getattr(outcome, "_actor_init_failed", False))


def archive() -> bytes:
    """Returns the package as a zip file."""
    root = Path(muster.__file__).parent
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as stored:
        for file in sorted(root.rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts:
                entry = zipfile.ZipInfo(str(file.relative_to(root.parent)), _STAMP)
                entry.external_attr = 0o644 << 16
                entry.compress_type = zipfile.ZIP_DEFLATED
                stored.writestr(entry, file.read_bytes())
    return made.getvalue()


def uploading_class(ray: Any) -> tuple[Any, tuple[Any, ...]]:  # noqa: ANN401 - a module; Ray's classes
    """Returns a class for `remote` that brings the package along, and what its constructor is given."""
    data = archive()
    name = f"{muster.__version__}-{hashlib.sha256(data).hexdigest()[:16]}"
    ray.cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return ray.remote(max_restarts=0, max_task_retries=0)(UploadingActor), (name, ray.put(data))


class UploadingActor:
    """An UploadingActor, pickled by value, unpacks the package, then serves as a TrialActor."""

    def __init__(self, name: str, archive: bytes) -> None:
        import io
        import os
        import sys
        import tempfile
        import zipfile

        folder = os.path.join(tempfile.gettempdir(), f"muster-{os.getuid()}-{name}")
        if not os.path.isdir(folder):
            partial = tempfile.mkdtemp(prefix="muster-", dir=tempfile.gettempdir())
            with zipfile.ZipFile(io.BytesIO(archive)) as stored:
                stored.extractall(partial)
            try:
                os.rename(partial, folder)
            except OSError:
                folder = (
                    partial  # another actor was faster, or another user has that name: this copy is as good
                )
        if os.stat(folder).st_uid != os.getuid():
            raise RuntimeError(f"{folder} belongs to another user: remove it")
        for known in [each for each in sys.modules if each.partition(".")[0] == "muster"]:
            del sys.modules[known]
        sys.path.insert(0, folder)
        from muster.engines.ray.actor import TrialActor

        self._actor: Any = TrialActor()

    def serve(self, *arguments: Any) -> None:  # noqa: ANN401 - as TrialActor.serve
        self._actor.serve(*arguments)

    def ping(self) -> None:
        """Does what TrialActor.ping does."""
