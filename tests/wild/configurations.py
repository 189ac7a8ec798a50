"""Print what each trial below a directory sampled, in order, from the params.json that Ray and muster write."""

import json
import sys
from pathlib import Path


def leaves(config, path=()):
    """Yield (key, value) of the numbers, texts and flags of a config, without paths."""
    for key, value in sorted(config.items()):
        if isinstance(value, dict):
            yield from leaves(value, (*path, key))
        elif isinstance(value, int | float) or (isinstance(value, str) and "/" not in value):
            yield ".".join((*path, key)), value


if __name__ == "__main__":
    files = sorted(Path(sys.argv[1]).rglob("params.json"), key=lambda file: file.parent.name.split("_")[-3:])
    trials = sorted({json.dumps(dict(leaves(json.loads(file.read_text())))) for file in files})
    print("CONFIGURATIONS", len(files), *trials, sep="\n")
