"""The promises of every engine, on a real Slurm; one pilot of two CPUs holds the trials of all tests.

Each test's engine leaves the pilot to the next one, as a driver does that resumes elsewhere.
"""

from __future__ import annotations

import cloudpickle
import pytest
from tests.contracts.engine_contract.contract import EngineContract

from muster.base.clock import SystemClock
from muster.engines.slurm.engine import SlurmEngine, SlurmOptions
from muster.slurm.config import SlurmConfig
from muster.trials.placement_group import PlacementGroupFactory


@pytest.fixture(scope="module")
def folder(slurm_daemons, tmp_path_factory):
    """The directory of the engines; the last one ends the pilot that the others shared."""
    path = tmp_path_factory.mktemp("contract")
    yield path
    slurm_daemons.wire.scancel([job.array_id for job in slurm_daemons.alive()])
    slurm_daemons.wait(lambda: not slurm_daemons.alive())


@pytest.mark.slow
class TestSlurmEngine(EngineContract):
    hands_over = True

    @pytest.fixture(autouse=True)
    def _folder(self, folder):
        self.folder = folder

    def open_engine(self, trainables, capacity):
        blobs = {name: cloudpickle.dumps(made) for name, made in trainables.items()}
        config = SlurmConfig(pilot_cpus=int(capacity["CPU"]), max_pilots=1, time="10")
        engine = SlurmEngine(
            directory=self.folder,
            clock=SystemClock(),
            request=PlacementGroupFactory([{"CPU": 1}]),
            trainables=blobs,
            options=SlurmOptions(config=config, kill_after_s=0.3),
        )
        engine.hands_over = self.hands_over
        return engine

    def test_close_with_trials_alive_leaves_no_process(self, engine, driver, tmp_path):
        engine.hands_over = False
        super().test_close_with_trials_alive_leaves_no_process(engine, driver, tmp_path)
