"""Constants of rules that stand in Python and in C: C takes them from here."""

from __future__ import annotations

from dae_hybrid import (
    adjoint,
    amplification,
    arrival,
    automaton,
    dense,
    event_accuracy,
    events,
    excess,
    failures,
    formulation,
    grazing,
    instants,
    leg,
    mode_functions,
    resolution,
    scan,
    segments,
    steps,
    stiffness,
    symbolic,
    system,
    transition,
)

#: by the module that explains them, under the same names, or (there, in C)
NAMES: dict[object, tuple[str | tuple[str, str], ...]] = {
    adjoint: ("SETTLED", "SMALLEST", ("ROUNDING", "ADJOINT_ROUNDING"), ("FEW", "FEW_SEGMENTS"), ("LOOKS", "ENDS")),
    amplification: (("LARGE", "GROWN_LARGE"), ("LOST", "DIGITS_LOST")),
    arrival: ("ENORMOUS",),
    automaton: ("RECENT",),
    dense: ("DENSE_COLUMNS",),
    event_accuracy: ("AMPLIFIED", "UNSEEN", "LOOKED_AT"),
    excess: ("EXCESS_TOLERANCE", ("NEGLIGIBLE", "LEAST_SHARE")),
    events: (
        "ZERO_ROUNDINGS", "RESIDUE", "SAME_INSTANT", "ZENO_INTERVALS", "ZENO_RATIO", "ZENO_REST", "WIDEST",
        ("TOGETHER", "ONE_INSTANT"),
    ),
    failures: ("STARVED",),
    formulation: (
        "RANK_TOLERANCE", "DOUBTFUL_TOLERANCE", "STAGNANT", "MULTIPLE_ROOT", "RESIDUAL_ROUNDINGS", "STEP_ROUNDINGS",
        "MOST_STEPS", "LEAST_DAMPING",
    ),
    grazing: ("SHALLOW", "BEFORE"),
    instants: (("CLOSE", "CLOSE_TO_ZERO"), ("FAR", "FAR_FROM_ZERO")),
    mode_functions: ("NEWTON_STEPS",),
    resolution: (("SLACK", "RESOLVED"), ("DIGITS", "RESOLVED_DIGITS"), ("CLEAR", "CLEAR_STATES")),
    scan: (
        "DEPTH", "SAFETY", "INSIDE", "NOISE", "TOUCHED", "CALM", "GROWN", "TURNS", "SPACING", "HELD", "MOVES",
        "SHORTLY", "MOST_LOOKS", "NEXT_TO", "TURNED",
    ),
    segments: ("SHORTEST", "CONVERGED", "SOLVES", "LONGER"),
    steps: (("COEFFICIENTS", "NODES"),),
    stiffness: (
        "DECAYS", "LOOK", "MOST", "EVENTS_AHEAD", "FEW_GUARDS", ("SHARE", "TRIAL_SHARE"),
        ("ACCURATE", "ACCURATE_ORDER"),
    ),
    symbolic: (("SYMBOLIC_SOLVE", "MOST_SOLVED"),),
    system: (("SLACK", "LANDED"),),
    transition: ("DRIFT_ROUNDINGS", "KNOWN", "GRAZING"),
}  # fmt: skip


def as_c() -> str:
    """Lines of C: the constants, and the columns at the head of an event's record, from `leg.HEADER`."""
    pairs = [(own, (name, name) if isinstance(name, str) else name) for own, names in NAMES.items() for name in names]
    lines = [f"#define {in_c} {getattr(own, name)!r}" for own, (name, in_c) in pairs]
    columns = ", ".join(f"{name.upper()}_AT" for name in leg.HEADER)
    return "\n".join((*lines, f"enum {{ {columns}, HEADER }};", ""))
