"""Uses Ray Core as AutoGluon's bagging, sktime and deephyper do: put, tasks, wait, cancel."""

import json
import os
import time

import ray
from ray.exceptions import GetTimeoutError, RayTaskError, TaskCancelledError, WorkerCrashedError

found = {}
ray.init(num_cpus=2, log_to_driver=False, runtime_env={"env_vars": {"FOLD": "yes"}})
found["initialized"] = ray.is_initialized()
found["cpus"] = ray.cluster_resources()["CPU"]


@ray.remote(max_calls=2)
def fold(data, number, scale=1):
    return {"sum": sum(data) * scale + number, "env": os.environ["FOLD"], "pid": os.getpid()}


@ray.remote
def fails(number):
    raise KeyError(number)


@ray.remote
def dies():
    os._exit(7)


@ray.remote
def sleeps(seconds):
    start = time.monotonic()
    time.sleep(seconds)
    return start, time.monotonic()


@ray.remote(num_returns=2)
def pair():
    return 1, 2


@ray.remote
def outer(number):
    return ray.get(fold.remote([number], 1))["sum"], ray.get_runtime_context().worker.mode == ray.WORKER_MODE


data = ray.put(list(range(10_000)))
refs = [fold.options(num_cpus=1).remote(data, number, scale=2) for number in range(4)]
results, left = [], list(refs)
while left:
    done, left = ray.wait(left, num_returns=1)
    results += ray.get(done)
found["folds"] = sorted(each["sum"] for each in results)
found["env"] = {each["env"] for each in results} == {"yes"}
found["processes"] = os.getpid() not in {each["pid"] for each in results}
found["chained"] = ray.get(fold.remote([1], ray.get(pair.remote()[1])))["sum"]
found["nested"] = ray.get(outer.remote(5))
try:
    ray.get(fails.remote(3))
except KeyError as error:
    found["error"] = [isinstance(error, RayTaskError), repr(error.cause)]
try:
    ray.get(dies.options(max_retries=1).remote())
except WorkerCrashedError as error:
    found["crash"] = "7" in str(error)
slow = sleeps.remote(60)
for wanted in (slow, [slow]):
    try:
        ray.get(wanted, timeout=0.15)
    except GetTimeoutError as error:
        found["timeout"] = isinstance(error, TimeoutError) and "0.15" in str(error)
waiting = [sleeps.remote(60) for _ in range(3)]
for ref in (slow, *waiting):
    ray.cancel(ref, force=True)
found["cancelled"] = 0
for ref in (slow, *waiting):
    try:
        ray.get(ref)
    except TaskCancelledError:
        found["cancelled"] += 1
try:
    sleeps.options(num_cpus=64).remote(1)
except ValueError:
    found["too_large"] = True


@ray.remote
class Counter:
    pass


try:
    Counter.remote()
except Exception as error:
    found["actor"] = type(error).__name__
spans = ray.get([sleeps.remote(0.4) for _ in range(4)])
most = max(sum(start <= at < end for start, end in spans) for at, _ in spans)
found["at_once"] = most
ray.shutdown()
found["shut_down"] = ray.is_initialized()
print(json.dumps(found))
