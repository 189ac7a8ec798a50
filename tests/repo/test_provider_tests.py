"""No code outside `providers` tests what a provider is: it asks the kind, or the port."""

from __future__ import annotations

import ast

import pytest
from tools.provider_tests import places, type_tests


def test_nobody_tests_the_type_or_the_class_of_a_provider():
    assert places() == []


@pytest.mark.parametrize(
    ("code", "count"),
    [
        ("if config.provider.type == 'aws': pass", 1),
        ("kind = config.provider.type", 1),
        ("data['provider']['type'] == 'aws'", 1),
        ("record.provider.get('type')", 1),
        ("isinstance(provider, V1Adapter)", 1),
        ("getattr(self._port, 'v1') or hasattr(engine, 'x')", 2),
        ("f'{config.provider.type}'", 0),
        ("ProviderConfig(type=config.provider.type)", 0),
        ("isinstance(value, dict) and event.type", 0),
    ],
)
def test_the_tool_finds_each_form(code, count):
    assert len(list(type_tests(ast.parse(code)))) == count
