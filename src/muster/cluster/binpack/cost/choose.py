"""Which way to ask for each gang: the first option that could be held, in the place that suits it best.

Called by `demand`. Only looks at the stock; equal gangs come out as one squad.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from muster.cluster.binpack.cost.asks import Avoidance
from muster.cluster.binpack.cost.forms import Form
from muster.cluster.binpack.cost.inventory import Stock
from muster.cluster.model import Gang


class Choice(NamedTuple):
    """The form a gang asks for; `label` when nodes carry the gang's mark already."""

    form: Form
    label: str


def choose(stock: Stock, gangs: Sequence[Gang], forms: Sequence[Sequence[Form]]) -> dict[int, Choice]:
    """Per gang what it asks for; gangs of which no form could be held are left out."""
    best_place: dict[tuple[Form, ...], Form] = {}
    chosen: dict[int, Choice] = {}
    for index, gang in enumerate(gangs):
        ways = tuple(way for way in forms[index] if _plausible(stock, way))
        if not ways:
            continue
        if gang.locality_label and ways not in best_place:
            best_place[ways] = _by_place(stock, gang, ways)[0]
        form = best_place[ways] if gang.locality_label else ways[0]
        marked = form.apart and stock.has_label(gang.label)
        chosen[index] = Choice(form, gang.label if marked else "")
    return chosen


def squads_of(chosen: dict[int, Choice], gangs: Iterable[int]) -> list[tuple[tuple[int, ...], Form]]:
    """Equal ones of these gangs together; those that spread share their places."""
    members: dict[Choice, list[int]] = {}
    for gang in gangs:
        members.setdefault(chosen[gang], []).append(gang)
    result = []
    for number, (choice, equal) in enumerate(members.items()):
        mark = Avoidance(choice.label, None, len(equal), number)
        result.append((tuple(equal), choice.form.marked(mark) if choice.form.apart else choice.form))
    return result


def ways_of(stock: Stock, gang: Gang, forms: Sequence[Form]) -> list[Form]:
    """Forms of one gang on its own, in order; with a locality, the cheapest place first."""
    able = [form for form in forms if _plausible(stock, form)]
    if gang.locality_label:
        able = _by_place(stock, gang, able)
    return [_alone(gang, form) for form in able]


def _plausible(stock: Stock, form: Form) -> bool:
    return bool(form.parts) and all(stock.holds(part.ask) for part in form.parts)


def _alone(gang: Gang, form: Form) -> Form:
    return form.marked(Avoidance(gang.label, None, 1, 0)) if form.apart else form


def _by_place(stock: Stock, gang: Gang, forms: Sequence[Form]) -> list[Form]:
    """Complete before incomplete, then by option, then by what it costs with the stock for itself."""
    ranks = []
    for index, form in enumerate(forms):
        parts = _alone(gang, form).parts
        wanted = np.array([float(part.each) for part in parts])
        proposal = stock.propose([part.ask for part in parts], wanted)
        missing = float(wanted.sum() - proposal.amounts.sum())
        ranks.append((missing > 0, form.option, proposal.cost, index))
    return [forms[rank[-1]] for rank in sorted(ranks)]
