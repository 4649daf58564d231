"""A neural force and a coefficient of restitution, learnt by JAX from mini-batches of trajectories with impacts.

A mass moves under an unknown force that depends on its position and velocity, and bounces off a wall at x = 0. The
force becomes a network of 337 weights within a hybrid model. Adam fits them, with the coefficient of restitution, to
noisy positions of 64 trajectories, in mini-batches of 16. The number of impacts differs between trajectories and
changes during the training; gradients are exact across all of them. Needs the extra ``[jax]``.
"""

from __future__ import annotations

import warnings

import casadi as ca
import numpy as np

import dae_hybrid as dh

SPAN, TIMES, FINE = (0.0, 1.5), np.linspace(0.05, 1.5, 30), np.linspace(0.0, 1.5, 601)
NOISE, TRAJECTORIES, BATCH = 0.005, 64, 16
OPTIONS = {"rtol": 1e-6, "atol": 1e-8}
HIDDEN, RATE, LAST_RATE, CLIP = 16, 2e-2, 5e-4, 0.1


def mass(force, restitution: float) -> dh.HybridModel:
    """A mass that bounces off a wall; its initial values are parameters, which differ between trajectories."""
    m = dh.HybridModel("mass")
    x0, v0, e = m.parameter("x0", 1.0), m.parameter("v0", 0.0), m.parameter("e", restitution)
    x, v = m.differential("x"), m.differential("v")
    free = m.mode("free", ode={x: v, v: force(m, x, v)})
    m.transition(free, free, guard=x, direction="falling", reset={v: -e * v}, name="impact")
    m.initial(free, {x: x0, v: v0})
    return m


def truth(_, x, v):
    """The force that is to be learnt: a spring that pushes to the wall, with a bump, and drag."""
    return -8.0 - 3.0 * ca.sin(3.0 * x) - 0.4 * v


def network(m: dh.HybridModel, x, v):
    """Two hidden layers of tanh; matrices are vectors, column by column."""
    rng, h = np.random.default_rng(1), HIDDEN
    inner = ca.reshape(m.parameter("inner", rng.normal(size=2 * h)), h, 2)
    b = m.parameter("b", rng.normal(size=h), size=h)
    middle = ca.reshape(m.parameter("middle", rng.normal(size=h * h) / np.sqrt(h)), h, h)
    c = m.parameter("c", np.zeros(h), size=h)
    outer = ca.reshape(m.parameter("outer", rng.normal(size=h) / h), 1, h)
    d = m.parameter("d", 0.0)
    return 10.0 * (outer @ ca.tanh(middle @ ca.tanh(inner @ ca.vertcat(x - 0.7, v / 3) + b) + c) + d)


LEARNT = ("e", "inner", "b", "middle", "c", "outer", "d")


def observed(system: dh.HybridSystem, count: int, seed: int) -> tuple[dict[str, np.ndarray], np.ndarray]:
    """Initial values at random, and the positions at TIMES, (count, n_t)."""
    rng = np.random.default_rng(seed)
    starts = {"x0": rng.uniform(0.3, 1.5, count), "v0": rng.uniform(-2.0, 2.0, count)}
    return starts, dh.batch(system, SPAN, parameters=starts, t_eval=TIMES, **OPTIONS)["x"]


def main(steps: int = 800, picture: str | None = None) -> dict[str, float]:
    import jax

    jax.config.update("jax_enable_x64", True)
    # an impact beside an output time: the position is the same on both sides of it, and its derivative is not
    warnings.filterwarnings("ignore", category=dh.DerivativeWarning)
    import jax.numpy as jnp

    from dae_hybrid.bridges.jax import reverse_mode

    real, system = mass(truth, restitution=0.8).build(), mass(network, restitution=0.5).build()
    starts, exact = observed(real, TRAJECTORIES, seed=0)
    data = exact + NOISE * np.random.default_rng(2).normal(size=exact.shape)

    position = reverse_mode(system, SPAN, outputs="x", t_eval=TIMES, wrt=["x0", "v0", *LEARNT], **OPTIONS)
    mapped = jax.vmap(position, in_axes=({"x0": 0, "v0": 0} | dict.fromkeys(LEARNT),))

    def loss(weights, starts, data):
        residual = mapped(starts | weights)[:, :, 0] - data
        known = jnp.isfinite(residual)  # a run that fails is left out
        return jnp.sum(jnp.where(known, residual, 0.0) ** 2) / jnp.sum(known)

    decay = (LAST_RATE / RATE) ** (1 / steps)

    @jax.jit
    def step(weights, first, second, count, starts, data):
        """One step of Adam, along a gradient of limited length: every impact multiplies derivatives."""
        value, gradient = jax.value_and_grad(loss)(weights, starts, data)
        sound = jax.tree.map(lambda g: jnp.where(jnp.isfinite(g), g, 0.0), gradient)
        size = jnp.sqrt(sum(jnp.sum(g**2) for g in jax.tree.leaves(sound)))
        sound = jax.tree.map(lambda g: g * jnp.minimum(1.0, CLIP / size), sound)
        first = jax.tree.map(lambda m, g: 0.9 * m + 0.1 * g, first, sound)
        second = jax.tree.map(lambda s, g: 0.999 * s + 0.001 * g**2, second, sound)

        def moved(w, m, s):
            return w - RATE * decay**count * m / (1 - 0.9**count) / (jnp.sqrt(s / (1 - 0.999**count)) + 1e-8)

        return jax.tree.map(moved, weights, first, second), first, second, value

    parts = system.parameters
    weights = {name: jnp.array(system.nominal[parts[name]]) for name in LEARNT}
    first = second = jax.tree.map(jnp.zeros_like, weights)
    rng, losses = np.random.default_rng(3), []
    for count in range(1, steps + 1):
        some = rng.choice(TRAJECTORIES, BATCH, replace=False)
        chosen = {name: jnp.array(value[some]) for name, value in starts.items()}
        weights, first, second, value = step(weights, first, second, count, chosen, jnp.array(data[some]))
        losses.append(float(value))

    unseen, there = observed(real, 16, seed=4)
    learnt = {name: np.broadcast_to(w, (16, w.size)) for name, w in weights.items()}
    before, after = (dh.batch(system, SPAN, parameters=p, t_eval=TIMES, **OPTIONS) for p in (unseen, unseen | learnt))
    found = {
        "weights": float(sum(w.size for w in weights.values()) - 1),
        "runs": float(position.statistics["runs"]),
        "failed runs": float(position.statistics["failed"]),
        "impacts": float(after.n_events.sum()),
        "loss before": losses[0],
        "loss after": float(np.median(losses[-20:])),
        "unseen before": float(np.sqrt(np.mean((before["x"] - there) ** 2))),
        "unseen after": float(np.sqrt(np.mean((after["x"] - there) ** 2))),
        "restitution": float(weights["e"][0]),
        "true restitution": float(real.nominal[2]),
    }
    for name, number in found.items():
        print(f"{name:16} {number:.4g}")
    if picture is not None:
        draw(losses, there, [dh.batch(system, SPAN, parameters=p, t_eval=FINE, **OPTIONS)["x"]
                             for p in (unseen, unseen | learnt)], picture)  # fmt: skip
    return found


def draw(losses, there, tried, path: str) -> None:
    """The loss of every mini-batch, and unseen trajectories before and after the training."""
    from dae_hybrid.report.plotting import new_figure, save

    figure = new_figure(1, 2, size=(9.0, 3.4))
    left, right = figure.axes
    left.semilogy(losses, color="C0", linewidth=0.9)
    left.axhline(NOISE**2, color="0.5", linewidth=0.8, linestyle="--")
    left.text(0.98 * len(losses), 0.9 * NOISE**2, "variance of the noise", ha="right", va="top", color="0.35")
    left.set(
        xlabel="step of Adam", ylabel="mean squared error of a mini-batch", xlim=(0, len(losses)), ylim=(1e-5, 1.0)
    )
    before, after = tried
    for i in range(3):
        colour, first = f"C{i}", i == 0
        right.plot(TIMES, there[i], ".", color=colour, markersize=4, label="truth" if first else None)
        right.plot(FINE, after[i], color=colour, linewidth=1.1, label="trained" if first else None)
        right.plot(FINE, before[i], "--", color=colour, linewidth=0.8, alpha=0.5, label="untrained" if first else None)
    right.axhline(0.0, color="0.6", linewidth=0.8)
    right.set(xlabel="time", ylabel="position of unseen trajectories", xlim=SPAN)
    right.legend(frameon=False, ncols=3, loc="lower center", bbox_to_anchor=(0.5, 1.0))
    save(figure, path)


if __name__ == "__main__":
    main()
