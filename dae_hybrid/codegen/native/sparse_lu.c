/* Sparse LU factorisation, shared by the adapters; see sparse_lu.py.
 *
 * P A = L U by columns (Gilbert and Peierls 1988): each column is solved for with the available part of L, within the
 * pattern found by a depth-first search. Columns are in a fill-reducing order; rows are chosen
 * by magnitude, preferring the diagonal unless it is small against the largest entry. For matrices with little fill,
 * whose factors have no significant dense blocks. */

#include <float.h>
#include <math.h>
#include <string.h>

typedef long long integer;
enum { SINGULAR_MATRIX = 1, NO_ROOM = 2 };      /* no pivot, or a value that is not finite; L or U exceeds its capacity */

typedef struct {
  integer n, room;                           /* capacity for entries of L and of U, each */
  const int *column, *row;                   /* pattern of the matrix, by columns */
  double keeps;                              /* threshold for the diagonal pivot, relative to the largest entry */
  integer *l_column, *l_row, *u_column, *u_row, *pivot, *work;
  double *l_value, *u_value, *x;
} sparse_lu;

/* rows in which column k of the solution may be nonzero, from `first` on in `found`, in topological order */
static integer reach(sparse_lu *f, integer k) {
  integer first = f->n, *found = f->work, *next = found + f->n, *mark = next + f->n;
  for (integer a = f->column[k]; a < f->column[k + 1]; a++) {
    if (mark[f->row[a]] == k + 1) continue;
    integer depth = 0;
    found[0] = f->row[a];
    while (depth >= 0) {
      const integer i = found[depth], j = f->pivot[i];
      if (mark[i] != k + 1) {
        mark[i] = k + 1;
        next[depth] = j < 0 ? 0 : f->l_column[j] + 1;
      }
      const integer end = j < 0 ? 0 : f->l_column[j + 1];
      integer down = -1;
      while (next[depth] < end && down < 0) {
        const integer below = f->l_row[next[depth]++];
        if (mark[below] != k + 1) down = below;
      }
      if (down >= 0) found[++depth] = down;
      else found[--first] = i, depth--;
    }
  }
  return first;
}

static int factorise_sparse(sparse_lu *f, const double *values) {
  const integer n = f->n, *found = f->work;
  integer in_l = 0, in_u = 0;
  double *x = f->x;
  for (integer i = 0; i < n; i++) f->pivot[i] = -1, x[i] = 0;
  memset(f->work + 2 * n, 0, (size_t)n * sizeof(integer));
  for (integer k = 0; k < n; k++) {
    const integer first = reach(f, k);
    if (in_l + n - first + 1 > f->room || in_u + n - first + 1 > f->room) return NO_ROOM;
    f->l_column[k] = in_l, f->u_column[k] = in_u;
    for (integer a = f->column[k]; a < f->column[k + 1]; a++) x[f->row[a]] = values[a];
    double largest = -1;
    integer chosen = -1;
    for (integer q = first; q < n; q++) {
      const integer i = found[q], j = f->pivot[i];
      if (!(fabs(x[i]) <= DBL_MAX)) return SINGULAR_MATRIX;
      if (j < 0) {
        if (fabs(x[i]) > largest) largest = fabs(x[i]), chosen = i;
        continue;
      }
      const double value = x[i];
      f->u_row[in_u] = j, f->u_value[in_u++] = value;
      for (integer a = f->l_column[j] + 1; a < f->l_column[j + 1]; a++) x[f->l_row[a]] -= f->l_value[a] * value;
    }
    if (largest <= 0) return SINGULAR_MATRIX;
    if (f->pivot[k] < 0 && fabs(x[k]) >= f->keeps * largest) chosen = k;
    const double pivot = x[chosen];
    f->u_row[in_u] = k, f->u_value[in_u++] = pivot;
    f->pivot[chosen] = k;
    f->l_row[in_l] = chosen, f->l_value[in_l++] = 1;
    for (integer q = first; q < n; q++) {
      const integer i = found[q];
      if (f->pivot[i] < 0) f->l_row[in_l] = i, f->l_value[in_l++] = x[i] / pivot;
      x[i] = 0;
    }
    f->l_column[k + 1] = in_l, f->u_column[k + 1] = in_u;
  }
  for (integer a = 0; a < in_l; a++) f->l_row[a] = f->pivot[f->l_row[a]];
  return 0;
}

/* in place */
static void solve_sparse(const sparse_lu *f, double *b) {
  double *x = f->x;
  for (integer i = 0; i < f->n; i++) x[f->pivot[i]] = b[i];
  for (integer k = 0; k < f->n; k++)
    for (integer a = f->l_column[k] + 1; a < f->l_column[k + 1]; a++) x[f->l_row[a]] -= f->l_value[a] * x[k];
  for (integer k = f->n - 1; k >= 0; k--) {
    const integer last = f->u_column[k + 1] - 1;
    x[k] /= f->u_value[last];
    for (integer a = f->u_column[k]; a < last; a++) x[f->u_row[a]] -= f->u_value[a] * x[k];
  }
  memcpy(b, x, (size_t)f->n * sizeof(double));
}

/* in place: the solution with the transpose */
static void solve_sparse_transposed(const sparse_lu *f, double *b) {
  double *x = f->x;
  for (integer k = 0; k < f->n; k++) {
    const integer last = f->u_column[k + 1] - 1;
    double sum = b[k];
    for (integer a = f->u_column[k]; a < last; a++) sum -= f->u_value[a] * x[f->u_row[a]];
    x[k] = sum / f->u_value[last];
  }
  for (integer k = f->n - 1; k >= 0; k--)
    for (integer a = f->l_column[k] + 1; a < f->l_column[k + 1]; a++) x[k] -= f->l_value[a] * x[f->l_row[a]];
  for (integer i = 0; i < f->n; i++) b[i] = x[f->pivot[i]];
}
