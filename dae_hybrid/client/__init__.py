"""Python client of the service: the calls of the library, carried out by a server; see `connect`."""

from dae_hybrid.client.client import Client, connect
from dae_hybrid.client.jobs import Event, Job
from dae_hybrid.client.model import RemoteModel

__all__ = ["Client", "Event", "Job", "RemoteModel", "connect"]
