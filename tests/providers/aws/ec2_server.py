"""A moto server behind a middleware that adds what moto lacks of EC2: tokens, stock, throttling.

moto accepts every call and every size at once. The middleware keeps the answer of each ClientToken, sells
only what is in stock (fleets in part, with an error for each place), refuses what a test tells it to, and
counts.
"""

from __future__ import annotations

import io
import json
import re
import threading
from collections import Counter
from fnmatch import fnmatchcase
from urllib.parse import parse_qsl, urlencode
from xml.sax.saxutils import escape

REGION = "us-east-1"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "testing",
    "AWS_SECRET_ACCESS_KEY": "testing",
    "AWS_DEFAULT_REGION": REGION,
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nowhere/config",
    "AWS_SHARED_CREDENTIALS_FILE": "/nowhere/credentials",
}
ERROR = (
    '<?xml version="1.0" encoding="UTF-8"?><Response><Errors><Error><Code>{code}</Code>'
    "<Message>{message}</Message></Error></Errors><RequestID>r</RequestID></Response>"
)
NOTHING_LEFT = "We currently do not have sufficient capacity in the Availability Zone you requested."
FRESH = "Value (x) for parameter iamInstanceProfile.name is invalid. Invalid IAM Instance Profile name"
Answer = tuple[int, bytes]


class Ec2Faults:
    """What the middleware does; a test sets it, and `reset` undoes it."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.stock: dict[str, int] = {}  # "type zone market", with *, -> machines left; unnamed: any number
        self.codes: dict[str, str] = {}  # the same -> the code of the refusal
        self.throttled: Counter[str] = Counter()  # action -> calls that are throttled
        self.denied: set[str] = set()  # actions
        self.refused: dict[str, tuple[str, str]] = {}  # action -> code and message
        self.accepted: set[str] = set()  # actions of IAM that moto does not know everything for
        self.lost: Counter[str] = Counter()  # action -> calls that are done, and whose answer is lost
        self.fresh_profile = 0  # launches until the instance profile is known
        self.is_pending = False  # new machines stay pending
        self.unlisted: set[str] = set()  # instances that the list lacks
        self.prices: dict[str, float] = {}  # machine type -> $ per hour, on demand
        self.calls: Counter[str] = Counter()
        self.bodies: list[dict[str, str]] = []  # of calls that buy
        self.tokens: dict[tuple[str, str], tuple[str, Answer]] = {}

    def stock_of(self, place: str) -> str:
        """Return the most precise entry of `stock` for a place; "" for none."""
        fitting = [pattern for pattern in self.stock if fnmatchcase(place, pattern)]
        return min(fitting, key=lambda one: (one.count("*"), one), default="")

    def left(self, place: str) -> int:
        return self.stock[self.stock_of(place)] if self.stock_of(place) else 10**6

    def take(self, place: str, count: int) -> None:
        if self.stock_of(place):
            self.stock[self.stock_of(place)] -= count


class Ec2Middleware:
    """A WSGI application around moto's."""

    def __init__(self, app, faults: Ec2Faults) -> None:
        self.app, self.faults = app, faults
        self.lock = threading.RLock()

    def __call__(self, environ, start_response):
        body = environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
        fields = dict(parse_qsl(body.decode("utf-8", "replace"), keep_blank_values=True))
        target = environ.get("HTTP_X_AMZ_TARGET", "")  # services that speak JSON name their action here
        action = fields.get("Action", "") or target.rpartition(".")[2]
        with self.lock:
            self.faults.calls[action or environ["PATH_INFO"]] += 1
            status, answer = self.answer(environ, action, fields, body)
        if target and answer[:1] == b"<":
            answer = _as_json(answer)
        reason = {200: "OK", 503: "Service Unavailable"}.get(status, "Bad Request")
        kind = "application/x-amz-json-1.1" if answer[:1] == b"{" else "text/xml"
        start_response(f"{status} {reason}", [("Content-Type", kind), ("Content-Length", str(len(answer)))])
        return [answer]

    def answer(self, environ, action, fields, body) -> Answer:
        faults = self.faults
        if faults.throttled[action] > 0 or faults.throttled["*"] > 0:
            faults.throttled[action if faults.throttled[action] > 0 else "*"] -= 1
            return error("RequestLimitExceeded", "Request limit exceeded.", 503)
        if action in faults.denied:
            return error("UnauthorizedOperation", "You are not authorized to perform this operation.", 403)
        if action in faults.accepted:
            done = f"<{action}Response xmlns='x'><ResponseMetadata/></{action}Response>"
            return 200, done.encode()
        if action in faults.refused:
            return error(*faults.refused[action])
        token = fields.get("ClientToken", "")
        known = faults.tokens.get((action, token)) if token else None
        if known is not None:
            plain = urlencode(sorted(fields.items()))
            if known[0] != plain:
                text = "Arguments on this idempotent request are inconsistent with those of an earlier one"
                return error("IdempotentParameterMismatch", text)
            done = known[1]
        else:
            done = self.fresh(environ, action, fields, body)
            if token and done[0] == 200:
                faults.tokens[action, token] = urlencode(sorted(fields.items())), done
        if faults.lost[action] > 0:
            faults.lost[action] -= 1
            return error("InternalError", "An internal error has occurred", 500)
        return done

    def fresh(self, environ, action, fields, body) -> Answer:
        if action in ("CreateFleet", "RunInstances") and fields.get("DryRun", "").lower() == "true":
            return error("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", 412)
        if action == "CreateFleet":
            return self.fleet(environ, fields)
        if action == "RunInstances":
            return self.run(environ, fields)
        if action == "SimulatePrincipalPolicy":
            return self.simulated(fields)
        if action == "GetProducts":
            return 200, self.products(json.loads(body))
        status, answer = self.moto(environ, body)
        if action == "DescribeInstances":
            answer = self.listed(answer)
        return status, answer

    # -- buying -----------------------------------------------------------------------------------

    def fleet(self, environ, fields) -> Answer:
        faults = self.faults
        faults.bodies.append(fields)
        name = fields["LaunchTemplateConfigs.1.LaunchTemplateSpecification.LaunchTemplateName"]
        if name not in backend().launch_template_name_to_ids:
            return error("InvalidLaunchTemplateName.NotFoundException", f"There is no template {name}")
        market = fields.get("TargetCapacitySpecification.DefaultTargetCapacityType", "on-demand")
        wanted = int(fields["TargetCapacitySpecification.TotalTargetCapacity"])
        overrides = _numbered(fields, r"LaunchTemplateConfigs\.1\.Overrides\.(\d+)\.")
        if any("Priority" in one for one in overrides):
            overrides.sort(key=lambda one: float(one["Priority"]))
        answers, errors = [], []
        for override in overrides:
            place = f"{override.get('InstanceType', '')} {zone_of(override['SubnetId'])} {market}"
            if faults.fresh_profile > 0:
                errors.append(
                    (
                        override,
                        "InvalidParameterValue",
                        FRESH,
                    )
                )
                continue
            count = min(wanted, faults.left(place))
            if count > 0:
                answers.append(self.launched(environ, fields, override, count))
                faults.take(place, count)
                wanted -= count
            if wanted > 0:
                code = faults.codes.get(faults.stock_of(place), "InsufficientInstanceCapacity")
                errors.append((override, code, NOTHING_LEFT))
            if wanted <= 0:
                break
        faults.fresh_profile = max(0, faults.fresh_profile - 1)
        return 200, _fleet_answer(answers, errors, market)

    def launched(self, environ, fields, override, count) -> bytes:
        plain = {k: v for k, v in fields.items() if ".Overrides." not in k}
        plain["TargetCapacitySpecification.TotalTargetCapacity"] = str(count)
        plain |= {f"LaunchTemplateConfigs.1.Overrides.1.{k}": v for k, v in override.items()}
        status, answer = self.moto(environ, urlencode(plain).encode())
        assert status == 200, answer
        return answer

    def run(self, environ, fields) -> Answer:
        faults = self.faults
        faults.bodies.append(fields)
        if faults.fresh_profile > 0:
            faults.fresh_profile -= 1
            return error("InvalidParameterValue", FRESH)
        market = fields.get("InstanceMarketOptions.MarketType", "on-demand")
        subnet = fields.get("SubnetId") or fields.get("NetworkInterface.1.SubnetId", "")
        place = f"{fields.get('InstanceType', '')} {zone_of(subnet)} {market}"
        count = min(int(fields["MaxCount"]), faults.left(place))
        if count < int(fields["MinCount"]):
            return error(
                faults.codes.get(faults.stock_of(place), "InsufficientInstanceCapacity"), NOTHING_LEFT
            )
        done = self.moto(environ, urlencode({**fields, "MaxCount": count, "MinCount": count}).encode())
        if done[0] == 200:
            faults.take(place, count)
        return done

    # -- looking ----------------------------------------------------------------------------------

    def products(self, asked) -> bytes:
        """moto has no Price List: answers with a product of each machine type that has a price."""
        wanted = {one["Field"]: one["Value"] for one in asked["Filters"]}
        price = self.faults.prices.get(wanted["instanceType"])
        dimension = {"unit": "Hrs", "pricePerUnit": {"USD": f"{price or 0:.10f}"}}
        terms = {"OnDemand": {"A.B": {"priceDimensions": {"A.B.C": dimension}}}}
        found = [json.dumps({"product": {"attributes": wanted}, "terms": terms})] if price else []
        return json.dumps({"FormatVersion": "aws_v1", "PriceList": found}).encode()

    def listed(self, answer: bytes) -> bytes:
        text = answer.decode()
        if self.faults.is_pending:
            text = text.replace("<code>16</code>", "<code>0</code>").replace(">running<", ">pending<")
        for instance in self.faults.unlisted:
            text = (
                re.sub(
                    rf"<item>(?:(?!<item>|</item>).)*?<instanceId>{instance}</instanceId>.*?</instancesSet>",
                    "</instancesSet>",
                    text,
                    flags=re.DOTALL,
                )
                if instance in text
                else text
            )
        return text.encode()

    def simulated(self, fields) -> Answer:
        """moto has no simulation; the inline policies of the role are evaluated here."""
        from moto.iam.models import iam_backends
        from tests.providers.aws.policy_evaluator import is_allowed

        roles = iam_backends["123456789012"]["aws"].roles.values()
        (role,) = (one for one in roles if one.arn == fields["PolicySourceArn"])
        given = [json.loads(one) for one in role.policies.values()]
        context = {
            fields["ContextEntries.member.1.ContextKeyName"]: fields[
                "ContextEntries.member.1.ContextKeyValues.member.1"
            ]
        }
        items = ""
        for key, resource in fields.items():
            if key.startswith("ResourceArns."):
                asked = fields["ActionNames.member.1"], resource, context
                decision = "allowed" if any(is_allowed(one, *asked) for one in given) else "implicitDeny"
                items += f"<member><EvalDecision>{decision}</EvalDecision></member>"
        name = "SimulatePrincipalPolicy"
        results = f"<{name}Result><EvaluationResults>{items}</EvaluationResults></{name}Result>"
        return 200, f"<{name}Response xmlns='x'>{results}</{name}Response>".encode()

    def moto(self, environ, body: bytes) -> Answer:
        inner = {**environ, "wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}
        seen: list[str] = []
        parts = self.app(inner, lambda status, headers, info=None: seen.append(status))
        answer = b"".join(parts)
        if hasattr(parts, "close"):
            parts.close()
        return int(seen[0].split()[0]), answer


def _as_json(answer: bytes) -> bytes:
    """Return an error as services that speak JSON say it."""
    code, message = (re.search(f"<{tag}>(.*?)</{tag}>", answer.decode()) for tag in ("Code", "Message"))
    said = {"__type": code[1] if code else "InternalFailure", "message": message[1] if message else ""}
    return json.dumps(said).encode()


def error(code: str, message: str, status: int = 400) -> Answer:
    return status, ERROR.format(code=code, message=escape(message)).encode()


def backend():
    from moto.ec2.models import ec2_backends

    return ec2_backends["123456789012"][REGION]


UBUNTU = "ubuntu/images/hvm-ssd/ubuntu-jammy-22.04-amd64-server-20260901"
DLAMI = "Deep Learning Base OSS Nvidia Driver GPU AMI (Ubuntu 22.04) 202609{}"
OLD_DLAMI = "Deep Learning Base Proprietary Nvidia Driver GPU AMI (Ubuntu 20.04) 20240429"


def add_images(region: str = REGION) -> None:
    """Add images that moto lacks: those that muster looks for, two of one name."""
    from datetime import datetime

    from moto.ec2.models import ec2_backends
    from moto.ec2.models.amis import Ami

    there = ec2_backends["123456789012"][region]
    owners = {"099720109477": None, "898082745236": "amazon"}
    for number, (name, owner) in enumerate(
        [
            (UBUNTU, "099720109477"),
            *((one, "898082745236") for one in (*map(DLAMI.format, (15, 14)), OLD_DLAMI)),
        ]
    ):
        made = Ami(
            there,
            f"ami-0000000{number}",
            name=name,
            owner_id=owner,
            owner_alias=owners[owner],
            architecture="x86_64",
            creation_date=datetime(2026, 9, 20 - number),
        )
        there.amis[made.id] = made


def zone_of(subnet: str) -> str:
    return backend().get_subnet(subnet).availability_zone if subnet else ""


def _numbered(fields, pattern) -> list[dict[str, str]]:
    found: dict[int, dict[str, str]] = {}
    for key, value in fields.items():
        match = re.match(pattern, key)
        if match:
            found.setdefault(int(match[1]), {})[key[match.end() :]] = value
    return [found[number] for number in sorted(found)]


def _fleet_answer(answers: list[bytes], errors, market: str) -> bytes:
    items = "".join(
        match[1]
        for one in answers
        if (match := re.search(r"<fleetInstanceSet>(.*)</fleetInstanceSet>", one.decode(), re.DOTALL))
    )
    told = "".join(
        "<item><launchTemplateAndOverrides><overrides>"
        f"<instanceType>{override.get('InstanceType', '')}</instanceType>"
        f"<subnetId>{override['SubnetId']}</subnetId></overrides></launchTemplateAndOverrides>"
        f"<lifecycle>{market}</lifecycle><errorCode>{code}</errorCode>"
        f"<errorMessage>{escape(message)}</errorMessage></item>"
        for override, code, message in errors
    )
    return (
        '<?xml version="1.0"?><CreateFleetResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/">'
        f"<requestId>r</requestId><fleetId>fleet-1</fleetId><errorSet>{told}</errorSet>"
        f"<fleetInstanceSet>{items}</fleetInstanceSet></CreateFleetResponse>"
    ).encode()


def _quick_tags() -> None:
    """Let moto look up the tags of a machine: it compares those of all, minutes for a thousand."""
    from moto.ec2.models.core import TaggedEC2Resource

    def get_tags(self):
        found = self.ec2_backend.tags.get(self.id, {}) if self.id else {}
        return [{"resource_id": self.id, "key": k, "value": v, "resource_type": ""} for k, v in found.items()]

    TaggedEC2Resource.get_tags = get_tags


class Ec2Server:
    """One server for all tests of a process; `reset` empties it."""

    def __init__(self) -> None:
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import make_server

        _quick_tags()
        self.faults = Ec2Faults()
        add_images()
        inner = DomainDispatcherApplication(create_backend_app)
        self._server = make_server("127.0.0.1", 0, Ec2Middleware(inner, self.faults), threaded=True)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def environment(self) -> dict[str, str]:
        return {**ENVIRONMENT, "AWS_ENDPOINT_URL": self.url}

    def count(self) -> int:
        """Return how many machines there are that live."""
        return sum(one.state in ("pending", "running") for one in backend().all_instances())

    def reset(self) -> None:
        from moto.backends import get_backend

        for service in ("ec2", "iam", "sts", "ssm"):
            get_backend(service).reset()
        add_images()
        self.faults.reset()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()
