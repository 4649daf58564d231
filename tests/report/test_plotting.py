"""Pictures: contents of the axes."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from matplotlib.figure import Figure

import dae_hybrid as dh
from dae_hybrid.problems import em_hysteresis, hybrid_ode
from dae_hybrid.report import plotting
from dae_hybrid.report.plotting import PlotError, adjoint_lines, new_figure, plot_trajectory, save, with_gaps


@pytest.fixture(scope="module")
def ball():
    """A vector state with units, whose velocity jumps at every bounce; four bounces in two seconds."""
    m = dh.HybridModel("ball")
    position = m.differential("position", size=2, unit="m")
    v = m.differential("v", unit="m/s")
    bounces = m.memory("bounces", initial=0.0)
    flight = m.mode("flight", ode={position: [0.5, 0.0] + np.array([0.0, 1.0]) * v, v: -9.81})
    m.transition(
        flight, flight, guard=position[1], direction="falling", reset={v: -0.8 * v}, memory={bounces: bounces + 1}
    )
    m.initial(flight, {position: [0.0, 1.0], v: 0.0})
    return m.build()


@pytest.fixture(scope="module")
def run(ball):
    return dh.simulate(ball, (0, 2), rtol=1e-8)


def lines(axes):
    """Lines that are not events."""
    return [line for line in axes.get_lines() if len(line.get_xdata()) > 2]


def event_lines(axes):
    return sorted(line.get_xdata()[0] for line in axes.get_lines() if len(line.get_xdata()) == 2)


def test_one_panel_for_every_variable_labelled_with_its_unit(run):
    figure = plot_trajectory(run)
    assert isinstance(figure, Figure)
    assert [axes.get_ylabel() for axes in figure.axes] == ["position [m]", "v [m/s]"]
    assert figure.axes[-1].get_xlabel() == "t"
    legend = figure.axes[0].get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["position[0]", "position[1]"]


def test_trajectory_plot_is_plot_trajectory(run):
    assert [axes.get_ylabel() for axes in run.plot("v", "bounces").axes] == ["v [m/s]", "bounces"]


def test_a_jump_is_a_gap_and_an_event_a_thin_line(run):
    axes = run.plot("v").axes[0]
    (line,) = lines(axes)
    t, v = line.get_xdata(), line.get_ydata()
    gaps = np.flatnonzero(np.isnan(v))
    inner = gaps[:-1] if gaps[-1] == len(v) - 1 else gaps
    assert len(inner) == len(run.events) == 3
    for gap, event in zip(inner, run.events, strict=True):
        assert t[gap - 1] == t[gap + 1] == event.time
        assert v[gap - 1] == event.state_minus[2]
        assert v[gap + 1] == event.state_plus[2]
    assert event_lines(axes) == [event.time for event in run.events]


def test_with_output_times_the_line_still_reaches_the_events(ball):
    run = dh.simulate(ball, (0, 2), rtol=1e-8, t_eval=np.linspace(0.5, 2, 4))
    assert len(run.segments[0].t) == 0 or run.segments[0].t[0] >= 0.5
    (line,) = lines(run.plot("v").axes[0])
    t = line.get_xdata()
    assert t[0] == 0
    for event in run.events:
        assert np.count_nonzero(t == event.time) == 2


def test_several_variables_in_one_panel(run):
    axes = new_figure().axes[0]
    figure = plot_trajectory(run, "v", "position", axes=axes)
    assert figure is axes.figure
    assert len(lines(axes)) == 3
    texts = [text.get_text() for text in axes.get_legend().get_texts()]
    assert texts == ["v [m/s]", "position [m][0]", "position [m][1]"]


def test_one_of_given_panels_for_each(run):
    figure = new_figure(2)
    plot_trajectory(run, "v", "bounces", axes=figure.axes)
    assert [axes.get_ylabel() for axes in figure.axes] == ["v [m/s]", "bounces"]


def test_wrong_names_and_wrong_axes_are_refused(run):
    with pytest.raises(dh.OptionError, match=r"'speed'(.|\n)*position, v, bounces"):
        run.plot("speed")
    with pytest.raises(dh.OptionError, match="2 axes for 1 variables"):
        run.plot("v", axes=new_figure(2).axes)


def test_a_crowd_of_events_is_not_drawn():
    axes = new_figure().axes[0]
    plotting.mark_events(axes, np.linspace(0, 1, plotting.MOST_EVENT_LINES + 1))
    assert not axes.get_lines()


def test_gaps_in_sensitivities():
    fsa = dh.forward_sensitivity(hybrid_ode.system(), (0, 5), rtol=1e-10)
    t, s = with_gaps(fsa.trajectory, fsa["x"])
    assert s.shape == (len(t), 1)
    assert len(t) == len(fsa.t) + 3
    assert np.isnan(t).sum() == np.isnan(s).sum() == 3


def test_adjoint_lines_are_the_adjoint():
    asa = dh.adjoint_gradient(em_hysteresis.system(), (0, 10), "G", rtol=1e-8, atol=1e-12)
    t, values = adjoint_lines(asa, 6, 8, points=5)
    gaps = np.flatnonzero(np.isnan(t))
    assert len(gaps) == 4
    assert t[0] == 6
    assert t[-1] == 8
    assert len(t) == 5 * 5 + 4
    times = t[gaps - 1]
    assert np.array_equal(times, t[gaps + 1])
    assert values["u"][gaps - 1] == pytest.approx(asa.adjoint(times, "left")["u"], rel=1e-6)
    assert values["u"][gaps + 1] == pytest.approx(asa.adjoint(times, "right")["u"], rel=1e-6)
    assert np.all(np.isnan(values["u"][gaps]))
    assert np.abs(values["u"][gaps + 1] - values["u"][gaps - 1]).max() > 0.1


def test_save_writes_what_the_suffix_says_the_same_every_time(run, tmp_path):
    first, second = (save(run.plot("v"), tmp_path / "new" / name) for name in ("a.png", "b.png"))
    assert first.read_bytes() == second.read_bytes()
    assert first.read_bytes().startswith(b"\x89PNG")
    assert save(run.plot("v"), tmp_path / "a.svg").read_text(encoding="utf-8").startswith("<?xml")
    with pytest.raises(dh.OptionError, match=r"Legal suffixes: .*\.png"):
        save(run.plot("v"), tmp_path / "a.doc")


def test_without_matplotlib_there_is_a_sentence(run, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(PlotError, match=r"matplotlib(.|\n)*pip install"):
        run.plot("v")
    assert issubclass(PlotError, dh.DaeHybridError)
    assert issubclass(PlotError, ImportError)


def test_pyplot_is_never_imported():
    code = """
import sys
from dae_hybrid.cli import main
assert "matplotlib" not in sys.modules
import dae_hybrid as dh
from dae_hybrid.problems import hybrid_ode
system = hybrid_ode.model().build(native=False)
dh.simulate(system, (0, 5), adapter="scipy").plot("x")
assert "matplotlib" in sys.modules
assert "matplotlib.pyplot" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
