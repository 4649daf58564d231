"""A ball that bounces until it leaves the table: resets, a terminal event, and the derivative of its time.

The ball has the horizontal speed w and bounces with the coefficient of restitution e. The run ends when it has
travelled the length L of the table. The last lines compare the result with the closed form.
"""

from __future__ import annotations

import numpy as np

import dae_hybrid as dh


def model() -> dh.HybridModel:
    m = dh.HybridModel("ball")
    g, e = m.parameter("g", 9.81, unit="m/s^2"), m.parameter("e", 0.8)
    w, length = m.parameter("w", 0.6, unit="m/s"), m.parameter("L", 1.5, unit="m")
    x, y = m.differential("x", unit="m"), m.differential("y", unit="m")
    v = m.differential("v", unit="m/s")

    flight = m.mode("flight", ode={x: w, y: v, v: -g})
    m.transition(flight, flight, guard=y, direction="falling", reset={v: -e * v}, name="bounce")
    m.transition(flight, None, guard=x - length, direction="rising", name="edge")

    m.initial(flight, {x: 0.0, y: 1.0, v: 0.0})
    m.functional("energy", terminal=g * y + v**2 / 2)
    return m


def main(rtol: float = 1e-10, picture: str | None = None) -> dh.ForwardSensitivity:
    fsa = dh.forward_sensitivity(model().build(), (0.0, 10.0), rtol=rtol, atol=1e-12)
    for event, rates in zip(fsa.events, fsa.event_time_sensitivity, strict=True):
        print(f"{event.transition:6} at t = {event.time:.10f}   dt/d(g, e, w, L) = {rates}")

    bounces = sum(event.transition == "bounce" for event in fsa.events)
    g, e = 9.81, 0.8
    exact = g * e ** (2 * bounces)  # energy per mass: the height was 1
    print(f"energy {fsa.functionals['energy']:.12f}, exact {exact:.12f}")
    derivative = np.array([e ** (2 * bounces), 2 * bounces * g * e ** (2 * bounces - 1), 0.0, 0.0])
    print(f"its gradient {fsa.gradient['energy']}\n       exact {derivative}")
    if picture is not None:
        fsa.trajectory.plot("y", "v").savefig(picture)
    return fsa


if __name__ == "__main__":
    main()
