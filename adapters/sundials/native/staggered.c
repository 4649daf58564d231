/* ---- sensitivities of a step, simultaneously ---------------------------------------------------------- */

/* The sensitivities of a step solve linear systems with one matrix, Newton's matrix at the converged state. If
 * factorisation is cheap relative to solves, this matrix is factorised at every step (staggered direct method;
 * Caracotsios and Stewart, Comput. Chem. Eng. 9, 1985). Otherwise the systems are solved by iteration with the factors
 * of an earlier step (staggered corrector; Feehery, Tolsma and Barton, Appl. Numer. Math. 25, 1997). SUNDIALS' own
 * corrector solves for one direction after the other, with the factors left by Newton's method. SUNDIALS calls this
 * file as a nonlinear solver. */

/* first members of a SUNNonlinearSolver and of a vector wrapper; Python checks the layout */
typedef struct {
  staggered *content;
} corrector;

typedef struct {
  vector **content;
} wrapper;

/* P A = L U of a dense matrix, by columns */
IN_VECTORS static int factorise_dense(double *restrict a, integer n, integer *pivots) {
  for (integer k = 0; k < n; k++) {
    double *column = a + k * n;
    integer pivot = k;
    for (integer i = k + 1; i < n; i++)
      if (fabs(column[i]) > fabs(column[pivot])) pivot = i;
    if (!(fabs(column[pivot]) > 0)) return RECOVERABLE;
    pivots[k] = pivot;
    for (integer j = 0; pivot != k && j < n; j++) {
      const double kept = a[j * n + k];
      a[j * n + k] = a[j * n + pivot], a[j * n + pivot] = kept;
    }
    for (integer i = k + 1; i < n; i++) column[i] /= column[k];
    for (integer j = k + 1; j < n; j++) {
      double *other = a + j * n;
      const double share = other[k];
      for (integer i = k + 1; share != 0 && i < n; i++) other[i] -= share * column[i];
    }
  }
  return 0;
}

/* b - the sum of four columns times y */
IN_VECTORS static void subtract_columns(double *restrict b, const double *restrict a, integer n, integer rows,
                                        const double *y) {
  const double *one = a, *two = one + n, *three = two + n, *four = three + n, y0 = y[0], y1 = y[1], y2 = y[2], y3 = y[3];
  for (integer i = 0; i < rows; i++) b[i] -= (one[i] * y0 + two[i] * y1) + (three[i] * y2 + four[i] * y3);
}

/* Solve in place for `count` right-hand sides with stride `apart`, four columns of a factor at a time. */
static void solve_with_dense(const double *a, integer n, const integer *pivots, double *b, integer count, integer apart) {
  const integer whole = n - n % 4;
  for (integer q = 0; q < count; q++)
    for (integer k = 0; k < n; k++) {
      const double kept = b[q * apart + k];
      b[q * apart + k] = b[q * apart + pivots[k]], b[q * apart + pivots[k]] = kept;
    }
  for (integer k = 0; k < n; k += 4)
    for (integer q = 0; q < count; q++) {
      double *x = b + q * apart;
      const integer end = k < whole ? k + 4 : n;
      for (integer j = k; j < end; j++)
        for (integer i = j + 1; i < end; i++) x[i] -= a[j * n + i] * x[j];
      if (k < whole) subtract_columns(x + end, a + k * n + end, n, n - end, x + k);
    }
  for (integer k = n % 4 ? whole : n - 4; k >= 0; k -= 4)
    for (integer q = 0; q < count; q++) {
      double *x = b + q * apart;
      for (integer j = (k < whole ? k + 4 : n) - 1; j >= k; j--) {
        x[j] /= a[j * n + j];
        for (integer i = k < whole ? k : 0; i < j; i++) x[i] -= a[j * n + i] * x[j];
      }
      if (k < whole) subtract_columns(x, a + k * n, n, k, x + k);
    }
}

static void swap_rows(double *b, integer width, integer i, integer j) {
  for (integer q = 0; i != j && q < width; q++) {
    const double kept = b[i * width + q];
    b[i * width + q] = b[j * width + q], b[j * width + q] = kept;
  }
}

/* row i -= share times row k */
static inline void eliminate(double *restrict b, integer width, integer i, integer k, double share) {
  for (integer q = 0; q < width; q += LANES)
    for (int lane = 0; lane < LANES; lane++) b[i * width + q + lane] -= share * b[k * width + q + lane];
}

/* with SUNDIALS' band factors */
IN_VECTORS static void solve_band_rows(const linear *l, double *b, integer width) {
  for (integer k = 0; k < l->n; k++) {
    const double *diagonal = l->columns[k] + l->stored;
    swap_rows(b, width, k, l->pivots[k]);
    for (integer i = k + 1; i < l->n && i <= k + l->lower; i++) eliminate(b, width, i, k, -diagonal[i - k]);
  }
  for (integer k = l->n - 1; k >= 0; k--) {
    const double *diagonal = l->columns[k] + l->stored;
    for (integer q = 0; q < width; q++) b[k * width + q] /= diagonal[0];
    for (integer i = k > l->stored ? k - l->stored : 0; i < k; i++) eliminate(b, width, i, k, diagonal[i - k]);
  }
}

IN_VECTORS static void solve_sparse_rows(const sparse_lu *f, const double *b, double *x, integer width) {
  for (integer i = 0; i < f->n; i++) memcpy(x + f->pivot[i] * width, b + i * width, (size_t)width * sizeof(double));
  for (integer k = 0; k < f->n; k++)
    for (integer a = f->l_column[k] + 1; a < f->l_column[k + 1]; a++) eliminate(x, width, f->l_row[a], k, f->l_value[a]);
  for (integer k = f->n - 1; k >= 0; k--) {
    const integer last = f->u_column[k + 1] - 1;
    for (integer q = 0; q < width; q++) x[k * width + q] /= f->u_value[last];
    for (integer a = f->u_column[k]; a < last; a++) eliminate(x, width, f->u_row[a], k, f->u_value[a]);
  }
}

/* with factors made by Python */
static int solve_one_by_one(const linear *l, double *b, integer count, integer width) {
  for (integer q = 0; q < count; q++) {
    for (integer i = 0; i < l->n; i++) l->right[i] = b[i * width + q];
    if (l->solve()) return FATAL;
    for (integer i = 0; i < l->n; i++) b[i * width + q] = l->right[i];
  }
  return 0;
}

/* Factorise Newton's matrix at the point of the linearisation. */
static int renew(staggered *s, double t, const double *x) {
  context *c = s->model;
  linear *l = s->own;
  s->held = 0;
  if (c->tangent) {
    c->jacobian_calls++;
    c->res[0] = l->jacobian, c->res[1] = c->n_integrals ? l->rows : 0;
    if (evaluate(c, c->jacobian, t, x)) return FATAL;
    if (checked(c, l->jacobian, l->n_entries)) return RECOVERABLE;
  }
  if (s->implicit) assemble(c, l, 1, -s->gamma, 1, -s->gamma);
  else assemble(c, l, -s->gamma, 1, -s->gamma, 1);
  const int flag = s->dense ? factorise_dense(l->matrix, l->n, l->pivots) : factorise(l);
  s->held = !flag, s->held_gamma = s->gamma, s->rate = 0;
  return flag;
}

/* Write the residuals of all directions at corrections `a` to `sides`, one direction after the other. */
static int off_by(staggered *s, const vector *predicted, const vector *rates, const vector *a) {
  const context *c = s->model;
  const sundials_api *api = c->api;
  const integer size = c->n + c->n_integrals;
  for (integer first = 0; first < c->n_directions; first += TOGETHER) {
    const integer left = c->n_directions - first, count = left < TOGETHER ? left : TOGETHER;
    const double *from[TOGETHER];
    double *to[TOGETHER];
    for (integer i = 0; i < count; i++) {
      double *moved = s->moved + i * size;
      const double *at = api->array(predicted[first + i]), *by = api->array(a[first + i]);
      for (integer j = 0; j < size; j++) moved[j] = at[j] + by[j];
      from[i] = moved, to[i] = s->sides + (first + i) * size;
    }
    if (along(s->model, first, count, from, to)) return FATAL;
    for (integer i = 0; i < count; i++) {
      const double *rate = api->array(rates[first + i]), *by = api->array(a[first + i]);
      double *out = to[i];
      if (s->implicit) {
        for (integer j = 0; j < size; j++) {
          const int moves = j < c->n_differential || j >= c->n;
          out[j] = (moves ? rate[j] + s->gamma * by[j] : 0) - out[j];
        }
      } else {
        for (integer j = 0; j < size; j++) out[j] = s->gamma * out[j] - s->rate_share * rate[j] - by[j];
      }
    }
  }
  return checked(s->model, s->sides, c->n_directions * size);
}

/* Add the solutions for the sides, times a share, to `a`; return the largest norm of the changes. */
static double correct(staggered *s, double share, const vector *a, const vector *weights) {
  const context *c = s->model;
  linear *l = s->own;
  const integer size = c->n + c->n_integrals, n = c->n, width = s->width;
  double largest = 0, *b = s->rows;
  for (integer i = 0; !s->dense && i < c->n_directions; i++)
    for (integer k = 0; k < n; k++) b[k * width + i] = s->sides[i * size + l->equations[k]];
  if (s->dense) solve_with_dense(l->matrix, n, l->pivots, s->sides, c->n_directions, size);
  else if (l->lu) solve_sparse_rows(l->lu, b, s->rows + n * width, width), b += n * width;
  else if (!l->factor) solve_band_rows(l, b, width);
  else if (solve_one_by_one(l, b, c->n_directions, width)) return HUGE_VAL;
  for (integer i = 0; i < c->n_directions; i++) {
    const double *side = s->sides + i * size;
    double *sum = c->api->array(a[i]), norm = 0;
    const double *weight = c->api->array(weights[i]);
    for (integer k = 0; k < n; k++) s->moved[l->order[k]] = share * (s->dense ? side[k] : b[k * width + i]);
    for (integer j = 0; j < l->border; j++)
      s->moved[n + j] = (side[n + j] - l->row_scale * row_product(c, l, j, s->moved)) / l->corner;
    for (integer j = 0; j < size; j++) {
      const double change = s->moved[j] * weight[j];
      sum[j] += s->moved[j];
      norm += change * change;
    }
    norm = sqrt(norm / (double)size);
    if (norm > largest || norm != norm) largest = norm; /* keeps NaN */
  }
  return largest;
}

/* Compute the corrections of all directions. */
static int solve_all(staggered *s, double t, const double *x, const vector *predicted, const vector *rates,
                     const vector *a, const vector *weights, double tolerance) {
  const double ratio = s->held ? s->gamma / s->held_gamma : 0;
  double before = 0;
  int flag = linearise(s->model, t, x), fresh = s->exact || !(fabs(ratio - 1) <= GAMMA_MOVED);
  if (!flag && fresh) flag = renew(s, t, x);
  if (flag) return flag;
  /* the estimated convergence rate of the current factors loses weight with each step */
  s->rate = s->rate > 0 ? fmin(1, fmax(AGEING * s->rate, fabs(ratio - 1) / (ratio + 1))) : 1;
  s->own->row_scale = s->implicit ? 1 : -s->gamma, s->own->corner = s->implicit ? -s->gamma : 1;
  for (int k = 0;; k++) {
    if ((flag = off_by(s, predicted, rates, a))) return flag;
    const double moved = correct(s, fresh ? 1 : 2 / (1 + ratio), a, weights);
    if (fresh) return moved < HUGE_VAL ? 0 : RECOVERABLE;
    if (k) s->rate = fmax(SLOWER * s->rate, moved / before);
    if (moved * fmin(1, s->rate) <= tolerance) return 0;
    if (k && (s->rate > SLOW || k >= ITERATIONS)) { /* corrections applied so far are kept */
      if ((flag = renew(s, t, x))) return flag;
      fresh = 1;
    }
    before = moved;
  }
}

int dh_cv_sensitivities(corrector *solver, vector start, wrapper *corrections, wrapper *weights, double tolerance,
                        int setup, void *memory) {
  staggered *s = solver->content;
  context *c = s->model;
  vector state_predicted, y, fy, rate, *predicted, *now, *rates;
  double t, gamma, rl;
  void *data;
  (void)start, (void)setup;
  if (c->api->cvode_system(memory, &t, &state_predicted, &y, &fy, &gamma, &rl, &rate, &data)) return UNSOLVED;
  if (c->api->cvode_sens_system(memory, &t, &predicted, &now, &s->gamma, &s->rate_share, &rates, &data)) return UNSOLVED;
  if (c->memory_of && keep_prediction(c)) return UNSOLVED;
  const int flag = solve_all(s, t, c->api->array(y), predicted, rates, *corrections->content, *weights->content, tolerance);
  return flag == FATAL ? UNSOLVED : flag ? SHORTER_STEP : 0;
}

int dh_ida_sensitivities(corrector *solver, vector start, wrapper *corrections, wrapper *weights, double tolerance,
                         int setup, void *memory) {
  staggered *s = solver->content;
  context *c = s->model;
  vector state_predicted, rate_predicted, x, xdot, residual, *predicted, *rates, *now, *rates_now;
  double t, cj;
  void *data;
  (void)start, (void)setup;
  if (c->api->ida_system(memory, &t, &state_predicted, &rate_predicted, &x, &xdot, &residual, &cj, &data)) return UNSOLVED;
  if (c->api->ida_sens_system(memory, &t, &predicted, &rates, &now, &rates_now, &s->gamma, &data)) return UNSOLVED;
  const int flag = solve_all(s, t, c->api->array(x), predicted, rates, *corrections->content, *weights->content, tolerance);
  return flag == FATAL ? UNSOLVED : flag ? SHORTER_STEP : 0;
}

/* type: root finding; the solver evaluates its equations itself */
int dh_all_type(const void *solver) { (void)solver; return 0; }
int dh_all_system(const void *solver, const void *function) { (void)solver, (void)function; return 0; }
