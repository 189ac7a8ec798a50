"""muster on a host: by real commands of bash and pip, on a home of the test's own."""

from __future__ import annotations

import asyncio
import sys
import sysconfig

import pytest
from tests.mistakes.views import assert_line
from tests.remote.local_runner import LocalRunner

import muster
from muster.errors import RemoteError
from muster.remote.install import (
    HostPython,
    InstallRequest,
    MusterInstaller,
    fits,
    has_ours,
    in_home,
    parse_probe,
    pip_command,
    probe_command,
)
from muster.remote.wheels import running_digest


def python(**changes):
    known = {"executable": "/p", "version": (3, 11), "platform": "linux-x86_64", "home": "/srv/u"}
    return HostPython(**{**known, **changes})


def request(tmp_path, **changes):
    return InstallRequest(
        directory="~/clusters/it's", python=sys.executable, extras=(), cache=tmp_path / "cache", **changes
    )


def test_of_a_release_the_version_is_enough_and_of_a_source_tree_the_files_count():
    there = python(muster_version=muster.__version__, digest="one")
    cases = [
        (there, "two", True),
        (there, "two", False),
        (there, "one", False),
        (python(), "", True),
        (None, "", True),
    ]
    found = [has_ours(one, digest=digest, is_release=is_release) for one, digest, is_release in cases]
    assert found == [True, False, True, False, False]


def test_wheels_of_another_python_or_platform_are_refused_in_a_sentence_that_names_both():
    here = python(version=sys.version_info[:2], platform=sysconfig.get_platform())
    assert fits(here) == ""
    refusal = fits(python(version=(3, 7), platform="linux-s390x"))
    assert " 3.7, linux-s390x" in refusal and sysconfig.get_platform() in refusal


def test_paths_and_arguments_are_quoted_except_the_users_home():
    assert in_home("~/a b/$(x)") == "\"$HOME\"/'a b/$(x)'"
    assert in_home("/a;b") == "'/a;b'"
    assert pip_command("/p", "a;b", index=False).endswith("--no-index 'a;b'")


def test_the_probe_of_a_python_that_is_not_there_says_nothing(tmp_path):
    runner = LocalRunner(tmp_path)
    assert parse_probe(asyncio.run(runner.run(probe_command("/no/such/python")))) is None
    assert parse_probe("a banner\n") is None


def test_a_python_that_has_this_muster_is_left_alone(tmp_path):
    runner = LocalRunner(tmp_path)
    done = asyncio.run(MusterInstaller(runner, request(tmp_path)).run())
    assert (done.python, done.source) == (sys.executable, "there already")
    found = parse_probe(asyncio.run(runner.run(probe_command(sys.executable))))
    assert found.digest == running_digest()
    assert list(tmp_path.iterdir()) == []


def test_a_host_without_python_is_named_with_what_to_do(tmp_path):
    wanted = InstallRequest(directory="~/x", python="python9", cache=tmp_path)
    with pytest.raises(RemoteError, match="python9"):
        asyncio.run(MusterInstaller(LocalRunner(tmp_path), wanted).run())


@pytest.mark.slow
def test_muster_gets_into_a_venv_of_the_cluster_and_what_it_needs_comes_as_wheels(tmp_path):
    """The base is a venv without anything, so that every dependency is lacking there; no index is asked."""
    import subprocess

    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(tmp_path / "bare")], check=True)
    runner = LocalRunner(tmp_path, {"PYTHONPATH": ""})
    wanted = InstallRequest(
        directory="~/clusters/it's",
        python=str(tmp_path / "bare" / "bin" / "python"),
        extras=(),
        index=False,
        cache=tmp_path / "cache",
    )
    steps = []
    done = asyncio.run(MusterInstaller(runner, wanted, steps.append).run())
    assert done.python == f"{tmp_path}/clusters/it's/venv/bin/python"
    assert done.source == "wheels of this computer"
    assert_line("remote", "install from wheels", steps[-1])
    ran = subprocess.run(
        [done.python, "-m", "muster", "sim", "--help"], capture_output=True, text=True, check=True
    )
    assert "tune" in ran.stdout
    again = asyncio.run(MusterInstaller(LocalRunner(tmp_path), wanted).run())
    assert again.source == "there already"
