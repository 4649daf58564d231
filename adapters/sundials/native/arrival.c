/* ---- the point after a transition -----------------------------------------------------------------------------
 *
 * Functions of a link at a point, the unknowns of its arrival by Newton's method, and their derivatives by the
 * implicit function theorem. The rules are those of system/transition_map.py, algebraic.py and reinitialisation.py
 * where they apply clearly; otherwise the transition is left to the automaton. */
static int call(event_loop *m, casadi_function function, const double *numbers, double t, const double *x,
                const double *memory, double **res, int count) {
  m->arg[0] = &t;
  m->arg[1] = x;
  m->arg[2] = memory;
  m->arg[3] = m->parameters;
  m->arg[4] = m->clock;
  m->arg[5] = m->xi;
  m->arg[6] = numbers;
  for (int i = 0; i < count; i++) m->res[i] = res[i];
  return function(m->arg, m->res, m->iw, m->w, 0) ? FATAL : 0;
}

static int negligible(const double *values, const double *sizes, integer n, double roundings) {
  for (integer i = 0; i < n; i++)
    if (!(values[i] == 0 || (fabs(values[i]) <= roundings * DBL_EPSILON * sizes[i] && sizes[i] < HUGE_VAL))) return 0;
  return 1;
}

static int at_most(const double *values, const double *sizes, integer n, double share) {
  for (integer i = 0; i < n; i++)
    if (!(fabs(values[i]) <= share * fabs(sizes[i]))) return 0;
  return 1;
}

/* largest magnitude in a row of a column-major matrix */
static double row_maximum(const double *a, integer n, integer i) {
  double largest = 0;
  for (integer j = 0; j < n; j++) largest = fmax(largest, fabs(a[j * n + i]));
  return largest;
}

/* Whether no row cancels against the terms of its entries, so that none is left to continuity. */
static int determines(const double *a, const double *sizes, integer n) {
  for (integer i = 0; i < n; i++) {
    const double scale = row_maximum(sizes, n, i);
    if (!(row_maximum(a, n, i) >= DOUBTFUL_TOLERANCE * scale && scale > 0 && scale < HUGE_VAL)) return 0;
  }
  return 1;
}

/* Row-major inverse of a column-major matrix whose rows are first divided by `scale`, their largest entries. */
static int invert(const double *a, integer n, double *scale, double *work, double *inverse) {
  if (!all_finite(a, n * n)) return 0;
  memset(inverse, 0, (size_t)(n * n) * sizeof(double));
  for (integer i = 0; i < n; i++) {
    scale[i] = row_maximum(a, n, i);
    if (!(scale[i] > 0)) return 0;
    for (integer j = 0; j < n; j++) work[i * n + j] = a[j * n + i] / scale[i];
    inverse[i * n + i] = 1;
  }
  return solve_dense(work, inverse, n, n) && all_finite(inverse, n * n);
}

/* Lower bounds of the smallest singular value of a / (rows columns), from `invert`, and, if `relative`, of its
 * ratio to the largest one. */
static double least_singular(const double *a, const double *inverse, const double *scale, integer n, const double *rows,
                             const double *columns, int relative) {
  double of_inverse = 0, of_matrix = 0;
  for (integer i = 0; i < n; i++)
    for (integer j = 0; j < n; j++) {
      const double back = inverse[i * n + j] * columns[i] * rows[j] / scale[j], own = a[j * n + i] / (rows[i] * columns[j]);
      of_inverse += back * back, of_matrix += own * own;
    }
  return 1 / sqrt(relative ? of_inverse * of_matrix : of_inverse);
}

/* Compute the factors that scale the rows, and then the columns, of the sizes of terms to one. */
static void equilibrate(const double *sizes, integer n, double *rows, double *columns) {
  for (integer i = 0; i < n; i++) {
    const double largest = row_maximum(sizes, n, i);
    rows[i] = largest > 0 ? largest : 1;
  }
  for (integer j = 0; j < n; j++) {
    double largest = 0;
    for (integer i = 0; i < n; i++) largest = fmax(largest, fabs(sizes[j * n + i]) / rows[i]);
    columns[j] = largest > 0 ? largest : 1;
  }
}

/* Whether a square matrix is clearly nonsingular; `rows` and `columns` (n each, and n more) are work. If the sizes of the
 * terms of its entries are given, it must not belong to a multiple root either. */
static int is_regular(const double *a, const double *sizes, const double *entries, const double *inverse,
                      const double *scale, integer n, double *rows) {
  double *columns = rows + n;
  for (integer i = 0; i < n; i++) rows[i] = row_maximum(sizes, n, i), columns[i] = 1;
  if (!(least_singular(a, inverse, scale, n, rows, columns, 1) > RANK_TOLERANCE) ||
      !(least_singular(a, inverse, scale, n, scale, columns, 1) > RANK_TOLERANCE)) {
    equilibrate(sizes, n, rows, columns); /* in other units, too, see `is_regular` of numerics/algebraic.py */
    if (!(least_singular(a, inverse, scale, n, rows, columns, 1) > RANK_TOLERANCE)) return 0;
  }
  if (!entries) return 1;
  equilibrate(entries, n, rows, columns);
  return least_singular(a, inverse, scale, n, rows, columns, 0) > MULTIPLE_ROOT;
}

typedef struct {                             /* outputs of a link's `tangent`; see `NativeTransition` in port/native_plan.py */
  double *h, *flow, *g, *flow_after, *g_after;
  sparse jump;
  double *by_after, *direct;                 /* of target constraints that the arrival does not solve */
  double *onto, *held;                       /* projection onto the source's constraints: D, and k by (w, p) */
} crossing;

typedef struct {                             /* the equations of an arrival at given unknowns; matrices are column-major */
  double *xi, *phi, *by_xi, *by_xi_size, *size;
} trial;

static trial lay_out_trial(double *at, integer n) {
  const trial found = {at, at + n, at + 2 * n, at + 2 * n + n * n, at + 2 * n + 2 * n * n};
  return found;
}

static int try_unknowns(event_loop *m, const link *l, double t, const double *x, const double *memory, const trial *at) {
  double *res[4] = {at->phi, at->by_xi, at->by_xi_size, at->size};
  m->xi = at->xi;
  if (call(m, l->solve, l->numbers, t, x, memory, res, 4)) return 0;
  for (integer i = 0; i < l->unknowns; i++) /* terms without a finite size require exact zeros */
    if (!isfinite(at->size[i])) at->size[i] = fabs(at->phi[i]);
  return 1;
}

static double largest_of(const double *values, integer n) {
  double largest = 0;
  for (integer i = 0; i < n; i++) largest = fmax(largest, fabs(values[i]));
  return largest;
}

/* Whether every residual is rounding of its own terms, or of the values from which it is computed, in the given units and
 * in those of the equations; see `_carried` in numerics/algebraic.py. `columns` is work. */
static int is_zero(const trial *at, integer n, double *columns) {
  double largest = 0, scaled = 0;
  if (!all_finite(at->phi, n) || !all_finite(at->by_xi, n * n)) return 0;
  memset(columns, 0, (size_t)n * sizeof(double));
  for (integer i = 0; i < n; i++) {
    const double row = row_maximum(at->by_xi, n, i);
    for (integer j = 0; row > 0 && j < n; j++) columns[j] = fmax(columns[j], fabs(at->by_xi[j * n + i]) / row);
  }
  for (integer j = 0; j < n; j++) {
    if (!(columns[j] > 0)) columns[j] = 1;
    largest = fmax(largest, fabs(at->xi[j])), scaled = fmax(scaled, columns[j] * fabs(at->xi[j]));
  }
  for (integer i = 0; i < n; i++) {
    double sum[2] = {0, 0};
    for (integer j = 0; j < n; j++) sum[0] += fabs(at->by_xi[j * n + i]), sum[1] += fabs(at->by_xi[j * n + i]) / columns[j];
    const double carried = fmin(sum[0] * largest, sum[1] * scaled);
    if (!(fabs(at->phi[i]) <= RESIDUAL_ROUNDINGS * DBL_EPSILON * at->size[i] + STAGNANT * carried)) return 0;
  }
  return 1;
}

/* Damped Newton's method, see `solve_algebraic` in numerics/algebraic.py; returns whether it has converged. */
static int iterate(event_loop *m, const link *l, double t, const double *x, const double *memory, trial *at, trial *next,
                   double *work) {
  const integer n = l->unknowns;
  double *step = work + n * n;
  for (integer k = 0; k < MOST_STEPS; k++) {
    if (!all_finite(at->phi, n) || !all_finite(at->by_xi, n * n)) return 0;
    for (integer i = 0; i < n; i++) {
      step[i] = -at->phi[i];
      for (integer j = 0; j < n; j++) work[i * n + j] = at->by_xi[j * n + i];
    }
    if (!solve_dense(work, step, n, 1) || !all_finite(step, n)) return 0;
    const int small = at_most(at->phi, at->size, n, RESIDUAL_ROUNDINGS * DBL_EPSILON);
    if (at_most(at->phi, at->size, n, DBL_EPSILON) || (small && at_most(step, at->xi, n, STEP_ROUNDINGS * DBL_EPSILON))) {
      for (integer i = 0; i < n; i++) at->xi[i] += step[i];
      return 1;
    }
    const double norm = largest_of(at->phi, n);
    for (double damping = 1;; damping /= 2) {
      if (damping < LEAST_DAMPING) return is_zero(at, n, work);
      for (integer i = 0; i < n; i++) next->xi[i] = at->xi[i] + damping * step[i];
      if (!try_unknowns(m, l, t, x, memory, next)) return 0;
      if (all_finite(next->phi, n) && largest_of(next->phi, n) < norm) break;
    }
    const trial better = *next;
    *next = *at, *at = better;
  }
  return is_zero(at, n, work);
}

/* Solve for the unknowns of an arrival, stored in `m->xi`; returns whether they are clearly determined. Algebraic
 * variables are continuous where that is consistent. */
static int solve_arrival(event_loop *m, const link *l, double t, const double *x, const double *memory) {
  const integer n = l->unknowns, one = 3 * n + 2 * n * n;
  trial at = lay_out_trial(m->solving, n), next = lay_out_trial(m->solving + one, n);
  double *work = m->solving + 2 * one, *res[2] = {at.xi, next.xi};
  if (call(m, l->begin, l->numbers, t, x, memory, res, 2) || !try_unknowns(m, l, t, x, memory, &at)) return 0;
  if (negligible(at.phi, at.size, n, RESIDUAL_ROUNDINGS)) {
    if (l->simple) return 1;
  } else {
    memcpy(at.xi, next.xi, (size_t)n * sizeof(double));
    if (!try_unknowns(m, l, t, x, memory, &at) || !determines(at.by_xi, at.by_xi_size, n)) return 0;
    if (!iterate(m, l, t, x, memory, &at, &next, work) || !try_unknowns(m, l, t, x, memory, &at)) return 0;
  }
  double *scale = work + n * n, *rows = scale + n, *inverse = rows + 2 * n;
  return determines(at.by_xi, at.by_xi_size, n) && invert(at.by_xi, n, scale, work, inverse) &&
         is_regular(at.by_xi, at.by_xi_size, 0, inverse, scale, n, rows);
}

/* the unknowns of an arrival in an event's record */
static const double *unknowns_of(const mode_tables *to, const link *l, const event *e) {
  return l->simple ? e->x_after + to->n_y : e->xi;
}

/* (w, p, t) -> w after an event and, in `m->slopes`, its unknowns; returns whether the derivatives clearly exist. */
static int differentiate_arrival(event_loop *m, const mode_tables *from, const mode_tables *to, const link *l, double t,
                                 const double *x, const event *e, crossing *c) {
  const integer nf = from->n_y + m->n_memory, nt = to->n_y + m->n_memory, width = nf + m->n_parameters + 1;
  const integer nk = m->n_functionals, n = l->slopes ? l->unknowns : 0;
  double *end = m->tangent;
#define PART(name, size) c->name = end, end += (size)
  PART(h, width);
  c->jump = l->jump, c->jump.value = end, end += l->jump.column[width];
  PART(flow, nf);
  PART(g, nk);
  PART(flow_after, nt);
  PART(g_after, nk);
  PART(by_after, l->others * nt);
  PART(direct, l->others * (m->n_parameters + 1));
  PART(onto, from->n_y * from->n_held);
  PART(held, from->n_held * (width - 1));
#undef PART
  double *phi_w = end, *through = phi_w + n * width, *own = through + nt * n; /* continuous z, or sizes of entries */
  double *res[13] = {c->h, c->jump.value, c->flow, c->g, c->flow_after, c->g_after, c->by_after, c->direct, c->onto, c->held,
                     phi_w, through, own};
  m->xi = unknowns_of(to, l, e);
  if (call(m, l->tangent, l->numbers, t, x, e->memory, res, n ? 13 : 10) || !all_finite(m->tangent, end - m->tangent)) return 0;
  if (!n) return 1;
  const trial at = lay_out_trial(m->solving, n);
  memcpy(at.xi, m->xi, (size_t)n * sizeof(double));
  if (!all_finite(phi_w, n * width + nt * n) || !try_unknowns(m, l, t, x, e->memory, &at)) return 0;
  double *scale = m->solving + 3 * n + 2 * n * n, *rows = scale + n, *work = rows + 2 * n, *inverse = work + n * n;
  double *dxi = m->slopes;
  if (l->simple && negligible(at.by_xi, at.by_xi_size, n * n, RANK_ROUNDINGS)) {
    memcpy(dxi, own, (size_t)(n * width) * sizeof(double));
  } else {
    if (!determines(at.by_xi, at.by_xi_size, n) || !invert(at.by_xi, n, scale, work, inverse)) return 0;
    if (!is_regular(at.by_xi, at.by_xi_size, l->simple ? 0 : own, inverse, scale, n, rows)) return 0;
    memset(dxi, 0, (size_t)(n * width) * sizeof(double));
    for (integer k = 0; k < width; k++)
      for (integer j = 0; j < n; j++)
        for (integer i = 0; i < n; i++) dxi[k * n + i] -= inverse[i * n + j] * (phi_w[k * n + j] / scale[j]);
  }
  for (integer k = 0; k < width; k++)
    for (integer q = c->jump.column[k]; q < c->jump.column[k + 1]; q++)
      for (integer j = 0; j < n; j++) c->jump.value[q] += through[j * nt + c->jump.row[q]] * dxi[k * n + j];
  return all_finite(c->jump.value, c->jump.column[width]);
}

/* Costs of an event, in `m->cost`, followed by their derivatives by (w, p, t); these include the dependence on solved
 * unknowns only after `differentiate_arrival`. */
static int charges_of(event_loop *m, const mode_tables *from, const link *l, double t, const double *x, const double *memory) {
  const integer nk = m->n_functionals, width = from->n_y + m->n_memory + m->n_parameters + 1;
  double *by = m->cost + nk, *by_xi = by + nk * width, *res[3] = {m->cost, by, by_xi};
  if (call(m, l->cost, l->numbers, t, x, memory, res, l->slopes ? 3 : 2)) return FATAL;
  for (integer k = 0; l->slopes && k < width; k++)
    for (integer j = 0; j < l->unknowns; j++)
      for (integer i = 0; i < nk; i++) by[k * nk + i] += by_xi[j * nk + i] * m->slopes[k * l->unknowns + j];
  return 0;
}

/* Find the derivatives of the times of measurements by p; returns whether they are finite. */
static int find_moves(event_loop *m, const double *x, const double *memory) {
  double *res[1] = {m->moved};
  return !m->measured || !m->moves || !call(m, m->moves, 0, m->t0, x, memory, res, 1);
}

/* Measured value at a point of a mode, in `cost`, and its derivatives by (w, p, t), those by p at the moving time; returns
 * whether they are finite. */
static int look_measured(event_loop *m, integer mode, integer which, double t, const double *x, const double *xdot,
                         const double *memory) {
  const measuring *own = m->measured + which;
  const integer ny = m->modes[mode].n_y, nw = ny + m->n_memory, np = m->n_parameters, width = nw + np + 1;
  double *res[2] = {m->cost, m->cost + own->count};
  m->xi = own->data;
  if (!own->of_mode[mode] || call(m, own->of_mode[mode], 0, t, x, memory, res, 2)) return 0;
  for (integer k = 0; m->moves && k < own->count; k++) {
    double *by = m->cost + own->count + k, rate = by[(width - 1) * own->count];
    for (integer j = 0; j < ny; j++) rate += by[j * own->count] * xdot[j];
    for (integer j = 0; j < np; j++) by[(nw + j) * own->count] += rate * m->moved[which * np + j];
  }
  return all_finite(m->cost, own->count * (m->certify ? 1 + width : 1));
}

/* Take a measurement at a point of the current mode, with its derivatives along the directions; returns whether this was
 * possible. */
static int take_measured(event_loop *m, integer which, double t, const double *x, const double *xdot, const double *memory) {
  const mode_tables *at = &m->modes[m->at];
  const run *r = at->run;
  const context *c = r->model;
  const integer nw = at->n_y + m->n_memory;
  if (!look_measured(m, m->at, which, t, x, xdot, memory)) return 0;
  const measuring *own = m->measured + which;
  const double *by = m->cost + own->count;
  for (integer k = 0; k < own->count; k++) m->taken[own->first + k] += m->cost[k];
  for (integer i = 0; i < m->n_directions; i++) {
    const double *s = c->api->array(r->sensitivities[i]), *dm = c->memory_directions + i * m->n_memory;
    const double *dp = m->directions + i * m->n_parameters;
    double *taken = m->taken_directions + i * m->n_functionals + own->first;
    for (integer j = 0; j < nw + m->n_parameters; j++) {
      const double along = j < at->n_y ? s[j] : j < nw ? dm[j - at->n_y] : dp[j - nw];
      for (integer k = 0; along != 0 && k < own->count; k++) taken[k] += by[j * own->count + k] * along;
    }
  }
  return 1;
}

/* Project directions before an event onto the constraints of its mode, */
static void land_directions(const event_loop *m, const mode_tables *from, const crossing *c, const event *e) {
  const integer nf = from->n_y + m->n_memory, nk = from->n_held;
  const sparse *dp = &from->run->model->moved;
  for (integer i = 0; i < m->n_directions; i++) {
    double *w = e->before + i * nf, *off = m->cost;
    for (integer k = 0; k < nk; k++) {
      off[k] = 0;
      for (integer j = 0; j < nf; j++) off[k] += c->held[j * nk + k] * w[j];
      for (integer q = dp->column[i]; q < dp->column[i + 1]; q++) off[k] += c->held[(nf + dp->row[q]) * nk + k] * dp->value[q];
    }
    for (integer k = 0; k < nk; k++)
      for (integer j = 0; j < from->n_y; j++) w[j] -= c->onto[k * from->n_y + j] * off[k];
  }
}

/* and apply the transpose to derivatives by (w, p). */
static void land_adjoint(const event_loop *m, const mode_tables *from, const crossing *c, double *by) {
  const integer count = from->n_y + m->n_memory + m->n_parameters, nk = from->n_held;
  double *weight = m->work;
  for (integer k = 0; k < nk; k++) {
    weight[k] = 0;
    for (integer j = 0; j < from->n_y; j++) weight[k] += by[j] * c->onto[k * from->n_y + j];
  }
  for (integer j = 0; j < count; j++)
    for (integer k = 0; k < nk; k++) by[j] -= weight[k] * c->held[j * nk + k];
}

/* Whether neighbouring runs satisfy the target constraints that the arrival does not solve; see
 * system/excess.py, `refuse_excess`. */
static int keeps_constraints(event_loop *m, const mode_tables *from, const link *l, const event *e, const crossing *c, double rate) {
  const integer nf = from->n_y + m->n_memory, width = nf + m->n_parameters + 1;
  double *row = m->cost, *size = row + width, largest = 0;
  for (integer j = 0; j < nf; j++) largest = fmax(largest, fabs(j < from->n_y ? e->x[j] : e->memory[j - from->n_y]));
  for (integer k = 0; k < l->others; k++) {
    double drift = 0, drift_size = 0, left = 0, most = 0;
    for (integer j = 0; j < width; j++) {
      row[j] = j < nf ? 0 : c->direct[(j - nf) * l->others + k];
      size[j] = fabs(row[j]);
      for (integer q = c->jump.column[j]; q < c->jump.column[j + 1]; q++) {
        const double term = c->by_after[c->jump.row[q] * l->others + k] * c->jump.value[q];
        row[j] += term, size[j] += fabs(term);
      }
      drift += row[j] * (j < nf ? c->flow[j] : j == width - 1), drift_size += size[j] * (j < nf ? fabs(c->flow[j]) : j == width - 1);
    }
    for (integer j = 0; j < width - 1; j++) row[j] -= drift * c->h[j] / rate, size[j] += drift_size * fabs(c->h[j] / rate);
    land_adjoint(m, from, c, row);
    for (integer j = 0; j < width - 1; j++) {
      double scale = fabs(j >= nf ? m->parameters[j - nf] : j < from->n_y ? e->x[j] : e->memory[j - from->n_y]);
      if (j < nf) scale = fmax(scale, LEAST_SHARE * largest);
      if (scale == 0) scale = 1;
      left = fmax(left, fabs(row[j] * scale)), most = fmax(most, size[j] * scale);
    }
    if (!(left <= EXCESS_TOLERANCE * most)) return 0;
  }
  return 1;
}
