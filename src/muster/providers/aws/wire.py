"""BotoWire sends single calls to AWS through boto3; the simulator and tests send them elsewhere.

The only file that imports boto3, when a call is made. Credentials are those that boto3 finds by itself
(environment, profile, instance profile); they are never read, kept or passed on here.
"""

from __future__ import annotations

import difflib
import threading
from collections.abc import Mapping
from functools import lru_cache
from typing import Any, Protocol

from muster.errors import ConfigError, MusterError, ProviderDenied, ProviderMisconfigured

CONNECT_S, READ_S = 5.0, 60.0


class AwsRefusal(Exception):
    """An error answer of AWS."""

    def __init__(self, code: str, message: str, status: int = 400) -> None:
        self.code, self.message, self.status = code, message, status
        super().__init__(f"{code}: {message}")


class CallBroken(MusterError):
    """A call whose outcome is not known: AWS could not be reached, or returned a server error."""

    retryable = True


class OutcomeUnknown(CallBroken):
    """A call without an answer that may have changed something: to be repeated as it was."""

    rest: Any = None  # of a request of several calls: what is left with this one; None: all of it


class AwsWire(Protocol):
    """The wire to one region: every request to AWS passes through `send`."""

    def send(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        """Make one attempt at a call, by boto3's name of the operation.

        Raises AwsRefusal for an error answer, CallBroken where there is none, ProviderError for a call that
        was not sent.
        """
        ...

    def members_of(self, shape: str) -> frozenset[str]:
        """Return the names of the fields of one of EC2's types, such as `RunInstancesRequest`."""
        ...


class BotoWire(AwsWire):
    """The wire through boto3; threads share its clients."""

    def __init__(self, region: str, profile: str | None = None) -> None:
        self._region, self._profile = region, profile
        self._clients: dict[str, Any] = {}
        self._lock = threading.Lock()

    def send(self, service: str, operation: str, parameters: Mapping[str, Any]) -> dict[str, Any]:
        client = self.client(service)
        exceptions = _botocore().exceptions
        try:
            answer: dict[str, Any] = getattr(client, operation)(**parameters)
        except exceptions.ClientError as error:
            given = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            raise AwsRefusal(str(given.get("Code", "")), str(given.get("Message", "")), status) from error
        except (exceptions.NoCredentialsError, exceptions.PartialCredentialsError) as error:
            raise ProviderDenied(
                f"no AWS credentials were found for {service}:{camel(operation)}: run `aws configure` or"
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

    def members_of(self, shape: str) -> frozenset[str]:
        found = self.client("ec2").meta.service_model.shape_for(shape)
        return frozenset(found.members)

    def client(self, service: str) -> Any:  # noqa: ANN401 - boto3 has no types
        with self._lock:
            if service not in self._clients:
                self._clients[service] = self._connect(service)
            return self._clients[service]

    def _connect(self, service: str) -> Any:  # noqa: ANN401
        check_region(self._region)
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
            return session.client(service, region_name=self._region, config=config)
        except botocore.exceptions.ProfileNotFound as error:
            raise ConfigError(
                f"{error}", path="provider.profile", fix="see ~/.aws/config, or remove the key"
            ) from error
        except (botocore.exceptions.BotoCoreError, ValueError) as error:
            raise ProviderMisconfigured(
                f"boto3 cannot be used for {service} in {self._region!r}: {error}"
            ) from error


def camel(operation: str) -> str:
    """Return the operation as policies name it: `create_fleet` is `CreateFleet`."""
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
    """Return a new session, so that changed credentials are seen; the models of AWS are read once."""
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
    """Return the region; ConfigError for one that is missing or that boto3 does not know."""
    _botocore()
    if not region:
        raise ConfigError("is missing", path="provider.region", fix="write for example us-west-2")
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
            f"{region!r} is not a region of AWS that boto3 knows", path="provider.region", fix=f"{hint}"
        )
    return region
