"""Tables of `run.py`: a summary to print, and the page docs/benchmarks.md with its pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from cases import CASES, FORMS, TITLES
from outcomes import ATOL, GRADIENTS, LARGE, OURS, RTOL, TARGET, WRONG, Package, Point, Results, Way, fastest, soonest

from dae_hybrid.tables import align, markdown

SHOWN = (1e-4, 1e-6, 1e-8, 1e-10)
Rows = list[list[str]]


def milliseconds(value: float) -> str:
    """With two digits or so."""
    return f"{value:.0f}" if value >= 100 else f"{value:.1f}" if value >= 10 else f"{value:.2f}"


def cell(point: Point | None) -> tuple[str, str]:
    """Time and error of a point."""
    if point is None:
        return "", ""
    if point.failed:
        return "", "not supported" if point.unsupported else "failed"
    events = f", events seen: {point.events}" if point.events_missed else ""
    mark = f"**wrong** {point.error:.0e}{events}" if point.wrong else f"{point.error:.0e}"
    return milliseconds(point.cpu_ms), mark


def overview(results: Results) -> Rows:
    """The fastest right solve and gradient of each package on each problem."""
    cases = _cases(results)
    rows = [["", *(f"{case}: {TITLES[case]}" for case in cases)]]
    for package in results.packages:
        if not package.missing:
            rows.append([package.name, *(_best(results, package, case) for case in cases)])
    return rows


def _cases(results: Results) -> list[str]:
    return [case for case in TITLES if results.of(case)]


def _best(results: Results, package: Package, case: str) -> str:
    ways = [way for way in results.of(case) if way.package == package.name]
    parts = []
    for tasks in (("solve",), GRADIENTS):
        if found := fastest(ways, tasks):
            parts.append(milliseconds(found[1].cpu_ms) + ("" if tasks == ("solve",) else f" ({found[1].error:.0e})"))
        elif found := fastest(ways, tasks, right=False):
            parts.append(f"**wrong** ({found[1].error:.0e})")
        else:
            parts.append("failed" if ways else "–")
    return " / ".join(parts) if ways else "–"


def ratios(results: Results) -> Rows:
    """Our best time over the best of a peer that is right, by problem."""
    cases = [case for case in _cases(results) if case in CASES]
    rows = [[f"{OURS} / fastest right peer", *cases]]
    for title, tasks in (("solve", ("solve",)), ("gradient", GRADIENTS)):
        row = [title]
        for case in cases:
            ways = results.of(case)
            mine = fastest((w for w in ways if w.package == OURS), tasks)
            theirs = fastest((w for w in ways if w.package != OURS), tasks)
            both = mine is not None and theirs is not None
            row.append(f"{mine[1].cpu_ms / theirs[1].cpu_ms:.2f} ({theirs[0].label})" if both else "–")  # type: ignore[index]
        rows.append(row)
    return rows


def equal(results: Results) -> Rows:
    """The least time of each package for an error of `TARGET`, and ours over the least of peers."""
    cases = _cases(results)
    rows = [["", *(f"{case}: {TITLES[case]}" for case in cases)]]
    kinds = (("solve",), GRADIENTS)
    for package in results.packages:
        if not package.missing:
            cells = []
            for case in cases:
                ways = [way for way in results.of(case) if way.package == package.name]
                times = [soonest(ways, tasks, TARGET) for tasks in kinds]
                cells.append(" / ".join(milliseconds(t[1]) if t else "not reached" for t in times) if ways else "–")
            rows.append([package.name, *cells])
    last = []
    for case in cases:
        mine, theirs = ([w for w in results.of(case) if (w.package == OURS) is own] for own in (True, False))
        pairs = [(soonest(mine, tasks, TARGET), soonest(theirs, tasks, TARGET)) for tasks in kinds]
        last.append(" / ".join(f"{a[1] / b[1]:.2f}" if a and b else "–" for a, b in pairs))
    return [*rows, [f"{OURS} / fastest peer", *last]]


def summary(results: Results) -> str:
    """Plain text."""
    blocks = ["\n".join(align(rows)) for rows in (overview(results), ratios(results), equal(results))]
    blocks.append("\n".join(absent(results)))
    return "\n\n".join(block.replace("**", "") for block in blocks)


def absent(results: Results) -> list[str]:
    """What is not in the tables, and why; one line each."""
    lines = [f"{p.name} is not installed here: {p.missing}." for p in results.packages if p.missing]
    for package in results.packages:
        for reason in dict.fromkeys(package.unsupported.values()):
            cases = [case for case, given in package.unsupported.items() if given == reason]
            lines.append(f"{package.name} does not take {', '.join(cases)}: {reason}.")
    for way in results.ways:
        if way.note:
            lines.append(f"{way.case}, {way.label}: the process {way.note}.")
        failures = {p.failed: p for p in reversed(way.points) if p.failed and p.rtol == RTOL}
        lines += [f"{way.case}, {way.label}, {p.task or 'build'}: {said}" for said, p in failures.items()]
    if results.left_out:
        lines.append(f"Left out for lack of time: {'; '.join(results.left_out)}.")
    return lines


def detail(ways: Iterable[Way]) -> Rows:
    """Times and errors of every row of a problem at the tolerance of the tables."""
    rows = [["package and way", "solve, ms", "error", "forward, ms", "error", "adjoint, ms", "error"]]
    for way in ways:
        rows.append([way.label, *(text for task in ("solve", *GRADIENTS) for text in cell(way.at(task)))])
    return rows


def precision(ways: Iterable[Way]) -> Rows:
    """Gradients by tolerance: time and error."""
    rows = [["package, way, gradient", *(f"rtol {rtol:.0e}" for rtol in SHOWN)]]
    for way in ways:
        for task in GRADIENTS:
            points = [way.at(task, rtol) for rtol in SHOWN]
            if any(point is not None and not point.failed for point in points):
                cells = (" ms, ".join(cell(point)).removeprefix(" ms, ") for point in points)
                rows.append([f"{way.label}, {task}", *cells])
    return rows


def builds(results: Results) -> Rows:
    """Seconds until everything has been called once."""
    rows = [["package and way", *(f"{case}" for case in _cases(results))]]
    found: dict[str, dict[str, str]] = {}
    for way in results.ways:
        if "first" in way.build:
            first, again = way.build["first"], way.build.get("again")
            text = f"{first:.2f}" if again is None else f"{first:.2f} / {again:.2f}"
            found.setdefault(way.label, {})[way.case] = text
    return rows + [[label, *(cells.get(case, "") for case in _cases(results))] for label, cells in found.items()]


def page(results: Results, folder: Path) -> None:
    """benchmarks.md, benchmarks_solve.png and benchmarks_gradient.png."""
    from pictures import draw

    for name, tasks in (("solve", ("solve",)), ("gradient", GRADIENTS)):
        draw(results, tasks, folder / f"benchmarks_{name}.png")
    (folder / "benchmarks.md").write_text(text(results), encoding="utf-8")


def text(results: Results) -> str:
    """The page."""
    versions = [p.version for p in results.packages if not p.missing]
    machine = "; ".join(f"{key}: {value}" for key, value in results.machine.items())
    sections = [
        "# Speed at equal accuracy",
        "Written by `python benchmarks/run.py`, in one run on one machine. Every row is a separate process, and the "
        "rows of a problem run one after another. Times are median CPU times of a warm call in milliseconds. *forward* "
        "is the gradient by forward analysis (forward mode, or finite differences where noted), *adjoint* the gradient "
        "by adjoint analysis (reverse mode); both include the simulation. Errors are relative to exact values; the "
        "error of a gradient is that of its worst component. A result is **wrong** if its error exceeds "
        f"{WRONG:g} rtol or {LARGE:.0%}, or if it misses an event.",
        f"{machine}. {'; '.join(versions)}.",
        "## Summary",
        f"The fastest correct method of each package at rtol {RTOL:.0e}, atol {ATOL:.0e}: solve / gradient (error of "
        "the gradient).",
        markdown(overview(results)),
        markdown(ratios(results)),
        f"At equal accuracy: the shortest time for a value / a gradient with an error of at most {TARGET:.0e} at any "
        "tolerance (interpolated between tolerances a factor of ten apart).",
        markdown(equal(results)),
        "![CPU time of a gradient against its error, one panel per problem](benchmarks_gradient.png)",
        "![CPU time of a solve against its error, one panel per problem](benchmarks_solve.png)",
        "The figures show, for each package and kind of gradient, the fastest correct method at the tolerance of the "
        "tables; crosses mark wrong results.",
        "## Problems",
        *(_problem(results, case) for case in _cases(results)),
        "## Building",
        "Seconds until every function has been called once: first build / build from the caches of the first.",
        markdown(builds(results)),
    ]
    if results.strip:
        sections += ["## Reaction-diffusion strip", results.strip.strip()]
    if lines := absent(results):
        sections += ["## Missing entries", "\n".join(f"- {_escaped(line)}" for line in lines)]
    sections += [
        "## Running it",
        "`python benchmarks/run.py --quick` takes less than a minute. Other packages are optional: "
        "`benchmarks/requirements/` contains a file for each, and `--python diffrax=/path/to/python` names the "
        "environment of a package.",
    ]
    return "\n\n".join(sections) + "\n"


def _problem(results: Results, case: str) -> str:
    ways = results.of(case)
    parts = [f"### {case}: {TITLES[case]}", STATEMENTS[case]]
    parts += [f"At rtol {RTOL:.0e}, atol {ATOL:.0e}:", markdown(detail(ways))]
    if len({point.rtol for way in ways for point in way.points}) > 1:
        parts += ["Gradients by tolerance, time and error (atol is 1e-4 rtol):", markdown(precision(ways))]
    return "\n\n".join(parts)


def _escaped(line: str) -> str:
    return line.replace("<", "&lt;").replace("[", "\\[").replace("*", "\\*")


def _parameters(names: Sequence[str], values: Sequence[float]) -> str:
    return ", ".join(f"{name} = {value:.6g}" for name, value in zip(names, values, strict=True))


STATEMENTS = {
    "P1": "x' = 4 - x below the threshold x^3 - 5 x^2 + 7 x = p and x' = 10 - 2 x above it, x(0) = 0, T = 5, 3 events; "
    "G is the integral of x, p = 2.9 (Serban and Recuero 2019, section 5.1).",
    "P2": "The oscillator of the README, 19 events, G the integral of u^2, 4 parameters (the same, section 5.2). "
    "*DAE*: the stress is an algebraic variable.",
    "P3": "y'' = -g, y(0) = 1, y'(0) = 0, T = 3, 6 bounces with y' <- -e y'; the result is y(3), e = 0.8, g = 9.81.",
    "P4": "y1' = -k1 y1 + k3 y2 y3 + m r y3, y2' = k1 y1 - k3 y2 y3 - k2 y2^2, y3' = k2 y2^2 - m r y3, "
    "y(0) = (1, 0, 0), T = 200; m becomes 1 when y1 falls to 0.7 and 0 when it rises to 0.85, 8 events. G is the "
    "integral of y3^2, " + _parameters(CASES["P4"].names, CASES["P4"].nominal) + ".",
    "D1": f"`problems/{FORMS['D1'][0]}.py`: fully implicit equations with an acceleration as the guard, 3 events, "
    "6 parameters; derivatives are eliminated at build, or not (*DAE as written*).",
    "D2": f"`problems/{FORMS['D2'][0]}.py`: a constraint of index 2 that begins with an impact and ends again, 6 "
    "events, 4 parameters; the index is reduced at build, or not (*index 2 direct*).",
}
