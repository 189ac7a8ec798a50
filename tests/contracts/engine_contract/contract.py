"""Provide EngineContract, the test class every engine passes. Subclass it and define `open_engine`.

Example:
    class TestMyEngine(EngineContract):
        def open_engine(self, trainables, capacity):
            return MyEngine(trainables, capacity)
"""

from __future__ import annotations

from tests.contracts.engine_contract.fixture import EngineFixture
from tests.contracts.engine_contract.lockstep import LockstepPromises
from tests.contracts.engine_contract.misbehaving import HardPromises
from tests.contracts.engine_contract.resume import ResumePromises

__all__ = ["EngineContract", "EngineFixture"]


class EngineContract(LockstepPromises, ResumePromises, HardPromises):
    """Tests what an engine promises to the trial controller."""
