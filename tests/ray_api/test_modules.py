"""What the modules below `ray` are: muster's own objects, or a sentence that names what is missing."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

EXPORTS = Path(__file__).parent.parent / "parity" / "ray_exports.json"
MISSING = (
    *("ray._private", "ray._raylet", "ray.autoscaler", "ray.client_builder", "ray.core"),
    *("ray.dag", "ray.dashboard", "ray.data", "ray.air.util", "ray.experimental"),
    *("ray.includes", "ray.job_config", "ray.job_submission", "ray.ml", "ray.nothing", "ray.rllib"),
    *("ray.serialization", "ray.serve", "ray.tasks", "ray.objects"),
    *("ray.services", "ray.sgd", "ray.state", "ray.streaming", "ray.train.horovod", "ray.train.huggingface"),
    *("ray.train.lightgbm", "ray.train.sklearn", "ray.train.tensorflow", "ray.train.v2", "ray.train.xgboost"),
    *("ray.tune.cluster_info", "ray.tune.impl", "ray.tune.execution.tune_controller", "ray.util.actor_pool"),
    *("ray.util.client", "ray.util.dask", "ray.util.joblib", "ray.util.multiprocessing", "ray.util.queue"),
    *("ray.data.dataset", "ray.train.v2.api.config", "ray.tune.impl.placeholder", "ray.train.trainer"),
    *("ray.util.sgd", "ray.util.spark", "ray.widgets", "ray.workers", "ray.workflow", "ray.air.execution"),
)

IDENTITY = """
import muster.as_ray, importlib, json, sys
modules = json.loads(sys.argv[1])
different = []
for name, names in modules.items():
    try:
        ours = importlib.import_module("muster" + name[3:])
    except ImportError:
        continue
    theirs = importlib.import_module(name)
    if name.startswith("ray.tune"):
        if theirs is not ours or not ours.__spec__.name.startswith("muster."):
            different.append(name)
    for each in names:
        try:
            value = getattr(ours, each)
        except (AttributeError, ImportError):
            continue
        if getattr(theirs, each) is not value:
            different.append(f"{name}:{each}")
print(json.dumps([len(sys.modules), different]))
"""


def test_every_exported_name_is_the_same_object_through_both_paths(rayless):
    found = json.loads(EXPORTS.read_text())["modules"]
    modules = {name: list(names) for name, names in found.items() if "not_importable" not in names}
    _, different = rayless.json("-c", IDENTITY, json.dumps(modules))
    assert different == []


def test_a_probe_for_a_missing_module_returns_none(rayless):
    code = (
        "import muster.as_ray, importlib.util, json, sys;"
        "import ray; found = [name for name in json.loads(sys.argv[1]) if importlib.util.find_spec(name)];"
        "found += [name for name in sys.modules if name.startswith('ray.data')] + [hasattr(ray, 'data')];"
        "print(json.dumps(found))"
    )
    assert len(MISSING) >= 40
    assert rayless.json("-c", code, json.dumps(MISSING)) == [False]


@pytest.mark.parametrize(
    "statement", ["import ray.data", "from ray import data", "from ray.data import Dataset"]
)
def test_an_import_of_a_missing_module_names_it_and_its_part_of_ray(rayless, statement):
    code = (
        f"import muster.as_ray, json\ntry:\n    {statement}\n"
        "except ModuleNotFoundError as error:\n    print(json.dumps([error.name, 'Ray Data' in str(error)]))"
    )
    assert rayless.json("-c", code) == ["ray.data", True]


def test_the_importing_file_and_line_are_logged_once(rayless, tmp_path):
    library = tmp_path / "library.py"
    library.write_text("try:\n    from ray import data\nexcept ImportError:\n    data = None\n")
    done = rayless.run("-c", "import muster.as_ray, library, importlib; importlib.reload(library)")
    lines = [line for line in done.stderr.splitlines() if "ray.data" in line]
    assert len(lines) == 1
    assert lines[0].startswith(f"{library}:2: ")


def test_a_name_that_is_missing_is_no_attribute_either(rayless):
    code = (
        "import muster.as_ray, ray, ray.util, json;"
        "print(json.dumps([hasattr(ray, 'data'), hasattr(ray.util, 'queue'), hasattr(ray, 'tune')]))"
    )
    assert rayless.json("-c", code) == [False, False, True]


NAMES = """
import ray, ray.air, ray.train, ray.tune
from ray import tune, train, air
from ray.air import session, RunConfig, ScalingConfig, CheckpointConfig
from ray.air.integrations.wandb import WandbLoggerCallback
from ray.actor import ActorHandle
from ray.exceptions import RayActorError, RayError, RayTaskError, GetTimeoutError, OutOfMemoryError
from ray.remote_function import RemoteFunction
from ray.runtime_env import RuntimeEnv
from ray.train import Checkpoint, ScalingConfig as Scaling, UserCallback, get_context, report
from ray.train.torch import TorchConfig, TorchTrainer, get_device, prepare_data_loader, prepare_model
from ray.tune.search.variant_generator import parse_spec_vars
from ray.tune.utils.log import Verbosity, set_verbosity
from ray.util.annotations import PublicAPI
from ray.util.placement_group import PlacementGroup
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy
import ray.cloudpickle, ray.internal
for name in ("init", "is_initialized", "shutdown", "put", "get", "wait", "remote", "cancel", "kill",
             "ObjectRef",
             "ObjectID", "cluster_resources", "available_resources", "nodes", "get_gpu_ids", "WORKER_MODE",
             "get_runtime_context", "cloudpickle", "exceptions", "util", "air", "tune", "train"):
    getattr(ray, name)
tune.search.sample.Float._Uniform, tune.search.sample.Float._LogUniform
tune.search.sample.Integer.default_sampler_cls, tune.search.sample.Categorical.default_sampler_cls
assert ScalingConfig is Scaling
assert ray.state.nodes() == ray.nodes()
print("[]")
"""


def test_the_names_that_libraries_use_are_there(rayless):
    assert rayless.json("-m", "muster.as_ray", "-c", NAMES) == []


def test_a_pickle_made_under_as_ray_loads_without_it(rayless, tmp_path):
    make = (
        "import muster.as_ray, pickle; from ray import tune; from ray.tune.schedulers import ASHAScheduler;"
        "pickle.dump([tune.uniform(0, 1), ASHAScheduler(), tune.RunConfig(), tune.TuneConfig],"
        " open('made.pkl', 'wb'))"
    )
    rayless.run("-c", make)
    load = (
        "import pickle, sys, json; found = pickle.load(open('made.pkl', 'rb'));"
        "print(json.dumps([len(found), 'ray' in sys.modules]))"
    )
    assert rayless.json("-c", load) == [4, False]


def test_signatures_are_rays(rayless):
    code = (
        "import muster.as_ray, ray, inspect, json, typing; s = inspect.signature(ray.init).parameters;"
        "hints = typing.get_type_hints(ray.init);"
        "print(json.dumps([list(s)[:4], s['num_cpus'].kind.name, str(hints['num_cpus'])]))"
    )
    assert rayless.json("-c", code) == [
        ["address", "num_cpus", "num_gpus", "resources"],
        "KEYWORD_ONLY",
        "int | None",
    ]
