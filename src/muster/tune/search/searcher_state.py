"""A searcher's state as bytes, however its class saves itself. Used by SearchGenerator and the wrappers."""

from __future__ import annotations

from pathlib import Path

from muster.errors import MusterError, RestoreError, TuneError
from muster.tune.search.searcher import Searcher


def saved_searcher(searcher: Searcher) -> bytes:
    """Its own bytes; or, where the class only overrides Ray's `save(path)`, what that writes."""
    try:
        return _saved_by_path(searcher) if _uses_paths(searcher) else searcher.save_state()
    except (MusterError, NotImplementedError):
        raise
    except Exception as error:
        raise TuneError(
            f"the searcher {type(searcher).__name__} cannot be saved ({type(error).__name__}: {error}): "
            "implement save(path) and restore(path), or keep only picklable attributes"
        ) from error


def restore_searcher(searcher: Searcher, state: bytes) -> None:
    try:
        if _uses_paths(searcher):
            _restore_by_path(searcher, state)
        else:
            searcher.restore_state(state)
    except MusterError:
        raise
    except Exception as error:
        raise RestoreError(
            f"the searcher {type(searcher).__name__} cannot be restored ({type(error).__name__}: {error}): "
            "was it saved by the same class with the same libraries?"
        ) from error


def _uses_paths(searcher: Searcher) -> bool:
    """Whether the most derived class that saves itself does so by path."""
    for cls in type(searcher).__mro__:
        if "save_state" in vars(cls):
            return False
        if "save" in vars(cls):
            return True
    return False


def _saved_by_path(searcher: Searcher) -> bytes:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="muster-searcher-") as directory:
        path = Path(directory) / "state"
        searcher.save(str(path))
        return path.read_bytes()


def _restore_by_path(searcher: Searcher, state: bytes) -> None:
    import tempfile

    with tempfile.TemporaryDirectory(prefix="muster-searcher-") as directory:
        path = Path(directory) / "state"
        path.write_bytes(state)
        searcher.restore(str(path))
