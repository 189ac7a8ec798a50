"""Encode rows and orders for the process that writes them as plain data in `marshal`, and decodes them.

Nothing is pickled: the other process must not import what the user's values are made of. Of a value that is
neither plain nor numpy's, what the files show of it travels. Configs and keys travel once, not in every row.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from muster.base.framing import is_plain, pack, unpack
from muster.tune.logger.files.json_rows import ForeignValue, encode
from muster.tune.logger.files.trial_log import TBX, Entry, TrialLog
from muster.tune.logger.tensorboard.events import as_float
from muster.tune.logger.tensorboard.hparams import hparams_of

_SCALARS = frozenset({int, float, str, bool, type(None), bytes})
_KEYS = frozenset({str, int, float, bool, type(None)})
_MOST_SCHEMAS = 256
_OPEN, _CONFIG = "open", "config"  # our own verbs, beside those of TrialLog
_NUMPY, _ENCODED = 0, 1
NonPlain = tuple[Any, ...]  # where in the row, and what belongs there


class Packer:
    """Encodes entries in the driver; it reports rows that cannot be encoded and leaves them out."""

    def __init__(self, report_problem: Callable[[str, Exception], None]) -> None:
        self._report_problem = report_problem
        self._schemas: dict[tuple[Any, ...], tuple[int, int]] = {}  # keys -> number, place of the config
        self._last_number = 0

    def packed(self, entries: Sequence[Entry]) -> bytes:
        """Return entries as bytes, in their order."""
        out: list[tuple[Any, ...]] = []
        add, schemas = out.append, self._schemas
        for entry in entries:
            log, kinds, what, at = entry
            try:
                if not log.number:
                    self._last_number += 1
                    log.number = self._last_number
                    out.append((log.number, 0, _OPEN, log.directory, log.hand_over()))
                if not kinds:
                    self._order(log, what, out)
                    continue
                schema = schemas.get(tuple(what))
                if schema is None:
                    schema = self._schema(what, out)
                number, place = schema
                values = list(what.values())
                if place >= 0:
                    if values[place] is not log.sent_config:
                        self._config(log, values[place], out)
                    values[place] = None
                if _SCALARS.issuperset(map(type, values)):
                    add((log.number, kinds, at, number, values))
                else:
                    others: list[NonPlain] = []  # what belongs where a value is not plain, and None is
                    plain = [_plain_value(value, (place,), others) for place, value in enumerate(values)]
                    add((log.number, kinds, at, number, plain, others))
            except Exception as error:  # noqa: BLE001 - a user's value may do anything when it is turned into text
                self._report_problem(log.directory, error)
        return pack(out)

    def _schema(self, row: dict[Any, Any], out: list[tuple[Any, ...]]) -> tuple[int, int]:
        if len(self._schemas) >= _MOST_SCHEMAS:
            self._schemas.clear()
        keys = tuple(row)
        place = keys.index("config") if "config" in keys else -1
        schema = self._schemas[keys] = (len(self._schemas), place)
        out.append((0, *schema, [_plain_key(key) for key in keys]))
        return schema

    def _config(self, log: TrialLog, config: Any, out: list[tuple[Any, ...]]) -> None:  # noqa: ANN401
        # In rows it is written to result.json only: what JSON makes of it is all that is needed of it.
        plain = config if is_plain(config) else json.loads(encode(config))
        pack(plain)  # too deep for marshal: better now than with all the others
        out.append((log.number, 0, _CONFIG, plain))
        log.sent_config = config

    def _order(self, log: TrialLog, order: tuple[Any, ...], out: list[tuple[Any, ...]]) -> None:
        verb, *details = order
        if verb == "start":
            kinds, config, after, at = details
            is_known = is_plain(config)
            params = None if is_known else log.params(self._report_problem, config)
            hparams = None if is_known else hparams_of(config)
            if kinds & TBX:
                log.note_session(config, at)  # for the case that the process ends suddenly
            if config is not log.sent_config:
                self._config(log, config, out)
            out.append((log.number, 0, verb, kinds, after, at, params, hparams))
        else:
            out.append((log.number, 0, verb, *details))
        if verb == "end":
            log.number, log.sent_config = 0, None


class Unpacker:
    """Makes the same entries again in the process that writes them."""

    def __init__(self) -> None:
        self._schemas: dict[int, tuple[list[Any], int]] = {}
        self._logs: dict[int, TrialLog] = {}
        self._configs: dict[int, Any] = {}

    def entries(self, payload: bytes) -> list[Entry]:
        found: list[Entry] = []
        for item in unpack(payload):
            number, kinds = item[0], item[1]
            if number == 0:
                self._schemas[kinds] = (item[3], item[2])
            elif not kinds:
                self._order(number, item[2:], found)
            else:
                keys, place = self._schemas[item[3]]
                row = dict(zip(keys, item[4], strict=True))
                if place >= 0:
                    row["config"] = self._configs.get(number)
                if len(item) > 5:
                    _insert_non_plain(
                        row, [((keys[at], *path), *encodings) for (at, *path), *encodings in item[5]]
                    )
                found.append((self._logs[number], kinds, row, item[2]))
        return found

    def _order(self, number: int, order: tuple[Any, ...], found: list[Entry]) -> None:
        verb = order[0]
        if verb == _OPEN:
            self._logs[number] = TrialLog(order[1], *order[2])
            return
        if verb == _CONFIG:
            self._configs[number] = order[1]
            return
        log = self._logs[number]
        if verb == "start":
            _, kinds, after, at, params, hparams = order
            config = self._configs.get(number) if params is None else hparams
            order = ("start", kinds, config, after, at, params)
        elif verb == "end":
            del self._logs[number]
            self._configs.pop(number, None)
        found.append((log, 0, order, 0.0))


def _plain_key(key: object) -> Any:  # noqa: ANN401 - plain
    return key if type(key) in _KEYS else str(key)


def _plain_value(value: Any, path: tuple[Any, ...], others: list[NonPlain]) -> Any:  # noqa: ANN401
    if is_plain(value):
        return value
    if isinstance(value, dict):  # its values have their own columns, so each is encoded by itself
        return {
            (plain := _plain_key(key)): _plain_value(inner, (*path, plain), others)
            for key, inner in value.items()
        }
    if type(value).__module__ == "numpy" and (array := _array(value)) is not None:
        others.append((path, _NUMPY, array))
    else:
        is_number = hasattr(value, "__float__") and not isinstance(value, (str, bytes))
        number = as_float(value) if is_number else float("nan")
        others.append((path, _ENCODED, str(value), number, encode(value), _array(value)))
    return None


def _array(value: Any) -> tuple[str, tuple[int, ...], bytes] | None:  # noqa: ANN401 - numpy's, torch's ...
    """Return the numbers of an array; None when the value has no shape or holds no numbers."""
    if not hasattr(value, "ndim"):
        return None
    import numpy as np

    try:
        found = np.asarray(value.detach().cpu() if hasattr(value, "detach") else value)
    except Exception:  # noqa: BLE001 - a user's object may do anything when it is turned into an array
        return None
    return (found.dtype.str, found.shape, found.tobytes()) if found.dtype.kind in "biuf" else None


def _insert_non_plain(row: dict[Any, Any], others: Sequence[NonPlain]) -> dict[Any, Any]:
    for path, form, *encodings in others:
        inner = row
        for key in path[:-1]:
            inner = inner[key]
        array = None if encodings[-1] is None else _array_again(*encodings[-1])
        inner[path[-1]] = (
            array if form == _NUMPY else ForeignValue(encodings[0], encodings[1], encodings[2], array)
        )
    return row


def _array_again(kind: str, shape: tuple[int, ...], data: bytes) -> Any:  # noqa: ANN401 - numpy's
    import numpy as np

    found = np.frombuffer(data, kind).reshape(shape)
    return found if shape else found[()]
