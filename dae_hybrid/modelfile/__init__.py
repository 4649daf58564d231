"""Model files: a hybrid DAE system as one TOML or JSON document with expressions as text."""
