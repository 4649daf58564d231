"""High-precision reference values for the hybrid system "ball on a rope", written as JSON.

A point ball hangs on a weightless, inextensible rope of length L(t) = L0 - w t that is reeled in through the origin.

* Flight (rope slack, r < L): x'' = 0, y'' = -g, until r^2 - L^2 rises through zero. The rope then takes an impulse
  along itself: v+ = v- + P (x, y) with P such that x vx+ + y vy+ = L L'.
* Swing (rope taut), x = L sin(a), y = -L cos(a): L a'' + 2 L' a' = -g sin(a), until the tension per mass and length,
  z = a'^2 + g cos(a) / L, falls through zero. The ball then flies on with everything continuous.

Costs: G = integral of x^2 + 0.1 z^2 over [0, T] (z = 0 in flight), H = sum of P^2 over the taut events,
K = x(T) + 2 vy(T). The parameters are p = (g, L0, w, v0), with v0 the horizontal speed at the start.

Method, in 60-digit arithmetic (mpmath) and without any ODE solver: flights are exact polynomials; swings use Taylor
series of high order, whose coefficients come from recurrences; event times come from Newton's method on the
polynomials; derivatives are central differences of whole runs. Everything is computed twice, with different orders,
steps and difference widths, and both have to agree in 24 digits, of which 20 are written.

Usage: ``python make_reference.py [rope.json]``
"""

import json
import sys
from pathlib import Path
from typing import Any

from mpmath import mp, mpf

mp.dps = 60
NAMES = ("g", "L0", "w", "v0")
PARAMETERS = [mpf("9.81"), mpf(1), mpf("0.05"), mpf(1)]
START = [mpf("0.5"), mpf("0.4")]
T_END = mpf("3.75")


def product(a: list[mpf], b: list[mpf], k: int) -> mpf:
    """Return coefficient k of the product of two series."""
    return mp.fdot(a[: k + 1], b[k::-1])


def evaluate(c: list[mpf], s: mpf) -> mpf:
    """Evaluate a series with ascending coefficients at s."""
    return mp.polyval(c[::-1], s)


def newton(c: list[mpf], s: mpf) -> mpf:
    """Return the simple root of a series (ascending coefficients) near s."""
    d = [k * ck for k, ck in enumerate(c)][1:]
    for _ in range(50):
        ds = evaluate(c, s) / evaluate(d, s)
        s -= ds
        if abs(ds) < mpf(10) ** (5 - mp.dps):
            return s
    raise ArithmeticError("Newton's method did not converge")


def fly(p: list[mpf], t: mpf, u: list[mpf]) -> tuple[mpf, list[mpf], mpf, bool]:
    """Fly from u = (x, y, vx, vy) at t to the next taut event or the end (time, state, cost G, event or not)."""
    g, length, w, _ = p
    x, y, vx, vy = u
    a, b, c = [x, vx, mpf(0), mpf(0), mpf(0)], [y, vy, -g / 2, mpf(0), mpf(0)], [length - w * t, -w] + 3 * [mpf(0)]
    gap = [product(a, a, k) + product(b, b, k) - product(c, c, k) for k in range(5)]
    s, scan = T_END - t, mpf(1) / 64  # no two events are closer than the scan width
    guess = next((k * scan for k in range(1, int(s / scan) + 1) if evaluate(gap, k * scan) >= 0), s)
    event = evaluate(gap, guess) >= 0
    s = newton(gap, guess) if event else s
    cost = x**2 * s + x * vx * s**2 + vx**2 * s**3 / 3
    return t + s, [x + vx * s, y + vy * s - g * s**2 / 2, vx, vy - g * s], cost, event


def swing(p: list[mpf], t: mpf, u: list[mpf], order: int, step: mpf) -> tuple[mpf, list[mpf], mpf, bool]:
    """Swing from u = (x, y, vx, vy) at t to the next slack event or the end (time, state, cost G, event or not)."""
    g, length0, w, _ = p
    x, y, vx, vy = u
    length, cost, event = length0 - w * t, mpf(0), False
    angle, rate = mp.atan2(x, -y), (x * vy - y * vx) / length**2
    while t < T_END and not event:
        a, b, sin, cos = [angle], [rate], [mp.sin(angle)], [mp.cos(angle)]  # series of the angle, its rate, ...
        quot, z = [cos[0] / length], [rate**2 + g * cos[0] / length]  # ... cos / L and the tension
        for k in range(order):  # from L b' = 2 w b - g sin, with L = length - w s
            a.append(b[k] / (k + 1))
            b.append((w * (k + 2) * b[k] - g * sin[k]) / (length * (k + 1)))
            da = [(j + 1) * a[j + 1] for j in range(k + 1)]
            sin.append(product(da, cos, k) / (k + 1))
            cos.append(-product(da, sin, k) / (k + 1))
            quot.append((cos[k + 1] + w * quot[k]) / length)
            z.append(product(b, b, k + 1) + g * quot[k + 1])
        if z[0] <= 0:
            raise ArithmeticError("the rope does not pull")
        s = min(step, T_END - t)
        event = evaluate(z, s) < 0
        s = newton(z, s) if event else s
        xs = [length * sin[k] - (w * sin[k - 1] if k else 0) for k in range(order + 1)]
        integrand = [product(xs, xs, k) + product(z, z, k) / 10 for k in range(order + 1)]
        cost += evaluate([mpf(0)] + [c / (k + 1) for k, c in enumerate(integrand)], s)
        angle, rate, t = evaluate(a, s), evaluate(b, s), t + s
        length = length0 - w * t
    sa, ca = mp.sin(angle), mp.cos(angle)
    state = [length * sa, -length * ca, length * rate * ca - w * sa, length * rate * sa + w * ca]
    return t, state, cost, event


def run(p: list[mpf], order: int, step: mpf) -> dict[str, Any]:
    """Simulate the system from 0 to T_END and return its events, final state and costs G, H, K."""
    t, u, taut, total = mpf(0), [*START, p[3], mpf(0)], False, mpf(0)
    events: list[dict[str, Any]] = []
    while True:
        t, u, cost, event = swing(p, t, u, order, step) if taut else fly(p, t, u)
        total += cost
        if not event:
            break
        taut = not taut
        events.append({"time": t, "transition": "taut" if taut else "slack"})
        if taut:
            x, y, vx, vy = u
            length = p[1] - p[2] * t
            pull = (-p[2] * length - x * vx - y * vy) / length**2
            events[-1]["impulse"] = pull
            u = [x, y, vx + pull * x, vy + pull * y]
        events[-1]["state_after"] = u
    values = {"G": total, "H": sum(e["impulse"] ** 2 for e in events if "impulse" in e), "K": u[0] + 2 * u[3]}
    return {"events": events, "final_state": u, "values": values}


def reference(order: int, step: mpf, width: mpf) -> dict[str, Any]:
    """Return the nominal run with the derivatives of event times and costs, from differences of relative width."""
    result: dict[str, Any] = {"parameters": dict(zip(NAMES, PARAMETERS, strict=True)), "start": START, "t_end": T_END}
    result |= run(PARAMETERS, order, step) | {"gradients": {"G": [], "H": [], "K": []}}
    kinds = [e["transition"] for e in result["events"]]
    for i, nominal in enumerate(PARAMETERS):
        h = nominal * width
        up, down = (run([q + d * (j == i) for j, q in enumerate(PARAMETERS)], order, step) for d in (h, -h))
        if any([e["transition"] for e in other["events"]] != kinds for other in (up, down)):
            raise ArithmeticError("the sequence of events changed")
        for e, eu, ed in zip(result["events"], up["events"], down["events"], strict=True):
            e.setdefault("by_parameter", []).append((eu["time"] - ed["time"]) / (2 * h))
        for name, gradient in result["gradients"].items():
            gradient.append((up["values"][name] - down["values"][name]) / (2 * h))
    return result


def convert(a: Any, digits: int) -> Any:
    """Replace the numbers in nested lists and dictionaries by strings."""
    if isinstance(a, dict):
        return {k: convert(v, digits) for k, v in a.items()}
    if isinstance(a, list):
        return [convert(v, digits) for v in a]
    return a if isinstance(a, str) else mp.nstr(a, digits)


def main() -> None:
    """Compute the reference twice, compare, and write it to the path given or next to this file."""
    first = reference(order=50, step=mpf(1) / 32, width=mpf("1e-15"))
    second = reference(order=40, step=mpf(1) / 50, width=mpf("1e-16"))
    if convert(first, 24) != convert(second, 24):
        raise ArithmeticError("the two computations disagree within 24 digits")
    path = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("rope.json")
    path.write_text(json.dumps(convert(first, 20), indent=1) + "\n")


if __name__ == "__main__":
    main()
