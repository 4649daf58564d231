"""Whether an expression is affine is judged by its operations."""

from __future__ import annotations

from typing import Any

import casadi as ca
import pytest

from dae_hybrid.compile.elimination import is_affine


class Powers(ca.Callback):
    """The square and the cube."""

    def __init__(self) -> None:
        super().__init__()
        self.construct("powers", {"enable_fd": True})

    def get_n_out(self) -> int:
        return 2

    def eval(self, given: Any) -> list[Any]:
        return [given[0] ** 2, given[0] ** 3]


@pytest.mark.parametrize("output", [0, 1])
def test_no_output_of_a_call_is_affine(output: int) -> None:
    powers, x, z = Powers(), ca.MX.sym("x"), ca.SX.sym("z")
    called = ca.Function("called", [x], [powers(x)[output]]).expand()
    assert not is_affine(called(z), z)
    assert is_affine(called(ca.SX.sym("other")) * z, z)
