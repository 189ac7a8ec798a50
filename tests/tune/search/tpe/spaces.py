"""Spaces for tests of TPESearch: by name, the space and how many objectives it is searched for."""

from __future__ import annotations

from muster.tune.search.space import (
    choice,
    lograndint,
    loguniform,
    qlograndint,
    qrandn,
    quniform,
    randint,
    randn,
    uniform,
)

SPACES = {
    "floats": ({f"x{place}": uniform(-2, 3) for place in range(4)}, 1),
    "mixed": (
        {
            "lr": loguniform(1e-5, 1e-1),
            "n": {"k": randint(1, 9), "w": lograndint(8, 257), "q": quniform(0, 1, 0.25)},
            "kind": choice(["a", "b", (1, 2)]),
            "noise": randn(1, 2),
            "steps": [qrandn(0, 3, 0.5), qlograndint(4, 64, 4)],
            "const": 7,
        },
        1,
    ),
    "conditional": (
        {
            "x": uniform(0, 1),
            "model": choice(
                [
                    {"kind": "tree", "depth": randint(1, 9)},
                    {
                        "kind": "net",
                        "lr": loguniform(1e-4, 1),
                        "head": choice(["none", {"width": lograndint(1, 65), "rate": uniform(0, 1)}]),
                    },
                    "none",
                ]
            ),
        },
        1,
    ),
    "finite": ({"kind": choice([*"abcde"]), "depth": randint(1, 5), "rate": quniform(0.1, 0.6, 0.1)}, 1),
    "goals": ({"x": uniform(0, 1), "y": uniform(0, 1), "kind": choice([1, 2, 3])}, 2),
}


def numbers(node):
    if isinstance(node, dict):
        return [number for child in node.values() for number in numbers(child)]
    if isinstance(node, (list, tuple)):
        return [number for child in node for number in numbers(child)]
    return [float(node) if isinstance(node, (int, float)) else len(node) / 7]


def loss(config):
    """Two values to minimize, which pull in different directions."""
    found = numbers(config)
    return sum((number - 0.3) ** 2 for number in found), sum(abs(number - 0.8) for number in found)
