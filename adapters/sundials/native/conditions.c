/* ---- conditions of derivatives, checked by numbers --------------------------------------------------------------------
 *
 * The checks that a single call makes after a run (conditions/certify.py and its callees), in a stricter and cheaper
 * form: a run that may need a closer check is left to a single call. Nothing here refuses a gradient, or accepts one
 * that a single call would refuse. */
/* Note why a run is left to a single call. */
static int leave(const batch *b, int reason, integer transition) {
  b->reasons[2 * b->next] = reason;
  b->reasons[2 * b->next + 1] = transition;
  return 0;
}

/* A segment's rows; the last segment has no record. */
typedef struct {
  integer mode, row, row_end;
  double end;
  const double *memory;
} stretch;

static event part_of(const event_loop *m, integer i, const mode_tables **from) {
  double *record = m->records + m->offsets[i];
  event e;
  *from = &m->modes[(integer)record[MODE_AT]];
  lay_out(m, *from, &m->modes[(*from)->links[(integer)record[GUARD_AT]].target], record, &e);
  return e;
}

/* The segment that ends with event i, or the last one. */
static stretch stretch_of(const event_loop *m, integer i) {
  if (i == m->n_events) {
    const run *r = m->modes[m->at].run;
    const stretch last = {m->at, m->row, r->n_rows, r->t, r->model->memory};
    return last;
  }
  const double *record = m->records + m->offsets[i];
  const mode_tables *from;
  const event e = part_of(m, i, &from);
  const stretch own = {(integer)record[MODE_AT], (integer)record[ROW_AT], (integer)record[ROW_END_AT], record[TIME_AT], e.memory};
  return own;
}

/* Derivatives of a guard by (y, m, p, t) at a point; null if there is no function for them. */
static const double *guard_derivatives(event_loop *m, const link *l, double t, const double *x, const double *memory) {
  double *res[13] = {m->tangent};
  m->xi = 0; /* guards do not depend on unknowns */
  return l->tangent && !call(m, l->tangent, l->numbers, t, x, memory, res, 13) ? m->tangent : 0;
}

/* Accuracy of a guard, from the tolerances of the states. */
static double guard_accuracy(const event_loop *m, const mode_tables *at, const double *by_y, const double *y) {
  double sum = 0;
  for (integer j = 0; j < at->n_y; j++) sum += fabs(by_y[j]) * (at->absolute[j] + m->rtol * fabs(y[j]));
  return sum;
}

/* Guards at the start: whether none is at or near zero, so that a neighbouring run may or may not meet it
 * (`RunInspector.moving_at_start`, `RunInspector.near` in conditions/instants.py). */
static int starts_clear(const batch *b) {
  const native_run *v = b->run;
  event_loop *m = v->tables;
  const mode_tables *first = v->modes + v->mode;
  const integer nx = first->n_x, ng = first->n_guards, nw = first->n_y + m->n_memory;
  const double *memory = v->start + nx, *h = memory + m->n_memory + nx, *rate = h + ng, *size = rate + ng, *by_p = size + ng;
  const double least = not_far(first);
  for (integer i = 0; i < ng; i++) {
    const link *l = &first->links[i];
    const int meets = (double)l->direction * rate[i] >= 0 || !l->waits;
    const int at_zero = fabs(h[i]) <= band_of(m, h[i], size[i], rate[i], m->t0);
    if (!meets || !(at_zero || fabs(h[i]) <= CLOSE_TO_ZERO * size[i] + least)) continue;
    const double *by = guard_derivatives(m, l, m->t0, v->start, memory);
    if (!by) return 0;
    const double known = guard_accuracy(m, first, by, v->start) + m->rtol * fabs(m->t0) * fabs(rate[i]);
    if (!at_zero) {
      if (fabs(h[i]) <= WIDEST * known && rate[i] != 0) return 0;
      continue;
    }
    for (integer k = 0; k < m->n_parameters; k++) {
      if (by[nw + k] != 0) return 0;
      for (integer j = 0; j < nw; j++)
        if (by[j] * by_p[k * nw + j] != 0) return 0;
    }
  }
  return 1;
}

static const link *link_of(const event_loop *m, integer i) {
  const double *record = m->records + m->offsets[i];
  return &m->modes[(integer)record[MODE_AT]].links[(integer)record[GUARD_AT]];
}

/* Whether the order of two events close to each other is given: neither moves with the parameters, or both are ticks of one
 * clock, or transitions at one time, which `moves_along` has compared. */
static int is_given(const link *one, const link *two, int at_once) {
  return (one->fixed && two->fixed) || (one->clock >= 0 && two->clock >= 0 && (at_once || one->clock == two->clock));
}

/* Whether an event, or the end if there is none, is close to another due time in a mode; coincident due times
 * are part of the event. Measurements may be close to events. Given times do not move against each other. */
static int is_beside_alarm(const event_loop *m, integer mode, double t, double near, const link *event) {
  const alarms *own = &m->schedule[mode];
  integer low = 0, high = own->n;
  while (low < high) {
    const integer middle = (low + high) / 2;
    if (own->times[middle] < t - near) low = middle + 1;
    else high = middle;
  }
  for (; low < own->n && own->times[low] <= t + near; low++) {
    const link *other = &m->modes[mode].links[own->links[low]];
    if (event ? is_given(event, other, own->times[low] == t) : other->fixed) continue;
    if (stays(other) ? event != 0 : own->times[low] != t) return 1;
  }
  return 0;
}

/* Whether no event is close to another event, to another given time or to the end, and no guard is about to cross at the end
 * (`RunInspector.is_sure`, `RunInspector.coming`); guards at rest at the end have been found by `arrive`. */
static int stands_apart(const batch *b) {
  const native_run *v = b->run;
  const event_loop *m = v->tables;
  const mode_tables *last = v->modes + m->at;
  const double *h = v->end + 2 * last->n_x, *rate = h + last->n_guards, *size = rate + last->n_guards, t = m->modes[m->at].run->t;
  double before = -HUGE_VAL, near_before = 0;
  const link *earlier = 0;
  for (integer i = 0; i < m->n_events; i++) {
    const double own = m->records[m->offsets[i]], near = WIDEST * m->rtol * elapsed(m, own);
    const link *l = link_of(m, i);
    if (stays(l)) continue;
    if (earlier && !is_given(earlier, l, own == before) && !(own - before > fmax(near, near_before))) return 0;
    if (!l->fixed && !(m->t_end - own > near)) return 0;
    for (integer k = 0; k < v->n_modes; k++)
      if (is_beside_alarm(m, k, own, near, l)) return 0;
    before = own, near_before = near, earlier = l;
  }
  if (is_beside_alarm(m, m->at, t, WIDEST * m->rtol * elapsed(m, t), 0)) return 0;
  for (integer j = 0; j < last->n_guards; j++)
    if (fabs(h[j]) <= ONE_INSTANT * m->rtol * elapsed(m, t) * fabs(rate[j]) + CLOSE_TO_ZERO * size[j]) return 0;
  return 1;
}

/* Upper bound on the decay rate of perturbations of the states, by a norm of their Jacobian; explicit equations. */
static double fastest(context *c, double t, const double *x, double *memory) {
  const sparse *a = &c->state_jacobian;
  double *own = c->memory;
  if (c->n > c->n_differential) return HUGE_VAL;
  c->res[0] = a->value;
  c->res[1] = c->integrand_jacobian.value;
  c->memory = memory;
  c->held_valid = 0;
  const int flag = evaluate(c, c->jacobian, t, x);
  c->memory = own;
  c->held_valid = 0;
  return flag || !all_finite(a->value, a->column[c->n]) ? HUGE_VAL : column_norm(a, c->n);
}

/* Whether sampled event times of every transition have the requested accuracy (trajectory/event_accuracy.py). */
static int times_known(const batch *b) {
  const native_run *v = b->run;
  event_loop *m = v->tables;
  integer *count = b->events, *seen = count + v->n_transitions;
  const double span = m->modes[m->at].run->t - m->t0;
  const mode_tables *from;
  memset(b->events, 0, (size_t)(2 * v->n_transitions) * sizeof(integer));
  for (integer i = 0; i < m->n_events; i++)
    if (!stays(link_of(m, i))) count[link_of(m, i)->transition]++;
  for (integer i = 0; i < m->n_events; i++) {
    const link *l = link_of(m, i);
    if (stays(l)) continue;
    const event e = part_of(m, i, &from);
    const integer own = seen[l->transition]++, most = count[l->transition] - 1;
    int chosen = 0;
    for (integer k = 0; k < LOOKED_AT; k++) chosen |= own == most * k / (LOOKED_AT - 1);
    if (!chosen || l->clock >= 0) continue;
    const double *head = m->records + m->offsets[i], rate = fabs(head[RATE_AT]), scale = head[RATE_SCALE_AT];
    const double *by = guard_derivatives(m, l, head[TIME_AT], e.x, e.memory);
    if (!by) return 0;
    const double known = 0 < scale && scale <= UNSEEN * rate ? rate : scale, accuracy = guard_accuracy(m, from, by, e.x);
    const double asked = AMPLIFIED * m->rtol * span;
    if (accuracy <= asked * fmin(rate, known)) continue;
    if (!(accuracy <= asked * rate) || !(accuracy * fastest(from->run->model, head[TIME_AT], e.x, e.memory) <= rate)) return 0;
  }
  return 1;
}

/* Steps of the segment that ends with event i, or of the last one: t and, from column `first`, the states. `before`
 * is the start of its path. Null if they are not recorded. */
static const double *steps_of(const event_loop *m, integer i, integer before, integer *count, integer *width, integer *first) {
  const stretch own = stretch_of(m, i);
  const run *r = m->modes[own.mode].run;
  const integer end = i < m->n_events ? (integer)m->records[m->offsets[i] + PATH_END_AT] : r->n_path;
  *count = r->path ? end - before : own.row_end - own.row;
  *width = r->path ? r->path_width : r->width;
  *first = !r->path ? 1 : r->step ? POINT_COLUMNS : DENSE_COLUMNS;
  if (r->path) return r->path + before * r->path_width;
  return r->n_eval ? 0 : r->rows + own.row * r->width;
}

/* Whether no segment may contain a passage fast enough to lose digits: by the ratio of the largest to the smallest speed,
 * which bounds that of any passage (simulation/passages.py). */
static int no_fast_passage(const batch *b) {
  const native_run *v = b->run;
  const event_loop *m = v->tables;
  if (m->steps + m->modes[m->at].run->steps < b->fewest_steps) return 1;
  memset(b->begins, 0, (size_t)v->n_modes * sizeof(integer));
  for (integer i = 0; i <= m->n_events; i++) {
    const integer mode = stretch_of(m, i).mode, ny = m->modes[mode].n_y;
    integer count, width, first;
    const double *rows = steps_of(m, i, b->begins[mode], &count, &width, &first);
    double most = 0, least = HUGE_VAL;
    if (!rows) return 0;
    b->begins[mode] += count;
    if (count < b->fewest_steps) continue;
    for (integer j = 0; j < ny; j++) {
      double size = 0;
      for (integer k = 0; k < count; k++) size = fmax(size, fabs(rows[k * width + first + j]));
      b->largest[j] = size > 0 ? size : 1;
    }
    const double length = rows[(count - 1) * width] - rows[0], latest = fmax(fabs(rows[0]), fabs(rows[(count - 1) * width]));
    for (integer k = 1; k < count; k++) {
      const double *row = rows + k * width, dt = row[0] - row[-width];
      double speed = 0;
      if (!(dt > 0)) continue;
      for (integer j = first; j < first + ny; j++) speed = fmax(speed, fabs(row[j] - row[j - width]) / b->largest[j - first] / dt);
      speed = fmax(speed, 1 / length);
      most = fmax(most, speed), least = fmin(least, speed);
    }
    const double rounding = 2 * DBL_EPSILON * latest * most * (double)count;
    if (most > 0 && !(2 * fmax(m->rtol, rounding) * (most / least) <= DIGITS_LOST)) return 0;
  }
  return 1;
}

/* Lower bounds of the largest values of the last mode's variables, from the recorded rows. */
static void find_largest(const batch *b) {
  const native_run *v = b->run;
  const event_loop *m = v->tables;
  const mode_tables *last = v->modes + m->at, *from;
  for (integer j = 0; j < last->n_x; j++) b->largest[j] = fabs(v->end[j]);
  for (integer i = 0; i <= m->n_events; i++) {
    const stretch own = stretch_of(m, i);
    const run *r = m->modes[own.mode].run;
    if (own.mode != m->at) continue;
    for (integer k = own.row; k < own.row_end; k++)
      for (integer j = 0; j < r->model->n; j++) b->largest[j] = fmax(b->largest[j], fabs(r->rows[k * r->width + 1 + j]));
    if (i == m->n_events) continue;
    const event e = part_of(m, i, &from);
    for (integer j = 0; j < last->n_x; j++) b->largest[j] = fmax(b->largest[j], fabs(e.x[j]));
  }
}

/* Whether doubling a parameter changes no functional by much more than its terms (conditions/amplification.py). */
static int is_moderate(const batch *b, const double *values, const double *gradients) {
  const native_run *v = b->run;
  const event_loop *m = v->tables;
  int known = 0;
  for (integer k = 0; k < b->n_components; k++) {
    const integer own = b->components[k];
    const double least = fmax(fabs(values[own]), b->absolute[own]);
    double change = 0;
    for (integer j = 0; j < b->n_wrt; j++) {
      const double p = m->parameters[b->wrt[j]];
      change = fmax(change, fabs(gradients[k * b->n_wrt + j]) * (p != 0 ? fabs(p) : 1));
    }
    if (change <= GROWN_LARGE * least) continue;
    double terminal = 0; /* it may vanish by chance */
    if (!known) find_largest(b), known = 1;
    for (integer j = 0; j < v->modes[m->at].n_x; j++) terminal += fabs(v->by_u[j * m->n_functionals + own]) * b->largest[j];
    if (!(change <= GROWN_LARGE * terminal)) return 0;
  }
  return 1;
}

static void note_sizes(const event_loop *m, const mode_tables *at, const double *x, const double *s, integer stride,
                       double *of_states, double *found) {
  for (integer j = 0; j < at->n_y; j++) *of_states = fmax(*of_states, fabs(x[j]) / at->absolute[j]);
  for (integer i = 0; i < m->n_directions; i++)
    for (integer j = 0; j < at->n_y; j++) found[i] = fmax(found[i], fabs(s[i * stride + j]) / at->absolute[j]);
}

/* Whether sensitivities are well above their absolute tolerances, so that no finer tolerances are needed
 * (conditions/resolution.py). */
static int is_resolved_well(const batch *b) {
  const native_run *v = b->run;
  const event_loop *m = v->tables;
  const mode_tables *last = v->modes + m->at;
  const run *r = m->modes[m->at].run;
  const integer d = m->n_directions;
  double of_states = 0, *found = b->found;
  int enough = 1;
#define ARBITRARY(i) (m->parameters[b->wrt[i]] == 0)
  for (integer i = 0; i < d; i++) {
    const double *s = r->model->api->array(r->sensitivities[i]);
    found[i] = 0;
    for (integer j = 0; j < last->n_y; j++) found[i] = fmax(found[i], fabs(s[j]) / last->absolute[j]);
    for (integer k = 0; k < m->n_integrals; k++)
      if (b->integrated[k]) found[i] = fmax(found[i], fabs(s[r->model->n + k]) / b->absolute[k]);
    enough &= found[i] * b->scales[i] >= (ARBITRARY(i) ? 1 : RESOLVED) / m->rtol;
  }
  if (enough) return 1;
  for (integer i = 0; i <= m->n_events; i++) {
    const stretch own = stretch_of(m, i);
    const mode_tables *at = m->modes + own.mode, *from;
    const integer n = at->run->model->n, width = at->run->width;
    for (integer k = own.row; k < own.row_end; k++) {
      const double *row = at->run->rows + k * width;
      note_sizes(m, at, row + 1, row + 1 + n, n, &of_states, found);
    }
    if (i == m->n_events || !r->n_eval || stays(link_of(m, i))) continue;
    const event e = part_of(m, i, &from);
    const mode_tables *to = &m->modes[link_of(m, i)->target];
    note_sizes(m, from, e.x, e.before, from->n_y + m->n_memory, &of_states, found);
    note_sizes(m, to, e.x_after, e.after, to->n_y + m->n_memory, &of_states, found);
  }
  for (integer i = 0; i < d; i++) {
    double least = (ARBITRARY(i) ? 1 : RESOLVED) / m->rtol;
    if (!ARBITRARY(i) && of_states > CLEAR_STATES) least = fmin(least, RESOLVED_DIGITS);
    const double size = found[i] * b->scales[i];
    if (size > 0 && !(size >= least * (1 + 1e-9))) return 0;
  }
#undef ARBITRARY
  return 1;
}

/* The margins of the relations in the condition of an event; null if they are not finite. Their derivatives follow. */
static const double *margins_of(event_loop *m, const link *l, const mode_tables *from, const event *e, double t) {
  const integer width = 1 + from->n_x + m->n_memory + m->n_parameters;
  double *res[2] = {m->tangent, m->tangent + l->n_sides};
  m->xi = 0;
  if (call(m, l->sides, l->numbers, t, e->x, e->memory, res, 2)) return 0;
  return all_finite(m->tangent, l->n_sides * (1 + width)) ? m->tangent : 0;
}

/* Whether the accuracy of a run decides the relations in the condition of event i (`Branches.undecided`). */
static int is_decided(event_loop *m, integer i) {
  const mode_tables *from;
  const link *l = link_of(m, i);
  const event e = part_of(m, i, &from);
  const double t = m->records[m->offsets[i]], *margin = margins_of(m, l, from, &e, t);
  const integer n = l->n_sides, nx = from->n_x, nm = m->n_memory;
  if (!margin) return 0;
  for (integer k = 0; k < n; k++) {
    const double *by = margin + n + k; /* by column */
    double tolerance = l->clock < 0 ? fabs(*by) * m->rtol * elapsed(m, t) : 0, size = fabs(*by * t);
    by += n;
    for (integer j = 0; j < nx; j++, by += n) {
      tolerance += fabs(*by) * (from->absolute[j] + m->rtol * fabs(e.x[j]));
      size += fabs(*by * e.x[j]);
    }
    for (integer j = 0; j < nm; j++, by += n) tolerance += fabs(*by) * m->rtol * fabs(e.memory[j]), size += fabs(*by * e.memory[j]);
    for (integer j = 0; j < m->n_parameters; j++, by += n) size += fabs(*by * m->parameters[j]);
    const double known = ONE_INSTANT * tolerance + ZERO_ROUNDINGS * DBL_EPSILON * size + DBL_MIN;
    if (!(fabs(margin[k]) > fmax(known, WIDEST * tolerance))) return 0;
  }
  return 1;
}

/* The transition of the first event whose condition is not decided; -1 if all are. */
static integer undecided(event_loop *m) {
  for (integer i = 0; i < m->n_events; i++)
    if (link_of(m, i)->sides && !is_decided(m, i)) return link_of(m, i)->transition;
  return -1;
}

/* The transition of the first event that is not clearly regular; -1 if all are. */
static integer doubtful(const event_loop *m) {
  for (integer i = 0; i < m->n_events; i++)
    if (m->records[m->offsets[i] + CLEAN_AT] == 0) return link_of(m, i)->transition;
  return -1;
}

/* Whether nothing in the run of a gradient needs a closer check. */
static int needs_no_look(const batch *b) {
  const native_run *v = b->run;
  if (v->resting) return leave(b, RESTING, -1);
  if (v->doubtful) return leave(b, DOUBTFUL_EVENT, doubtful(v->tables));
  const integer open = undecided(v->tables);
  if (open >= 0) return leave(b, UNDECIDED_CONDITION, open);
  for (integer i = 0; i < v->n_modes; i++)
    if (v->runs[i]->n_turns) return leave(b, NEAR_MISS, -1);
  if (!starts_clear(b)) return leave(b, BESIDE_START, -1);
  if (!stands_apart(b)) return leave(b, BESIDE_TIME, -1);
  if (!times_known(b)) return leave(b, INACCURATE_TIME, -1);
  return no_fast_passage(b) || leave(b, FAST_PASSAGE, -1);
}
