"""Evaluate the text of IAM policies, as far as muster's own use the language: a simulation without AWS.

Explicit denials, variables and other operators are not needed here, and refused.
"""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any


def is_allowed(
    policy: Mapping[str, Any], action: str, resource: str = "*", context: Mapping[str, str] | None = None
) -> bool:
    """Return whether some statement allows the action on the resource; `context` is of the request."""
    return any(_grants(one, action, resource, context or {}) for one in policy["Statement"])


def _grants(statement: Mapping[str, Any], action: str, resource: str, context: Mapping[str, str]) -> bool:
    known = {"Effect", "Action", "Resource", "NotResource", "Condition"}
    assert statement["Effect"] == "Allow" and set(statement) <= known, statement
    if not _fits(statement["Action"], action):
        return False
    if "NotResource" in statement:
        is_meant = not _fits(statement["NotResource"], resource)
    else:
        is_meant = _fits(statement["Resource"], resource)
    return is_meant and _holds(statement.get("Condition", {}), context)


def _holds(conditions: Mapping[str, Any], context: Mapping[str, str]) -> bool:
    assert set(conditions) <= {"StringEquals"}, conditions
    wanted = conditions.get("StringEquals", {})
    return all(context.get(key) in _listed(values) for key, values in wanted.items())


def _fits(patterns: str | list[str], text: str) -> bool:
    return any(fnmatchcase(text, one) for one in _listed(patterns))


def _listed(values: str | list[str]) -> list[str]:
    return [values] if isinstance(values, str) else list(values)
