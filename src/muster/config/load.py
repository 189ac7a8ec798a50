"""Read a cluster file: types, preparation, then what no single key can say. Called by the CLI and by
`FileSpecSource`."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from muster.config.check import checked
from muster.config.document import Document
from muster.config.environment import with_environment
from muster.config.normalize import prepare
from muster.config.schema import ClusterConfig
from muster.config.validate import check_prepared, check_written

_NO_VARIABLES: Mapping[str, str] = {}


def load_config(path: Path, environment: Mapping[str, str] = _NO_VARIABLES) -> ClusterConfig:
    """The file as typed data; ConfigError names file, line, key and fix."""
    return parse_config(Document.load(path), environment)


def parse_config(document: Document, environment: Mapping[str, str] = _NO_VARIABLES) -> ClusterConfig:
    """Typed data of a document already read; `environment` gives settings that the file does not."""
    if document.data is None:
        raise document.error((), "is empty; it needs cluster_name, provider and available_node_types")
    check_written(document, checked(document, (), document.data, ClusterConfig))
    config = checked(document, (), with_environment(prepare(document), environment), ClusterConfig)
    check_prepared(document, config)
    return config
