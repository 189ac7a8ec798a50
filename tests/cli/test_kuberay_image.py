"""The recipe of the sidecar's image builds, and a login shell cannot hide muster's command."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from tests.containers import _LINKS

ROOT = Path(__file__).parents[2]
RAY_BIN = "/".join(("", "home", "ray", "bin"))  # in Ray's image
CONF = """[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[engine]
runtime = "runc"
cgroup_manager = "cgroupfs"
"""
PIP = f"""#!/bin/sh
cd {RAY_BIN}
printf '#!/bin/sh\\nPYTHONPATH={ROOT}/src exec {sys.executable} -m muster.cli.main "$@"\\n' > muster
chmod 755 muster
"""
RAY = "#!/bin/sh\necho Ray itself: $*\n"


def root_file_system(folder, profile):
    """An image as Ray's, small: its programs are those of this machine, its `pip` brings this muster."""
    for name in ("tmp", "proc", "dev", "sys", "run", "var/tmp", "usr", "etc", "home/ray/bin", "root"):
        (folder / name).mkdir(parents=True)
    for name in _LINKS:
        if os.path.islink(f"/{name}"):
            os.symlink(os.readlink(f"/{name}"), folder / name)
    for name, text in (("pip", PIP), ("ray", RAY)):
        (folder / "home" / "ray" / "bin" / name).write_text(text)
        (folder / "home" / "ray" / "bin" / name).chmod(0o755)
    (folder / "etc" / "profile").write_text(profile)
    return folder


class Podman:
    """podman with storage of its own."""

    def __init__(self, folder):
        (folder / "containers.conf").write_text(CONF)
        self._environment = {**os.environ, "CONTAINERS_CONF": str(folder / "containers.conf")}
        self._storage = [
            "--root",
            str(folder / "s"),
            "--runroot",
            str(folder / "r"),
            "--storage-driver",
            "vfs",
        ]

    def run(self, *arguments, **options):
        command = ["podman", *self._storage, *arguments]
        return subprocess.run(
            command, env=self._environment, capture_output=True, text=True, check=False, **options
        )


@pytest.fixture
def build(tmp_path, request):
    if shutil.which("podman") is None or shutil.which("runc") is None:
        pytest.skip("no containers: podman or runc is missing")

    def make(profile):
        short = Path(tempfile.mkdtemp(prefix="pm-"))  # podman refuses long paths
        request.addfinalizer(lambda: shutil.rmtree(short, ignore_errors=True))
        podman, tree = Podman(short), root_file_system(tmp_path / "rootfs", profile)
        subprocess.run(["tar", "-C", tree, "-cf", tmp_path / "image.tar", "."], check=True)
        path = f"ENV PATH={RAY_BIN}:/usr/bin:/bin:/usr/sbin"
        imported = podman.run("import", "--change", path, str(tmp_path / "image.tar"), "localhost/ray:1")
        if imported.returncode != 0:
            pytest.skip(f"no containers: podman import says {imported.stderr.strip()}")
        folders = {"/usr", str(ROOT), sys.prefix, str(Path(sys.base_prefix).resolve())}
        folders |= {str(Path(sys.executable).resolve().parents[1]), *map(os.path.realpath, sys.path[1:])}
        mounts = [part for one in sorted(folders) if os.path.isdir(one) for part in ("-v", f"{one}:{one}:ro")]
        recipe = [
            "-f",
            str(ROOT / "deploy" / "kuberay" / "Dockerfile"),
            "--build-arg",
            "RAY_IMAGE=localhost/ray:1",
        ]
        done = podman.run(
            *("build", "--network=host", "--layers=false", *recipe, *mounts, "-t", "localhost/m:1", str(ROOT))
        )
        return podman, mounts, done

    return make


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_image_builds_and_every_shell_starts_muster(build):
    podman, mounts, done = build(f"PATH={RAY_BIN}:/usr/bin:/bin\n")  # as Ray's image: without /opt
    assert done.returncode == 0, done.stdout + done.stderr
    for shell in ("-c", "-lc"):
        for command, part in (
            ("ray kuberay-autoscaler --help", "--termination-log"),
            ("ray up x", "Ray itself"),
        ):
            ran = podman.run(
                "run", "--rm", "--network=host", *mounts, "localhost/m:1", "bash", shell, command
            )
            assert part in ran.stdout, ran.stdout + ran.stderr


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_an_image_whose_login_shell_finds_another_ray_does_not_build(build):
    _, _, done = build("PATH=/usr/bin:/bin\nray() { echo Ray itself; }\nexport -f ray\n")
    assert done.returncode != 0
    assert "not muster's" in done.stdout + done.stderr
