"""An unknown friction force, learnt from one noisy trajectory by a neural network within a hybrid system.

A driven mass on a spring bounces off a wall. The friction between mass and ground is a network of 1,050 weights, fitted
by L-BFGS-B with the adjoint gradient. The result is validated on an unseen run with another initial value and another
drive.
"""

from __future__ import annotations

import casadi as ca
import numpy as np

import dae_hybrid as dh

HIDDEN, NOISE, DECAY = 30, 0.01, 1e-4
SPAN, TIMES = (0.0, 8.0), np.linspace(0.1, 8.0, 80)
UNSEEN = {"x0": 0.4, "drive": 8.0}
OPTIONS = {"rtol": 1e-6, "atol": 1e-8}


def mass(friction, more=None) -> dh.HybridModel:
    """A mass on a spring with a wall at x = -0.5; `friction` is a function of the velocity."""
    m = dh.HybridModel("mass")
    x0, drive, e = m.parameter("x0", 1.0), m.parameter("drive", 6.0), m.parameter("e", 0.8)
    x, v = m.differential("x"), m.differential("v")
    given = {} if more is None else more(m)
    free = m.mode("free", ode={x: v, v: -9 * x + drive * ca.cos(2 * m.time) - friction(v, **given)})
    m.transition(free, free, guard=x + 0.5, direction="falling", reset={v: -e * v})
    m.initial(free, {x: x0, v: 0.0})
    return m


def stribeck(v):
    """The true friction: it drops when sliding begins, and contains viscous drag."""
    return (0.5 + 0.5 * ca.exp(-((v / 0.4) ** 2))) * ca.tanh(v / 0.1) + 0.2 * v


def weights(m: dh.HybridModel) -> dict[str, ca.MX]:
    """The parameters of two hidden layers; matrices are vectors, column by column."""
    rng, h = np.random.default_rng(1), HIDDEN
    return {
        "inner": ca.reshape(m.parameter("inner", rng.normal(size=2 * h)), h, 2),
        "b": m.parameter("b", rng.normal(size=h)),
        "middle": ca.reshape(m.parameter("middle", rng.normal(size=h * h) / np.sqrt(h)), h, h),
        "c": m.parameter("c", np.zeros(h)),
        "outer": ca.reshape(m.parameter("outer", rng.normal(size=h) / h), 1, h),
    }


def graph(v, inner, b, middle, c, outer):
    """Two layers of tanh."""
    return outer @ ca.tanh(middle @ ca.tanh(inner @ ca.vertcat(v, 3 * v) + b) + c)


def main(iterations: int = 80) -> dict[str, float]:
    truth = mass(stribeck).build()
    seen = dh.simulate(truth, SPAN, t_eval=TIMES, **OPTIONS)
    data = seen["x"] + NOISE * np.random.default_rng(0).normal(size=len(TIMES))

    system = mass(graph, weights).build()
    learnt = ["inner", "b", "middle", "c", "outer"]
    fit = dh.fit(
        system, dh.Experiment({"x": data}, TIMES, sigma=NOISE), learnt,
        penalty=lambda q: [np.sqrt(2 * DECAY * len(TIMES)) * weight for weight in q.values()],
        optimizer_options={"maxiter": iterations}, **OPTIONS,
    )  # fmt: skip
    chosen = fit.parameters

    unseen = dh.simulate(truth, SPAN, parameters=UNSEEN, t_eval=TIMES, **OPTIONS)
    found = {
        "weights": float(len(fit.labels)),
        "calls": float(fit.evaluations),
        "impacts seen": float(len(seen.events)),
        "impacts unseen": float(len(unseen.events)),
    }
    for name, values in (("before", {}), ("after", chosen)):
        for kind, exact, changed in (("seen", seen, {}), ("unseen", unseen, UNSEEN)):
            tried = dh.simulate(system, SPAN, parameters=values | changed, t_eval=TIMES, **OPTIONS)
            found[f"{kind} {name}"] = float(np.sqrt(np.mean((tried["x"] - exact["x"]) ** 2)))
    for name, value in found.items():
        print(f"{name:14} {value:.4g}")
    return found


if __name__ == "__main__":
    main()
