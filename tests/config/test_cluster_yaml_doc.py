"""Check docs/cluster-yaml.md against the schema: every key with its default, every variable."""

from __future__ import annotations

import re
from collections.abc import Iterator
from enum import Enum
from pathlib import Path

from msgspec import NODEFAULT, inspect

from muster.config.document import Document
from muster.config.environment import VARIABLES
from muster.config.schema import ClusterConfig
from muster.providers.kind import KINDS, NOT_BUILT, parse_config

TEXT = (Path(__file__).parents[2] / "docs" / "cluster-yaml.md").read_text(encoding="utf-8")
ROW = re.compile(r"\| `([^`]+)` \| ([^|]+) \|")
HEADING = re.compile(r"^## .*?(?:`([^`]+)`)?$")


def documented() -> Iterator[tuple[str, str]]:
    """Key path and default of every row that is about a key."""
    prefix, in_keys = "", False
    for line in TEXT.splitlines():
        if heading := HEADING.match(line):
            prefix = heading[1] or ""
        if line.startswith("| key |"):
            in_keys = True
        elif not line.startswith("|"):
            in_keys = False
        row = ROW.match(line)
        if in_keys and row:
            key = row[1]
            yield (prefix + key if key.startswith(".") else key), row[2].strip().strip("`")


def of_schema(info: inspect.StructType, prefix: str = "") -> Iterator[tuple[str, str]]:
    left_out = {getattr(info.cls, "kept_in", ""), *getattr(info.cls, "not_keys", ())}
    for field in info.fields:
        if field.name in left_out:
            continue
        path = f"{prefix}{field.encode_name}"
        yield path, shown(field)
        for kind in field.type.types if isinstance(field.type, inspect.UnionType) else (field.type,):
            if isinstance(kind, inspect.StructType) and field.encode_name not in (
                "head_node",
                "worker_nodes",
            ):
                yield from of_schema(kind, f"{path}.")
            if isinstance(kind, inspect.DictType) and isinstance(kind.value_type, inspect.StructType):
                yield from of_schema(kind.value_type, f"{path}.<name>.")


def shown(field: inspect.Field) -> str:
    if field.required:
        return "required"
    value = field.default if field.default is not NODEFAULT else field.default_factory()
    if isinstance(value, Enum):
        return str(value.value)
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int | float):
        return f"{value:.15g}"
    fixed = {None: "none", "": "empty", (): "[]"}
    if value is None or value in ("", ()):
        return fixed[value]
    return value if isinstance(value, str) else "{}"


def test_every_key_is_documented_with_its_default_and_no_other_is():
    root = inspect.type_info(ClusterConfig)
    assert isinstance(root, inspect.StructType)
    rows = list(documented())
    assert dict(rows) == dict(of_schema(root))
    assert len(rows) == len(dict(rows))


def test_every_variable_is_documented_with_the_key_it_sets():
    told = dict(re.findall(r"^\| `([A-Z_]+)` \| `([a-z_.]+)`", TEXT, flags=re.MULTILINE))
    assert told == {variable.name: ".".join(("muster", *variable.path)) for variable in VARIABLES}


def test_every_provider_is_documented():
    table = TEXT.split("| provider | defaults")[1].split("\n\n")[0]
    assert sorted(re.findall(r"^\| `(\w+)` \|", table, flags=re.MULTILINE)) == sorted((*KINDS, *NOT_BUILT))


def test_the_example_is_a_good_file():
    example = re.search(r"```yaml\n(.*?)```", TEXT, flags=re.DOTALL)
    assert example is not None
    assert parse_config(Document(example[1], "doc.yaml")).cluster_name == "vision"
