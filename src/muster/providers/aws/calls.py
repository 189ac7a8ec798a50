"""AwsCalls makes the calls to AWS: one attempt each inside boto3, spaced by a rate, errors in our own terms.

The rate halves when AWS throttles, and recovers. This is the only file that imports boto3, when a call is
made. Credentials are those that boto3 finds by itself (environment, profile, instance profile); they are
never read, kept or passed on here.
"""

from __future__ import annotations

import difflib
import json
import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from muster.base.clock import Clock
from muster.errors import (
    ConfigError,
    MusterError,
    ProviderDenied,
    ProviderError,
    ProviderMisconfigured,
    Throttled,
)
from muster.providers.aws.errors import DENIED, SERVER, refusal

logger = logging.getLogger(__name__)

CONNECT_S, READ_S = 5.0, 60.0
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
STEP = 0.05  # of the full rate: what a call that is not throttled gives back


@dataclass(frozen=True)
class RateLimit:
    """A RateLimit is how many calls of one kind are made at once, and per second after that."""

    burst: float
    per_s: float


# Below the limits that EC2 documents for an account in one region, which others use, too.
LOOKING = RateLimit(burst=50.0, per_s=10.0)
CHANGING = RateLimit(burst=20.0, per_s=2.0)


class RequestRate:
    """A RequestRate holds the tokens of one kind of calls; threads share it."""

    def __init__(self, limit: RateLimit, now: float) -> None:
        self._limit = limit
        self._tokens, self._at = limit.burst, now
        self._per_s = limit.per_s
        self._lock = threading.Lock()

    @property
    def per_s(self) -> float:
        """Returns the calls per second that are allowed at present, once the burst is used up."""
        return self._per_s

    def reserve(self, now: float) -> float:
        """Takes a token and returns how long to wait before the call is made; 0: at once."""
        with self._lock:
            self._refill(now)
            self._tokens -= 1.0
            return max(0.0, -self._tokens / self._per_s)

    def throttled(self, now: float) -> None:
        """Halves the rate and takes away what was saved up."""
        with self._lock:
            self._refill(now)
            self._per_s = max(LEAST_PER_S, self._per_s / 2)
            self._tokens = min(self._tokens, 0.0)

    def accepted(self) -> None:
        """Raises the rate a little, up to the full one."""
        with self._lock:
            self._per_s = min(self._limit.per_s, self._per_s + STEP * self._limit.per_s)

    def _refill(self, now: float) -> None:
        passed = max(0.0, now - self._at)
        self._tokens = min(self._limit.burst, self._tokens + passed * self._per_s)
        self._at = now


class CallBroken(MusterError):
    """A CallBroken is a call whose outcome is not known: AWS could not be reached, or failed itself."""

    retryable = True


class AwsCalls:
    """An AwsCalls is the connection to one region, shared by all threads of a provider."""

    def __init__(self, region: str, clock: Clock, profile: str | None = None) -> None:
        self.region, self.clock, self._profile = region, clock, profile
        self.counts: Counter[str] = Counter()  # calls made, by operation; for the benchmark and tests
        now = clock.monotonic()
        self.rates = {"look": RequestRate(LOOKING, now), "change": RequestRate(CHANGING, now)}
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def ec2(self, operation: str, **parameters: Any) -> dict[str, Any]:  # noqa: ANN401 - as boto3's
        """Calls EC2 by boto3's name of the operation, such as `describe_instances`."""
        return self.call("ec2", operation, parameters)

    def call(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the answer. Raises ProviderError for a refusal, CallBroken when the outcome is not known.

        A call that looks, changes nothing when repeated, or carries a ClientToken, is repeated when its
        outcome is not known; a throttled one is repeated always.
        """
        is_look = operation.startswith(_LOOKS)
        is_repeated = is_look or operation in _REPEATED or "ClientToken" in parameters
        rate = self.rates["look" if is_look else "change"]
        for attempt in range(1, TRIES + 1):
            self._wait_for(rate, operation)
            try:
                answer = self._once(service, operation, parameters)
            except Throttled:
                rate.throttled(self.clock.monotonic())
                if attempt == TRIES:
                    raise
            except CallBroken:
                if not is_repeated or attempt == TRIES:
                    raise
                self.clock.sleep(PAUSE_S * 2 ** (attempt - 1))
            else:
                rate.accepted()
                return answer
        raise AssertionError("a loop that returns or raises")

    def pages(self, operation: str, key: str, **parameters: Any) -> Iterator[Any]:  # noqa: ANN401 - items of AWS
        """Yields the items under `key` of all pages of an EC2 call that looks."""
        token: str | None = None
        while True:
            more = {} if token is None else {"NextToken": token}
            answer = self.ec2(operation, **parameters, **more)
            yield from answer.get(key, ())
            token = answer.get("NextToken") or None
            if token is None:
                return

    def members_of(self, shape: str) -> frozenset[str]:
        """Returns the names of the fields of one of EC2's types, such as `RunInstancesRequest`."""
        found = self.client("ec2").meta.service_model.shape_for(shape)
        return frozenset(found.members)

    def client(self, service: str) -> Any:  # noqa: ANN401 - boto3 has no types
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._connected(service)
            return self._clients[service]

    def _connected(self, service: str) -> Any:  # noqa: ANN401
        botocore = _botocore()
        from botocore.config import Config

        config = Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            connect_timeout=CONNECT_S,
            read_timeout=READ_S,
            max_pool_connections=16,
            user_agent_extra="muster",
        )
        try:
            session = _session(self._profile)
            return session.client(service, region_name=self.region, config=config)
        except botocore.exceptions.ProfileNotFound as error:
            raise ConfigError(
                f"{error}; see ~/.aws/config, or remove the key", path="provider.profile"
            ) from error
        except (botocore.exceptions.BotoCoreError, ValueError) as error:
            raise ProviderMisconfigured(
                f"boto3 cannot be used for {service} in {self.region!r}: {error}"
            ) from error

    def _wait_for(self, rate: RequestRate, operation: str) -> None:
        wait_s = rate.reserve(self.clock.monotonic())
        if wait_s > LONGEST_WAIT_S:
            raise Throttled(f"too many calls to AWS wait already ({operation} would wait {wait_s:.0f} s)")
        if wait_s > 0:
            self.clock.sleep(wait_s)

    def _once(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        client = self.client(service)
        exceptions = _botocore().exceptions
        self.counts[operation] += 1
        try:
            answer: dict[str, Any] = getattr(client, operation)(**parameters)
        except exceptions.ClientError as error:
            raise self._refused(error, service, operation) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise ProviderDenied(
                f"no AWS credentials were found for {service}:{_camel(operation)}: run `aws configure` or"
                " `aws sso login`, set AWS_PROFILE, or give the machine an instance profile"
            ) from error
        except (exceptions.TokenRetrievalError, exceptions.UnauthorizedSSOTokenError) as error:
            raise ProviderDenied(f"your AWS login has expired ({error}): run `aws sso login`") from error
        except (exceptions.ParamValidationError, exceptions.NoRegionError) as error:
            raise ProviderMisconfigured(f"{operation}: {' '.join(str(error).split())}") from error
        except (
            exceptions.BotoCoreError,
            _botocore().parsers.ResponseParserError,
        ) as error:  # no connection, a timeout, an answer that cannot be read
            raise CallBroken(f"{operation}: {' '.join(str(error).split())}") from error
        return answer

    def _refused(self, error: Any, service: str, operation: str) -> MusterError:  # noqa: ANN401 - a ClientError
        told = error.response.get("Error", {})
        code, message = str(told.get("Code", "")), str(told.get("Message", ""))
        status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
        if code in DENIED and ENCODED in message:
            message = self._decoded(*message.split(ENCODED, 1))
        refused = refusal(code, message, _camel(operation), service)
        if isinstance(refused, Throttled):
            return refused
        if code in SERVER or (status >= 500 and type(refused) is ProviderError):
            return CallBroken(f"{operation}: AWS failed itself ({code}: {message})")
        refused.code = code  # type: ignore[attr-defined]  # for those that react to one code
        return refused

    def _decoded(self, said: str, encoded: str) -> str:
        """Returns a refusal with the action that it is about, where whoever asks may decode it."""
        try:
            answer = self.client("sts").decode_authorization_message(EncodedMessage=encoded.strip())
            action = json.loads(answer["DecodedMessage"])["context"]["action"]
        except Exception:  # noqa: BLE001 - it is only good to know
            return said
        return f"{said}You are not authorized to perform: {action}"


def code_of(error: BaseException) -> str:
    """Returns AWS's code of a refusal; "" where there is none."""
    return str(getattr(error, "code", ""))


def _camel(operation: str) -> str:
    """Returns the operation as policies name it: `create_fleet` is `CreateFleet`."""
    return "".join(word.capitalize() for word in operation.split("_"))


def _botocore() -> Any:  # noqa: ANN401 - boto3 has no types
    try:
        import botocore.exceptions
        import botocore.parsers
    except ImportError as error:
        raise ConfigError(
            "'aws' needs boto3, which is not installed here: pip install 'muster-ml[aws]'",
            path="provider.type",
        ) from error
    return botocore


def _session(profile: str | None) -> Any:  # noqa: ANN401
    """Returns a new session, so that changed credentials are seen; the models of AWS are read once."""
    import boto3
    import botocore.session

    own = botocore.session.Session(profile=profile)
    own.register_component("data_loader", _loader())
    return boto3.Session(botocore_session=own)


@lru_cache(maxsize=1)
def _loader() -> Any:  # noqa: ANN401
    import botocore.loaders

    return botocore.loaders.create_loader()


def check_region(region: str | None) -> str:
    """Returns the region; ConfigError for one that is missing or that boto3 does not know."""
    _botocore()
    if not region:
        raise ConfigError("is missing; write for example us-west-2", path="provider.region")
    import botocore.session

    session: Any = botocore.session.Session()
    session.register_component("data_loader", _loader())
    known = [
        name
        for partition in session.get_available_partitions()
        for name in session.get_available_regions("ec2", partition_name=partition)
    ]
    if known and region not in known:
        close = difflib.get_close_matches(region, known, n=1)
        hint = f"did you mean {close[0]!r}?" if close else "see `aws ec2 describe-regions`"
        raise ConfigError(
            f"{region!r} is not a region of AWS that boto3 knows; {hint}", path="provider.region"
        )
    return region
