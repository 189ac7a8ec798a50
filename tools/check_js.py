"""Check the types of the page's modules with `tsc --checkJs`, where Node is there; else says why not.

Run by `make types`. TypeScript comes from npm by its name and version into the user's cache: the clone gets
no node_modules and no lock file.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PROJECT = ROOT / "tools" / "js" / "tsconfig.json"
VERSION = "5.9.3"
INSTALL_LIMIT_S = 180


def main() -> int:
    """Return tsc's exit code; 0, with the reason, where it cannot run."""
    compiler, reason = find_compiler()
    if compiler is None:
        sys.stdout.write(f"types of the page's scripts were not checked: {reason}\n")
        return 0
    done = subprocess.run(["node", compiler, "--pretty", "false", "-p", PROJECT], check=False, cwd=ROOT)
    return done.returncode


def find_compiler() -> tuple[Path | None, str]:
    """Return where tsc is, which is installed on first use, and why there is none."""
    if shutil.which("node") is None or shutil.which("npm") is None:
        return None, "there is no Node here (apt install nodejs npm)"
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / f"muster-typescript-{VERSION}"
    compiler = home / "node_modules" / "typescript" / "bin" / "tsc"
    if compiler.exists():
        return compiler, ""
    wanted = ("--no-save", "--no-package-lock", "--no-audit", "--no-fund", "--ignore-scripts")
    command = ["npm", "install", "--prefix", str(home), *wanted, f"typescript@{VERSION}"]
    try:
        home.mkdir(parents=True, exist_ok=True)
        done = subprocess.run(command, capture_output=True, text=True, timeout=INSTALL_LIMIT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"npm could not install typescript {VERSION} ({type(error).__name__})"
    if done.returncode or not compiler.exists():
        return None, f"npm could not install typescript {VERSION}: is the registry reachable?"
    return compiler, ""


if __name__ == "__main__":
    sys.exit(main())
