from __future__ import annotations

import pytest
from tools.public_docs import problems


@pytest.mark.slow
def test_every_public_member_is_documented_with_its_arguments():
    undocumented, undescribed = problems()
    assert undocumented == []
    assert undescribed == []
