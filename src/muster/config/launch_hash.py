"""Hashes by which machines are compared with their config: what they were bought as, what runs on them.

Canonical JSON here is `json.dumps` with sorted keys and no spaces, text kept as it is; values that JSON does
not know (dates of YAML) count as their text. Called when a config becomes a spec; reads only the files that
the config names.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

_KEY_FILES = ("ssh_private_key", "ssh_public_key")


def canonical_json(value: object) -> str:
    """One text for equal values, whatever the order of their keys."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def launch_hash(node_config: Mapping[str, Any], auth: Mapping[str, Any]) -> str:
    """Changes when machines bought from now on would differ: their config, or who may log in.

    Key files count by their contents, read when this pair is first seen; one that is not on this computer
    counts by its path.
    """
    return _launch_hash(canonical_json(dict(node_config)), canonical_json(dict(auth)))


@lru_cache(maxsize=4096)
def _launch_hash(node_config: str, auth: str) -> str:
    resolved = {
        key: _contents(value) if key in _KEY_FILES else value for key, value in json.loads(auth).items()
    }
    text = canonical_json([json.loads(node_config), resolved])
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest()
    return base64.b32hexencode(digest).decode("ascii").lower().rstrip("=")


def _contents(path: object) -> object:
    try:
        return Path(str(path)).expanduser().read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, RuntimeError):  # not here, not a path, no such home
        return path
