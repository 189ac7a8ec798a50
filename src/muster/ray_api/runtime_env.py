"""Imported lazily, as `ray.runtime_env`: define RuntimeEnv, whose `env_vars` reach trials and tasks."""

from __future__ import annotations

from typing import Any


class RuntimeEnv(dict[str, Any]):
    """Dict of the given fields, as in Ray."""

    def __init__(  # noqa: PLR0913 - Ray's signature
        self,
        *,
        py_modules: list[str] | None = None,
        py_executable: str | None = None,
        working_dir: str | None = None,
        pip: list[str] | None = None,
        conda: dict[str, Any] | str | None = None,
        container: dict[str, str] | None = None,
        env_vars: dict[str, str] | None = None,
        worker_process_setup_hook: Any = None,  # noqa: ANN401 - Ray's
        config: Any = None,  # noqa: ANN401 - Ray's
        **kwargs: Any,  # noqa: ANN401 - further plug-ins
    ) -> None:
        given = {
            name: value for name, value in locals().items() if name not in ("self", "kwargs", "__class__")
        }
        super().__init__({name: value for name, value in (given | kwargs).items() if value is not None})

    def to_dict(self) -> dict[str, Any]:
        return dict(self)

    def env_vars(self) -> dict[str, str]:
        return dict(self.get("env_vars") or {})
