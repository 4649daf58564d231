"""Constants shared by Python and C; the C text is generated from here."""

from __future__ import annotations

from dae_hybrid import method
from dae_hybrid.codegen import casadi_tools
from dae_hybrid.compile import mode_functions
from dae_hybrid.conditions import amplification, resolution, sequences
from dae_hybrid.numerics import algebraic, crossings, step_polynomial
from dae_hybrid.port import failure_messages, native_batch, record_table, replay, segment_rules, stiffness
from dae_hybrid.sensitivity import adjoint
from dae_hybrid.simulation import automaton, event_logic, resting_guards, zeno
from dae_hybrid.system import excess, linearisation, reinitialisation, system, transition_map
from dae_hybrid.trajectory import event_accuracy, grazing

#: module that documents them -> names, or (name in Python, name in C)
NAMES: dict[object, tuple[str | tuple[str, str], ...]] = {
    adjoint: (
        ("MIN_COST_SHARE", "SETTLED"), ("MIN_PARAMETER", "SMALLEST"), ("MIN_RTOL", "ADJOINT_ROUNDING"),
        ("SEGMENTS_AT_RTOL", "FEW_SEGMENTS"), ("SAMPLED_SEGMENT_ENDS", "ENDS"),
    ),
    amplification: (("LARGE_CHANGE", "GROWN_LARGE"),),
    reinitialisation: (("MAX_ALGEBRAIC_RATIO", "ENORMOUS"),),
    automaton: (("RECENT_EVENT_TIMES", "RECENT"),),
    resting_guards: (
        ("DEPARTURE_FACTOR", "REST_LEFT"), ("SECOND_DERIVATIVE_STEP", "REST_MOMENT"),
        ("THIRD_DERIVATIVE_STEP", "REST_WHILE"), "TERMS_STEP", "RATE_ROUNDINGS",
        "FIRST_LOOK", "LOOK_RATIO", ("LOOKS", "LOOKS_AHEAD"), "TRUNCATION",
    ),
    method: ("DENSE_COLUMNS", "POINT_COLUMNS"),
    replay: ("PATH_ROUNDINGS",),
    event_accuracy: (
        ("INACCURATE_TIME_FACTOR", "AMPLIFIED"), ("MIN_RANGE_SHARE", "UNSEEN"), ("EVENTS_CHECKED", "LOOKED_AT"),
    ),
    excess: ("EXCESS_TOLERANCE", ("NEGLIGIBLE", "LEAST_SHARE")),
    event_logic: (
        "ZERO_ROUNDINGS", ("FIRED_VALUE_FACTOR", "RESIDUE"), ("MAX_SIMULTANEITY_RTOLS", "WIDEST"),
        ("SIMULTANEITY_RTOLS", "ONE_INSTANT"),
    ),
    zeno: ("ZENO_INTERVALS", "ZENO_RATIO", ("ZENO_REMAINDER", "ZENO_REST")),
    failure_messages: (("MIN_PROGRESS_SHARE", "STARVED"),),
    algebraic: (
        "RANK_TOLERANCE", "DOUBTFUL_TOLERANCE", ("STAGNATION_TOLERANCE", "STAGNANT"), "MULTIPLE_ROOT",
        "RESIDUAL_ROUNDINGS", "STEP_ROUNDINGS", ("MAX_NEWTON_STEPS", "MOST_STEPS"), "LEAST_DAMPING",
    ),
    sequences: ("DIGEST_BASIS", "DIGEST_FACTOR", "DIGEST_SHIFT", "MEASUREMENT", "BELOW", "ABOVE"),
    grazing: (
        ("SHALLOW_FACTOR", "SHALLOW"), ("RATE_DIFFERENCE_STEP", "BEFORE"), ("CLOSE_SHARE", "CLOSE_TO_ZERO"),
        ("FAR_TOLERANCES", "FAR_FROM_ZERO"),
    ),
    mode_functions: ("NEWTON_STEPS",),
    resolution: (("RESOLVED_SHARE", "RESOLVED"), "RESOLVED_DIGITS", "CLEAR_STATES"),
    crossings: (
        ("BISECTION_DEPTH", "DEPTH"), ("CUBIC_ERROR_FACTOR", "SAFETY"), ("INTERIOR_POSITION", "INSIDE"),
        ("GUARD_ROUNDING", "NOISE"), ("DETERMINANT_ROUNDING", "TOUCHED"), ("PARABOLA_MARGIN", "CALM"),
        ("MIN_STEP_RATIO", "GROWN"), ("TURNS_PER_STEP", "TURNS"), ("SAMPLE_SPACING", "SPACING"),
        ("RETAINED_SHARE", "HELD"), ("TRUSTED_RATE_SHARE", "MOVES"), ("TRIAL_RANGE_SHARE", "SHORTLY"),
        ("MAX_SAMPLES", "MOST_LOOKS"), ("NEAR_MISS_SHARE", "NEXT_TO"), ("MAX_NEAR_MISSES", "TURNED"),
    ),
    segment_rules: (
        ("MIN_INTERVAL_ROUNDINGS", "SHORTEST"), ("NEWTON_TOLERANCE", "CONVERGED"),
        ("MAX_NEWTON_ITERATIONS", "SOLVES"), ("MAX_STEP_RATIO", "LONGER"), "SAME_INSTANT", "DIGITS_LOST",
        "LOST_SHARE",
    ),
    step_polynomial: (("COEFFICIENTS", "NODES"),),
    stiffness: (
        ("NONSTIFF_DECAY_TIMES", "DECAYS"), ("STIFFNESS_CHECK_STEPS", "LOOK"), ("MAX_STIFFNESS_CHECK_STEPS", "MOST"),
        "EVENTS_AHEAD", "FEW_GUARDS", "TRIAL_SHARE", "ACCURATE_ORDER",
    ),
    casadi_tools: (("SYMBOLIC_SOLVE", "MOST_SOLVED"),),
    system: (("CONSTRAINT_SLACK", "LANDED"),),
    linearisation: ("DRIFT_ROUNDINGS",),
    transition_map: (("STATE_ERROR_FACTOR", "KNOWN"), ("GRAZING_RATE_SHARE", "GRAZING")),
}  # fmt: skip


def as_c() -> str:
    """Return the constants as C, the header columns of an event record, and the reasons to leave a run of a batch."""
    pairs = [(own, (name, name) if isinstance(name, str) else name) for own, names in NAMES.items() for name in names]
    lines = [f"#define {in_c} {getattr(own, name)!r}" for own, (name, in_c) in pairs]
    columns = ", ".join(f"{name.upper()}_AT" for name in record_table.HEADER)
    reasons = ", ".join(f"{reason.name} = {reason.value}" for reason in native_batch.Reason)
    return "\n".join((*lines, f"enum {{ {columns}, HEADER }};", f"enum {{ {reasons} }};", ""))
