"""Name the tags under which Ray's v1 providers keep what muster must know about a machine.

All but three are Ray's own, so that a cluster tagged by one is read by the other. Constants and their forms.
"""

from __future__ import annotations

import re

from muster.base.ids import RequestId

TAG_RAY_NODE_NAME = "ray-node-name"
TAG_RAY_NODE_KIND = "ray-node-type"
TAG_RAY_USER_NODE_TYPE = "ray-user-node-type"
TAG_RAY_REPLICA_INDEX = "ray-replica-index"
TAG_RAY_NODE_STATUS = "ray-node-status"
TAG_RAY_CLUSTER_NAME = "ray-cluster-name"
TAG_RAY_LAUNCH_CONFIG = "ray-launch-config"
TAG_RAY_RUNTIME_CONFIG = "ray-runtime-config"
TAG_RAY_FILE_MOUNTS_CONTENTS = "ray-file-mounts-contents"
TAG_RAY_LAUNCH_REQUEST = "ray-launch-request"
TAG_MUSTER_ZONE = "muster-zone"  # ours, like the next one: of a machine that was launched from an offer
TAG_MUSTER_MARKET = "muster-market"
TAG_MUSTER_HEAD = "muster-head"  # of a rack's host: the address of the head that has set it up

NODE_KIND_HEAD = "head"
NODE_KIND_WORKER = "worker"
NODE_KIND_UNMANAGED = "unmanaged"

STATUS_UNINITIALIZED = "uninitialized"
STATUS_WAITING_FOR_SSH = "waiting-for-ssh"
STATUS_SYNCING_FILES = "syncing-files"
STATUS_SETTING_UP = "setting-up"
STATUS_UPDATE_FAILED = "update-failed"
STATUS_UP_TO_DATE = "up-to-date"

_RETRY = re.compile(r"(?P<base>.+)__(?P<attempt>\d+)_(?P<tick>.+)")


def worker_tags(cluster_name: str, node_type: str, launch_hash: str, request_id: RequestId) -> dict[str, str]:
    """Return the tags that the create call itself gives to a new worker."""
    return {
        TAG_RAY_NODE_NAME: f"ray-{cluster_name}-worker",
        TAG_RAY_NODE_KIND: NODE_KIND_WORKER,
        TAG_RAY_NODE_STATUS: STATUS_UNINITIALIZED,
        TAG_RAY_LAUNCH_CONFIG: launch_hash,
        TAG_RAY_LAUNCH_REQUEST: request_tag(request_id),
        TAG_RAY_USER_NODE_TYPE: node_type,
    }


def offer_tags(zone: str, market: str) -> dict[str, str]:
    """Return the tags of a machine that is launched in this zone, if any, and on this market."""
    return {**({TAG_MUSTER_ZONE: zone} if zone else {}), TAG_MUSTER_MARKET: market}


def request_tag(request_id: RequestId) -> str:
    """Return the request id as a tag: `r-7~2.t-9` becomes `r-7__2_t-9`, as clouds refuse `~` in labels."""
    base, mark, retry = request_id.partition("~")
    return f"{base}__{retry.replace('.', '_', 1)}" if mark else request_id


def request_of(tag: str | None) -> RequestId | None:
    """Return the request id in a tag; None where there is none."""
    if not tag:
        return None
    retry = _RETRY.fullmatch(tag)
    return RequestId("{base}~{attempt}.{tick}".format(**retry.groupdict()) if retry else tag)
