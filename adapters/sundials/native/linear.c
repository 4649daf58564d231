/* ---- Newton's matrix of large systems --------------------------------------------------------------- */

/* Nothing depends on the components after x (integrals, or the guide of an adjoint), so that Newton's matrix is
 *     [ M  0 ]      M = scale J + shift E,  E = 1 on the differential rows
 *     [ R  d ]
 * with J = F_x forward and its transpose backward. M is factorised as a band, as a sparse matrix in sparse_lu.c or, with
 * much fill, by Python; the rows R follow by substitution, however dense they are. `place` gives the position of each
 * entry of F_x in the values of M, for any storage. As a preconditioner (Krylov) the same matrix is factorised
 * incompletely. */

/* common header of SUNDIALS' vectors and matrices; Python verifies it */
typedef struct {
  struct linear *content;
} holder;

/* J at a point, and R; stored, because CVODES reuses it with another gamma */
static int keep_jacobian(context *c, double t, const double *x) {
  linear *l = c->linear;
  if (l->backward) return jacobian_on_path(c, t, l->jacobian, l->rows);
  for (integer j = 0; c->spread && j < c->n_differential; j++)
    c->spread_work[2 * (c->n + c->n_integrals) + j] = c->absolute[j] + c->rtol * fabs(x[j]);
  c->jacobian_calls++;
  c->res[0] = l->jacobian;
  c->res[1] = c->n_integrals ? l->rows : 0;
  if (evaluate(c, c->jacobian, t, x)) return FATAL;
  return checked(c, l->jacobian, l->n_entries);
}

static double row_product(const context *c, const linear *l, integer i, const double *x) {
  double sum = 0;
  if (l->backward)
    for (integer j = 0; j < l->n; j++) sum += l->rows[j] * x[j];
  else
    for (integer k = c->integrand_jacobian.column[i]; k < c->integrand_jacobian.column[i + 1]; k++)
      sum += l->rows[k] * x[c->integrand_jacobian.row[k]];
  return sum;
}

static void assemble(const context *c, linear *l, double scale, double shift, double row_scale, double corner) {
  memset(l->matrix, 0, (size_t)l->n_matrix * sizeof(double));
  for (integer k = 0; k < l->n_entries; k++) l->matrix[l->place[k]] += scale * l->jacobian[k];
  for (integer i = 0; i < c->n_differential; i++) l->matrix[l->diagonal[i]] += shift;
  l->row_scale = row_scale;
  l->corner = corner;
}

/* 1 - gamma J, backward with J = -F_x^T */
static void assemble_explicit(const context *c, double gamma) {
  assemble(c, c->linear, c->linear->backward ? gamma : -gamma, 1, -gamma, 1);
}

static void assemble_implicit(const context *c, double cj) {
  assemble(c, c->linear, 1, c->linear->backward ? cj : -cj, 1, -cj);
}

static int factorise(linear *l) {
  l->setups++;
  if (l->lu) {
    const int flag = factorise_sparse(l->lu, l->matrix);
    if (flag != NO_ROOM) return flag ? RECOVERABLE : 0;
    l->lu = 0;
  }
  if (l->factor) return l->factor();
  return l->factor_band(l->columns, l->n, l->upper, l->lower, l->stored, l->pivots) ? RECOVERABLE : 0;
}

static int substitute(const context *c, double *x, const double *b) {
  linear *l = c->linear;
  l->solves++;
  for (integer i = 0; i < l->n; i++) l->right[i] = b[l->equations[i]];
  if (l->lu) {
    solve_sparse(l->lu, l->right);
  } else if (l->factor) {
    const int flag = l->solve();
    if (flag) return flag;
  } else {
    l->solve_band(l->columns, l->n, l->stored, l->lower, l->pivots, l->right);
  }
  for (integer i = 0; i < l->n; i++) x[l->order[i]] = l->right[i];
  for (integer i = 0; i < l->border; i++)
    x[l->n + i] = (b[l->n + i] - l->row_scale * row_product(c, l, i, x)) / l->corner;
  return 0;
}

/* Propagation of errors of y, as large as their tolerances, to the algebraic variables, through Newton's matrix. The signs
 * are pseudo-random, so that contributions hardly ever cancel in all probes. */
static void probe(context *c) {
  const integer ny = c->n_differential, nz = c->n - ny, size = c->n + c->n_integrals;
  double *b = c->spread_work, *x = b + size, *tolerance = x + size;
  if (!c->spread) return;
  memset(c->spread, 0, (size_t)nz * sizeof(double));
  for (unsigned long long k = 0, bits = 1; k < PROBES; k++) {
    memset(b, 0, (size_t)size * sizeof(double));
    for (integer j = 0; j < ny; j++) {
      bits = bits * 6364136223846793005ULL + 1442695040888963407ULL;
      b[j] = c->linear->corner * (bits >> 63 ? tolerance[j] : -tolerance[j]);
    }
    const integer solves = c->linear->solves;
    const int flag = substitute(c, x, b);
    c->linear->solves = solves;
    for (integer i = 0; i < nz; i++) c->spread[i] += flag ? 0 : fabs(x[ny + i]);
  }
}

/* J v, followed by R v */
static void jacobian_product(const context *c, const double *v, double *out) {
  const linear *l = c->linear;
  const sparse *pattern = l->backward ? &c->f_x : &c->state_jacobian;
  memset(out, 0, (size_t)(l->n + l->border) * sizeof(double));
  for (integer j = 0; j < l->n; j++)
    for (integer k = pattern->column[j]; k < pattern->column[j + 1]; k++) {
      if (l->backward) out[j] += l->jacobian[k] * v[pattern->row[k]];
      else out[pattern->row[k]] += l->jacobian[k] * v[j];
    }
  for (integer i = 0; i < l->border; i++) out[l->n + i] = row_product(c, l, i, v);
}

/* -- called by SUNDIALS: an opaque matrix, and a solver -- */

int dh_matrix_id(const void *matrix) { (void)matrix; return MATRIX_CUSTOM; }
int dh_matrix_zero(void *matrix) { (void)matrix; return 0; }
int dh_solver_type(const void *solver) { (void)solver; return SOLVER_DIRECT; }
int dh_solver_id(const void *solver) { (void)solver; return SOLVER_CUSTOM; }

int dh_solver_setup(holder *solver, void *matrix) {
  (void)matrix;
  const int flag = factorise(solver->content);
  if (!flag) probe(solver->content->model);
  return flag;
}

int dh_solver_solve(holder *solver, void *matrix, vector x, vector b, double tolerance) {
  const context *c = solver->content->model;
  (void)matrix, (void)tolerance;
  return substitute(c, c->api->array(x), c->api->array(b));
}

int dh_cv_system(double t, vector y, vector fy, void *matrix, int kept, int *fresh, double gamma, void *data, vector a,
                 vector b, vector d) {
  context *c = data;
  (void)fy, (void)matrix, (void)a, (void)b, (void)d;
  *fresh = !kept;
  const int flag = kept ? 0 : keep_jacobian(c, t, ARRAY(y));
  if (!flag) assemble_explicit(c, gamma);
  return flag;
}

int dh_ida_system(double t, double cj, vector x, vector xdot, vector r, void *matrix, void *data, vector a, vector b,
                  vector d) {
  context *c = data;
  (void)xdot, (void)r, (void)matrix, (void)a, (void)b, (void)d;
  const int flag = keep_jacobian(c, t, ARRAY(x));
  if (!flag) assemble_implicit(c, cj);
  return flag;
}

/* -- called by SUNDIALS' Krylov methods: products with J at the current iterate, and the preconditioner -- */

int dh_cv_product_setup(double t, vector y, vector fy, void *data) {
  (void)fy;
  return keep_jacobian(data, t, ARRAY(y));
}

int dh_cv_product(vector v, vector out, double t, vector y, vector fy, void *data, vector work) {
  const context *c = data;
  double *result = ARRAY(out);
  (void)t, (void)y, (void)fy, (void)work;
  jacobian_product(c, ARRAY(v), result);
  if (c->linear->backward) for (integer i = 0; i < c->n; i++) result[i] = -result[i];
  return 0;
}

int dh_cv_precondition(double t, vector y, vector fy, int kept, int *fresh, double gamma, void *data) {
  const int flag = dh_cv_system(t, y, fy, 0, kept, fresh, gamma, data, 0, 0, 0);
  return flag ? flag : factorise(((context *)data)->linear);
}

int dh_cv_preconditioned(double t, vector y, vector fy, vector r, vector z, double gamma, double tolerance, int side,
                         void *data) {
  (void)t, (void)y, (void)fy, (void)gamma, (void)tolerance, (void)side;
  return substitute(data, ARRAY(z), ARRAY(r));
}

int dh_ida_product_setup(double t, vector x, vector xdot, vector r, double cj, void *data) {
  (void)xdot, (void)r, (void)cj;
  return keep_jacobian(data, t, ARRAY(x));
}

int dh_ida_product(double t, vector x, vector xdot, vector r, vector v, vector out, double cj, void *data, vector a,
                   vector b) {
  const context *c = data;
  const double *direction = ARRAY(v);
  double *result = ARRAY(out);
  (void)t, (void)x, (void)xdot, (void)r, (void)a, (void)b;
  jacobian_product(c, direction, result);
  const double shift = c->linear->backward ? cj : -cj;
  for (integer i = 0; i < c->n_differential; i++) result[i] += shift * direction[i];
  for (integer i = c->n; i < c->n + c->linear->border; i++) result[i] -= cj * direction[i];
  return 0;
}

int dh_ida_precondition(double t, vector x, vector xdot, vector r, double cj, void *data) {
  int flag = dh_ida_system(t, cj, x, xdot, r, 0, data, 0, 0, 0);
  if (!flag) flag = factorise(((context *)data)->linear);
  if (!flag) probe(data);
  return flag;
}

int dh_ida_preconditioned(double t, vector x, vector xdot, vector r, vector b, vector z, double cj, double tolerance,
                          void *data) {
  (void)t, (void)x, (void)xdot, (void)r, (void)cj, (void)tolerance;
  return substitute(data, ARRAY(z), ARRAY(b));
}
