"""Write one experiment, with or without a cluster, as one HTML file that needs no server and no network."""

from __future__ import annotations

import base64
import contextlib
import json
import re
from collections.abc import Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from muster.base.codec import encode_plain
from muster.errors import MusterError, StoreError
from muster.host.atomic_write import atomic_write
from muster.page.catalog import Catalog
from muster.page.cluster_source import ClusterSource
from muster.page.experiment_session import ExperimentSession
from muster.page.trial_arrays import MASK, is_secret
from muster.page.trial_drawer import describe
from muster.trials.metrics import flatten

MAX_DETAILED = 300  # trials with everything that the drawer shows: the best and those that failed
MAX_CURVES = 200  # trials with their own curve: the best
MAX_ANSWERS = 100  # of `muster why`, in a report with a cluster
_OPENED = ("experiments", "clusters")  # a report opens with the only experiment, and its cluster
MIN_SECRET = 6  # characters: what is shorter is too common in logs to mask
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
    "compare",
    "list",
    "main",
)
_IMPORT = re.compile(r'^import \{[^}]*\} from "\./[^"]+";\n', re.MULTILINE)
_EXPORT = re.compile(r"^export (?=(?:async )?(?:function|class|const|let) )", re.MULTILINE)
_EXPORTS = re.compile(r"export\{([^}]*)\};?\s*$")
_CSP = "default-src 'none'; script-src 'unsafe-inline'; style-src 'unsafe-inline'; img-src data:"


def write_report(catalog: Catalog, target: Path, *, masks: bool = True) -> int:
    """Write the file and return its size; raise MusterError when the experiment cannot be read."""
    content = report(catalog, masks=masks).encode(errors="replace")
    try:
        atomic_write(target, content)
    except OSError as error:
        raise StoreError(
            f"{target} cannot be written ({error.strerror})", fix="choose another file"
        ) from error
    return len(content)


def report(catalog: Catalog, *, masks: bool = True) -> str:
    """Return the page as one text: styles, scripts and data in it."""
    data = report_data(catalog, masks=masks)
    return page_of(data, next((one["name"] for one in data["list"]["experiments"]), "report"))


def page_of(data: dict[str, Any], name: str) -> str:
    """Return a page that holds its data."""
    # In a script element only `</script` and `<!--` would end or change it: no `<` at all is left.
    text = json.dumps(data, separators=(",", ":"), default=str).replace("<", "\\u003c")
    styles = f"{_static('vendor/uplot.css')}\n{_static('style.css')}"
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
    """Return the page's modules as one: their imports and exports only name each other."""
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


def report_data(catalog: Catalog, *, masks: bool = True) -> dict[str, Any]:
    """Return everything that the page would ask a server for; `masks` hides what is named like a secret."""
    listing = catalog.listing()
    start = "&".join(f"{part[0]}={listing[part][0]['key']}" for part in _OPENED if listing[part])
    data: dict[str, Any] = {
        "list": listing,
        "start": start if len(listing["experiments"]) == 1 else "",
        **{part: {} for part in ("tables", "curves", "raw", "trials", "lineage", "clusters", "why")},
    }
    for row in listing["experiments"]:
        if session := catalog.experiment(row["key"]):
            _add_experiment(data, row["key"], session, masks=masks)
    for row in listing["clusters"]:
        if source := catalog.cluster(row["key"]):
            view = data["clusters"][row["key"]] = json.loads(encode_plain(source.view()))
            data["why"][row["key"]] = dict(_answers(source, view))
    return data


def _answers(source: ClusterSource, view: dict[str, Any]) -> Iterator[tuple[str, object]]:
    """Yield what `muster why` says about the newest subjects that the page links."""
    ids = [machine["machine"] for machine in view["machines"][::-1]]
    shown = view["decisions"][:80]
    ids += [
        str(each[key])
        for one in shown
        for each in one["verdicts"]
        for key in ("subject_id", "target")
        if each.get(key)
    ]
    for subject in list(dict.fromkeys(["demand", *ids]))[:MAX_ANSWERS]:
        with contextlib.suppress(MusterError):
            yield subject, source.why(subject)


def _add_experiment(data: dict[str, Any], key: str, session: ExperimentSession, *, masks: bool) -> None:
    session.read_all()
    with session.lock:
        summary, metrics = session.summary(), session.curves.rows.metrics if session.curves.rows else ()
        ranked = _ranked(session, summary)
        status = session.table.columns["trial/status"]
        is_error = status.values[: len(session.table)] == status.words.get("ERROR")
        failed = [int(row) for row in np.flatnonzero(is_error) if row not in ranked[:MAX_DETAILED]]
    data["tables"][key] = base64.b64encode(session.encoded(masks=masks)).decode()
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
            folder = session.folder_of(trial_id)
            described = describe(trial, session.path, folder, masks=masks)
            data["trials"][key][trial_id] = _without_secrets(described, trial.config) if masks else described


def _without_secrets(described: dict[str, Any], config: Mapping[str, Any]) -> dict[str, Any]:
    """Mask the config's values that are named like secrets where logs and errors repeat them."""
    text = json.dumps(described)
    for name, value in flatten(dict(config)).items():
        if is_secret(str(name)) and isinstance(value, str) and len(value) >= MIN_SECRET:
            text = text.replace(json.dumps(value)[1:-1], MASK)
    found: dict[str, Any] = json.loads(text)
    return found


def _ranked(session: ExperimentSession, summary: dict[str, Any]) -> list[int]:
    metric = summary["metric"]
    values = session.table.numbers([metric]).get(metric)
    if values is None:
        return list(range(len(session.table)))
    costs = values if summary["mode"] == "min" else -values
    order = np.argsort(np.where(np.isfinite(costs), costs, np.inf), kind="stable")
    return [int(row) for row in order]


def _static(name: str) -> str:
    place = resources.files("muster.page") / "static"
    for part in name.split("/"):
        place = place / part
    return place.read_text(encoding="utf-8")
