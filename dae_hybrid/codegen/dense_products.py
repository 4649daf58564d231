"""Replace CasADi's dense matrix product in C by loops along the columns, in memory order."""

from __future__ import annotations

import re

_PRODUCT = re.compile(r"^void casadi_mtimes_dense\(.*?^\}\n", re.MULTILINE | re.DOTALL)
#: z + x y, and z + x^T y if tr. Sums are in the order of CasADi's own loops, so that results are bitwise equal
_BY_COLUMNS = """\
#if defined(__GNUC__) && !defined(__clang__)
__attribute__((optimize("O3")))
#endif
static void product_by_columns(const casadi_real* restrict x, casadi_int rows, casadi_int columns,
    const casadi_real* restrict y, casadi_real* restrict z) {
  casadi_int j, k = 0;
  for (; k + 4 <= columns; k += 4, x += 4*rows) {
    const casadi_real *x1 = x + rows, *x2 = x1 + rows, *x3 = x2 + rows;
    const casadi_real y0 = y[k], y1 = y[k+1], y2 = y[k+2], y3 = y[k+3];
    for (j = 0; j < rows; ++j) z[j] = (((z[j] + x[j]*y0) + x1[j]*y1) + x2[j]*y2) + x3[j]*y3;
  }
  for (; k < columns; ++k, x += rows) for (j = 0; j < rows; ++j) z[j] += x[j]*y[k];
}

static void casadi_mtimes_dense(const casadi_real* x, casadi_int nrow_x, casadi_int ncol_x,
    const casadi_real* y, casadi_int ncol_y, casadi_real* z, casadi_int tr) {
  casadi_int i, j, k;
  if (!tr) {
    for (i = 0; i < ncol_y; ++i) product_by_columns(x, nrow_x, ncol_x, y + i*ncol_x, z + i*nrow_x);
    return;
  }
  for (i = 0; i < ncol_y; ++i) for (j = 0; j < ncol_x; ++j) for (k = 0; k < nrow_x; ++k)
    z[j + i*ncol_x] += x[k + j*nrow_x] * y[k + i*nrow_x];
}
"""


def by_columns(text: str) -> str:
    """Replace the product in CasADi's C text."""
    return _PRODUCT.sub(lambda _: _BY_COLUMNS, text)
