"""Compare planners: Ray's ResourceDemandScheduler and ours on the same problems, turn by turn."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing
from dataclasses import dataclass
from itertools import pairwise

from bench import check, table
from bench.floors import FLOORS
from bench.measure import Party, interleave
from bench.options import Options
from bench.ours.planner import plan, unserved, unserved_in_all
from bench.peer import planner as peer
from bench.peer.process import PeerProcess
from bench.planner_gangs import gang_figures
from bench.planner_large import million_figures
from bench.planner_pinned import pinned_figures
from bench.planner_shapes import shape_figures
from bench.unseen import gang_parity_figures, parity_figures
from bench.workloads import Bounds, Workload, large, load, load_bounds, names, series
from muster.cluster.model import Objective

QUICK_PEER_S = 4.0  # a quick run leaves out cases where Ray was recorded slower than this,
QUICK_REQUIRED_S = 20.0  # or than this when the issue asks for the case by name
SERIES = (500, 1000, 2000)


@dataclass(frozen=True)
class Case:
    """One workload, measured."""

    workload: Workload
    bounds: Bounds | None
    utilization: Party
    cost: Party
    ray: Party | None = None

    @property
    def speedup(self) -> float | None:
        return self.ray.cpu_s / self.utilization.cpu_s if self.ray else None

    @property
    def has_cost_bound(self) -> bool:
        """Return False where limits bind: there the question is how much is served."""
        return self.bounds is not None and self.bounds.cost_lower_bound_per_hour is not None

    def served(self, party: Party) -> int:
        return self.workload.requests - unserved(party.value)

    def price(self, party: Party) -> float:
        """Return $/hour of what it would buy."""
        return self.workload.price(dict(party.value.launch))

    @property
    def cost_ratio(self) -> float | None:
        """Return our $/hour over the bound; None without a bound or when something was left unserved."""
        if not self.has_cost_bound or unserved_in_all(self.cost.value):
            return None
        return self.price(self.cost) / self.bounds.cost_lower_bound_per_hour

    def differs(self) -> bool:
        """Return whether our launch map is not Ray's: the recorded one, and the one seen now if Ray ran."""
        ours = {name: count for name, count in self.utilization.value.launch.items() if count}
        answers = [self.bounds.ray_2_60.launch] if self.bounds else []
        if self.ray and self.ray.value:
            answers.append(self.ray.value.launch)
        return any(answer != ours for answer in answers)

    def problems(self) -> Iterator[str]:
        for party in (self.utilization, self.cost):
            for problem in check.problems(self.workload, party.value):
                yield f"{self.workload.name}, {party.name}: {problem}"
        if self.has_cost_bound and unserved_in_all(self.cost.value):
            yield f"{self.workload.name}, cost: {unserved_in_all(self.cost.value)} requests left unserved"


def run(options: Options) -> dict[str, float]:
    """Measure, print the tables, return the figures."""
    warm_up()
    unseen: dict[str, float] = {}
    with ExitStack() as stack:
        ray = stack.enter_context(closing(PeerProcess())) if options.with_peer else None
        cases = recorded_cases(options, ray)
        if ray and options.wants("unseen"):
            unseen = parity_figures(options, ray)
        if ray and options.wants("gangs_unseen"):
            unseen |= gang_parity_figures(options, ray)
    generated = generated_cases(options)
    shapes, problems = shape_figures(options)
    problems += [problem for case in (*cases, *generated) for problem in case.problems()]
    show_cases(cases)
    for case in cases:
        if not case.has_cost_bound:
            show_served(case)
    show_generated(generated)
    pinned = pinned_figures(options)
    for problem in problems:
        table.note(f"WRONG ANSWER: {problem}")
    return {
        **case_figures(cases),
        **unseen,
        **growth_figures("growth", "series_", generated),
        **growth_figures("growth_busy", "busy_", cases),
        **large_figures(generated),
        **gang_figures(options),
        **million_figures(options),
        **pinned,
        **shapes,
        "check.problems": len(problems),
    }


def warm_up() -> None:
    """Run a first pass, which imports the engines; that is not planning."""
    smallest = load("zero_0n_100p_1s")
    for objective in (Objective.UTILIZATION, Objective.COST):
        plan(smallest, objective)


def recorded_cases(options: Options, ray: PeerProcess | None) -> list[Case]:
    """Yield the workloads of bench/data that were requested."""
    return [recorded_case(name, options, ray) for name in names() if options.wants(name)]


def recorded_case(name: str, options: Options, ray: PeerProcess | None) -> Case:
    """Measure one workload of bench/data; Ray runs unless this is a quick run and it is slow here."""
    table.progress(f"planner: {name}")
    workload, bounds = load(name), load_bounds()[name]
    utilization, cost = our_parties(workload, options)
    if ray is None or (options.quick and is_slow(name, bounds)):
        interleave(utilization, cost)
        return Case(workload, bounds, utilization, cost)
    opponent = Party(
        "Ray",
        lambda: ray.call(peer.schedule, workload),
        budget_s=0.0 if options.quick else 20.0,
        max_runs=5,
    )
    interleave(utilization, opponent, cost)
    return Case(workload, bounds, utilization, cost, opponent)


def is_slow(name: str, bounds: Bounds) -> bool:
    required = any(floor.pattern == f"speedup.{name}" for floor in FLOORS["planner"])
    limit = QUICK_REQUIRED_S if required else QUICK_PEER_S
    return bounds.ray_2_60.cpu_s_on_a_busy_2_core_machine > limit


def generated_cases(options: Options) -> list[Case]:
    """Measure problems for ours alone: Ray's answer is not recorded, and Ray would need hours for some.

    The steps of the growth series take turns with each other, because they are compared with each other.
    """
    steps = [series(nodes) for nodes in SERIES if options.wants(f"series_{nodes}n")]
    return [
        *in_turns(steps, options),
        *in_turns([large()] if options.wants("large") else [], options),
    ]


def in_turns(workloads: list[Workload], options: Options) -> list[Case]:
    """Run both objectives on each, all of them taking turns."""
    cases = [Case(workload, None, *our_parties(workload, options)) for workload in workloads]
    for case in cases:
        table.progress(f"planner: {case.workload.name}")
    interleave(*(party for case in cases for party in (case.utilization, case.cost)))
    return cases


def our_parties(workload: Workload, options: Options) -> tuple[Party, Party]:
    budget_s, runs = (0.6, 5) if options.quick else (5.0, 15)
    return (
        Party("utilization", lambda: plan(workload, Objective.UTILIZATION), budget_s, runs),
        Party("cost", lambda: plan(workload, Objective.COST), budget_s, runs),
    )


def case_figures(cases: list[Case]) -> dict[str, float]:
    figures: dict[str, float] = {}
    if cases:
        figures["parity.mismatches"] = sum(case.differs() for case in cases)
    for case in cases:
        name = case.workload.name
        figures[f"cost_seconds.{name}"] = case.cost.cpu_s
        figures[f"utilization_seconds.{name}"] = case.utilization.cpu_s
        if not case.has_cost_bound:
            figures[f"served.{name}.utilization"] = case.served(case.utilization)
            figures[f"served.{name}.cost"] = case.served(case.cost)
        if case.cost_ratio is not None:
            figures[f"cost_ratio.{name}"] = case.cost_ratio
        if case.speedup is not None:
            figures[f"speedup.{name}"] = case.speedup
        elif case.bounds:
            recorded = case.bounds.ray_2_60.cpu_s_on_a_busy_2_core_machine
            figures[f"speedup_recorded.{name}"] = recorded / case.utilization.cpu_s
    return figures


def growth_figures(prefix: str, family: str, cases: list[Case]) -> dict[str, float]:
    """Return CPU time when everything doubles; the plain name is the worse of the two objectives."""
    sizes = {
        nodes: case
        for case in cases
        for nodes in SERIES
        if case.workload.name.startswith(f"{family}{nodes}n_")
    }
    figures: dict[str, float] = {}
    for low, high in pairwise(SERIES):
        if low in sizes and high in sizes:
            name, small, big = f"{prefix}.{low}_{high}", sizes[low], sizes[high]
            figures[f"{name}.utilization"] = big.utilization.cpu_s / small.utilization.cpu_s
            figures[f"{name}.cost"] = big.cost.cpu_s / small.cost.cpu_s
            figures[name] = max(figures[f"{name}.utilization"], figures[f"{name}.cost"])
    return figures


def large_figures(cases: list[Case]) -> dict[str, float]:
    """Return figures of the 100,000 demands; the plain name is the slower of the two objectives."""
    figures: dict[str, float] = {}
    for case in cases:
        if case.workload.requests == 100_000:
            name = "seconds.100k_demands"
            figures[f"{name}.utilization"] = case.utilization.cpu_s
            figures[f"{name}.cost"] = case.cost.cpu_s
            figures[name] = max(case.utilization.cpu_s, case.cost.cpu_s)
    return figures


def show_cases(cases: list[Case]) -> None:
    if not cases:
        return
    columns = ("workload", "Ray CPU s", "ours CPU s", "speedup", "same launches")
    columns += ("cost CPU s", "Ray $/h", "ours $/h", "over bound")
    table.show("planner: Ray 2.60 and ours, medians of CPU seconds", columns, [case_row(c) for c in cases])
    table.note("r = Ray's time recorded on another machine, not measured now; > = stopped at the limit")


def case_row(case: Case) -> tuple[str, ...]:
    answer = case.bounds.ray_2_60
    ray_s = case.ray.cpu_s if case.ray else answer.cpu_s_on_a_busy_2_core_machine
    mark = ">" if case.ray and case.ray.over_limit else "" if case.ray else "r "
    return (
        case.workload.name,
        table.seconds(ray_s, mark),
        table.seconds(case.utilization.cpu_s),
        table.times(ray_s / case.utilization.cpu_s, mark),
        "NO" if case.differs() else "yes",
        table.seconds(case.cost.cpu_s),
        f"{answer.cost_per_hour:,.2f}",
        f"{case.price(case.cost):,.2f}",
        "-" if case.cost_ratio is None else f"{case.cost_ratio:.4f}",
    )


def show_served(case: Case) -> None:
    """Print how much is served, which counts when the limits bind."""
    asked = case.workload.requests
    answer = case.bounds.ray_2_60
    rows = [("Ray 2.60", f"{asked - answer.infeasible_requests}", f"{answer.cost_per_hour:,.2f}")]
    for party in (case.utilization, case.cost):
        rows.append((f"ours, {party.name}", f"{case.served(party)}", f"{case.price(party):,.2f}"))
    table.show(f"{case.workload.name}: {asked} asked, limits bind", ("planner", "served", "$/h"), rows)


def show_generated(cases: list[Case]) -> None:
    if not cases:
        return
    rows = [
        (
            case.workload.description,
            table.seconds(case.utilization.cpu_s),
            table.seconds(case.cost.cpu_s),
            f"{case.price(case.utilization):,.2f}",
            f"{case.price(case.cost):,.2f}",
        )
        for case in cases
    ]
    columns = ("problem", "utilization CPU s", "cost CPU s", "utilization $/h", "cost $/h")
    table.show("planner: how ours grows", columns, rows)
