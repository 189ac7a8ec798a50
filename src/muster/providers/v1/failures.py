"""Read what an exception of a provider means: a FailureKind, and a line for users.

Providers raise what their cloud's library raises. The type, the code and the text are all there is to go by;
what is not recognised is UNKNOWN, and is tried again later.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from muster.base.untrusted import ForeignExit, call_safely, error_text, message_text
from muster.cluster.model import FailureKind
from muster.errors import ProviderError

MAX_MESSAGE = 500
T = TypeVar("T")


def provider_call(call: Callable[[], T]) -> T:
    """Call a provider: whatever it raises is an Exception, but for Ctrl-C in the main thread."""
    try:
        return call_safely(call)
    except KeyboardInterrupt as error:
        if threading.current_thread() is threading.main_thread():
            raise
        raise ForeignExit(error_text(error)) from error


class ShieldedProvider:
    """Passes on what it is asked for; its methods raise nothing but Exceptions."""

    def __init__(self, node_provider: Any) -> None:  # noqa: ANN401 - duck typed
        self._provider = node_provider

    def __getattr__(self, name: str) -> Any:  # noqa: ANN401 - duck typed
        found = provider_call(lambda: getattr(self._provider, name))
        if not callable(found):
            return found
        return lambda *arguments: provider_call(lambda: found(*arguments))


# The first that matches counts: RequestLimitExceeded is a rate, InstanceLimitExceeded a quota.
_TEXTS: tuple[tuple[FailureKind, str], ...] = (
    (FailureKind.UNKNOWN, r"iam ?instance ?profile.* invalid"),  # a fresh one is not known everywhere yet
    (
        FailureKind.THROTTLED,
        r"throttl|too ?many ?requests|rate ?(limit|exceeded)|requestlimit|slow ?down|\b429\b",
    ),
    (
        FailureKind.QUOTA,
        r"quota|(limit|count) ?exceeded|exceed\w* (\w+ )*limit|vcpu ?limit|too many instances",
    ),
    (
        FailureKind.CAPACITY,
        r"capacity|sold ?out|stock ?out|out of stock|resource_?pool_?exhausted|resource_?exhausted"
        r"|sku ?not ?available|allocation ?failed|insufficient|not enough (\w+ )*available|no spot"
        r"|over-?constrained|price ?too ?low|lower than the minimum required spot"  # sold out at this price
        r"|not supported in your requested availability zone",
    ),
    (
        FailureKind.PERMISSION,
        r"permission|unauthori[sz]ed|not authori[sz]ed|forbidden|access ?denied|auth ?failure|credential"
        r"|authenticat|expired ?token|invalid ?token|pending ?verification|opt-?in ?required|\b40[13]\b",
    ),
    (
        FailureKind.CONFIG,
        r"invalid|malformed|validation|bad ?request|unsupported|not supported|does ?n[o']t exist|not ?found"
        r"|no such|missing (required )?(key|parameter|field)|unknown (key|parameter|field|type)",
    ),
)
_PATTERNS = tuple((kind, re.compile(pattern, re.IGNORECASE)) for kind, pattern in _TEXTS)
_CODE_KINDS = {  # codes of AWS that are ordinary words elsewhere
    "Unsupported": FailureKind.CAPACITY,  # not in this zone: another may have it
    "Blocked": FailureKind.PERMISSION,  # the account
}
_STATUS_KINDS = {
    400: FailureKind.CONFIG,
    401: FailureKind.PERMISSION,
    403: FailureKind.PERMISSION,
    404: FailureKind.CONFIG,
    429: FailureKind.THROTTLED,
}


def kind_of(error: BaseException) -> FailureKind:
    """Return the best guess, from what was raised and then from what caused it."""
    for part in _chain(error):
        kind = _kind_of_one(part)
        if kind is not FailureKind.UNKNOWN:
            return kind
    return FailureKind.UNKNOWN


def kind_of_text(text: str) -> FailureKind:
    """Return the best guess from words alone."""
    return next((kind for kind, pattern in _PATTERNS if pattern.search(text)), FailureKind.UNKNOWN)


def message_of(error: BaseException) -> str:
    """Return one line of bounded length; the category first, where the provider gave one."""
    category, description = _attribute(error, "category"), _attribute(error, "description")
    if isinstance(category, str) and isinstance(description, str):
        text = f"{category}: {description}"
    elif isinstance(error, ProviderError):
        text = message_text(error)
    else:
        text = error_text(error)
    line = " ".join(text.split())
    return line if len(line) <= MAX_MESSAGE else f"{line[: MAX_MESSAGE - 3]}..."


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield the error, then its causes; at most a few, because causes may refer to each other."""
    current: BaseException | None = error
    for _ in range(5):
        if current is None:
            return
        yield current
        source = _attribute(current, "src_exc_info")
        caught = source[1] if isinstance(source, tuple) and len(source) > 1 else None
        current = caught if isinstance(caught, BaseException) else current.__cause__ or current.__context__


def _kind_of_one(error: BaseException) -> FailureKind:
    if isinstance(error, ProviderError):
        return next(
            (kind for kind in FailureKind if kind.value == _attribute(error, "kind")), FailureKind.UNKNOWN
        )
    code = _code(error)
    if code in _CODE_KINDS:
        return _CODE_KINDS[code]
    category = _attribute(error, "category") or ""
    text = f"{type(error).__name__} {category} {code} {message_text(error)}"
    by_text = kind_of_text(text)
    if by_text is not FailureKind.UNKNOWN or _PATTERNS[0][1].search(text):
        return by_text
    if isinstance(error, NotImplementedError):
        return FailureKind.CONFIG
    return _STATUS_KINDS.get(_status(error), FailureKind.UNKNOWN)


def _code(error: BaseException) -> str:
    """Return the cloud's own code, as its library keeps it (`response` of AWS, `code`, `reason`)."""
    response = _attribute(error, "response")
    inner = response.get("Error") if isinstance(response, dict) else None
    if isinstance(inner, dict) and "Code" in inner:
        return str(inner["Code"])
    words = (_attribute(error, name) for name in ("code", "error_code", "reason"))
    return " ".join(word for word in words if isinstance(word, str))


def _status(error: BaseException) -> int:
    """Return the HTTP status, where the error carries one; 0 otherwise."""
    for name in ("status", "status_code", "code"):
        value = _attribute(error, name)
        if isinstance(value, int) and not isinstance(value, bool):
            return value
    return 0


def _attribute(error: BaseException, name: str) -> object:
    """Return what an error carries; None where it carries nothing, or nothing that can be read."""
    try:
        return call_safely(lambda: getattr(error, name, None))
    except Exception:  # noqa: BLE001 - an error that is itself broken is still an error of the provider
        return None
