/* loops on long vectors, to be vectorised by the compiler */
#if defined(__GNUC__) && !defined(__clang__)
#define IN_VECTORS __attribute__((optimize("O3")))
#else
#define IN_VECTORS
#endif

/* ---- evaluating the model ---------------------------------------------------------------------- */

static int all_finite(const double *values, integer n) {
  double sums[4] = {0, 0, 0, 0}; /* a single sum would be a chain of dependent additions */
  integer i = 0;
  for (; i + 4 <= n; i += 4)
    for (int k = 0; k < 4; k++) sums[k] += 0 * values[i + k];
  for (; i < n; i++) sums[0] += 0 * values[i];
  return sums[0] + sums[1] + sums[2] + sums[3] == 0;
}

/* Whether a signal handler has raised, or this thread's run is cancelled. No Python runs in these loops, so that neither
 * would be noticed during a long segment. Python is asked from here, at most every SIGNALS seconds. */
static int interrupted(context *c) {
  struct timespec now;
  if (c->raised) return 1;
  timespec_get(&now, TIME_UTC);
  const double clock = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
  c->unwatched = fabs(clock - c->clock) < SIGNALS / 100 ? UNWATCHED : 0;
  c->clock = clock;
  if (fabs(clock - c->asked) < SIGNALS) return 0;
  c->asked = clock;
  const python_api *python = c->python;
  const int state = python->acquire();
  void *done = python->check_signals() ? 0 : python->call(python->raise_if_cancelled);
  if (done) python->drop(done);
  else c->raised = python->take_raised();
  python->release(state);
  return c->raised != 0;
}

static int evaluate(context *c, casadi_function function, double t, const double *x) {
  if (--c->unwatched < 0 && interrupted(c)) return FATAL;
  c->arg[0] = &t;
  c->arg[1] = x;
  c->arg[2] = c->memory;
  c->arg[3] = c->parameters;
  if (c->numbers) c->arg[5] = c->numbers; /* functions of products have other inputs there */
  if (!c->held_valid && c->constants) {
    double *wanted[8];
    memcpy(wanted, c->res, sizeof wanted);
    c->res[0] = c->held;
    if (c->constants(c->arg, c->res, c->iw, c->w, 0)) return FATAL;
    memcpy(c->res, wanted, sizeof wanted);
  }
  c->held_valid = 1;
  c->arg[4] = c->held;
  return function(c->arg, c->res, c->iw, c->w, 0) ? FATAL : 0;
}

static int checked(context *c, const double *values, integer n) {
  if (all_finite(values, n)) return 0;
  c->not_finite++;
  return RECOVERABLE; /* the solver retries with a smaller step */
}

/* F, followed by the integrands if they are integrated */
static int flow(context *c, double t, const double *x, double *out) {
  c->flow_calls++;
  c->res[0] = out;
  c->res[1] = c->n_integrals ? out + c->n : 0;
  if (evaluate(c, c->flow, t, x)) return FATAL;
  return checked(c, out, c->n + c->n_integrals);
}

/* Solve a small row-major system in place for `columns` right-hand sides, row-major; 0 if singular. */
static int solve_dense(double *a, double *b, integer n, integer columns) {
  for (integer k = 0; k < n; k++) {
    integer pivot = k;
    for (integer i = k + 1; i < n; i++)
      if (fabs(a[i * n + k]) > fabs(a[pivot * n + k])) pivot = i;
    if (!(fabs(a[pivot * n + k]) > 0)) return 0;
    if (pivot != k) {
      for (integer j = 0; j < n; j++) {
        const double kept = a[k * n + j];
        a[k * n + j] = a[pivot * n + j], a[pivot * n + j] = kept;
      }
      for (integer j = 0; j < columns; j++) {
        const double kept = b[k * columns + j];
        b[k * columns + j] = b[pivot * columns + j], b[pivot * columns + j] = kept;
      }
    }
    for (integer i = k + 1; i < n; i++) {
      const double factor = a[i * n + k] / a[k * n + k];
      if (factor == 0) continue;
      for (integer j = k; j < n; j++) a[i * n + j] -= factor * a[k * n + j];
      for (integer j = 0; j < columns; j++) b[i * columns + j] -= factor * b[k * columns + j];
    }
  }
  for (integer k = n - 1; k >= 0; k--) {
    for (integer i = k + 1; i < n; i++)
      for (integer j = 0; j < columns; j++) b[k * columns + j] -= a[k * n + i] * b[i * columns + j];
    for (integer j = 0; j < columns; j++) b[k * columns + j] /= a[k * n + k];
  }
  return 1;
}

/* ---- consistent points, and guards there ----
 *
 * A guard of algebraic variables, or near constraints, is defined at the consistent point: the integrator's x is off by
 * its tolerance. `sketch` returns the guards at x itself and the residuals of x; `settle` is one
 * Newton correction of x. Most guards are far from zero and need no correction: its effect on them is known to first
 * order from `weigh`, whose result is reused as long as Newton's matrix. Determinants (`poles`) are evaluated at x
 * itself, because near a singular matrix there is no consistent point. */

/* Largest move of an algebraic variable by a correction, relative to its values here and at the start. */
static double moved_by(const context *c, const double *start, const double *from, const double *to) {
  double largest = DBL_MIN, share = 0;
  for (integer i = c->n_differential; i < c->n; i++) largest = fmax(largest, fmax(fabs(start[i]), fabs(to[i])));
  for (integer i = c->n_differential; i < c->n; i++)
    share = fmax(share, fabs(to[i] - from[i]) / (fabs(start[i]) + fabs(to[i]) + SMALL_SHARE * largest));
  return share;
}

/* The consistent point nearest to x, to rounding, by at most `most` corrections; RECOVERABLE if they do not converge.
 * Each correction may be at most a share of the previous one. */
static int settle_by(context *c, double t, const double *x, int most, double share, const double **settled) {
  double *next = c->settled, *other = next + c->n, moved = HUGE_VAL;
  int converged = 0;
  *settled = x;
  for (int k = 0; k < most && !converged; k++) {
    c->res[0] = next;
    if (evaluate(c, c->settle, t, *settled)) return FATAL;
    double largest[2] = {0, 0}; /* of the differential and of the algebraic variables */
    for (integer i = 0; k && i < c->n; i++)
      largest[i >= c->n_differential] = fmax(largest[i >= c->n_differential], fabs(next[i]));
    converged = 1;
    for (integer i = 0; i < c->n && converged; i++) {
      const double dust = c->absolute ? CORRECTED_DUST * c->absolute[i] : 0;
      const double rounding = CORRECTED_ROUNDING * largest[i >= c->n_differential];
      converged = fabs(next[i] - (*settled)[i]) <= CORRECTED * fabs(next[i]) + dust + rounding;
    }
    if (!converged && share < HUGE_VAL) {
      const double before = moved;
      moved = moved_by(c, x, *settled, next);
      if (!(moved <= share * before)) return RECOVERABLE;
    }
    *settled = next;
    next = other, other = next == c->settled ? c->settled + c->n : c->settled;
  }
  return converged ? 0 : RECOVERABLE;
}

static int settle(context *c, double t, const double *x, const double **settled) {
  return settle_by(c, t, x, NEWTON_STEPS, HUGE_VAL, settled);
}

/* Solve for the algebraic variables at x, which is off by at most the change in a step, on the same branch.
 * If the second correction is at most a quarter of the first, a ball around x contains this root and no other
 * (Kantorovich; Deuflhard, Newton Methods for Nonlinear Problems, 2.1); otherwise the step must be shorter. */
static int solved(context *c, double t, const double *x, const double **at) {
  *at = x;
  if (!c->solves) return 0;
  const int flag = settle_by(c, t, x, MOST_CORRECTIONS, CONTRACTS, at);
  if (flag == RECOVERABLE) c->unsolved++;
  return flag;
}

/* dz along directions, given the output of `along` with dz = 0: -K_z^-1 times its algebraic rows, n_z x count row-major */
static int algebraic_directions(const context *c, integer count, double *const *along, double *dz) {
  const integer ny = c->n_differential, nz = c->n - ny;
  double matrix[MOST_SOLVED * MOST_SOLVED] = {0};
  for (integer j = 0; j < nz; j++) {
    for (integer k = c->f_x.column[ny + j]; k < c->f_x.column[ny + j + 1]; k++)
      if (c->f_x.row[k] >= ny) matrix[(c->f_x.row[k] - ny) * nz + j] += c->f_x.value[k];
    for (integer i = 0; i < count; i++) dz[j * count + i] = -along[i][ny + j];
  }
  return solve_dense(matrix, dz, nz, count) ? 0 : RECOVERABLE;
}

/* add the contribution of dz to the rates of y and of the integrals */
static void add_algebraic(const context *c, integer count, const double *dz, double *const *along) {
  const integer ny = c->n_differential, nz = c->n - ny;
  for (integer j = 0; j < nz; j++)
    for (integer k = c->f_x.column[ny + j]; k < c->f_x.column[ny + j + 1]; k++)
      for (integer i = 0; c->f_x.row[k] < ny && i < count; i++) along[i][c->f_x.row[k]] += c->f_x.value[k] * dz[j * count + i];
  for (integer j = 0; j < c->n_integrals; j++)
    for (integer k = c->g_x.column[j]; k < c->g_x.column[j + 1]; k++)
      for (integer i = 0; c->g_x.row[k] >= ny && i < count; i++)
        along[i][c->n + j] += c->g_x.value[k] * dz[(c->g_x.row[k] - ny) * count + i];
  for (integer i = 0; i < count; i++) memset(along[i] + ny, 0, (size_t)nz * sizeof(double));
}

/* Guards, and their rates if `rate` is given, at the consistent point nearest to x, or at a consistent x. */
static int guards_at(context *c, double t, const double *x, int consistent, double *value, double *rate) {
  const integer own = c->n_guards - c->n_poles;
  const double *at = x;
  if (c->sketch) {
    if (!consistent && settle(c, t, x, &at) == FATAL) return FATAL;
    c->res[0] = value, c->res[1] = c->off;
    if (evaluate(c, c->sketch, t, at)) return FATAL;
    c->res[0] = value + own, c->res[1] = rate ? rate + own : 0;
    if (c->poles && evaluate(c, c->poles, t, x)) return FATAL;
  } else {
    c->res[0] = value;
    if (evaluate(c, c->guards, t, x)) return FATAL;
  }
  c->res[0] = rate;
  return rate ? evaluate(c, c->rates, t, at) : 0;
}

/* Guards at the consistent point nearest to x; to first order if all of them are far from zero. */
static int guards_near(context *c, double t, const double *x, double *value) {
  const integer own = c->n_guards - c->n_poles;
  int certain = c->weigh != 0;
  for (integer i = 0; i < own && certain; i++) certain = c->zero_band[i] == 0;
  if (!certain) return guards_at(c, t, x, 0, value, 0);
  const integer setups = 1 + (c->linear ? c->linear->setups : c->jacobian_calls);
  if (c->weighed != setups) {
    c->res[0] = c->guard_weights;
    if (evaluate(c, c->weigh, t, x)) return FATAL;
    c->weighed = setups;
  }
  c->res[0] = value, c->res[1] = c->off;
  if (evaluate(c, c->sketch, t, x)) return FATAL;
  for (integer i = 0; i < own && certain; i++) {
    const double *weight = c->guard_weights + i * c->n_off;
    double moved = 0, most = 0;
    for (integer j = 0; j < c->n_off; j++) {
      const double part = weight[j] * c->off[j];
      moved += part, most += fabs(part);
    }
    value[i] -= moved;
    certain = fabs(value[i]) > CERTAIN * most;
  }
  if (!certain) return guards_at(c, t, x, 0, value, 0);
  c->res[0] = value + own, c->res[1] = 0;
  return c->poles ? evaluate(c, c->poles, t, x) : 0;
}

/* F and g if `out` is given, and their derivatives in the values of the blocks */
static int evaluate_linearised(context *c, double t, const double *x, double *out, sparse *const *blocks) {
  c->linearised_calls++;
  c->res[0] = out;
  c->res[1] = out && c->n_integrals ? out + c->n : 0;
  for (int i = 0; i < BLOCKS; i++) c->res[2 + i] = blocks[i]->value;
  if (evaluate(c, c->linearised, t, x)) return FATAL;
  const integer columns[BLOCKS] = {c->n, c->n_parameters, c->n_memory, c->n_functionals, c->n_functionals, c->n_functionals};
  for (int i = 0; i < BLOCKS; i++)
    if (checked(c, blocks[i]->value, blocks[i]->column[columns[i]])) return RECOVERABLE;
  return out ? checked(c, out, c->n + c->n_integrals) : 0;
}

/* F, followed by the integrands, if `out` is given; and the common part of all products of derivatives at the point */
static int record_tape(context *c, double t, const double *x, double *out, double *tape) {
  c->linearised_calls++;
  c->res[0] = out;
  c->res[1] = out && c->n_integrals ? out + c->n : 0;
  c->res[2] = tape;
  if (evaluate(c, c->tape, t, x)) return FATAL;
  if (checked(c, tape, c->n_tape)) return RECOVERABLE;
  return out ? checked(c, out, c->n + c->n_integrals) : 0;
}

static int is_known(const context *c, double t, const double *x, integer what) {
  return c->point_valid == what && c->point_time == t && !memcmp(c->point, x, (size_t)c->n * sizeof(double));
}

static int take_point(context *c, double t, const double *x, double *out, integer what) {
  sparse *const blocks[BLOCKS] = {&c->f_x, &c->f_p, &c->f_m, &c->g_x, &c->g_p, &c->g_m};
  c->point_valid = 0;
  const int flag = what == OF_TAPE ? record_tape(c, t, x, out, c->recorded) : evaluate_linearised(c, t, x, out, blocks);
  if (flag) return flag;
  memcpy(c->point, x, (size_t)c->n * sizeof(double));
  c->point_time = t;
  c->point_valid = what;
  return 0;
}

/* If directions use products, the tape replaces the blocks. */
static int linearise_and(context *c, double t, const double *x, double *out) {
  return take_point(c, t, x, out, c->tangent ? OF_TAPE : OF_BLOCKS);
}

/* Newton iterations and quadratures return to the same (t, x): evaluate once. */
static int linearise(context *c, double t, const double *x) {
  return is_known(c, t, x, c->tangent ? OF_TAPE : OF_BLOCKS) ? 0 : linearise_and(c, t, x, 0);
}

/* F_x s + F_p dp + F_m dm at the point of the tape, and the same for the integrands if requested */
static int push_forward(context *c, double t, const double *x, const double *s, const double *dp, const double *dm,
                        double *out, double *of_integrals) {
  c->arg[5] = c->recorded, c->arg[6] = s, c->arg[7] = dm, c->arg[8] = dp;
  c->res[0] = out, c->res[1] = of_integrals;
  return evaluate(c, c->tangent, t, x) ? FATAL : 0;
}

/* F_x^T v + weight g_x^T of a component, the same by m, and parts of the same by p, at the point of a tape, with the
 * held constants. The caller checks that the last two are finite. */
static int pull_back(context *c, double t, const double *x, const double *tape, const double *v, integer component,
                     double weight, double *out) {
  double **res = c->res;
  c->selected[component] = weight;
  c->arg[5] = tape, c->arg[6] = v, c->arg[7] = c->selected;
  *res++ = out, *res++ = out + c->n;
  for (const integer *part = c->parts; part < c->parts + PART * c->n_parts; part += PART) {
    *res++ = out + part[3];
    if (part[2]) *res++ = out + part[3] + part[1];
  }
  const int flag = evaluate(c, c->pullback, t, x);
  c->selected[component] = 0;
  return flag ? flag : checked(c, out, c->n);
}

/* z plus the sum of outer products */
IN_VECTORS static void add_outer(double *restrict z, const double *restrict left, const double *restrict right, integer apart,
                                 integer rows, integer columns, integer count) {
  for (integer j = 0; j < columns; j++, z += rows, right++) {
    const double *a = left, *y = right;
    integer k = 0;
    for (; k + 4 <= count; k += 4, a += 4 * apart, y += 4 * apart) {
      const double *b = a + apart, *c = b + apart, *d = c + apart;
      const double y0 = y[0], y1 = y[apart], y2 = y[2 * apart], y3 = y[3 * apart];
      for (integer i = 0; i < rows; i++) z[i] += (a[i] * y0 + b[i] * y1) + (c[i] * y2 + d[i] * y3);
    }
    for (; k < count; k++, a += apart, y += apart)
      for (integer i = 0; i < rows; i++) z[i] += a[i] * y[0];
  }
}

IN_VECTORS static void add_to(double *restrict sum, const double *restrict v, integer n) {
  for (integer i = 0; i < n; i++) sum[i] += v[i];
}

/* Sum over several points of the output of `pull_back` by p, followed by that by m. */
static int sum_parts(context *c, const double *products, integer count, double *sum) {
  const integer others = c->n_parameters + c->n_memory;
  memset(sum, 0, (size_t)others * sizeof(double));
  for (const integer *part = c->parts; part < c->parts + PART * c->n_parts; part += PART) {
    const double *first = products + part[3];
    if (part[2]) add_outer(sum + part[0], first, first + part[1], c->n_product, part[1], part[2], count);
    for (integer i = 0; !part[2] && i < count; i++) add_to(sum + part[0], first + i * c->n_product, part[1]);
  }
  for (integer i = 0; i < count; i++) add_to(sum + c->n_parameters, products + i * c->n_product + c->n, c->n_memory);
  return checked(c, sum, others);
}

/* for several vectors at a time, whose sums are independent */
static void add_products(const sparse *a, integer columns, const double *const *v, integer count, double *const *out) {
  for (integer k = 0; k < a->column[columns]; k++)
    for (integer i = 0; i < count; i++) out[i][a->row[k]] += a->value[k] * v[i][a->owner[k]];
}

/* product with column i of a sparse matrix */
static void add_sparse_product(const sparse *a, const sparse *b, integer i, double *out) {
  for (integer q = b->column[i]; q < b->column[i + 1]; q++)
    for (integer k = a->column[b->row[q]]; k < a->column[b->row[q] + 1]; k++) out[a->row[k]] += a->value[k] * b->value[q];
}

static double column_dot(const sparse *a, integer j, const double *v) {
  double sum = 0;
  for (integer k = a->column[j]; k < a->column[j + 1]; k++) sum += a->value[k] * v[a->row[k]];
  return sum;
}

static void add_column(const sparse *a, integer j, double factor, double *out) {
  for (integer k = a->column[j]; k < a->column[j + 1]; k++) out[a->row[k]] += factor * a->value[k];
}

static void scatter_column(const sparse *a, integer j, double *out) {
  for (integer k = a->column[j]; k < a->column[j + 1]; k++) out[a->row[k]] += a->value[k];
}

/* the step of the path that contains a time */
static integer path_row(context *c, double clock) {
  integer i = c->path_row;
  while (i > 0 && clock <= c->clocks[i - 1]) i--;
  while (i < c->path_rows - 1 && clock > c->clocks[i]) i++;
  return c->path_row = i;
}

static double time_of(const context *c, double clock) { return fmax(c->origin + clock, c->earliest); }

/* Evaluate the solver's polynomial on the step of the path that contains a time. It has the accuracy of the tolerance for
 * y, but not for algebraic variables, which may vary faster than the steps: solve for them. */
static int follow(context *c, double clock) {
  const integer n = c->n, nz = n - c->n_differential;
  if (c->interpolated_valid && c->interpolated_clock == clock) return 0;
  const integer i = path_row(c, clock);
  double *at = c->interpolated, *next = at + n, *correction = next + 2 * n;
  const double *row = c->path + i * c->path_width, *derivatives = row + DENSE_COLUMNS, offset = clock - c->clocks[i];
  const double t = time_of(c, clock);
  const integer order = (integer)row[2];
  memcpy(at, derivatives + order * n, (size_t)n * sizeof(double));
  for (integer k = order - 1; k >= 0; k--)
    for (integer j = 0; j < n; j++) at[j] = derivatives[k * n + j] + at[j] * offset / (double)(k + 1);
  for (integer j = 0; j < n && order; j++) { /* see PATH_ROUNDINGS */
    double terms = 0;
    if (!(at[j] < 0)) continue;
    for (integer k = order; k >= 0; k--) terms = fabs(derivatives[k * n + j]) + terms * fabs(offset) / (double)(k + 1);
    if (-at[j] <= PATH_ROUNDINGS * DBL_EPSILON * (terms + fabs(clock * derivatives[n + j]))) at[j] = 0;
  }
  c->interpolated_valid = 0;
  const double *settled = at;
  int converged = !nz || (c->settle && !settle(c, t, at, &settled));
  if (converged && settled != at) memcpy(at, settled, (size_t)n * sizeof(double));
  for (int k = 0; !converged && k <= SOLVES; k++) {
    if (k == SOLVES) return RECOVERABLE;
    c->res[0] = next;
    c->res[1] = next + n;
    c->res[2] = correction;
    if (evaluate(c, c->complete, t, at)) return FATAL;
    if (checked(c, next, n)) return RECOVERABLE;
    memcpy(at, next, (size_t)n * sizeof(double));
    converged = 1;
    for (integer j = 0; j < nz; j++)
      if (!(correction[j] <= CONVERGED)) converged = 0;
  }
  c->interpolated_clock = clock;
  c->interpolated_valid = 1;
  return 0;
}

static int linearise_path(context *c, double clock) {
  const int flag = follow(c, clock);
  return flag ? flag : linearise(c, time_of(c, clock), c->interpolated);
}

/* The tape at a time of the path, and the time. */
static int record_path(context *c, double clock, double *t) {
  *t = time_of(c, clock);
  const int flag = follow(c, clock);
  if (flag || is_known(c, *t, c->interpolated, OF_TAPE)) return flag;
  return take_point(c, *t, c->interpolated, 0, OF_TAPE);
}
