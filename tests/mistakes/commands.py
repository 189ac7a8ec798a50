"""List mistakes on the command line, with the files that they are about: HERE is their directory."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

CLUSTER = """\
cluster_name: demo
max_workers: 4
provider: {type: process}
head_node_type: head
available_node_types:
  head:
    resources: {CPU: 0}
  small:
    resources: {CPU: 4}
    max_workers: 4
"""
RAY_CLUSTER = """\
apiVersion: ray.io/v1
kind: RayCluster
metadata: {name: demo, namespace: research}
spec:
  headGroupSpec:
    rayStartParams: {}
    template: {spec: {containers: [{name: ray-head, resources: {limits: {cpu: "1", memory: 2Gi}}}]}}
  workerGroupSpecs:
    - groupName: small
      minReplicas: 0
      maxReplicas: 4
      rayStartParams: {}
      template: {spec: {containers: [{name: ray-worker, resources: {limits: {cpu: "2", memory: 4Gi}}}]}}
"""
DEMAND = "demands:\n  - {resources: {CPU: 1}, count: 3}\n"
FILES = {
    "good.yaml": CLUSTER,
    "demand.yaml": DEMAND,
    "key_typo.yaml": CLUSTER.replace("max_workers: 4\nprovider", "max_worker: 4\nprovider"),
    "wrong_type.yaml": CLUSTER.replace("max_workers: 4\nprovider", "max_workers: four\nprovider"),
    "tab.yaml": CLUSTER.replace("  head:", "\thead:"),
    "no_head.yaml": CLUSTER.replace("head_node_type: head", "head_node_type: haed"),
    "provider_typo.yaml": CLUSTER.replace("type: process", "type: proces"),
    "twice.yaml": CLUSTER + "max_workers: 5\n",
    "empty.yaml": "",
    "list.yaml": "- a\n- b\n",
    "min_above_max.yaml": CLUSTER.replace("    max_workers: 4\n", "    min_workers: 9\n    max_workers: 4\n"),
    "bad_demand.yaml": "demands:\n  - {resource: {CPU: 1}}\n",
    "negative.yaml": "demands:\n  - {resources: {CPU: -1}}\n",
    "spark.yaml": CLUSTER.replace("type: process", "type: spark"),
    "aws.yaml": CLUSTER.replace("type: process", "type: aws"),
    "aws_region.yaml": CLUSTER.replace("type: process", "type: aws, region: us-east-11"),
    "aws_secret.yaml": CLUSTER.replace(
        "type: process", "type: aws, region: us-east-1, aws_credentials: {aws_secret_access_key: hidden}"
    ),
    "slurm_time.yaml": CLUSTER.replace("type: process", "type: slurm").replace(
        "CPU: 4}", "CPU: 4}\n    node_config: {partition: gpu, time: 4:00:00}"
    ),
    "slurm_extra.yaml": CLUSTER.replace("type: process", "type: slurm").replace(
        "CPU: 4}", "CPU: 4}\n    node_config: {extra: [--array=0-3]}"
    ),
    "ray.yaml": RAY_CLUSTER,
    "ray_quantity.yaml": RAY_CLUSTER.replace("4Gi", "4Gigs"),
    "ray_no_cpu.yaml": RAY_CLUSTER.replace('cpu: "2", ', ""),
    "ray_no_name.yaml": RAY_CLUSTER.replace("groupName", "groupNam"),
    "ray_ippr.yaml": RAY_CLUSTER.replace("{name: demo", "{annotations: {ray.io/ippr: grow}, name: demo"),
    "ray_two.yaml": f"{RAY_CLUSTER}---\n{RAY_CLUSTER}",
    "kubeconfig": "clusters: [",
    "external.yaml": CLUSTER.replace("{type: process}", "{type: external, module: nosuch.module.Class}"),
    "indent.yaml": CLUSTER.replace("  small:", "   small:"),
    "market_typo.yaml": CLUSTER + "    offers: [{zone: a, market: spto, price_per_hour: 1.0}]\n",
    "offer_twice.yaml": CLUSTER + "    offers: [{zone: a, market: spot}, {zone: a, market: spot}]\n",
    "no_prices.yaml": CLUSTER + "muster: {prices: none.csv}\n",
    "prices.yaml": CLUSTER + "muster: {prices: prices.csv}\n",
    "prices.csv": "type,zone,on_demand,spot\nsmall,a,1.0,cheap\n",
    "columns.yaml": CLUSTER + "muster: {prices: columns.csv}\n",
    "columns.csv": "type,zone,price\nsmall,a,1.0\n",
    "nan.yaml": CLUSTER + "muster: {prices: nan.csv}\n",
    "nan.csv": "type,zone,on_demand,spot\nsmall,a,nan,\n",
    "price_below_zero.yaml": CLUSTER + "    price_per_hour: -1\n",
    "budget_unpriced.yaml": CLUSTER + "muster: {budget: {total: 40}}\n",
    "budget_period.yaml": CLUSTER + "muster: {budget: {total: 40, period: daily}}\n",
    "source_typo.yaml": CLUSTER + "muster: {notices: {source: google}}\n",
    "script.py": "import muster\n",
    "newer.history": "muster history 99\n",
    "rack.yaml": "provider: {type: local, head_ip: 127.0.0.1, worker_ips: [127.0.0.2]}\n"
    "auth: {ssh_private_key: /no_key}\n",
    "rack_twice.yaml": "provider: {type: local, head_ip: a, worker_ips: [b, b]}\n",
    "rack_no_head.yaml": "provider: {type: local, hosts: [{ip: b}]}\n",
    "rack_type.yaml": CLUSTER.replace(
        "{type: process}", "{type: local, head_ip: a, hosts: [{ip: b, type: smal}]}"
    ),
}

MAKE = """\
from muster import tune
run = tune.RunConfig(name="run", storage_path="HERE", verbose=0, engine="local")
space = {"x": tune.grid_search([1, 2])}
tune.Tuner(lambda config: {"loss": config["x"]}, param_space=space, run_config=run).fit()
"""


class CommandMistake(NamedTuple):
    name: str
    words: tuple[str, ...]
    says: tuple[str, ...]


def _of(name: str, line: str, *says: str) -> CommandMistake:
    return CommandMistake(name, tuple(word.replace("~", " ") for word in line.split()), says)


COMMANDS = [
    _of("up_other_cloud", "up HERE/spark.yaml -y", "spark.yaml", "'spark'", "external"),
    _of("up_aws_no_region", "up HERE/aws.yaml -y", "aws.yaml", "provider.region", "us-west-2"),
    _of("up_aws_region", "up HERE/aws_region.yaml -y", "'us-east-11' is not a region", "'us-east-1'?"),
    _of("up_aws_secret", "up HERE/aws_secret.yaml -y", "aws_credentials", "profile"),
    _of(
        "prices_no_aws", "provider prices --config HERE/good.yaml", "good.yaml", "provider.type", "'process'"
    ),
    _of("up_missing_module", "up HERE/external.yaml -y", "external.yaml", "'nosuch'", "PYTHONPATH"),
    _of("ray_no_kubeconfig", "up HERE/ray.yaml -y", ".kube/config cannot be read", "set KUBECONFIG"),
    _of("ray_down_no_kubeconfig", "down HERE/ray.yaml -y", ".kube/config cannot be read", "set KUBECONFIG"),
    _of("ray_status_no_kubeconfig", "status HERE/ray.yaml", ".kube/config cannot be read", "set KUBECONFIG"),
    _of(
        "ray_quantity",
        "up HERE/ray_quantity.yaml -y",
        "(small).limits.memory: '4Gigs'",
        "such as m, k, M, Gi",
    ),
    _of("ray_no_cpu", "up HERE/ray_no_cpu.yaml -y", "(small): has no CPUs", "set resources.limits.cpu"),
    _of("ray_no_name", "up HERE/ray_no_name.yaml -y", "workerGroupSpecs[0]", "give it another name"),
    _of("ray_ippr", "up HERE/ray_ippr.yaml -y", "ray_ippr.yaml", "annotation ray.io/ippr", "fix it"),
    _of("ray_two", "up HERE/ray_two.yaml -y", "more than one RayCluster", "keep one"),
    _of("ray_port", "up HERE/ray.yaml -y --port 1", "--port: not for a RayCluster", "edit"),
    _of("ray_plan", "plan HERE/ray.yaml --demand HERE/demand.yaml", "ray.yaml:1", "of kind RayCluster"),
    _of("sidecar_no_name", "kuberay-autoscaler", "missing option '--cluster-name'"),
    _of(
        "sidecar_not_in_a_pod",
        "kuberay-autoscaler --cluster-name demo --cluster-namespace research",
        "this is not a pod of a Kubernetes cluster",
        "--kubeconfig",
    ),
    _of(
        "sidecar_kubeconfig",
        "kuberay-autoscaler --cluster-name demo --cluster-namespace r --kubeconfig HERE/kubeconfig",
        "kubeconfig is not YAML",
        "give the kubeconfig of your cluster",
    ),
    _of("up_key", "up HERE/rack.yaml -y", "no_key", "no such file", "ssh_private_key"),
    _of(
        "up_host_twice",
        "up HERE/rack_twice.yaml -y",
        "rack_twice.yaml:1",
        "'b' is listed twice",
        "remove one",
    ),
    _of("up_no_head_ip", "up HERE/rack_no_head.yaml -y", "rack_no_head.yaml:1", "'head_ip' is missing"),
    _of("up_host_type", "up HERE/rack_type.yaml -y", "rack_type.yaml", "'smal'", "'small'"),
    _of("up_port_elsewhere", "up HERE/rack.yaml -y --port 1", "--port", "head_start_ray_commands"),
    _of("up_option_here", "up HERE/good.yaml -y --min-workers 1", "--min-workers", "'process'", "good.yaml"),
    _of("exec_here", "exec HERE/good.yaml date", "'process'", "this computer"),
    _of("exec_unknown", "exec nosuch date", "'nosuch'", "file"),
    _of("exec_two_sessions", "exec HERE/rack.yaml date --tmux --screen", "--tmux", "--screen", "choose one"),
    _of("attach_port", "attach HERE/rack.yaml -p x", "'x'", "8265"),
    _of("rsync_one_path", "rsync-up HERE/rack.yaml HERE", "both paths", "file_mounts"),
    _of("submit_no_script", "submit HERE/rack.yaml HERE/none.py", "none.py"),
    _of("down_workers_here", "down HERE/good.yaml -y --workers-only", "--workers-only"),
    _of("backtest_no_history", "backtest HERE/good.yaml", "good.yaml", "not a history", "`history`"),
    _of("backtest_newer", "backtest HERE/newer.history", "newer.history", "format 99", "upgrade muster"),
    _of("backtest_unknown", "backtest nosuch", "'nosuch'"),
    _of("up_without_a_terminal", "up HERE/good.yaml", "-y"),
    _of("up_port", "up HERE/good.yaml --port 0", "--port", "65535"),
    _of("up_missing_file", "up HERE/none.yaml", "none.yaml", "No such file"),
    _of("up_a_directory", "up HERE", "Is a directory"),
    _of("up_empty_file", "up HERE/empty.yaml", "empty.yaml", "cluster_name"),
    _of("up_list", "up HERE/list.yaml", "list.yaml:1", "mapping"),
    _of(
        "plan_key_typo",
        "plan HERE/key_typo.yaml --demand HERE/demand.yaml",
        "key_typo.yaml:2",
        "max_worker",
        "max_workers",
    ),
    _of(
        "plan_slurm_time",
        "plan HERE/slurm_time.yaml --demand HERE/demand.yaml",
        "slurm_time.yaml:10",
        "node_config.time",
        "quotes",
    ),
    _of(
        "plan_slurm_extra",
        "plan HERE/slurm_extra.yaml --demand HERE/demand.yaml",
        "slurm_extra.yaml:10",
        "--array",
        "remove it",
    ),
    _of(
        "plan_wrong_type",
        "plan HERE/wrong_type.yaml --demand HERE/demand.yaml",
        "wrong_type.yaml:2",
        "max_workers",
        "four",
    ),
    _of("plan_tab", "plan HERE/tab.yaml --demand HERE/demand.yaml", "tab.yaml:6", "tab"),
    _of(
        "plan_head_typo", "plan HERE/no_head.yaml --demand HERE/demand.yaml", "no_head.yaml:4", "haed", "head"
    ),
    _of(
        "plan_provider_typo",
        "plan HERE/provider_typo.yaml --demand HERE/demand.yaml",
        "provider_typo.yaml:3",
        "proces",
        "process",
    ),
    _of(
        "plan_key_twice",
        "plan HERE/twice.yaml --demand HERE/demand.yaml",
        "twice.yaml:11",
        "max_workers",
        "2",
    ),
    _of(
        "plan_min_above_max",
        "plan HERE/min_above_max.yaml --demand HERE/demand.yaml",
        "min_above_max.yaml",
        "min_workers",
        "9",
    ),
    _of(
        "plan_demand_typo",
        "plan HERE/good.yaml --demand HERE/bad_demand.yaml",
        "bad_demand.yaml:2",
        "resource",
    ),
    _of("plan_negative", "plan HERE/good.yaml --demand HERE/negative.yaml", "negative.yaml:2", "-1"),
    _of(
        "plan_files_swapped", "plan HERE/demand.yaml --demand HERE/good.yaml", "demand.yaml:1", "unknown key"
    ),
    _of("plan_indent", "plan HERE/indent.yaml --demand HERE/demand.yaml", "indent.yaml:8", "YAML"),
    _of(
        "plan_market_typo",
        "plan HERE/market_typo.yaml --demand HERE/demand.yaml",
        "market_typo.yaml:11",
        "offers[0].market",
        "'spto'",
        "did you mean 'spot'",
    ),
    _of(
        "plan_offer_twice",
        "plan HERE/offer_twice.yaml --demand HERE/demand.yaml",
        "offer_twice.yaml:11",
        "zone 'a' and market spot",
        "keep one",
    ),
    _of(
        "plan_no_price_file",
        "plan HERE/no_prices.yaml --demand HERE/demand.yaml",
        "none.csv",
        "No such file",
    ),
    _of(
        "plan_price_columns",
        "plan HERE/columns.yaml --demand HERE/demand.yaml",
        "columns.csv:1",
        "'on_demand'",
        "the first line names the columns",
    ),
    _of(
        "plan_price_nan", "plan HERE/nan.yaml --demand HERE/demand.yaml", "nan.csv:2", "'nan' is not a price"
    ),
    _of(
        "plan_price_below_zero",
        "plan HERE/price_below_zero.yaml --demand HERE/demand.yaml",
        "price_below_zero.yaml:",
        "price_per_hour: -1 must be at least 0",
    ),
    _of(
        "up_budget_without_prices",
        "up HERE/budget_unpriced.yaml -y",
        "budget_unpriced.yaml:",
        "muster.budget",
        "without the price of head, small",
        "price_per_hour",
    ),
    _of(
        "up_budget_period",
        "up HERE/budget_period.yaml -y",
        "muster.budget.period",
        "'daily' is not one of day, hour",
    ),
    _of(
        "up_notices_source", "up HERE/source_typo.yaml -y", "muster.notices.source", "'google' is not one of"
    ),
    _of(
        "plan_bad_price",
        "plan HERE/prices.yaml --demand HERE/demand.yaml",
        "prices.csv:2",
        "spot 'cheap'",
        "$ per hour",
    ),
    _of("plan_missing_demand", "plan HERE/good.yaml --demand HERE/none.yaml", "none.yaml", "No such file"),
    _of("plan_without_file", "plan", "muster plan", "--help"),
    _of("plan_option_typo", "plan HERE/good.yaml --demnad x", "--demnad", "--demand"),
    _of("command_typo", "tunee ls", "tunee", "tune"),
    _of("subcommand_typo", "tune lss", "lss", "ls"),
    _of("status_of_nothing", "status nowhere", "nowhere"),
    _of("down_of_nothing", "down HERE/good.yaml -y", "demo"),
    _of("why_of_nothing", "why x nowhere", "nowhere"),
    _of("monitor_missing_file", "monitor HERE/none.yaml", "none.yaml"),
    _of("ls_of_nothing", "tune ls HERE/none", "none", "no such"),
    _of("ls_of_a_file", "tune ls HERE/script.py", "script.py"),
    _of("ls_of_other_files", "tune ls HERE/other", "other"),
    _of("filter_without_operator", "tune ls HERE/run --filter loss", "--filter", "'loss'", "loss"),
    _of("filter_unknown_column", "tune ls HERE/run --filter los<1", "'los'", "loss"),
    _of("filter_number_with_text", "tune ls HERE/run --filter loss<abc", "loss", "'abc'", "number"),
    _of("filter_text_with_number", "tune ls HERE/run --filter status>3", "status", "3", "text"),
    _of("sort_unknown_column", "tune ls HERE/run --sort los", "--sort", "'los'", "loss"),
    _of("limit_is_no_number", "tune ls HERE/run --limit ten", "--limit", "ten"),
    _of("output_format", "tune ls HERE/run -o HERE/x.xlsx", "x.xlsx", ".csv"),
    _of("show_unknown_trial", "tune show HERE/run zzz", "zzz"),
    _of("best_mode", "tune best HERE/run --metric loss --mode up", "--mode", "up", "min"),
    _of("best_unknown_metric", "tune best HERE/run --metric los --mode min", "'los'", "reported are loss"),
    _of("best_without_metric", "tune best HERE/run", "--metric", "loss"),
    _of("watch_and_json", "tune ls HERE/run --watch --json", "--watch", "leave out --json"),
    _of("output_folder_missing", "tune ls HERE/run -o HERE/none/x.csv", "none/x.csv", "No such file"),
    _of("resume_of_nothing", "tune resume HERE/none", "none"),
    _of("stop_of_nothing", "tune stop HERE/none", "none"),
    _of("set_without_a_limit", "tune set HERE/none", "--cost-budget"),
    _of("compat_missing_file", "compat HERE/none.py", "none.py"),
    _of("compat_of_nothing", "compat", "name a script", "--experiment"),
    _of("compat_no_experiment", "compat --experiment HERE/other", "other has no results", "<storage_path>"),
    _of(
        "compat_over_another",
        "compat --experiment HERE/rays -o HERE/other",
        "other exists already",
        "a new one with -o",
    ),
    _of("ls_of_rays_directory", "tune ls HERE/rays", "Ray Tune wrote it", "muster compat --experiment"),
    _of(
        "provider_check_class",
        "provider check nosuch.Class --config HERE/good.yaml -y",
        "good.yaml",
        "'nosuch'",
        "PYTHONPATH",
    ),
    _of(
        "provider_check_no_class",
        "provider check --config HERE/good.yaml -y",
        "good.yaml",
        "provider",
        "MODULE.CLASS",
    ),
    _of("provider_check_no_file", "provider check a.B --config HERE/none.yaml", "none.yaml", "No such file"),
    _of(
        "provider_check_line",
        "provider check muster.testing.faulty_cloud.FaultyCloud --config HERE/good.yaml --line xyz",
        "--line",
        "xyz",
        "--list",
    ),
    _of(
        "provider_end_of_others",
        "provider end a.B production --config HERE/good.yaml",
        "production",
        "muster down",
    ),
    _of("sim_seed", "sim day --seed x", "--seed", "x"),
    _of("tune_submit_time", "tune submit HERE/script.py --time soon", "time='soon'", "2:00:00"),
    _of("tune_submit_no_script", "tune submit HERE/none.py", "none.py", "no such script"),
]


def write_files(folder: Path) -> None:
    for name, text in FILES.items():
        (folder / name).write_text(text, encoding="utf-8")
    (folder / "other").mkdir()
    (folder / "rays" / "trial").mkdir(parents=True)
    (folder / "rays" / "experiment_state-1.json").touch()
    (folder / "rays" / "trial" / "params.json").write_text("{}", encoding="utf-8")


def asked(folder: Path) -> list[tuple[str, str | list[str]]]:
    """Return a script that makes the experiment HERE/run, and the commands."""
    words = [(each.name, [word.replace("HERE", str(folder)) for word in each.words]) for each in COMMANDS]
    return [("make", MAKE.replace("HERE", str(folder))), *words]
