"""Launch request ids: a base id kept by the record, and one suffix per attempt for the provider.

A retry must be a new request to an idempotent provider, yet machines of any attempt belong to the record.
"""

from __future__ import annotations

from muster.base.ids import RequestId

_MARK = "~"


def attempt_id(base: RequestId, attempt: int, tick_id: str) -> RequestId:
    """The id handed to the provider for the n-th attempt (the first is the base itself).

    The tick is part of it: launch limits may spread the retries of one batch over several ticks, and an
    idempotent provider buys nothing for an id it has seen.
    """
    return base if attempt <= 1 else RequestId(f"{base}{_MARK}{attempt}.{tick_id}")


def attempt_of(request_id: RequestId) -> int:
    """Which attempt an id was handed to the provider for; 0 when it is none of ours."""
    mark, number = request_id.partition(_MARK)[1:]
    if not mark:
        return 1
    digits = number.partition(".")[0]
    return int(digits) if digits.isdecimal() else 0


def base_id(request_id: RequestId) -> RequestId:
    """The id the record keeps."""
    return RequestId(request_id.partition(_MARK)[0])
