"""Pictures of `run.py`: CPU time against error, log-log, a panel for each problem."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from cases import TITLES
from outcomes import OURS, Results, Way, fastest

#: rounding: errors below are drawn there
FLOOR = 1e-14
STYLES = {"solve": "-", "forward": "-", "adjoint": "--"}
MARKERS = "osD^vP<>"
#: axes that cover less than this
NARROW = 30.0


def draw(results: Results, tasks: Sequence[str], path: Path) -> None:
    """All problems that were run."""
    from matplotlib.figure import Figure
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    cases = [case for case in TITLES if results.of(case)]
    columns = min(3, len(cases))
    lines = -(-len(cases) // columns)
    figure = Figure(figsize=(4.6 * columns, 5.3 * lines), layout="constrained")
    panels = figure.subplots(lines, columns, squeeze=False).ravel()
    names = [package.name for package in results.packages]
    looks = {name: {"color": f"C{i}", "marker": MARKERS[i % len(MARKERS)]} for i, name in enumerate(names)}
    what = "value" if tasks == ("solve",) else "gradient"
    for case, axes in zip(cases, panels, strict=False):
        for way, task in chosen(results, case, tasks):
            _line(axes, way, task, looks[way.package])
        axes.set(xscale="log", yscale="log", title=f"{case}: {TITLES[case]}")
        axes.set(xlabel="CPU time / ms", ylabel=f"relative error of the {what}")
        low, high = axes.get_xlim()
        room = max(1.0, (10 * low / high) ** 0.5)  # a decade at least
        axes.set_xlim(low / room, high * room)
        if high / low < NARROW:  # labels of all minor ticks would overlap
            axes.xaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.xaxis.set_major_formatter(FuncFormatter(lambda x, _: f"{x:g}"))
            axes.xaxis.set_minor_formatter(NullFormatter())
        axes.grid(visible=True, which="major", alpha=0.3)
        axes.legend(fontsize=6.5, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.14))
    for axes in panels[len(cases) :]:
        axes.set_visible(False)
    figure.savefig(path, dpi=110)


def chosen(results: Results, case: str, tasks: Sequence[str]) -> Iterator[tuple[Way, str]]:
    """For each package and task the fastest way that is right, or the fastest if none is."""
    for package in dict.fromkeys(way.package for way in results.of(case)):
        ways = [way for way in results.of(case) if way.package == package]
        for task in tasks:
            if found := fastest(ways, (task,)) or fastest(ways, (task,), right=False):
                yield found[0], task


def _line(axes: Any, way: Way, task: str, look: dict[str, str]) -> None:
    points = [p for p in way.curve(task) if p.error == p.error]
    ours = way.package == OURS
    label = way.label if task == "solve" else f"{way.label}, {task}"
    x, y = [p.cpu_ms for p in points], [max(p.error, FLOOR) for p in points]
    axes.plot(
        x, y, STYLES[task], label=label, markersize=4, linewidth=2.2 if ours else 1.0, zorder=3 if ours else 2, **look
    )
    wrong = [(p.cpu_ms, max(p.error, FLOOR)) for p in points if p.wrong]
    if wrong:
        axes.plot(*zip(*wrong, strict=True), "x", color="black", markersize=7, zorder=4)
