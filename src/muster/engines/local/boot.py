"""How a helper or trial process starts: the text that its interpreter runs. Imports nothing."""

from __future__ import annotations

_TEXT = (
    "import sys; sys.path[:] = sys.argv[1].split(chr(10)); "
    "from muster.engines.local.{module} import main; main()"
)


def boot_code(module: str) -> str:
    """For `python -c`; the first argument is `sys.path`, by lines."""
    return _TEXT.format(module=module)
