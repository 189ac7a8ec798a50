"""What an earlier `up` has half made is completed, and who may use SSH."""

from __future__ import annotations

import json
import socket

import pytest
from tests.mistakes.views import assert_line
from tests.providers.aws import test_account
from tests.providers.aws.ec2_server import REGION
from tests.providers.aws.policy_evaluator import is_allowed
from tests.providers.aws.test_account import IMAGE

from muster.base.clock import ManualClock
from muster.errors import ConfigError
from muster.providers.aws.account import check_account, prepare, purge
from muster.providers.aws.calls import AwsCalls
from muster.providers.aws.provider import AwsParts, AwsProvider
from muster.providers.aws.ssh_access import ingress_rules, launcher_network, route_source, single_rules
from muster.providers.aws.wire import BotoWire

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]


def statement(action: str, resource: str) -> dict[str, object]:
    allowed = {"Effect": "Allow", "Action": action, "Resource": resource}
    return {"Version": "2012-10-17", "Statement": [allowed]}


HARMLESS = statement("sts:GetCallerIdentity", "*")


_wires: list[BotoWire] = []  # one for all: a client of boto3 takes half a second


def made(**changes):
    """Return a provider and its config; nothing waits."""
    config, clock = test_account.made(**changes)[1], ManualClock()
    _wires[:] = _wires or [BotoWire(REGION)]
    parts = AwsParts(clock=clock, calls=AwsCalls(REGION, clock, wire=_wires[0]))
    return AwsProvider(config.provider.settings(), "c1", parts=parts), config


class Interrupted(Exception):
    """Stands for Ctrl-C, or a computer that is switched off."""


class InterruptedWire:
    """Passes calls on until one that a test names: that is made or not, and nobody hears of it."""

    def __init__(self, wire, at: int, *, is_made: bool) -> None:
        self._wire, self._left, self._is_made, self.sent = wire, at, is_made, []

    def send(self, service, operation, parameters):
        self._left -= 1
        self.sent.append(operation)
        if self._left == 0 and not self._is_made:
            raise Interrupted
        answer = self._wire.send(service, operation, parameters)
        if self._left == 0:
            raise Interrupted
        return answer

    def members_of(self, shape):
        return self._wire.members_of(shape)


def up(*, at: int = 0, is_made: bool = False, **changes) -> list[str]:
    """Run the part of `up` that makes things; returns its calls."""
    provider, config = made(**changes)
    wire = provider.calls.wire = InterruptedWire(provider.calls.wire, at, is_made=is_made)
    prepare(config, lambda: provider, lambda step: None)
    return wire.sent


def account(key_file) -> dict[str, object]:
    """Return all that `up` makes, without ids."""
    calls = made()[0].calls
    (group,) = (
        one
        for one in calls.ec2("describe_security_groups")["SecurityGroups"]
        if one["GroupName"] == "muster-c1"
    )
    rules = sorted(
        (*key[:3], "self" if key[3] == group["GroupId"] else key[3])
        for key in single_rules(group["IpPermissions"])
    )
    (pair,) = calls.ec2("describe_key_pairs")["KeyPairs"]
    (profile,) = calls.call("iam", "list_instance_profiles", {})["InstanceProfiles"]
    role = calls.call("iam", "get_role", {"RoleName": "muster-c1"})["Role"]
    policy = calls.call("iam", "get_role_policy", {"RoleName": "muster-c1", "PolicyName": "muster"})
    return {
        "group": (group["Tags"], rules),
        "key": (pair["KeyName"], pair["Tags"], key_file.is_file()),
        "profile": [one["RoleName"] for one in profile["Roles"]],
        "role": (role["Tags"], role["AssumeRolePolicyDocument"]),
        "policy": policy["PolicyDocument"],
    }


@pytest.fixture
def key_file(tmp_path):
    return tmp_path / ".ssh" / "muster-c1-us-east-1.pem"


def test_an_up_that_is_interrupted_at_any_call_and_run_again_equals_one_clean_run(empty_ec2, key_file):
    sent = up()
    assert len(sent) >= 12, sent
    clean = account(key_file)
    differs = []
    provider, config = made()
    for at, operation in enumerate(sent, start=1):
        for is_made in (False,) if operation.startswith(("describe", "get")) else (False, True):
            assert purge(provider, config, lambda step: None) == []
            assert not key_file.exists()
            with pytest.raises(Interrupted):
                up(at=at, is_made=is_made)
            up()
            if account(key_file) != clean:
                differs.append((operation, is_made))
    assert differs == []


def test_a_second_up_changes_nothing(empty_ec2, key_file):
    up()
    before, key = account(key_file), key_file.read_bytes()
    again = up()
    assert (account(key_file), key_file.read_bytes()) == (before, key)
    assert [one for one in again if one.startswith(("create", "authorize", "revoke", "import", "add"))] == []


def test_a_policy_that_was_changed_and_rules_of_earlier_versions_are_put_right(empty_ec2, key_file):
    up()
    clean = account(key_file)
    calls = made()[0].calls
    (group,) = (
        one
        for one in calls.ec2("describe_security_groups")["SecurityGroups"]
        if one["GroupName"] == "muster-c1"
    )
    everybody = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22, "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
    calls.ec2(
        "authorize_security_group_ingress", GroupId=group["GroupId"], IpPermissions=[everybody]
    )  # as muster did before
    empty = json.dumps(HARMLESS)
    calls.call(
        "iam",
        "put_role_policy",
        {"RoleName": "muster-c1", "PolicyName": "muster", "PolicyDocument": empty},
    )
    up()
    assert account(key_file) == clean


def ssh_sources(ec2) -> list[str]:
    calls = made()[0].calls
    (group,) = (
        one
        for one in calls.ec2("describe_security_groups")["SecurityGroups"]
        if one["GroupName"] == "muster-c1"
    )
    return sorted(key[3] for key in single_rules(group["IpPermissions"]) if key[:3] == ("tcp", 22, 22))


def test_ssh_is_for_the_launcher_and_follows_it_and_the_users_own_rules_stay(empty_ec2, monkeypatch):
    up()
    assert ssh_sources(empty_ec2) == ["203.0.113.7/32"]
    calls = made()[0].calls
    group = calls.ec2("describe_security_groups", GroupNames=["muster-c1"])["SecurityGroups"][0]["GroupId"]
    rule = {"IpProtocol": "tcp", "FromPort": 22, "ToPort": 22}
    rule["IpRanges"] = [{"CidrIp": "198.51.100.0/24", "Description": "the office"}]
    calls.ec2("authorize_security_group_ingress", GroupId=group, IpPermissions=[rule])
    monkeypatch.setattr("muster.providers.aws.ssh_access.public_address", lambda: "203.0.113.8")
    up()
    assert ssh_sources(empty_ec2) == ["198.51.100.0/24", "203.0.113.8/32"]


def test_the_file_says_otherwise(empty_ec2):
    rule = "{FromPort: 20, ToPort: 30, IpProtocol: TCP, IpRanges: [{CidrIp: 10.0.0.0/8}]}"
    up(provider=f", security_group: {{IpPermissions: [{rule}]}}")
    assert ssh_sources(empty_ec2) == []


SETTINGS = {"use_internal_ips": True}


def test_inside_a_private_network_the_launchers_address_is_that_of_its_route(monkeypatch):
    monkeypatch.setattr("muster.providers.aws.ssh_access.public_address", lambda: pytest.fail("asked"))
    assert launcher_network(SETTINGS, "127.0.0.9") == "127.0.0.1/32" == f"{route_source('127.0.0.9')}/32"


@pytest.mark.parametrize("answer", ["", "<html>a login page</html>"])
def test_an_address_that_is_not_found_is_one_clear_error(monkeypatch, answer):
    monkeypatch.setattr("muster.providers.aws.ssh_access.public_address", lambda: answer)
    with pytest.raises(ConfigError) as refused:
        launcher_network({}, "")
    assert refused.value.path == "provider.security_group"


def test_without_the_internet_nothing_is_made_and_the_fix_is_said(empty_ec2, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    monkeypatch.undo()
    for name, value in empty_ec2.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("muster.providers.aws.ssh_access.ADDRESS_URL", f"http://127.0.0.1:{port}")
    (found,) = check_account(*made())
    assert found.is_fatal
    assert_line("providers", "aws launcher address not found", f"{found.problem}; {found.fix}")


def test_a_rule_for_all_ports_is_one_for_ssh():
    everything = {"security_group": {"IpPermissions": [{"IpProtocol": "-1", "IpRanges": []}]}}
    assert len(ingress_rules(everything, "sg-1", lambda: pytest.fail("asked"))) == 2


# -- the roles of workers ----------------------------------------------------------------------------

TYPES = f"""
  worker:
    resources: {{CPU: 2}}
    node_config: {{InstanceType: m5.large, ImageId: {IMAGE}, IamInstanceProfile: {{Name: workers}}}}
"""


def with_profiles(*names: str, policy: dict | None = None):
    """Make instance profiles; their roles are called otherwise."""
    calls = made()[0].calls
    for name in names:
        document = json.dumps({"Version": "2012-10-17", "Statement": []})
        role = {"RoleName": f"{name}-role"}
        calls.call("iam", "create_role", {**role, "AssumeRolePolicyDocument": document})
        calls.call("iam", "create_instance_profile", {"InstanceProfileName": name})
        calls.call("iam", "add_role_to_instance_profile", {**role, "InstanceProfileName": name})
        given = json.dumps(policy or HARMLESS)
        calls.call("iam", "put_role_policy", {**role, "PolicyName": "p", "PolicyDocument": given})
    return calls


def test_the_head_may_pass_the_role_of_its_workers(empty_ec2):
    calls = with_profiles("workers")
    up(types=TYPES)
    answer = calls.call("iam", "get_role_policy", {"RoleName": "muster-c1", "PolicyName": "muster"})
    role = "arn:aws:iam::123456789012:role/workers-role"
    passed = {"iam:PassedToService": "ec2.amazonaws.com"}
    assert is_allowed(answer["PolicyDocument"], "iam:PassRole", role, passed)


def passing(resource: str) -> dict[str, object]:
    return statement("iam:PassRole", resource)


@pytest.mark.parametrize(
    ("policy", "problems"),
    [(passing("arn:aws:iam::*:role/workers-role"), 0), (passing("arn:aws:iam::*:role/other"), 1)],
)
def test_the_check_finds_a_head_that_may_not_pass_its_workers_role(empty_ec2, policy, problems):
    with_profiles("workers")
    with_profiles("mine", policy=policy)
    found = check_account(*made(types=TYPES, more=", IamInstanceProfile: {Name: mine}"))
    assert [one.is_fatal and "workers-role" in one.problem for one in found] == [True] * problems


def test_the_check_finds_a_profile_that_is_not_there(empty_ec2):
    (found,) = check_account(*made(types=TYPES))
    assert found.is_fatal and "workers" in found.problem
