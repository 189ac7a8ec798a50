"""`muster plan` with mutated files: a plan or one line of error within two seconds, and nothing else."""

from __future__ import annotations

import random
import time
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests import series
from tests.cli.plan.mutations import CLUSTERS, DEMANDS, MUTATIONS, mutated

from muster.cli.main import cli
from muster.config.document import MAX_SCALAR, Document
from muster.errors import ConfigError

pytestmark = pytest.mark.slow

PARTS = 10
FILES = series.length(sample=300, whole=5_000)
MAX_S = 2.0  # of CPU time


def files(seed: int, folder: Path) -> tuple[Path, Path]:
    """One of the two is mutated; the other is good, so that the mutated one is read to its end."""
    chance = random.Random(seed)
    demand_name = chance.choice(sorted(DEMANDS))
    texts = {"cluster.yaml": CLUSTERS[chance.choice(sorted(CLUSTERS))], demand_name: DEMANDS[demand_name]}
    victim = chance.choice(sorted(texts))
    texts[victim] = mutated(chance, texts[victim])
    for name, text in texts.items():
        (folder / name).write_bytes(text.encode("utf-8", "surrogateescape"))
    return folder / "cluster.yaml", folder / demand_name


def problem_of(cluster: Path, demand: Path) -> str:
    """What a user would call a bug; "" for an answer."""
    began = time.process_time()
    result = CliRunner().invoke(cli, ["plan", str(cluster), "--demand", str(demand)])
    took_s = time.process_time() - began
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        return f"traceback: {result.exception!r}"
    if took_s > MAX_S:
        return f"took {took_s:.1f} s"
    if result.exit_code == 2:
        lines = result.stderr.splitlines()
        if len(lines) != 1 or not lines[0].startswith(f"error: {cluster.parent}"):
            return f"is no single line that names the file: {result.stderr[:300]!r}"
        return "" if len(lines[0]) < 1_000 else f"is a very long line: {lines[0][:300]}"
    return "" if result.exit_code in (0, 3) else f"exit code {result.exit_code}: {result.output[-300:]}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("part", range(PARTS))
def test_every_mutated_file_gets_a_plan_or_one_line(tmp_path, part):
    found = {}
    for seed in range(part, FILES, PARTS):
        if problem := problem_of(*files(seed, tmp_path)):
            found[seed] = problem
    assert found == {}


@pytest.mark.timeout(600)
def test_what_is_read_of_a_mutated_file_is_what_yaml_reads():
    read = 0
    for seed in range(FILES):
        chance = random.Random(seed)
        text = mutated(chance, CLUSTERS[chance.choice(sorted(CLUSTERS))])
        try:
            data = Document(text, "c.yaml").data
        except ConfigError:
            continue
        if any(len(word) > MAX_SCALAR for word in text.split()):
            continue  # a number of so many digits is left as text
        try:
            expected = yaml.load(text, yaml.CSafeLoader)
        except yaml.YAMLError as problem:
            assert " anchor;" in str(problem), seed  # YAML allows them; libyaml's composer does not
            continue
        read += 1
        assert repr(data) == repr(expected), seed
    assert read > FILES / 10


@pytest.mark.parametrize("mutation", MUTATIONS, ids=lambda one: one.__name__)
def test_every_mutation_changes_a_file(mutation):
    changed = [mutation(random.Random(seed), CLUSTERS["full"]) != CLUSTERS["full"] for seed in range(20)]
    assert sum(changed) >= 15
