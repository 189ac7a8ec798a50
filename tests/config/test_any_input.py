"""Whatever is in the file: a good value or a ConfigError of one line that names the file, nothing else."""

from __future__ import annotations

import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.config.conftest import GOOD

from muster.cluster.model import ClusterSpec
from muster.config.document import Document
from muster.config.load import parse_config
from muster.config.to_spec import to_spec
from muster.errors import ConfigError

KEYS = st.sampled_from(
    [
        "cluster_name",
        "max_workers",
        "resources",
        "CPU",
        "head",
        "cpu",
        "muster",
        "timeouts",
        "backoff",
        "provider",
    ]
)
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.dates(),
    st.binary(max_size=3),
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(KEYS | SCALARS, inner, max_size=3),
    max_leaves=6,
)


def outcome(text: str) -> str:
    try:
        spec = to_spec(parse_config(Document(text, "c.yaml")))
    except ConfigError as problem:
        told = str(problem)
        assert told.startswith("c.yaml")
        assert "\n" not in told
        return "refused"
    assert isinstance(spec, ClusterSpec)
    return "taken"


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.data())
def test_a_good_file_with_one_value_replaced_by_anything(data):
    config = yaml.safe_load(GOOD)
    place = config
    while True:
        key = data.draw(st.sampled_from(sorted(place)))
        if not isinstance(place[key], dict) or not place[key] or data.draw(st.booleans()):
            break
        place = place[key]
    place[key] = data.draw(VALUES)
    outcome(yaml.safe_dump(config))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.integers(0, len(GOOD)), st.text(max_size=4), st.integers(0, 10))
def test_a_good_file_with_any_text_typed_into_it(position, typed, deleted):
    outcome(GOOD[:position] + typed + GOOD[position + deleted :])


def test_the_untouched_file_is_taken():
    assert outcome(GOOD) == "taken"
