"""AutoMLP of neuralforecast on Ray: 3 trials, fit, predict; then its conversion of a space for Optuna."""

import muster.as_ray  # first: what follows imports ray

import logging

import numpy as np
import optuna
import pandas as pd
from neuralforecast import NeuralForecast
from neuralforecast.auto import AutoMLP
from neuralforecast.common._base_auto import RayOptions
from ray import tune


logging.getLogger("pytorch_lightning").setLevel(logging.ERROR)

if __name__ == "__main__":
    times = pd.date_range("2024-01-01", periods=60, freq="D")
    frame = pd.DataFrame({"unique_id": "a", "ds": times, "y": np.sin(np.arange(60) / 5)})
    config = {
        "input_size": tune.choice([4, 8]),
        "hidden_size": tune.choice([8, 16]),
        "learning_rate": tune.loguniform(1e-4, 1e-1),
        "max_steps": 5,
        "val_check_steps": 2,
        "accelerator": "cpu",
        "logger": False,
        "enable_progress_bar": False,
    }
    model = AutoMLP(h=4, config=config, num_samples=3, ray_options=RayOptions(cpus=1, gpus=0))
    forecast = NeuralForecast(models=[model], freq="D")
    forecast.fit(frame)
    print("RESULT ray", len(forecast.predict()))
    # Its conversion of a Ray space for Optuna reads the samplers by Ray's private names.
    space = AutoMLP.get_default_config(h=4, backend="optuna")
    print("RESULT optuna", sorted(space(optuna.create_study().ask()))[:3])
