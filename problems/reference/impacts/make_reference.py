"""High-precision reference values of two systems with impacts, written as JSON beside this file.

* Impact oscillator: m x'' + c x' + k x = F cos(W t), x(0) = 0, x'(0) = 0, a stop at x = d where v+ = -e v-. Closed form
  between impacts; costs are the integral of x'^2, the sum of the squared impulses m (1 + e) v-, and x(T).
* Pendulum with a stop: a bob of mass m on a rod of length L, at an angle a from the downward vertical; a'' =
  -(g / L) sin(a), a(0) = start, at rest; a stop at a = -b, where a'+ = -e a'-. Taylor series between impacts; costs are
  the integral of the squared tension, T = m (g cos(a) + L a'^2), the sum of the impulses m (1 + e) L |a'-|, and the
  height -L cos(a) at the end.

Arithmetic has 60 digits (mpmath). Event times come from Newton's method, derivatives from complex steps of 1e-30 in
every parameter: everything is analytic. Both runs are made twice, with different orders and steps, and have to agree in
24 digits, of which 20 are written.

Usage: ``python make_reference.py`` (a minute)
"""

import json
from pathlib import Path
from typing import Any

from mpmath import mp, mpc, mpf

mp.dps = 60
TINY = mpf(10) ** -30
OSCILLATOR = {"m": "1", "c": "0.1", "k": "4", "F": "1", "W": "1.5", "d": "0.3", "e": "0.7"}
PENDULUM = {"g": "9.81", "L": "1.2", "m": "0.5", "b": "0.35", "e": "0.8", "start": "0.9"}
OSCILLATOR_END, PENDULUM_END = mpf(12), mpf(5)


# -- the oscillator ----------------------------------------------------------------------------------------


def oscillator(p: dict[str, Any], scan: mpf) -> dict[str, Any]:
    """Run it; `scan` is the distance of looks for an impact."""
    m, c, k, force, w, d, e = (p[name] for name in OSCILLATOR)
    damping = c / (2 * m)
    own = mp.sqrt(k / m - damping**2)
    z = force / (k - m * w**2 + 1j * c * w)  # the forced motion is the real part of z exp(i w t), of complex m, ...
    z_bar = force / (k - m * w**2 - 1j * c * w)

    def forced(t: Any, order: int) -> Any:
        return ((1j * w) ** order * z * mp.exp(1j * w * t) + (-1j * w) ** order * z_bar * mp.exp(-1j * w * t)) / 2

    def motion(t0: Any, x0: Any, v0: Any) -> list[tuple[Any, Any]]:
        """Amplitudes and exponents: x(t) = sum a exp(s t)."""
        roots = [-damping + 1j * own, -damping - 1j * own]
        x, v = x0 - forced(t0, 0), v0 - forced(t0, 1)
        one = (v - roots[1] * x) / (roots[0] - roots[1])
        amplitudes = [one * mp.exp(-roots[0] * t0), (x - one) * mp.exp(-roots[1] * t0), z / 2, z_bar / 2]
        return list(zip(amplitudes, [*roots, 1j * w, -1j * w], strict=True))

    def at(terms: list[tuple[Any, Any]], t: Any, order: int) -> Any:
        return sum(a * s**order * mp.exp(s * t) for a, s in terms)

    def energy(terms: list[tuple[Any, Any]], t: Any) -> Any:
        """The integral of x'^2 up to t but for a constant."""
        total = mpf(0)
        for a, s in terms:
            for b, r in terms:
                total += a * s * b * r * (mp.exp((s + r) * t) / (s + r) if s + r else t)
        return total

    t, x, v, cost, impulses, times = mpf(0), mpf(0), mpf(0), mpf(0), mpf(0), []
    while True:
        terms, look = motion(t, x, v), mp.re(t) + scan
        while look < OSCILLATOR_END and mp.re(at(terms, look, 0) - d) < 0:
            look += scan
        if look >= OSCILLATOR_END:
            break
        hit: Any = look
        for _ in range(60):
            step = (at(terms, hit, 0) - d) / at(terms, hit, 1)
            hit -= step
            if abs(step) < mpf(10) ** -56:
                break
        cost += energy(terms, hit) - energy(terms, t)
        before = at(terms, hit, 1)
        impulses += (m * (1 + e) * before) ** 2
        times.append(hit)
        t, x, v = hit, d, -e * before
    cost += energy(terms, OSCILLATOR_END) - energy(terms, t)
    end = at(terms, OSCILLATOR_END, 0)
    final = {"x": end, "v": at(terms, OSCILLATOR_END, 1)}
    return {"times": times, "values": {"work": cost, "impulses": impulses, "place": end}, "final": final}


# -- the pendulum ------------------------------------------------------------------------------------------


def pendulum(p: dict[str, Any], order: int, step: mpf) -> dict[str, Any]:
    """Run it by Taylor series of an order and step."""
    g, length, m, stop, e, start = (p[name] for name in PENDULUM)
    t, a, b, cost, impulses, times = mpf(0), start, mpf(0), mpf(0), mpf(0), []
    while mp.re(t) < PENDULUM_END:
        angle, rate, sin, cos = [a], [b], [mp.sin(a)], [mp.cos(a)]
        for k in range(order):
            angle.append(rate[k] / (k + 1))
            rate.append(-(g / length) * sin[k] / (k + 1))
            slope = [(j + 1) * angle[j + 1] for j in range(k + 1)]
            sin.append(product(slope, cos, k) / (k + 1))
            cos.append(-product(slope, sin, k) / (k + 1))
        s: Any = min(step, PENDULUM_END - mp.re(t))
        s = PENDULUM_END - t if s < step else s
        hits = mp.re(value(angle, s) + stop) < 0
        if hits:
            slope = [(k + 1) * ck for k, ck in enumerate(angle[1:])]
            for _ in range(60):
                change = (value(angle, s) + stop) / value(slope, s)
                s -= change
                if abs(change) < mpf(10) ** -56:
                    break
        tension = [m * (g * cos[k] + length * product(rate, rate, k)) for k in range(order)]
        squared = [product(tension, tension, k) for k in range(order)]
        cost += value([mpf(0), *(ck / (k + 1) for k, ck in enumerate(squared))], s)
        t, a, b = t + s, value(angle, s), value(rate, s)
        if hits:
            times.append(t)
            impulses += -m * (1 + e) * length * b
            a, b = -stop, -e * b
    height = -length * mp.cos(a)
    final = {"x": length * mp.sin(a), "y": height, "vx": length * b * mp.cos(a), "vy": length * b * mp.sin(a)}
    return {"times": times, "values": {"load": cost, "impulses": impulses, "height": height}, "final": final}


def product(a: list[Any], b: list[Any], k: int) -> Any:
    """Coefficient k of the product of two series."""
    return sum(a[i] * b[k - i] for i in range(k + 1))


def value(c: list[Any], s: Any) -> Any:
    """A series at s."""
    return mp.polyval(c[::-1], s)


# -- derivatives and comparison ----------------------------------------------------------------------------


def reference(run: Any, nominal: dict[str, str], *how: Any) -> dict[str, Any]:
    """The nominal run with derivatives by complex steps."""
    p = {name: mpf(text) for name, text in nominal.items()}
    plain = run(p, *how)
    result: dict[str, Any] = {
        "parameters": nominal,
        "values": {name: mp.re(v) for name, v in plain["values"].items()},
        "final": {name: mp.re(v) for name, v in plain["final"].items()},
        "event_times": [mp.re(t) for t in plain["times"]],
        "event_time_sensitivity": [[] for _ in plain["times"]],
        "gradients": {name: [] for name in plain["values"]},
    }
    for name in nominal:
        moved = run(p | {name: mpc(p[name], TINY)}, *how)
        if len(moved["times"]) != len(plain["times"]):
            raise ArithmeticError("the sequence of events changed")
        for row, t in zip(result["event_time_sensitivity"], moved["times"], strict=True):
            row.append(mp.im(t) / TINY)
        for key, row in result["gradients"].items():
            row.append(mp.im(moved["values"][key]) / TINY)
    return result


def convert(a: Any, digits: int) -> Any:
    """Numbers in nested lists and dictionaries as strings; what is zero to 40 digits is zero."""
    if isinstance(a, dict):
        return {k: convert(v, digits) for k, v in a.items()}
    if isinstance(a, list):
        return [convert(v, digits) for v in a]
    if isinstance(a, str):
        return a
    return mp.nstr(a if abs(a) > mpf(10) ** -25 else mpf(0), digits)


def main() -> None:
    """Compute everything twice, compare and write."""
    for name, run, nominal, ways in (
        ("impact_oscillator", oscillator, OSCILLATOR, ((mpf(1) / 64,), (mpf(1) / 90,))),
        ("pendulum_with_stop", pendulum, PENDULUM, ((44, mpf(1) / 24), (36, mpf(1) / 40))),
    ):
        first, second = (reference(run, nominal, *way) for way in ways)
        if convert(first, 24) != convert(second, 24):
            raise ArithmeticError(f"{name}: the two computations disagree within 24 digits")
        path = Path(__file__).with_name(f"{name}.json")
        path.write_text(json.dumps(convert(first, 20), indent=1) + "\n")


if __name__ == "__main__":
    main()
