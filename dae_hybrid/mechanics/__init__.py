"""Mechanical systems: coordinates, masses, forces, constraints and impacts, in several formulations.

`Mechanism` states a mechanism. `Index2`, `Index1`, `Penalty`, `Reduced` and `Unconstrained` are its formulations, and
`Restitution`, `VelocityJump`, `Inelastic` and `Continuous` the impact laws of events.
"""

from __future__ import annotations

from dae_hybrid.mechanics.bodies import Body as Body
from dae_hybrid.mechanics.bodies import Joint as Joint
from dae_hybrid.mechanics.bodies import Prismatic as Prismatic
from dae_hybrid.mechanics.bodies import Revolute as Revolute
from dae_hybrid.mechanics.declared import Constraint as Constraint
from dae_hybrid.mechanics.declared import Continuous as Continuous
from dae_hybrid.mechanics.declared import Event as Event
from dae_hybrid.mechanics.declared import Impact as Impact
from dae_hybrid.mechanics.declared import Inelastic as Inelastic
from dae_hybrid.mechanics.declared import Restitution as Restitution
from dae_hybrid.mechanics.declared import VelocityJump as VelocityJump
from dae_hybrid.mechanics.formulations import ALI3P as ALI3P
from dae_hybrid.mechanics.formulations import Formulation as Formulation
from dae_hybrid.mechanics.formulations import Index1 as Index1
from dae_hybrid.mechanics.formulations import Index2 as Index2
from dae_hybrid.mechanics.formulations import Penalty as Penalty
from dae_hybrid.mechanics.formulations import Reduced as Reduced
from dae_hybrid.mechanics.formulations import Unconstrained as Unconstrained
from dae_hybrid.mechanics.jump_matrix import JumpMatrix as JumpMatrix
from dae_hybrid.mechanics.jump_matrix import jump_matrix as jump_matrix
from dae_hybrid.mechanics.mechanism import MechanicalMode as MechanicalMode
from dae_hybrid.mechanics.mechanism import Mechanism as Mechanism
from dae_hybrid.mechanics.observe import animate as animate
from dae_hybrid.mechanics.observe import constraint_residuals as constraint_residuals
from dae_hybrid.mechanics.observe import draw_mechanism as draw_mechanism
from dae_hybrid.mechanics.observe import places as places
from dae_hybrid.mechanics.planar import Point as Point
