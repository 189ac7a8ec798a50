"""Every key of RunInstances goes somewhere: into the launch template, or into a call of RunInstances."""

from __future__ import annotations

import base64

import pytest

from muster.errors import ProviderMisconfigured
from muster.providers.aws.machine_config import (
    LaunchKeys,
    MachineDefaults,
    read_config,
    template_data,
    with_defaults,
)

TYPE = {"InstanceType": "m5.large"}
VALUES = {"TagSpecifications": [], "NetworkInterfaces": [{"DeviceIndex": 0}], "InstanceMarketOptions": {}}
OURS = {"MinCount", "MaxCount", "ClientToken", "DryRun"}  # said by name that they cannot be used
ELSEWHERE = {"InstanceType", "SubnetId", "InstanceMarketOptions", "TagSpecifications"}  # fields of the result
RENAMED = {"RamdiskId": "RamDiskId", "ElasticGpuSpecification": "ElasticGpuSpecifications"}


@pytest.fixture(scope="module")
def keys():
    session = pytest.importorskip("botocore.session")
    model = session.Session().get_service_model("ec2")
    names = ("RunInstancesRequest", "RequestLaunchTemplateData")
    return LaunchKeys(*(frozenset(model.shape_for(name).members) for name in names))


def test_each_key_reaches_the_template_or_sends_the_type_to_run_instances(keys):
    assert len(keys.run) > 35
    for key in sorted(keys.run - OURS - ELSEWHERE):
        value = VALUES.get(key, "x")
        config = read_config({**TYPE, key: value}, keys)
        assert config.settings[key] == value
        if not config.needs_run:
            data = template_data(config, config.settings, {})
            name = RENAMED.get(key, key)
            assert name in data and name in keys.template, key
        else:
            assert config.needs_run == key


def test_the_keys_that_a_template_cannot_have_are_known(keys):
    run_only = [
        key
        for key in sorted(keys.run - OURS)
        if read_config({**TYPE, key: VALUES.get(key, "x")}, keys).needs_run
    ]
    assert run_only == [
        "AdditionalInfo",
        "EnablePrimaryIpv6",
        "Ipv6AddressCount",
        "Ipv6Addresses",
        "LaunchTemplate",
        "NetworkInterfaces",
        "PrivateIpAddress",
    ]


@pytest.mark.parametrize(
    ("config", "told"),
    [
        (
            {"InstanceTyp": "m5.large"},
            "node_config.InstanceTyp is not a parameter of RunInstances; did you mean 'InstanceType'?",
        ),
        ({**TYPE, "MinCount": 2}, "node_config.MinCount cannot be used: min_workers and max_workers"),
        ({**TYPE, "ClientToken": "x"}, "node_config.ClientToken cannot be used"),
        ({"ImageId": "ami-1"}, "node_config.InstanceType is missing"),
    ],
)
def test_a_key_that_can_go_nowhere_is_refused_by_its_name(keys, config, told):
    with pytest.raises(ProviderMisconfigured) as refused:
        read_config(config, keys)
    assert str(refused.value).startswith(told)


def test_market_subnets_types_and_tags_are_read(keys):
    config = read_config(
        {
            "InstanceTypes": ["m5.large", "m6i.large"],
            "SubnetIds": ["s-1", "s-2"],
            "InstanceMarketOptions": {"MarketType": "spot", "SpotOptions": {"MaxPrice": "0.1"}},
            "TagSpecifications": [{"ResourceType": "volume", "Tags": [{"Key": "team", "Value": "a"}]}],
        },
        keys,
    )
    read = config.machine_types, config.subnets, config.market, config.spot, config.tags, config.needs_run
    assert read == (
        ("m5.large", "m6i.large"),
        ("s-1", "s-2"),
        "spot",
        {"MaxPrice": "0.1"},
        {"volume": {"team": "a"}},
        "",
    )


@pytest.mark.parametrize(
    ("market", "way"),
    [
        ({"MarketType": "capacity-block"}, "InstanceMarketOptions"),
        ({"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "persistent"}}, "InstanceMarketOptions"),
        ({"MarketType": "spot", "SpotOptions": {"SpotInstanceType": "one-time"}}, ""),
    ],
)
def test_capacity_blocks_and_persistent_requests_are_bought_by_run_instances(keys, market, way):
    assert read_config({**TYPE, "InstanceMarketOptions": market}, keys).needs_run == way


def test_machines_have_imdsv2_encrypted_disks_that_end_with_them_and_end_when_they_shut_down():
    filled = with_defaults({}, MachineDefaults(hop_limit=2, root_device="/dev/sda1", root_gib=8))
    assert filled == {
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {
            "HttpEndpoint": "enabled",
            "HttpTokens": "required",
            "HttpPutResponseHopLimit": 2,
        },
        "BlockDeviceMappings": [
            {
                "DeviceName": "/dev/sda1",
                "Ebs": {"Encrypted": True, "DeleteOnTermination": True, "VolumeSize": 8},
            }
        ],
    }


def test_what_the_user_says_about_metadata_disks_and_shutdown_stands():
    given = {
        "InstanceInitiatedShutdownBehavior": "stop",
        "MetadataOptions": {"HttpTokens": "optional"},
        "BlockDeviceMappings": [
            {"DeviceName": "/dev/sda1", "Ebs": {"VolumeSize": 100, "Encrypted": False}},
            {"DeviceName": "/dev/sdb", "NoDevice": ""},
        ],
    }
    filled = with_defaults(given, MachineDefaults(root_device="/dev/sda1"))
    assert filled["InstanceInitiatedShutdownBehavior"] == "stop"
    assert filled["MetadataOptions"]["HttpTokens"] == "optional"
    assert filled["BlockDeviceMappings"] == [
        {
            "DeviceName": "/dev/sda1",
            "Ebs": {"VolumeSize": 100, "Encrypted": False, "DeleteOnTermination": True},
        },
        {"DeviceName": "/dev/sdb", "NoDevice": ""},
    ]
    assert (
        with_defaults({"HibernationOptions": {"Configured": True}}, MachineDefaults())[
            "InstanceInitiatedShutdownBehavior"
        ]
        == "stop"
    )


def test_a_template_has_user_data_in_base64_and_tags_on_all_that_costs(keys):
    config = read_config({**TYPE, "UserData": "#!/bin/sh\necho hi\n"}, keys)
    data = template_data(config, config.settings, {"muster-cluster": "c1"})
    assert base64.b64decode(data["UserData"]) == b"#!/bin/sh\necho hi\n"
    assert [one["ResourceType"] for one in data["TagSpecifications"]] == [
        "instance",
        "volume",
        "network-interface",
        "spot-instances-request",
    ]
