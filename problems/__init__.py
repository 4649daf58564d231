"""Worked systems from the literature, each with its reference values.

``names()`` lists them and ``load(name)`` gives the module of one, which offers

============== ==================================================================================
model()        the declaration, a `HybridModel`, meant to be read
system()       the built `HybridSystem`, made once
t_span         the interval of the source
reference()    values with their source and accuracy
tolerances     where the source has results to reproduce: rtol and atol to do it at
difference_step   the same: relative step of finite differences
figures(result)   the same: its figures, of what `dae_hybrid.report.reproduce.reproduce` gives
reproduce(...)    the same, where the results are of another shape: computes them
mechanism()       for mechanical systems: the `dae_hybrid.mechanics.Mechanism` that the model is made of
witness(...)   where ode15s has solved it too: what that says, beside the truth
============== ==================================================================================
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from dae_hybrid.errors import DaeHybridError

#: name of every problem, which is its module, and what it is
TITLES = {
    "hybrid_ode": "a hybrid ODE with hidden discontinuities (Serban and Recuero 2019, section 5.1)",
    "em_hysteresis": "an oscillator with hysteretic material (Serban and Recuero 2019, section 5.2)",
    "rocket": "a sounding rocket in implicit form, throttled at an acceleration (index 1, closed form)",
    "menegotto_pinto": "steel in a cyclic test (input from data, memory beyond the last reversal)",
    "ball_on_rope": "a ball that a rope catches and releases (ODE and index 2, impulses)",
    "five_bar": "a five-bar mechanism with impacts and a latch (Corner, Sandu and Sandu 2019, 2020)",
    "impact_oscillator": "a driven mass that hits a stop (closed form)",
    "pendulum_with_stop": "a pendulum in natural coordinates that hits a stop",
    "rimless_wheel": "a wheel of spokes on a slope (changing constraints, footholds as memory)",
}


class UnknownProblemError(DaeHybridError, LookupError):
    """There is no problem of that name."""


def names() -> tuple[str, ...]:
    """Names of all problems."""
    return tuple(TITLES)


def load(name: str) -> ModuleType:
    """The module of a problem.

    Raises
    ------
    UnknownProblemError
        There is none of that name.

    Examples
    --------
    >>> from dae_hybrid import problems
    >>> problems.load("hybrid_ode").t_span
    (0.0, 5.0)
    """
    if name not in TITLES:
        raise UnknownProblemError(f"There is no problem {name!r}; there are {', '.join(TITLES)}.")
    return import_module(f"{__name__}.{name}")
