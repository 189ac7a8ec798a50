"""A container image for tests on hosts, made without a registry: the programs of this machine are mounted.

`make_image(hosts, host)` imports it on a host and returns its name; with `machine_options()` as options, a
container can run this machine's bash, Python, Ray and muster. The containers of a host end with it.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.hosts import ROOT, SEARCH, Hosts, NamespaceHost

IMAGE = "localhost/muster-test:1"
HOME = "/box"
_LINKS = ("bin", "sbin", "lib", "lib64", "lib32", "libx32")


def make_image(hosts: Hosts, host: NamespaceHost) -> str:
    """Skip the test where podman is missing or does not work."""
    for program in ("podman", "runc"):
        if shutil.which(program, path=SEARCH) is None:
            pytest.skip(f"no containers: {program} is missing (apt-get install {program})")
    root = hosts.directory / "rootfs"
    if not root.exists():
        _make_root(root)
    subprocess.run(["tar", "-C", root, "-cf", host.path("/tmp/image.tar"), "."], check=True)
    change = ["--change", f"ENV HOME={HOME}", "--change", "ENV PATH=/usr/bin:/bin:/usr/sbin"]
    done = hosts.run_on(host, ["podman", "import", *change, "/tmp/image.tar", IMAGE])
    if done.returncode != 0:
        pytest.skip(f"no containers: podman import says {done.stderr.strip()}")
    return IMAGE


def machine_options() -> tuple[str, ...]:
    """Return options that mount what programs of this machine need, at the same paths."""
    folders = ["/usr", "/etc", *(f"/{name}" for name in _LINKS if Path(f"/{name}").is_dir())]
    folders = [folder for folder in folders if not os.path.islink(folder)]
    python = {
        Path(sys.prefix),
        Path(sys.base_prefix).resolve(),
        Path(sys.executable).resolve().parents[1],
        ROOT,
    }
    return (
        *(f"-v {folder}:{folder}:ro" for folder in folders),
        *(f"-v {one}:{one}" for one in sorted(python)),
    )


def _make_root(root: Path) -> None:
    for folder in ("tmp", "proc", "dev", "sys", "run", "var/tmp", "usr", "etc", HOME[1:]):
        (root / folder).mkdir(parents=True)
    for name in _LINKS:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), root / name)
