"""Write the table of the README from recorded runs of the benchmarks, so that no number is typed by hand.

`python tools/measured.py --note "..." LOG...` records the last lines of `python -m bench NAME > LOG` in
docs/measured.json, with the date of each log and this machine; without LOG it only writes the table again.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, NamedTuple

ROOT = Path(__file__).resolve().parent.parent
RECORD = ROOT / "docs" / "measured.json"
BEGIN, END = "<!-- measured: written by tools/measured.py -->\n", "<!-- measured: end -->\n"


class Row(NamedTuple):
    """One line of the table: the figures of a benchmark behind it, ours and Ray's or Optuna's."""

    what: str
    bench: str
    ours: str
    ray: str = ""
    optuna: str = ""
    unit: str = "s"
    more_is_better: bool = False


ROWS = (
    Row(
        "start a script, get the first result",
        "tune",
        "seconds.first_result",
        "peer_seconds.first_result",
    ),
    Row(
        "2,000 trivial trials with reused processes, per second",
        "tune",
        "trials_per_s.reuse",
        "peer_trials_per_s.reuse",
        "",
        "",
        True,
    ),
    Row(
        "one trial that reports 10,000 results, per second",
        "tune",
        "results_per_s.one",
        "peer_results_per_s.one",
        "",
        "",
        True,
    ),
    Row(
        "2,000 trials chosen by TPE (Optuna: in one process, in memory)",
        "tune",
        "seconds.model",
        "",
        "peer_seconds.optuna",
    ),
    Row(
        "three waiting actors get three nodes",
        "scaleup",
        "seconds.ours.demand_to_ready",
        "seconds.ray.demand_to_ready",
    ),
)


def number(value: float, unit: str) -> str:
    """Return a number with three digits at most, and its unit."""
    if unit == "s" and value < 1:
        return f"{value * 1000:.3g} ms"
    text = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
    return f"{text} {unit}".rstrip()


def line(row: Row, figures: dict[str, float]) -> str:
    ours, peer = figures[row.ours], figures[row.ray or row.optuna]
    cells = [number(ours, row.unit), f"{'Ray' if row.ray else 'Optuna'} {number(peer, row.unit)}"]
    ratio = ours / peer if row.more_is_better else peer / ours
    return f"| {' | '.join([row.what, *cells, f'{ratio:.2g}x' if ratio < 10 else f'{ratio:.0f}x'])} |"


def table(record: dict[str, Any]) -> str:
    """Return the text of the README: the table, and when, where and how it was measured."""
    runs = record["runs"]
    lines = [line(row, runs[row.bench]["figures"]) for row in ROWS if row.bench in runs]
    how = " and ".join(f"`{run['command']}` on {run['date']}" for run in runs.values())
    return "\n".join(
        [
            "| | muster | Ray 2.60 or Optuna 5 | factor |",
            "|---|---|---|---|",
            *lines,
            "",
            f"We ran {how}, with {record['machine']}. {record['note']}",
            "[The benchmarks](bench/README.md) explain each line and how we measure it.",
            "",
        ]
    )


def written(readme: str, record: dict[str, Any]) -> str:
    """Return the README with the table of a record."""
    before, rest = readme.split(BEGIN)
    return f"{before}{BEGIN}\n{table(record)}\n{END}{rest.split(END)[1]}"


def recorded(logs: list[Path], note: str) -> dict[str, Any]:
    """Return what the last lines of logs say."""
    runs = {}
    for log in sorted(logs):
        last = json.loads(log.read_text(encoding="utf-8").strip().splitlines()[-1])
        date = datetime.fromtimestamp(log.stat().st_mtime, tz=timezone.utc).date().isoformat()
        quick = " --quick" if "quick" in log.name else ""
        runs[last["bench"]] = {
            "command": f"python -m bench {last['bench']}{quick}",
            "date": date,
            "figures": last["figures"],
        }
    names = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    system = f"{platform.system()}, Python {platform.python_version()}"
    machine = f"{len(names)} cores of an {names[0]} machine with {memory:.0f} GB of memory, {system}"
    return {"machine": machine, "note": note, "runs": runs}


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="Writes the table of the README.")
    parser.add_argument("logs", nargs="*", type=Path, help="a name with 'quick' is a run with --quick")
    parser.add_argument("--note", default="", help="what else ran on the machine")
    options = parser.parse_args(arguments)
    if options.logs:
        RECORD.write_text(json.dumps(recorded(options.logs, options.note), indent=1) + "\n", encoding="utf-8")
    readme = ROOT / "README.md"
    record = json.loads(RECORD.read_text(encoding="utf-8"))
    readme.write_text(written(readme.read_text(encoding="utf-8"), record), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
