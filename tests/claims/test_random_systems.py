"""Random hybrid systems: every way to a derivative agrees, or leads to the closed form; restatements change nothing.

``python benchmarks/random_systems.py`` tries as many as one likes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from closed_forms import FAMILIES, judge_closed_form
from closed_forms_at_edges import FAMILIES as EDGES
from closed_forms_at_edges import judge_at_an_edge
from closed_forms_of_scale import FAMILIES as SCALES
from closed_forms_of_scale import judge_of_scale
from closed_forms_of_words import judge_words
from hypothesis import Phase, assume, given, settings
from hypothesis import strategies as st
from random_events import EventSystem, WithStatements, event_system
from random_inputs import InputSystem, input_system
from random_relations import KINDS, judge_relations, relations_system
from random_systems import Restatement, random_system
from taylor_reference import Expr, Jump, Statement, T, Unsettled, call, one_sided, solve, wrap
from verdicts import Verdict, judge, restated

import dae_hybrid as dh

seeds = st.integers(0, 10**6)


def few(count: int) -> settings:
    """A seed does not shrink."""
    return settings(derandomize=True, deadline=None, max_examples=count, phases=(Phase.explicit, Phase.generate))


@few(4)
@given(seeds)
def test_all_ways_agree_or_the_library_refuses(seed: int) -> None:
    verdict = judge(random_system(seed), native=True, directions=1)
    assert verdict.kind in ("agree", "refused"), verdict
    if "GrazingError" in verdict.outcome:
        assert verdict.stage == "forward and adjoint", verdict


@few(1)
@given(seeds)
def test_all_ways_agree_where_nothing_is_compiled(seed: int) -> None:
    verdict = judge(random_system(seed, sizes=3), directions=1)
    assert verdict.kind in ("agree", "refused"), verdict


#: fast guard through scikits-odes at rtol 1e-9: rounding decides whether a crossing is taken for a turn next to zero
UNDECIDED = 1359


def test_a_crossing_next_to_zero_is_at_most_refused() -> None:
    import scikits_odes_sundials  # noqa: F401  # of the adapters that the judge takes

    assert judge_closed_form(UNDECIDED).kind in ("agree", "refused", "needless")


@pytest.mark.parametrize("family", range(len(FAMILIES)), ids=[f"{f.__name__}{i}" for i, f in enumerate(FAMILIES)])
@few(2)
@given(st.integers(0, 10**5))
def test_solutions_are_the_closed_ones(family: int, seed: int) -> None:
    assume(seed * len(FAMILIES) + family != UNDECIDED)
    verdict = judge_closed_form(seed * len(FAMILIES) + family)
    assert verdict.kind in ("agree", "refused"), verdict


@pytest.mark.parametrize("count", [1, 4])  # by BDF, compiled, and interpreted
@pytest.mark.parametrize("family", range(len(EDGES)), ids=[family.__name__ for family in EDGES])
def test_solutions_at_the_edges_of_conditions_are_the_closed_ones(family: int, count: int) -> None:
    verdict = judge_at_an_edge(count * len(EDGES) + family)
    assert verdict.kind in ("agree", "refused"), verdict


@pytest.mark.parametrize("seed", [200_319, 201_880, 202_160])  # a warning of NumPy; conditions that did not fire
def test_a_root_of_a_clip_has_no_rate_just_below_its_zero(seed: int) -> None:
    verdict = judge_at_an_edge(seed)
    assert verdict.kind in ("agree", "refused"), verdict


@pytest.mark.parametrize("count", [0, 1])  # by the choice of the library, and by BDF
@pytest.mark.parametrize("family", range(len(SCALES)), ids=[family.__name__ for family in SCALES])
def test_solutions_whose_numbers_vanish_cancel_or_are_large_are_the_closed_ones(family: int, count: int) -> None:
    verdict = judge_of_scale(count * len(SCALES) + family)
    assert verdict.kind in ("agree", "refused"), verdict


@pytest.mark.parametrize("seed", [1, 6, 7])  # by BDF, interpreted, and by SciPy
def test_solutions_with_jumps_that_no_relation_shows_are_the_closed_ones(seed: int) -> None:
    verdict = judge_words(seed)
    assert verdict.kind == "agree", verdict


@pytest.mark.parametrize("seed", [0, 7])
@pytest.mark.parametrize("kind", range(len(KINDS)), ids=KINDS)
def test_relations_are_events_and_ties_are_told(kind: int, seed: int) -> None:
    """Given seeds: what is still wrong or refused without need among all of them is in docs/relations.md."""
    verdict = judge_relations(seed * len(KINDS) + kind)
    assert verdict.kind in ("agree", "refused"), verdict


@pytest.mark.parametrize("seed", [0, 3])
@pytest.mark.parametrize(
    ("family", "kind"),
    [*((event_system, k) for k in EventSystem.kinds), *((input_system, k) for k in InputSystem.kinds)],
)
def test_what_is_stated_besides_equations_has_derivatives(
    family: Callable[[int], WithStatements], kind: str, seed: int
) -> None:
    kinds = list(family(0).kinds)
    verdict = judge(family(seed * len(kinds) + kinds.index(kind)), native=True)
    assert verdict.kind in ("agree", "refused"), verdict


def test_the_reference_has_the_closed_forms() -> None:
    x, y, k, c = Expr("x", (0,)), Expr("x", (1,)), Expr("p", (0,)), Expr("p", (1,))
    rise = call("if_else", call("<", T, c), k, -x)  # x = k c exp(c - t) after c
    clip = call("fmin", T, c) - y  # y' = min(t, c) - y
    s = Statement((2.0, 0.75), (wrap(0.0), wrap(0.0)), (), ((rise, clip),), (), 2.0, terminal=x + 0 * y)
    base = solve(s)
    assert abs(float(base.value) - 1.5 * np.exp(-1.25)) < 1e-15
    assert [time for time, _ in base.events] == [0.75] * len(base.events)
    for side in one_sided(s, base):
        np.testing.assert_allclose(side, np.exp(-1.25) * np.array([0.75, 2 * 1.75]), rtol=1e-8)


def test_the_reference_tells_the_sides_of_a_kink() -> None:
    x, k, c = Expr("x", (0,)), Expr("p", (0,)), Expr("p", (1,))
    back = Jump(0, 0, "guard", x - c, "rising", reset=((0, 0.0 * x),))  # where it starts again the measurement is made
    s = Statement((1.0, 0.5), (wrap(0.0),), (), ((k,),), (back,), 0.8, terminal=x, measured=((wrap(0.5), x * x),))
    left, right = one_sided(s, solve(s))
    np.testing.assert_allclose(left[0], 0.8 + 0.5, rtol=1e-8)
    assert abs(right[0]) > 1e10  # the measurement jumps
    slide = Statement((0.3,), (wrap(0.0),), (), ((call("sign", Expr("p", (0,)) - x),),), (), 1.0, terminal=x)
    with pytest.raises(Unsettled, match="sliding"):
        solve(slide)


def test_a_seed_is_a_statement() -> None:
    assert str(relations_system(77).statement) == str(relations_system(77).statement)


def test_a_seed_is_a_system() -> None:
    one, two = (random_system(2019) for _ in range(2))
    assert one.model().build(native=False).describe() == two.model().build(native=False).describe()
    np.testing.assert_equal(one.parameters, two.parameters)
    assert one.span == two.span


@few(1)
@given(seeds, st.integers(0, 100))
def test_names_and_order_do_not_matter(seed: int, order: int) -> None:
    assert not restated(random_system(seed), Restatement(prefix="other ", shuffle=order))


@few(1)
@given(seeds)
def test_transitions_that_never_fire_do_not_matter(seed: int) -> None:
    assert not restated(random_system(seed), Restatement(never=True))


@few(1)
@given(seeds, st.lists(st.floats(0.02, 0.98), min_size=1, max_size=3))
def test_events_that_do_nothing_do_not_matter(seed: int, cuts: list[float]) -> None:
    """Memory of a variable is frozen at every entry, so it is stated as an update by the others."""
    drawn = random_system(seed)
    assume(drawn.splits_freely)
    start, end = drawn.span
    times = tuple(start + cut * (end - start) for cut in cuts)
    assert not restated(drawn, Restatement(cuts=times, updates=True))


@pytest.mark.parametrize("seed", [33, 60, 78, 102])
def test_memory_of_a_variable_is_an_update_by_every_transition(seed: int) -> None:
    drawn = random_system(seed)
    assert any(memory.of is not None for memory in drawn.memories.values())
    assert not restated(drawn, Restatement(updates=True))


@few(1)
@given(seeds, st.sampled_from([0.01, 0.5, 3.0, 100.0]))
def test_the_unit_of_time_does_not_matter(seed: int, stretch: float) -> None:
    assert not restated(random_system(seed), Restatement(stretch=stretch))


@pytest.mark.parametrize("rates", ["algebraic", "residual"])
@few(1)
@given(seeds)
def test_an_ode_is_a_dae(rates: str, seed: int) -> None:
    assert not restated(random_system(seed), Restatement(rates=rates))


# -- at length ---------------------------------------------------------------------------------------------------------

JUDGES: dict[str, Callable[[int], Verdict]] = {
    "any formulation": lambda seed: judge(random_system(seed), native=True, directions=1),
    "interpreted": lambda seed: judge(random_system(seed, sizes=3), directions=1),
    "closed forms": judge_closed_form,
    "edges": judge_at_an_edge,
    "scales": judge_of_scale,
    "words": judge_words,
    "relations": judge_relations,
    "events": lambda seed: judge(event_system(seed), native=True, directions=1),
    "inputs": lambda seed: judge(input_system(seed), native=True, directions=1),
}
RESTATEMENTS = {
    "names and order": Restatement(prefix="other ", shuffle=7),
    "transitions that never fire": Restatement(never=True),
    "updates": Restatement(updates=True),
    "the unit of time": Restatement(stretch=3.0),
    "algebraic rates": Restatement(rates="algebraic"),
    "residual rates": Restatement(rates="residual"),
}


@pytest.mark.campaign
@pytest.mark.parametrize("start", range(20_000, 20_040, 10))
@pytest.mark.parametrize("family", JUDGES)
def test_many_seeds_agree_or_are_refused(family: str, start: int) -> None:
    """`benchmarks/random_systems.py` takes thousands; docs/relations.md counts needless refusals among relations."""
    found = [JUDGES[family](seed) for seed in range(start, start + (1 if family == "interpreted" else 10))]
    told = {"needless", "coarse"} if family == "relations" else set()
    assert {verdict.kind for verdict in found} <= {"agree", "refused"} | told, found


@pytest.mark.campaign
@pytest.mark.parametrize("seed", range(30_000, 30_006))
@pytest.mark.parametrize("restatement", RESTATEMENTS)
def test_restatements_of_many_seeds_change_nothing(restatement: str, seed: int) -> None:
    assert not restated(random_system(seed), RESTATEMENTS[restatement])


# -- what random systems have found -----------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False])
@pytest.mark.parametrize(("bend", "form"), [(0.3, {}), (0.0, {"eliminate": False})], ids=["nonlinear", "as DAE"])
def test_an_event_on_an_algebraic_variable_fires_once(bend: float, form: dict[str, Any], native: bool) -> None:
    """An integrator's z is off by its tolerance: the guard has its zero where the equations put it."""
    m = dh.HybridModel("once")
    w = m.parameter("w", 4.0)
    y, u, z = m.differential("y"), m.differential("u"), m.algebraic("z")
    n = m.memory("n", initial=0.0)
    equation = 1.3 * z + bend * z**3 - 0.5 * np.sin(0.9 + y) - 0.2 * np.sin(u)
    run = m.mode("run", ode={y: w * u, u: -w * y}, algebraic=[equation])
    m.transition(run, run, guard=z - 0.3, direction="rising", memory={n: n + 1})
    m.initial(run, {y: 0.0, u: 1.0})
    m.functional("count", terminal=n)
    system = m.build(native=native, **form)
    for rtol in (1e-6, 1e-8):
        sol = dh.simulate(system, (0, 5), rtol=rtol, atol=rtol / 100)
        assert sol.functionals["count"] == 3
        np.testing.assert_allclose([e.guard for e in sol.events], 0, atol=1e-14)
