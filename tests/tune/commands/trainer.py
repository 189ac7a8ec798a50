"""A training script for tests: reports its loss in one of nine ways, saves every step, fails if asked to."""
# ruff: noqa: T201

import argparse
import json
import os
import socket
import subprocess
import sys
import time

from trainer_events import event


class Reporter:
    def __init__(self, way, out):
        self.way, self.out = way, out

    def __call__(self, step, loss, saved):
        return getattr(self, self.way)(step, loss, saved)

    def python(self, step, loss, saved):
        from muster import tune

        tune.report({"loss": loss}, checkpoint=tune.Checkpoint(saved))

    def shell(self, step, loss, saved):
        words = [sys.executable, "-m", "muster", "report", f"loss={loss}", "--checkpoint", saved]
        if subprocess.run(words, check=False).returncode == 3:
            sys.exit(0)

    def socket(self, step, loss, saved):
        if not hasattr(self, "stream"):
            connection = socket.socket(socket.AF_UNIX)
            connection.connect(os.environ["MUSTER_REPORT_TO"])
            self.stream = connection.makefile("rw")
        self.stream.write(json.dumps({"metrics": {"loss": loss}, "checkpoint": saved}) + "\n")
        self.stream.flush()
        if self.stream.readline() != "c\n":
            sys.exit(0)

    def lines(self, step, loss, saved):
        print("some text", json.dumps({"other": 1}))
        print(json.dumps({"loss": loss}))

    def regex(self, step, loss, saved):
        print(f"\rstep {step}: \x1b[1mvalidation loss is {loss}\x1b[0m", end="\r")

    def jsonl(self, step, loss, saved):
        with open(f"{self.out}/m.jsonl", "a") as stream:
            stream.write(json.dumps({"loss": loss}) + "\n")

    def csv(self, step, loss, saved):
        is_new = not os.path.exists(f"{self.out}/m.csv")
        with open(f"{self.out}/m.csv", "a") as stream:
            stream.write(("step,loss\n" if is_new else "") + f"{step},{loss}\n")

    def tensorboard(self, step, loss, saved):
        os.makedirs(f"{self.out}/tb", exist_ok=True)
        with open(f"{self.out}/tb/events.out.tfevents.{os.getpid()}", "ab") as stream:
            stream.write(event(step, "loss", loss))

    def json(self, step, loss, saved):
        with open(f"{self.out}/final.json", "w") as stream:
            json.dump({"loss": loss}, stream)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--way")
    parser.add_argument("--x", type=float)
    parser.add_argument("--steps", type=int)
    parser.add_argument("--out")
    parser.add_argument("--checkpoint")
    parser.add_argument("--resume", default="")
    parser.add_argument("--fail-at", type=int, default=-1)
    parser.add_argument("--pause", type=float, default=0.0)
    given = parser.parse_args()
    first = 0
    if given.resume:
        with open(os.path.join(given.resume, "step")) as stream:
            first = int(stream.read())
    report = Reporter(given.way, given.out)
    last = min(given.steps, 4) if given.way == "json" else given.steps  # reports at its end only
    for step in range(first, last):
        if step == given.fail_at and not given.resume:
            print("out of luck", file=sys.stderr)
            sys.exit(1)
        saved = f"{given.checkpoint}/step-{step}"
        os.makedirs(f"{saved}.tmp", exist_ok=True)
        with open(f"{saved}.tmp/step", "w") as stream:
            stream.write(str(step + 1))
        time.sleep(0.01)  # a kernel's tick: the name is younger than the content
        os.rename(f"{saved}.tmp", saved)
        report(step, given.x / 2**step, saved)
        time.sleep(given.pause)


main()
