from __future__ import annotations

import pytest

from muster.config.document import Document
from muster.config.node_launch import (
    Container,
    container_of,
    initialization_commands,
    worker_setup_commands,
)
from muster.providers.kind import parse_config

FULL = """\
provider: {type: aws}
head_node_type: head
docker:
  container_name: c
  image: shared
  head_image: for-head
  worker_image: for-workers
  run_options: [-a]
  head_run_options: [-h]
  worker_run_options: [-w]
  disable_shm_size_detection: true
initialization_commands: [init]
setup_commands: [setup]
worker_setup_commands: [worker]
available_node_types:
  head: {resources: {}}
  plain: {resources: {}}
  own:
    resources: {}
    initialization_commands: [own-init]
    worker_setup_commands: [own-setup]
    docker: {pull_before_run: false, worker_image: own-image, worker_run_options: [-o]}
  none:
    resources: {}
    initialization_commands: []
    worker_setup_commands: []
"""
CONFIG = parse_config(Document(FULL, "c.yaml"))


@pytest.mark.parametrize(
    ("node_type", "initialization", "setup"),
    [
        ("plain", ("init",), ("setup", "worker")),
        ("own", ("own-init",), ("own-setup",)),
        ("none", (), ()),
    ],
)
@pytest.mark.conformance("CF-2")
def test_cf_2_a_types_own_commands_stand_in_place_of_the_clusters(node_type, initialization, setup):
    assert initialization_commands(CONFIG, node_type) == initialization
    assert worker_setup_commands(CONFIG, node_type) == setup


@pytest.mark.parametrize(
    ("node_type", "is_head", "image", "run_options", "pull"),
    [
        ("head", True, "for-head", ("-a", "-h"), True),
        ("plain", False, "for-workers", ("-a", "-w"), True),
        ("own", False, "own-image", ("-a", "-o"), False),
        ("own", True, "for-head", ("-a", "-h"), False),
    ],
)
@pytest.mark.conformance("CF-2")
def test_cf_2_the_container_of_a_node_is_its_types_then_its_roles_then_the_clusters(
    node_type, is_head, image, run_options, pull
):
    assert container_of(CONFIG, node_type, is_head=is_head) == Container(
        image=image,
        name="c",
        pull_before_run=pull,
        run_options=run_options,
        use_podman=False,
        detect_runtime=True,
        detect_shm_size=False,
    )


def test_without_an_image_for_the_role_the_shared_one_is_used():
    text = "provider: {type: aws}\ndocker: {image: shared, container_name: c}\n"
    config = parse_config(Document(text, "c.yaml"))
    container = container_of(config, "ray.worker.default", is_head=False)
    assert container is not None
    assert container.image == "shared"


def test_without_a_container_name_there_is_no_container():
    config = parse_config(Document("provider: {type: aws}\n", "c.yaml"))
    assert container_of(config, "ray.head.default", is_head=True) is None
