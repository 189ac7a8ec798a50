"""Wheels of what runs here: valid, complete, the same every time, and accepted by pip in a fresh venv."""

from __future__ import annotations

import subprocess
import sys
import zipfile

import pytest

import muster
from muster.errors import RemoteError
from muster.remote import wheels


def fresh_venv(folder):
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(folder)], check=True)
    return folder / "bin" / "python"


def pip_install(python, *arguments):
    command = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    subprocess.run([*command, *map(str, arguments)], check=True)


def output_of(*command):
    return subprocess.run(list(map(str, command)), check=True, capture_output=True, text=True).stdout.strip()


def test_a_wheel_of_the_source_tree_has_every_module_and_the_entry_points(tmp_path):
    made = wheels.muster_wheel(tmp_path)
    with zipfile.ZipFile(made.path) as archive:
        names = archive.namelist()
        record = archive.read(f"muster_ml-{muster.__version__}.dist-info/RECORD").decode()
    assert made.path.name == f"muster_ml-{muster.__version__}-py3-none-any.whl"
    assert {"muster/__init__.py", "muster/py.typed", "muster/config/machine_sizes.txt"} <= set(names)
    assert not [name for name in names if name.endswith(".pyc") or "__editable__" in name]
    assert [line.split(",")[0] for line in record.splitlines()] == names
    assert f"muster_ml-{muster.__version__}.dist-info/entry_points.txt" in names


def test_the_same_files_make_the_same_wheel(tmp_path):
    first, second = (wheels.repacked("click", tmp_path / name).path.read_bytes() for name in "ab")
    assert first == second


def test_what_is_needed_is_found_without_reading_markers():
    needed, with_ray = wheels.closure(), wheels.closure(["ray"])
    assert {"click", "msgspec", "numpy", "rich", "mdurl"} <= set(needed)  # mdurl: of rich's markdown-it-py
    assert "ray" not in needed
    assert {"ray", "prometheus_client", *needed} <= set(with_ray)
    assert "muster_ml" not in with_ray


def test_a_distribution_that_is_not_installed_is_named():
    with pytest.raises(RemoteError, match="no-such-thing runs here without being installed"):
        wheels.repacked("no-such-thing", None)


def test_a_source_tree_that_is_installed_in_place_is_not_repacked_as_a_dependency(tmp_path):
    with pytest.raises(RemoteError, match=r"muster-ml is installed here as an editable source tree"):
        wheels.repacked("muster-ml", tmp_path)


@pytest.mark.slow
def test_a_fresh_venv_runs_the_wheel_and_its_own_files_make_the_same_muster_again(tmp_path):
    """The second wheel is made by the installed muster, where there is no source tree."""
    made, click = wheels.muster_wheel(tmp_path / "a"), wheels.repacked("click", tmp_path / "a")
    msgspec = wheels.repacked("msgspec", tmp_path / "a")
    first = fresh_venv(tmp_path / "first")
    pip_install(first, "--no-deps", made.path, click.path, msgspec.path)
    assert output_of(first, "-m", "muster", "--version") == f"muster {muster.__version__}"
    assert output_of(tmp_path / "first" / "bin" / "muster", "--version") == f"muster {muster.__version__}"
    again = (
        "import sys, pathlib; from muster.remote import wheels; assert wheels.source_tree() is None;"
        "print(wheels.muster_wheel(pathlib.Path(sys.argv[1])).path, wheels.running_digest())"
    )
    path, digest = output_of(first, "-c", again, tmp_path / "b").split()
    assert digest == wheels.running_digest()
    with zipfile.ZipFile(made.path) as one, zipfile.ZipFile(path) as other:
        assert {name: one.read(name) for name in one.namelist()} == {
            name: other.read(name) for name in other.namelist()
        }
