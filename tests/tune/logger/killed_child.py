"""Logs rows until it is killed; run by test_killed.py with a directory as its argument."""

from __future__ import annotations

import sys

from tests.tune.logger.logging_scene import Scene, make_trial


def main() -> None:
    scene, trial = Scene(sys.argv[1], flush_every_s=0.001), make_trial()
    scene.start(trial)
    iteration = 0
    while True:
        iteration += 1
        scene.report(trial, iteration, loss=iteration * 0.37, text="a,\n" * 50)


if __name__ == "__main__":
    main()
