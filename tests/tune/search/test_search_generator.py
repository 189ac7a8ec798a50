from __future__ import annotations

import pathlib
import threading

import pytest
from tests.tune.search.searchers import ByPath, Recorder

from muster.base.ids import CountingIds
from muster.errors import RestoreError, TuneError, as_plugin_error
from muster.trials.model import Trial
from muster.trials.states import TrialState
from muster.trials.template import TrialTemplate
from muster.tune.search.search_generator import SearchGenerator
from muster.tune.search.searcher import Searcher, restore_searcher, saved_searcher
from muster.tune.search.space import choice, sample_from, uniform


def generator(searcher, space=None, num_samples=3):
    made = SearchGenerator(searcher, ids=CountingIds())
    made.add_configurations(
        TrialTemplate(trainable_name="t", param_space=space or {}, num_samples=num_samples)
    )
    return made


class Fixed(Recorder):
    def __init__(self, *answers):
        super().__init__()
        self.answers = list(answers)

    def suggest(self, trial_id):
        return self.answers.pop(0)


def test_a_trial_is_the_experiments_config_with_the_suggestion_in_it():
    space = {"opt": {"lr": uniform(0, 1), "name": "sgd"}, "k": 1, "l": [1, 2]}
    trial = generator(Fixed({"opt": {"lr": 0.5}, "new": True}), space).next_trial()
    assert trial.config == {"opt": {"lr": 0.5, "name": "sgd"}, "k": 1, "l": [1, 2], "new": True}
    assert trial.evaluated_params == {"opt/lr": 0.5, "new": True}
    assert trial.experiment_tag == "1_k=1,l=1_2,new=True,lr=0.5000,name=sgd"


def test_tags_count_from_one_and_hold_constants_and_env():
    made = generator(Fixed({}, {}), {"env": "e"})
    assert [made.next_trial().experiment_tag for _ in range(2)] == ["1_env=e", "2_env=e"]
    assert generator(Fixed({})).next_trial().experiment_tag == "1_"


def test_ids_have_eight_digits_and_never_repeat():
    made = generator(Recorder(), num_samples=3000)
    ids = [made.next_trial().trial_id for _ in range(3000)]
    assert len(set(ids)) == 3000
    assert {len(one) for one in ids} == {8}
    assert int(ids[0], 16) >= 0


def test_it_ends_after_num_samples_or_when_the_searcher_says_so():
    made = generator(Recorder(), num_samples=2)
    assert [made.next_trial().config["x"] for _ in range(2)] == [1, 2]
    assert (made.is_finished(), made.next_trial(), made.total_samples) == (True, None, 2)
    made = generator(Recorder(last=1), num_samples=5)
    made.next_trial()
    assert not made.is_finished()
    assert made.next_trial() is None
    assert made.is_finished()


def test_none_means_later():
    made = generator(Fixed(None, {"x": 1}))
    assert (made.next_trial(), made.is_finished()) == (None, False)
    assert made.next_trial().experiment_tag == "1_x=1"


def test_objects_in_choices_are_placeholders_for_the_searcher_and_real_in_the_config():
    first, thing = object(), object()
    space = {"c": choice([first, thing]), "f": sample_from(lambda config: config["c"]), "o": thing}

    class Takes(Recorder):
        def set_search_properties(self, metric, mode, config, **spec):
            self.space = config
            return True

        def suggest(self, trial_id):
            return {"c": self.space["c"].categories[1]}

    made = SearchGenerator(Takes())
    assert made.set_search_properties("loss", "min", space, num_samples=1)
    made.add_configurations(TrialTemplate(trainable_name="t", param_space=space))
    trial = made.next_trial()
    assert trial.config == {"c": thing, "f": thing, "o": thing}
    assert trial.evaluated_params == {"c": ("__ref_ph", "7476e9ec")}
    assert trial.experiment_tag == "1_c=ref_ph_7476e9ec,f=fn_ph_f450bff8,o=ref_ph_5525f4f1"


def test_a_searcher_without_room_for_the_rest_of_the_specification_is_asked_without_it():
    class Old(Recorder):
        def set_search_properties(self, metric, mode, config):
            self.heard = (metric, mode, config)
            return True

    old = Old()
    assert SearchGenerator(old).set_search_properties("m", "max", {"a": 1}, num_samples=4)
    assert old.heard == ("m", "max", {"a": 1})


def test_results_reach_the_searcher():
    searcher = Recorder()
    made = generator(searcher)
    made.on_trial_result("a", {"loss": 1})
    made.on_trial_complete("a", {"loss": 2})
    made.on_trial_complete("b", error=True)
    assert searcher.results == [("a", {"loss": 1})]
    assert searcher.completed == [("a", {"loss": 2}, False), ("b", None, True)]


def test_one_experiment_only_and_a_real_searcher():
    made = generator(Recorder())
    with pytest.raises(AssertionError, match=r"^SearchGenerator .*\bexperiment\b"):
        made.add_configurations(TrialTemplate(trainable_name="t"))
    with pytest.raises(AssertionError, match="needs a Searcher"):
        SearchGenerator(object())


@pytest.mark.parametrize("garbage", [5, "done", [("x", 1)], object()])
def test_a_suggestion_that_is_none_is_an_error_naming_the_searcher(garbage):
    with pytest.raises(TuneError, match=r"\bFixed\b.*suggest\(\).*\bdict\b.*\bNone\b"):
        generator(Fixed(garbage)).next_trial()


@pytest.mark.parametrize("hook", ["suggest", "on_trial_result", "on_trial_complete"])
def test_a_searcher_that_raises_is_named_with_the_hook(hook):
    class Broken(Recorder):
        def fail(self, *args, **kwargs):
            raise KeyError("oops")

    setattr(Broken, hook, Broken.fail)
    made = generator(Broken())
    calls = {
        "suggest": made.next_trial,
        "on_trial_result": lambda: made.on_trial_result("a", {}),
        "on_trial_complete": lambda: made.on_trial_complete("a"),
    }
    with pytest.raises(TuneError, match=f"KeyError.*{hook}.*oops"):
        calls[hook]()


@pytest.mark.parametrize("kind", [Recorder, ByPath])
@pytest.mark.parametrize("is_early", [True, False])
def test_any_searcher_goes_on_where_it_stood(kind, is_early):
    made = generator(kind(), num_samples=5)
    made.next_trial()
    made.next_trial()
    saved = made.save_state()
    again = SearchGenerator(kind())
    template = TrialTemplate(trainable_name="t", num_samples=1)  # the number of samples is in the state
    if is_early:
        again.restore_state(saved)
    again.add_configurations(template)
    again.restore_state(saved)
    assert again.searcher.count == 2
    left, expected = ([(t.trial_id, t.config["x"]) for t in iter(m.next_trial, None)] for m in (again, made))
    assert left == expected
    assert [x for _, x in left] == [3, 4, 5]


def test_the_random_stream_of_a_pickled_searcher_goes_on():
    made = generator(Recorder(), num_samples=9)
    made.next_trial()
    again = generator(Recorder(), num_samples=9)
    again.restore_state(made.save_state())
    assert again.next_trial().config == made.next_trial().config


def test_a_searcher_that_cannot_be_saved_is_named_with_the_fix():
    searcher = Recorder()
    searcher.lock = threading.Lock()
    with pytest.raises(TuneError, match=r"\bRecorder\b.*save\(path\)"):
        generator(searcher).save_state()


def test_a_state_that_is_none_is_refused():
    with pytest.raises(RestoreError, match="SearchGenerator"):
        generator(Recorder()).restore_state(b"garbage")
    made = generator(ByPath())
    state = made.save_state().replace(b"searcher\xc4\x010", b"searcher\xc4\x01x")
    with pytest.raises(RestoreError, match="ByPath"):
        made.restore_state(state)


def test_rays_directory_methods(tmp_path):
    made = generator(Recorder(), num_samples=4)
    made.next_trial()
    made.save_to_dir(str(tmp_path), "s1")
    again = generator(Recorder(), num_samples=4)
    again.restore_from_dir(str(tmp_path))
    assert [path.name for path in tmp_path.iterdir()] == ["search_gen_state-s1.json"]
    assert again.next_trial().config == made.next_trial().config


# Searcher itself.


@pytest.mark.parametrize(
    ("metric", "mode", "words"),
    [
        ("a", ["min"], "both be strings or both lists"),
        ("a", "best", "must be 'min' or 'max'"),
        (["a", "b"], ["min"], "2 metrics need as many modes, not 1"),
        (["a"], ["best"], "'min', 'max' or 'obs'"),
    ],
)
def test_metric_and_mode_must_go_together(metric, mode, words):
    with pytest.raises(AssertionError, match=words):
        Searcher(metric, mode)


def test_metric_and_mode_may_be_missing_or_lists():
    assert (Searcher().metric, Searcher("a").mode) == (None, None)
    assert Searcher(["a", "b"], ["min", "obs"]).mode == ["min", "obs"]


def test_a_searcher_saves_into_a_directory_and_reads_the_newest(tmp_path):
    searcher = Recorder()
    for session in ("1", "2"):
        searcher.suggest("a")
        searcher.save_to_dir(str(tmp_path), session)
    again = Recorder()
    again.restore_from_dir(str(tmp_path))
    assert again.count == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == ["searcher-state-1.pkl", "searcher-state-2.pkl"]
    with pytest.raises(RuntimeError, match="nothing to restore"):
        again.restore_from_dir(str(tmp_path / "nowhere"))


def test_a_searcher_whose_save_is_missing_says_so_once(tmp_path, caplog):
    class Unsavable(Recorder):
        def save(self, checkpoint_path):
            raise NotImplementedError

    searcher = Unsavable()
    searcher.save_to_dir(str(tmp_path))
    searcher.save_to_dir(str(tmp_path))
    assert ["Unsavable" in message for message in caplog.messages] == [True]
    assert list(tmp_path.iterdir()) == []


def test_a_searcher_whose_save_writes_nothing_starts_afresh_when_it_is_restored():
    class Forgetful(Recorder):
        def save(self, checkpoint_path):
            pass

        def restore(self, checkpoint_path):
            raise AssertionError("there is nothing to restore from")

    assert saved_searcher(Forgetful()) == b""
    restore_searcher(Forgetful(), b"")


def test_a_searcher_that_saves_to_another_name_is_told_so():
    class Elsewhere(Recorder):
        def save(self, checkpoint_path):
            pathlib.Path(f"{checkpoint_path}.npz").write_bytes(b"1")

    with pytest.raises(TuneError, match=r"\bElsewhere\b.*save\(path\)"):
        saved_searcher(Elsewhere())


def ended(trial_id, state, **result):
    trial = Trial("t", trial_id=trial_id, config={"x": 1})
    trial.state = state
    trial.last_result = result
    return trial


def test_finished_trials_are_learned_from():
    class Learner(Recorder):
        def add_evaluated_point(self, parameters, value, error=False, pruned=False, intermediate_values=None):
            self.completed.append((parameters, value, error, pruned))

    learner = Learner()
    trials = [
        ended("a", TrialState.TERMINATED, loss=1, done=True),
        ended("b", TrialState.TERMINATED, loss=2),
        ended("c", TrialState.ERROR),
        ended("d", TrialState.TERMINATED, done=True),
    ]
    learner.add_evaluated_trials(trials, "loss")
    assert learner.completed == [
        ({"x": 1}, 1, False, False),
        ({"x": 1}, 2, False, True),
        ({"x": 1}, None, True, False),
    ]
    with pytest.warns(UserWarning, match="other"):
        learner.add_evaluated_trials(trials[:1], "other")
    with pytest.raises(NotImplementedError, match=r"^Recorder .*add_evaluated_point"):
        Recorder().add_evaluated_trials(trials, "loss")


class OutOfLuck(Exception):
    def __init__(self, reason, *, code):
        super().__init__(reason)
        self.code = code


class Unlucky(Searcher):
    def suggest(self, trial_id):
        raise OutOfLuck("no luck", code=7)


def test_a_searchers_exception_is_of_its_own_type_and_says_who_raised_it():
    made = SearchGenerator(Unlucky())
    made.add_configurations(TrialTemplate(trainable_name="t", num_samples=1))
    with pytest.raises(OutOfLuck, match="OutOfLuck") as raised:
        made.next_trial()
    assert isinstance(raised.value, TuneError)
    assert (raised.value.code, type(raised.value.__cause__)) == (7, OutOfLuck)


@pytest.mark.parametrize(
    "error",
    [
        KeyError("x"),
        OSError(2, "no file"),
        UnicodeDecodeError("utf-8", b"a", 0, 1, "bad"),
        StopIteration(3),
        SystemError("s"),
    ],
)
def test_every_kind_of_exception_can_be_told_apart(error):
    made = as_plugin_error(error, "the searcher failed. Fix it")
    assert (isinstance(made, type(error)), isinstance(made, TuneError), str(made)) == (
        True,
        True,
        "the searcher failed. Fix it",
    )
