"""Write src/muster/providers/machine_sizes.txt from a CSV of public machine types.

`python tools/machine_sizes.py FILE.csv`; its columns are cloud, type, cpus, memory_gib, accelerator and
accelerators. What the CSV lacks or has wrong is corrected here, so that the next CSV is, too.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import defaultdict
from pathlib import Path

TABLE = Path(__file__).resolve().parents[1] / "src" / "muster" / "providers" / "machine_sizes.txt"
Row = tuple[str, str, int, int, str, float]  # cloud, type, CPUs, MiB, accelerator, how many

# What the maker calls it -> Ray's resource, how many of them one has, and the type that Ray's nodes report.
RESOURCES = {
    "Inferentia2": ("neuron_cores", 2, "aws-neuron-core"),
    "Trainium": ("neuron_cores", 2, "aws-neuron-core"),
    "Gaudi": ("HPU", 1, "Intel-GAUDI"),
    "A100-80GB": ("GPU", 1, "A100"),
    "V100-32GB": ("GPU", 1, "V100"),
    "RTX PRO Server 6000": ("GPU", 1, "RTX-PRO-6000"),
}
NO_RESOURCE = ("Inferentia", "Qualcomm AI100", "Virtex UltraScale+ (VU47P)")  # Ray has none for them

GIB = 1024
# Types that are sold no more, but stand in many files.
MORE: tuple[Row, ...] = (
    ("aws", "p2.xlarge", 4, 61 * GIB, "K80", 1),
    ("aws", "p2.8xlarge", 32, 488 * GIB, "K80", 8),
    ("aws", "p2.16xlarge", 64, 732 * GIB, "K80", 16),
    ("aws", "p3.2xlarge", 8, 61 * GIB, "V100", 1),
    ("aws", "p3.8xlarge", 32, 244 * GIB, "V100", 4),
    ("aws", "p3.16xlarge", 64, 488 * GIB, "V100", 8),
    ("aws", "g3s.xlarge", 4, 61 * GIB // 2, "M60", 1),
    ("aws", "g3.4xlarge", 16, 122 * GIB, "M60", 1),
    ("aws", "g3.8xlarge", 32, 244 * GIB, "M60", 2),
    ("aws", "g3.16xlarge", 64, 488 * GIB, "M60", 4),
    ("aws", "dl1.24xlarge", 96, 768 * GIB, "Gaudi", 8),
)
# Accelerators that the CSV does not have (all of gcp's), or has wrong.
ACCELERATORS = {
    "Standard_ND96isr_H100_v5": ("H100", 8),
    "Standard_NCC40ads_H100_v5": ("H100", 1),
    "Standard_NC8ads_A10_v4": ("A10", 1),
    "Standard_NC16ads_A10_v4": ("A10", 1),
    "Standard_NC32ads_A10_v4": ("A10", 2),
    **{f"g2-standard-{cpus}": ("L4", 1) for cpus in (4, 8, 12, 16, 32)},
    "g2-standard-24": ("L4", 2),
    "g2-standard-48": ("L4", 4),
    "g2-standard-96": ("L4", 8),
    **{f"g4-standard-{48 * count}": ("RTX PRO Server 6000", count) for count in (1, 2, 4, 8)},
}
GCP_GPUS = re.compile(r"(a2-(?:high|mega|ultra)|a3-(?:edge|high|mega|ultra)|a4-high)gpu-(\d+)g.*")
GCP_KINDS = {"a2": "A100", "a3": "H100", "a3-ultra": "H200", "a4": "B200"}


def main(source: Path) -> None:
    with source.open(encoding="utf-8") as opened:
        rows = [*map(_row, csv.DictReader(opened)), *MORE]
    lines: dict[tuple[str, int, int, str], list[str]] = defaultdict(list)
    for cloud, name, cpus, mib, accelerator, count in rows:
        lines[cloud, cpus, mib, _resource(accelerator, count)].append(name.lower())
    text = "".join(
        f"{cloud} {cpus} {mib} {extra} {' '.join(sorted(set(names)))}\n"
        for (cloud, cpus, mib, extra), names in sorted(lines.items())
    )
    TABLE.write_text(text, encoding="ascii")


def _row(entry: dict[str, str]) -> Row:
    name, accelerator = entry["type"], (entry["accelerator"], float(entry["accelerators"] or 0))
    if found := GCP_GPUS.fullmatch(name):
        family = found[1]
        accelerator = GCP_KINDS.get(family, GCP_KINDS[family[:2]]), float(found[2])
    accelerator = ACCELERATORS.get(name, accelerator)
    mib = round(float(entry["memory_gib"]) * GIB)
    return entry["cloud"], name, int(entry["cpus"]), mib, *accelerator


def _resource(accelerator: str, count: float) -> str:
    if accelerator in NO_RESOURCE or int(count) == 0:  # for AWS and Ray, a part of a GPU is none
        return "-"
    resource, each, kind = RESOURCES.get(accelerator, ("GPU", 1, accelerator.replace(" ", "-")))
    return f"{resource}={int(count) * each}:{kind}"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
