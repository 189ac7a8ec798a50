from __future__ import annotations

from muster.tune.schedulers.pbt_explore import Population


def population(**times: float) -> Population:
    made = Population()
    for name, time in times.items():
        made.join(name, "")
        made.note(name, time, score=time)
    return made


def next_of(members: Population) -> str | None:
    return members.most_behind(lambda name: True, below=100.0)


def test_of_those_who_trained_least_the_first_to_join_is_next():
    assert next_of(population(a=2, b=1, c=1)) == "b"


def test_a_copy_lets_the_one_it_was_made_of_go_on_first():
    members = population(a=2, b=1)
    members.copy_times("a", "b", 0.0, 0.0)
    assert next_of(members) == "b"
    members.note("b", 2, score=2)
    assert next_of(members) == "a"


def test_a_copy_that_has_reported_is_like_everybody_else():
    members = population(a=2, b=1)
    members.copy_times("a", "b", 0.0, 0.0)
    members.note("a", 1, score=0)
    assert next_of(members) == "a"


def test_a_saved_population_goes_on_with_the_same_trial():
    members = population(a=2, b=1)
    members.copy_times("a", "b", 0.0, 0.0)
    assert next_of(Population.from_plain(members.to_plain())) == "b"
