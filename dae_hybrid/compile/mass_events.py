"""Transitions and initial conditions of modes whose states are combinations of variables; see `compile.mass`."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import casadi as ca

from dae_hybrid.errors import ModelError
from dae_hybrid.statement.declarations import Declaration, Initial, Transition
from dae_hybrid.statement.model import HybridModel


@dataclass(frozen=True)
class Combination:
    """A combination of entries of variables that is a state: (variable, entry) to factor; the first factor is 1."""

    name: str
    symbol: ca.MX
    terms: dict[tuple[str, int], Any]

    def value(self, of: dict[str, ca.MX]) -> Any:
        """Its value, given those of the variables."""
        return sum(factor * of[name][i] for (name, i), factor in self.terms.items())


def rewrite_events(model: HybridModel, of_mode: dict[str, list[Combination]], algebraic: set[str]) -> None:
    """Rewrite the transitions and the start of a model, given the combinations of each mode.

    Raises
    ------
    ModelError
        A reset, a projection or an initial value has no meaning for an algebraic variable.
    """
    rewriting = _Events(model, of_mode, algebraic)
    model.transitions = {name: rewriting.transition(t) for name, t in model.transitions.items()}
    if model.start is not None:
        model.start = rewriting.initial(model.start)


class _Events:
    def __init__(self, model: HybridModel, of_mode: dict[str, list[Combination]], algebraic: set[str]) -> None:
        self._model, self._of_mode, self._algebraic = model, of_mode, algebraic

    def transition(self, t: Transition) -> Transition:
        """The transition between the rewritten modes."""
        source = self._model.modes[t.source.name]
        if t.target is None:
            return replace(t, sources=(source,))
        target = self._model.modes[t.target.name]
        own = self._of_mode[target.name]
        self._check_projection(t.project, f"project of transition '{t.name}'")
        set_anew = [name for name in t.reset if name in self._algebraic]
        for name in set_anew:
            if not any(name == entry for c in own for entry, _ in c.terms):
                raise ModelError(
                    f"Transition '{t.name}' resets '{name}', which the equations of mode '{target.name}' determine.",
                    transition=t.name,
                    variables=[name],
                    remedy="The mass matrix has no entry for its rate; leave it out of the reset.",
                )
        reset, rows, labels = t.reset, t.equations, list(t.labels)
        if any(len(c.terms) > 1 for c in own if any(name in set_anew for name, _ in c.terms)):
            rows = ca.vertcat(*(self._model.post(name) - value for name, value in reset.items()))
            labels = [f"reset of '{name}'" for name, value in reset.items() for _ in range(value.numel())]
            reset = {}
        elif set_anew:
            reset = {name: value for name, value in reset.items() if name not in self._algebraic}
            reset |= {c.name: c.value(t.reset) for c in own if next(iter(c.terms))[0] in set_anew}
        if rows.numel():
            rows = self._by_states(rows, own)
        known, before = {c.name for c in self._of_mode[source.name]}, self._before(source.name)
        set_now = {s.__hash__() for s in ca.symvar(rows)}
        for c in own:
            is_set = c.name in reset or (
                c.name in self._model.posts and self._model.posts[c.name].__hash__() in set_now
            )
            if c.name in known or is_set or not all(name in before for name, _ in c.terms):
                continue
            if rows.numel():
                rows = ca.vertcat(rows, self._model.post(c.name) - c.value(before))
                labels.append(f"continuity of {c.name}")
            else:
                reset = reset | {c.name: c.value(before)}
        return replace(t, sources=(source,), target=target, reset=reset, equations=rows, labels=tuple(labels))

    def _before(self, mode: str) -> dict[str, ca.MX]:
        """The variables of a mode."""
        stated = self._model.modes[mode]
        used = {s.__hash__() for s in ca.symvar(stated.everything)} | {
            self._model.declarations[name].symbol.__hash__() for name in stated.ode
        }
        moving = (*self._model.of_kind("differential"), *self._model.of_kind("algebraic"))
        return {d.name: d.symbol for d in moving if d.symbol.__hash__() in used}

    def _by_states(self, rows: ca.MX, own: list[Combination]) -> ca.MX:
        """Equations with variables after a transition by a combination that has them, and its other variables.

        A combination gives its first variable; where a variable is the first of none, any combination that has it.
        """
        used = {s.__hash__() for s in ca.symvar(rows)}
        old, new = [], []
        for name in self._algebraic:
            post = self._model.posts.get(name)
            if post is None or post.__hash__() not in used:
                continue
            entries = [post[i] for i in range(post.numel())]
            givers: dict[int, Combination] = {}
            for c in own:
                first = next(iter(c.terms))
                for variable, i in c.terms:
                    if variable == name and (i not in givers or (variable, i) == first):
                        givers[i] = c
            for i, c in givers.items():
                others = [(self._model.post(v)[j], f) for (v, j), f in c.terms.items() if (v, j) != (name, i)]
                rest = sum(factor * value for value, factor in others)
                entries[i] = (self._model.post(c.name) - rest) / c.terms[name, i]
            old.append(post)
            new.append(ca.vertcat(*entries))
        found: ca.MX = ca.substitute([rows], old, new)[0] if old else rows
        return found

    def _check_projection(self, moved: tuple[Declaration, ...], where: str) -> None:
        lost = [d.name for d in moved if d.name in self._algebraic]
        if lost:
            raise ModelError(
                f"{where} names {', '.join(lost)}, which the mass matrix leaves algebraic.",
                variables=lost,
                remedy="The equations of the mode determine them; leave them out of project=.",
            )

    def initial(self, start: Initial) -> Initial:
        """The start: values of algebraic variables become guesses, and those of combinations follow from them."""
        self._check_projection(start.project, "project of initial()")
        values = {name: value for name, value in start.values.items() if name not in self._algebraic}
        for c in self._of_mode[start.mode.name]:
            missing = [name for name, _ in c.terms if name not in start.values]
            if not missing:
                values[c.name] = c.value(start.values)
            elif not start.equations.numel():
                raise ModelError(
                    f"initial() gives no value to {', '.join(dict.fromkeys(missing))}, which the state {c.name} needs.",
                    variables=missing,
                    remedy="Give the values of all variables whose rates the mass matrix couples, or equations.",
                )
        guess = {name: value for name, value in start.values.items() if name in self._algebraic} | start.guess
        return replace(start, mode=self._model.modes[start.mode.name], values=values, guess=guess)
