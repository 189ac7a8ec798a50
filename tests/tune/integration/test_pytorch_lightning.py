from __future__ import annotations

import pytest
from tests.tune.integration.recorded import recorded

lightning = pytest.importorskip(
    "lightning.pytorch", reason="pip install lightning (with torch too large for every CI run)"
)
torch = pytest.importorskip("torch", reason="pip install torch")

from muster.tune.integration.pytorch_lightning import (  # noqa: E402
    TuneReportCallback,
    TuneReportCheckpointCallback,
)

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # of Lightning's own code
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]


class Line(lightning.LightningModule):
    """Fits one number to zeros."""

    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.ones(1))

    def training_step(self, batch, index):
        return (self.weight**2).sum()

    def validation_step(self, batch, index):
        self.log("val_loss", (self.weight**2).sum())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.25)


def fit(tmp_path, *callbacks, epochs=3):
    batches = torch.utils.data.DataLoader(torch.zeros(1, 1))
    trainer = lightning.Trainer(
        max_epochs=epochs,
        callbacks=list(callbacks),
        accelerator="cpu",
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        default_root_dir=str(tmp_path),
    )
    model = Line()
    trainer.fit(model, batches, batches)
    return model


def test_each_validation_is_reported_with_a_checkpoint_but_not_the_sanity_check(tmp_path):
    with recorded(tmp_path) as session:
        model = fit(tmp_path, TuneReportCheckpointCallback({"loss": "val_loss"}, filename="m.ckpt"))
    assert session.reports == [{"loss": 0.25}, {"loss": 0.0625}, {"loss": 0.015625}]
    assert session.files() == {1: ["m.ckpt"], 2: ["m.ckpt"], 3: ["m.ckpt"]}
    saved = torch.load(f"{session.checkpoints[3].path}/m.ckpt", weights_only=False)
    assert saved["state_dict"]["weight"] == model.weight


def test_it_may_report_only_and_at_other_events(tmp_path):
    with recorded(tmp_path) as session:
        fit(tmp_path, TuneReportCallback(["val_loss"], on=["train_epoch_end", "train_end"]), epochs=2)
    assert [sorted(each) for each in session.reports] == [["val_loss"]] * 3
    assert session.files() == {}


def test_checkpoints_can_be_left_out(tmp_path):
    with recorded(tmp_path) as session:
        fit(tmp_path, TuneReportCheckpointCallback(save_checkpoints=False), epochs=1)
    assert (session.reports, session.files()) == ([{"val_loss": 0.25}], {})


def test_an_event_that_does_not_exist_is_refused():
    with pytest.raises(ValueError, match="on=epoch_done"):
        TuneReportCheckpointCallback(on="epoch_done")
