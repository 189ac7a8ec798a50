"""scvi.autotune.run_autotune of scvi-tools: two samples, hyperopt and ASHA by default."""

import muster.as_ray  # first: what follows imports ray

import sys
import tempfile

import scvi
from ray import tune
from scvi import autotune

if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    scvi.settings.logging_dir = folder
    adata = scvi.data.synthetic_iid(batch_size=50, n_genes=20)
    scvi.model.SCVI.setup_anndata(adata)
    experiment = autotune.run_autotune(
        scvi.model.SCVI,
        adata,
        metrics=["elbo_validation"],
        mode="min",
        search_space={
            "model_params": {"n_hidden": tune.choice([4, 8])},
            "train_params": {"max_epochs": 1},
        },
        num_samples=2,
        seed=0,
        scheduler="asha",
        searcher="random",
        resources={"cpu": 1},
        ignore_reinit_error=True,
    )
    grid = experiment.result_grid
    print("RESULT", grid.num_errors, len(grid), [str(error) for error in grid.errors][:1])
    sys.exit(grid.num_errors)
