"""Provide what tests of muster, and of code built on it, share; never imported by the product itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from muster.base.lazy import lazy_names

if TYPE_CHECKING:
    from muster.testing.provider_contract import CloudProviderContract as CloudProviderContract
    from muster.testing.provider_contract import ProviderContract as ProviderContract
else:
    __getattr__, __dir__, __all__ = lazy_names(
        __name__, {".provider_contract": ["CloudProviderContract", "ProviderContract"]}
    )
