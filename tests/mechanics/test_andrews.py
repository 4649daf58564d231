"""Andrews' squeezer: seven bodies, three loops, against values in quadruple precision.

Data of the IVP test set (problem Andrews' squeezing mechanism); the values are those of index-1 equations integrated in
quadruple precision, with residuals of the constraints of 1e-30.
"""

from __future__ import annotations

import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.mechanics import ALI3P, Index1, Index2, Mechanism, Revolute

#: angles, angular velocities and multipliers at t = 0.03
ANGLES = (15.8107711951537071, -15.7563710584118395, 0.0408222401196458, -0.534730116342079594, 0.524409965879954069,
          0.534730116342079594, 1.04808074104193787)  # fmt: skip
VELOCITIES = (1139.92030225910606, -1424.37929517754007, 11.0329119106185937, 19.2933741050320408,
              0.573569914829502454, -19.2933741050320408, 0.323179149249130875)  # fmt: skip
MULTIPLIERS = (199.175348104538628, -29.7553099749717633, 23.0665436116221511, 31.4527252757711371,
               22.6424947863943786, 11.6173923526112559)  # fmt: skip


def squeezer():
    mech = Mechanism("andrews")
    O, A = mech.ground(0, 0, "O"), mech.ground(-0.06934, -0.00227, "A")
    B, C = mech.ground(-0.03635, 0.03273, "B"), mech.ground(0.014, 0.072, "C")
    k1 = mech.body("1", Revolute(O), mass=0.04325, center=(0.00092, 0), inertia=2.194e-6)
    k2 = mech.body("2", Revolute(k1.point(0.007)), mass=0.00365, center=(-0.0115, 0), inertia=4.410e-7)
    k3 = mech.body("3", Revolute(B), mass=0.02373, center=(0.01043, -0.01874), inertia=5.255e-6)
    k5 = mech.body("5", Revolute(A), mass=0.07050, center=(0.02308, 0.00916), inertia=1.169e-5)
    k4 = mech.body("4", Revolute(k5.point(0.04)), mass=0.00706, center=(0, -0.00579), inertia=5.667e-7)
    k7 = mech.body("7", Revolute(A), mass=0.05498, center=(-0.00449, -0.01228), inertia=1.912e-5)
    k6 = mech.body("6", Revolute(k7.point(0, -0.04)), mass=0.00706, center=(0.00579, 0), inertia=5.667e-7)
    P = k2.point(-0.028)
    for name, other in (("P3", k3.point(0, -0.035)), ("P4", k4.point(0, -0.02)), ("P6", k6.point(0.02))):
        mech.pin(P, other, name=name)
    mech.spring(k3.point(0.02, -0.018), C, stiffness=4530.0, natural_length=0.07785)
    torque = mech.parameter("torque", 0.033)
    mech.force({k1.coordinate: torque})
    guess = {k1: -0.0617, k3: 0.4553, k4: 0.2227, k5: 0.4874, k6: -0.2227, k7: 1.2305}
    mech.initial(mech.mode("run"), {k2.coordinate: 0.0}, guess={k.coordinate: angle for k, angle in guess.items()})
    mech.functional("turned", terminal=k1.coordinate)
    return mech


def at_the_end(sol):
    """Angles, angular velocities and multipliers."""
    names = (
        [f"angle_{i}" for i in range(1, 8)],
        [f"omega_{i}" for i in range(1, 8)],
        ["lambda_P3", "lambda_P4", "lambda_P6"],
    )
    return [np.concatenate([sol[name][-1].ravel() for name in group]) for group in names]


@pytest.mark.parametrize("formulation", [Index1(), Index2(), Index2(reference="origin")], ids=["1", "2", "2, origin"])
def test_index_1_and_2_give_the_reference(formulation):
    sol = dh.simulate(squeezer().build(formulation), (0, 0.03), rtol=1e-11, atol=1e-13)
    angles, velocities, multipliers = at_the_end(sol)
    np.testing.assert_allclose(angles, ANGLES, rtol=0, atol=1e-9)
    np.testing.assert_allclose(velocities, VELOCITIES, rtol=1e-7)
    np.testing.assert_allclose(multipliers, MULTIPLIERS, rtol=1e-8)


@pytest.mark.parametrize("reference", ["center", "origin"])
def test_index_3_converges_to_the_reference(reference):
    system, errors = squeezer().build(ALI3P(reference=reference)), []
    for h in (2e-5, 1e-5):
        found = at_the_end(dh.simulate(system, (0, 0.03), adapter="ali3p", fixed_step=h))
        exact = (ANGLES, VELOCITIES, MULTIPLIERS)
        errors.append([np.abs(value - np.array(true)).max() for value, true in zip(found, exact, strict=True)])
    assert np.log2(np.divide(*errors)) == pytest.approx(np.full(3, 2.0), abs=0.25)


def test_the_derivative_of_the_angle_by_the_torque():
    exact = dh.adjoint_gradient(squeezer().build(Index1()), (0, 0.01), "turned", rtol=1e-10).gradient
    asa = dh.adjoint_gradient(squeezer().build(ALI3P()), (0, 0.01), "turned", adapter="ali3p", fixed_step=2e-5)
    np.testing.assert_allclose(asa.gradient, exact, rtol=1e-4)
