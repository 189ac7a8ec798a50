"""List what Ray Tune 2.60 offers and muster does not, each with the reason; for test_public_surface.py.

A key is a module (and everything below it), `module:name`, or `Name.member` of a class.
An entry that is not needed any more fails the test, so the list only shrinks.
"""

from __future__ import annotations

_INTERNAL = "inside of Ray Tune; no documented use by scripts"
_TRAIN = "belongs to Ray Train or Ray Data, not to tuning"
_TUNES = "is the one of tune, which a Tuner takes; more than it has is for trainers"
_RLLIB = "belongs to RLlib"
_RAY_TESTS = "made for Ray's own tests"
_CONTROLLER = "the controller's business: here only ExperimentState changes a trial"
_RAY_CORE = "speaks of Ray Core's actors and placement groups"

MODULES = {
    "ray.air.constants": _INTERNAL,
    "ray.air.data_batch_type": _TRAIN,
    "ray.air.execution": _RAY_CORE,
    "ray.air.integrations.keras": "moved: muster.tune.integration.keras",
    "ray.air.util": _TRAIN,
    "ray.tune.automl": "not importable in Ray 2.60 either",
    "ray.tune.cli": "the command is `muster tune`, in muster.cli",
    "ray.tune.execution.class_cache": _INTERNAL,
    "ray.tune.execution.cluster_info": _INTERNAL,
    "ray.tune.execution.experiment_state": _INTERNAL,
    "ray.tune.execution.insufficient_resources_manager": _INTERNAL,
    "ray.tune.execution.tune_controller": _INTERNAL,
    "ray.tune.experiment.config_parser": _INTERNAL,
    "ray.tune.experimental": "replaced by muster.tune.reporting; chosen by RunConfig(verbose=...)",
    "ray.tune.impl": _INTERNAL,
    "ray.tune.resources": "deprecated by Ray: use PlacementGroupFactory or a dict",
    "ray.tune.schedulers.pb2_utils": _INTERNAL,
    "ray.tune.schedulers.util": _INTERNAL,
    "ray.tune.search.hebo.hebo_search": "HEBO needs numpy below 1.25 and no longer installs",
    "ray.tune.search.util": _INTERNAL,
    "ray.tune.trainable.metadata": _INTERNAL,
    "ray.tune.trainable.trainable_fn_utils": _INTERNAL,
    "ray.tune.utils.callback": _INTERNAL,
    "ray.tune.utils.file_transfer": _INTERNAL,
    "ray.tune.utils.mock": _RAY_TESTS,
    "ray.tune.utils.object_cache": _INTERNAL,
    "ray.tune.utils.release_test_util": _RAY_TESTS,
    "ray.tune.utils.resource_updater": _INTERNAL,
    "ray.tune.utils.serialization": "state is not JSON with pickles inside: see muster.stores",
}

NAMES = {
    **{
        f"ray.train:{name}": _TRAIN
        for name in (
            *("BackendConfig", "CheckpointConsistencyMode", "CheckpointUploadMode", "ControllerError"),
            *("DataConfig", "LoggingConfig", "NCCLHangError", "PreemptionError"),
            *("ReportedCheckpoint", "ReportedCheckpointStatus", "ScalingConfig", "TRAIN_DATASET_KEY"),
            *("TrainingFailedError", "UserCallback", "ValidationConfig", "ValidationFn"),
            *("ValidationTaskConfig", "WorkerGroupError", "get_all_reported_checkpoints"),
            "get_dataset_shard",
        )
    },
    **{f"ray.train:{name}": _TUNES for name in ("CheckpointConfig", "FailureConfig", "Result", "RunConfig")},
    "ray.train:PreemptionInfo": "made by muster only, which also knows kind and source",
    "ray.train:report": "a trial's checkpoint is copied before the call returns; there is nothing to choose",
    "ray.tune.search.bohb:BOHB": "hpbandster's class, not Ray's: import it from there",
    "ray.tune.search.hebo:HEBOSearch": "HEBO needs numpy below 1.25; its import says so",
    "ray.air:AcquiredResources": _RAY_CORE,
    "ray.air:DataBatchType": _TRAIN,
    "ray.air:ResourceRequest": _RAY_CORE,
    "ray.air:ScalingConfig": _TRAIN,
    "ray.air.config:ScalingConfig": _TRAIN,
    "ray.tune.experiment:Trial": "made by search algorithms only, which always give an id",
    "ray.tune.experiment:_convert_to_experiment_list": _INTERNAL,
    "ray.tune.experiment.trial:Trial": "made by search algorithms only, which always give an id",
    "ray.tune.progress_reporter:RemoteReporterMixin": _RAY_CORE,
    "ray.tune.progress_reporter:TrialProgressCallback": _INTERNAL,
    "ray.tune.registry:register_input": _RLLIB,
    "ray.tune.registry:registry_contains_input": _RLLIB,
    "ray.tune.registry:registry_get_input": _RLLIB,
    "ray.tune.result:EXPR_META_FILE": "a file that Ray does not write either",
    "ray.tune.result:JOB_META_FILE": "a file that Ray does not write either",
    "ray.tune.schedulers.pb2:import_pb2_dependencies": "only scipy is needed, and looked for by PB2 itself",
    "ray.tune.search.searcher:ConcurrencyLimiter": "import it from muster.tune.search",
    "ray.tune.search.variant_generator:RecursiveDependencyError": "raised by us only",
    "ray.tune.search.variant_generator:assign_value": _INTERNAL,
    "ray.tune.utils:UtilMonitor": _INTERNAL,
    "ray.tune.utils:_detect_config_single": _INTERNAL,
    "ray.tune.utils.util:Tee": _INTERNAL,
    "ray.tune.utils.util:UtilMonitor": _INTERNAL,
    "ray.tune.utils.util:retry_fn": _INTERNAL,
    "ray.tune.utils.util:validate_warmstart": _INTERNAL,
}

_OWN_STATE = "the state is saved by save_state/save_to_dir, as bytes"
_REPORTER = "set by the experiment; scripts give them to the constructor"
_HOOKS = "hooks go through `fire`, which never loses one"

MEMBERS = {
    **dict.fromkeys(
        (
            *("FailureConfig.controller_failure_limit", "FailureConfig.max_preemption_failures"),
            *("FailureConfig.preemption_grace_s", "FailureConfig.relax_collectives_on_preemption"),
            *("Result.return_value", "RunConfig.logging_config", "RunConfig.storage_context"),
            "RunConfig.worker_runtime_env",
        ),
        _TRAIN,
    ),
    "BayesOptSearch.optimizer": "the library's object; it is made when the first suggestion is asked for",
    "BayesOptSearch.register_analysis": "add_evaluated_trials(analysis, metric) does it for every searcher",
    "TuneBOHB.to_wrapper": _INTERNAL,
    "ZOOptSearch.optimizer": "the library's object; it is made when the first suggestion is asked for",
    "BasicVariantGenerator.CKPT_FILE_TMPL": _OWN_STATE,
    "BasicVariantGenerator.get_state": _OWN_STATE,
    "BasicVariantGenerator.set_state": _OWN_STATE,
    **dict.fromkeys(
        (
            f"CallbackList.{name}"
            for name in (
                *("on_checkpoint", "on_experiment_end", "on_step_begin", "on_step_end", "on_trial_complete"),
                *("on_trial_error", "on_trial_recover", "on_trial_restore", "on_trial_result"),
                *("on_trial_save", "on_trial_start"),
            )
        ),
        _HOOKS,
    ),
    "CallbackList.CKPT_FILE_TMPL": _OWN_STATE,
    "CallbackList.IS_CALLBACK_CONTAINER": _INTERNAL,
    "CallbackList.can_restore": _OWN_STATE,
    "CallbackList.restore_from_dir": _OWN_STATE,
    "CallbackList.save_to_dir": _OWN_STATE,
    "CallbackList.set_state": _OWN_STATE,
    **{
        f"{kind}.{name}": _REPORTER
        for kind in ("CLIReporter", "JupyterNotebookReporter", "TuneReporterBase")
        for name in (
            *("DEFAULT_COLUMNS", "VALID_SUMMARY_TYPES", "set_search_properties", "set_start_time"),
            "set_total_samples",
        )
    },
    "JupyterNotebookReporter.display": "`report` shows the HTML that `html` gives",
    "JupyterNotebookReporter.output_queue": _RAY_CORE,
    "JsonLoggerCallback.update_config": "the files hold the config a trial was started with",
    "MLflowLoggerCallback.setup": "called with keywords only, like every hook",
    "PlacementGroupFactory.to_placement_group": _RAY_CORE,
    "SearchGenerator.CKPT_FILE_TMPL": _OWN_STATE,
    "SearchGenerator.create_trial_if_possible": "next_trial does it",
    "SearchGenerator.get_state": _OWN_STATE,
    "SearchGenerator.set_state": _OWN_STATE,
    **{
        f"{kind}.{name}": _INTERNAL
        for kind in ("AimLoggerCallback", "TBXLoggerCallback")
        for name in ("VALID_HPARAMS", "VALID_NP_HPARAMS")
    },
    **{f"{kind}.is_actor": _RAY_CORE for kind in ("FunctionTrainable", "MyTrainableClass", "Trainable")},
    **dict.fromkeys(
        (
            f"Trial.{name}"
            for name in (
                *("create_placement_group_factory", "from_directory", "from_json_state", "generate_id"),
                *("get_json_state", "handle_error", "init_local_path", "init_logdir"),
                *("invalidate_json_state", "on_checkpoint", "on_restore", "reset"),
                *("resolve_config_placeholders", "restore_run_metadata"),
                *("set_location", "set_status", "set_storage", "should_checkpoint"),
                *("should_recover", "should_stop", "update_last_result"),
            )
        ),
        _CONTROLLER,
    ),
    "Trial.get_ray_actor_ip": _RAY_CORE,
    "Trial.set_ray_actor": _RAY_CORE,
    "Trial.get_trainable_cls": "registry.get_trainable_cls(trial.trainable_name)",
    "WandbLoggerCallback.AUTO_CONFIG_KEYS": _INTERNAL,
}
