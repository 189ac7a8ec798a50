"""The simulator's hosts answer as bash does: the same lines, run by both, in random order."""

from __future__ import annotations

import asyncio
import os
import random
import shutil
from pathlib import Path

import pytest
from tests.providers.rack.local_hosts import LOCKS, BashRunner, write_lock
from tests.simulation.rack.hosts import SimHost, holder_text, parse

from muster.errors import CommandFailed
from muster.providers.rack.host_lock import (
    LOCK,
    LockHolder,
    guard_line,
    look_line,
    read_report,
    release_line,
    retake_line,
    take_line,
    write_line,
)

OWNERS = ("", "nobody") if os.geteuid() == 0 else ("",)
BOOT = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()


class Both:
    """One host twice: a directory of this computer, and a value."""

    def __init__(self, home: Path) -> None:
        self.runner, self.host = BashRunner(home), SimHost("h", "cpu")
        self.file = home / "locks" / LOCK
        self.file.parent.parent.mkdir(parents=True)

    def lock(self, text: str, owner: str = "") -> None:
        self.host.lock, self.host.owner = text, owner if text else ""
        shutil.rmtree(self.file.parent, ignore_errors=True)
        if text:
            write_lock(self.file, f"{text}\n")
        if text and owner:
            shutil.chown(self.file.parent, owner)

    def run(self, line: str) -> tuple[str, str]:
        """Return what bash and the value print, the value of a report, or a refusal."""
        verb, words = parse(line)

        def shown(print_: object) -> str:
            try:
                text = print_()  # type: ignore[operator]
            except CommandFailed as error:
                return f"exit {error.exit_code}"
            report = read_report(text)
            return f"{report.boot} {report.owner} {report.lock}" if verb == "look" else text.strip()

        return (
            shown(lambda: asyncio.run(self.runner.run(line))),
            shown(lambda: self.host.execute(verb, words, 0.0)),
        )

    def locks(self) -> tuple[str, str]:
        there = self.file.read_text(encoding="utf-8").strip() if self.file.exists() else ""
        return there, self.host.lock


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_simulated_hosts_answer_as_bash_does(tmp_path, monkeypatch, seed):
    monkeypatch.setattr(SimHost, "boot", BOOT)
    draw, both = random.Random(seed), Both(tmp_path / "h")
    holders = [
        LockHolder(cluster=name, cloud_id=f"{name}-1", launcher="x", taken_at=1.0) for name in ("a", "b")
    ]
    texts = ("", "do not touch", holder_text("a", "a-1", BOOT), holder_text("b", "b-1", "an earlier start"))
    for _ in range(40):
        holder = draw.choice(holders)
        lines = (
            look_line(LOCKS),
            take_line(LOCKS, holder),
            retake_line(LOCKS, holder),
            write_line(LOCKS, holder),
            release_line(LOCKS, holder),
        )
        if draw.random() < 0.3:
            both.lock(draw.choice(texts), draw.choice(OWNERS))
        bash, value = both.run(draw.choice(lines))
        assert bash == value
        assert both.locks()[0] == both.locks()[1]
        assert both.file.parent.exists() == bool(both.host.lock)


def test_commands_for_a_worker_run_only_while_the_lock_is_its_own(tmp_path):
    both = Both(tmp_path / "h")
    line = f"{guard_line(LOCKS, 'a-1')}\necho ran"
    both.lock(holder_text("a", "a-1", BOOT))
    assert asyncio.run(both.runner.run(line)) == "ran\n"
    others = ["", holder_text("a", "a-2", BOOT), holder_text("a", "a-1", "an earlier start")]
    for text, owner in [*((one, "") for one in others), (holder_text("a", "a-1", BOOT), OWNERS[-1])]:
        if text not in others and not owner:
            continue  # only root can make the directory of another user
        both.lock(text, owner)
        with pytest.raises(CommandFailed) as caught:
            asyncio.run(both.runner.run(line))
        assert caught.value.exit_code == 3
