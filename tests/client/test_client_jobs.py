"""Jobs by the client: results of the library, events that resume, cancellation, failures."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pandas as pd
import pytest
from service import LocalService, decay, jobs_in_threads, serving

import dae_hybrid as dh
from dae_hybrid import client as dhc
from dae_hybrid.errors import OptionError, ServiceError

K = np.linspace(0.5, 2.0, 24)


@pytest.fixture(scope="module")
def service() -> Iterator[LocalService]:
    with pytest.MonkeyPatch.context() as patch:
        jobs_in_threads(patch)
        with serving("service:decay", max_steps=10**12) as found:
            yield found


@pytest.fixture(scope="module")
def remote(service: LocalService) -> Iterator[dhc.Client]:
    with dhc.connect(service.url) as found:
        yield found


def test_an_ensemble_equals_that_of_the_library(remote: dhc.Client) -> None:
    seen: list[dhc.Event] = []
    job = remote.submit_ensemble("decay", (0, 3), parameters={"k": K}, rtol=1e-8, atol=1e-12)
    assert job.wait(seen.append)["status"] == "done"
    numbers = [event.number for event in seen]
    assert numbers == list(range(1, len(seen) + 1))
    assert [event.number for event in job.events(after=2)] == numbers[2:]
    theirs = dh.ensemble(decay().build(), (0, 3), parameters={"k": K}, rtol=1e-8, atol=1e-12)
    frame = job.to_dataframe()
    assert len(frame) == len(K)
    column = next(name for name in frame.columns if "area" in name)
    np.testing.assert_array_equal(frame[column], theirs.functionals["area"])
    assert job.result()["id"] == job.id
    assert job.id in [own.id for own in remote.jobs()]
    remote.job(job.id).remove()
    with pytest.raises(OptionError, match="no job"):
        remote.job(job.id)


def test_a_job_is_cancelled(remote: dhc.Client) -> None:
    job = remote.submit_ensemble("decay", (0, 1), parameters={"k": K}, max_step=1e-9, max_steps=10**12)
    with pytest.raises(ServiceError, match="job is"):
        job.result()
    with pytest.raises(OptionError, match="ended"):
        job.remove()
    job.cancel()
    assert job.wait()["status"] == "cancelled"


def test_a_wrong_entry_is_refused_with_its_path(remote: dhc.Client) -> None:
    with pytest.raises(OptionError) as wrong:
        remote.submit_ensemble("decay", (0, 3), parameters={"k": K}, speed=3)
    assert wrong.value.__dict__["errors"][0]["path"] == "/speed"


def test_a_fit(remote: dhc.Client) -> None:
    t = np.linspace(0.2, 3, 15)
    data = 2.0 * np.exp(-0.9 * t)
    experiment = {"t": t, "data": {"y": data}, "sigma": 0.01}
    job = remote.submit_fit("decay", (0, 3), experiments=[experiment], free=["k"], rtol=1e-9)
    job.wait()
    assert job.result()["estimates"] == pytest.approx([0.9], rel=1e-6)


def test_missing_values_and_labelled_arrays_are_sent(remote: dhc.Client) -> None:
    t, y = [0.5, 1.0, 1.5, 2.0], [1.28, np.nan, 0.53, 0.33]
    given = {"free": ["k"], "t_span": (0, 2)}
    job = remote.submit_fit("decay", experiments=[{"t": t, "data": {"y": y}}], **given)
    job.wait()
    shorter = [{"t": [0.5, 1.5, 2.0], "data": {"y": [1.28, 0.53, 0.33]}}]
    other = remote.submit_fit("decay", experiments=shorter, **given)
    other.wait()
    np.testing.assert_allclose(job.result()["estimates"], other.result()["estimates"], rtol=1e-6)
    series = pd.Series([0.5, 0.6])
    found = remote.submit_ensemble("decay", (0, 1), parameters={"k": series})
    found.wait()
    assert found.result()["parameters"]["k"] == [0.5, 0.6]
    with pytest.raises(dh.DaeHybridError, match=r"finite|number|not valid"):
        remote.submit_ensemble("decay", (0, 1), parameters={"k": [0.5, np.nan]})
    with pytest.raises(dh.OptionError, match="cannot be sent"):
        remote.submit_ensemble("decay", (0, 1), parameters={"k": object()})
    assert remote.job(found.id).status == "done"
    for wrong in ("0" * 32, "../models/decay"):
        with pytest.raises(dh.OptionError):
            remote.job(wrong)
    found.remove()
    with pytest.raises(dh.ServiceError, match="no such job"):
        next(found.events())
