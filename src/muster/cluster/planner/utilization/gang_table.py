"""Imported lazily, because it loads numpy: chooses nodes and new machines for gangs, all scored at once.

Scores from arrays differ from the scoring rule in the last bits only; rows that are as close to the best are
compared by the rule itself (`key_of`). Answers are kept for equal gangs, and renewed for rows that changed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from muster.cluster.planner.utilization.fill import Fill, Filler
from muster.cluster.planner.utilization.gang_rows import (
    CLOSE,
    NOTHING,
    Asked,
    Bools,
    Floats,
    GangColumns,
    Ints,
    RowArrays,
    RowKind,
    ScoredRows,
    row_kind,
)
from muster.cluster.planner.utilization.grouping import State
from muster.cluster.planner.utilization.select import Key, NodePurchase, key_of

FAR = 1 << 62  # the rank of a row without candidates
_MOST_CELLS = 2_000_000  # of kept answers: bounds the memory, not the result
_GAP = 1 << 32  # ranks that are left free before the nodes set aside
_FEW = 16  # rows that are scored one by one


class RowScores:
    """What each row would take of the requests that are left, as scores."""

    def __init__(self, rows: int) -> None:
        self.seen = 0  # how much of the table's history is in here
        self.fits: Bools = np.zeros(rows, dtype=bool)  # any shape fits; labels do not matter here
        self.head: Ints = np.full(rows, NOTHING)
        self.lowest: Floats = np.zeros(rows)
        self.mean: Floats = np.zeros(rows)
        self.last: Ints = np.full(rows, -1)  # the last run of which the row takes something
        self.exact: dict[int, tuple[Key, Fill]] = {}

    def resized(self, rows: int) -> RowScores:
        """Return a copy with room for this many rows."""
        made, size = RowScores(rows), len(self.head)
        made.seen, made.exact = self.seen, dict(self.exact)
        made.fits[:size], made.head[:size], made.last[:size] = self.fits, self.head, self.last
        made.lowest[:size], made.mean[:size] = self.lowest, self.mean
        return made

    def note(self, rows: Ints, scored: ScoredRows) -> None:
        self.fits[rows], self.head[rows], self.lowest[rows], self.mean[rows], self.last[rows] = scored
        if self.exact:
            is_new = np.zeros(len(self.head), dtype=bool)
            is_new[rows] = True
            self.exact = {row: known for row, known in self.exact.items() if not is_new[row]}


class Question:
    """What equal gangs ask, with the answers by what is left of the gang."""

    def __init__(self, filler: Filler, columns: GangColumns) -> None:
        self.filler = filler
        self.asked = Asked(filler, columns)
        self.answers: dict[tuple[int, ...], RowScores] = {}


class CandidateTable:
    """Has candidates with their ranks in the list, grouped into rows."""

    def __init__(self, columns: GangColumns) -> None:
        self._columns = columns
        self.arrays = RowArrays(columns)
        self.row_of: Ints = np.zeros(0, dtype=np.int64)  # per candidate; -1: not available
        self.rank: Ints = np.zeros(0, dtype=np.int64)
        self.first: Ints = np.zeros(0, dtype=np.int64)  # per row, the rank of its first candidate
        self._kinds: list[RowKind | None] = []  # None: the row is not in use
        self._samples: dict[int, State] = {}  # a candidate of each row
        self._home: Ints = self.row_of  # per candidate, the row it started in
        self._questions: dict[Filler, Question] = {}
        self._cells = 0  # of the answers to them
        self._history: list[int] = []  # rows, in the order in which they came into use
        self._rows: dict[RowKind, int] = {}
        self._unused: list[int] = []

    def add(self, states: Sequence[State], ranks: Ints) -> bool:
        """Add candidates; return whether all of them can be scored here."""
        kinds = {state: row_kind(state, self._columns) for state in dict.fromkeys(states)}
        if None in kinds.values():
            return False
        rows = {state: self._row(kind, state) for state, kind in kinds.items() if kind is not None}
        self.row_of = np.concatenate([self.row_of, np.array([rows[s] for s in states], dtype=np.int64)])
        self._home = self.row_of.copy()
        self.rank = np.concatenate([self.rank, ranks])
        self.renew_first(len(self.rank) - len(ranks) + np.argsort(ranks))
        return True

    def put(self, candidate: int, state: State, rank: int) -> None:
        """Put a candidate into the row of its new state."""
        kind = row_kind(state, self._columns)
        assert kind is not None  # taking requests does not change whether a candidate can be scored here
        row = self.row_of[candidate] = self._row(kind, state)
        self.rank[candidate] = rank
        self.first[row] = min(self.first[row], rank)

    def renew_first(self, candidates: Ints) -> None:
        """Note the first candidate of each row that these, given by rank, are in."""
        ordered = candidates[::-1]
        least = np.full(len(self.first), FAR)
        least[self.row_of[ordered]] = self.rank[ordered]  # of several, the last one stays: the lowest
        np.minimum(self.first, least, out=self.first)

    def take(self, row: int) -> int:
        """Remove the first candidate of a row and return it."""
        mine = (self.row_of == row).nonzero()[0]
        ranks = self.rank[mine]
        at = int(ranks.argmin())
        self.row_of[mine[at]] = -1
        ranks[at] = FAR
        self.first[row] = ranks.min()
        return int(mine[at])

    def restart(self, candidates: Sequence[int]) -> None:
        """Make these the candidates, in the order of their numbers; the others are not available."""
        some = np.array(candidates, dtype=np.int64)
        self.row_of = np.full(len(self.rank), -1)
        self.row_of[some] = self._home[some]
        self.rank = np.arange(len(self.rank))
        self.first = np.full(len(self.first), FAR)
        self.renew_first(some)

    def move(self, ordered: Ints, rank: int) -> None:
        """Give candidates new ranks from `rank` on, before all others in their rows; they come by rank."""
        self.rank[ordered] = rank + np.arange(len(ordered))
        self.first[self.row_of[ordered]] = FAR
        self.renew_first(ordered)

    def in_rows(self, chosen: Bools) -> Ints:
        """Return the candidates in these rows, by rank."""
        mine = np.append(chosen, False)[self.row_of].nonzero()[0]
        ordered: Ints = mine[np.argsort(self.rank[mine])]
        return ordered

    def put_back(self, candidate: int, row: int) -> None:
        self.row_of[candidate] = row
        self.first[row] = min(self.first[row], self.rank[candidate])

    def release(self, row: int) -> None:
        """Free a row that no candidate is in any more."""
        kind = self._kinds[row]
        if self.first[row] == FAR and kind is not None:
            del self._rows[kind]
            self._kinds[row] = None
            self._unused.append(row)

    def _row(self, kind: RowKind, state: State) -> int:
        row = self._rows.get(kind)
        if row is None:
            if not self._unused:
                old, more = len(self.first), max(64, len(self.first))
                self.first = np.concatenate([self.first, np.full(more, FAR)])
                self.arrays.enlarge(more)
                self._kinds += [None] * more
                self._unused += reversed(range(old, old + more))
            row = self._rows[kind] = self._unused.pop()
            self._kinds[row], self._samples[row], self.first[row] = kind, state, FAR
            self._history.append(row)
            self.arrays.write(row, kind)
        return row

    def ask(self, filler: Filler) -> Question:
        """Return the question of gangs that share this filler."""
        found = self._questions.get(filler)
        if found is None:
            found = self._questions[filler] = Question(filler, self._columns)
        return found

    def answer(self, question: Question, before: RowScores | None = None) -> RowScores:
        """Return the scores of all rows for what is left of a gang; `before`: when a bit more was left."""
        left = tuple(question.filler.left)
        known = question.answers.get(left)
        if known is None:
            if self._cells > _MOST_CELLS:
                self._questions.clear()
                question.answers.clear()
                self._cells = 0
            known = self._derived(question, before) if before is not None else RowScores(0)
            self._cells += len(self.first)
        if len(known.head) < len(self.first):
            known = known.resized(len(self.first))
        question.answers[left] = known
        if known.seen == len(self._history):
            return known
        is_old = len(self._history) - known.seen < len(self._rows)
        changed = set(self._history[known.seen :]) if is_old else self._rows.values()
        known.seen = len(self._history)
        if len(changed) <= _FEW:
            self._score_each(question, known, changed)
        else:
            rows = np.fromiter(changed, np.int64, len(changed))
            known.note(rows, self.arrays.score(question.asked, rows))
        return known

    def _derived(self, question: Question, before: RowScores) -> RowScores:
        """Return the scores after one row took: if each takes one request, only some rows change."""
        if not question.asked.spread:
            return RowScores(0)
        known = before.resized(len(before.head))
        gone = np.array([not left for left in question.filler.left])
        rows = (gone[known.last] & (known.last >= 0)).nonzero()[0]
        known.note(rows, self.arrays.score(question.asked, rows))
        return known

    def _score_each(self, question: Question, known: RowScores, rows: Iterable[int]) -> None:
        filler = question.filler
        for row in rows:
            state = self._samples[row]
            fitting = filler.fitting(state.free)
            known.fits[row], known.head[row], known.last[row] = bool(fitting), NOTHING, -1
            known.exact.pop(row, None)
            fill = filler.fill(state, fitting)
            if fill is not None:
                key = key_of(state, fill, filler)
                known.exact[row] = (key, fill)
                known.head[row], known.lowest[row], known.mean[row] = key[0], -key[1], -key[2]
                known.last[row] = fill.takes[-1][0]

    def best(self, question: Question, known: RowScores) -> int:
        """Return the row of the best candidate; -1 when none takes anything."""
        heads = np.where(self.first < FAR, known.head, NOTHING)
        top = int(heads.min(initial=NOTHING))
        if top == NOTHING:
            return -1
        rows = (heads == top).nonzero()[0]
        rows = rows[_close(known.lowest[rows])]
        if len(rows) > 1 and self._share_lowest(question, known, rows):
            rows = rows[_close(known.mean[rows])]
        if len(rows) == 1:
            return int(rows[0])
        ranked = [(self._exact(question, known, row)[0], int(self.first[row]), row) for row in rows.tolist()]
        best: int = min(ranked)[2]
        return best

    def _share_lowest(self, question: Question, known: RowScores, rows: Ints) -> bool:
        """Return whether the lowest worths, which are close, are surely equal."""
        lowest = float(known.lowest[rows[0]])
        return lowest == 0.0 or (len(rows) > _FEW and self.arrays.same_lowest(question.asked, rows, lowest))

    def _exact(self, question: Question, known: RowScores, row: int) -> tuple[Key, Fill]:
        found = known.exact.get(row)
        if found is None:
            state, filler = self._samples[row], question.filler
            fill = filler.fill(state, filler.fitting(state.free))
            assert fill is not None
            found = known.exact[row] = (key_of(state, fill, filler), fill)
        return found

    def fill(self, question: Question, known: RowScores, row: int, state: State) -> Fill:
        """Return what a candidate of this row takes."""
        if row in known.exact and self._samples[row] is state:
            return known.exact[row][1]
        found = question.filler.fill(state, question.filler.fitting(state.free))
        assert found is not None
        return found


def _close(values: Floats) -> Bools:
    top = values.max()
    close: Bools = values >= top - abs(top) * CLOSE
    return close


class _Aside:
    """Nodes that the last gang set aside, at the end of the list."""

    filler: Filler | None = None  # what the gang asked; None: they are not at the end any more
    start = 0  # the rank of the first one; many ranks before it are not in use
    picked: Sequence[int] = ()  # nodes that were picked since


class GangTable:
    """Chooses nodes and new machines for gangs; it holds the list of nodes as ranks."""

    def __init__(self, columns: GangColumns, offers: Sequence[State]) -> None:
        self._nodes = CandidateTable(columns)
        self._offers = CandidateTable(columns)
        self._offer_states = offers
        self._front = 0  # below every rank
        self._back = 0  # above every rank
        self._aside = _Aside()
        self._taken: list[tuple[int, int]] = []  # node, row: by the attempt under way
        self._barred: Bools = np.zeros(0, dtype=bool)  # rows that the attempt under way sets aside
        self.is_usable = columns.fits and self._offers.add(offers, np.arange(len(offers)))

    def load(self, states: Sequence[State], order: Sequence[int]) -> None:
        """Read the nodes and their order."""
        ranks = np.zeros(len(states), dtype=np.int64)
        ranks[np.array(order, dtype=np.int64)] = np.arange(len(states))
        self._back = len(states)
        self.is_usable = self.is_usable and self._nodes.add(states, ranks)

    def order(self) -> list[int]:
        """Return the node numbers in list order."""
        found: list[int] = np.argsort(self._nodes.rank, kind="stable").tolist()
        return found

    def choose_nodes(self, filler: Filler, states: Sequence[State]) -> list[tuple[list[int], State, Fill]]:
        """Return the best node first, each at most once, until nothing is left or nothing more fits."""
        question, nodes = self._nodes.ask(filler), self._nodes
        known = nodes.answer(question)
        self._barred = ~known.fits & nodes.arrays.may_be_set_aside()
        self._taken = []
        picks = []
        while (row := nodes.best(question, known)) >= 0:
            node = nodes.take(row)
            fill = nodes.fill(question, known, row, states[node])
            self._taken.append((node, row))
            picks.append(([node], states[node], fill))
            for run, amount in fill.takes:
                filler.take(run, amount)
            if not filler.alive:
                break
            known = nodes.answer(question, known)
        return picks

    def choose_offers(self, filler: Filler, rooms: Sequence[int], room: int | None) -> list[NodePurchase]:
        """Return the best type first; a type that was launched goes to the end of the list."""
        question, offers, left = self._offers.ask(filler), self._offers, list(rooms)
        offers.restart([offer for offer, amount in enumerate(left) if amount > 0])
        purchases: list[NodePurchase] = []
        while filler.alive and (room is None or len(purchases) < room):
            known = offers.answer(question)
            row = offers.best(question, known)
            if row < 0:
                break
            offer = offers.take(row)
            fill = offers.fill(question, known, row, self._offer_states[offer])
            purchases.append(NodePurchase(offer, fill, 1))
            for run, amount in fill.takes:
                filler.take(run, amount)
            left[offer] -= 1
            offers.rank[offer] = len(left) + len(purchases)
            if left[offer] > 0:
                offers.put_back(offer, row)
        return purchases

    def undo(self) -> None:
        """Forget the attempt under way."""
        for node, row in reversed(self._taken):
            self._nodes.put_back(node, row)
        self._taken = []

    def commit(self, filler: Filler, states: Sequence[State]) -> None:
        """Reorder the list as the attempt under way did: picked, others, set aside, new."""
        nodes, old = self._nodes, len(self._nodes.rank)
        self._set_aside(filler)
        self._front -= len(self._taken)
        for place, (node, _) in enumerate(self._taken):
            nodes.put(node, states[node], self._front + place)
        for _, row in self._taken:
            nodes.release(row)
        self._aside.picked = [node for node, _ in self._taken]
        if len(states) > old:
            ranks = self._back + np.arange(len(states) - old)
            nodes.add(states[old:], ranks)
            self._back += len(ranks)
            self._aside.filler = None  # the new ones are behind them
        self._taken = []

    def _set_aside(self, filler: Filler) -> None:
        """Move nodes that fit nothing to the end, in order; after an equal gang most of them are there."""
        nodes, aside = self._nodes, self._aside
        if aside.filler is filler:
            found = sorted(aside.picked, key=lambda node: int(nodes.rank[node]))
            more = [node for node in found if nodes.row_of[node] >= 0 and self._barred[nodes.row_of[node]]]
            if more:
                aside.start -= len(more)
                nodes.move(np.array(more), aside.start)
            return
        everyone = nodes.in_rows(self._barred)
        aside.filler, aside.start = filler, self._back + _GAP
        nodes.move(everyone, aside.start)
        self._back = aside.start + len(everyone)
