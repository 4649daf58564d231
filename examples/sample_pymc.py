"""Sample a posterior with NUTS of PyMC; an Op of PyTensor gives it the exact gradient.

The Op has two outputs, the log-likelihood and its gradient, which come from one prepared run with its adjoint analysis.
Its pullback multiplies the second by the cotangent of the first, and refuses second derivatives. Needs
``pip install pymc``.

Hoffman and Gelman, The No-U-Turn Sampler, Journal of Machine Learning Research 15, 1593-1623, 2014.
"""

from __future__ import annotations

import time
from collections import Counter

import numpy as np
import pymc as pm
import pytensor.tensor as pt
from ball_posterior import MEAN, NAMES, OPTIONS, SD, SPAN, Sample, ball, measured, on_grid
from pytensor.gradient import DisconnectedType
from pytensor.graph import Apply, Op

import dae_hybrid as dh

MODE = "FAST_COMPILE"  # Numba, the default of PyTensor, cannot compile the Op


class LogLikelihood(Op):
    """Log-likelihood of parameters, and its gradient; -inf and zeros for a run that fails, which is counted."""

    __props__ = ()

    def __init__(self, system: dh.HybridSystem):
        self.run = dh.prepare(system, SPAN, derivatives="adjoint", wrt=NAMES, **OPTIONS)
        self.runs, self.failures = 0, Counter[str]()

    def make_node(self, parameters):
        return Apply(self, [pt.as_tensor(parameters)], [pt.dscalar(), pt.dvector()])

    def perform(self, _node, inputs, outputs):
        self.runs += 1
        try:
            found = self.run(dict(zip(NAMES, inputs[0], strict=True)))
            value, gradient = -found.value, -found.gradient["misfit"]
        except dh.DaeHybridError as error:
            self.failures[type(error).__name__] += 1
            value, gradient = -np.inf, np.zeros(len(NAMES))
        outputs[0][0], outputs[1][0] = np.array(value), gradient

    def pullback(self, _inputs, outputs, cotangents):
        if not isinstance(cotangents[1].type, DisconnectedType):
            raise dh.UnsupportedError("The gradient of the log-likelihood has no derivatives.")
        return [cotangents[0] * outputs[1]]


def posterior(likelihood: LogLikelihood) -> pm.Model:
    with pm.Model() as model:
        q = pm.Normal("q", MEAN, SD, shape=2)
        pm.Potential("data", likelihood(pt.stack([pt.exp(q[0]), pt.sigmoid(q[1])]))[0])
    return model


def main(steps: int = 1000, warmup: int = 300, chains: int = 2, seed: int = 1) -> Sample:
    system = ball(measured())
    likelihood = LogLikelihood(system)
    began = time.process_time()
    with posterior(likelihood):
        trace = pm.sample(
            steps, tune=warmup, chains=chains, cores=1, random_seed=seed, init="adapt_diag", initvals={"q": MEAN},
            progressbar=False, compile_kwargs={"mode": MODE},
        )  # fmt: skip
    draws = trace.posterior["q"].values.swapaxes(0, 1)
    found = Sample("PyMC, NUTS", draws, likelihood.runs, likelihood.failures, time.process_time() - began)
    print(found)
    print(f"{int(trace.sample_stats['diverging'].sum())} divergent transitions")
    grid = on_grid(system)
    print(f"quadrature on a grid: mean {grid.mean.round(4)}  sd {grid.sd.round(4)}")
    return found


if __name__ == "__main__":
    main()
