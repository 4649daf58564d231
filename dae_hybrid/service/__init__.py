"""The service: models over HTTP, with derivatives.

One process serves requests; worker processes, which may be killed, carry them out. The models are named when the
service starts: no request loads, compiles or executes code, or names a file.
"""
