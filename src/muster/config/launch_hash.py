"""The launch hash, by which machines are compared with the config they would be bought from today.

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

_LONG = 2**63
_KEY_FILES = ("ssh_private_key", "ssh_public_key")


def canonical_json(value: object) -> str:
    """One text for equal values, whatever the order of their keys."""
    return json.dumps(_plain(value), sort_keys=True, separators=(",", ":"), ensure_ascii=False, default=str)


def _plain(value: object) -> object:
    """As JSON can write it: YAML has keys that are no text, and numbers of any length."""
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner) for inner in value]
    return hex(value) if isinstance(value, int) and abs(value) >= _LONG else value


def digest(text: str) -> str:
    """sha256 of a text, encoded for a tag."""
    return encoded(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())


def encoded(raw: bytes) -> str:
    """Lower-case base32hex without padding: short and plain enough for a tag of any cloud."""
    return base64.b32hexencode(raw).decode("ascii").lower().rstrip("=")


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
    return digest(canonical_json([json.loads(node_config), resolved]))


def _contents(path: object) -> object:
    try:
        return Path(str(path)).expanduser().read_text(encoding="utf-8", errors="replace")
    except (OSError, ValueError, RuntimeError):  # not here, not a path, no such home
        return path
