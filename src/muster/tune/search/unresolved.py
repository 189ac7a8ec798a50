"""What in a specification is still open: grids, domains and functions, by path. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from types import CodeType
from typing import Any

from muster.tune.search.paths import Path, children, flat_name, is_container, sort_key
from muster.tune.search.sample import Categorical, Domain, Float, Function, Integer

_LEAVES = (int, float, str, bool, type(None))
Grids = list[tuple[Path, Sequence[Any]]]


class Expression(Function):
    """`{"eval": "..."}`: a Python expression over `spec`, and `np` and `random` if it names them."""

    def __init__(self, text: str) -> None:
        super().__init__(lambda spec: spec)
        try:
            self._code = compile(text, "<eval>", "eval")
        except (SyntaxError, TypeError, ValueError) as error:
            raise ValueError(f"Failed to evaluate expression: {text!r}: {error}") from error
        self.func: Callable[..., Any] = self._evaluate
        self.text = text

    def _evaluate(self, spec: Any) -> Any:  # noqa: ANN401
        return eval(self._code, {"spec": spec, **_modules(self._code)})

    @property
    def domain_str(self) -> str:
        return self.text

    def __repr__(self) -> str:
        return self.text


def _modules(code: CodeType) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if "np" in code.co_names:
        import numpy

        found["np"] = numpy
    if "random" in code.co_names:
        import random  # noqa: TID251 - the user's expression asks for it

        found["random"] = random
    return found


class Unresolved:
    """The open places of one specification, in the order in which they are drawn."""

    __slots__ = ("_is_final", "domains", "functions", "grids", "paths")

    def __init__(self) -> None:
        self.grids: Grids = []  # sorted by path; the first varies fastest
        self.domains: dict[Path, Domain] = {}
        self.functions: dict[Path, Function] = {}
        self.paths: list[Path] = []  # random variables first, then grids
        self._is_final: bool | None = None

    def __bool__(self) -> bool:
        return bool(self.paths)

    @property
    def size(self) -> int:
        """How many points the grids have together."""
        product = 1
        for _, options in self.grids:
            product *= len(options)
        return product

    @property
    def is_final(self) -> bool:
        """Only numbers and plain options are to be drawn: once they are, nothing can be open any more."""
        if self._is_final is None:
            drawn = self.domains.values()
            self._is_final = not self.grids and not self.functions and all(map(_gives_leaves, drawn))
        return self._is_final

    def grid_point(self, index: int) -> dict[Path, Any]:
        """The grid values of one point, found by its index alone."""
        point = {}
        for path, options in self.grids:
            index, digit = divmod(index, len(options))
            point[path] = options[digit]
        return point


def find_unresolved(parts: Iterator[tuple[Path, Any]]) -> Unresolved:
    """The open places below the given (path, value) pairs."""
    found = Unresolved()
    for path, value in parts:
        _collect(value, path, found)
    found.grids.sort(key=lambda grid: sort_key(grid[0]))
    found.paths.extend(path for path, _ in found.grids)
    return found


def searched_keys(space: Mapping[str, Any]) -> tuple[str, ...]:
    """Flat names of what is searched: domains, grids and expressions."""
    return tuple(flat_name(path) for path in find_unresolved(iter([((), dict(space))])).paths)


def has_unresolved_values(config: Any) -> bool:  # noqa: ANN401
    """Whether a domain, a grid or a function is anywhere in the configuration."""
    return bool(find_unresolved(iter([((), config)])))


def _gives_leaves(domain: Domain) -> bool:
    if type(domain) is Categorical:
        return all(isinstance(option, _LEAVES) for option in domain.categories)
    return type(domain) in (Float, Integer)


def _collect(node: Any, path: Path, found: Unresolved) -> None:  # noqa: ANN401
    if isinstance(node, Domain):
        _collect_domain(node, path, found)
    elif isinstance(node, dict) and len(node) == 1 and "grid_search" in node:
        found.grids.append((path, _options(node["grid_search"], path)))
    elif isinstance(node, dict) and len(node) == 1 and "eval" in node:
        _collect_domain(Expression(node["eval"]), path, found)
    elif is_container(node):
        for key, child in children(node):
            _collect(child, (*path, key), found)


def _collect_domain(domain: Domain, path: Path, found: Unresolved) -> None:
    if isinstance(domain, Categorical) and domain.is_grid():
        found.grids.append((path, domain.categories))
        return
    found.paths.append(path)
    if isinstance(domain, Function):
        found.functions[path] = domain
    else:
        found.domains[path] = domain


def _options(values: Any, path: Path) -> Sequence[Any]:  # noqa: ANN401
    if not isinstance(values, str) and hasattr(values, "__len__") and hasattr(values, "__getitem__"):
        return values  # type: ignore[no-any-return]
    try:
        return list(values)
    except TypeError:
        raise ValueError(f"grid_search at {path} needs a list of values, not {values!r}") from None
