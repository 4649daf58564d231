/* ---- what both families share -------------------------------------------------------------------- */

/* K_z^-1 K_y at the latest Jacobian, row-major, after n_z x n_z numbers of work; null if K_z is singular. */
static double *algebraic_by_states(const context *c, double *by_z) {
  const integer ny = c->n_differential, nz = c->n - ny;
  const sparse *a = &c->state_jacobian;
  double *by_y = by_z + nz * nz;
  memset(by_z, 0, (size_t)(nz * c->n) * sizeof(double));
  for (integer j = 0; j < c->n; j++)
    for (integer k = a->column[j]; k < a->column[j + 1]; k++) {
      const integer i = a->row[k] - ny;
      if (i < 0) continue;
      if (j < ny) by_y[i * ny + j] = a->value[k];
      else by_z[i * nz + j - ny] = a->value[k];
    }
  return solve_dense(by_z, by_y, nz, ny) && all_finite(by_y, nz * ny) ? by_y : 0;
}

/* Propagation of errors of y to the algebraic variables. */
static void measure_spread(context *c) {
  const integer ny = c->n_differential, nz = c->n - ny;
  const double *by_y = algebraic_by_states(c, c->spread_work);
  for (integer k = 0; by_y && k < nz * ny; k++) c->spread[k] = fabs(by_y[k]);
}

static int fill_jacobian(context *c, double t, const double *x, double cj, double *dense) {
  const integer n = c->n, size = n + c->n_integrals;
  c->jacobian_calls++;
  c->res[0] = c->state_jacobian.value;
  c->res[1] = c->n_integrals ? c->integrand_jacobian.value : 0;
  if (evaluate(c, c->jacobian, t, x)) return FATAL;
  if (checked(c, c->state_jacobian.value, c->state_jacobian.column[n])) return RECOVERABLE;
  if (c->spread) measure_spread(c);
  memset(dense, 0, (size_t)(size * size) * sizeof(double));
  for (integer j = 0; j < n; j++) scatter_column(&c->state_jacobian, j, dense + j * size);
  for (integer i = 0; i < c->n_integrals; i++)
    for (integer k = c->integrand_jacobian.column[i]; k < c->integrand_jacobian.column[i + 1]; k++)
      dense[c->integrand_jacobian.row[k] * size + n + i] = c->integrand_jacobian.value[k];
  for (integer i = 0; i < c->n_differential; i++) dense[i * size + i] -= cj;
  for (integer i = n; i < size; i++) dense[i * size + i] -= cj;
  return 0;
}

/* subtract the rates of the differential rows */
static void subtract_rates(const context *c, const double *rate, double *residual) {
  for (integer i = 0; i < c->n_differential; i++) residual[i] -= rate[i];
  for (integer i = c->n; i < c->n + c->n_integrals; i++) residual[i] -= rate[i];
}

/* A guard that has left zero and returned through it within one step is handled by `look` if `looks` is set. */
static int guard_values(context *c, double t, const double *x, double *out, int looks) {
  c->guard_calls++;
  if (guards_near(c, t, x, out)) return FATAL;
  if (!all_finite(out, c->n_guards)) { c->not_finite++; return FATAL; }
  for (integer i = 0; i < c->n_guards; i++) {
    if (c->zero_band[i] == 0) continue;
    /* exact zeros are inactive in SUNDIALS' root finding until they change */
    if (fabs(out[i]) <= c->zero_band[i]) out[i] = 0;
    else if (out[i] * c->leaving_sign[i] < 0) { /* returned within one step */
      c->returned = i + 1;
      if (!looks) return FATAL;
      out[i] = 0;
    }
    else c->zero_band[i] = 0;
  }
  memcpy(c->latest, out, (size_t)c->n_guards * sizeof(double));
  c->latest_time = t;
  return 0;
}

/* Guard values for SUNDIALS' root finding. If a guard is zero at the start, SUNDIALS evaluates once more, at a point on the
 * tangent, which is not on the solution: a guard may be nonzero there that has not left zero yet. */
static int root_values(context *c, double t, const double *x, double *out) {
  const integer call = c->root_calls++;
  if (call == 1 && c->resting) {
    for (integer i = 0; i < c->n_guards; i++) out[i] = c->latest[i];
    return 0;
  }
  const int flag = guard_values(c, t, x, out, 1);
  for (integer i = 0; !flag && call == 0 && i < c->n_guards; i++) c->resting |= out[i] == 0;
  return flag;
}

/* F_x s + F_p dp + F_m dm, and the same for the integrands, for `count` directions from `first`; SR eq. 5, 18, 25 */
static int along(context *c, integer first, integer count, const double *const *s, double *const *out) {
  const double *dm[TOGETHER];
  for (integer i = 0; c->tangent && i < count; i++) {
    const double *dp = c->parameter_directions + (first + i) * c->n_parameters;
    const double *own = c->memory_directions + (first + i) * c->n_memory;
    if (push_forward(c, c->point_time, c->point, s[i], dp, own, out[i], c->n_integrals ? out[i] + c->n : 0)) return FATAL;
  }
  if (c->tangent) return 0;
  for (integer i = 0; i < count; i++) {
    dm[i] = c->memory_directions + (first + i) * c->n_memory;
    memset(out[i], 0, (size_t)c->n * sizeof(double));
    add_sparse_product(&c->f_p, &c->moved, first + i, out[i]);
  }
  add_products(&c->f_x, c->n, s, count, out);
  add_products(&c->f_m, c->n_memory, dm, count, out);
  for (integer i = 0; i < count; i++) {
    const double *dp = c->parameter_directions + (first + i) * c->n_parameters;
    for (integer j = 0; j < c->n_integrals; j++)
      out[i][c->n + j] = column_dot(&c->g_x, j, s[i]) + column_dot(&c->g_p, j, dp) + column_dot(&c->g_m, j, dm[i]);
  }
  return 0;
}

/* `along` for all directions: given as vectors, or as blocks after the state, with the rates after those of the state. If
 * the algebraic variables are solved for, so are their derivatives: the given ones are zero. */
static int along_all(context *c, vector *s, vector *out, const double *state, double *rates) {
  const integer size = c->n + c->n_integrals;
  for (integer first = 0; first < c->n_directions; first += TOGETHER) {
    const integer left = c->n_directions - first, count = left < TOGETHER ? left : TOGETHER;
    const double *from[TOGETHER];
    double *to[TOGETHER];
    for (integer i = 0, j = first; i < count; i++, j++) {
      from[i] = s ? c->api->array(s[j]) : state + (j + 1) * size;
      to[i] = s ? c->api->array(out[j]) : rates + (j + 1) * size;
    }
    if (along(c, first, count, from, to)) return FATAL;
    double dz[MOST_SOLVED * TOGETHER];
    if (!c->solves) continue;
    if (algebraic_directions(c, count, to, dz)) return RECOVERABLE;
    add_algebraic(c, count, dz, to);
  }
  return 0;
}

static int directional(context *c, double t, const double *x, vector *s, vector *out) {
  const int flag = linearise(c, t, x);
  return flag ? flag : along_all(c, s, out, 0, 0);
}

/* The integrands of SR eq. 33 to 35, from a product. */
static void integrands_of(const context *c, double *out) {
  const double *by_p = c->by_parameters, *by_m = by_p + c->n_parameters;
  for (integer i = 0; i < c->n_wrt; i++) out[i] = -by_p[c->wrt[i]];
  for (integer i = 0; i < c->n_memory; i++) out[c->n_wrt + i] = -by_m[i];
}

/* A product at a time of the path. */
static int product_on_path(context *c, double clock, const double *lambda, double weight) {
  double t;
  int flag = record_path(c, clock, &t);
  if (!flag) flag = pull_back(c, t, c->interpolated, c->recorded, lambda, c->component, weight, c->product);
  return flag ? flag : sum_parts(c, c->product, 1, c->by_parameters);
}

/* SR eq. 33 to 35: parameters, then memory. The minus sign accounts for the backward integration. */
static int adjoint_quadrature(context *c, double t, const double *lambda, double *out) {
  if (c->pullback) {
    const int off = product_on_path(c, t, lambda, 1);
    if (!off) integrands_of(c, out);
    return off;
  }
  const int flag = linearise_path(c, t);
  if (flag) return flag;
  memset(c->parameter_gradient, 0, (size_t)c->n_parameters * sizeof(double));
  scatter_column(&c->g_p, c->component, c->parameter_gradient);
  for (integer i = 0; i < c->n_wrt; i++)
    out[i] = -(c->parameter_gradient[c->wrt[i]] + column_dot(&c->f_p, c->wrt[i], lambda));
  double *memory = out + c->n_wrt;
  memset(memory, 0, (size_t)c->n_memory * sizeof(double));
  scatter_column(&c->g_m, c->component, memory);
  for (integer i = 0; i < c->n_memory; i++) memory[i] = -(memory[i] + column_dot(&c->f_m, i, lambda));
  return 0;
}

/* sign * (F_x^T lambda + g_x^T), SR eq. 12, 20, 36, followed by the guide: a weighted sum of the integrands of eq. 33
 * to 35. SUNDIALS chooses the order by the states alone; where lambda is constant, the integrals would be summed at
 * order one. The guide is a state that varies as they do. */
static int adjoint(context *c, double t, const double *lambda, double sign, double *out) {
  const int flag = adjoint_quadrature(c, t, lambda, c->integrands);
  if (flag) return flag;
  memset(out, 0, (size_t)c->n * sizeof(double));
  if (!c->pullback) scatter_column(&c->g_x, c->component, out);
  for (integer j = 0; j < c->n; j++) out[j] = sign * (c->pullback ? c->product[j] : out[j] + column_dot(&c->f_x, j, lambda));
  out[c->n] = 0;
  for (integer i = 0; i < c->n_wrt + c->n_memory; i++) out[c->n] += c->weights[i] * c->integrands[i];
  return 0;
}

/* `adjoint_jacobian` by rows of F_x and of the guide, each from one product: F_p and F_m would be far larger. */
static int jacobian_by_rows(context *c, double t, double sign, double cj, double *dense) {
  const integer n = c->n, size = n + 1;
  memset(c->vector, 0, (size_t)n * sizeof(double));
  for (integer i = 0; i < n; i++) {
    double *column = dense + i * size;
    c->vector[i] = 1;
    const int flag = product_on_path(c, t, c->vector, 0);
    c->vector[i] = 0;
    if (flag) return flag;
    for (integer j = 0; j < n; j++) column[j] = sign * c->product[j];
    integrands_of(c, c->integrands);
    column[n] = 0;
    for (integer k = 0; k < c->n_wrt + c->n_memory; k++) column[n] += c->weights[k] * c->integrands[k];
  }
  memset(dense + n * size, 0, (size_t)size * sizeof(double));
  for (integer i = 0; i < c->n_differential; i++) dense[i * size + i] += cj;
  dense[n * size + n] -= cj;
  return 0;
}

/* F_x, and the row of the guide: minus the weighted sum of the columns of F_p and F_m */
static int jacobian_on_path(context *c, double t, double *f_x, double *guide) {
  const int flag = linearise_path(c, t);
  if (flag) return flag;
  if (c->tangent) {
    double *still = c->vector + c->n, *dp = still + c->n, *dm = dp + c->n_parameters;
    c->res[0] = f_x, c->res[1] = 0;
    if (evaluate(c, c->jacobian, c->point_time, c->point)) return FATAL;
    if (checked(c, f_x, c->state_jacobian.column[c->n])) return RECOVERABLE;
    memset(still, 0, (size_t)(c->n + c->n_parameters) * sizeof(double));
    for (integer i = 0; i < c->n_wrt; i++) dp[c->wrt[i]] -= c->weights[i];
    for (integer i = 0; i < c->n_memory; i++) dm[i] = -c->weights[c->n_wrt + i];
    return push_forward(c, c->point_time, c->point, still, dp, dm, guide, 0);
  }
  if (f_x != c->f_x.value) memcpy(f_x, c->f_x.value, (size_t)c->f_x.column[c->n] * sizeof(double));
  memset(guide, 0, (size_t)c->n * sizeof(double));
  for (integer i = 0; i < c->n_wrt + c->n_memory; i++) {
    const sparse *a = i < c->n_wrt ? &c->f_p : &c->f_m;
    const integer j = i < c->n_wrt ? c->wrt[i] : i - c->n_wrt;
    for (integer k = a->column[j]; k < a->column[j + 1]; k++) guide[a->row[k]] -= c->weights[i] * a->value[k];
  }
  return 0;
}

static int adjoint_jacobian(context *c, double t, double sign, double cj, double *dense) {
  const integer n = c->n, size = n + 1;
  const sparse *f_x = c->tangent ? &c->state_jacobian : &c->f_x;
  if (c->pullback && !c->tangent && c->n_wrt + c->n_memory > n) return jacobian_by_rows(c, t, sign, cj, dense);
  const int flag = jacobian_on_path(c, t, f_x->value, c->vector);
  if (flag) return flag;
  memset(dense, 0, (size_t)(size * size) * sizeof(double));
  for (integer j = 0; j < n; j++)
    for (integer k = f_x->column[j]; k < f_x->column[j + 1]; k++) dense[f_x->row[k] * size + j] = sign * f_x->value[k];
  for (integer j = 0; j < n; j++) dense[j * size + n] = c->vector[j];
  for (integer i = 0; i < c->n_differential; i++) dense[i * size + i] += cj;
  dense[n * size + n] -= cj;
  return 0;
}

/* ---- callbacks with SUNDIALS' signatures --------------------------------------------------------- */

#define ARRAY(v) (((context *)data)->api->array(v))
#define MATRIX(m) (((context *)data)->api->matrix(m))

int dh_cv_rhs(double t, vector y, vector ydot, void *data) { return flow(data, t, ARRAY(y), ARRAY(ydot)); }

int dh_cv_jac(double t, vector y, vector fy, void *jac, void *data, vector a, vector b, vector c) {
  (void)fy, (void)a, (void)b, (void)c;
  return fill_jacobian(data, t, ARRAY(y), 0, MATRIX(jac));
}

int dh_cv_root(double t, vector y, double *out, void *data) { return root_values(data, t, ARRAY(y), out); }

/* CVODES overwrites its predictions when a step is complete. */
static int keep_prediction(const context *c) {
  const integer size = c->n + c->n_integrals;
  vector *predicted, *s, *rates;
  double t, gamma, rl;
  void *data;
  if (c->api->cvode_sens_system(c->memory_of, &t, &predicted, &s, &gamma, &rl, &rates, &data)) return FATAL;
  for (integer i = 0; i < c->n_directions; i++)
    memcpy(c->predicted + i * size, c->api->array(predicted[i]), (size_t)size * sizeof(double));
  return 0;
}

int dh_cv_sens(int ns, double t, vector y, vector ydot, vector *s, vector *sdot, void *data, vector a, vector b) {
  (void)ns, (void)ydot, (void)a, (void)b;
  if (((context *)data)->memory_of && keep_prediction(data)) return FATAL;
  return directional(data, t, ARRAY(y), s, sdot);
}

int dh_cv_rhs_b(double t, vector yb, vector ybdot, void *data) { return adjoint(data, t, ARRAY(yb), -1, ARRAY(ybdot)); }

int dh_cv_jac_b(double t, vector yb, vector fyb, void *jac, void *data, vector a, vector b, vector c) {
  (void)yb, (void)fyb, (void)a, (void)b, (void)c;
  return adjoint_jacobian(data, t, -1, 0, MATRIX(jac));
}

int dh_cv_quad_b(double t, vector yb, vector qbdot, void *data) {
  return adjoint_quadrature(data, t, ARRAY(yb), ARRAY(qbdot));
}

/* IDAS lowers the order by the errors of the states alone, before it tests those of sensitivities. If the states
 * have almost none, because they are constant or polynomials, it compares zeros or roundings and stays at order one,
 * where the errors of sensitivities pass every test and accumulate. For states this accurate the norms are modified so
 * that the current order is kept. IDATestError computes the norms of the errors at the order, and at one and two below,
 * as the second to fourth norms after the residual; the first is that of Newton's correction. */
static double (*plain_norm)(vector, vector), (*plain_masked_norm)(vector, vector, vector);
static _Thread_local int norms;
static _Thread_local double at_order;

static double steered(double found) {
  norms++;
  if (norms == 2) at_order = found;
  if (norms < 3 || norms > 4 || at_order > NEGLIGIBLE) return found;
  return fmax(found, (norms == 3 ? LESS_EXACT : LESS_EXACT * LESS_EXACT) * fmax(at_order, DBL_MIN));
}

double dh_norm(vector v, vector weights) { return steered(plain_norm(v, weights)); }

double dh_masked_norm(vector v, vector weights, vector mask) { return steered(plain_masked_norm(v, weights, mask)); }

void dh_take_norms(double (*norm)(vector, vector), double (*masked)(vector, vector, vector)) {
  plain_norm = norm, plain_masked_norm = masked;
}

int dh_ida_res(double t, vector x, vector xdot, vector out, void *data) {
  context *c = data;
  norms = 0;
  const double *rate = ARRAY(xdot);
  double *residual = ARRAY(out);
  const int flag = flow(c, t, ARRAY(x), residual);
  if (!flag) subtract_rates(c, rate, residual);
  return flag;
}

/* Error weights. An algebraic variable is known as accurately as the equations determine it from y, whose errors are
 * within their tolerances. A stricter test sees the noise that the corrector leaves in y, and fails for any step
 * size. */
int dh_ida_weights(vector x, vector weights, void *data) {
  const context *c = data;
  const double *value = ARRAY(x);
  double *weight = ARRAY(weights);
  const integer ny = c->n_differential, size = c->n + c->n_integrals;
  for (integer i = 0; i < size; i++) weight[i] = c->absolute[i] + c->rtol * fabs(value[i]);
  for (integer i = 0; i < c->n - ny; i++) {
    double reach = c->linear ? c->spread[i] : 0;
    for (integer j = 0; j < ny && !c->linear; j++) reach += c->spread[i * ny + j] * weight[j];
    /* even if they hardly determine it, the test must distinguish its values */
    weight[ny + i] = fmax(weight[ny + i], fmin(reach, weight[ny + i] * COARSEST / c->rtol));
  }
  for (integer i = 0; i < size; i++) weight[i] = 1 / weight[i];
  return 0;
}

int dh_ida_jac(double t, double cj, vector x, vector xdot, vector r, void *jac, void *data, vector a, vector b, vector c) {
  (void)xdot, (void)r, (void)a, (void)b, (void)c;
  return fill_jacobian(data, t, ARRAY(x), cj, MATRIX(jac));
}

int dh_ida_root(double t, vector x, vector xdot, double *out, void *data) {
  (void)xdot;
  return root_values(data, t, ARRAY(x), out);
}

int dh_ida_sens(int ns, double t, vector x, vector xdot, vector r, vector *s, vector *sdot, vector *out, void *data,
                vector a, vector b, vector d) {
  (void)ns, (void)xdot, (void)r, (void)a, (void)b, (void)d;
  context *c = data;
  const int flag = directional(c, t, ARRAY(x), s, out);
  for (integer i = 0; !flag && i < c->n_directions; i++) subtract_rates(c, ARRAY(sdot[i]), ARRAY(out[i]));
  return flag;
}

int dh_ida_res_b(double t, vector xb, vector xbdot, vector out, void *data) {
  const context *c = data;
  double *residual = ARRAY(out);
  const double *rate = ARRAY(xbdot);
  const int flag = adjoint(data, t, ARRAY(xb), 1, residual);
  if (flag) return flag;
  for (integer i = 0; i < c->n_differential; i++) residual[i] += rate[i];
  residual[c->n] -= rate[c->n];
  return 0;
}

int dh_ida_jac_b(double t, double cj, vector xb, vector xbdot, vector r, void *jac, void *data, vector a, vector b,
                 vector c) {
  (void)xb, (void)xbdot, (void)r, (void)a, (void)b, (void)c;
  return adjoint_jacobian(data, t, 1, cj, MATRIX(jac));
}

int dh_ida_quad_b(double t, vector xb, vector xbdot, vector out, void *data) {
  (void)xbdot;
  return adjoint_quadrature(data, t, ARRAY(xb), ARRAY(out));
}
