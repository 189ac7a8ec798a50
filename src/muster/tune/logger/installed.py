"""Is a tracker's package there? Asked before the first trial, without importing it."""

from __future__ import annotations

from importlib.util import find_spec


def require(package: str, install: str | None = None) -> None:
    """ModuleNotFoundError that says what to do."""
    if find_spec(package) is None:
        raise ModuleNotFoundError(
            f"{package} is not installed: pip install {install or package}, "
            f"or leave its callback out of RunConfig(callbacks=[...])",
            name=package,
        )
