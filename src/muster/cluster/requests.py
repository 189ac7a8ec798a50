"""Launch request ids: a base id kept by the record, and one suffix per attempt for the provider.

A retry must be a new request to an idempotent provider, yet machines of any attempt belong to the record.
"""

from __future__ import annotations

from muster.base.ids import RequestId

_MARK = "~"


def attempt_id(base: RequestId, attempt: int) -> RequestId:
    """The id handed to the provider for the n-th attempt (the first is the base itself)."""
    return base if attempt <= 1 else RequestId(f"{base}{_MARK}{attempt}")


def base_id(request_id: RequestId) -> RequestId:
    """The id the record keeps."""
    return RequestId(request_id.partition(_MARK)[0])
