"""Circuits of the Test Set for IVP Solvers; see `ivp_test_set`."""

from __future__ import annotations

from typing import Any

import numpy as np

import dae_hybrid as dh


def transistor_amplifier() -> dh.HybridModel:
    """Eight node voltages (Rentrop 1989), M U' = f(U, t) with a singular M of five capacitors.

    The voltages of the capacitors are the state; the other nodes follow from them and from the sums of currents.
    Pairwise subtraction of the rows of the test set's mass matrix gives this form.
    """
    m = dh.HybridModel("transistor amplifier")
    ub, alpha, beta = m.parameter("ub", 6.0), m.parameter("alpha", 0.99), m.parameter("beta", 1e-6)
    r0, r, uf, c = 1000.0, 9000.0, 0.026, [k * 1e-6 for k in range(1, 6)]
    c1, u3, c3, u6, c5 = (m.differential(name) for name in ("V1", "U3", "V3", "U6", "V5"))
    u1, u2, u4, u5, u7, u8 = (
        m.algebraic(f"U{k}", guess=value) for k, value in ((1, 0.0), (2, 3.0), (4, 6.0), (5, 3.0), (7, 6.0), (8, 0.0))
    )
    signal = 0.1 * np.sin(200 * np.pi * m.time)
    first, second = beta * (np.exp((u2 - u3) / uf) - 1), beta * (np.exp((u5 - u6) / uf) - 1)
    f1, f2 = (u1 - signal) / r0, u2 / r + (u2 - ub) / r + (1 - alpha) * first
    f4, f5 = (u4 - ub) / r + alpha * first, u5 / r + (u5 - ub) / r + (1 - alpha) * second
    f7, f8 = (u7 - ub) / r + alpha * second, u8 / r
    run = m.mode(
        "run",
        ode={
            c1: f1 / c[0], u3: (first - u3 / r) / c[1], c3: f4 / c[2], u6: (second - u6 / r) / c[3], c5: f7 / c[4],
        },
        algebraic=[u2 - u1 - c1, u5 - u4 - c3, u8 - u7 - c5, f1 + f2, f4 + f5, f7 + f8],
    )  # fmt: skip
    m.initial(run, {c1: ub / 2, u3: ub / 2, c3: ub / 2 - ub, u6: ub / 2, c5: -ub})
    m.functional("G", terminal=u8, integrand=u2 - u3)
    return m


def ring_modulator() -> dh.HybridModel:
    """Four diodes that mix two signals (Horneber 1976), with Cs = 2e-12: seven voltages and eight currents."""
    m = dh.HybridModel("ring modulator")
    c, cs, cp, r, rp = 1.6e-8, 2e-12, m.parameter("Cp", 1e-8), m.parameter("R", 25e3), 50.0
    lh, ls1, ls2, ls3 = 4.45, 2e-3, 5e-4, 5e-4
    rg1, rg2, rg3, ri, rc = 36.3, 17.3, 17.3, 50.0, 600.0
    u, i = m.differential("U", size=7), m.differential("I", size=8)
    low, high = 0.5 * np.sin(2e3 * np.pi * m.time), 2 * np.sin(2e4 * np.pi * m.time)

    def diode(voltage: Any) -> Any:
        return 40.67286402e-9 * (np.exp(17.7493332 * voltage) - 1)

    d1, d2 = diode(u[2] - u[4] - u[6] - high), diode(-u[3] + u[5] - u[6] - high)
    d3, d4 = diode(u[3] + u[4] + u[6] + high), diode(-u[2] - u[5] + u[6] + high)
    voltages = [
        (i[0] - i[2] / 2 + i[3] / 2 + i[6] - u[0] / r) / c,
        (i[1] - i[4] / 2 + i[5] / 2 + i[7] - u[1] / r) / c,
        (i[2] - d1 + d4) / cs, (-i[3] + d2 - d3) / cs, (i[4] + d1 - d3) / cs, (-i[5] - d2 + d4) / cs,
        (-u[6] / rp + d1 + d2 - d3 - d4) / cp,
    ]  # fmt: skip
    currents = [
        -u[0] / lh, -u[1] / lh,
        (u[0] / 2 - u[2] - rg2 * i[2]) / ls2, (-u[0] / 2 + u[3] - rg3 * i[3]) / ls3,
        (u[1] / 2 - u[4] - rg2 * i[4]) / ls2, (-u[1] / 2 + u[5] - rg3 * i[5]) / ls3,
        (-u[0] + low - (ri + rg1) * i[6]) / ls1, (-u[1] - (rc + rg1) * i[7]) / ls1,
    ]  # fmt: skip
    run = m.mode("run", ode={u: voltages, i: currents})
    m.initial(run, {u: np.zeros(7), i: np.zeros(8)})
    m.functional("G", terminal=u[1])
    return m
