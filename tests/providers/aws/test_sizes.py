"""What machine types have is asked of EC2; where that may not be asked, the shipped table stands."""

from __future__ import annotations

import logging
from threading import Event

import pytest
from click.testing import CliRunner
from tests.mistakes.views import assert_line
from tests.providers.aws.ec2_server import REGION

from muster.autoscaler.lifecycle.open import LaunchContext, OpenCluster
from muster.base.clock import SystemClock
from muster.base.ids import RandomIds
from muster.cli.main import cli
from muster.config.check import MachineSize
from muster.config.document import Document
from muster.config.load import any_size
from muster.errors import ConfigError
from muster.providers.aws import sizes
from muster.providers.aws.sizes import InstanceSizes, read_size
from muster.providers.kind import asked_sizes, known_size, parse_config, watch_file

AWS = {"type": "aws", "region": REGION}
NEW = "m99.large"  # that no table has
FILE = """
cluster_name: sized
provider: {type: aws, region: us-east-1}
max_workers: 4
head_node_type: head
available_node_types:
  head: {node_config: {InstanceType: m5.large}, resources: {CPU: 2}}
  worker: {node_config: {InstanceType: MACHINE}, max_workers: 4}
"""


def described(cpus=2, mib=8192, **more):
    return {"VCpuInfo": {"DefaultVCpus": cpus}, "MemoryInfo": {"SizeInMiB": mib}, **more}


def gpus(count, name="L4", **more):
    return {"GpuInfo": {"Gpus": [{"Name": name, "Manufacturer": "NVIDIA", "Count": count, **more}]}}


@pytest.mark.parametrize(
    ("answer", "table", "size"),
    [
        (described(), None, MachineSize(2, 8192)),
        (described(4, 1024), MachineSize(2, 8192), MachineSize(4, 1024)),
        (described(**gpus(4)), None, MachineSize(2, 8192, "GPU", 4, "L4")),
        (described(**gpus(1, "RTX PRO 9")), None, MachineSize(2, 8192, "GPU", 1, "RTX-PRO-9")),
        (
            described(**gpus(1, "Tesla L4")),
            MachineSize(2, 8, "GPU", 1, "L4"),
            MachineSize(2, 8192, "GPU", 1, "L4"),
        ),
        (described(**gpus(1, LogicalGpuCount=0.125)), None, MachineSize(2, 8192)),
        (
            described(GpuInfo={"Gpus": [{"Name": "HL-205", "Manufacturer": "Habana", "Count": 8}]}),
            None,
            MachineSize(2, 8192, "HPU", 8, "Intel-GAUDI"),
        ),
        (
            described(NeuronInfo={"NeuronDevices": [{"Count": 16, "CoreInfo": {"Count": 2}}]}),
            None,
            MachineSize(2, 8192, "neuron_cores", 32, "aws-neuron-core"),
        ),
        (
            described(96, 1024),
            MachineSize(8, 8, "neuron_cores", 2, "aws-neuron-core"),
            MachineSize(96, 1024, "neuron_cores", 2, "aws-neuron-core"),
        ),
        ({}, None, None),
        (described(0), None, None),
    ],
)
def test_an_answer_of_ec2_is_read_with_its_accelerators(answer, table, size):
    assert read_size(answer, table) == size


def told_of(answers, said=None):
    """Return an InstanceSizes that is told these answers instead of EC2's."""
    made = InstanceSizes(SystemClock(), (said if said is not None else []).append)
    made._described = lambda region, profile, names: {n: answers[n] for n in names if n in answers}
    return made


def config_of(machine, source):
    document = Document(FILE.replace("MACHINE", machine), "c.yaml")
    return parse_config(document, {}, lambda rules, provider, names: source(provider, names))


def test_a_type_that_the_table_lacks_has_what_ec2_says():
    config = config_of(NEW, told_of({NEW: described(12, 4096, **gpus(2))}))
    assert config.available_node_types["worker"].resources == {
        "CPU": 12,
        "memory": int(4096 * 2**20 * 0.7),
        "GPU": 2,
        "accelerator_type:L4": 1,
    }


def test_a_type_that_the_table_knows_otherwise_has_what_ec2_says_and_one_line_says_so():
    said = []
    source = told_of({"m5.xlarge": described(6, 24576)}, said)
    for _ in range(2):
        config = config_of("m5.xlarge", source)
    assert config.available_node_types["worker"].resources["CPU"] == 6
    (line,) = said
    assert_line("providers", "aws size that differs", line)


def test_what_the_file_gives_wins():
    source = told_of({"m5.large": described(6, 24576)})
    assert config_of("m5.large", source).available_node_types["head"].resources["CPU"] == 2


def test_a_plan_asks_nobody_and_names_what_is_missing(tmp_path):
    file = tmp_path / "c.yaml"
    file.write_text(FILE.replace("MACHINE", NEW))
    (tmp_path / "d.yaml").write_text("demands: []")
    done = CliRunner().invoke(cli, ["plan", str(file), "--demand", str(tmp_path / "d.yaml")])
    said = " ".join(done.output.split())
    assert_line("providers", "aws size unknown", said.replace(str(file), "FILE"))


def test_a_command_that_plans_nothing_reads_such_a_file(tmp_path):
    config = parse_config(Document(FILE.replace("MACHINE", NEW), "c.yaml"), {}, any_size)
    assert config.available_node_types["worker"].resources == {"CPU": 0, "memory": 0}
    with pytest.raises(ConfigError, match="resources"):
        parse_config(
            Document(
                "provider: {type: gcp}\navailable_node_types: {w: {node_config: {machineType: x}}}", "c"
            ),
            {},
            any_size,
        )


def test_an_answer_that_does_not_come_leaves_the_table_in_force():
    said = []
    made = InstanceSizes(SystemClock(), said.append, limit_s=0.05)
    forever = Event()
    made._described = lambda region, profile, names: forever.wait(60) and {}
    assert made(AWS, ["m5.large"]) == {}
    forever.set()
    assert_line("providers", "aws sizes late", said[0])


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
class TestOnTheServer:
    def test_the_answers_of_ec2_and_the_table_agree_on_what_both_know(self, ec2):
        names = [
            "m5.large",
            "c5.4xlarge",
            "g4dn.12xlarge",
            "g5.12xlarge",
            "r5.24xlarge",
            "no.such",
            "t3.micro",
        ]
        said = []
        found = InstanceSizes(SystemClock(), said.append)(AWS, names)
        assert found == {name: known_size("aws", name) for name in names if name != "no.such"}
        assert said == [] and ec2.faults.calls["DescribeInstanceTypes"] == 1

    def test_each_type_is_asked_for_once(self, ec2):
        source = InstanceSizes(SystemClock())
        for names in (["m5.large"], ["m5.large"], ["m5.large", "m5.xlarge"]):
            assert set(source(AWS, names)) == set(names)
        assert ec2.faults.calls["DescribeInstanceTypes"] == 2

    def test_without_the_right_the_table_stands_and_one_line_names_it(self, ec2):
        ec2.faults.denied.add("DescribeInstanceTypes")
        said = []
        source = InstanceSizes(SystemClock(), said.append)
        for _ in range(2):
            config = config_of("m5.xlarge", source)
        assert config.available_node_types["worker"].resources["CPU"] == 4
        (line,) = said
        assert_line("providers", "aws sizes denied", line)

    def test_the_monitor_asks_when_it_starts_and_after_an_edit_with_a_new_type(
        self, ec2, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(sizes, "read_size", lambda answer, table: MachineSize(40, 1024))
        file = tmp_path / "c.yaml"
        file.write_text(FILE.replace("MACHINE", "m5.xlarge"))
        source = watch_file(file, {}, asked_sizes(SystemClock()))
        assert source.current()[0].node_type("worker").resources.to_floats()["CPU"] == 40
        file.write_text(FILE.replace("MACHINE", "c5.4xlarge"))
        source.current()
        assert source.current()[0].node_type("worker").machine_type == "c5.4xlarge"
        assert ec2.faults.calls["DescribeInstanceTypes"] == 2

    def test_up_gives_the_head_what_only_ec2_knows_and_other_commands_ask_nothing(
        self, ec2, tmp_path, monkeypatch
    ):
        monkeypatch.setattr(sizes, "known_size", lambda cloud, name: None)
        monkeypatch.setattr("muster.providers.aws.kind.known_size", lambda cloud, name: None)
        file = tmp_path / "c.yaml"
        file.write_text(FILE.replace("MACHINE", "m5.xlarge"))
        context = LaunchContext(tmp_path / "home", {}, SystemClock(), RandomIds())
        with OpenCluster(context, file) as session:
            assert "resources" not in session.data["available_node_types"]["worker"]
        assert ec2.faults.calls["DescribeInstanceTypes"] == 0
        with OpenCluster(context, file, sizes=asked_sizes(SystemClock())) as session:
            types = session.data["available_node_types"]
        assert types["worker"]["resources"]["CPU"] == 4
        assert types["head"]["resources"] == {"CPU": 2}


def test_a_line_is_a_warning_of_the_log_unless_somebody_else_is_told(caplog):
    source = InstanceSizes(SystemClock())
    with caplog.at_level(logging.WARNING, logger="muster"):
        source._say("once")
        source._say("once")
    assert [record.message for record in caplog.records] == ["once"]
