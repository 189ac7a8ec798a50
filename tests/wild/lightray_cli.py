"""The command line of lightray: jsonargparse reads the signatures of ray.init, RunConfig and TuneConfig."""

import muster.as_ray  # first: what follows imports ray

import os
import sys
import tempfile

import torch
from lightning import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningCLI
from lightray.cli import cli


class Model(LightningModule):
    def __init__(self, learning_rate: float = 0.01):
        super().__init__()
        self.layer, self.learning_rate = torch.nn.Linear(2, 1), learning_rate

    def training_step(self, batch, _):
        return self.layer(batch[0]).pow(2).mean()

    def validation_step(self, batch, _):
        self.log("val_loss", self.layer(batch[0]).pow(2).mean())

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), self.learning_rate)


class Data(LightningDataModule):
    def train_dataloader(self):
        return torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.ones(8, 2)), batch_size=4)

    val_dataloader = train_dataloader


class SmallCLI(LightningCLI):
    def __init__(self, *args, **kwargs):
        super().__init__(Model, Data, *args, **kwargs)


if __name__ == "__main__":
    sys.modules["lightray_cli"] = sys.modules["__main__"]
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    results = cli(
        [
            "--lightning_cli_cls=lightray_cli.SmallCLI",
            f"--run_config.storage_path={folder}",
            "--run_config.name=search",
            "--run_config.verbose=0",
            "--tune_config.num_samples=2",
            "--tune_config.metric=val_loss",
            "--tune_config.mode=min",
            "--tune_callback=lightray.callbacks.LightRayReportCheckpointCallback",
            "--tune_callback.on=validation_end",
            "--ray_init.num_cpus=2",
            "--param_space={model.learning_rate: 'tune.loguniform(1e-4, 1e-1)'}",
            "--",
            "--trainer.max_epochs=1",
            "--trainer.accelerator=cpu",
            "--trainer.logger=CSVLogger",
            "--trainer.logger.save_dir=logs",
            "--trainer.enable_progress_bar=false",
        ]
    )
    print("RESULT", results.num_errors, len(results))
    sys.exit(results.num_errors)
