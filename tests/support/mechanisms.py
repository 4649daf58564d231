"""Mechanisms and formulations that several tests share."""

from dae_hybrid.mechanics import Index1, Index2, Mechanism, Reduced, Restitution

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
