"""Mechanisms and formulations that several tests share, and the comparison with the references of the five-bar."""

import numpy as np

import dae_hybrid as dh
from dae_hybrid.mechanics import Index1, Index2, Mechanism, Reduced, Restitution
from dae_hybrid.problems import five_bar

#: formulations without a penalty, by name
FORMS = {
    "index 1": Index1(),
    "index 1, stabilised": Index1(omega=10.0),
    "index 2": Index2(),
    "index 2, velocities only": Index2(positions=False),
    "reduced": Reduced(),
}


def pendulum() -> Mechanism:
    """Coordinates, a constraint, an impact."""
    mech = Mechanism("pendulum")
    length, e = mech.parameter("L", 1.0), mech.parameter("e", 0.8)
    bob = mech.point("")
    mech.point_mass(bob, 2.0)
    mech.gravity(9.81)
    mech.constraint("rod", bob.x**2 + bob.y**2 - length**2)
    swing = mech.mode("swing")
    mech.event(swing, swing, guard=bob.x, direction="falling", impact=Restitution(e))
    mech.initial(swing, {bob.x: 0.6 * length, bob.y: -0.8 * length})
    mech.functional("height", terminal=bob.y)
    return mech


def assert_gradients(system, exact, options, *, times, rtol, share=0.0):
    """Compare event times and the gradients of both analyses with those of a reference of the five-bar.

    Event times may differ by ``times``; components of a gradient by ``rtol`` of themselves, plus ``share``
    of the largest. Components that the reference does not give (nan) are left out.
    """
    fsa = dh.forward_sensitivity(system, five_bar.t_span, **options)
    np.testing.assert_allclose([event.time for event in fsa.events], exact.event_times, rtol=0, atol=times)
    for name, gradient in exact.gradients.items():
        known = np.isfinite(gradient)
        if not known.any():
            continue
        asa = dh.adjoint_gradient(system, five_bar.t_span, name, **options)
        atol = share * np.nanmax(abs(gradient))
        for found in (fsa.gradient[name], asa.gradient):
            np.testing.assert_allclose(found[known], gradient[known], rtol=rtol, atol=atol)
