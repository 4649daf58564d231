"""The compiled sparse factorisation: solutions with a matrix and its transpose, and what it refuses."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.sparse import random_array

from dae_hybrid.codegen import sparse_lu
from dae_hybrid.codegen.compiler import compile_source

EXPORTED = """
int factorise(sparse_lu *f, const double *values) { return factorise_sparse(f, values); }
void solve(const sparse_lu *f, double *b) { solve_sparse(f, b); }
void solve_transposed(const sparse_lu *f, double *b) { solve_sparse_transposed(f, b); }
"""
P = ctypes.c_void_p


@pytest.fixture(scope="module")
def library():
    found = compile_source(sparse_lu.source() + EXPORTED)
    assert found is not None
    return found


def factorised(library, matrix, room, keeps=0.1):
    """The factors of a sparse matrix in compressed columns, and the flag of the factorisation."""
    pointers, rows = matrix.indptr.astype(np.int32), matrix.indices.astype(np.int32)
    factors = sparse_lu.SparseFactors(pointers, rows, room, keeps)
    return factors, library.factorise(P(factors.address), P(matrix.data.ctypes.data))


@given(st.integers(1, 30), st.floats(0.05, 0.5), st.integers(0, 2**32 - 1), st.sampled_from([0.0, 0.1, 1.0]))
def test_solutions_with_random_matrices_and_their_transposes(library, n, density, seed, keeps):
    rng = np.random.default_rng(seed)
    matrix = (random_array((n, n), density=density, rng=rng, data_sampler=rng.standard_normal)).tolil()
    matrix[np.arange(n), rng.permutation(n)] = 1 + rng.random(n)  # regular but for accidents
    matrix = matrix.tocsc()
    exact, values = rng.standard_normal(n), matrix.toarray()
    if np.linalg.cond(values) > 1e6:
        return
    factors, flag = factorised(library, matrix, 2 * n * n + n, max(keeps, 1e-3))
    assert flag == 0
    for solve, of in ((library.solve, values), (library.solve_transposed, values.T)):
        found = of @ exact
        solve(P(factors.address), P(found.ctypes.data))
        np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-6 * np.linalg.cond(values) ** 0.5)


def test_singular_matrices_values_that_are_not_finite_and_too_little_room_are_reported(library):
    matrix = random_array((6, 6), density=1.0, rng=np.random.default_rng(0)).tocsc()
    room = {name: sparse_lu.CONSTANTS[name] for name in ("SINGULAR_MATRIX", "NO_ROOM")}
    assert factorised(library, matrix, 10)[1] == room["NO_ROOM"]
    matrix.data[3] = np.nan
    assert factorised(library, matrix, 60)[1] == room["SINGULAR_MATRIX"]
    matrix.data[:] = 1.0
    assert factorised(library, matrix, 60)[1] == room["SINGULAR_MATRIX"]
