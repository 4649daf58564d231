/* ---- a run from start to end ------------------------------------------------------------------------------------
 *
 * The rules are those of the automaton (simulation/automaton.py, event_logic.py, stiffness.py). If one of them requires
 * more than is implemented here, the run pauses and the automaton continues; NOT_STARTED means that it has not started. */

static integer counter(const context *c, int which) {
  const integer counts[COUNTED] = {c->flow_calls, c->jacobian_calls, c->linearised_calls, c->guard_calls, c->not_finite};
  return counts[which];
}

/* Whether the rate of a guard that is zero at the start is zero to the rounding of its terms: the rule of
 * simulation/resting_guards.py. Memory, state and parameters are perturbed, with work space of theirs. */
static int still_at_start(const event_loop *m, context *c, const double *x, const double *memory, integer guard, double rate) {
  const double *parameters = c->parameters;
  double *moved = m->rest, *found = m->rest + REST_STATES * c->n, terms = 0;
  int failed = 0;
  for (int side = 0; side < 2 && !failed; side++) {
    integer k = 0;
#define MOVED(value) ((value) * (1 + TERMS_STEP * (side ? sin(1.0 + 2.4 * (double)k) : cos(1.0 + 2.4 * (double)k))))
    for (integer i = 0; i < c->n; i++, k++) moved[i] = MOVED(x[i]);
    for (integer i = 0; i < m->n_memory; i++, k++) c->memory[i] = MOVED(memory[i]);
    for (integer i = 0; i < m->n_parameters; i++, k++) c->parameter_gradient[i] = MOVED(parameters[i]);
    c->parameters = c->parameter_gradient;
    c->held_valid = 0;
    failed = guards_and_rates(c, MOVED(m->t0), moved, found);
    c->parameters = parameters;
    terms = hypot(terms, (found[c->n_guards + guard] - rate) / TERMS_STEP);
#undef MOVED
  }
  memcpy(c->memory, memory, (size_t)m->n_memory * sizeof(double));
  c->held_valid = 0;
  return failed || fabs(rate) <= RATE_ROUNDINGS * DBL_EPSILON * terms;
}

/* Check the guards of the initial mode; returns whether none fires. Those past their threshold wait for their next crossing,
 * unless another rule applies. */
static int look_at_start(event_loop *m, const mode_tables *first, context *c, const double *x, const double *memory,
                         const double *h) {
  const double *rate = h + first->n_guards, *size = rate + first->n_guards;
  memset(c->zero_band, 0, (size_t)c->n_guards * sizeof(double));
  memset(c->leaving_sign, 0, (size_t)c->n_guards * sizeof(double));
  for (integer j = 0; j < first->n_guards; j++) {
    const double width = band_of(m, h[j], size[j], rate[j], m->t0), direction = (double)first->links[j].direction;
    m->ranges[first->links[j].transition] = fabs(h[j]);
    if (fabs(h[j]) <= width) {
      const int moving = fabs(rate[j]) * duration(m, m->t0) > width;
      if (moving && direction * rate[j] > 0) return 0;
      if (!moving && (first->links[j].jumps || !first->links[j].waits)) return 0;
      if (rate[j] != 0 && still_at_start(m, c, x, memory, j, rate[j])) return 0;
      c->zero_band[j] = width;
      c->leaving_sign[j] = moving ? sign_of(rate[j]) : 0;
      if (!moving && may_fire(m, first, c, &first->links[j], m->t0, x, memory, c->zero_band + j, c->leaving_sign + j)) return 0;
    } else if (direction * h[j] > 0) {
      const link *l = &first->links[j];
      if (!l->cross || !l->waits || l->toggles || l->jumps) return 0;
    }
  }
  return 1;
}

/* Add the derivatives of a measurement, by (w, p, t), to those of all functionals. */
static void add_derivatives(const event_loop *m, const mode_tables *at, integer which, double *derivatives) {
  const measuring *own = m->measured + which;
  const integer width = at->n_y + m->n_memory + m->n_parameters + 1;
  for (integer j = 0; j < width; j++)
    for (integer k = 0; k < own->count; k++)
      derivatives[j * m->n_functionals + own->first + k] += m->cost[(1 + j) * own->count + k];
}

/* Take the measurements at the start, with their derivatives; returns whether nothing else is due there. */
static int measure_start(native_run *v, double *derivatives) {
  event_loop *m = v->tables;
  alarms *due = &m->schedule[v->mode];
  const mode_tables *first = v->modes + v->mode;
  const integer width = first->n_y + m->n_memory + m->n_parameters + 1;
  if (m->measured) memset(derivatives, 0, (size_t)(m->n_functionals * width) * sizeof(double));
  for (; due->next < due->n && is_now(m, due->times[due->next], m->t0); due->next++) {
    const integer which = due->counts[due->next];
    if (due->times[due->next] != m->t0 || !first->links[due->links[due->next]].measures || !m->measured) return 0;
    if (!take_measured(m, which, m->t0, v->start, v->start + first->n_x + m->n_memory, first->run->model->memory)) return 0;
    add_derivatives(m, first, which, derivatives);
  }
  return 1;
}

/* The same at the end, where the derivatives are added to those of the terminal values. */
static int measure_end(native_run *v, double *derivatives) {
  event_loop *m = v->tables;
  const alarms *due = &m->schedule[m->at];
  const mode_tables *last = v->modes + m->at;
  const double t = last->run->t;
  for (integer i = due->next; i < due->n && is_now(m, due->times[i], t); i++) {
    const integer which = due->counts[i];
    if (due->times[i] != t || !last->links[due->links[i]].measures || !m->measured) return 0;
    if (!look_measured(m, m->at, which, t, v->end, v->end + last->n_x, last->run->model->memory)) return 0;
    for (integer k = 0; k < m->measured[which].count; k++) m->taken[m->measured[which].first + k] += m->cost[k];
    add_derivatives(m, last, which, derivatives);
  }
  return 1;
}

/* Whether transitions are due at the start that can be carried out natively: at given times, and within the mode. */
static int ticks_at_start(const event_loop *m) {
  const alarms *due = &m->schedule[m->at];
  integer i = due->next;
  for (; i < due->n && is_now(m, due->times[i], m->t0); i++) {
    const link *l = &m->modes[m->at].links[due->links[i]];
    if (due->times[i] != m->t0 || stays(l) || l->target != m->at || (m->certify && !l->fixed)) return 0;
  }
  return i > due->next;
}

/* Carry them out, without a segment before, and begin the first segment. */
static int tick_at_start(native_run *v, double *derivatives) {
  event_loop *m = v->tables;
  const mode_tables *first = v->modes + v->mode;
  run *r = first->run;
  const integer width = first->n_y + m->n_memory + m->n_parameters + 1;
  if (m->measured) memset(derivatives, 0, (size_t)(m->n_functionals * width) * sizeof(double));
  r->steps = r->error_test_failures = r->newton_failures = 0; /* of an earlier run */
  r->next_step = 0;
  m->fired = 0, m->ticked_clock = -1;
  if (!finish_instant(m)) return begin(m);
  if (!m->full) m->used = m->n_events = m->n_passed = 0; /* otherwise they say how much room is needed */
  return NOT_STARTED;
}

/* Begin the first segment. */
static int set_out(native_run *v) {
  event_loop *m = v->tables;
  mode_tables *first = v->modes + v->mode;
  run *r = v->runs[v->mode];
  context *c = r->model;
  const integer nx = first->n_x, ng = first->n_guards, nw = first->n_y + m->n_memory;
  double *memory = v->start + nx, *xdot = memory + m->n_memory, *h = xdot + nx, *by_p = h + 3 * ng;
  double *res[7] = {v->start, memory, xdot, h, h + ng, h + 2 * ng, by_p};
  for (integer i = 0; i < v->n_modes; i++) {
    for (int k = 0; k < COUNTED; k++) v->counted[i * COUNTED + k] = counter(v->runs[i]->model, k);
    v->modes[i].run = 0;
    v->runs[i]->n_rows = v->runs[i]->n_path = v->runs[i]->next_eval = v->runs[i]->n_turns = 0;
  }
  for (integer i = 0; i < v->n_modes; i++) {
    alarms *own = &m->schedule[i];
    for (own->next = 0; own->next < own->n && own->times[own->next] < m->t0;) own->next++;
  }
  memset(m->ranges, 0, (size_t)v->n_transitions * sizeof(double));
  memset(m->gained, 0, (size_t)((1 + m->n_directions) * m->n_functionals) * sizeof(double));
  memset(m->taken, 0, (size_t)((1 + m->n_directions) * m->n_functionals) * sizeof(double));
  memset(m->rested, 0, (size_t)v->n_transitions * sizeof(integer));
  m->used = m->n_events = m->n_passed = m->n_segments = m->steps = m->failures = m->newton_failures = 0;
  m->row = m->path_row = m->full = m->resumed = m->placed = 0;
  m->n_times = 0;
  m->kept = 0;
  m->wanted = -1;
  m->at = v->mode;
  if (v->origin && call(m, v->origin, first->numbers, m->t0, v->start, v->start, res, 7)) return FATAL;
  if (!all_finite(v->start, h + ng - v->start)) return NOT_STARTED;
  if (!all_finite(by_p, nw * m->n_parameters)) return NOT_STARTED;
  if (!look_at_start(m, first, c, v->start, memory, h) || !find_moves(m, v->start, memory)) return NOT_STARTED;
  memcpy(c->memory, memory, (size_t)m->n_memory * sizeof(double));
  c->held_valid = 0;
  if (v->watch && !r->implicit && !begins_soft(v, first, c, m->t0, v->start)) return NOT_STARTED;
  first->run = r;
  r->t = m->begun = m->t0;
  r->first_step = m->began_with = m->first_step;
  memcpy(c->api->array(r->x), v->start, (size_t)c->n * sizeof(double));
  memset(c->api->array(r->x) + c->n, 0, (size_t)m->n_integrals * sizeof(double));
  for (integer i = 0; i < m->n_directions; i++) {
    double *s = c->api->array(r->sensitivities[i]), *dm = c->memory_directions + i * m->n_memory;
    memset(s, 0, (size_t)(c->n + m->n_integrals) * sizeof(double));
    memset(dm, 0, (size_t)m->n_memory * sizeof(double));
    for (integer j = 0; j < m->n_parameters; j++) {
      const double dp = m->directions[i * m->n_parameters + j];
      for (integer k = 0; dp != 0 && k < nw; k++)
        *(k < first->n_y ? s + k : dm + k - first->n_y) += by_p[j * nw + k] * dp;
    }
  }
  if (r->xdot && set_rates(r, xdot)) return FATAL;
  if (first->implicit && complete_directions(r, 0)) return FATAL;
  if (ticks_at_start(m)) return tick_at_start(v, by_p + nw * m->n_parameters);
  if (!measure_start(v, by_p + nw * m->n_parameters)) return NOT_STARTED;
  set_stop(m, r);
  return dh_begin(r);
}

/* Schedule the next check of the steps; reallocations do not affect it. */
static void schedule_look(native_run *v, integer taken) {
  const integer due = taken + (v->watch && !v->runs[v->tables->at]->implicit ? v->interval : BUDGET);
  v->look = due < v->max_steps ? due : v->max_steps;
}

/* Enter the wanted mode, if explicit steps suffice in it. */
static int open_wanted(native_run *v) {
  event_loop *m = v->tables;
  const mode_tables *from = v->modes + m->at, *to = v->modes + m->wanted;
  run *r = v->runs[m->wanted];
  context *c = r->model;
  event e;
  lay_out(m, from, to, m->records + m->used, &e);
  memcpy(c->memory, e.memory_after, (size_t)m->n_memory * sizeof(double));
  c->held_valid = 0;
  if (v->watch && !r->implicit && !begins_soft(v, to, c, m->now, e.x_after)) return 0;
  if (!r->implicit) { /* a new choice is checked again soon */
    v->interval = LOOK;
    schedule_look(v, m->steps + from->run->steps);
  }
  v->modes[m->wanted].run = r;
  m->wanted = -1;
  m->resumed = 1;
  return 1;
}

/* Evaluate the end of the run; returns 0 if nothing else happens there. */
static int arrive(native_run *v) {
  event_loop *m = v->tables;
  const mode_tables *last = v->modes + m->at;
  run *r = last->run;
  context *c = r->model;
  const integer nx = last->n_x, ng = last->n_guards, nf = m->n_functionals, width = last->n_y + m->n_memory + m->n_parameters + 1;
  const integer n_u = nx + m->n_memory + m->n_parameters + 1;
  double *xdot = v->end + nx, *h = xdot + nx, *values = h + 3 * ng, *by_w = values + nf, *size = by_w + nf * width;
  double *res[10] = {v->end, xdot, h, h + ng, h + 2 * ng, values, v->by_u, by_w, size, size + nf};
  if (r->n_eval && r->next_eval < r->n_eval) return NOT_STARTED;
  if (call(m, v->final[m->at], m->modes[m->at].numbers, r->t, r->completed, c->memory, res, 10)) return FATAL;
  if (!measure_end(v, by_w)) return NOT_STARTED;
  const double *integrals = c->api->array(r->x) + c->n;
  double *rates = size + 2 * nf, *own = rates + c->n, *memory = own + nf, *gradient = memory + m->n_memory;
  for (integer i = 0; i < nf; i++) {
    own[i] = (i < m->n_integrals ? integrals[i] : 0) + m->gained[i] + m->taken[i];
    values[i] += own[i];
  }
  if (!all_finite(v->end, h + ng - v->end) || !all_finite(values, nf)) return NOT_STARTED;
  memcpy(rates, r->completed + c->n, (size_t)c->n * sizeof(double));
  memcpy(memory, c->memory, (size_t)m->n_memory * sizeof(double));
  for (integer i = 0; i < m->n_directions; i++, gradient += nf) {
    const double *s = c->api->array(r->sensitivities[i]), *dm = c->memory_directions + i * m->n_memory;
    const double *dp = m->directions + i * m->n_parameters, *column = by_w;
    for (integer k = 0; k < nf; k++)
      gradient[k] = (k < m->n_integrals ? s[c->n + k] : 0) + m->gained_directions[i * nf + k] + m->taken_directions[i * nf + k];
    for (integer j = 0; j < width - 1; j++, column += nf) {
      const integer ny = last->n_y, nw = ny + m->n_memory;
      const double along = j < ny ? s[j] : j < nw ? dm[j - ny] : dp[j - nw];
      for (integer k = 0; along != 0 && k < nf; k++) gradient[k] += column[k] * along;
    }
    if (!all_finite(gradient, nf)) return NOT_STARTED;
  }
  if (m->certify && !(all_finite(v->by_u, nf * n_u) && all_finite(by_w, nf * width))) return NOT_STARTED;
  for (integer j = 0; j < ng; j++) {
    if (fabs(h[j]) <= band_of(m, h[j], h[2 * ng + j], h[ng + j], r->t)) return NOT_STARTED;
    if (c->zero_band[j] == 0) continue;
    if (is_now(m, r->t, m->begun)) return NOT_STARTED; /* near zero after an event there */
    m->rested[last->links[j].transition] = 1;
  }
  v->resting = 0;
  for (integer i = 0; i < v->n_transitions; i++) v->resting |= m->rested[i];
  v->doubtful = 0;
  for (integer i = 0; i < m->n_events; i++) v->doubtful += m->records[m->offsets[i] + CLEAN_AT] == 0;
  memset(v->counts, 0, sizeof v->counts);
  for (integer i = 0; i < v->n_modes; i++)
    for (int k = 0; k < COUNTED; k++) v->counts[k] += counter(v->runs[i]->model, k) - v->counted[i * COUNTED + k];
  return 0;
}

/* From the start to the end; call again after enlarging the buffers if there was no room. FINISHED at the end, NOT_STARTED
 * if it has not started; otherwise it pauses, with the status of `dh_run_events`, or PAUSED if the method or the steps need
 * a closer check, or NOT_STARTED if it has to be repeated. */
int dh_run(native_run *v) {
  event_loop *m = v->tables;
  if (!v->under_way) {
    const int flag = set_out(v);
    if (m->full) return ROWS_FULL;
    if (flag) return NOT_STARTED;
    v->under_way = 1;
    v->look = v->taken = v->events = 0;
    v->interval = LOOK, v->before = m->t0;
    schedule_look(v, 0);
  }
  while (1) {
    run *r = v->modes[m->at].run;
    integer taken = m->steps + r->steps;
    m->budget = v->look - taken;
    const int status = dh_run_events(m);
    r = v->modes[m->at].run;
    if (m->wanted >= 0 && open_wanted(v)) continue;
    if (m->full) return ROWS_FULL;
    if (status == REACHED_STOP && m->wanted < 0 && r->t == m->t1) {
      if (!arrive(v)) return FINISHED;
      return is_now(m, r->t, m->begun) ? NOT_STARTED : status; /* no segment remains for the automaton to continue */
    }
    if (status != PAUSED) return status;
    taken = m->steps + r->steps;
    if (taken < v->look) continue;
    const double step = (r->t - v->before) / (double)(taken - v->taken);
    if (taken >= v->max_steps) return PAUSED;
    if (m->n_events == v->events && step < STARVED * fmax(fabs(r->t), m->t1 - m->begun)) return PAUSED;
    if (v->watch && !r->implicit) {
      const double rate = decay_bound(r->model, r->t, r->model->api->array(r->x), m->t1);
      if (rate != 0 && !(rate * step <= v->reach)) return PAUSED;
    }
    v->taken = taken, v->events = m->n_events, v->before = r->t;
    v->interval = 2 * v->interval < MOST ? 2 * v->interval : MOST;
    schedule_look(v, taken);
  }
}

/* ---- the adjoint of a run -------------------------------------------------------------------------------------- */

/* rates of the integrated states at the start of the last segment */
static const double *rates_begin(const native_gradient *b) {
  const sweep *s = b->back;
  const event_loop *m = s->tables;
  if (!s->n_events) return b->start + m->modes[b->first].n_x + m->n_memory;
  double *record = s->records + s->offsets[s->n_events - 1];
  const mode_tables *from = &m->modes[(integer)record[MODE_AT]];
  event e;
  lay_out(m, from, &m->modes[b->last], record, &e);
  return e.xdot_after;
}

/* Largest magnitude of each variable, by name, and of each memory. For variables that never leave their absolute
 * tolerance, the magnitude at which it equals the relative one; one for a memory of zero. */
static void measure_extents(const native_gradient *b) {
  const sweep *s = b->back;
  const event_loop *m = s->tables;
  double *of_memory = b->extent + b->n_slots;
  memset(b->extent, 0, (size_t)(b->n_slots + m->n_memory) * sizeof(double));
#define NOTE(place, value) b->extent[place] = fmax(b->extent[place], fabs(value))
  for (integer i = 0; i < b->n_modes; i++) {
    const integer *slot = b->slots + i * b->widest;
    for (integer k = 0; s->paths[i] && k < b->path_rows[i]; k++)
      for (integer j = 0; j < m->modes[i].n_y; j++) NOTE(slot[j], s->paths[i][k * s->modes[i]->width + POINT_COLUMNS + j]);
  }
  const double *begin = rates_begin(b);
  for (integer j = 0; j < m->modes[b->last].n_y; j++) {
    NOTE(b->slots[b->last * b->widest + j], b->moved * begin[j]);
    NOTE(b->slots[b->last * b->widest + j], b->moved * b->rates_end[j]);
  }
  for (integer j = 0; j < m->n_memory; j++) NOTE(b->n_slots + j, b->memory[j]);
  for (integer i = 0; i < s->n_events; i++) {
    double *record = s->records + s->offsets[i];
    const mode_tables *from = &m->modes[(integer)record[MODE_AT]];
    event e;
    lay_out(m, from, &m->modes[from->links[(integer)record[GUARD_AT]].target], record, &e);
    for (integer j = 0; j < m->n_memory; j++) of_memory[j] = fmax(of_memory[j], fmax(fabs(e.memory[j]), fabs(e.memory_after[j])));
  }
#undef NOTE
  for (integer i = 0; i < b->n_modes; i++)
    for (integer j = 0; j < m->modes[i].n_y; j++) {
      double *extent = b->extent + b->slots[i * b->widest + j];
      if (!(*extent > m->modes[i].absolute[j])) *extent = m->modes[i].absolute[j] / m->rtol;
    }
  for (integer j = 0; j < b->n_slots + m->n_memory; j++)
    if (!(b->extent[j] > 0)) b->extent[j] = 1;
}

/* First-order contribution of the states to each cost. */
static int measure_costs(const native_gradient *b) {
  const sweep *s = b->back;
  event_loop *m = s->tables;
  double *weights = b->costs + s->n_components, *largest = weights + m->n_functionals;
  const integer stride = (s->n_events + ENDS - 1) / ENDS;
  memset(largest, 0, (size_t)m->n_functionals * sizeof(double));
  for (integer i = s->n_events ? (s->n_events - 1) % stride : 0; i <= s->n_events; i += i < s->n_events - 1 ? stride : 1) {
    const double *found = b->weights_end;
    if (i < s->n_events) {
      double *record = s->records + s->offsets[i], *res[10] = {0, 0, 0, 0, 0, 0, 0, 0, 0, weights};
      const mode_tables *from = &m->modes[(integer)record[MODE_AT]];
      event e;
      lay_out(m, from, &m->modes[from->links[(integer)record[GUARD_AT]].target], record, &e);
      if (call(m, b->final[(integer)record[MODE_AT]], from->numbers, record[0], e.x, e.memory, res, 10)) return FATAL;
      found = weights;
    }
    for (integer k = 0; k < m->n_functionals; k++)
      if (isfinite(found[k])) largest[k] = fmax(largest[k], found[k]);
  }
  for (integer k = 0; k < s->n_components; k++) {
    const integer c = s->components[k];
    const double size = fmax(b->sizes_end[c] + (m->t1 - m->t0) * largest[c], SETTLED * fabs(b->integrals[c]));
    b->costs[k] = isfinite(size) && size > 0 ? size : 1;
  }
  return 0;
}

/* Tolerances of the adjoints and of their integrals in every mode; the rules are those of sensitivity/adjoint.py. */
static void set_tolerances(const native_gradient *b) {
  const sweep *s = b->back;
  const event_loop *m = s->tables;
  const double finer = 1 / fmax(1, (double)(s->n_events + 1) / FEW_SEGMENTS), rtol = m->rtol * finer;
  for (integer i = 0; i < b->n_modes; i++) {
    explicit_adjoint *own = s->modes[i];
    if (!own) continue;
    const integer n = own->model->n, count = s->n_wrt + m->n_memory;
    const integer *slot = b->slots + i * b->widest;
    double *absolute = (double *)own->absolute, *of_totals = (double *)own->absolute_totals, least = rtol;
    own->rtol = rtol;
    own->steps = 0;
    for (integer j = 0; j < m->modes[i].n_y; j++) {
      const double x = b->extent[slot[j]], floor = fmin(fmax(finer * m->modes[i].absolute[j] / x, ADJOINT_ROUNDING), rtol);
      least = fmin(least, floor);
      for (integer k = 0; k < s->n_components; k++) absolute[k * n + j] = b->costs[k] * (floor / x);
    }
    for (integer j = 0; j < count; j++) {
      const double p = j < s->n_wrt ? fabs(m->parameters[s->wrt[j]]) : b->extent[b->n_slots + j - s->n_wrt];
      const double size = j < s->n_wrt ? p > 0 ? fmax(p, SMALLEST) : 1 : p;
      for (integer k = 0; k < s->n_components; k++) of_totals[k * count + j] = b->costs[k] * (least / size);
    }
  }
}

static void forget_counts(context *c) {
  c->flow_calls = c->jacobian_calls = c->linearised_calls = c->guard_calls = c->not_finite = 0;
}

static void count_work(native_gradient *b) {
  memset(b->counts, 0, sizeof b->counts);
  b->steps = 0;
  for (integer i = 0; i < b->n_modes; i++) {
    const explicit_adjoint *own = b->back->modes[i];
    if (!own) continue;
    for (int k = 0; k < COUNTED; k++) b->counts[k] += counter(own->model, k);
    b->steps += own->steps;
  }
}

/* From the end of a run to its start, if all its steps are explicit. */
int dh_run_back(native_gradient *b) {
  sweep *s = b->back;
  event_loop *m = s->tables;
  explicit_adjoint *own = s->modes[b->last];
  context *c = own->model;
  const mode_tables *first = &m->modes[b->first], *last = &m->modes[b->last];
  const integer ny = last->n_y, nm = m->n_memory, nf = m->n_functionals, count = s->n_wrt + nm;
  for (integer i = 0; i < b->n_modes; i++)
    if (s->modes[i]) forget_counts(s->modes[i]->model);
  b->by_p = b->start + 2 * first->n_x + nm + 3 * first->n_guards;
  b->at_start = b->by_p + (first->n_y + nm) * m->n_parameters;
  b->by_w = b->end + 2 * last->n_x + 3 * last->n_guards + nf;
  b->sizes_end = b->by_w + nf * (ny + nm + m->n_parameters + 1);
  b->weights_end = b->sizes_end + nf;
  b->rates_end = b->weights_end + nf;
  b->integrals = b->rates_end + c->n;
  b->memory = b->integrals + nf;
  measure_extents(b);
  if (measure_costs(b) || !find_moves(m, b->start, b->memory)) return FATAL;
  set_tolerances(b);
  memcpy(c->memory, b->memory, (size_t)nm * sizeof(double));
  c->point_valid = c->held_valid = 0;
  own->path = s->paths[b->last] + b->path_row * own->width;
  own->n_rows = b->path_rows[b->last] - b->path_row;
  memset(own->totals, 0, (size_t)(s->n_components * count) * sizeof(double));
  for (integer k = 0; k < s->n_components; k++)
    for (integer j = 0; j < ny; j++) own->adjoint[k * c->n + j] = b->by_w[j * nf + s->components[k]];
  int flag = dh_back_steps(own);
  if (flag) return flag;
  for (integer k = 0; k < s->n_components; k++) {
    double *adjoint = s->adjoint + k * s->marks_width, *totals = s->totals + k * s->n_wrt;
    memcpy(adjoint, own->adjoint + k * c->n, (size_t)ny * sizeof(double));
    for (integer j = 0; j < nm; j++)
      adjoint[ny + j] = b->by_w[(ny + j) * nf + s->components[k]] + own->totals[k * count + s->n_wrt + j];
    for (integer j = 0; j < s->n_wrt; j++)
      totals[j] = b->by_w[(ny + nm + s->wrt[j]) * nf + s->components[k]] + own->totals[k * count + j];
  }
  flag = dh_sweep(s);
  if (flag) return flag;
  const integer nw = first->n_y + nm;
  if (m->measured) add_measured(s, nw, 0, nf, nf, b->at_start);
  for (integer k = 0; k < s->n_components; k++)
    for (integer j = 0; j < s->n_wrt; j++)
      for (integer i = 0; i < nw; i++) s->totals[k * s->n_wrt + j] += s->adjoint[k * s->marks_width + i] * b->by_p[s->wrt[j] * nw + i];
  count_work(b);
  return all_finite(s->totals, s->n_components * s->n_wrt) ? 0 : FATAL;
}
