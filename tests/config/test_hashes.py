from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.mistakes.views import assert_line

from muster.config.document import Document
from muster.config.node_launch import contents_hash, head_runtime_hashes, worker_runtime_hashes
from muster.config.schema import ClusterConfig
from muster.config.to_spec import canonical_json, launch_hash
from muster.errors import ConfigError
from muster.providers.kind import parse_config


def parsed(more: str) -> ClusterConfig:
    return parse_config(Document(f"provider: {{type: aws}}\n{more}", "c.yaml"))


# ---- launch hash


def test_a_launch_hash_is_one_known_text():
    assert launch_hash({"InstanceType": "m5.large"}, {"ssh_user": "ubuntu"}) == (
        # sha256 of [{"InstanceType":"m5.large"},{"ssh_user":"ubuntu"}], by another tool
        "pcugdj9di8julk2d2obel1mqvv6f6fgmmesu28q87qne81dkgb8g"
    )


def test_a_launch_hash_fits_a_tag():
    assert re.fullmatch(r"[0-9a-v]{52}", launch_hash({}, {}))


def test_the_order_of_keys_does_not_matter_but_every_value_does():
    same = launch_hash({"a": {"x": 1, "y": [1, 2]}, "b": 2}, {"u": "v"})
    assert launch_hash({"b": 2, "a": {"y": [1, 2], "x": 1}}, {"u": "v"}) == same
    others = [
        launch_hash({"a": {"x": 1, "y": [2, 1]}, "b": 2}, {"u": "v"}),
        launch_hash({"a": {"x": 1, "y": [1, 2]}, "b": 2}, {"u": "w"}),
        launch_hash({"a": {"x": 1, "y": [1, 2]}}, {"u": "v"}),
    ]
    assert len({same, *others}) == 4


def test_key_files_count_by_their_contents_and_missing_ones_by_their_path(tmp_path):
    first, second = tmp_path / "a", tmp_path / "b"
    first.write_text("key")
    second.write_text("key")
    by_contents = {launch_hash({}, {"ssh_private_key": str(path)}) for path in (first, second)}
    assert len(by_contents) == 1
    gone = [launch_hash({}, {"ssh_public_key": str(tmp_path / name)}) for name in ("x", "y")]
    assert len({*gone, *by_contents}) == 3


def test_a_launch_hash_stays_while_the_program_runs_though_the_key_file_changes(tmp_path):
    key = tmp_path / "key"
    key.write_text("one")
    before = launch_hash({}, {"ssh_private_key": str(key)})
    key.write_text("two")
    assert launch_hash({}, {"ssh_private_key": str(key)}) == before


def test_a_key_that_is_a_device_counts_by_its_path():
    assert launch_hash({}, {"ssh_private_key": "/dev/zero"}) != launch_hash(
        {}, {"ssh_private_key": "/dev/null"}
    )


def test_what_json_cannot_write_still_has_one_text():
    document = Document("{1: 2001-01-01, x: !!binary aGk=, null: 0x" + "f" * 90 + "}", "c.yaml")
    assert canonical_json(document.data).startswith('{"1":"2001-01-01","None":"0xfff')


# ---- runtime hash


def mounts(folder: Path) -> Path:
    (folder / "sub").mkdir(parents=True)
    (folder / "sub" / "b.txt").write_text("b")
    (folder / "a.txt").write_text("a")
    return folder


def test_equal_folders_have_equal_contents_wherever_they_are(tmp_path):
    one, two = mounts(tmp_path / "one"), mounts(tmp_path / "two")
    assert contents_hash({"/r": str(one)}, ()) == contents_hash({"/r": str(two)}, ())


@pytest.mark.parametrize(
    "edit",
    [
        lambda folder: (folder / "a.txt").write_text("A"),
        lambda folder: (folder / "a.txt").rename(folder / "c.txt"),
        lambda folder: (folder / "sub").rename(folder / "bus"),
        lambda folder: (folder / "empty").mkdir(),
        lambda folder: (folder / "sub" / "b.txt").unlink(),
    ],
)
def test_a_changed_file_name_or_folder_changes_the_contents(tmp_path, edit):
    one, two = mounts(tmp_path / "one"), mounts(tmp_path / "two")
    edit(two)
    assert contents_hash({"/r": str(one)}, ()) != contents_hash({"/r": str(two)}, ())


def test_links_to_folders_and_dead_links_are_not_followed(tmp_path):
    one, two = mounts(tmp_path / "one"), mounts(tmp_path / "two")
    (two / "circle").symlink_to(two)
    (two / "dead").symlink_to(tmp_path / "nowhere")
    assert contents_hash({"/r": str(one)}, ()) == contents_hash({"/r": str(two)}, ())


def test_synced_files_may_be_missing_and_mounts_may_not(tmp_path):
    contents_hash({}, (str(tmp_path / "no"),))
    with pytest.raises(ConfigError) as caught:
        contents_hash({"/r": str(tmp_path / "no")}, ())
    assert caught.value.path == "file_mounts./r"
    assert_line("config", "mount that is not here", str(caught.value).replace(str(tmp_path), "TMP"))


@pytest.mark.conformance("CF-1")
def test_cf_1_contents_are_hashed_only_when_asked_for(tmp_path):
    config = parsed(f"file_mounts: {{/r: {mounts(tmp_path / 'm')}}}\n")
    without = head_runtime_hashes(config, with_contents=False)
    assert without.contents is None
    with_them = head_runtime_hashes(config)
    assert with_them.contents == contents_hash(dict(config.file_mounts), ())
    assert with_them.runtime != without.runtime


def test_files_edited_later_do_not_change_the_hash_of_the_same_config(tmp_path):
    config = parsed(f"file_mounts: {{/r: {mounts(tmp_path / 'm')}}}\n")
    before = worker_runtime_hashes(config, "ray.worker.default")
    (tmp_path / "m" / "a.txt").write_text("edited")
    assert worker_runtime_hashes(config, "ray.worker.default") == before


def test_workers_depend_on_their_commands_and_the_head_on_everything():
    plain, idle, setup = (
        parsed(""),
        parsed("idle_timeout_minutes: 9\n"),
        parsed("worker_setup_commands: [x]\n"),
    )
    worker = "ray.worker.default"
    assert worker_runtime_hashes(plain, worker) == worker_runtime_hashes(idle, worker)
    assert worker_runtime_hashes(plain, worker) != worker_runtime_hashes(setup, worker)
    assert len({head_runtime_hashes(config).runtime for config in (plain, idle, setup)}) == 3
