"""Methods of CVODES, IDAS and ARKODE. To add one, add an object here."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from dae_hybrid.method import AUTO, POINTS, Method
from dae_hybrid.options import Options
from dae_hybrid.port.integrator import Equations

from .library import ADAMS as CV_ADAMS
from .library import BDF as CV_BDF
from .runge_kutta import ButcherTable


@dataclass(frozen=True, eq=False, kw_only=True)
class SundialsMethod(Method):
    """A method of SUNDIALS: a multistep `formula` of CVODES, or Runge-Kutta `tables` of ARKODE by order.

    `order` is the default order of explicit steps, `stable` the longest stable step of other methods times the decay
    rate. `adjoint` is the method that integrates adjoints instead.
    """

    formula: int | None = None
    tables: Mapping[int, str] = field(default_factory=dict)
    order: int = 0
    stable: float = math.inf
    adjoint: SundialsMethod | None = None

    @property
    def explicit(self) -> bool:
        """Whether it is an explicit Runge-Kutta method; it needs compiled equations, and sensitivities are states."""
        return bool(self.tables)

    def takes(self, equations: Equations) -> bool:
        """Whether it integrates these equations; explicit methods can solve for a few algebraic variables."""
        return not equations.implicit or self is STIFF or (self.explicit and equations.reducible)

    def family(self, equations: Equations) -> str:
        """Prefix of the library's function names."""
        return "ARKode" if self.explicit else "IDA" if equations.implicit else "CVode"

    def table(self, options: Options) -> ButcherTable | None:
        """Coefficients of explicit steps: of the requested order, or of the next lower order that has a table."""
        if not self.explicit:
            return None
        wanted = max(options.max_order or self.order, min(self.tables))
        return ButcherTable.of(self.tables[max(order for order in self.tables if order <= wanted)])

    def reach(self, options: Options) -> float:
        """Longest stable step times the rate of the fastest decay."""
        table = self.table(options)
        return self.stable if table is None else table.reach


BDF = SundialsMethod(name="bdf", orders=(1, 5), formula=CV_BDF)
ADAMS = SundialsMethod(name="adams", implicit=False, orders=(1, 12), formula=CV_ADAMS, stable=0.75)  # measured
#: ARKODE's embedded pairs whose coefficients are accurate to rounding (those of VERNER_9_5_6 are off by 7e-13) and
#: whose weights do not cancel (those of VERNER_13_7_8 sum to 1 with terms of 32: states within a step carry a hundred
#: roundings, and an event may be seen twice; the error estimate of FEHLBERG_13_7_8 is zero for integrals). Order 7
#: needs less work than order 6 at every tolerance, and than order 9 down to 1e-9 (measured on the hysteretic
#: oscillator)
ERK = SundialsMethod(
    name="erk",
    implicit=False,
    orders=(2, 9),
    path=POINTS,
    compiled=True,
    tables={
        2: "ARKODE_HEUN_EULER_2_1_2",
        3: "ARKODE_BOGACKI_SHAMPINE_4_2_3",
        4: "ARKODE_SOFRONIOU_SPALETTA_5_3_4",
        5: "ARKODE_TSITOURAS_7_4_5",
        6: "ARKODE_VERNER_8_5_6",
        7: "ARKODE_VERNER_10_6_7",
        9: "ARKODE_VERNER_16_8_9",
    },
    order=7,
    adjoint=ADAMS,
)
METHODS = {method.name: method for method in (BDF, ADAMS, ERK)}
#: methods of ``method="auto"``: for stiff equations and algebraic variables; for others, compiled and not compiled
STIFF, NONSTIFF, INTERPRETED = BDF, ERK, ADAMS
#: the limits of ``max_order`` are those of the method that integrates every mode
CHOICE = Method(name=AUTO, orders=STIFF.orders)


def chosen(options: Options) -> SundialsMethod:
    """The method for nonstiff explicit compiled equations."""
    return NONSTIFF if options.automatic else METHODS[options.method]


def method_of(equations: Equations, method: SundialsMethod) -> SundialsMethod:
    """The method for a mode, given the run's method for explicit equations."""
    return method if method.takes(equations) else STIFF
