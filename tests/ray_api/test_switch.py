"""Whether `import ray` finds muster: only where it is switched on, there in every kind of child process."""

from __future__ import annotations

from pathlib import Path

import pytest

WHO = "import json, ray; print(json.dumps([ray.__commit__, ray.__version__]))"
OURS = ["muster", "2.58.0"]


def test_a_plain_process_with_muster_has_no_ray(rayless):
    done = rayless.run("-c", "import muster, muster.tune; import ray", code=1)
    assert "ModuleNotFoundError" in done.stderr


def test_nothing_of_muster_imports_the_standin(rayless):
    code = (
        "import sys; from muster import tune; tune.Tuner, tune.run; import muster.train, muster.air;"
        "import json; print(json.dumps([name for name in sys.modules if 'ray_api' in name]))"
    )
    assert rayless.json("-c", code) == []


@pytest.mark.parametrize(
    "words",
    [
        ["-c", f"import muster.as_ray; {WHO}"],
        ["-m", "muster.as_ray", "-c", WHO],
        ["-m", "muster.as_ray", "-m", "who"],
        ["-m", "muster.as_ray", "who.py"],
        ["-m", "muster", "as-ray", "--", "{python}", "-S", "-c", WHO],
    ],
)
def test_every_way_in(rayless, tmp_path, words):
    (tmp_path / "who.py").write_text(WHO)
    python = rayless.command()[0]
    assert rayless.json(*(word.replace("{python}", python) for word in words)) == OURS


def test_the_variable_switches_it_on_where_muster_is_imported(rayless):
    assert rayless.json("-c", f"import muster; {WHO}", MUSTER_AS_RAY="1") == OURS


def test_a_script_keeps_its_arguments_and_is_main(rayless, tmp_path):
    (tmp_path / "s.py").write_text(
        "import sys, json, __main__\nclass A: pass\n"
        "print(json.dumps([sys.argv[1:], __main__.A is A, __name__]))"
    )
    assert rayless.json("-m", "muster.as_ray", "s.py", "-x", "1") == [["-x", "1"], True, "__main__"]


CHILDREN = """
import json, multiprocessing, os, subprocess, sys
import muster.as_ray

def who(_=None):
    import ray
    return ray.__commit__

if __name__ == "__main__":
    import joblib
    from joblib.externals.loky import get_reusable_executor
    found = {}
    for method in ("spawn", "fork"):
        with multiprocessing.get_context(method).Pool(1) as pool:
            found[method] = pool.apply(who)
    found["loky"] = joblib.Parallel(n_jobs=2, backend="loky")(joblib.delayed(who)() for _ in range(2))[0]
    get_reusable_executor().shutdown()
    words = [sys.executable, "-S", "-c", "import ray; print(ray.__commit__)"]
    found["exec"] = subprocess.run(words, capture_output=True, text=True).stdout.strip()
    print(json.dumps(found))
"""


@pytest.mark.slow
def test_every_kind_of_child_process_has_it(rayless, tmp_path):
    (tmp_path / "children.py").write_text(CHILDREN)
    assert rayless.json("children.py") == dict.fromkeys(("spawn", "fork", "loky", "exec"), "muster")


def test_metadata_and_probes_see_a_distribution(rayless):
    code = (
        "import muster.as_ray, json, importlib.metadata as m, importlib.util as u;"
        "print(json.dumps([m.version('ray'), bool(u.find_spec('ray')), bool(u.find_spec('ray.tune')),"
        " m.packages_distributions().get('ray')]))"
    )
    assert rayless.json("-c", code) == ["2.58.0", True, True, ["ray"]]


def test_the_version_can_be_chosen(rayless):
    code = (
        "import muster.as_ray, json, importlib.metadata as m, ray;"
        "print(json.dumps([m.version('ray'), ray.__version__]))"
    )
    assert rayless.json("-c", code, MUSTER_AS_RAY_VERSION="2.47.1") == ["2.47.1"] * 2


def last_line(done) -> str:
    return done.stderr.strip().splitlines()[-1]


def test_where_ray_is_installed_it_is_refused_with_its_version_and_place(with_ray):
    line = last_line(with_ray.run("-c", "import muster.as_ray", code=1))
    assert "ImportError" in line
    assert "2.60.0" in line
    assert "MUSTER_AS_RAY=force" in line


def test_where_ray_is_imported_even_force_is_refused(with_ray):
    code = "import sys, types; sys.modules['ray'] = types.ModuleType('ray'); import muster.as_ray"
    assert "ImportError" in last_line(with_ray.run("-c", code, code=1, MUSTER_AS_RAY="force"))


def test_force_puts_muster_in_its_place_for_children_too(with_ray):
    code = (
        "import muster.as_ray, ray, json, subprocess, sys;"
        "child = subprocess.run([sys.executable, '-c', 'import ray; print(ray.__commit__)'],"
        " capture_output=True, text=True).stdout.strip();"
        "print(json.dumps([ray.__commit__, child]))"
    )
    assert with_ray.json("-c", code, MUSTER_AS_RAY="force") == ["muster"] * 2


def test_the_ray_engine_is_refused_while_muster_answers_for_ray(with_ray):
    code = (
        "import muster.as_ray; from muster import tune;"
        "tune.Tuner(lambda c: {'a': 1}, run_config=tune.RunConfig(engine='ray')).fit()"
    )
    line = last_line(with_ray.run("-c", code, code=1, MUSTER_AS_RAY="force"))
    assert "EngineMissing" in line


def test_a_child_process_refuses_too_where_ray_is_installed(with_ray, rayless):
    site = rayless.json(
        "-c", "import muster.as_ray, json, os; print(json.dumps(os.environ['PYTHONPATH'].split(':')))"
    )[-1]
    paths = ":".join([with_ray.env["PYTHONPATH"], site])
    assert "ImportError" in last_line(with_ray.run("-c", "import ray", code=1, PYTHONPATH=paths))


def test_the_directory_is_complete():
    from muster.ray_api.switch import SITE, VERSION

    names = {str(path.relative_to(SITE)) for path in Path(SITE).rglob("*") if "__pycache__" not in str(path)}
    folder = f"ray-{VERSION}.dist-info"
    assert {"ray/__init__.py", f"{folder}/METADATA", f"{folder}/top_level.txt"} <= names
    assert f"Version: {VERSION}\n" in (Path(SITE) / folder / "METADATA").read_text()
