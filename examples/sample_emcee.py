"""Sample a posterior with emcee: its stretch move, and a Langevin move along exact gradients.

All walkers of a step are one batch. The stretch move needs values only. The Langevin move (MALA) proposes a step along
the gradient of the log-posterior, by adjoint analysis in the same batch, with the covariance of the Laplace
approximation as its metric; every walker is a chain of its own. emcee keeps the gradients of the walkers as blobs.
Needs ``pip install emcee``.

Roberts and Tweedie, Exponential convergence of Langevin distributions and their discrete approximations, Bernoulli
2(4), 341-363, 1996.
"""

from __future__ import annotations

import time

import emcee
import numpy as np
from ball_posterior import LogPosterior, Sample, ball, laplace, measured, on_grid


class Langevin(emcee.moves.Move):
    """The Metropolis-adjusted Langevin step, with a covariance as metric."""

    def __init__(self, covariance: np.ndarray, step: float = 1.3):
        self.metric = step**2 * covariance
        self.root = np.linalg.cholesky(self.metric)

    def propose(self, model, state):
        ahead = model.random.standard_normal(state.coords.shape)
        coords = state.coords + state.blobs @ self.metric / 2 + ahead @ self.root.T
        values, gradients = model.compute_log_prob_fn(coords)
        back = np.linalg.solve(self.root, (state.coords - coords - gradients @ self.metric / 2).T).T
        ratio = values - state.log_prob + ((ahead**2).sum(1) - (back**2).sum(1)) / 2
        accepted = np.log(model.random.random(len(ratio))) < ratio
        new = emcee.State(coords, log_prob=values, blobs=gradients)
        return self.update(state, new, accepted), accepted


def sample(system, start, gradient: bool, steps: int, warmup: int, walkers: int = 16, seed: int = 1) -> Sample:
    posterior = LogPosterior(system, gradient)
    moves = Langevin(start[1]) if gradient else emcee.moves.StretchMove()
    ensemble = emcee.EnsembleSampler(walkers, 2, posterior, moves=moves, vectorize=True)
    ensemble.random_state = np.random.RandomState(seed).get_state()
    began = time.process_time()
    first = np.random.default_rng(seed).multivariate_normal(*start, size=walkers)
    state = ensemble.run_mcmc(first, warmup)
    ensemble.reset()
    ensemble.run_mcmc(state, steps)
    name = f"emcee, {'Langevin' if gradient else 'stretch'} move"
    print(f"{name}: {ensemble.acceptance_fraction.mean():.0%} of proposals accepted")
    return Sample(name, ensemble.get_chain(), posterior.runs, posterior.failures, time.process_time() - began)


def main(steps: int = 2000, warmup: int = 200) -> list[Sample]:
    data = measured()
    system, start = ball(data), laplace(data)
    found = [sample(system, start, gradient, steps, warmup) for gradient in (False, True)]
    print(*found, sep="\n")
    print(f"Laplace approximation: mean {start[0].round(4)}  sd {np.sqrt(np.diag(start[1])).round(4)}")
    grid = on_grid(system)
    print(f"quadrature on a grid:  mean {grid.mean.round(4)}  sd {grid.sd.round(4)}")
    return found


if __name__ == "__main__":
    main()
