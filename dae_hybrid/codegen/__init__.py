"""From CasADi functions to compiled code: kernels, the compiler, the cache. Knows no model."""
