"""Sample a posterior with NUTS of NumPyro; the bridge to JAX gives it the exact gradient.

Every step of a trajectory of NUTS is a run with its adjoint analysis. Needs ``pip install numpyro`` and the extra
``[jax]``.

Hoffman and Gelman, The No-U-Turn Sampler, Journal of Machine Learning Research 15, 1593-1623, 2014.
"""

from __future__ import annotations

import time
from collections import Counter
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
from ball_posterior import MEAN, OPTIONS, SD, SPAN, Sample, ball, measured, on_grid
from numpyro.distributions import Normal

from dae_hybrid.bridges.jax import JaxFunction, reverse_mode

jax.config.update("jax_enable_x64", True)


def cost(system) -> JaxFunction:
    """The negative log-likelihood as a function of JAX, of the parameters h and e."""
    return reverse_mode(system, SPAN, functional="misfit", wrt=["h", "e"], **OPTIONS)


def model(misfit: JaxFunction) -> None:
    q = numpyro.sample("q", Normal(MEAN, SD).to_event(1))
    value = misfit({"h": jnp.exp(q[0]), "e": jax.nn.sigmoid(q[1])})
    numpyro.factor("data", jnp.where(jnp.isfinite(value), -value, -jnp.inf))  # NaN is a run that failed


def main(steps: int = 1000, warmup: int = 300, chains: int = 2, seed: int = 1) -> Sample:
    system = ball(measured())
    misfit = cost(system)
    start = numpyro.infer.init_to_value(values={"q": jnp.asarray(MEAN)})
    mcmc = numpyro.infer.MCMC(
        numpyro.infer.NUTS(partial(model, misfit), dense_mass=True, init_strategy=start), num_warmup=warmup,
        num_samples=steps, num_chains=chains, chain_method="sequential", progress_bar=False,
    )  # fmt: skip
    began = time.process_time()
    mcmc.run(jax.random.key(seed), extra_fields=("diverging",))
    draws = np.asarray(mcmc.get_samples(group_by_chain=True)["q"]).swapaxes(0, 1)
    seconds, counts = time.process_time() - began, misfit.statistics
    found = Sample("NumPyro, NUTS", draws, counts["runs"], +Counter({"of any kind": counts["failed"]}), seconds)
    print(found)
    print(f"{int(mcmc.get_extra_fields()['diverging'].sum())} divergent transitions")
    grid = on_grid(system)
    print(f"quadrature on a grid: mean {grid.mean.round(4)}  sd {grid.sd.round(4)}")
    return found


if __name__ == "__main__":
    main()
