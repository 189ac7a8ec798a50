"""Seeds that still break a property. Each is a fault to fix: it then passes, and moves to the kept seeds."""

from __future__ import annotations

import pytest
from tests.simulation.ec2.run import Ec2Run
from tests.simulation.rack.run import RackRun
from tests.simulation.run import SeedRun
from tests.simulation.v1_cloud import V1Run

OPEN = (
    (
        SeedRun,
        340302,
        "a machine with a wrong type tag, whose request was for two types, keeps the tag's type",
    ),
    (Ec2Run, 8101757, "an unmatched node has neither id nor ip, and its machine a wrong type tag"),
    (Ec2Run, 8200038, "a machine is given up under work"),
    (Ec2Run, 8200051, "a machine is given up under work"),
    (RackRun, 8200025, "seven machines are paid for at a maximum of six"),
    (V1Run, 8201112, "three machines of a type exist at a maximum of two"),
)


@pytest.mark.slow
@pytest.mark.xfail(strict=True, reason="open")
@pytest.mark.parametrize(("kind", "seed", "why"), OPEN, ids=[f"{kind.__name__}-{n}" for kind, n, _ in OPEN])
def test_a_seed_that_is_open(kind, seed, why):
    assert not kind(seed).to_end().violations, why
