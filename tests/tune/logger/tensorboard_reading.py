"""Event files as TensorBoard's own code reads them."""

from __future__ import annotations

import warnings


def multiplexer(directory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.plugin_event_multiplexer import EventMultiplexer

        found = EventMultiplexer().AddRunsFromDirectory(str(directory))
        found.Reload()
    return found


def _provider(directory):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.data_provider import MultiplexerDataProvider

    return MultiplexerDataProvider(multiplexer(directory), str(directory))


def hparams_tab(directory):
    """What the HPARAMS tab is given: its columns' types, and its rows, {run: (hparams, metrics, status)}."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from google.protobuf import json_format
        from tensorboard.context import RequestContext
        from tensorboard.plugins import base_plugin
        from tensorboard.plugins.hparams import api_pb2, backend_context, get_experiment, list_session_groups

        context = backend_context.Context(base_plugin.TBContext(data_provider=_provider(directory)))
        request = api_pb2.ListSessionGroupsRequest(
            start_index=0, slice_size=100, allowed_statuses=[0, 1, 2, 3], include_metrics=True
        )
        experiment = get_experiment.Handler(
            RequestContext(), context, "", api_pb2.GetExperimentRequest(include_metrics=True)
        ).run()
        request.col_params.extend(
            api_pb2.ColParams(metric=info.name, include_in_result=True) for info in experiment.metric_infos
        )
        request.col_params.extend(
            api_pb2.ColParams(hparam=info.name, include_in_result=True) for info in experiment.hparam_infos
        )
        groups = list_session_groups.Handler(RequestContext(), context, "", request).run()
        rows = json_format.MessageToDict(groups)["sessionGroups"]
    types = {info.name: api_pb2.DataType.Name(info.type) for info in experiment.hparam_infos}
    return types, {row["name"]: _row(row) for row in rows}


def _row(row):
    [session] = row["sessions"]
    metrics = {value["name"]["tag"]: value.get("value", 0.0) for value in row.get("metricValues", [])}
    times = (session["startTimeSecs"], session["endTimeSecs"])
    return row["hparams"], metrics, session["status"], times


def accumulated(directory):
    """The accumulator that scripts use: `Images`, `Histograms`, `Scalars`."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

        found = EventAccumulator(str(directory))
        found.Reload()
    return found


def pictures_shown(directory, run, tag):
    """The files that the IMAGES tab is given for a tag, step by step."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from tensorboard.context import RequestContext
        from tensorboard.data.provider import RunTagFilter

    provider, wanted = _provider(directory), RunTagFilter(runs=[run], tags=[tag])
    found = provider.read_blob_sequences(
        RequestContext(), experiment_id="", plugin_name="images", downsample=10, run_tag_filter=wanted
    )
    return [
        (
            datum.step,
            [provider.read_blob(RequestContext(), blob_key=blob.blob_key) for blob in datum.values][2:],
        )
        for datum in found[run][tag]
    ]
