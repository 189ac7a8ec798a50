"""CarriedActor: a TrialActor on nodes that lack this package, or have another version of it.

Sent by value, so nothing of the package is imported here before its archive has been unpacked.
"""

from __future__ import annotations

from typing import Any


class CarriedActor:
    """Unpacks the package, then is a TrialActor."""

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
                folder = partial  # somebody else was faster, or that name is not ours: this copy is as good
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
        """As TrialActor.ping."""
