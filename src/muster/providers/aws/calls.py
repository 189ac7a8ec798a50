"""AwsCalls makes the calls to AWS: spaced by a rate, repeated where that is safe, errors in our own terms.

The rate halves when AWS throttles, and recovers.
"""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from muster.base.clock import Clock
from muster.errors import MusterError, ProviderError, Throttled
from muster.providers.aws.errors import DENIED, SERVER, refusal
from muster.providers.aws.wire import AwsRefusal, AwsWire, BotoWire, CallBroken, OutcomeUnknown, camel

TRIES = 5  # of a call that is throttled, or whose outcome is not known and that may be repeated
PAUSE_S = 0.5  # before the second try of a broken call; doubles
LONGEST_WAIT_S = 20.0  # for a token; a call that would wait longer is refused
# Which name their things, so that a second call changes nothing more.
_REPEATED = (
    "create_launch_template",
    "create_tags",
    "start_instances",
    "stop_instances",
    "terminate_instances",
)
_LOOKS = ("describe_", "get_", "list_", "decode_", "lookup_")
ENCODED = "Encoded authorization failure message:"
LEAST_PER_S = 0.2
STEP = 0.05  # of the full rate: what a call that is not throttled returns


@dataclass(frozen=True)
class RateLimit:
    """How many calls of one kind are made at once, and per second after that."""

    burst: float
    per_s: float


# Below the limits that EC2 documents for an account in one region, which others use, too.
LOOKING = RateLimit(burst=50.0, per_s=10.0)
CHANGING = RateLimit(burst=20.0, per_s=2.0)


class RequestRate:
    """Holds the tokens of one kind of calls; threads share it."""

    def __init__(self, limit: RateLimit, now: float) -> None:
        self._limit = limit
        self._tokens, self._at = limit.burst, now
        self._per_s = limit.per_s
        self._lock = threading.Lock()

    @property
    def per_s(self) -> float:
        """Return the calls per second that are allowed at present, once the burst is used up."""
        return self._per_s

    def reserve(self, now: float) -> float:
        """Take a token and return how long to wait before the call is made; 0: at once."""
        with self._lock:
            self._refill(now)
            self._tokens -= 1.0
            return max(0.0, -self._tokens / self._per_s)

    def throttled(self, now: float) -> None:
        """Halve the rate and take away what was saved up."""
        with self._lock:
            self._refill(now)
            self._per_s = max(LEAST_PER_S, self._per_s / 2)
            self._tokens = min(self._tokens, 0.0)

    def accepted(self) -> None:
        """Raise the rate a little, up to the full one."""
        with self._lock:
            self._per_s = min(self._limit.per_s, self._per_s + STEP * self._limit.per_s)

    def _refill(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        self._tokens = min(self._limit.burst, self._tokens + passed * self._per_s)
        self._at = now


class AwsCalls:
    """The connection to one region, shared by all threads of a provider."""

    def __init__(
        self, region: str, clock: Clock, profile: str | None = None, wire: AwsWire | None = None
    ) -> None:
        self.region, self.clock = region, clock
        self.wire = BotoWire(region, profile) if wire is None else wire
        self.counts: Counter[str] = Counter()  # calls made, by operation; for the benchmark and tests
        now = clock.monotonic()
        self.rates = {"look": RequestRate(LOOKING, now), "change": RequestRate(CHANGING, now)}

    def ec2(self, operation: str, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401 - as boto3's
        """Call EC2 by boto3's name of the operation, such as `describe_instances`."""
        return self.call("ec2", operation, parameters)

    def call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Return the answer. Raises ProviderError for a refusal, CallBroken where there is none, and
        OutcomeUnknown if that call may have changed something.

        A call that looks, changes nothing when repeated, or carries a ClientToken, is repeated when its
        outcome is not known; a throttled one is repeated always.
        """
        is_look = operation.startswith(_LOOKS)
        is_repeated = is_look or operation in _REPEATED or "ClientToken" in parameters
        rate = self.rates["look" if is_look else "change"]
        is_unclear = False  # an attempt without an answer may have changed something
        for attempt in range(1, TRIES + 1):
            wait_s = rate.reserve(self.clock.monotonic())
            if wait_s > LONGEST_WAIT_S:
                raise Throttled(f"too many calls to AWS wait already ({operation} would wait {wait_s:.0f} s)")
            if wait_s > 0:
                self.clock.sleep(wait_s)
            self.counts[operation] += 1
            try:
                answer = self.wire.send(service, operation, parameters)
            except (AwsRefusal, CallBroken) as raised:
                error = self._error_of(raised, service, operation)
            else:
                rate.accepted()
                return answer
            is_unclear |= isinstance(error, CallBroken) and not is_look
            if isinstance(error, Throttled):
                rate.throttled(self.clock.monotonic())
            elif isinstance(error, CallBroken) and is_repeated:
                self.clock.sleep(PAUSE_S * 2 ** (attempt - 1) if attempt < TRIES else 0.0)
            else:
                break
        if is_unclear and isinstance(error, Throttled | CallBroken):
            raise OutcomeUnknown(str(error)) from error
        raise error

    def pages(self, operation: str, key: str, **parameters: Any) -> Iterator[Any]:  # noqa: ANN401 - items of AWS
        """Yield the items under `key` of all pages of an EC2 call that looks."""
        token: str | None = None
        while True:
            more = {} if token is None else {"NextToken": token}
            answer = self.ec2(operation, **parameters, **more)
            yield from answer.get(key, ())
            token = answer.get("NextToken") or None
            if token is None:
                return

    def _error_of(self, raised: AwsRefusal | CallBroken, service: str, operation: str) -> MusterError:
        if isinstance(raised, CallBroken):
            return raised
        code, message = raised.code, raised.message
        if code in DENIED and ENCODED in message:
            message = self._decoded(*message.split(ENCODED, 1))
        refused = refusal(code, message, camel(operation), service)
        is_server = code in SERVER or (raised.status >= 500 and type(refused) is ProviderError)
        if is_server and not isinstance(refused, Throttled):
            return CallBroken(f"{operation}: AWS returned a server error ({code}: {message})")
        refused.code = code  # type: ignore[attr-defined]  # for those that react to one code
        return refused

    def _decoded(self, said: str, encoded: str) -> str:
        """Return a refusal with the action that it is about, where the caller may decode it."""
        try:
            given = {"EncodedMessage": encoded.strip()}
            answer = self.wire.send("sts", "decode_authorization_message", given)
            action = json.loads(answer["DecodedMessage"])["context"]["action"]
        except Exception:  # noqa: BLE001 - it is only good to know
            return said
        return f"{said}You are not authorized to perform: {action}"


def code_of(error: BaseException) -> str:
    """Return AWS's code of a refusal; "" where there is none."""
    return str(getattr(error, "code", ""))
