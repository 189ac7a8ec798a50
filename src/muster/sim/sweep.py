"""sweep(seeds, jobs): many runs, on several processes when asked, reports in the order of the seeds."""

from __future__ import annotations

import logging
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor

from muster.sim.cluster.run import Report, simulate

CHUNK = 5


def sweep(seeds: Sequence[int], jobs: int = 1) -> Iterator[Report]:
    """Every seed's report. A run that breaks the simulator itself raises."""
    quiet()
    if jobs <= 1:
        yield from map(simulate, seeds)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(jobs, mp_context=context, initializer=quiet) as pool:
        yield from pool.map(simulate, seeds, chunksize=CHUNK)


def quiet() -> None:
    """The controller's warnings are the point of a simulation, not news: nobody reads them line by line."""
    logging.getLogger("muster.cluster").addHandler(logging.NullHandler())
