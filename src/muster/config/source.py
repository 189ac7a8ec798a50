"""Provide the cluster file to the monitor's loop; no edit can stop the loop."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from muster.cluster.model import ClusterSpec
from muster.config.document import Document
from muster.config.prices import parse_prices, price_file
from muster.config.schema import ClusterConfig
from muster.config.to_spec import to_spec
from muster.errors import ConfigError


class FileSpecSource:
    """Implements `cluster.ports.SpecSource` over a file that users edit while the loop runs.

    The file is small, so it is read every time and parsed when its text changed; comparing modification
    times instead would miss an edit within the clock's resolution. An edit counts once two reads in a row
    found the same text: half a file can be a valid one, with fewer machines. An edit that cannot be used
    leaves the last good spec in force and is reported at every read until the file is right again. The price
    file is treated alike, but an edit of it counts at the next read, unless its last line seems cut off.
    """

    def __init__(self, path: Path, parse: Callable[[Document], ClusterConfig]) -> None:
        """Raise ConfigError when there is no good spec to begin with."""
        self._path, self._parse_config = path, parse
        self._complete: Callable[[ClusterConfig], ClusterConfig] = lambda config: config
        self._problem = self._price_problem = ""
        self._text = self._latest = self._read()
        self._price_text = self._price_latest = ""
        self._config, self._spec = self._parse(self._text)

    def current(self) -> tuple[ClusterSpec, str]:
        """Return the last good spec, and what is wrong with the newest edit ("" when nothing is)."""
        try:
            text = self._read()
        except ConfigError as problem:
            return self._spec, _kept(problem)
        is_stable, self._latest = text == self._latest, text
        if text != self._text and is_stable:
            self._text = text
            try:
                self._config, self._spec = self._parse(text)
                self._problem = self._price_problem = ""
            except ConfigError as problem:
                self._problem = _kept(problem)
        price_problem = self._read_prices()
        return self._spec, self._problem or price_problem

    def complete_with(self, complete: Callable[[ClusterConfig], ClusterConfig]) -> None:
        """Pass the file, now and after each edit, through what its provider has filled in."""
        self._complete = complete
        self._config, self._spec = self._parse(self._text)

    @property
    def config(self) -> ClusterConfig:
        """Return the last good file; `node_launches(source.config)` is for a provider."""
        return self._config

    def _read(self) -> str:
        return _text_of(self._path, "the cluster YAML")

    def _parse(self, text: str) -> tuple[ClusterConfig, ClusterSpec]:
        config = self._complete(self._parse_config(Document(text, str(self._path))))
        path = price_file(config, self._path)
        if path is None:
            return config, to_spec(config)
        prices = _text_of(path, "the price file")
        spec = to_spec(config, parse_prices(prices, str(path)))
        self._price_text = self._price_latest = prices
        return config, spec

    def _read_prices(self) -> str:
        """Make an edit of the price file count; return what is wrong with the newest one."""
        path = price_file(self._config, self._path)
        if path is None:
            return ""
        try:
            text = _text_of(path, "the price file")
        except ConfigError as problem:
            return _kept(problem)
        is_whole, self._price_latest = text.endswith("\n") or text == self._price_latest, text
        if text != self._price_text and is_whole:
            self._price_text = text
            try:
                self._spec = to_spec(self._config, parse_prices(text, str(path)))
                self._price_problem = ""
            except ConfigError as problem:
                self._price_problem = _kept(problem)
        return self._price_problem


def _text_of(path: Path, what: str) -> str:
    if path.exists() and not path.is_file():  # reading a pipe would stop the loop
        raise ConfigError("is not a regular file", file=str(path), fix=f"give the path of {what}")
    return Document.text_of(path)


def _kept(problem: ConfigError) -> str:
    return f"{problem} (the last good configuration stays in force)"
