"""Waits for a GPU that another trial is about to release."""

from __future__ import annotations

import logging
import subprocess

from muster.base.clock import Clock, SystemClock
from muster.host.machine import environment

logger = logging.getLogger(__name__)

_QUERY = ("nvidia-smi", "--query-gpu=index,uuid,memory.used,memory.total", "--format=csv,noheader,nounits")


def wait_for_gpu(
    gpu_id: int | str | None = None,
    target_util: float = 0.01,
    retry: int = 20,
    delay_s: float = 5,
    gpu_memory_limit: float | None = None,
) -> bool:
    """Waits until less than `target_util` of a GPU's memory is in use; RuntimeError when it never is.

    Args:
        gpu_id: Its number or its UUID; None: the first one this process may use.
        retry: How often to look.
        delay_s: Seconds between two looks.
    """
    if gpu_memory_limit is not None:
        raise ValueError("wait_for_gpu(gpu_memory_limit=...) does not exist any more: use target_util")
    return wait_until_free(_wanted(gpu_id), target_util, retry, delay_s, SystemClock())


def wait_until_free(gpu: str, target_util: float, retry: int, delay_s: float, clock: Clock) -> bool:
    used = 1.0
    for attempt in range(retry):
        used = memory_use(gpu)
        if used < target_util:
            return True
        logger.info("GPU %s: %.1f %% of its memory is in use, waiting (%d)", gpu, used * 100, attempt + 1)
        clock.sleep(delay_s)
    raise RuntimeError(
        f"GPU {gpu}: {used:.1%} of its memory is in use after {retry} checks, {delay_s} s apart; less than "
        f"{target_util:.1%} is wanted. Another process holds it: see nvidia-smi, or raise target_util"
    )


def memory_use(gpu: str) -> float:
    """Returns the used share of a GPU's memory; RuntimeError without nvidia-smi, ValueError without a GPU."""
    try:
        answer = subprocess.run(_QUERY, capture_output=True, text=True, check=True, timeout=30)
    except FileNotFoundError:
        raise RuntimeError(
            "wait_for_gpu needs the command nvidia-smi, which is not on the PATH: install the NVIDIA driver, "
            "or do not call it on machines without a GPU"
        ) from None
    except subprocess.SubprocessError as error:
        raise RuntimeError(f"wait_for_gpu: nvidia-smi failed: {error}") from error
    found = {}
    for line in answer.stdout.splitlines():
        index, uuid, used, total = (part.strip() for part in line.split(","))
        found[index] = found[uuid] = float(used) / float(total)
    if gpu not in found:
        known = ", ".join(found) or "none"
        raise ValueError(f"wait_for_gpu: there is no GPU {gpu!r}; nvidia-smi shows: {known}")
    return found[gpu]


def _wanted(gpu_id: int | str | None) -> str:
    if isinstance(gpu_id, bool) or not isinstance(gpu_id, int | str | None):
        raise ValueError(f"wait_for_gpu(gpu_id={gpu_id!r}): must be a number or a UUID")
    if gpu_id is not None:
        return str(gpu_id)
    visible = environment().get("CUDA_VISIBLE_DEVICES", "0").split(",")[0].strip()
    if not visible:
        raise RuntimeError("wait_for_gpu: this process may use no GPU (CUDA_VISIBLE_DEVICES is empty)")
    return visible
