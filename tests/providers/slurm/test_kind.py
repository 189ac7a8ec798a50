"""The cluster file of a Slurm cluster: what it completes, what it refuses, and the plan of `up --dry-run`."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from muster.cli.main import cli
from muster.errors import ConfigError
from muster.providers.kind import HeadPolicy, kind_named, load_config

FILE = """\
cluster_name: lab
provider: {type: slurm, head_ip: 127.0.0.1}
max_workers: 8
setup_commands: [module load cuda]
head_node_type: head
available_node_types:
  head: {}
  gpu:
    node_config: {partition: gpu, cpus: 8, memory: 64G, gres: "gpu:a100:1", time: "4:00:00"}
    price_per_hour: 1
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "lab.yaml"
    path.write_text(FILE)
    return path


def test_types_have_the_resources_that_their_jobs_ask_for(file):
    types = load_config(file).available_node_types
    assert types["head"].resources == {"CPU": 0.0}
    assert types["gpu"].resources == {"CPU": 8.0, "GPU": 1.0, "memory": float(int(0.7 * 64 * 2**30))}


@pytest.mark.parametrize(
    ("old", "new", "path", "line"),
    [
        ("partition: gpu", "partitions: gpu", "available_node_types.gpu.node_config.partitions", 9),
        ('time: "4:00:00"', "time: later", "available_node_types.gpu.node_config.time", 9),
        ('time: "4:00:00"', "time: 4:00:00", "available_node_types.gpu.node_config.time", 9),
        ("memory: 64G", "memory: much", "available_node_types.gpu.node_config.memory", 9),
        ("cpus: 8", "cpus: eight", "available_node_types.gpu.node_config.cpus", 9),
        ("cpus: 8", "extra: [--array=3]", "available_node_types.gpu.node_config.extra[0]", 9),
        ("cpus: 8", "extra: [exclusive]", "available_node_types.gpu.node_config.extra[0]", 9),
        ("head_ip: 127.0.0.1", "python: 3", "provider.python", 2),
        ("max_workers: 8", "file_mounts: {/a: /tmp}", "file_mounts", 3),
        ("max_workers: 8", "worker_start_ray_commands: [ray start]", "worker_start_ray_commands", 3),
    ],
)
def test_a_mistake_has_its_key_and_its_line(file, old, new, path, line):
    assert old in FILE
    file.write_text(FILE.replace(old, new))
    with pytest.raises(ConfigError) as caught:
        load_config(file)
    assert (caught.value.path, caught.value.line) == (path, line)


def test_the_head_is_here_and_the_workers_are_not():
    kind = kind_named("slurm")
    assert (kind.head, kind.has_machines, kind.has_distant_head) == (HeadPolicy.HERE, True, False)


def test_without_slurm_up_refuses_before_anything_starts(file, tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("MUSTER_HOME", str(tmp_path))
    done = CliRunner().invoke(cli, ["up", str(file), "-y"])
    assert done.exit_code == 2
    assert "sbatch" in done.output
    assert CliRunner().invoke(cli, ["up", str(file), "--dry-run", "--no-check"]).exit_code == 0
