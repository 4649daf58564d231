/* ---- the adjoint of explicit steps, and of native events -------------------------------------------------------
 *
 * The adjoint of a Runge-Kutta step is exactly a Runge-Kutta step backward: with x+ = x + h sum b_i K_i, K_i = F(Y_i),
 * Y_i = x + h sum a_ij K_j, and lambda = dG/dx+,
 *
 *     theta_i = h (b_i lambda + sum_j a_ji nu_j)      = dG/dK_i
 *     nu_i    = F_x(Y_i)^T theta_i + h b_i g_x(Y_i)   = dG/dY_i
 *     dG/dx   = lambda + sum nu_i,     dG/dp += sum F_p(Y_i)^T theta_i + h b_i g_p(Y_i)
 *
 * with the derivatives of y' = f(y, z(y)) if there are algebraic variables: then K has a theta as well,
 * -K_z^-T (f_z^T theta_i + h b_i g_z), and the formulas use F_x^T of all equations
 * (Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, II.6, differentiated and transposed; Sandu, On
 * the properties of Runge-Kutta discrete adjoints, 2006, eq. 7). No interpolation of the solution is needed, only its
 * points. The steps are those chosen for the state. If the adjoint varies faster, which the weights of the embedded
 * method show, the step is subdivided. */
#define SHAPES(c) {&(c)->f_x, &(c)->f_p, &(c)->f_m, &(c)->g_x, &(c)->g_p, &(c)->g_m}
#define COLUMNS(c) {(c)->n, (c)->n_parameters, (c)->n_memory, (c)->n_functionals, (c)->n_functionals, (c)->n_functionals}

/* the linearised equations at stage i, as stored in `values` */
static void at_stage(const explicit_adjoint *s, integer i, sparse *at) {
  context *c = s->model;
  const sparse *shape[BLOCKS] = SHAPES(c);
  const integer columns[BLOCKS] = COLUMNS(c);
  double *values = s->values + i * s->nonzeros;
  for (int b = 0; b < BLOCKS; values += shape[b]->column[columns[b]], b++) at[b] = *shape[b], at[b].value = values;
}

/* Whether transposed derivatives are computed as products; not possible for those of y' = f(y, z(y)). */
static int uses_products(const context *c) { return c->pullback && !c->solves; }

/* the linearised equations at every stage of a step, or the points and the common parts of products there */
static int linearise_stages(explicit_adjoint *s, double t, double h, const double *x) {
  context *c = s->model;
  const tableau *rk = &s->table;
  for (integer i = 0; i < rk->stages; i++) {
    sparse at[BLOCKS], *blocks[BLOCKS];
    const double *point, now = t + rk->c[i] * h;
    double *slope = s->slopes + i * c->n;
    if (uses_products(c)) {
      double *own = s->values + i * s->nonzeros;
      combine(x, h, rk->a + i * rk->stages, s->slopes, i, c->n, own);
      const int off = record_tape(c, now, own, slope, own + c->n);
      if (off) return off;
      continue;
    }
    at_stage(s, i, at);
    for (int b = 0; b < BLOCKS; b++) blocks[b] = &at[b];
    combine(x, h, rk->a + i * rk->stages, s->slopes, i, c->n, s->states);
    c->point_valid = 0;
    int flag = solved(c, now, s->states, &point);
    if (!flag) flag = evaluate_linearised(c, now, point, c->solves ? 0 : slope, blocks);
    if (!flag && c->solves) flag = rates_at(c, now, point, slope);
    if (flag) return flag;
  }
  return 0;
}

/* dot products with column j, for each of `lanes` interleaved vectors */
static void add_column_dots(const sparse *a, integer j, const double *v, integer lanes, double *out) {
  for (integer k = a->column[j]; k < a->column[j + 1]; k++)
    for (integer i = 0; i < lanes; i++) out[i] += a->value[k] * v[a->row[k] * lanes + i];
}

/* With solved algebraic variables: theta of their equations, chosen so that nu of these variables is zero. */
static int transpose_algebraic(const explicit_adjoint *s, const sparse *f_x, double *theta, double *nu) {
  const integer ny = s->model->n_differential, nz = s->model->n - ny, lanes = 2 * s->n_components;
  double matrix[MOST_SOLVED * MOST_SOLVED] = {0}, *mu = theta + ny * lanes;
  for (integer j = 0; j < nz; j++) {
    double *own = mu + j * lanes;
    for (integer e = 0; e < lanes; e++) own[e] = -nu[(ny + j) * lanes + e];
    for (integer k = f_x->column[ny + j]; k < f_x->column[ny + j + 1]; k++) {
      const integer row = f_x->row[k];
      if (row >= ny) matrix[j * nz + row - ny] += f_x->value[k];
      for (integer e = 0; row < ny && e < lanes; e++) own[e] -= f_x->value[k] * theta[row * lanes + e];
    }
  }
  memset(nu + ny * lanes, 0, (size_t)(nz * lanes) * sizeof(double));
  return solve_dense(matrix, mu, nz, lanes) ? 0 : RECOVERABLE;
}

/* All components backward through a step: dG/dx before it, and its contribution to the integrals, in `found`. Each has two
 * interleaved lanes, for the weights of the method and of the embedded method. */
static int transpose(const explicit_adjoint *s, double h) {
  context *c = s->model;
  const tableau *rk = &s->table;
  const integer n = c->n, stages = rk->stages, lanes = 2 * s->n_components;
  double *out = s->found, *totals = out + n * lanes, *nu = s->nu, *theta = s->theta;
  memset(totals, 0, (size_t)((c->n_wrt + c->n_memory) * lanes) * sizeof(double));
  for (integer i = stages - 1; i >= 0; i--) {
    const double weights[2] = {h * rk->b[i], h * rk->d[i]};
    double *own = nu + i * n * lanes;
    sparse at[BLOCKS];
    at_stage(s, i, at);
    for (integer k = 0; k < s->n_components; k++)
      for (integer j = 0; j < n; j++)
        for (integer e = 0; e < 2; e++) theta[j * lanes + 2 * k + e] = weights[e] * s->adjoint[k * n + j];
    for (integer l = i + 1; l < stages; l++) {
      const double factor = h * rk->a[l * stages + i], *later = nu + l * n * lanes;
      if (factor == 0) continue;
      for (integer j = 0; j < n * lanes; j++) theta[j] += factor * later[j];
    }
    memset(own, 0, (size_t)(n * lanes) * sizeof(double));
    for (integer k = 0; k < s->n_components; k++) {
      const integer component = s->components[k];
      for (integer e = 0; e < 2; e++) {
        const integer lane = 2 * k + e;
        for (integer q = at[3].column[component]; q < at[3].column[component + 1]; q++)
          own[at[3].row[q] * lanes + lane] += weights[e] * at[3].value[q];
        for (integer q = at[5].column[component]; q < at[5].column[component + 1]; q++)
          totals[(c->n_wrt + at[5].row[q]) * lanes + lane] += weights[e] * at[5].value[q];
      }
      if (at[4].column[component] == at[4].column[component + 1]) continue;
      memset(c->parameter_gradient, 0, (size_t)c->n_parameters * sizeof(double));
      scatter_column(&at[4], component, c->parameter_gradient);
      for (integer j = 0; j < c->n_wrt; j++)
        for (integer e = 0; e < 2; e++) totals[j * lanes + 2 * k + e] += weights[e] * c->parameter_gradient[c->wrt[j]];
    }
    if (c->solves && transpose_algebraic(s, &at[0], theta, own)) return RECOVERABLE;
    for (integer j = 0; j < c->n_differential; j++) add_column_dots(&at[0], j, theta, lanes, own + j * lanes);
    for (integer j = 0; j < c->n_wrt; j++) add_column_dots(&at[1], c->wrt[j], theta, lanes, totals + j * lanes);
    for (integer j = 0; j < c->n_memory; j++) add_column_dots(&at[2], j, theta, lanes, totals + (c->n_wrt + j) * lanes);
  }
  for (integer k = 0; k < s->n_components; k++)
    for (integer j = 0; j < n; j++)
      for (integer e = 0; e < 2; e++) out[j * lanes + 2 * k + e] = s->adjoint[k * n + j];
  for (integer i = 0; i < stages; i++)
    for (integer j = 0; j < n * lanes; j++) out[j] += nu[i * n * lanes + j];
  return 0;
}

/* `transpose` by products at the stage points, one per lane. */
static int transpose_by_products(const explicit_adjoint *s, double t, double h) {
  context *c = s->model;
  const tableau *rk = &s->table;
  const integer n = c->n, stages = rk->stages, lanes = 2 * s->n_components;
  for (integer lane = 0; lane < lanes; lane++) {
    const double *adjoint = s->adjoint + lane / 2 * n;
    double *nu = s->nu + lane * stages * n, *out = s->found + lane;
    for (integer i = stages - 1; i >= 0; i--) {
      const double weight = h * (lane % 2 ? rk->d[i] : rk->b[i]), *point = s->values + i * s->nonzeros;
      for (integer j = 0; j < n; j++) s->theta[j] = weight * adjoint[j];
      for (integer l = i + 1; l < stages; l++)
        for (integer j = 0; j < n; j++) s->theta[j] += h * rk->a[l * stages + i] * nu[l * n + j];
      double *product = s->products + i * c->n_product;
      const int flag = pull_back(c, t + rk->c[i] * h, point, point + n, s->theta, s->components[lane / 2], weight, product);
      if (flag) return flag;
      memcpy(nu + i * n, product, (size_t)n * sizeof(double));
    }
    if (sum_parts(c, s->products, stages, s->sum)) return RECOVERABLE;
    for (integer j = 0; j < n; j++) {
      double total = adjoint[j];
      for (integer i = 0; i < stages; i++) total += nu[i * n + j];
      out[j * lanes] = total;
    }
    out += n * lanes;
    for (integer j = 0; j < c->n_wrt; j++) out[j * lanes] = s->sum[c->wrt[j]];
    out += c->n_wrt * lanes;
    for (integer j = 0; j < c->n_memory; j++) out[j * lanes] = s->sum[c->n_parameters + j];
  }
  return 0;
}

/* Whether the results of both sets of weights agree to the tolerances. */
static int is_resolved(const explicit_adjoint *s, integer k) {
  const context *c = s->model;
  const integer n = c->n, n_totals = c->n_wrt + c->n_memory, lanes = 2 * s->n_components;
  const double *absolute = s->absolute + k * n, *of_totals = s->absolute_totals + k * n_totals;
  const double *one = s->found + 2 * k, *totals = s->totals + k * n_totals;
  for (integer j = 0; j < n; j++, one += lanes)
    if (!(fabs(one[0] - one[1]) <= ALLOWED * (absolute[j] + s->rtol * fabs(one[0])))) return 0;
  for (integer j = 0; j < n_totals; j++, one += lanes)
    if (!(fabs(one[0] - one[1]) <= ALLOWED * (of_totals[j] + s->rtol * fabs(totals[j])))) return 0;
  return 1;
}

/* All components backward through a step; subdivided if it resolves the state but not the adjoint. */
static int back_step(explicit_adjoint *s, double t, double h, const double *x, integer depth) {
  context *c = s->model;
  const tableau *rk = &s->table;
  const integer n = c->n, n_totals = c->n_wrt + c->n_memory, lanes = 2 * s->n_components;
  double *middle = s->middle + depth * n;
  int flag = linearise_stages(s, t, h, x), resolved = 1;
  if (flag) return flag;
  s->steps++;
  if (uses_products(c) ? transpose_by_products(s, t, h) : transpose(s, h)) return RECOVERABLE;
  for (integer k = 0; resolved && k < s->n_components; k++) resolved = is_resolved(s, k);
  if (resolved) {
    for (integer k = 0; k < s->n_components; k++) {
      const double *found = s->found + 2 * k;
      for (integer j = 0; j < n; j++, found += lanes) s->adjoint[k * n + j] = *found;
      for (integer j = 0; j < n_totals; j++, found += lanes) s->totals[k * n_totals + j] += *found;
    }
    return 0;
  }
  if (!depth || s->steps >= s->max_steps) return UNRESOLVED;
  for (integer i = 0; i < rk->stages; i++) {
    combine(x, h / 2, rk->a + i * rk->stages, s->slopes, i, n, s->states);
    flag = rates_of(c, t + rk->c[i] * h / 2, s->states, s->slopes + i * n);
    if (flag) return flag;
  }
  combine(x, h / 2, rk->b, s->slopes, rk->stages, n, middle);
  flag = back_step(s, t + h / 2, h / 2, middle, depth - 1);
  return flag ? flag : back_step(s, t, h / 2, x, depth - 1);
}

/* From the end of a path to its start. */
int dh_back_steps(explicit_adjoint *s) {
  for (integer i = s->n_rows - 2; i >= 0; i--) {
    const double *from = s->path + i * s->width, *to = from + s->width;
    if (to[1] == 0) continue; /* the start of a segment */
    const int flag = back_step(s, from[0], to[1], from + POINT_COLUMNS, PARTS);
    if (flag) return flag;
  }
  return 0;
}

/* Map L = dG/d(y, m) from after an event to before it, and add to dG/dp; see system/transition_map.py */
static int back_across(sweep *s, const mode_tables *from, const mode_tables *to, const link *l, double t, double count, const event *e) {
  event_loop *m = s->tables;
  const integer nf = from->n_y + m->n_memory, nt = to->n_y + m->n_memory, np = m->n_parameters, width = nf + np + 1;
  crossing found;
  double *before = s->work, *drift = before + width - 1, *drift_size = drift + nt;
  m->clock[1] = count;
  if (!differentiate_arrival(m, from, to, l, t, e->x, e, &found)) return FATAL;
  const double *h = found.h, *flow = found.flow, *g = found.g, *flow_after = found.flow_after, *g_after = found.g_after;
  const sparse *jump = &found.jump;
  const integer nk = m->n_functionals;
  const double *by = m->cost + nk;
  if (l->cost && charges_of(m, from, l, t, e->x, e->memory)) return FATAL;
  double rate = h[width - 1];
  for (integer j = 0; j < nf; j++) rate += h[j] * flow[j];
  for (integer i = 0; i < nt; i++) drift[i] = -flow_after[i], drift_size[i] = fabs(flow_after[i]);
  for (integer j = 0; j < width; j++) {
    const double along = j < nf ? flow[j] : j == width - 1;
    for (integer q = jump->column[j]; along != 0 && q < jump->column[j + 1]; q++)
      drift[jump->row[q]] += jump->value[q] * along, drift_size[jump->row[q]] += fabs(jump->value[q] * along);
  }
  for (integer k = 0; k < s->n_components; k++) {
    double *after = s->adjoint + k * s->marks_width, *totals = s->totals + k * s->n_wrt;
    const double at_event = g[s->components[k]] - g_after[s->components[k]];
    double c = at_event, size = fabs(g[s->components[k]]) + fabs(g_after[s->components[k]]);
    for (integer i = 0; i < nt; i++) c += after[i] * drift[i], size += fabs(after[i]) * drift_size[i];
    if (l->cost) {
      c += by[(width - 1) * nk + s->components[k]];
      for (integer j = 0; j < nf; j++) c += by[j * nk + s->components[k]] * flow[j];
    }
    if (fabs(c) <= DRIFT_ROUNDINGS * DBL_EPSILON * size) c = 0; /* rates and integrand are continuous */
    for (integer j = 0; j < width - 1; j++) {
      before[j] = (l->cost ? by[j * nk + s->components[k]] : 0) - c / rate * h[j] + column_dot(jump, j, after);
    }
    land_adjoint(m, from, &found, before);
    for (integer j = 0; j < s->n_wrt; j++) totals[j] += before[nf + s->wrt[j]];
    memcpy(after, before, (size_t)nf * sizeof(double));
  }
  return 0;
}

/* Add the derivatives by (w, p, t) of a measurement, with `count` components of the functionals from `first`, to an adjoint
 * and to dG/dp. */
static void add_measured(const sweep *s, integer nw, integer first, integer count, integer stride, const double *by) {
  for (integer k = 0; k < s->n_components; k++) {
    const integer own = s->components[k] - first;
    if (own < 0 || own >= count) continue;
    for (integer j = 0; j < nw; j++) s->adjoint[k * s->marks_width + j] += by[j * stride + own];
    for (integer j = 0; j < s->n_wrt; j++) s->totals[k * s->n_wrt + j] += by[(nw + s->wrt[j]) * stride + own];
  }
}

/* Longest backward steps that start within each step of a path; see port/segment_rules.py */
static void longest_steps(const double *path, integer rows, integer width, double *out) {
  const double begin = path[0] - path[1];
  integer growth = 0;
  if (rows < 3) {
    for (integer i = 0; i < rows; i++) out[i] = HUGE_VAL;
    return;
  }
#define END_OF(i) path[(i) * width]
  for (integer i = 0; i < rows; i++) out[i] = END_OF(i) - (i ? END_OF(i - 1) : begin);
  out[rows - 1] = fmax(out[rows - 1], out[rows - 2]); /* shortened by the end */
  while (growth < rows - 1 && out[growth + 1] >= LONGER * out[growth]) growth++;
  for (integer i = 0; i < growth; i++) out[i] = out[growth]; /* initial steps are short for any equations */
  double least = HUGE_VAL;
  for (integer i = 0; i < rows; i++) {
    const double half = (END_OF(i) - begin) / 2;
    least = fmin(least, LONGER * out[i] - half);
    out[i] = half + least;
  }
#undef END_OF
}

static double rounded(double value, double factor) {
  int exponent;
  const double mantissa = frexp(value, &exponent);
  return ldexp(rint(mantissa * factor) / factor, exponent);
}

/* (lambda, mu) and the rates of lambda at a point, from lambda: SR eq. 36 */
static int make_consistent(context *c, double t, const double *point, double *adjoint, double *rates) {
  const integer ny = c->n_differential, nz = c->n - ny, component = c->component;
  double matrix[MOST_SOLVED * MOST_SOLVED] = {0}, g_x[MOST_SOLVED] = {0};
  if (nz > MOST_SOLVED || linearise(c, t, point)) return FATAL;
  for (integer k = c->g_x.column[component]; k < c->g_x.column[component + 1]; k++)
    if (c->g_x.row[k] >= ny) g_x[c->g_x.row[k] - ny] = c->g_x.value[k];
  for (integer j = 0; j < nz; j++) {
    double *mu = adjoint + ny + j;
    *mu = -g_x[j];
    for (integer k = c->f_x.column[ny + j]; k < c->f_x.column[ny + j + 1]; k++) {
      const integer row = c->f_x.row[k];
      if (row < ny) *mu -= c->f_x.value[k] * adjoint[row];
      else matrix[j * nz + row - ny] += c->f_x.value[k];
    }
  }
  if (!solve_dense(matrix, adjoint + ny, nz, 1)) return FATAL;
  memset(rates, 0, (size_t)(c->n + 1) * sizeof(double));
  scatter_column(&c->g_x, component, rates);
  for (integer j = 0; j < ny; j++) rates[j] = -(rates[j] + column_dot(&c->f_x, j, adjoint));
  memset(rates + ny, 0, (size_t)nz * sizeof(double));
  return all_finite(adjoint, c->n) && all_finite(rates, ny) ? 0 : FATAL;
}

/* One component backward through a segment that ends at a point, by integration along the polynomials of its steps. */
static int integrate_back(sweep *s, backward *b, double t1, double t0, const double *path, integer rows,
                          const double *point, double *adjoint, double *totals) {
  context *c = b->model;
  double *x = c->api->array(b->x), *integrals = c->api->array(b->integrals), at = 0;
  const integer count = c->n_wrt + c->n_memory;
  if (fabs(t1 - t0) <= SHORTEST * DBL_EPSILON * fmax(fabs(t0), fabs(t1))) return 0;
  c->path = path, c->path_rows = rows, c->path_row = rows - 1;
  c->point_valid = c->interpolated_valid = c->held_valid = 0;
  for (integer j = 0; j < c->n_differential; j++) x[j] = rounded(adjoint[j], s->precision);
  x[c->n] = 0;
  longest_steps(path, rows, c->path_width, s->longest);
  if (b->implicit && make_consistent(c, t1, point, x, c->api->array(b->xdot))) return FATAL;
  memset(integrals, 0, (size_t)count * sizeof(double));
  b->t = t1, b->t_stop = t0, b->n_eval = 0;
  const int flag = dh_begin_back(b);
  if (flag) return flag;
  b->longest = s->longest;
  b->budget = s->max_steps - s->steps;
  const int status = dh_back(b);
  s->steps += b->steps;
  if (status != REACHED_STOP) return status < 0 ? status : FATAL;
  if (count && c->api->get_quad(b->memory, &at, b->integrals)) return FATAL;
  memcpy(adjoint, x, (size_t)c->n_differential * sizeof(double));
  for (integer j = 0; j < count; j++) totals[j] = integrals[j];
  return 0;
}

/* first path row of the segment before an event: where the mode's previous segment ended */
static integer path_begin(const sweep *s, integer i) {
  const double mode = s->records[s->offsets[i] + MODE_AT];
  for (integer j = i - 1; j >= 0; j--)
    if (s->records[s->offsets[j] + MODE_AT] == mode) return (integer)s->records[s->offsets[j] + PATH_END_AT];
  return 0;
}

/* Add contributions, n_components x (marks_width + n_wrt), to dG/dw and dG/dp. */
static void add_gained(const sweep *s, const double *gained, integer n_w) {
  for (integer k = 0; k < s->n_components; k++, gained += s->marks_width + s->n_wrt) {
    for (integer j = 0; j < n_w; j++) s->adjoint[k * s->marks_width + j] += gained[j];
    for (integer j = 0; j < s->n_wrt; j++) s->totals[k * s->n_wrt + j] += gained[s->marks_width + j];
  }
}

/* Sweep backward through every event of a record table and the segment before it. */
int dh_sweep(sweep *s) {
  event_loop *m = s->tables;
  integer measured = s->n_measured;
  for (integer i = s->n_events - 1; i >= 0; i--) {
    double *record = s->records + s->offsets[i];
    s->failed = i;
    const integer mode = (integer)record[MODE_AT];
    const mode_tables *from = &m->modes[mode];
    const link *l = &from->links[(integer)record[GUARD_AT]];
    const mode_tables *to = &m->modes[l->target];
    event e;
    lay_out(m, from, to, record, &e);
    const integer row = s->marks_width + s->n_wrt;
    int flag = 0;
    if (l->measures && m->measured) {
      const integer which = (integer)record[COUNT_AT];
      const measuring *taken = m->measured + which;
      if (!look_measured(m, mode, which, record[TIME_AT], e.x, e.xdot, e.memory)) return FATAL;
      add_measured(s, from->n_y + m->n_memory, taken->first, taken->count, taken->count, m->cost + taken->count);
    } else if (l->measures) {
      add_gained(s, s->measured + --measured * s->n_components * row, from->n_y + m->n_memory);
    } else if (!l->turns) {
      const integer side = s->sided ? s->sided[i] : -1;
      const double *gained = side < 0 ? NULL : s->sides + 2 * side * s->n_components * row;
      if (gained) add_gained(s, gained, to->n_y + m->n_memory);
      flag = back_across(s, from, to, l, record[TIME_AT], record[COUNT_AT], &e);
      if (gained && !flag) add_gained(s, gained + s->n_components * row, from->n_y + m->n_memory);
    }
    if (flag) return flag;
    double *mark = s->marks + i * s->n_components * (s->marks_width + s->n_wrt);
    for (integer k = 0; s->marks && k < s->n_components; k++, mark += row) {
      memcpy(mark, s->adjoint + k * s->marks_width, (size_t)(from->n_y + m->n_memory) * sizeof(double));
      memcpy(mark + s->marks_width, s->totals + k * s->n_wrt, (size_t)s->n_wrt * sizeof(double));
    }
    for (integer k = 0; l->turns && k < s->n_components; k++)
      for (integer j = 0; j < m->n_entries; j++) s->adjoint[k * s->marks_width + from->n_y + m->entries[j]] = 0;
    explicit_adjoint *own = s->modes[mode];
    const integer n_totals = s->n_wrt + m->n_memory, begin = path_begin(s, i);
    const integer rows = (integer)record[PATH_END_AT] - begin;
    const double since = i ? s->records[s->offsets[i - 1] + TIME_AT] : s->begin;
    for (integer k = 0; !own && k < s->n_components; k++) {
      backward *b = s->integrated[mode * s->n_components + k];
      double *adjoint = s->adjoint + k * s->marks_width, *gained = s->work;
      memcpy(b->model->memory, e.memory, (size_t)m->n_memory * sizeof(double));
      memset(gained, 0, (size_t)n_totals * sizeof(double));
      flag = integrate_back(s, b, record[TIME_AT], since, s->paths[mode] + begin * b->model->path_width, rows, e.x, adjoint,
                            gained);
      if (flag) return flag;
      for (integer j = 0; j < m->n_memory; j++) adjoint[from->n_y + j] += gained[s->n_wrt + j];
      for (integer j = 0; j < s->n_wrt; j++) s->totals[k * s->n_wrt + j] += gained[j];
    }
    if (!own) continue;
    context *c = own->model;
    memcpy(c->memory, e.memory, (size_t)m->n_memory * sizeof(double));
    c->point_valid = c->held_valid = 0;
    own->path = s->paths[mode] + begin * own->width;
    own->n_rows = rows;
    memset(own->totals, 0, (size_t)(s->n_components * n_totals) * sizeof(double));
    for (integer k = 0; k < s->n_components; k++)
      memcpy(own->adjoint + k * c->n, s->adjoint + k * s->marks_width, (size_t)from->n_y * sizeof(double));
    flag = dh_back_steps(own);
    if (flag) return flag;
    for (integer k = 0; k < s->n_components; k++) {
      double *adjoint = s->adjoint + k * s->marks_width, *totals = own->totals + k * n_totals;
      memcpy(adjoint, own->adjoint + k * c->n, (size_t)from->n_y * sizeof(double));
      for (integer j = 0; j < m->n_memory; j++) adjoint[from->n_y + j] += totals[s->n_wrt + j];
      for (integer j = 0; j < s->n_wrt; j++) s->totals[k * s->n_wrt + j] += totals[j];
    }
  }
  return 0;
}
