"""The model as declared by the user. Imports `codegen` for expressions; knows nothing of runs."""
