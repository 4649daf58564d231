"""Random parameters: Monte Carlo, Sobol indices, propagation by gradients, first-order reliability."""
