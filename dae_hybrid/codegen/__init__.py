"""Generate, compile and cache C code for CasADi functions; evaluate them in kernels. Knows no model."""
