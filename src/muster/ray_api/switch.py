"""Switch the `ray` of muster on: put its directory on `sys.path` and `PYTHONPATH`, unless Ray is installed.

A directory, and not only a finder, so that `find_spec`, `importlib.metadata` and processes that this one
starts see it by Python's standard means.
"""

from __future__ import annotations

import os
import sys
from importlib.machinery import ModuleSpec, PathFinder
from typing import Any

from muster.base.untrusted import is_standin
from muster.host.machine import environment

VARIABLE, FORCE, OFF = "MUSTER_AS_RAY", "force", ("", "0")
SITE = os.path.join(os.path.dirname(os.path.abspath(__file__)), "site")
VERSION = "2.58.0"  # the highest that AutoGluon, lenskit, ultralytics and the others accept


def version() -> str:
    """Return the version of Ray that muster claims to be."""
    return environment().get("MUSTER_AS_RAY_VERSION") or VERSION


def turn_on() -> None:
    """Make `import ray` find muster's package, here and in child processes.

    Raises:
        ImportError: The real Ray is imported already, or installed and MUSTER_AS_RAY is not `force`.
    """
    loaded = sys.modules.get("ray")
    if loaded is not None and not is_standin(loaded):
        raise ImportError(
            f"muster.as_ray: Ray is imported already, from {getattr(loaded, '__file__', None)}; "
            "import muster.as_ray before anything that imports ray"
        )
    variables, real = environment(), _installed()
    is_forced = variables.get(VARIABLE) == FORCE
    if real is not None and not is_forced:
        raise ImportError(
            f"muster.as_ray: Ray {_version_at(real)} is installed in {real.origin}; uninstall it, or set "
            f"{VARIABLE}={FORCE} to use muster in its place in this program"
        )
    variables[VARIABLE] = FORCE if is_forced else "1"
    sys.path[:] = _with_site(sys.path, first=is_forced)
    paths = [entry for entry in variables.get("PYTHONPATH", "").split(os.pathsep) if entry]
    variables["PYTHONPATH"] = os.pathsep.join(_with_site(paths, first=is_forced))
    if version() != VERSION and not any(isinstance(each, _OtherVersion) for each in sys.meta_path):
        sys.meta_path.insert(0, _OtherVersion())


def _with_site(entries: list[str], first: bool) -> list[str]:
    others = [entry for entry in entries if entry != SITE]
    return [SITE, *others] if first else [*others, SITE]


def _installed() -> ModuleSpec | None:
    """Return where the real Ray is; a folder `ray` without an `__init__.py` is not Ray."""
    spec = PathFinder.find_spec("ray", [entry for entry in sys.path if entry != SITE])
    return spec if spec is not None and spec.origin else None


def _version_at(real: ModuleSpec) -> str:
    import importlib.metadata  # here, as in the other places: it takes longer to import than all the rest

    folder = os.path.dirname(os.path.dirname(str(real.origin)))
    found = importlib.metadata.distributions(name="ray", path=[folder])
    return next((each.version for each in found), "(of unknown version)")


class _OtherVersion:
    """Finder that only answers `importlib.metadata`, with the version of MUSTER_AS_RAY_VERSION."""

    @staticmethod
    def find_spec(*_: object) -> None:
        return None

    @staticmethod
    def find_distributions(context: Any = None) -> list[Any]:  # noqa: ANN401
        from importlib.metadata import Distribution

        class Metadata(Distribution):
            def read_text(self, filename: str) -> str | None:
                text = f"Metadata-Version: 2.1\nName: ray\nVersion: {version()}\n"
                return text if filename == "METADATA" else None

            def locate_file(self, path: Any) -> Any:  # noqa: ANN401 - Python's signature
                return os.path.join(SITE, path)

        return [Metadata()] if getattr(context, "name", None) == "ray" else []


def run_program() -> None:
    """Run what the command line names, as Python would: a script, `-m module` or `-c code`."""
    words = sys.argv[1:]
    if not words or (words[0] in ("-m", "-c") and len(words) < 2):
        sys.exit("usage: python -m muster.as_ray (SCRIPT | -m MODULE | -c CODE) ARGS...")
    if words[0] == "-m":
        import runpy

        sys.argv = words[1:]
        sys.path.insert(0, os.getcwd())
        runpy.run_module(words[1], run_name="__main__", alter_sys=True)
    elif words[0] == "-c":
        sys.argv = ["-c", *words[2:]]
        sys.path.insert(0, "")
        main: dict[str, Any] = vars(sys.modules["__main__"])
        exec(compile(words[1], "<string>", "exec"), main)
    else:
        sys.argv = words
        sys.path.insert(0, os.path.dirname(os.path.abspath(words[0])))
        _run_script(words[0])


def _run_script(path: str) -> None:
    """Run a file as `__main__` of this process, so that pickles find its classes and functions there."""
    main: dict[str, Any] = vars(sys.modules["__main__"])
    main.update(__file__=path, __spec__=None, __doc__=None)
    with open(path, "rb") as stream:
        exec(compile(stream.read(), path, "exec"), main)
