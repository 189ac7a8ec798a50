"""YOLO.tune(use_ray=True) of ultralytics on a tiny dataset: random search, 2 trials of 1 epoch."""

import muster.as_ray  # first: what follows imports ray

import os
import sys
import tempfile

import numpy as np
from PIL import Image
from ray import tune


def dataset(folder):
    for part in ("train", "val"):
        os.makedirs(f"{folder}/images/{part}", exist_ok=True)
        os.makedirs(f"{folder}/labels/{part}", exist_ok=True)
        for number in range(4):
            pixels = np.random.default_rng(number).integers(0, 255, (32, 32, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(f"{folder}/images/{part}/{number}.png")
            with open(f"{folder}/labels/{part}/{number}.txt", "w") as stream:
                stream.write("0 0.5 0.5 0.4 0.4\n")
    with open(f"{folder}/data.yaml", "w") as stream:
        stream.write(f"path: {folder}\ntrain: images/train\nval: images/val\nnames:\n  0: thing\n")
    return f"{folder}/data.yaml"


if __name__ == "__main__":
    folder = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()
    os.chdir(folder)
    os.environ["YOLO_CONFIG_DIR"] = folder  # read at import; its results go there, not into this checkout
    from ultralytics import YOLO, settings

    settings.update(runs_dir=f"{folder}/runs")
    grid = YOLO("yolov8n.yaml").tune(
        data=dataset(f"{folder}/set"),
        use_ray=True,
        space={"lr0": tune.uniform(1e-4, 1e-2)},
        epochs=1,
        iterations=2,
        gpu_per_trial=0,
        imgsz=32,
        batch=2,
        device="cpu",
        workers=0,
        plots=False,
        val=True,
    )
    print("RESULT", grid.num_errors, len(grid), [str(error) for error in grid.errors][:1])
    sys.exit(grid.num_errors or len(grid) != 2)
