"""`chemprop hpopt` with 2 trials, a TorchTrainer with one worker in each."""

import subprocess
import sys
import tempfile
from pathlib import Path

if __name__ == "__main__":
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
    smiles = ["C" * n + end for n in range(1, 11) for end in ("O", "N", "Cl")]
    rows = [f"{each},{len(each) / 10}" for each in smiles]
    (folder / "data.csv").write_text("\n".join(["smiles,value", *rows]) + "\n")
    words = [
        sys.executable,
        "-m",
        "muster",
        "as-ray",
        "--",
        str(Path(sys.executable).parent / "chemprop"),
        "hpopt",
    ]
    words += ["-i", str(folder / "data.csv"), "--task-type", "regression", "--raytune-num-samples", "2"]
    words += [
        "--epochs",
        "3",
        "--warmup-epochs",
        "1",
        "--hpopt-save-dir",
        str(folder / "out"),
        "--accelerator",
        "cpu",
    ]
    words += [
        "--raytune-num-cpus",
        "4",  # on Ray, a trial and its worker take one each
        "--search-parameter-keywords",
        "depth",
        "--raytune-search-algorithm",
        "random",
    ]
    words += ["--raytune-trial-scheduler", "AsyncHyperBand", "--num-workers", "0"]
    done = subprocess.run(words, check=False)
    print("RESULT", done.returncode, sorted(path.name for path in (folder / "out").iterdir()))
    sys.exit(done.returncode)
