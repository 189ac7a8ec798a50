"""The nodes and offers of a problem as states. Made once per problem."""

from __future__ import annotations

from muster.cluster.binpack.request import Book, PackNode, PackProblem
from muster.cluster.binpack.utilization.grouping import Columns, Labels, State, States
from muster.cluster.binpack.utilization.growth import (
    Sizes,
    Units,
    current_sizes,
    grown,
    largest_size,
    new_size,
)

Tail = tuple[float, int, float]
_USUAL: Tail = (1.0, 0, 1.0)  # of a node type that is not offered


class Survey:
    """Looks at every node once; equal looking nodes get the same state."""

    def __init__(self, problem: PackProblem) -> None:
        self.problem = problem
        self.columns = Columns(problem)
        self.states = States(self.columns, problem.conserve_gpus)
        tails: dict[str, Tail] = {
            offer.node_type.name: (offer.recoverable, offer.node_type.priority, offer.availability)
            for offer in problem.offers
        }
        ranks = sorted({_USUAL, *tails.values()}, reverse=True)
        self._tail = {name: ranks.index(tail) for name, tail in tails.items()}
        self._usual_tail = ranks.index(_USUAL)
        self.largest = self._largest()
        self.known_labels = self.columns.lasting_labels | self._carried()
        self._seen: dict[tuple[object, ...], State] = {}

    def _carried(self) -> frozenset[str]:
        """The labels that requests look at and that some node has."""
        wanted = self.columns.labels
        if not wanted:
            return frozenset()
        bearers = [node.labels for node in self.problem.nodes]
        bearers += [offer.node_type.labels for offer in self.problem.offers]
        return frozenset(key for labels in bearers for key in labels if key in wanted)

    def _largest(self) -> dict[int, Units]:
        """Node number -> what it could be enlarged to, for those that can grow."""
        types = {
            offer.node_type.name: offer.node_type
            for offer in self.problem.offers
            if offer.node_type.resize is not None
        }
        sizes = {}
        for number, node in enumerate(self.problem.nodes) if types else ():
            largest = largest_size(node, types.get(node.node_type))
            if largest is not None:
                sizes[number] = largest
        return sizes

    def node_state(self, number: int, book: Book, is_grown: bool = False) -> State:
        """How a node stands before anything is placed on this book."""
        node = self.problem.nodes[number]
        labels = self.columns.labels_of(node.labels)
        if is_grown:
            return self._state(node, grown(current_sizes(node), self.largest[number]), book, labels)
        if node.resize is not None:
            return self._state(node, current_sizes(node), book, labels)
        free = node.available if book is Book.DEMAND else node.total
        key = (node.node_type, node.runs, node.total.key, free.key, labels)
        state = self._seen.get(key)
        if state is None:
            state = self._seen[key] = self._state(node, current_sizes(node), book, labels)
        return state

    def grown_state(self, number: int, book: Book, state: State) -> State:
        """The same node at its largest size, with what was placed on it."""
        node, target = self.problem.nodes[number], self.largest[number]
        sizes = current_sizes(node)
        frame = self._state(node, grown(sizes, target), book, state.labels).frame
        free = list(state.free)
        for name, quantity in target.items():
            column = self.columns.index.get(name)
            if column is not None:
                free[column] = max(0, free[column] + quantity - sizes.total.get(name, 0))
        return self.states.state(frame, state.labels, tuple(free), state.used, state.lead)

    def offer_states(self) -> list[State]:
        """A new machine of each type; the same on both books."""
        made = []
        for offer in self.problem.offers:
            total = new_size(offer.node_type)
            frame = self.states.frame(Sizes(total, total), self._tail[offer.node_type.name], False)
            labels = self.columns.labels_of(offer.node_type.labels)
            made.append(self.states.state(frame, labels, self.columns.free_of(total), 0, ()))
        return made

    def _state(self, node: PackNode, sizes: Sizes, book: Book, labels: Labels) -> State:
        free = sizes.free if book is Book.DEMAND else sizes.total
        tail = self._tail.get(node.node_type, self._usual_tail)
        frame = self.states.frame(Sizes(sizes.total, free), tail, node.runs)
        return self.states.state(frame, labels, self.columns.free_of(free), 0, ())
