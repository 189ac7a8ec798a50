"""List what the figures must reach. `python -m bench` exits with 1 when one is missed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass(frozen=True)
class Floor:
    """Names one figure, or with a * several, each of which must reach the bound."""

    pattern: str
    at_least: float | None = None
    at_most: float | None = None

    def missed_by(self, value: float) -> bool:
        too_low = self.at_least is not None and value < self.at_least
        return too_low or (self.at_most is not None and value > self.at_most)

    def __str__(self) -> str:
        return f"at least {self.at_least:g}" if self.at_least is not None else f"at most {self.at_most:g}"


FLOORS: dict[str, tuple[Floor, ...]] = {
    "slurm": (
        Floor("decisions.equal", at_least=1.0),
        Floor("first_result_s", at_most=2.0),
        Floor("calls.sbatch_per_100_trials", at_most=1.0),
        Floor("calls.squeue_per_s", at_most=0.2),
        Floor("rate_ratio", at_least=0.5),
        Floor("idle_share", at_most=0.08),
        Floor("faults.lost", at_most=0),
        Floor("faults.repeated_unexplained", at_most=0),
        Floor("faults.jobs_left", at_most=0),
    ),
    "aws": (
        Floor("calls_per_tick.1000", at_most=1.0),
        Floor("calls_per_launch", at_most=0.05),
        Floor("calls_ratio", at_least=10.0),
    ),
    "search-early-stopping": (
        Floor("early_stopping.asha_grace_3.without_crossing", at_least=1.05),
        Floor("early_stopping.asha_grace_3.need", at_most=0.50),
        Floor("early_stopping.hyperband.mean", at_least=1.02),
        Floor("early_stopping.decision_ms.*.2_at_1000", at_most=0.3),
        Floor("early_stopping.decision_ms.*.2_at_20000", at_most=2.0),
        Floor("early_stopping.decision_ms.*.3_at_1000", at_most=5.0),
    ),
    "command": (
        Floor("echo.trials_per_s", at_least=60),
        Floor("echo.cpu_ms", at_most=15),
        Floor("echo.speed_of_functions", at_least=0.5),
        Floor("child.results_ratio", at_least=0.5),
        Floor("lines.results_per_s", at_least=5000),
        Floor("output.mb_per_s", at_least=100),
        Floor("output.worker_grows_mb", at_most=20),
        Floor("output.file_mb", at_most=66),
        Floor("stop.ms_p99", at_most=100),
    ),
    "economy": (
        Floor("cost_ratio.asha_ondemand", at_least=1.5),
        Floor("cost_ratio.asha_spot", at_least=3.0),
        Floor("cost_ratio.hyperband_ondemand", at_least=1.3),
        Floor("cost_ratio.hyperband_spot", at_least=2.5),
        Floor("cost_ratio.pbt_ondemand", at_least=1.3),
        Floor("cost_ratio.pbt_spot", at_least=2.5),
        Floor("best_gap.*", at_most=0.002),
        Floor("lost_work.median", at_most=0.01),
        Floor("lost_work.worst", at_most=0.04),
        Floor("consolidation_saved", at_least=0.15),
        Floor("consolidation_lost", at_most=0.01),
        Floor("moved_more_than_twice", at_most=0),
        Floor("budget_exceeded", at_most=0),
        Floor("deadline_met", at_least=0.99),
        Floor("quote_inside", at_least=0.8),
        Floor("quote_halfwidth", at_most=0.25),
    ),
    "planner": (
        Floor("speedup.busy_1000n_10000p_20s", at_least=300),
        Floor("speedup.half_500n_5000p_20s", at_least=300),
        Floor("growth.500_1000", at_most=2.2),
        Floor("growth.1000_2000", at_most=2.2),
        Floor("seconds.100k_demands", at_most=1.0),
        Floor("seconds.1m_demands", at_most=10.0),
        Floor("mb.1m_demands", at_most=2048),
        Floor("check.1m_demands", at_most=0),
        Floor("seconds.gangs_mixed_200", at_most=2.0),
        Floor("seconds.gangs_mixed_1000", at_most=10.0),
        Floor("seconds.gangs_pack_2000", at_most=0.5),
        Floor("seconds.gangs_capped", at_most=0.5),
        Floor("check.gang_problems", at_most=0),
        Floor("seconds.pinned_2000", at_most=2.0),
        Floor("seconds.pinned_5000", at_most=5.0),
        Floor("mb.pinned_2000", at_most=300),
        Floor("check.pinned", at_most=0),
        Floor("shapes_ratio.*", at_most=1.05),
        Floor("shapes_over_best.*", at_most=1.0),
        Floor("seconds.shapes_400", at_most=1.5),
        Floor("seconds.shapes_2000_nodes", at_most=3.0),
        Floor("cost_ratio.*", at_most=1.05),
        Floor("cost_seconds.*", at_most=1.0),
        Floor("parity.mismatches", at_most=0),
        Floor("parity_unseen.mismatches", at_most=0),
        Floor("parity_gangs.mismatches", at_most=0),
        Floor("check.problems", at_most=0),
    ),
    "kuberay": (
        Floor("tick_cpu_ms.1000", at_most=50),
        Floor("sidecar_mb.1000", at_most=250),
        Floor("requests_per_tick.1000", at_most=1.2),
        Floor("requests_to_grow.1000", at_most=12),
        Floor("listing_speedup.1000", at_least=20),
    ),
    "reconcile": (
        Floor("speedup.steady_10000", at_least=200),
        Floor("history_factor.100k", at_most=1.1),
    ),
    "tune": (
        Floor("trials_speedup.reuse", at_least=35),
        Floor("trials_speedup.noreuse", at_least=550),
        Floor("results_speedup.one", at_least=40),
        Floor("results_speedup.sixteen", at_least=65),
        Floor("results_over_pipe", at_least=0.7),
        Floor("first_result_speedup", at_least=30),
        Floor("import_ms", at_most=200),
        Floor("growth.200_20000", at_most=1.3),
        Floor("restore_speedup", at_least=10),
        Floor("state_bytes_ratio", at_least=10),
        Floor("optuna_overhead", at_most=2),
        Floor("model_speedup", at_least=1.0),
        Floor("driver_mb_per_10k", at_most=15),
        Floor("library_cpu_over_allowed.*", at_most=1.2),
        Floor("library_cpu_saved.*", at_least=1.8),
        Floor("seconds.million_trials*", at_most=480),
        Floor("mb.million_trials*", at_most=2000),
    ),
    "tune-ray": (
        Floor("trials_speedup.reuse", at_least=5),
        Floor("results_speedup.one.since_first", at_least=10),
        Floor("results_speedup.sixteen.since_first", at_least=10),
        Floor("results_speedup.sixteen", at_least=7),
        Floor("driver_cpu_ratio.one", at_least=5),
        Floor("driver_cpu_ratio.sixteen", at_least=5),
    ),
    "scaleup": (
        Floor("speedup.demand_to_ready", at_least=1.2),
        Floor("seconds.ours.launch_call", at_most=0.5),
        Floor("ready_over_by_hand", at_most=1.15),
        Floor("monitor_cpu_percent", at_most=2.0),
    ),
    "up": (
        Floor("wall_over_one", at_most=2.0),
        Floor("launcher_cpu_percent", at_most=30.0),
    ),
    "page": (
        Floor("wire_kb", at_most=1000),
        Floor("app_kb", at_most=200),
        Floor("first_load_cpu_ms", at_most=200),
        Floor("first_load_ratio", at_least=30),
        Floor("paint_ms", at_most=1000),
        Floor("bands_ms", at_most=2000),
        Floor("delta_cpu_ms", at_most=3),
        Floor("delta_kb", at_most=6),
        Floor("pixel_ms.p50", at_most=200),
        Floor("pixel_ms.p99", at_most=700),
        Floor("brush_ms", at_most=60),
        Floor("server_mb", at_most=120),
        Floor("tab_mb", at_most=250),
        Floor("tab_hour_mb", at_most=250),
        Floor("tab_hour_growth", at_most=1.15),
        Floor("driver_cpu_ratio", at_most=1.03),
        Floor("large_paint_s", at_most=2),
        Floor("large_bands_s", at_most=5),
    ),
    "search": (
        Floor("wins.optuna.sequential", at_least=0.58),
        Floor("wins.optuna.parallel8", at_least=0.56),
        Floor("p.optuna.*", at_most=0.01),
        Floor("worse_problems.*", at_most=0),
        Floor("wins.random.sequential", at_least=0.89),
        Floor("wins.random.parallel8", at_least=0.88),
        Floor("wins_half.optuna.sequential", at_least=0.52),
        Floor("wins_half.optuna.parallel8", at_least=0.50),
        Floor("trials_to.optuna.*", at_most=85),
        Floor("trials_to.random.sequential", at_most=25),
        Floor("trials_to.random.parallel8", at_most=33),
        Floor("suggest_ms.1000", at_most=1.0),
        Floor("suggest_ms.5000", at_most=4.0),
        Floor("speedup.optuna.200", at_least=8),
        Floor("speedup.optuna.1000", at_least=12),
        Floor("speedup.optuna.5000", at_least=15),
        Floor("volume_ratio.optuna", at_least=1.01),
        Floor("least_volume_ratio.optuna", at_least=0.97),
        Floor("volume_ratio.random", at_least=1.2),
        Floor("rung_ratio.last_value", at_most=0.97),
        Floor("largest_rung_ratio.random", at_most=1.0),
    ),
    "schedulers": (
        Floor("decisions_per_s.asha", at_least=50_000),
        Floor("large_growth.*", at_most=3.0),
        Floor("decision_growth.*", at_most=2.0),
        Floor("worse_problems.over_ray.*", at_most=0),
        Floor("time_ratio.over_ray.*", at_most=1.05),
        Floor("used_node_h_ratio.promotion_over_stopping", at_most=1.0),
    ),
}


def missed(bench: str, figures: Mapping[str, float], *, partial: bool) -> list[str]:
    """Return one sentence per floor that was missed. In a partial run a figure may be absent."""
    found = []
    for floor in FLOORS[bench]:
        matches = {name: value for name, value in figures.items() if fnmatchcase(name, floor.pattern)}
        found += [
            f"{name} is {value:.4g}: {floor}" for name, value in matches.items() if floor.missed_by(value)
        ]
        if not matches and not partial:
            found.append(f"{floor.pattern} was not measured: {floor}")
    return found
