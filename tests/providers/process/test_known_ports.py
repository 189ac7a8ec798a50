"""A raylet finds the port of its agent where the agent would write it."""

from __future__ import annotations

from muster.host.ports import new_ray_node_id, session_name, write_agent_port


def test_a_session_has_a_name_once_its_head_has_begun(tmp_path) -> None:
    before = session_name(tmp_path)
    (tmp_path / "session_latest").symlink_to(tmp_path / "session_7")
    assert (before, session_name(tmp_path)) == (None, "session_7")


def test_the_port_is_written_once_and_what_the_agent_wrote_stays(tmp_path) -> None:
    node, session = new_ray_node_id(), tmp_path / "session_7"
    write_agent_port(session, node, 4711)
    write_agent_port(session, node, 4712)
    assert {file.name: file.read_text() for file in session.iterdir()} == {
        f"dashboard_agent_listen_port_{node}": "4711"
    }
    assert (len(node), int(node, 16) > 0) == (56, True)
