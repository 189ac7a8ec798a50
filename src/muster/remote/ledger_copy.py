"""Move copies of a head's ledger between the head and this computer, over the head's command runner.

Called by the launcher: `pull_ledger` after `up` and by every command that reaches the head, `push_ledger`
before the monitor of a new head starts, which then restores what was sent.
"""

from __future__ import annotations

import shlex
import tempfile
from pathlib import Path

from muster.remote.runner import CommandRunner
from muster.stores.ledger.backup import LedgerBackups, LedgerCopy

COPY_S = 120.0


def copy_command(python: str, directory: str) -> str:
    """Return the line that copies the ledger of a cluster's directory; prints `none` where there is none."""
    ledger, draft = (shlex.quote(f"{directory}/{name}") for name in ("ledger.db", ".ledger.pulled"))
    copy = f"{shlex.quote(python)} -m muster.stores.ledger.backup copy {ledger} {draft}"
    return f"umask 077; if [ -e {ledger} ]; then {copy}; else echo none; fi"


async def pull_ledger(
    runner: CommandRunner, *, python: str, directory: str, cluster: str, target: Path
) -> LedgerCopy | None:
    """Add a copy of the head's ledger to the directory `target`; None when the head has no ledger yet.

    `python` and `directory` are the Python with muster and the cluster's home on the head, absolute paths.
    """
    answer = await runner.run(copy_command(python, directory), timeout_s=COPY_S)
    if answer.split()[-1:] == ["none"]:
        return None
    draft = f"{directory}/.ledger.pulled"
    with tempfile.TemporaryDirectory(prefix="muster-pull-") as folder:
        here = Path(folder, "ledger")
        await runner.sync_down(draft, str(here))
        await runner.run(f"rm -f {shlex.quote(draft)}")
        return LedgerBackups(target, cluster).add(here)


async def push_ledger(
    runner: CommandRunner, *, directory: str, cluster: str, source: Path
) -> LedgerCopy | None:
    """Send the newest copy in the directory `source` to a new head; None when there is none.

    A head that has a ledger does not use it. One that has `muster.backup` uses that first, which is newer.
    """
    copies = LedgerBackups(source, cluster).copies()
    if not copies:
        return None
    place = f"{directory}/backups"
    await runner.run(f"umask 077; mkdir -p {shlex.quote(place)}")
    for copy in copies[:2]:  # the second, in case that the first is damaged
        await runner.sync_up(str(source / copy.name), f"{place}/{copy.name}")
    return copies[0]
