"""The model as its user states it. Imports `codegen` for expressions; knows nothing of runs."""
