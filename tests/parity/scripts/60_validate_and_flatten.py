"""Helpers for authors: merging, flattening and trying save and restore (docs: tune.utils)."""

from ray import tune
from ray.tune.utils import deep_update, flatten_dict, merge_dicts, unflattened_lookup


def main(storage):
    nested = {"a": {"b": {"c": 1}, "d": [1, 2]}, "e": {}}
    return {
        "flat": flatten_dict(nested),
        "points": flatten_dict(nested, delimiter="."),
        "merged": merge_dicts({"a": {"b": 1}, "c": 2}, {"a": {"d": 3}}),
        "updated": deep_update({"a": {"b": 1}}, {"a": {"b": 5, "n": 6}}, new_keys_allowed=True),
        "found": unflattened_lookup("a/b/c", nested),
        "sampled": [tune.randint(0, 100).sample(random_state=5), tune.choice("abc").sample(random_state=5)],
    }
