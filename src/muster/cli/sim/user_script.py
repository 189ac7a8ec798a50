"""What a user's script would have launched: it runs up to its fit(), and no further. Called by `sim tune`."""

from __future__ import annotations

import runpy
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from muster.errors import ConfigError

if TYPE_CHECKING:
    from muster.tune.execution.launch import Launch


class _Reached(BaseException):
    """The script came to the launch; not an Exception, so that it does not catch it itself."""

    def __init__(self, asked: Launch) -> None:
        self.asked = asked
        super().__init__()


def launch_of(script: Path) -> Launch:
    """Runs the script as `python SCRIPT` would; ConfigError when it fails or never tunes anything."""
    if not script.is_file():
        raise ConfigError(f"{script}: there is no such file. Give a Python file that builds a Tuner")
    with _no_launch(), _as_main(script):
        try:
            left = runpy.run_path(str(script), run_name="__main__")
            for tuner in _tuners(left):
                tuner.fit()
        except _Reached as reached:
            return reached.asked
        except SystemExit as error:
            raise ConfigError(f"{script}: ended itself ({error}) before it called fit()") from error
        except Exception as error:  # a user's script may raise anything
            raise ConfigError(
                f"{script}: failed before it called fit(): {type(error).__name__}: {error}"
            ) from error
    raise ConfigError(f"{script}: calls neither Tuner.fit() nor tune.run(), and leaves no Tuner behind")


def _tuners(left: dict[str, Any]) -> list[Any]:
    """For a script that only builds one."""
    from muster.tune.tuner import Tuner

    return [value for value in left.values() if isinstance(value, Tuner)]


@contextmanager
def _no_launch() -> Iterator[None]:
    from muster.tune.execution import launch as module

    def reached(asked: Launch) -> None:
        raise _Reached(asked)

    real = module.launch
    module.launch = reached  # type: ignore[assignment]
    try:
        yield
    finally:
        module.launch = real


@contextmanager
def _as_main(script: Path) -> Iterator[None]:
    """Its neighbours can be imported, and it has no arguments."""
    path, arguments = list(sys.path), sys.argv
    sys.path.insert(0, str(script.resolve().parent))
    sys.argv = [str(script)]
    try:
        yield
    finally:
        sys.path[:], sys.argv = path, arguments
