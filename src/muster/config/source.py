"""Provides the cluster file to the monitor's loop; no edit can stop the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from muster.cluster.model import ClusterSpec
from muster.config.document import Document
from muster.config.load import parse_config
from muster.config.schema import ClusterConfig
from muster.config.to_spec import to_spec
from muster.errors import ConfigError


class FileSpecSource:
    """A FileSpecSource implements `cluster.ports.SpecSource` over a file that users edit while the loop runs.

    The file is small, so it is read every time and parsed when its text changed; comparing modification
    times instead would miss an edit within the clock's resolution. An edit counts once two reads in a row
    found the same text: half a file can be a valid one, with fewer machines. An edit that cannot be used
    leaves the last good spec in force and is reported at every read until the file is right again.
    """

    def __init__(self, path: Path, environment: Mapping[str, str] | None = None) -> None:
        """Raises ConfigError when there is no good spec to begin with."""
        self._path = path
        self._environment = dict(environment or {})
        self._complete: Callable[[ClusterConfig], ClusterConfig] = lambda config: config
        self._text = self._latest = self._read()
        self._config, self._spec = self._parse(self._text)
        self._problem = ""

    def current(self) -> tuple[ClusterSpec, str]:
        """Returns the last good spec, and what is wrong with the newest edit ("" when nothing is)."""
        try:
            text = self._read()
        except ConfigError as problem:
            return self._spec, _kept(problem)
        is_stable, self._latest = text == self._latest, text
        if text != self._text and is_stable:
            self._text = text
            try:
                self._config, self._spec = self._parse(text)
                self._problem = ""
            except ConfigError as problem:
                self._problem = _kept(problem)
        return self._spec, self._problem

    def complete_with(self, complete: Callable[[ClusterConfig], ClusterConfig]) -> None:
        """Passes the file, now and after each edit, through what its provider has filled in."""
        self._complete = complete
        self._config, self._spec = self._parse(self._text)

    @property
    def config(self) -> ClusterConfig:
        """Returns the last good file; `node_launches(source.config)` is for a provider."""
        return self._config

    def _read(self) -> str:
        if self._path.exists() and not self._path.is_file():  # reading a pipe would stop the loop
            raise ConfigError(
                "is not a regular file; give the path of the cluster YAML", file=str(self._path)
            )
        return Document.text_of(self._path)

    def _parse(self, text: str) -> tuple[ClusterConfig, ClusterSpec]:
        config = self._complete(parse_config(Document(text, str(self._path)), self._environment))
        return config, to_spec(config)


def _kept(problem: ConfigError) -> str:
    return f"{problem} (the last good configuration stays in force)"
