"""Writes one experiment, with or without a cluster, as one HTML file that needs no server and no network."""

from __future__ import annotations

import base64
import json
import re
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from muster.base.codec import encode_plain
from muster.errors import StoreError
from muster.host.atomic_write import atomic_write
from muster.page.catalog import Catalog
from muster.page.experiment_session import ExperimentSession
from muster.page.trial_drawer import describe

MAX_DETAILED = 300  # trials with everything that the drawer shows: the best and those that failed
MAX_CURVES = 40  # trials with their own curve: the best
_MODULES = (
    "format",
    "data",
    "selection",
    "parallel",
    "charts",
    "timeline",
    "trials",
    "drawer",
    "cluster",
    "main",
)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[^"]+";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)
_EXPORTS = re.compile(r"export\{([^}]*)\};?\s*$")
_CSP = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def write_report(catalog: Catalog, target: Path) -> int:
    """Writes the file and returns its size; raises MusterError when the experiment cannot be read."""
    content = report(catalog).encode(errors="replace")
    try:
        atomic_write(target, content)
    except OSError as error:
        raise StoreError(
            f"{target} cannot be written ({error.strerror})", fix="choose another file"
        ) from error
    return len(content)


def report(catalog: Catalog) -> str:
    """Returns the page as one text: styles, scripts and data in it."""
    data = report_data(catalog)
    # In a script element only `</script` and `<!--` would end or change it: no `<` at all is left.
    text = json.dumps(data, separators=(",", ":"), default=str).replace("<", "\\u003c")
    styles = f"{_static('vendor/uplot.css')}\n{_static('style.css')}"
    name = next((one["name"] for one in data["list"]["experiments"]), "report")
    title = re.sub(r"[<>&\"]", " ", str(name))
    return "\n".join(
        (
            '<!doctype html><html lang="en"><head><meta charset="utf-8">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            f'<meta http-equiv="Content-Security-Policy" content="{_CSP}">',
            f"<title>{title} · muster</title><style>{styles}</style></head>",
            '<body><div id="page"></div>',
            f'<script type="application/json" id="muster-data">{text}</script>',
            f"<script>{_static('vendor/uplot.js')}</script>",
            f'<script type="module">{bundle()}</script></body></html>',
        )
    )


def bundle() -> str:
    """Returns the page's modules as one: their imports and exports only name each other."""
    vendor = _static("vendor/preact-htm.js")
    found = _EXPORTS.search(vendor)
    if found is None:
        raise StoreError("the vendored preact-htm.js is not what it was: install muster again")
    names = [part.split(" as ") for part in found.group(1).split(",")]
    returned = ", ".join(f"{outside}: {inside}" for inside, outside in names)
    used = "{ h, html, render, useEffect, useLayoutEffect, useMemo, useRef, useState }"
    parts = [f"const {used} = (() => {{ {vendor[: found.start()]}; return {{ {returned} }}; }})();"]
    for name in _MODULES:
        parts.append(_EXPORT.sub("", _IMPORT.sub("", _static(f"{name}.js"))))
    return "\n".join(parts)


def report_data(catalog: Catalog) -> dict[str, Any]:
    """Returns everything that the page would ask a server for."""
    listing = catalog.listing()
    data: dict[str, Any] = {
        "list": listing,
        **{part: {} for part in ("tables", "curves", "raw", "trials", "lineage", "clusters")},
    }
    for row in listing["experiments"]:
        session = catalog.experiment(row["key"])
        if session is not None:
            _add_experiment(data, row["key"], session)
    for row in listing["clusters"]:
        source = catalog.cluster(row["key"])
        if source is not None:
            data["clusters"][row["key"]] = json.loads(encode_plain(source.view()))
    return data


def _add_experiment(data: dict[str, Any], key: str, session: ExperimentSession) -> None:
    session.read_all()
    with session.lock:
        summary, metrics = session.summary(), session.curves.rows.metrics if session.curves.rows else ()
        ranked = _ranked(session, summary)
        status = session.table.columns["trial/status"]
        is_error = status.values[: len(session.table)] == status.words.get("ERROR")
        failed = [int(row) for row in np.flatnonzero(is_error) if row not in ranked[:MAX_DETAILED]]
    data["tables"][key] = base64.b64encode(session.encoded()).decode()
    data["curves"][key] = {metric: session.curve_band(metric) for metric in metrics}
    data["lineage"][key] = session.lineage()
    best = ranked[:MAX_CURVES]
    data["raw"][key] = {
        f"{row}/{metric}": points
        for metric in metrics[:3]
        for row, points in session.curves_of(best, metric).items()
    }
    chosen = [*ranked[: MAX_DETAILED - min(len(failed), 100)], *failed[:100]]
    data["trials"][key] = {}
    for row in chosen:
        trial_id = session.table.ids[row]
        trial = session.trial(trial_id)
        if trial is not None:
            data["trials"][key][trial_id] = describe(trial, session.path, session.folder_of(trial_id))


def _ranked(session: ExperimentSession, summary: dict[str, Any]) -> list[int]:
    metric = summary["metric"]
    values = session.table.numbers([metric]).get(metric)
    if values is None:
        return list(range(len(session.table)))
    worst = np.inf if summary["mode"] == "min" else -np.inf
    filled = np.where(np.isfinite(values), values, worst)
    order = np.argsort(filled if summary["mode"] == "min" else -filled, kind="stable")
    return [int(row) for row in order]


def _static(name: str) -> str:
    place = resources.files("muster.page") / "static"
    for part in name.split("/"):
        place = place / part
    return place.read_text(encoding="utf-8")
