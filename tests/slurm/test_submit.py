"""What `muster tune submit` does with a job that Slurm accepts and never starts."""

from __future__ import annotations

import pytest

from muster.cli.tune.submit import submitted
from muster.slurm.config import SlurmConfig
from muster.slurm.jobs import SlurmJob
from muster.slurm.wire import SlurmRefused, SlurmUnreachable


class OneJob:
    def __init__(self, reason, errors=()):
        self.job = SlurmJob(job_id="7", state="PENDING", reason=reason)
        self.cancelled, self.errors = [], dict(errors)

    def sbatch(self, options, script):
        self._fail("sbatch")
        return "7"

    def squeue(self):
        self._fail("squeue")
        return [SlurmJob(job_id="6", state="PENDING", reason="PartitionConfig"), self.job]

    def scancel(self, job_ids):
        self.cancelled += job_ids

    def _fail(self, name):
        if name in self.errors:
            raise self.errors[name]


@pytest.fixture
def submit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return lambda wire: submitted(tmp_path / "train.py", ["--x", "a b"], SlurmConfig(), wire)


@pytest.mark.parametrize("reason", ["PartitionConfig", "PartitionTimeLimit", "AssocMaxCpuPerJobLimit"])
def test_a_job_that_never_starts_is_cancelled_and_explained(submit, tmp_path, reason):
    wire = OneJob(reason)
    with pytest.raises(SlurmRefused) as caught:
        submit(wire)
    assert reason in str(caught.value) and caught.value.fix
    assert (wire.cancelled, list((tmp_path / "muster-jobs").iterdir())) == (["7"], [])


@pytest.mark.parametrize("reason", ["", "Priority", "Resources", "JobHeldUser"])
def test_a_job_that_waits_for_its_turn_or_is_held_by_its_user_stays(submit, tmp_path, reason):
    wire = OneJob(reason)
    assert any("7" in line for line in submit(wire))
    (folder,) = (tmp_path / "muster-jobs").iterdir()
    assert (wire.cancelled, (folder / "jobs").read_text()) == ([], "7\n")


def test_a_refused_submission_leaves_no_directory_and_a_lost_list_none_too_few(submit, tmp_path):
    with pytest.raises(SlurmRefused):
        submit(OneJob("", {"sbatch": SlurmRefused("sbatch: Invalid account")}))
    assert list((tmp_path / "muster-jobs").iterdir()) == []
    submit(OneJob("PartitionConfig", {"squeue": SlurmUnreachable("no answer")}))
    assert len(list((tmp_path / "muster-jobs").iterdir())) == 1
