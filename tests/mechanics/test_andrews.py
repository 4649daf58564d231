"""Andrews' squeezer: seven bodies, three loops, against values in quadruple precision.

Data of the IVP test set (problem Andrews' squeezing mechanism); the values are those of index-1 equations integrated in
quadruple precision, with residuals of the constraints of 1e-30.
"""

from __future__ import annotations

import casadi as ca
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


def turned(angle, along, across=0.0):
    """A vector of a body in the plane, and its derivative by the angle."""
    c, s = np.cos(angle), np.sin(angle)
    return np.array([c * along - s * across, s * along + c * across]), np.array(
        [-s * along - c * across, c * along - s * across]
    )


#: points of the squeezer as sums of vectors of its bodies: number of the body and of the one it turns on, vector
POINTS = {
    "1": ((0.0, 0.0), [((1,), 0.007, 0.0)]),
    "P": ((0.0, 0.0), [((1,), 0.007, 0.0), ((1, 2), -0.028, 0.0)]),
    "5": ((-0.06934, -0.00227), [((5,), 0.04, 0.0)]),
    "7": ((-0.06934, -0.00227), [((7,), 0.0, -0.04)]),
}


def places(angles, velocities):
    """Positions and velocities of the points."""
    found = {}
    for name, (place, parts) in POINTS.items():
        r, v = np.array(place), np.zeros(2)
        for bodies, *vector in parts:
            along, by_angle = turned(sum(angles[i - 1] for i in bodies), *vector)
            r, v = r + along, v + sum(velocities[i - 1] for i in bodies) * by_angle
        found[name] = r, v
    return found


def natural_squeezer():
    """The same in natural coordinates: seven bars between points, with centres of mass beside their lines."""
    mech = Mechanism("andrews in natural coordinates")
    O, A = mech.ground(0, 0, "O"), mech.ground(-0.06934, -0.00227, "A")
    B, C = mech.ground(-0.03635, 0.03273, "B"), mech.ground(0.014, 0.072, "C")
    one, P, five, seven = (mech.point(name) for name in POINTS)
    mech.bar(O, one, length=0.007, mass=0.04325, center=0.00092, inertia=2.194e-6)
    mech.bar(one, P, length=0.028, mass=0.00365, center=0.0115, inertia=4.410e-7)
    mech.bar(B, P, length=0.035, mass=0.02373, center=(0.01874, 0.01043), inertia=5.255e-6)
    mech.bar(A, five, length=0.04, mass=0.07050, center=(0.02308, 0.00916), inertia=1.169e-5)
    mech.bar(five, P, length=0.02, mass=0.00706, center=0.00579, inertia=5.667e-7)
    mech.bar(A, seven, length=0.04, mass=0.05498, center=(0.01228, -0.00449), inertia=1.912e-5)
    mech.bar(seven, P, length=0.02, mass=0.00706, center=0.00579, inertia=5.667e-7)
    along = (P.position - B.position) / 0.035
    D = B.position + 0.018 * along + 0.02 * ca.vertcat(-along[1], along[0])
    mech.potential(4530.0 / 2 * (ca.norm_2(D - C.position) - 0.07785) ** 2)
    torque = mech.parameter("torque", 0.033) / 0.007**2
    mech.force({one.x: -torque * one.y, one.y: torque * one.x})
    start = places([-0.0617138900142764, 0.0, 0.4553, 0.2227, 0.4874, -0.2227, 1.2305], np.zeros(7))
    guess = {
        axis: value
        for point in (one, P, five, seven)
        for axis, value in zip((point.x, point.y), start[point.name][0], strict=True)
        if axis is not one.y
    }
    mech.initial(mech.mode("run"), {one.y: start["1"][0][1]}, guess=guess)
    mech.functional("turned", terminal=ca.atan2(one.y, one.x))
    return mech


def at_the_end(sol):
    """Angles, angular velocities and multipliers."""
    names = (
        [f"angle_{i}" for i in range(1, 8)],
        [f"omega_{i}" for i in range(1, 8)],
        ["lambda_P3", "lambda_P4", "lambda_P6"],
    )
    return [np.concatenate([sol[name][-1].ravel() for name in group]) for group in names]


@pytest.mark.first(1)
@pytest.mark.parametrize("formulation", [Index1(), Index2(), Index2(reference="origin")], ids=["1", "2", "2, origin"])
def test_index_1_and_2_give_the_reference(formulation):
    sol = dh.simulate(squeezer().build(formulation), (0, 0.03), rtol=1e-11, atol=1e-13)
    angles, velocities, multipliers = at_the_end(sol)
    np.testing.assert_allclose(angles, ANGLES, rtol=0, atol=1e-9)
    np.testing.assert_allclose(velocities, VELOCITIES, rtol=1e-7)
    np.testing.assert_allclose(multipliers, MULTIPLIERS, rtol=1e-8)


@pytest.mark.first(1)
@pytest.mark.parametrize("reference", ["center", "origin"])
def test_index_3_converges_to_the_reference(reference):
    system, errors = squeezer().build(ALI3P(reference=reference)), []
    for h in (2e-5, 1e-5):
        found = at_the_end(dh.simulate(system, (0, 0.03), adapter="ali3p", fixed_step=h))
        exact = (ANGLES, VELOCITIES, MULTIPLIERS)
        errors.append([np.abs(value - np.array(true)).max() for value, true in zip(found, exact, strict=True)])
    assert np.log2(np.divide(*errors)) == pytest.approx(np.full(3, 2.0), abs=0.25)


def natural_errors(sol):
    """Largest errors of the positions and velocities at t = 0.03."""
    exact = places(ANGLES, VELOCITIES)
    found = {name: [[sol[f"{v}{axis}{name}"].ravel()[-1] for axis in "xy"] for v in ("", "v")] for name in POINTS}
    return [max(np.abs(found[name][i] - exact[name][i]).max() for name in POINTS) for i in range(2)]


@pytest.mark.first(1)
@pytest.mark.parametrize("formulation", [Index1(), Index2()], ids=["1", "2"])
def test_natural_coordinates_give_the_reference(formulation):
    sol = dh.simulate(natural_squeezer().build(formulation), (0, 0.03), rtol=1e-11, atol=1e-13)
    positions, velocities = natural_errors(sol)
    assert positions < 1e-10
    assert velocities < 1e-6  # of 8 m/s


def test_index_3_in_natural_coordinates_converges_to_the_reference():
    system, errors = natural_squeezer().build(ALI3P()), []
    for h in (2e-5, 1e-5):
        errors.append(natural_errors(dh.simulate(system, (0, 0.03), adapter="ali3p", fixed_step=h)))
    assert np.log2(np.divide(*errors)) == pytest.approx(np.full(2, 2.0), abs=0.25)


@pytest.mark.parametrize("mechanism", [squeezer, natural_squeezer])
def test_the_derivative_of_the_angle_by_the_torque(mechanism):
    exact = dh.adjoint_gradient(mechanism().build(Index1()), (0, 0.01), "turned", rtol=1e-10).gradient
    for analysis in (dh.forward_sensitivity, dh.adjoint_gradient):
        found = analysis(mechanism().build(ALI3P()), (0, 0.01), *(["turned"] * (analysis is dh.adjoint_gradient)),
                         adapter="ali3p", fixed_step=2e-5)  # fmt: skip
        gradient = found.gradient if analysis is dh.adjoint_gradient else np.ravel(found.gradient["turned"])
        np.testing.assert_allclose(gradient, exact, rtol=1e-4)
