"""Sample a posterior through HTTP: PyMC as a client of UM-Bridge, the model in the service.

The script starts ``dae-hybrid serve``; the heights of the ball at the times of the measurements are the outputs of the
model, and PyMC has the priors and the likelihood. NUTS moves along gradients by adjoint analysis in the service. A run
that fails gives NaN, which PyMC rejects. Needs ``pip install pymc umbridge``.

Seelinger et al., UM-Bridge: Uncertainty quantification and modeling bridge, Journal of Open Source Software 8(83),
4748, 2023.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from ball_posterior import MEAN, NAMES, NOISE, OPTIONS, SD, SPAN, TIMES, Sample, ball, measured, on_grid
from umbridge.pymc import UmbridgeGradOp, UmbridgeOp

MODE = "FAST_COMPILE"  # Numba, the default of PyTensor, cannot compile the Op
CONFIG = {
    "parameters": list(NAMES),
    "t_span": list(SPAN),
    "outputs": {"variables": ["y"], "t_eval": TIMES.tolist()},
    "on_failure": "nan",
    **OPTIONS,
}


@contextmanager
def serving(*models: str, seconds: float = 60.0) -> Iterator[str]:
    """Serve models on a free port of this machine; gives the address."""
    path = os.pathsep.join([str(Path(__file__).resolve().parent), os.environ.get("PYTHONPATH", "")])
    command = [sys.executable, "-m", "dae_hybrid.cli", "serve", *models, "--port", "0", "--workers", "1"]
    with tempfile.TemporaryFile("w+") as log:
        process = subprocess.Popen(command, stderr=log, env={**os.environ, "PYTHONPATH": path})
        try:
            yield _address(process, log, time.monotonic() + seconds)
        finally:
            process.terminate()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: IO[str], end: float) -> str:
    while process.poll() is None and time.monotonic() < end:
        log.seek(0)
        if found := re.search(r'running on (http://[^"]+)"', log.read()):
            return found[1]
        time.sleep(0.05)
    log.seek(0)
    raise RuntimeError(f"The service does not run: {log.read()}")


class Slope(UmbridgeGradOp):
    """Gradient of the weighted heights; NaN after a run that failed, whose weights JSON cannot carry."""

    def perform(self, node, inputs, outputs):
        if np.isfinite(inputs[1]).all():
            super().perform(node, inputs, outputs)
        else:
            outputs[0][0] = np.full(len(NAMES), np.nan)


class Heights(UmbridgeOp):
    """The heights as a function of the parameters; counts the evaluations."""

    def __init__(self, url: str):
        super().__init__(url, "ball", CONFIG)
        self.grad_op = Slope(self.umbridge_model, CONFIG)
        self.runs, self.failures = 0, Counter[str]()

    def perform(self, node, inputs, outputs):
        super().perform(node, inputs, outputs)
        self.runs += 1
        if np.isnan(outputs[0][0]).any():
            self.failures["failed run"] += 1

    def pullback(self, inputs, _outputs, cotangents):  # the package has the older method grad only
        return [self.grad_op(inputs[0], cotangents[0])]


def posterior(heights: Heights, data: np.ndarray) -> pm.Model:
    with pm.Model() as model:
        q = pm.Normal("q", MEAN, SD, shape=2)
        pm.Normal("data", heights(pt.stack([pt.exp(q[0]), pt.sigmoid(q[1])])), NOISE, observed=data)
    return model


def main(steps: int = 1000, warmup: int = 300, chains: int = 2, seed: int = 1) -> Sample:
    data = measured()
    with serving("ball_posterior:ball") as url:
        heights = Heights(url)
        began = time.perf_counter()
        with posterior(heights, data):
            trace = pm.sample(
                steps, tune=warmup, chains=chains, cores=1, random_seed=seed, init="adapt_diag", initvals={"q": MEAN},
                progressbar=False, compile_kwargs={"mode": MODE},
            )  # fmt: skip
        seconds = time.perf_counter() - began
    draws = trace.posterior["q"].values.swapaxes(0, 1)
    found = Sample("PyMC by UM-Bridge, NUTS", draws, heights.runs, heights.failures, seconds)
    print(found)
    print(f"{int(trace.sample_stats['diverging'].sum())} divergent transitions")
    grid = on_grid(ball(data))
    print(f"quadrature on a grid: mean {grid.mean.round(4)}  sd {grid.sd.round(4)}")
    return found


if __name__ == "__main__":
    main()
