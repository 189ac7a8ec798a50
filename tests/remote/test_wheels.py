"""Wheels of what runs here: valid, complete, the same every time, and accepted by pip in a fresh venv."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile

import pytest
from tests.mistakes.views import assert_line

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
    assert {"muster/__init__.py", "muster/py.typed", "muster/providers/machine_sizes.txt"} <= set(names)
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
    with pytest.raises(RemoteError, match=r"^no-such-thing "):
        wheels.repacked("no-such-thing", None)


def test_a_source_tree_that_is_installed_in_place_is_not_repacked_as_a_dependency(tmp_path):
    with pytest.raises(RemoteError) as refused:
        wheels.repacked("muster-ml", tmp_path)
    assert_line("remote", "editable dependency", str(refused.value))


def test_programs_scripts_and_data_files_keep_their_places_and_permissions(tmp_path, monkeypatch):
    """A distribution as pip leaves it: in lib/python3/site-packages, with files beside it."""
    site = tmp_path / "lib" / "python3" / "site-packages"
    info = site / "odd_name-1.2.dist-info"
    files = {
        site / "odd" / "__init__.py": "",
        site / "odd" / "__pycache__" / "x.pyc": "",
        site / "odd" / "server": "binary",
        tmp_path / "bin" / "odd-tool": f"#!{tmp_path}/bin/python\nprint(1)\n",
        tmp_path / "bin" / "odd-entry": "made by pip",
        tmp_path / "share" / "odd" / "data": "1",
        info / "METADATA": "Metadata-Version: 2.1\nName: odd.name\nVersion: 1.2\n",
        info / "WHEEL": "Wheel-Version: 1.0\nTag: py2-none-any\nTag: py3-none-any\n",
        info / "entry_points.txt": "[console_scripts]\nodd-entry = odd:main\n",
        info / "INSTALLER": "pip",
    }
    for path, text in files.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (site / "odd" / "server").chmod(0o755)
    (info / "RECORD").write_text("".join(f"{os.path.relpath(path, site)},,\n" for path in files))
    monkeypatch.syspath_prepend(str(site))
    made = wheels.repacked("odd.name", tmp_path / "out")
    assert made.path.name == "odd_name-1.2-py2.py3-none-any.whl"
    with zipfile.ZipFile(made.path) as archive:
        found = {one.filename: one.external_attr >> 16 for one in archive.infolist()}
        assert archive.read("odd_name-1.2.data/scripts/odd-tool") == b"#!python\nprint(1)\n"
    assert found == {
        "odd/__init__.py": 0o100644,
        "odd/server": 0o100755,
        "odd_name-1.2.data/data/share/odd/data": 0o100644,
        "odd_name-1.2.data/scripts/odd-tool": 0o100755,
        "odd_name-1.2.dist-info/METADATA": 0o100644,
        "odd_name-1.2.dist-info/RECORD": 0o100644,
        "odd_name-1.2.dist-info/WHEEL": 0o100644,
        "odd_name-1.2.dist-info/entry_points.txt": 0o100644,
    }


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
