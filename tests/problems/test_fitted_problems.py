"""Problems with published data: models against closed forms and independent integrations, estimates as published."""

from __future__ import annotations

import subprocess
import sys
from decimal import Decimal

import numpy as np
import pytest

import dae_hybrid as dh
from dae_hybrid.problems import theophylline
from dae_hybrid.problems._reference import derivatives, read_table


def rounds_to(value, printed):
    """Whether a number may have been printed like this: it is within half a unit of the last digit."""
    unit = Decimal(1).scaleb(Decimal(printed).as_tuple().exponent)
    return abs(float(value) - float(printed)) <= 0.5 * float(unit) * (1 + 1e-9)


def made_again(folder, name, tmp_path, *, rtol):
    """Run the script that made a table and compare with the table."""
    target = tmp_path / name
    subprocess.run([sys.executable, folder / "make_reference.py", target], check=True)
    made, kept = read_table(target, ""), read_table(folder / name, "")
    assert made.columns.keys() == kept.columns.keys()
    for column, values in kept.columns.items():
        assert np.allclose(made[column], values, rtol=rtol, atol=0), column


# -- theophylline -----------------------------------------------------------------------------------


def test_theophylline_data_are_complete():
    everything = theophylline.data()
    assert {name: column.shape for name, column in everything.items()} == dict.fromkeys(
        ("subject", "weight", "dose", "time", "conc"), (132,)
    )
    for subject in theophylline.SUBJECTS:
        measured = theophylline.data(subject)
        assert np.all(np.diff(measured["time"]) > 0)
        assert measured["time"][-1] <= theophylline.t_span[1]
        assert np.ptp(measured["dose"]) == np.ptp(measured["weight"]) == 0
    with pytest.raises(ValueError, match="no subject 13; there are 1 to 12"):
        theophylline.data(13)


def test_theophylline_estimates_round_to_the_printed_ones():
    table = theophylline.estimates()
    for source in theophylline.published.values():
        for subject, printed in source.items():
            row = {name: table[name][subject] for name in table.columns}
            for name in ("lKe", "lKa", "lCl"):
                assert rounds_to(row[name], printed[name])
            for name, error in zip(("lKe", "lKa", "lCl"), printed.get("errors", ()), strict=False):
                assert rounds_to(row[f"se_{name}"], error)
            if "sigma" in printed:
                assert rounds_to(row["sigma"], printed["sigma"])
    # nlsList pools the residuals: 0.7 with 96 degrees of freedom
    assert rounds_to(np.sqrt(table["rss"][1:].sum() / table["df"][1:].sum()), "0.7")


def test_theophylline_estimates_are_made_by_their_script(tmp_path):
    made_again(theophylline.DATA, "estimates.csv", tmp_path, rtol=1e-9)


@pytest.mark.parametrize("subject", theophylline.SUBJECTS)
def test_theophylline_residuals_and_their_derivatives_are_those_of_the_closed_form(subject):
    measured = theophylline.data(subject)
    row = theophylline.estimates()
    p = np.array([*(row[name][subject] for name in ("lKe", "lKa", "lCl")), measured["dose"][0]])
    values = dict(zip(("lKe", "lKa", "lCl", "dose"), p, strict=True))
    fsa = dh.forward_sensitivity(
        theophylline.system(), theophylline.t_span, parameters=values, t_eval=measured["time"], rtol=1e-10, atol=1e-12
    )
    conc = fsa.trajectory["conc"]
    assert np.allclose(conc, theophylline.concentration(p, measured["time"]), rtol=1e-7, atol=1e-9)
    exact = derivatives(lambda q: theophylline.concentration(q, measured["time"]), p)
    assert np.allclose(fsa["conc"], exact, rtol=1e-6, atol=1e-8)
    assert np.sum((conc - measured["conc"]) ** 2) == pytest.approx(row["rss"][subject], rel=1e-8)
    residual = conc - measured["conc"]
    assert np.abs(fsa["conc"][:, :3].T @ residual).max() < 1e-6, "a minimum"
