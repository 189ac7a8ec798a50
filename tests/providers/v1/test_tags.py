from __future__ import annotations

import pytest

from muster.providers.v1.tags import request_of, request_tag


@pytest.mark.parametrize(
    ("request_id", "tag"),
    [
        ("t-1f-r1", "t-1f-r1"),
        ("t-1f-r1~2.t-9c", "t-1f-r1__2_t-9c"),
        ("r-0.000001", "r-0.000001"),
        ("r-0.000001~13.t-0.000007", "r-0.000001__13_t-0.000007"),
        ("snake_case__id", "snake_case__id"),
    ],
)
def test_a_request_id_survives_as_a_tag_without_characters_that_clouds_refuse(request_id, tag):
    assert request_tag(request_id) == tag
    assert "~" not in tag
    assert request_of(tag) == request_id


def test_no_tag_is_no_request():
    assert (request_of(None), request_of("")) == (None, None)
