"""Run one benchmark, prints its tables and, as the last line, its figures as JSON."""

from __future__ import annotations

import argparse
import importlib
import signal
import sys
from collections.abc import Sequence

from bench import floors, peer, table
from bench.options import Options


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one benchmark; returns 1 when a floor was missed."""
    given = parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # clusters and children are ended on the way out
    with_peer = not given.ours_only
    if with_peer and not peer.installed():
        table.note(
            "Ray is not installed in this interpreter, so only ours runs and every figure that needs "
            "Ray is absent. For the comparison: pip install 'muster-ml[bench]'"
        )
        with_peer = False
    options = Options(quick=given.quick, with_peer=with_peer, only=given.only)
    figures = importlib.import_module(f"bench.{given.name.replace('-', '_')}").run(options)
    missed = floors.missed(given.name, figures, partial=options.partial)
    for sentence in missed:
        table.note(f"MISSED: {sentence}")
    table.note(table.last_line(given.name, figures))
    return 1 if missed and not given.no_floors else 0


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    made.add_argument("name", choices=sorted(floors.FLOORS), help="the benchmark to run")
    made.add_argument("--quick", action="store_true", help="run a small form; under a minute for most")
    made.add_argument("--ours-only", action="store_true", help="do not run Ray")
    made.add_argument("--only", default="*", metavar="PATTERN", help="run only the cases whose name matches")
    made.add_argument("--no-floors", action="store_true", help="exit with 0 even when a floor is missed")
    return made


if __name__ == "__main__":
    sys.exit(main())
