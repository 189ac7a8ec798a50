"""Provides what tests of muster, and of code built on it, share; never imported by the product itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.testing.provider_contract import ProviderContract
    from muster.testing.provider_contract.port import CloudProviderContract

__all__ = ["CloudProviderContract", "ProviderContract"]

__getattr__, __dir__ = lazy_names(
    __name__,
    {
        "CloudProviderContract": "muster.testing.provider_contract.port",
        "ProviderContract": "muster.testing.provider_contract",
    },
)
