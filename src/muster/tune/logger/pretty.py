"""A result as text for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_LEFT_OUT = ("config", "hist_stats")


def pretty_print(result: Mapping[str, Any], exclude: set[str] | None = None) -> str:
    """A result as YAML, without its config, what is None, and the keys in `exclude`.

    Example:
        >>> print(pretty_print({"loss": 0.5, "config": {"lr": 1}}))
        loss: 0.5
        <BLANKLINE>
    """
    import json

    import yaml

    from muster.tune.logger.files.json_rows import encode

    left_out = {*_LEFT_OUT, *(exclude or ())}
    shown = {key: value for key, value in result.items() if key not in left_out and value is not None}
    return str(yaml.safe_dump(json.loads(encode(shown)), default_flow_style=False))
