"""Cluster and demand files, and what can happen to a file: one seed, one mutated text."""

from __future__ import annotations

import random
import re
from collections.abc import Callable

CLUSTERS = {
    "full": """\
cluster_name: demo
max_workers: 10
upscaling_speed: 2
idle_timeout_minutes: 5
provider: {type: aws, region: eu-west-1, cache_stopped_nodes: true}
auth: {ssh_user: me, ssh_private_key: ~/key.pem}
docker: {image: i, container_name: c, run_options: [-v], worker_image: w}
head_node_type: head
available_node_types:
  head:
    resources: {CPU: 2}
    node_config: {InstanceType: m5.large}
  cpu:
    resources: {CPU: 8, memory: 3.2e+10, custom: 0.5}
    min_workers: 1
    max_workers: 6
    labels: {zone: a}
    price_per_hour: 0.4
  gpu: &gpu
    node_config: {InstanceType: p3.2xlarge, ImageId: ami}
    max_workers: 3
    price_per_hour: 3.06
    market: spot
  gpu-2:
    <<: *gpu
    priority: 3
file_mounts: {/remote: /nowhere}
setup_commands: [a, "b c"]
metadata: {any: [thing, 2001-01-01, ~, true]}
muster:
  objective: cost
  timeouts: {request_s: 60, pending_idle_s: 5}
  limits: {max_concurrent: 4, max_launch_batch: 2}
  monitor: {interval_s: 1, max_interval_s: 2, metrics_port: 0}
""",
    "minimal": """\
cluster_name: smallest
provider: {type: aws, region: us-west-2}
available_node_types:
  ray.head.default: {resources: {}, node_config: {InstanceType: m5.large}}
  ray.worker.default: {min_workers: 1, max_workers: 4, resources: {}, node_config: {InstanceType: m5.large}}
""",
    "old": """\
provider: {type: gcp}
min_workers: 1
max_workers: 4
head_node: {machineType: n1-standard-2}
worker_nodes:
  machineType: n1-standard-4
  guestAccelerators: [{acceleratorType: nvidia-tesla-t4, acceleratorCount: 1}]
""",
    "local": "provider: {type: local, head_ip: a, worker_ips: [b, c]}\nmin_workers: 1\n",
}
DEMANDS = {
    "demand.yaml": """\
demands:
- {name: train, resources: {CPU: 4, GPU: 1}, count: 8}
- resources: {CPU: 1, memory: 1000000000}
  count: 20
  labels: {zone: [a, b]}
- {resources: {custom: 0.25}, selectors: [{zone: "!a"}, {zone: "in(a,b)"}]}
gangs:
- id: pg
  strategy: STRICT_SPREAD
  bundles: [{resources: {CPU: 2}, count: 3}]
  fallbacks: [[{resources: {CPU: 1}}]]
constraints:
- resources: {CPU: 16}
nodes:
- {id: i-1, type: cpu, available: {CPU: 2}, idle_s: 400}
- {type: gpu, count: 3, state: coming}
- {type: gone, total: {CPU: 4}, labels: {zone: c}}
""",
    "demand.json": """\
{
\t"demands": [
\t\t{"name": "train", "resources": {"CPU": 4, "GPU": 1}, "count": 8},
\t\t{"resources": {"CPU": 1e0, "memory": 1e9}, "labels": {"zone": ["a", "b"]}}
\t],
\t"gangs": [{"id": "pg\\u00e9", "strategy": "PACK", "bundles": [{"resources": {"CPU": 2}, "count": 3}]}],
\t"constraints": [{"resources": {"CPU": 16}}]
}
""",
}
NUMBERS = (
    *("0", "-1", "1e999", ".inf", "-.inf", ".nan", "NaN", "1e-320", "0.00001", "1_000", "010", "0b1", "0x1F"),
    *(
        "99999999999999999999",
        "0x" + "f" * 300,
        "9" * 5000,
        "1:1:1",
        ":1" * 60,
        "1e5",
        "1000000",
        "100000000",
    ),
    *("2001-01-01", "2001-99-99", "2001-01-01T99:00:00Z", "1.7976931348623157e308", "4503599627370496"),
)
TAGGED = (
    *("!!timestamp x", "!!bool maybe", "!!int ''", "!!float x", "!!null x", "!!binary =", "!!str", "!!int 1"),
    *(
        "!!set {a}",
        "!!omap [a: 1]",
        "!!pairs [a: 1]",
        "!!python/object:os.system {}",
        "!x y",
        "!<y> z",
        "! 1",
    ),
    *("!!map x", "!!seq x", "!!str [x]", "!!float 1", "!!timestamp 2001-01-01", "!!merge <<", "!!value ="),
)
TOKENS = (
    *(
        "{",
        "}",
        "[",
        "]",
        ": ",
        "- ",
        "? ",
        ", ",
        "|",
        ">",
        "\n",
        "---\n",
        "...\n",
        "%YAML 9.9\n",
        "#",
        "'",
        '"',
    ),
    *(
        "~",
        "null",
        "true",
        "no",
        "=",
        "<<",
        "<<: *a",
        "&a ",
        "*a",
        "*gpu",
        "&a [*a]",
        "&a {<<: *a}",
        "@",
        "`",
    ),
    *(
        "\t",
        "\0",
        "\r",
        "\x1b[31m",
        "\x85",
        "\ufeff",
        "\u2028",
        "\ud7ff",
        "\U0001f600",
        "\u202e",
        "\\ud800",
        "\\u0000",
    ),
    *("../../x", "/dev/zero", "a" * 5000, "a b", "${x}", "é", "kind: RayCluster\napiVersion: ray.io/v1\n"),
)


def _spot(chance: random.Random, text: str) -> int:
    return chance.randrange(len(text) + 1)


def _swapped_token(chance: random.Random, text: str, pattern: str, tokens: tuple[str, ...]) -> str:
    spots = list(re.finditer(pattern, text))
    if not spots:
        return text + chance.choice(tokens)
    spot = chance.choice(spots)
    return text[: spot.start()] + chance.choice(tokens) + text[spot.end() :]


def other_bytes(chance: random.Random, text: str) -> str:
    """May be no UTF-8 any more: the caller writes with surrogateescape."""
    raw = bytearray(text.encode("utf-8", "surrogateescape"))
    for _ in range(chance.randint(1, 8)):
        at = chance.randrange(len(raw) + 1)
        raw[at : at + chance.randint(0, 2)] = chance.randbytes(chance.randint(0, 2))
    return raw.decode("utf-8", "surrogateescape")


def other_word(chance: random.Random, text: str) -> str:
    return _swapped_token(chance, text, r"[\w.-]+", (*TOKENS, *TAGGED, *NUMBERS))


def other_number(chance: random.Random, text: str) -> str:
    return _swapped_token(chance, text, r"(?<!\w)[\d.]+(?!\w)", NUMBERS)


def tagged_value(chance: random.Random, text: str) -> str:
    return _swapped_token(chance, text, r"(?<=: )[^{}\[\],\n]+", TAGGED)


def typed_token(chance: random.Random, text: str) -> str:
    at = _spot(chance, text)
    return text[:at] + chance.choice(TOKENS) + text[at:]


def nesting(chance: random.Random, text: str) -> str:
    opened, closed = chance.choice(
        [("[", "]"), ("{a: ", "}"), ('{"a": ', "}"), ("- ", ""), ("? ", ""), ("[{x: ", "}]")]
    )
    depth, at = chance.choice([3, 50, 99, 150, 3000]), _spot(chance, text)
    return text[:at] + opened * depth + "1" + closed * chance.choice([0, depth, depth - 1]) + text[at:]


def anchors(chance: random.Random, text: str) -> str:
    text = re.sub(r": ", lambda spot: chance.choice([": ", ": ", ": &a "]), text, count=chance.randint(1, 30))
    spots = list(re.finditer(r"(?<=: )[^&{}\[\],\n]+", text))
    for spot in sorted(chance.sample(spots, min(len(spots), 2)), key=lambda one: -one.start()):
        text = text[: spot.start()] + "*a" + text[spot.end() :]
    return text


def bomb(chance: random.Random, text: str) -> str:
    unit = chance.choice(
        ["l{n}: &l{n} [{refs}]", "l{n}: &l{n} {{<<: [{refs}]}}", "l{n}: &l{n} {{a: [{refs}]}}"]
    )
    lines = [unit.format(n=n, refs=", ".join([f"*l{n - 1}"] * 9)) for n in range(1, chance.choice([3, 12]))]
    return "\n".join([text, "l0: &l0 {x: 1}", *lines, ""])


def lines_moved(chance: random.Random, text: str) -> str:
    lines = text.split("\n")
    at, to = chance.randrange(len(lines)), chance.randrange(len(lines))
    kept = lines[at] if chance.random() < 0.5 else lines.pop(at)
    lines.insert(to, chance.choice([kept, f"  {kept}", kept.strip()]))
    return "\n".join(lines)


def repeated(chance: random.Random, text: str) -> str:
    at = _spot(chance, text)
    part = text[at : at + chance.randint(1, 60)]
    return text[:at] + part * chance.choice([2, 2, 30, 1000]) + text[at + len(part) :]


def many_keys(chance: random.Random, text: str) -> str:
    key = chance.choice(["k{n}", "{n}", "{n}.5", "? k{n}\n", '"{n}"'])
    return text + "\n" + "\n".join(f"{key.format(n=n)}: 1" for n in range(chance.choice([10, 1500, 9000])))


def other_characters(chance: random.Random, text: str) -> str:
    letters = list(text)
    for _ in range(chance.randint(1, 5)):
        point = chance.choice(
            [chance.randrange(0x20), chance.randrange(0xD800), chance.randrange(0xE000, 0x110000)]
        )
        letters[chance.randrange(len(letters))] = chr(point)
    return "".join(letters)


def truncated(chance: random.Random, text: str) -> str:
    return text[: _spot(chance, text)]


MUTATIONS: tuple[Callable[[random.Random, str], str], ...] = (
    *(other_bytes, other_word, other_number, tagged_value, typed_token, nesting, anchors, bomb),
    *(lines_moved, repeated, many_keys, other_characters, truncated),
)


def mutated(chance: random.Random, text: str) -> str:
    """One to three things happen to a file; it stays below some megabytes."""
    for _ in range(chance.choice([1, 1, 2, 3])):
        text = chance.choice(MUTATIONS)(chance, text)[:3_000_000] or "\n"
    return text
