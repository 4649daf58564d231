"""The connection to a service, and its models by name."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Self

from numpy.typing import ArrayLike

from dae_hybrid.client.jobs import Job, submitted
from dae_hybrid.client.model import NOT_FOUND, RemoteModel, plain
from dae_hybrid.client.results import decoded
from dae_hybrid.client.transport import Transport
from dae_hybrid.errors import OptionError, ServiceError
from dae_hybrid.interface.gradient_check import GradientCheck
from dae_hybrid.interface.runs import Parameters
from dae_hybrid.sensitivity.results import ForwardSensitivity, Gradient
from dae_hybrid.trajectory.trajectory import Trajectory


class Client(Mapping[str, RemoteModel]):
    """A connection to a service: its models by name, and the calls of the library.

    ``remote["em_hysteresis"].simulate(...)`` and ``remote.simulate("em_hysteresis", ...)`` are the same. A context
    manager; to close it cancels the requests that run.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        listed = transport.json("/v1/models").get("models")
        if not isinstance(listed, list) or not all(
            isinstance(own, dict) and isinstance(own.get("name"), str) for own in listed
        ):
            raise ServiceError(
                f"{transport.url} does not answer as a service of dae_hybrid: no list of models.",
                remedy="Check the address.",
            )
        self._models = {own["name"]: RemoteModel(transport, own["name"]) for own in listed}

    @property
    def models(self) -> tuple[str, ...]:
        """Names of the models."""
        return tuple(self._models)

    def __getitem__(self, name: str) -> RemoteModel:
        if name not in self._models:
            raise KeyError(f"No model {name!r}; there are {', '.join(self._models)}.")
        return self._models[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._models)

    def __len__(self) -> int:
        return len(self._models)

    def __repr__(self) -> str:
        return f"<Client of {self._transport.url}: {', '.join(self._models)}>"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close all connections; the service cancels the requests that run."""
        self._transport.close()

    def _model(self, model: str | RemoteModel) -> RemoteModel:
        if isinstance(model, RemoteModel):
            return model
        if not isinstance(model, str) or model not in self._models:
            raise OptionError(f"The service has no model {model!r}; there are {', '.join(self._models)}.")
        return self._models[model]

    def simulate(
        self, model: str | RemoteModel, t_span: Sequence[float] | None = None, *, parameters: Parameters = None,
        t_eval: ArrayLike | None = None, **options: Any,
    ) -> Trajectory:  # fmt: skip
        """Simulate; see `RemoteModel.simulate`."""
        return self._model(model).simulate(t_span, parameters=parameters, t_eval=t_eval, **options)

    def forward_sensitivity(
        self, model: str | RemoteModel, t_span: Sequence[float] | None = None, *,
        wrt: str | Sequence[str] | None = None, parameters: Parameters = None, t_eval: ArrayLike | None = None,
        strict: bool = True, **options: Any,
    ) -> ForwardSensitivity:  # fmt: skip
        """Simulate with forward sensitivities; see `RemoteModel.forward_sensitivity`."""
        return self._model(model).forward_sensitivity(
            t_span, wrt=wrt, parameters=parameters, t_eval=t_eval, strict=strict, **options
        )

    def adjoint_gradient(
        self, model: str | RemoteModel, t_span: Sequence[float] | None = None, functional: str | None = None, *,
        wrt: str | Sequence[str] | None = None, parameters: Parameters = None, strict: bool = True, **options: Any,
    ) -> Gradient:  # fmt: skip
        """Compute the gradient of a functional; see `RemoteModel.adjoint_gradient`."""
        return self._model(model).adjoint_gradient(
            t_span, functional, wrt=wrt, parameters=parameters, strict=strict, **options
        )

    def check_gradient(
        self, model: str | RemoteModel, t_span: Sequence[float] | None = None, functional: str | None = None, *,
        wrt: str | Sequence[str] | None = None, parameters: Parameters = None, **options: Any,
    ) -> GradientCheck:  # fmt: skip
        """Compare gradients; see `RemoteModel.check_gradient`."""
        return self._model(model).check_gradient(t_span, functional, wrt=wrt, parameters=parameters, **options)

    def submit_ensemble(
        self, model: str | RemoteModel, t_span: Sequence[float] | None = None, *,
        parameters: Mapping[str, ArrayLike] | None = None, **entries: Any,
    ) -> Job:  # fmt: skip
        """Submit an ensemble, which goes on without this client; see `dae_hybrid.ensemble`.

        Parameters
        ----------
        parameters : mapping of str to array
            One value, or one per run, by name.
        **entries
            Further entries of the request, such as ``functional``, ``gradient``, ``wrt``, ``t_eval``, ``rtol``.

        Returns
        -------
        Job

        Raises
        ------
        OptionError
            An entry is wrong; its path is in `errors`.
        """
        return self._submit("ensemble", model, t_span, {"parameters": parameters, **entries})

    def submit_fit(
        self, model: str | RemoteModel, t_span: Sequence[float] | None = None, *,
        experiments: Sequence[Mapping[str, Any]], free: Sequence[str] | Mapping[str, float], **entries: Any,
    ) -> Job:  # fmt: skip
        """Submit a fit by least squares, which goes on without this client; see `dae_hybrid.fit`.

        Parameters
        ----------
        experiments : sequence of mappings
            ``t``, ``data`` by variable, ``sigma``, and what differs between them.
        free : sequence of str, or mapping of str to float
            Parameters to estimate, or their starts.
        **entries
            Further entries of the request, such as ``bounds``.
        """
        return self._submit("fit", model, t_span, {"experiments": experiments, "free": free, **entries})

    def _submit(
        self, kind: str, model: str | RemoteModel, t_span: Sequence[float] | None, entries: Mapping[str, Any]
    ) -> Job:
        body = {"kind": kind, "model": self._model(model).name, "t_span": t_span, **entries}
        content = {name: plain(value) for name, value in body.items() if value is not None}
        try:
            json.dumps(content, allow_nan=False)
        except (TypeError, ValueError) as reason:
            raise OptionError(
                f"The job cannot be sent: {reason}.", remedy="Pass numbers, text, lists, arrays and mappings."
            ) from None
        return submitted(self._transport, content)

    def jobs(self) -> tuple[Job, ...]:
        """The jobs of the service, in order of submission."""
        listed = self._transport.json("/v1/jobs")
        return decoded(lambda: tuple(Job(self._transport, own["id"]) for own in listed["jobs"]))

    def job(self, identifier: str) -> Job:
        """A job by its identifier.

        Raises
        ------
        OptionError
            There is none.
        """
        try:
            found = Job(self._transport, identifier)
            _ = found.status
        except ValueError:
            raise OptionError(f"{identifier!r} is no identifier of a job.") from None
        except ServiceError as error:
            if error.__dict__.get("status") != NOT_FOUND:
                raise
            raise OptionError(f"The service has no job {identifier!r}.") from None
        return found


def connect(url: str, *, token: str | None = None, timeout: float = 120.0) -> Client:
    """Connect to a service.

    Parameters
    ----------
    url : str
        Address of the service, such as ``"http://127.0.0.1:8000"``.
    token : str, optional
        Token of the service, if it wants one.
    timeout : float
        Longest time until an answer is complete, in seconds; streams of events last longer.

    Returns
    -------
    Client

    Raises
    ------
    ServiceError
        The service cannot be reached, wants a token, or is none.
    OptionError
        An argument is invalid.
    ImportError
        httpx is not installed (extra ``[client]``).
    """
    transport = Transport(url, token, timeout)
    try:
        return Client(transport)
    except BaseException:
        transport.close()
        raise
