"""Run scripts and commands of users who err, several in one process; prints what each user would see.

Started as a program with the path of a JSON list: [[name, source of a script, or words of a command], ...].
A script runs as `__main__`, from a file and in a directory of its own; its traceback begins there.
"""

from __future__ import annotations

import json
import os
import runpy
import sys
import tempfile
import time
import traceback
from contextlib import contextmanager


@contextmanager
def captured():
    """Catch what this process and its children write to the terminal."""
    sys.stdout.flush(), sys.stderr.flush()
    before = os.dup(1), os.dup(2)
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        os.dup2(out.fileno(), 1), os.dup2(err.fileno(), 2)
        texts = {}
        try:
            yield texts
        finally:
            sys.stdout.flush(), sys.stderr.flush()
            for number, file in enumerate(before, 1):
                os.dup2(file, number)
                os.close(file)
            for name, stream in (("out", out), ("err", err)):
                stream.seek(0)
                texts[name] = stream.read().decode(errors="replace")


def run_script(path):
    """Return the traceback that Python would show; "" when the script ends well."""
    try:
        runpy.run_path(path, run_name="__main__")
    except BaseException as error:
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename != path:
            trace = trace.tb_next
        return "".join(traceback.format_exception(type(error), error, trace))
    return ""


def run_command(words):
    """Return the exit code of `muster <words>`, and the traceback of what it did not catch."""
    from muster.cli.main import main

    sys.argv = ["muster", *words]
    try:
        main()
    except SystemExit as end:
        return end.code or 0, ""
    except BaseException:
        return 1, traceback.format_exc()
    return 0, ""


def run(home, name, what):
    folder = os.path.join(home, name)
    os.makedirs(folder, exist_ok=True)
    os.chdir(folder)
    os.environ.pop("TUNE_ORIG_WORKING_DIR", None)  # it is noted once per process
    started = time.process_time()
    code, trace = 0, ""
    with captured() as texts:
        if isinstance(what, str):
            path = os.path.join(folder, "script.py")
            with open(path, "w", encoding="utf-8") as stream:
                stream.write(what)
            trace = run_script(path)
        else:
            code, trace = run_command(what)
    for missing in [each for each, module in sys.modules.items() if module is None]:
        del sys.modules[missing]  # what a script hid is there again for the next
    return {"trace": trace, "code": code, **texts, "cpu_s": time.process_time() - started}


def main():
    home, (source, target) = os.getcwd(), sys.argv[1:]
    with open(source, encoding="utf-8") as stream:
        asked = json.load(stream)
    found = {name: run(home, name, what) for name, what in asked}
    with open(target, "w", encoding="utf-8") as stream:
        json.dump(found, stream, indent=1)


if __name__ == "__main__":
    main()
