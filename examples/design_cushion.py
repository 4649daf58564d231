"""Design the cushion of a falling package: the softest landing within the travel that is available.

A package lands with speed v0 on a cushion with stiffness k and damping c. Beyond the travel d a stop with the stiffness
ks adds its force. The objective is the integral of the squared acceleration; the deepest compression, a cost at the
event at which the velocity changes sign, must not exceed the limit, and the cushion must have come to rest. SLSQP and
IPOPT find the same design with exact gradients through all events.
"""

from __future__ import annotations

import dae_hybrid as dh

LIMIT = 0.11


def model() -> dh.HybridModel:
    m = dh.HybridModel("cushion")
    k, c = m.parameter("k", 400.0, unit="1/s^2"), m.parameter("c", 10.0, unit="1/s")  # per mass
    v0, d, ks = m.parameter("v0", 3.0, unit="m/s"), m.parameter("d", 0.1, unit="m"), m.parameter("ks", 4e3)
    x, v = m.differential("x", unit="m"), m.differential("v", unit="m/s")
    soft, hard = -k * x - c * v, -k * x - c * v - ks * (x - d)
    stroke = m.mode("stroke", ode={x: v, v: soft})
    stop = m.mode("stop", ode={x: v, v: hard})
    m.transition(stroke, stop, guard=x - d, direction="rising", name="touch")
    m.transition(stop, stroke, guard=x - d, direction="falling", name="release")
    deepest = [
        m.transition(mode, mode, guard=v, direction="falling", name=f"{mode.name} turns") for mode in (stroke, stop)
    ]
    m.initial(stroke, {x: 0.0, v: v0})
    m.functional("harshness", integrand=m.der(v) ** 2)
    m.functional("travel", at_events=dict.fromkeys(deepest, x))
    m.functional("rest", terminal=x**2 + (v / 20) ** 2)
    return m


def main(methods: tuple[str, ...] = ("SLSQP", "ipopt")) -> list[dh.OptimizationResult]:
    problem = dh.OptimizationProblem(
        model().build(), (0.0, 0.25), "harshness", constraints={"travel": (None, LIMIT), "rest": (None, 1e-3)},
        wrt=["k", "c"], bounds={"k": (50, 5000), "c": (1, 100)}, scale={"k": "log", "c": "log"}, rtol=1e-9, atol=1e-11,
    )  # fmt: skip
    found = [problem.minimize(method) for method in methods]
    for result in found:
        print(result)
        print("events:", result.sequences[-1])
    return found


if __name__ == "__main__":
    main()
