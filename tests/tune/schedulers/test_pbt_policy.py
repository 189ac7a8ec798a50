"""Policy files, and the schedule that is read from them."""

from __future__ import annotations

import json
import re

import pytest
from tests.tune.schedulers.pbt_world import World
from tests.tune.schedulers.test_pbt import LRS, pbt

from muster.trials.model import Trial
from muster.trials.plugins import ControllerView
from muster.trials.trial_index import TrialIndex
from muster.tune.schedulers import PopulationBasedTrainingReplay
from muster.tune.schedulers.pbt_policy import LogRow, PolicyLog


class Rows:
    """A scheduler that has only rows."""

    def __init__(self, *rows):
        self.rows = list(rows)

    def take_log_rows(self):
        rows, self.rows = self.rows, []
        return rows


def lines(path):
    return path.read_text().splitlines()


def write(directory, *rows, is_new=False):
    PolicyLog(Rows(*rows), str(directory), is_new=is_new).write()


ONE, TWO, THREE = LogRow(0, "a", "b", "one"), LogRow(1, "c", "a", "two"), LogRow(2, "a", "c", "three")


def test_a_trial_has_the_history_of_the_one_it_copied(tmp_path):
    write(tmp_path, ONE, TWO, THREE)
    assert lines(tmp_path / "pbt_global.txt") == ["one", "two", "three"]
    assert lines(tmp_path / "pbt_policy_a.txt") == ["one", "two", "three"]
    assert lines(tmp_path / "pbt_policy_c.txt") == ["one", "two"]
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "pbt_global.txt",
        "pbt_policy_a.txt",
        "pbt_policy_c.txt",
    ]


def test_rows_that_are_made_again_after_a_crash_are_written_once(tmp_path):
    write(tmp_path, ONE, TWO)
    with open(tmp_path / "pbt_global.txt", "a") as stream:
        stream.write("thr")  # a crash in the middle
    write(tmp_path, TWO, THREE)
    assert lines(tmp_path / "pbt_global.txt") == ["one", "two", "three"]
    assert lines(tmp_path / "pbt_policy_a.txt") == ["one", "two", "three"]


def test_a_row_is_not_doubled_when_the_crash_came_before_the_global_line(tmp_path):
    write(tmp_path, ONE)
    again = LogRow(1, "a", "b", "again")
    (tmp_path / "pbt_policy_a.txt").write_text("one\nagain\n")
    write(tmp_path, ONE, again)
    assert lines(tmp_path / "pbt_global.txt") == ["one", "again"]
    assert lines(tmp_path / "pbt_policy_a.txt") == ["one", "again"]  # b has no history, so a's continues


def test_a_new_experiment_does_not_go_on_with_an_old_file(tmp_path):
    write(tmp_path, ONE, TWO)
    write(tmp_path, LogRow(0, "x", "y", "new"), is_new=True)
    assert lines(tmp_path / "pbt_global.txt") == ["new"]
    assert not (tmp_path / "pbt_policy_a.txt").exists()


def test_a_full_disk_is_said_and_ends_nothing(tmp_path, caplog):
    write(tmp_path / "gone", ONE)
    (record,) = caplog.records
    assert str(tmp_path / "gone") in record.getMessage()


def population(tmp_path, **changes):
    world = World(pbt(**changes), LRS, end=24).run()
    PolicyLog(world.state.plugins.scheduler, str(tmp_path), is_new=True).write()
    return world


@pytest.mark.conformance("C-169")
@pytest.mark.parametrize("synch", [True, False])
def test_every_row_has_six_fields_and_replaying_them_gives_the_values_that_were_used(tmp_path, synch):
    world = population(tmp_path, synch=synch, resample_probability=0)
    rows = [json.loads(line) for line in lines(tmp_path / "pbt_global.txt")]
    assert [len(row) for row in rows] == [6] * len(rows)
    assert all("@" not in row[0] + row[1] for row in rows)
    checked = 0
    for trial in world.trials:
        path = tmp_path / f"pbt_policy_{trial.trial_id}.txt"
        if not path.exists():
            continue
        again = World(PopulationBasedTrainingReplay(str(path)), [0.0], end=24).run()
        (only,) = again.trials
        assert only.last_result["score"] == pytest.approx(trial.last_result["score"])
        assert only.config == trial.config
        assert only.experiment_tag.startswith(f"replay_{path.name}@perturbed[lr=")
        checked += 1
    assert checked > 1


def test_rows_are_made_only_when_wanted_and_saved_until_they_are_taken(tmp_path):
    assert World(pbt(log_config=False, synch=True), LRS).run().state.plugins.scheduler.take_log_rows() == []
    made = World(pbt(synch=True), LRS).run().state.plugins.scheduler
    restored = pbt(synch=True)
    restored.restore_state(made.save_state())
    rows = made.take_log_rows()
    assert restored.take_log_rows() == rows
    assert [row.number for row in rows] == list(range(len(rows)))
    assert made.take_log_rows() == []


# PopulationBasedTrainingReplay by itself


def policy(tmp_path, *rows):
    path = tmp_path / "pbt_policy_x.txt"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def test_only_rows_that_lead_to_the_last_one_count(tmp_path):
    replay = PopulationBasedTrainingReplay(
        policy(
            tmp_path,
            ["z", "y", 1, 1, {"v": -1}, {"v": -2}],
            ["a", "b", 3, 2, {"v": 0}, {"v": 1}],
            ["c", "a", 5, 4, {"v": 1}, {"v": 2}],
        )
    )
    assert replay.config == {"v": 0}
    assert [tuple(change) for change in replay._changes] == [(2, {"v": 1}), (4, {"v": 2})]


def test_without_a_policy_the_trial_keeps_its_own_configuration(tmp_path):
    replay = PopulationBasedTrainingReplay(policy(tmp_path))
    view = ControllerView(TrialIndex({"CPU": 1}), None)
    with pytest.raises(ValueError, match="param_space"):
        replay.on_trial_add(view, Trial("f", trial_id="a"))
    trial = Trial("f", trial_id="a", config={"v": 3})
    replay.on_trial_add(view, trial)
    assert trial.config == {"v": 3}
    assert replay.on_trial_result(view, trial, {"training_iteration": 9}) == "CONTINUE"


def test_a_second_trial_is_refused_and_a_configuration_replaced_with_a_warning(tmp_path, caplog):
    replay = PopulationBasedTrainingReplay(policy(tmp_path, ["a", "b", 3, 2, {"v": 0}, {"v": 1}]))
    view = ControllerView(TrialIndex({"CPU": 1}), None)
    trial = Trial("f", trial_id="a", config={"v": 3})
    replay.on_trial_add(view, trial)
    assert trial.config == {"v": 0}
    (record,) = caplog.records
    assert re.findall(r"{.*?}", record.getMessage()) == ["{'v': 3}", "{'v': 0}"]
    with pytest.raises(ValueError, match="PopulationBasedTrainingReplay"):
        replay.on_trial_add(view, Trial("f", trial_id="b"))


@pytest.mark.conformance("C-169")
@pytest.mark.parametrize(
    "content", ["no json\n", "[1, 2]\n", '["a", "b", 1, 1, 2, 3]\n', '["a", "b", 1, "x", {}, {}]\n']
)
def test_a_file_that_is_no_policy_is_refused_with_its_line(tmp_path, content):
    path = tmp_path / "policy.txt"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"policy\.txt"):
        PopulationBasedTrainingReplay(str(path))
    with pytest.raises(ValueError, match=r"missing\.txt"):
        PopulationBasedTrainingReplay(str(tmp_path / "missing.txt"))


def test_a_saved_replay_goes_on_where_it_stood(tmp_path):
    path = policy(
        tmp_path, ["a", "b", 3, 2, {"lr": 0.1}, {"lr": 1.0}], ["c", "a", 5, 4, {"lr": 1.0}, {"lr": 9}]
    )
    world = World(PopulationBasedTrainingReplay(path), [0.0], end=6)
    while world.state.plugins.scheduler.debug_string()[-17:] != "Step 2, perturb 1":
        world.step()
    again = PopulationBasedTrainingReplay(path)
    again.restore_state(world.state.plugins.scheduler.save_state())
    assert again.save_state() == world.state.plugins.scheduler.save_state()
    world.run()
    assert world.trials[0].last_result["score"] == pytest.approx(2 * 0.1 + 2 * 1.0 + 2 * 9)
