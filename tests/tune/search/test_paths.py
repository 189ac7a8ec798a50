from __future__ import annotations

from muster.trials.model import Trial
from muster.trials.template import LONGEST_DIRNAME
from muster.tune.search.paths import format_vars, trial_dirname, unique_dirname

DATE = "2024-05-06_07-08-09"


def test_values_are_cleaned_and_floats_have_four_digits():
    assert format_vars({("a c?x",): " <;%$ok "}) == "a_c_x=ok"
    assert format_vars({("b",): 0.12345, ("a", "lr"): 1e-5, ("n",): -3}) == "lr=0.0000,b=0.1235,n=-3"
    assert format_vars({("c",): ("__ref_ph", "359bf6a3")}) == "c=ref_ph_359bf6a3"
    assert format_vars({}) == ""


def test_paths_sort_by_value_also_when_numbers_and_texts_meet():
    assert format_vars({("l", 10): "j", ("l", 2): "b", ("l", "x"): "z"}) == "2=b,10=j,x=z"


def trial(**attributes):
    return Trial("train", trial_id="abcde_00000", config={"env": "a/b"}, experiment_tag="0_x=1", **attributes)


def test_a_directory_is_named_after_the_trial_its_tag_and_the_date():
    assert trial_dirname(trial(), DATE) == f"train_a_b_abcde_00000_0_x=1_{DATE}"


def test_a_long_name_is_cut_before_the_date():
    long = Trial("train", trial_id="abcde_00000", experiment_tag="0_" + "x" * 200)
    name = trial_dirname(long, DATE)
    assert (len(name), name.endswith(f"xx_{DATE}")) == (130 + 20, True)
    assert len(trial_dirname(long, DATE, max_len=10)) == 30


def test_characters_that_some_file_system_refuses_become_underscores():
    strange = trial(custom_dirname='a/(b)<c>:"d\\|e?*')
    assert trial_dirname(strange, DATE) == "a__b__c___d__e__"


def test_a_name_fits_a_directory_in_bytes_too():
    long = Trial("é" * 200, trial_id="abcde_00000", experiment_tag="0")
    name = trial_dirname(long, DATE)
    assert len(name.encode()) in (LONGEST_DIRNAME - 1, LONGEST_DIRNAME)  # not in the middle of a letter
    assert name.endswith(f"é_{DATE}")


def test_what_a_directory_name_cannot_hold_becomes_an_underscore():
    assert trial_dirname(trial(custom_dirname="a\0b\nc\ud800d\udc80"), DATE) == "a_b_c_ud800d_udc80"


def test_a_taken_name_gets_four_digits():
    taken = {"d", "d_0001"}
    digits = iter(["0001", "0002"])
    assert unique_dirname("d", taken.__contains__, lambda: next(digits)) == "d_0001_0002"
    assert unique_dirname("free", taken.__contains__, lambda: next(digits)) == "free"
