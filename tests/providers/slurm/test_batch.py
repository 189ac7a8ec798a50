"""A node type becomes options and a script; comments come back; node_main reads its job from variables."""

from __future__ import annotations

import subprocess
from pathlib import Path

import msgspec
import pytest

from muster.base.ids import RequestId
from muster.config.to_spec import NodeLaunch
from muster.providers.slurm.batch import (
    BatchJob,
    JobConfig,
    JobTag,
    NodeOrder,
    comment_of,
    resources_of,
    size_options,
    tag_of,
)
from muster.providers.slurm.node_main import memory_of_job, refusal, sized
from muster.slurm.jobs import SlurmJob, job_of, memory_bytes

TAG = JobTag(request_id=RequestId("r-7~2.t-9"), node_type="big|type", launch_hash="abc")
ORDER = NodeOrder(
    address="10.0.0.1:6379", node_type="cpu", resources={"CPU": 2.0}, labels={"a": "it's"}, auth={}
)


def launch(resources=None, **config):
    return NodeLaunch(node_type="cpu", node_config=config, resources=resources or {"CPU": 2.0})


def job(count=1, setup=(), **config):
    return BatchJob(
        cluster_name="lab",
        launch=launch(**config),
        tag=TAG,
        count=count,
        order=ORDER,
        logs=Path("/logs"),
        setup=setup,
        python="printf '%s\\n'",
    )


def test_a_comment_names_request_type_and_hash_and_others_name_nothing():
    listed = SlurmJob(job_id="1", state="PENDING", comment=comment_of(TAG))
    assert tag_of(listed) == TAG
    strangers = ("", "muster:", "muster:{}", "muster:pilot", "mine", "muster:[1]")
    assert {tag_of(msgspec.structs.replace(listed, comment=text)) for text in strangers} == {None}


@pytest.mark.parametrize(
    ("resources", "config", "options"),
    [
        ({"CPU": 2}, {}, ["--cpus-per-task=2"]),
        ({"CPU": 0.5, "GPU": 1}, {}, ["--cpus-per-task=1", "--gres=gpu:1"]),
        ({"CPU": 4, "GPU": 2}, {"gres": "gpu:a100:2"}, ["--cpus-per-task=4", "--gres=gpu:a100:2"]),
        (
            {"CPU": 4},
            {"cpus": 8, "partition": "p", "account": "a", "qos": "q", "time": "1:00", "memory": "4G"},
            ["--cpus-per-task=8", "--partition=p", "--account=a", "--qos=q", "--time=1:00", "--mem=4G"],
        ),
        ({}, {"constraint": "ib", "extra": ["--exclusive"]}, ["--cpus-per-task=1", "--constraint=ib"]),
    ],
)
def test_a_type_asks_for_what_its_config_and_its_resources_say(resources, config, options):
    found = size_options(NodeLaunch(node_type="t", node_config=config, resources=resources))
    extra = list(config.get("extra", ()))
    assert found == ["--nodes=1", "--ntasks=1", *options, *extra]


def test_several_are_an_array_and_none_starts_a_second_time():
    one, three = job().options(), job(count=3).options()
    assert "--array=0-2" in three
    assert not any(option.startswith("--array") for option in one)
    assert "--no-requeue" in one
    assert ("--output=/logs/%j.log" in one, "--output=/logs/%A_%a.log" in three) == (True, True)


def test_the_script_passes_its_order_on_and_ends_where_a_command_fails():
    good, bad = (
        subprocess.run(["bash"], input=job(setup=(line,)).script(), stdout=-1, text=True, check=False)
        for line in ("true", "false")
    )
    assert msgspec.json.decode(good.stdout.splitlines()[-1], type=NodeOrder) == ORDER
    assert (bad.returncode, bad.stdout) == (1, "")


def test_a_type_without_resources_has_those_of_its_config():
    assert resources_of(JobConfig(cpus=8, memory="10G")) == {
        "CPU": 8.0,
        "memory": float(int(0.7 * 10 * 2**30)),
    }
    assert resources_of(JobConfig(gres="gpu:a100:2")) == {"CPU": 1.0, "GPU": 2.0}
    assert resources_of(JobConfig(gres="gpu:4,license:1", gpus=1)) == {"CPU": 1.0, "GPU": 1.0}
    assert [memory_bytes(text) for text in ("", "2T", "5x")] == [None, 2 * 2**40, None]


def test_a_job_knows_its_id_and_its_memory():
    array = {"SLURM_JOB_ID": "9", "SLURM_ARRAY_JOB_ID": "7", "SLURM_ARRAY_TASK_ID": "3"}
    assert (job_of(array), job_of({"SLURM_JOB_ID": "9"})) == ("7_3", "9")
    assert memory_of_job({"SLURM_MEM_PER_NODE": "100"}) == 100 * 2**20
    assert memory_of_job({"SLURM_MEM_PER_CPU": "50", "SLURM_CPUS_ON_NODE": "3"}) == 150 * 2**20
    assert memory_of_job({}) > 2**20


def test_the_object_store_fits_into_the_job_and_into_shared_memory():
    stores = [
        sized(order, {"SLURM_MEM_PER_NODE": "2000"}, shared).resources["object_store_memory"]
        for order, shared in (
            (ORDER, 2**40),
            (ORDER, 10**9 // 2),
            (ORDER, 0),
            (msgspec.structs.replace(ORDER, resources={"object_store_memory": 5.0}), 2**40),
        )
    ]
    assert stores == [int(0.3 * 2000 * 2**20), 450_000_000, 100_000_000, 5.0]


def test_a_token_that_a_node_cannot_see_is_refused_before_ray_starts(tmp_path):
    token = tmp_path / "token"
    order = msgspec.structs.replace(ORDER, auth={"RAY_AUTH_TOKEN_PATH": str(token)})
    assert str(token) in refusal(order, {"SLURMD_NODENAME": "n1"})
    token.write_text("x")
    assert (refusal(order, {}), refusal(ORDER, {})) == ("", "")
