"""A trial played through in the zygote before it forks, so that its children find everything done once.

What runs for the first time in a process writes to memory: the interpreter specialises code, looks names up,
fills caches. In a fork each such write copies a page, and every trial would pay for the same pages again.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from muster.base.framing import Kind, frame
from muster.engines.worker.protocol import Order, write_order
from muster.host.machine import working_directory
from muster.session.report import report

if TYPE_CHECKING:
    from muster.engines.worker.main import Worker

ROUNDS = 12  # the interpreter specialises a function after eight calls


def rehearse(worker: Worker) -> None:
    """Let `worker` run a few trials that do nothing, in the directory where it is."""
    to_driver_read, to_driver = os.pipe()
    from_driver, from_driver_write = os.pipe()

    def train(config: dict[str, Any]) -> None:
        os.write(from_driver_write, frame(Kind.CONTINUE))
        report({"loss": 0.5, "step": 1})

    order = write_order(_order(working_directory()))
    worker.line.connect(from_driver, to_driver, os.getppid())
    with worker.shelf.lent(_NAME, train):
        for _ in range(ROUNDS):
            os.write(from_driver_write, order)
            worker.serve()
            os.read(to_driver_read, 1 << 16)
    for fd in (to_driver_read, to_driver, from_driver, from_driver_write):
        os.close(fd)


_NAME = "muster rehearsal"


def _order(folder: str) -> Order:
    return Order(
        trial_id="rehearsal",
        trial_name="rehearsal",
        trainable_name=_NAME,
        config={"x": 1.0},
        bundles=([{"CPU": 1.0}], "PACK"),
        trial_dir=folder,
        experiment_name="rehearsal",
        checkpoint_path=None,
        checkpoint_metrics=None,
        checkpoint_index=-1,
        log_to_file=(None, None),
        stays_when_done=False,
        env={},
    )
