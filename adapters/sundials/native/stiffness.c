/* ---- stiffness of a mode -----------------------------------------------------------------------------------------
 *
 * The rules are those of port/stiffness.py and choice.py, by bounds: if these do not show that explicit steps suffice,
 * the run pauses, and Python computes the eigenvalues. */

/* largest -Re of the eigenvalues of a 2 x 2 matrix; see port/stiffness.py */
static double fastest_of_two(double a, double b, double c, double d) {
  const double scale = fmax(fmax(fabs(a), fabs(b)), fmax(fabs(c), fabs(d)));
  if (scale == 0) return 0;
  const double half = (a / 2 + d / 2) / scale, gap = (a / 2 - d / 2) / scale, square = gap * gap + b / scale * (c / scale);
  return fmax(0, (square > 0 ? sqrt(square) - half : -half) * scale);
}

/* Time to look ahead: a multiple of the guards' time to the next event, at their rates, but not beyond t_stop. */
static double horizon(context *c, double t, const double *x, double t_stop) {
  double value[2 * FEW_GUARDS], ahead = HUGE_VAL;
  if (c->n_guards > FEW_GUARDS || guards_and_rates(c, t, x, value)) return t_stop - t;
  for (integer i = 0; i < c->n_guards; i++)
    if (value[i] * value[c->n_guards + i] < 0) ahead = fmin(ahead, -value[i] / value[c->n_guards + i]);
  return fmin(t_stop - t, EVENTS_AHEAD * ahead);
}

/* the 1-norm */
static double column_norm(const sparse *a, integer n) {
  double norm = 0;
  for (integer j = 0; j < n; j++) {
    double sum = 0;
    for (integer k = a->column[j]; k < a->column[j + 1]; k++) sum += fabs(a->value[k]);
    norm = fmax(norm, sum);
  }
  return norm;
}

/* Dense Jacobian of y' = f(y, z(y)): f_y - f_z K_z^-1 K_y; returns whether it exists. For few states. */
static int reduce(const context *c, const sparse *out, integer *column, integer *row) {
  const integer ny = c->n_differential, nz = c->n - ny;
  const sparse *a = &c->state_jacobian;
  double work[MOST_SOLVED * (MOST_SOLVED + FEW_STATES)];
  const double *by_y = ny > FEW_STATES || nz > MOST_SOLVED ? 0 : algebraic_by_states(c, work);
  if (!by_y) return 0;
  for (integer k = 0; k <= ny; k++) column[k] = k * ny;
  for (integer k = 0; k < ny * ny; k++) row[k] = k % ny, out->value[k] = 0;
  for (integer j = 0; j < c->n; j++)
    for (integer k = a->column[j]; k < a->column[j + 1]; k++) {
      const integer i = a->row[k];
      if (i >= ny) continue;
      if (j < ny) out->value[j * ny + i] += a->value[k];
      else
        for (integer l = 0; l < ny; l++) out->value[l * ny + i] -= a->value[k] * by_y[(j - ny) * ny + l];
    }
  return 1;
}

/* Upper bound on the rate of the fastest decay, exact for one or two variables; 0 if little is left to decay; see
 * `stiff_rate` in port/stiffness.py */
static double decay_bound(context *c, double t, const double *x, double t_stop) {
  const sparse *a = &c->state_jacobian;
  const integer n = c->n_differential;
  integer column[FEW_STATES + 1], row[FEW_STATES * FEW_STATES];
  double rows = 0, value[FEW_STATES * FEW_STATES];
  const sparse reduced = {column, row, 0, value};
  c->res[0] = a->value;
  c->res[1] = c->integrand_jacobian.value;
  if (evaluate(c, c->jacobian, t, x) || !all_finite(a->value, a->column[c->n])) return HUGE_VAL;
  if (c->solves) {
    if (!reduce(c, &reduced, column, row)) return HUGE_VAL;
    a = &reduced;
  }
  const double columns = column_norm(a, n);
  for (integer i = 0; i < n; i++) {
    double sum = 0;
    for (integer k = 0; k < a->column[n]; k++) sum += a->row[k] == i ? fabs(a->value[k]) : 0;
    rows = fmax(rows, sum);
  }
  double rate = fmin(rows, columns), ahead = t_stop - t;
  if (rate * ahead <= DECAYS) return 0;
  ahead = horizon(c, t, x, t_stop);
  if (n <= 2 && rate * ahead > DECAYS) {
    double dense[4] = {0};
    for (integer j = 0; j < n; j++) scatter_column(a, j, dense + 2 * j);
    rate = n == 1 ? fmax(0, -dense[0]) : fastest_of_two(dense[0], dense[2], dense[1], dense[3]);
  }
  return rate * ahead <= DECAYS ? 0 : rate;
}

/* Step within which explicit equations change by no more than high orders resolve; see `accurate_step` in
 * port/stiffness.py. 0 if unknown. */
static double accurate_step(const event_loop *m, const mode_tables *at, context *c, double t, const double *x, double span) {
  double rate[FEW_STATES], moved[FEW_STATES], after[FEW_STATES], allowed[FEW_STATES], sizes[2] = {0, 0}, largest = 0;
  if (c->solves || c->n > FEW_STATES || rates_at(c, t, x, rate)) return 0;
  c->flow_calls--; /* not one of the solver's */
  for (integer j = 0; j < c->n; j++) {
    allowed[j] = at->absolute[j] + m->rtol * fabs(x[j]);
    sizes[0] = fmax(sizes[0], fabs(x[j]) / allowed[j]);
    sizes[1] = fmax(sizes[1], fabs(rate[j]) / allowed[j]);
  }
  double probe = sizes[0] > 0 && sizes[1] > 0 ? fmin(TRIAL_SHARE * sizes[0] / sizes[1], span) : 0;
  if (probe == 0) probe = TRIAL_SHARE * TRIAL_SHARE * TRIAL_SHARE * span;
    for (integer j = 0; j < c->n; j++) moved[j] = x[j] + probe * rate[j];
  if (rates_at(c, t + probe, moved, after)) return 0;
  c->flow_calls--;
  for (integer j = 0; j < c->n; j++) largest = fmax(largest, fabs(after[j] - rate[j]) / allowed[j]);
  largest = fmax(sizes[1], largest / probe);
  return largest > 0 ? pow(TRIAL_SHARE / largest, 1.0 / ACCURATE_ORDER) : HUGE_VAL;
}

/* Whether a mode is clearly nonstiff at the start of a segment; the rules are those of choice.py. */
static int begins_soft(const native_run *v, const mode_tables *at, context *c, double t, const double *x) {
  const event_loop *m = v->tables;
  const double rate = decay_bound(c, t, x, m->t1), left = m->t1 - t;
  if (rate == 0) return 1;
  const double step = fmin(accurate_step(m, at, c, t, x, left), v->longest > 0 ? v->longest : left);
  return rate * step <= v->reach && left <= step * (double)v->max_steps;
}
