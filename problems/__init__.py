"""Worked systems from the literature, each with its reference values.

``names()`` lists them, and ``load(name)`` returns the module of one, with these members:

===============  ================================================================================
model()          the declaration, a `HybridModel`
system()         the built `HybridSystem`, cached
t_span           the interval of the source
reference()      values with their source and accuracy
tolerances       rtol and atol at which published results are reproduced, if any
difference_step  relative step of finite differences, if there are published results
figures(result)  the published figures, from the result of `dae_hybrid.report.reproduce.reproduce`
reproduce(...)   computes results that have another shape than those of `reproduce`
mechanism()      for mechanical systems, the `dae_hybrid.mechanics.Mechanism` of the model
witness(...)     the solution by ode15s, if any, with the truth
data(...)        published measurements, if any: NumPy arrays by column
START            with data, the initial guess of a fit by parameter
published        with data, estimates as printed elsewhere
estimates()      with data, estimates to many digits that do not depend on the library
===============  ================================================================================
"""

from __future__ import annotations

from importlib import import_module
from types import ModuleType

from dae_hybrid.errors import DaeHybridError

#: title of every problem, by name; the name is that of its module
TITLES = {
    "hybrid_ode": "a hybrid ODE with hidden discontinuities (Serban and Recuero 2019, section 5.1)",
    "em_hysteresis": "an oscillator with hysteretic material (Serban and Recuero 2019, section 5.2)",
    "rocket": "a sounding rocket in implicit form, throttled at an acceleration (index 1, closed form)",
    "menegotto_pinto": "steel in a cyclic test (input from data, memory beyond the last reversal)",
    "ball_on_rope": "a ball that a rope catches and releases (ODE and index 2, impulses)",
    "five_bar": "a five-bar mechanism with impacts and a latch (Corner, Sandu and Sandu 2019, 2020)",
    "five_bar_ali3p": "the same by an index-3 formulation with projections (Lopez Varela, Dopico and Luaces 2023)",
    "impact_oscillator": "a driven mass that hits a stop (closed form)",
    "pendulum_with_stop": "a pendulum in natural coordinates that hits a stop",
    "rimless_wheel": "a wheel of spokes on a slope (changing constraints, footholds as memory)",
    "theophylline": "absorption of a drug in twelve subjects (published data and estimates, closed form)",
    "infusions": "a drug given as a bolus and by infusions (published data and estimates, closed form)",
    "repeated_doses": "a drug taken once a day, with a lag (published data, times of events as a parameter)",
    "cyclic_steel": "plasticity with hardening in a cyclic test (published data and estimates, return mapping)",
}


class UnknownProblemError(DaeHybridError, LookupError):
    """The problem does not exist."""


def names() -> tuple[str, ...]:
    """Names of all problems."""
    return tuple(TITLES)


def load(name: str) -> ModuleType:
    """The module of a problem.

    Raises
    ------
    UnknownProblemError
        The problem does not exist.

    Examples
    --------
    >>> from dae_hybrid import problems
    >>> problems.load("hybrid_ode").t_span
    (0.0, 5.0)
    """
    if name not in TITLES:
        raise UnknownProblemError(f"There is no problem {name!r}; there are {', '.join(TITLES)}.")
    return import_module(f"{__name__}.{name}")
