"""Modes without differential variables: purely algebraic ones, and those that only wait for an event or a time.

An integrator needs a state. Such a mode has one of its own, `IDLE`, which stays at zero and is in no result.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import casadi as ca

from dae_hybrid.layout import IDLE
from dae_hybrid.statement.declarations import Declaration, Mode, Transition
from dae_hybrid.statement.model import HybridModel


def with_idle_states(model: HybridModel) -> HybridModel:
    """Return the model with a state in modes that have no differential variable."""
    rates = {rate.__hash__() for rate in model.rates.values()}
    idle = {name for name, mode in model.modes.items() if not _moves(mode, rates)}
    if not idle:
        return model
    found = copy.copy(model)
    state = Declaration(IDLE, "differential", 1, ca.MX.sym(IDLE))
    found.declarations = {**model.declarations, IDLE: state}
    found.posts = dict(model.posts)
    zero = {IDLE: ca.MX(0)}
    found.modes = {name: replace(m, ode=zero) if name in idle else m for name, m in model.modes.items()}

    def entered(transition: Transition) -> Transition:
        source, target = transition.source.name, None if transition.target is None else transition.target.name
        own = replace(
            transition, sources=(found.modes[source],), target=None if target is None else found.modes[target]
        )
        if target not in idle or source in idle:
            return own
        if not transition.equations.numel():
            return replace(own, reset={**transition.reset, **zero})
        after = found.posts.setdefault(IDLE, ca.MX.sym(f"post({IDLE})"))
        return replace(own, equations=ca.vertcat(transition.equations, after), labels=(*transition.labels, IDLE))

    found.transitions = {name: entered(t) for name, t in model.transitions.items()}
    if model.start is not None:
        start = model.start.mode.name
        values = {**model.start.values, **zero} if start in idle else model.start.values
        found.start = replace(model.start, mode=found.modes[start], values=values)
    return found


def _moves(mode: Mode, rates: set[int]) -> bool:
    """Whether a mode has a differential variable."""
    return bool(mode.ode) or not rates.isdisjoint(s.__hash__() for s in ca.symvar(mode.everything))
