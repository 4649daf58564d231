/* ---- successive segments and native events ---------------------------------------------------------------------
 *
 * When a guard crosses, or a time event, a measurement or a knot is due, and no special rule applies,
 * it is carried out here as the automaton would do it: the rules are those of simulation/event_logic.py, the
 * derivatives those of system/transition_map.py, knots are those of simulation/stop_times.py. In any other case
 * (another guard near zero, non-finite values, equations that are not clearly solvable, accumulating events, ...) the
 * state is left unchanged, and the automaton continues from it. */
static double elapsed(const event_loop *m, double t) { return fmax(fabs(t), t - m->t0); }

/* Whether a later time equals t to rounding; due times that do are made equal beforehand (system/schedule.py). */
static int is_now(const event_loop *m, double later, double t) { return later - t <= SAME_INSTANT * elapsed(m, later); }

static double duration(const event_loop *m, double t) { return fmax(fabs(t), m->t1 - m->t0); }

/* band within which a guard is zero to rounding */
static double band_of(const event_loop *m, double h, double size, double rate, double t) {
  const double rounding = size + fabs(rate) * elapsed(m, t);
  return ZERO_ROUNDINGS * DBL_EPSILON * (isfinite(rounding) ? rounding : fabs(h)) + DBL_MIN;
}

/* Whether intervals between events have been shrinking for some time, by a constant ratio, as if they were to accumulate
 * soon; the automaton then checks. */
static int accumulates(const event_loop *m, double t) {
  if (m->n_times < ZENO_INTERVALS) return 0;
  double least = HUGE_VAL, most = 0, later = t - m->recent[0];
  for (integer i = 1; i < ZENO_INTERVALS; i++) {
    const double earlier = m->recent[i - 1] - m->recent[i], ratio = later / earlier;
    if (!(later <= ZENO_RATIO * earlier)) return 0;
    least = fmin(least, ratio), most = fmax(most, ratio), later = earlier;
  }
  const double last = t - m->recent[0], before = m->recent[0] - m->recent[1];
  return most <= 2 * least && !(last * last / (before - last) > FAR * ZENO_REST * (t - m->t0));
}

/* parts of an event's record, in order; mirrored in record_table.py */
static integer lay_out(const event_loop *m, const mode_tables *from, const mode_tables *to, double *record, event *e) {
  double *at = record + HEADER;
#define PART(name, size) e->name = at, at += (size)
  PART(x, from->n_x);
  PART(xdot, from->n_x);
  PART(guards, 3 * from->n_guards);
  PART(x_after, to->n_x);
  PART(memory_after, m->n_memory);
  PART(xdot_after, to->n_x);
  PART(guards_after, 3 * to->n_guards);
  PART(xi, m->n_unknowns);
  PART(open, to->fragile ? to->n_z * (to->n_y + to->n_z) : 0);
  PART(memory, m->n_memory);
  PART(integrals, m->n_integrals);
  PART(tau, m->n_directions);
  PART(before, m->n_directions * (from->n_y + m->n_memory));
  PART(after, m->n_directions * (to->n_y + m->n_memory));
  PART(costs_before, m->n_directions * m->n_integrals);
  PART(costs_after, m->n_directions * m->n_integrals);
  PART(gained, m->charges ? m->n_directions * m->n_functionals : 0);
  PART(completed, to->implicit ? m->n_directions * (to->n_y + to->n_z) : 0);
#undef PART
  return at - record;
}

static int stays(const link *l) { return l->measures || l->turns; }

/* Whether something else that is due `after` a time event, a measurement or a knot can be carried out natively: as the next
 * one of the instant, or later in any case. Of two transitions at one time `moves_along` compares the derivatives. */
static int follows(const event_loop *m, const link *own, const link *other, double after, double instant) {
  const int given = !m->certify || (own->fixed && other->fixed), ticks = own->clock >= 0 && other->clock >= 0;
  if (own->clock < 0 && !stays(own)) return 0;
  if (after > instant) return given || (stays(own) && stays(other)) || (ticks && own->clock == other->clock);
  if (after != 0) return 0;
  if (stays(own) && other->measures) return 1;
  if (other->turns || !(given || ticks)) return 0;
  return stays(own) || other->measures || (own->target == m->at && !m->reversed);
}

/* Index of the first due time after t. */
static integer behind(const alarms *own, integer low, double t) {
  integer high = own->n;
  while (low < high) {
    const integer middle = (low + high) / 2;
    if (own->times[middle] <= t) low = middle + 1;
    else high = middle;
  }
  return low;
}

/* Whether nothing is due near a time, in the mode before an event and in that after it, except what `follows`; what is due
 * later at the instant is checked then. Transitions on a shared clock tick once. */
static int no_other_alarm(const event_loop *m, double t, const link *own) {
  const int given = own->clock >= 0 || stays(own);
  const double instant = SAME_INSTANT * elapsed(m, t);
  const double near = given && !m->moving ? instant : fmax(instant, m->slack * elapsed(m, t));
  const mode_tables *from = &m->modes[m->at], *to = &m->modes[own->target];
  alarms *before = &m->schedule[m->at], *after = &m->schedule[own->target];
  integer i = before->next;
  if (given && from == to && i + 1 < before->n && before->times[i + 1] == t) {
    if (!follows(m, own, &from->links[before->links[i + 1]], 0, instant)) return 0;
    i = behind(before, i + 1, t);
  }
  for (; i < before->n && before->times[i] - t <= near; i++) {
    const link *other = &from->links[before->links[i]];
    const int is_own = other == &from->links[own->index] && before->times[i] == t;
    const int is_left = from != to && other->measures && before->times[i] == t; /* seen in the mode after the event */
    if (!is_own && !is_left && !follows(m, own, other, before->times[i] - t, instant)) return 0;
  }
  if (after == before) return 1;
  while (after->next < after->n && after->times[after->next] < t - near) after->next++;
  for (i = after->next; i < after->n && after->times[i] - t <= near; i++) {
    const link *other = &to->links[after->links[i]];
    const double away = fabs(after->times[i] - t);
    if (away == 0 && own->clock >= 0 && other->clock == own->clock && (other->shared < 0 || other->shared == own->shared)) continue;
    if (away <= instant && !other->measures) return 0;
    if (own->clock < 0 || !follows(m, own, other, away, instant)) return 0;
  }
  return 1;
}

/* Whether a time is the end of a run that ends here, see `close_run`. */
static int is_end(const event_loop *m, double t) { return m->closes && is_now(m, m->t_end, t); }

/* Set the stop time of the segment that begins in the current mode; outputs at the end of the run belong to it. */
static void set_stop(const event_loop *m, run *r) {
  alarms *own = &m->schedule[m->at];
  while (own->next < own->n && is_now(m, own->times[own->next], r->t)) own->next++;
  r->t_stop = own->next < own->n ? fmin(own->times[own->next], m->t_stop) : m->t_stop;
  r->closed_end = r->t_stop >= m->t_end;
}

/* Whether a guard passes zero against its direction: its transition fires neither in this run nor in a neighbouring one. */
static int passes_by(const event_loop *m, const mode_tables *from, integer j, double t, const event *e) {
  const link *l = &from->links[j];
  const double h = e->guards[j], rate = e->guards[from->n_guards + j], size = e->guards[2 * from->n_guards + j];
  return (double)l->direction * rate < 0 && l->waits && !l->toggles && !l->jumps && from->run->model->zero_band[j] == 0 &&
         fabs(rate) * duration(m, t) > band_of(m, h, size, rate, t);
}

/* whether the crossing guard, if any, is the only one at zero in the source mode, and no other one has passed zero in the
 * step */
static int one_alone(const event_loop *m, const mode_tables *from, integer index, double t, const event *e) {
  const double *h = e->guards, *rate = h + from->n_guards, *size = rate + from->n_guards;
  const double *begun = from->run->history + from->run->model->n_guards;
  for (integer j = 0; j < from->n_guards; j++) {
    const int meets = from->run->model->zero_band[j] == 0 && (double)from->links[j].direction * h[j] >= 0;
    if (index >= 0 && j != index && meets && begun[j] * h[j] < 0) return 0;
    const double rounding = band_of(m, h[j], size[j], rate[j], t) + m->slack * elapsed(m, t) * fabs(rate[j]);
    const double width = fmax(rounding, from->run->model->zero_band[j]); /* it may be at rest to the accuracy of the state */
    if (j != index && fabs(h[j]) <= width && !(index >= 0 && passes_by(m, from, j, t, e))) return 0;
  }
  return 1;
}

/* The guard of the mode before an event that has the statement of a guard after it, -1 if none. `k` is the one found for an
 * earlier guard: both modes have the statements in the same order. */
static integer same_before(const mode_tables *from, const link *l, integer *k) {
  if (l->shared < 0) return -1;
  while (*k < from->n_guards && from->links[*k].shared < l->shared) ++*k;
  return *k < from->n_guards && from->links[*k].shared == l->shared ? *k : -1;
}

/* The guard of the mode after an event that has the statement of the event's own guard, -1 if none. */
static integer own_after(const mode_tables *from, const mode_tables *to, integer index) {
  if (from == to || index < 0 || from->links[index].shared < 0) return from == to ? index : -1;
  for (integer j = 0; j < to->n_guards; j++)
    if (to->links[j].shared == from->links[index].shared) return j;
  return -1;
}

/* Whether a transition has made the condition of another one true, which then fires at the same instant. */
static int is_made_true(const event_loop *m, const mode_tables *from, integer j, double t, const event *e) {
  const double *h0 = e->guards, *rate0 = h0 + from->n_guards, *size0 = rate0 + from->n_guards;
  const link *l = &from->links[j];
  return l->becomes && !l->toggles && l->direction < 0 && e->guards_after[j] < 0 && from->run->model->zero_band[j] == 0 &&
         h0[j] > band_of(m, h0[j], size0[j], rate0[j], t);
}

/* Looks at the guards of the mode that is entered, and sets what the next segment needs to know of them; whether nothing
 * fires or is past its threshold, except one condition that has become true, `due`, if given. `decided`: none is zero that a
 * neighbouring run would meet. A guard has been located to within `residue`. */
static int enter(event_loop *m, const mode_tables *from, const mode_tables *to, integer index, double residue, double t,
                 const event *e, int *decided, integer *due) {
  const double *h = e->guards_after, *rate = h + to->n_guards, *size = rate + to->n_guards;
  const double *h0 = e->guards, *rate0 = h0 + from->n_guards, *size0 = rate0 + from->n_guards;
  double *band = m->entered, *leaving_sign = band + to->run->model->n_guards;
  memset(band, 0, (size_t)(2 * to->run->model->n_guards) * sizeof(double));
  *decided = 1;
  if (at_rest(m, from, to, own_after(from, to, index), t, e, decided)) return 0;
  for (integer j = 0, k = 0; j < to->n_guards; j++) {
    const integer i = from == to ? j : same_before(from, &to->links[j], &k); /* the same guard before, or -1 */
    if (band[j] != 0) { /* it is at rest, and is to leave */
      if (to->links[j].toggles || to->links[j].jumps) return 0;
      continue;
    }
    const int own = i >= 0 && i == index;
    const double rounding = band_of(m, h[j], size[j], rate[j], t), towards = (double)to->links[j].direction * rate[j];
    const double width = own ? fmax(rounding, RESIDUE * residue) : rounding; /* as close to zero as it was located */
    if (fabs(h[j]) <= width) {
      const int moving = fabs(rate[j]) * duration(m, t) > width;
      if (!moving && (to->links[j].jumps || !to->links[j].waits)) return 0;
      band[j] = width;
      leaving_sign[j] = moving ? sign_of(rate[j]) : 0;
      if (!moving && !own) {
        const int fires = may_fire(m, to, to->run->model, &to->links[j], t, e->x_after, e->memory_after, band + j, leaving_sign + j);
        if (from == to) memcpy(to->run->model->memory, e->memory, (size_t)m->n_memory * sizeof(double));
        to->run->model->held_valid = 0;
        if (fires) return 0;
      }
      if (moving && towards > 0 && (!own || to->links[j].toggles)) return 0;
      if (moving && !own && i >= 0 && to->links[j].direction == 0) return 0;
      const int kept = own && moving && from->links[m->exit].keeps; /* a neighbouring run finds it at zero, too */
      if (!kept && (towards >= 0 || !(to->links[j].waits || (own && to->links[j].toggles)))) *decided = 0;
    } else if (!own && due && *due < 0 && from == to && is_made_true(m, from, j, t, e)) {
      *due = j;
    } else if (!own && i >= 0 && to->links[j].jumps && h[j] * h0[i] < 0) {
      return 0;
    } else if (!own && (double)to->links[j].direction * h[j] > 0) { /* a reset may move its own guard further */
      if (i < 0 || !((double)to->links[j].direction * h0[i] > band_of(m, h0[i], size0[i], rate0[i], t))) return 0;
    }
  }
  return 1;
}

/* Whether a time event moves with the parameters like the one before it at the instant, if any; `h` are the derivatives of
 * its guard. */
static int moves_along(event_loop *m, const double *h, double rate) {
  for (integer j = 0; j < m->n_parameters; j++) {
    const double own = -h[j] / rate, other = m->ticked[j];
    if (m->fired && !(fabs(own - other) <= SAME_INSTANT * fabs(other))) return 0;
    m->ticked[j] = own;
  }
  return 1;
}

/* The rates of the guards shortly before an event, along its tangent; null if they cannot be evaluated. */
static const double *earlier_rates(const event_loop *m, const mode_tables *from, double t, const event *e) {
  context *c = from->run->model;
  const double moment = BEFORE * (m->t_end - m->t0);
  double *x = m->work;
  for (integer j = 0; j < c->n; j++) x[j] = e->x[j] - moment * e->xdot[j];
  c->res[0] = x + c->n;
  return evaluate(c, c->rates, t - moment, x) ? 0 : x + c->n;
}

/* Second derivative of a guard at an event, from its rate shortly before. */
static double bend_of(const event_loop *m, const mode_tables *from, const double *earlier, integer j, const event *e) {
  return fabs(e->guards[from->n_guards + j] - earlier[j]) / (BEFORE * (m->t_end - m->t0));
}

/* Distance from zero, added to a share of its terms, within which a guard is not far from it (`close_to_zero` in
 * trajectory/grazing.py). */
static double not_far(const mode_tables *at) {
  double largest = 0;
  for (integer j = 0; j < at->n_y; j++) largest = fmax(largest, at->absolute[j]);
  return FAR_FROM_ZERO * largest;
}

/* Whether another guard than that of an event may touch zero there (`_touched` in trajectory/grazing.py). */
static int may_touch(const event_loop *m, const mode_tables *from, integer index, double t, const event *e) {
  const double *h = e->guards, *rate = h + from->n_guards, *size = rate + from->n_guards, *earlier = 0;
  const double least = not_far(from);
  for (integer j = 0; j < from->n_guards; j++) {
    const double near = CLOSE_TO_ZERO * size[j] + least;
    if (j == index || from->run->model->zero_band[j] != 0 || !(fabs(h[j]) <= near)) continue;
    if (!earlier && !(earlier = earlier_rates(m, from, t, e))) return 1;
    if (!(rate[j] * rate[j] > 2 * bend_of(m, from, earlier, j, e) * near)) return 1;
  }
  return 0;
}

/* Derivatives across the event, SR eq. 6 and 28; returns whether they exist. `clean` is set if the
 * crossing is deep enough for the accuracy of the run, so that they are reliable. */
static int differentiate(event_loop *m, const mode_tables *from, const mode_tables *to, const link *l, double t, const event *e,
                         double *clean) {
  const integer nf = from->n_y + m->n_memory, nt = to->n_y + m->n_memory, width = nf + m->n_parameters + 1;
  const run *r = from->run;
  crossing found;
  if (!differentiate_arrival(m, from, to, l, t, r->model->api->array(r->x), e, &found)) return 0;
  const double *h = found.h, *flow = found.flow, *g = found.g, *flow_after = found.flow_after, *g_after = found.g_after;
  double rate = h[width - 1];
  for (integer j = 0; j < nf; j++) rate += h[j] * flow[j];
  if (rate == 0 || fabs(rate) <= GRAZING * m->ranges[l->transition] / duration(m, t)) return 0;
  if (!keeps_constraints(m, from, l, e, &found, rate)) return 0;
  if (l->clock >= 0 && !moves_along(m, h + nf, rate)) return 0;
  land_directions(m, from, &found, e);
  *clean = 1;
  double apart = BESIDE * m->rtol * elapsed(m, t); /* distance in time from other guards */
  if (l->clock < 0) { /* a parabola through the rate shortly before gives the depth of the crossing */
    const double *earlier = earlier_rates(m, from, t, e);
    double accuracy = 0;
    if (!earlier) return 0;
    for (integer j = 0; j < from->n_y; j++) accuracy += fabs(h[j]) * (from->absolute[j] + m->rtol * fabs(e->x[j]));
    const double bend = bend_of(m, from, earlier, l->index, e);
    const double own = e->guards[from->n_guards + l->index], depth = bend > 0 ? own * own / (2 * bend) : HUGE_VAL;
    if (!(depth > SHALLOW * accuracy)) *clean = 0;
    apart = fmax(apart, BESIDE * accuracy / fabs(own));
  }
  for (integer j = 0; j < from->n_guards; j++)
    if (j != l->index && fabs(e->guards[j]) <= apart * fabs(e->guards[from->n_guards + j]))
      *clean = *clean && l->clock < 0 && passes_by(m, from, j, t, e);
  if (may_touch(m, from, l->clock < 0 ? l->index : -1, t, e)) *clean = 0;
  const sparse *dp = &r->model->moved;
  for (integer i = 0; i < m->n_directions; i++) {
    const double *w = e->before + i * nf;
    double *after = e->after + i * nt, tau = 0;
    for (integer j = 0; j < nf; j++) tau += h[j] * w[j];
    for (integer q = dp->column[i]; q < dp->column[i + 1]; q++) tau += h[nf + dp->row[q]] * dp->value[q];
    e->tau[i] = tau = -tau / rate;
    for (integer k = 0; k < nt; k++) after[k] = -flow_after[k] * tau;
    add_column(&found.jump, width - 1, tau, after);
    for (integer j = 0; j < nf; j++) add_column(&found.jump, j, w[j] + flow[j] * tau, after);
    for (integer q = dp->column[i]; q < dp->column[i + 1]; q++) add_column(&found.jump, nf + dp->row[q], dp->value[q], after);
    for (integer j = 0; j < m->n_integrals; j++) {
      const double *own = (const double *)r->model->api->array(r->sensitivities[i]) + r->model->n;
      e->costs_before[i * m->n_integrals + j] = own[j];
      e->costs_after[i * m->n_integrals + j] = own[j] + (g[j] - g_after[j]) * tau;
    }
    if (!all_finite(after, nt)) return 0;
  }
  return 1;
}

/* Costs of an event, and their effect on the functionals; returns whether they are finite. Call after `differentiate`. */
static int charge(event_loop *m, const mode_tables *from, const mode_tables *to, const link *l, double t, const event *e) {
  const integer nk = m->n_functionals, nf = from->n_y + m->n_memory, width = nf + m->n_parameters + 1;
  const run *r = from->run;
  const double *by = m->cost + nk, *flow = m->tangent + width + l->jump.column[width];
  m->xi = unknowns_of(to, l, e);
  if (charges_of(m, from, l, t, r->model->api->array(r->x), e->memory) || !all_finite(m->cost, nk * (1 + width))) return 0;
  for (integer k = 0; k < nk; k++) m->gained[k] += m->cost[k];
  const sparse *dp = &r->model->moved;
  for (integer i = 0; i < m->n_directions; i++) {
    const double *w = e->before + i * nf;
    for (integer k = 0; k < nk; k++) {
      double sum = by[(width - 1) * nk + k] * e->tau[i];
      for (integer j = 0; j < nf; j++) sum += by[j * nk + k] * (w[j] + flow[j] * e->tau[i]);
      for (integer q = dp->column[i]; q < dp->column[i + 1]; q++) sum += by[(nf + dp->row[q]) * nk + k] * dp->value[q];
      m->gained_directions[i * nk + k] += sum;
    }
  }
  return 1;
}

/* Whether the algebraic variables after an event are determined, clearly and to the accuracy of the state; see
 * system/reinitialisation.py, `refuse_singular_entry`. `e->open` holds their derivatives by y, followed by k_z. */
static int determined(const event_loop *m, const mode_tables *to, const event *e) {
  const integer n = to->n_z;
  const double *by_z = e->open + n * to->n_y;
  double *scale = m->solving, *rows = scale + n, *work = rows + 2 * n, *inverse = work + n * n;
  if (!invert(by_z, n, scale, work, inverse) || !is_regular(by_z, by_z, 0, inverse, scale, n, rows)) return 0;
  for (integer i = 0; i < to->n_z; i++) {
    const double z = fabs(e->x_after[to->n_y + i]), own = to->absolute[to->n_y + i] / m->rtol;
    double open_to = 0;
    for (integer j = 0; j < to->n_y; j++)
      open_to += fabs(e->open[j * to->n_z + i]) * (to->absolute[j] + m->rtol * fabs(e->x_after[j]));
    if (!isfinite(open_to) || (!(open_to <= z) && !(z <= ENORMOUS * fmax(own, 1)))) return 0;
  }
  return 1;
}

/* Whether an event leads onto the target's constraints, to the accuracy of the state, before the projection by
 * `moved`. */
static int lands(const event_loop *m, const mode_tables *to, const event *e, const double *moved) {
  for (integer i = 0; to->n_held && i < to->n_y; i++)
    if (!(moved[i] <= LANDED * (to->absolute[i] + m->rtol * fabs(e->x_after[i])))) return 0;
  return 1;
}

/* Whether a guard was zero, to the accuracy of the state, at the start of the step in which it crosses: it may have come to
 * rest there, which the automaton decides (`settled` in resting_guards.py). */
static int came_from_zero(const event_loop *m, const mode_tables *from, const link *l) {
  const run *r = from->run;
  context *c = r->model;
  const double begun = fabs(r->history[c->n_guards + l->index]);
  double change;
  if (begun > FROM_REST * m->ranges[l->transition]) return 0;
  return change_by_tolerances(m, from, c, r->t, c->api->array(r->x), l->index, &change) || begun <= KNOWN * change;
}

/* Whether a located guard crosses in its direction, and events do not accumulate. */
static int crosses(const event_loop *m, const mode_tables *from, const link *l) {
  const run *r = from->run;
  const integer root = l->index, n = r->model->n_guards;
  const double rate = r->guard_values[n + root];
  if (rate == 0 || (double)l->direction * rate < 0 || r->history[n + root] * rate > 0) return 0; /* through infinity, or more than once */
  if (came_from_zero(m, from, l)) return 0;
  return !accumulates(m, r->t);
}

/* Record the end of a segment: integrals, the derivatives of (y, m), and the accumulated costs of events. */
static void note_end(const event_loop *m, const mode_tables *at, const event *e) {
  const run *r = at->run;
  const context *c = r->model;
  const integer size = at->n_y + m->n_memory;
  memcpy(e->integrals, c->api->array(r->x) + c->n, (size_t)m->n_integrals * sizeof(double));
  for (integer i = 0; i < m->n_directions; i++) {
    memcpy(e->before + i * size, c->api->array(r->sensitivities[i]), (size_t)at->n_y * sizeof(double));
    memcpy(e->before + i * size + at->n_y, c->memory_directions + i * m->n_memory, (size_t)m->n_memory * sizeof(double));
  }
  if (m->charges) memcpy(e->gained, m->gained_directions, (size_t)(m->n_directions * m->n_functionals) * sizeof(double));
}

/* Remove outputs that precede an event or a knot by rounding only: they show the values after it. */
static void retract(const event_loop *m, run *r) {
  while (r->n_eval && r->n_rows > m->row && r->t - r->t_eval[r->next_eval - 1] <= SAME_INSTANT * elapsed(m, r->t))
    r->next_eval--, r->n_rows--;
}

/* Whether there is room for the record of a link; sets `full` otherwise. */
static int has_room(event_loop *m, const link *l) {
  m->full = m->used + l->width > m->capacity || m->n_events == m->room;
  return !m->full;
}

/* Advance past the recorded rows of a segment. */
static void go_behind(event_loop *m, const run *before, const run *r) {
  m->kept += (double)((before->n_path - m->path_row) * before->path_width);
  if (m->counts_rows) m->kept += (double)((before->n_rows - m->row) * before->width);
  m->row = r->n_rows;
  m->path_row = r->n_path;
}

/* The link that is due: the one in progress, or that without effect if its condition does not hold; null on failure. */
static const link *decide(event_loop *m, const mode_tables *from, double t) {
  const link *l = &from->links[m->exit];
  if (!l->permit) return l;
  context *c = from->run->model;
  double holds = 0, *res[1] = {&holds};
  m->clock[1] = 0;
  if (call(m, l->permit, l->numbers, t, c->api->array(from->run->x), c->memory, res, 1)) return 0;
  if (!isfinite(holds)) return 0;
  if (holds == 0) m->exit = l->otherwise;
  return &from->links[m->exit];
}

/* Lay out the record of a transition that follows from another one, `e`, with a guard `own` or -1, in the same mode; returns whether it can be carried out natively. It must: the automaton could not tell that it is due. */
static int lay_out_next(event_loop *m, const mode_tables *at, integer own, integer index, double t, const event *e, double *record,
                        event *next) {
  const link *l = &at->links[index];
  const alarms *due = &m->schedule[m->at];
  const integer n = at->n_guards;
  int decided;
  if (m->certify || m->n_directions || !l->cross || l->cost || l->permit || l->target != m->at || at->fragile) return 0;
  if (m->n_events + 1 - m->n_passed >= m->max_events || m->fired + 1 >= m->max_fired) return 0;
  for (integer i = due->next; i < due->n && is_now(m, due->times[i], t); i++) {
    const link *other = &at->links[due->links[i]];
    if (other->index != at->links[m->exit].index && !(other->measures && due->times[i] == t)) return 0;
  }
  if (lay_out(m, at, at, record, next) != l->width) return 0;
  double *res[13] = {next->x, next->xdot, next->guards, next->guards + n, next->guards + 2 * n, next->x_after, next->memory_after,
                     next->xdot_after, next->guards_after, next->guards_after + n, next->guards_after + 2 * n, next->open, m->cost};
  const double count = m->clock[1];
  m->clock[1] = 0;
  const int failed = (l->unknowns && !solve_arrival(m, l, t, e->x_after, e->memory_after)) ||
                     call(m, l->cross, l->numbers, t, e->x_after, e->memory_after, res, 13);
  m->clock[1] = count;
  if (failed) return 0;
  if (!all_finite(next->x, (next->guards + 3 * n) - next->x) || !all_finite(next->x_after, next->xi - next->x_after)) return 0;
  if (!lands(m, at, next, m->cost)) return 0;
  if (own >= 0 && fabs(next->guards_after[own]) <= RESIDUE * fabs(e->guards[own])) return 0; /* still zero, as it was located */
  if (l->unknowns && !l->simple) memcpy(next->xi, m->xi, (size_t)l->unknowns * sizeof(double));
  memcpy(next->memory, e->memory_after, (size_t)m->n_memory * sizeof(double));
  const int quiet = enter(m, at, at, index, 0, t, next, &decided, 0);
  memcpy(at->run->model->memory, e->memory, (size_t)m->n_memory * sizeof(double));
  at->run->model->held_valid = 0;
  return quiet;
}

/* Record it. */
static void note_next(event_loop *m, const mode_tables *at, integer index, double t, const event *e, const event *next) {
  const run *r = at->run;
  const link *l = &at->links[index];
  for (integer j = 0; j < at->n_guards; j++) {
    double *range = &m->ranges[at->links[j].transition];
    *range = fmax(*range, fabs(e->guards_after[j]));
  }
  note_end(m, at, next);
  const double header[HEADER] = {t, (double)m->at, (double)index, next->guards[index], next->guards[at->n_guards + index],
                                 m->ranges[l->transition] / duration(m, t), (double)r->n_rows, (double)r->n_rows, m->began_with,
                                 0, 0, (double)r->n_path, 0, r->t_stop};
  memcpy(m->records + m->used, header, sizeof header);
  m->offsets[m->n_events++] = m->used;
  m->used += l->width;
  m->fired++;
  m->exit = index;
}

/* Carry out the transition due at the end of a segment, or after others of the instant, if it can be done natively; returns 1
 * if so, else 0. */
static int fire(event_loop *m) {
  const mode_tables *from = &m->modes[m->at];
  run *r = from->run;
  context *c = r->model;
  const double t = r->t;
  const link *l = decide(m, from, t);
  if (!l) return 0;
  const int timed = l->clock >= 0;
  if (!l->cross || m->n_events - m->n_passed >= m->max_events || !(timed || crosses(m, from, l))) return 0;
  if (m->fired >= m->max_fired) return 0;
  const integer own = timed ? -1 : l->index;
  const double value = timed ? 0 : r->guard_values[own], rate = timed ? 1 : r->guard_values[c->n_guards + own];
  const double since = m->n_times ? m->recent[0] : m->t0;
  const double instant = SAME_INSTANT * elapsed(m, t);
  const int closes = is_end(m, t) && timed && (l->fixed || !m->certify); /* whether it precedes the end may not change */
  if (!(m->later || t - m->begun > instant)) return 0;
  if (!closes && !(m->t_stop - t > fmax(instant, m->slack * elapsed(m, t)))) return 0;
  if (!no_other_alarm(m, t, l)) return 0;
  m->clock[1] = timed ? (double)m->schedule[m->at].counts[m->schedule[m->at].next] : 0;
  const mode_tables *to = &m->modes[l->target];
  if (!has_room(m, l)) return 0;
  double *record = m->records + m->used;
  event e;
  if (lay_out(m, from, to, record, &e) != l->width) return 0;
  double *x = c->api->array(r->x);
  const integer ng = from->n_guards, nt = to->n_guards;
  double *res[13] = {e.x, e.xdot, e.guards, e.guards + ng, e.guards + 2 * ng, e.x_after, e.memory_after, e.xdot_after,
                     e.guards_after, e.guards_after + nt, e.guards_after + 2 * nt, e.open, m->cost};
  if (l->unknowns && !solve_arrival(m, l, t, x, c->memory)) return 0;
  if (call(m, l->cross, l->numbers, t, x, c->memory, res, 13)) return 0;
  if (!all_finite(e.x, (e.guards + 3 * ng) - e.x) || !all_finite(e.x_after, e.xi - e.x_after)) return 0;
  if (!lands(m, to, &e, m->cost)) return 0;
  if (l->unknowns && !l->simple) memcpy(e.xi, m->xi, (size_t)l->unknowns * sizeof(double));
  if (!to->run) {
    m->wanted = l->target, m->now = t;
    return 0;
  }
  if (to->fragile && !determined(m, to, &e)) return 0;
  int decided = 1;
  integer due = -1;
  event next;
  memcpy(e.memory, c->memory, (size_t)m->n_memory * sizeof(double));
  if (!one_alone(m, from, own, t, &e)) return 0;
  if (!enter(m, from, to, own, own < 0 ? 0 : fabs(e.guards[own]), t, &e, &decided, l->toggles ? 0 : &due)) return 0;
  if (due >= 0) {
    m->full = m->used + l->width + from->links[due].width > m->capacity || m->n_events + 1 >= m->room ? 2 : 0;
    if (m->full || !lay_out_next(m, from, own, due, t, &e, record + l->width, &next)) return 0;
  }
  note_end(m, from, &e);
  double clean = 0;
  if (m->certify && !differentiate(m, from, to, l, t, &e, &clean)) return 0;
  if (l->cost && !charge(m, from, to, l, t, &e)) return 0;
  retract(m, r);
  const double apart = fmin(t - since, t - m->t0);
  if (!decided || !(m->later || apart > m->slack * elapsed(m, t))) clean = 0;
  const double header[HEADER] = {t, (double)m->at, (double)m->exit, value, rate,
                                 m->ranges[l->transition] / duration(m, t), (double)m->row, (double)r->n_rows,
                                 m->began_with, clean, (double)r->steps, (double)r->n_path, m->clock[1], r->t_stop};
  memcpy(record, header, sizeof header);
  m->offsets[m->n_events++] = m->used;
  m->n_segments += !m->later;
  m->used += l->width;
  m->fired++;
  if (timed) m->schedule[m->at].next++;
  if (due >= 0) note_next(m, from, due, t, &e, &next);
  return 1;
}

/* For implicit equations: derivatives of the algebraic variables consistent with those of y and m, and the rates of those
 * of y, from which IDA takes its first step. Both are stored in a record, if given. */
static int complete_directions(run *r, double *kept) {
  context *c = r->model;
  const integer ny = c->n_differential, nz = c->n - ny;
  if (!c->n_directions) return 0;
  c->point_valid = c->held_valid = 0;
  if (nz > MOST_SOLVED || linearise(c, r->t, c->api->array(r->x))) return FATAL;
  for (integer i = 0; i < c->n_directions; i++) {
    double *s = c->api->array(r->sensitivities[i]);
    double *rate = c->api->array(r->sensitivity_rates ? r->sensitivity_rates[i] : r->work);
    const double *from[1] = {s};
    memset(s + ny, 0, (size_t)nz * sizeof(double));
    if (along(c, i, 1, from, &rate)) return FATAL;
    if (algebraic_directions(c, 1, &rate, s + ny)) return FATAL;
    add_algebraic(c, 1, s + ny, &rate);
    memset(rate + c->n, 0, (size_t)c->n_integrals * sizeof(double));
    if (!all_finite(s, c->n) || !all_finite(rate, ny)) return FATAL;
    if (!kept) continue;
    memcpy(kept, s + ny, (size_t)nz * sizeof(double));
    memcpy(kept + nz, rate, (size_t)ny * sizeof(double));
    kept += c->n;
  }
  return 0;
}

/* IDA takes its first step from the rates, including those of the integrals */
static int set_rates(run *r, const double *xdot) {
  context *c = r->model;
  double *rates = c->api->array(r->work), *own = c->api->array(r->xdot);
  c->held_valid = 0;
  if (flow(c, r->t, c->api->array(r->x), rates)) return FATAL;
  c->flow_calls--; /* not one of the solver's */
  memcpy(own, xdot, (size_t)c->n * sizeof(double));
  memcpy(own + c->n, rates + c->n, (size_t)c->n_integrals * sizeof(double));
  return 0;
}

/* Place the solver at the point after an event or a knot. */
static int place(event_loop *m) {
  const mode_tables *from = &m->modes[m->at];
  run *before = from->run;
  const link *l = &from->links[m->exit];
  const mode_tables *to = &m->modes[l->target];
  run *r = to->run;
  context *c = r->model;
  event e;
  lay_out(m, from, to, m->records + m->used - l->width, &e);
  for (integer j = 0; j < from->n_guards; j++)
    if (before->model->zero_band[j] != 0 && !m->later) m->rested[from->links[j].transition] = 1;
  memcpy(m->bands, m->entered, (size_t)(2 * c->n_guards) * sizeof(double));
  memcpy(c->zero_band, m->bands, (size_t)c->n_guards * sizeof(double));
  memcpy(c->leaving_sign, m->bands + c->n_guards, (size_t)c->n_guards * sizeof(double));
  for (integer j = 0; j < to->n_guards; j++) {
    double *range = &m->ranges[to->links[j].transition];
    *range = fmax(*range, fabs(e.guards_after[j]));
  }
  if (!l->turns && !(m->n_times && m->recent[0] == before->t)) {
    memmove(m->recent + 1, m->recent, (RECENT - 1) * sizeof(double));
    m->recent[0] = before->t;
    if (m->n_times < RECENT) m->n_times++;
  }
  m->steps += before->steps;
  m->failures += before->error_test_failures;
  m->newton_failures += before->newton_failures;
  before->steps = before->error_test_failures = before->newton_failures = 0;
  r->t = before->t;
  r->next_eval = before->next_eval;
  r->first_step = m->first_step > 0 ? m->first_step : r->step ? before->next_step : 0;
  m->begun = r->t;
  go_behind(m, before, r);
  m->at = l->target;
  m->placed = 1;
  memcpy(c->memory, e.memory_after, (size_t)m->n_memory * sizeof(double));
  memcpy(c->api->array(r->x), e.x_after, (size_t)c->n * sizeof(double));
  memcpy(c->api->array(r->x) + c->n, e.integrals, (size_t)m->n_integrals * sizeof(double));
  if (r->xdot && set_rates(r, e.xdot_after)) return FATAL;
  for (integer i = 0; i < m->n_directions; i++) {
    double *s = c->api->array(r->sensitivities[i]);
    const double *w = e.after + i * (to->n_y + m->n_memory);
    memcpy(s, w, (size_t)to->n_y * sizeof(double));
    memcpy(s + c->n, e.costs_after + i * m->n_integrals, (size_t)m->n_integrals * sizeof(double));
    memcpy(c->memory_directions + i * m->n_memory, w + to->n_y, (size_t)m->n_memory * sizeof(double));
  }
  return to->implicit ? complete_directions(r, e.completed) : 0;
}

/* Begin the segment where the solver has been placed. */
static int begin(event_loop *m) {
  run *r = m->modes[m->at].run;
  m->placed = 0;
  set_stop(m, r);
  if (!(m->first_step > 0)) r->first_step = fmin(r->first_step, r->t_stop - r->t);
  m->began_with = r->first_step;
  return dh_begin(r);
}

/* Lay out the record of a point without transition; returns whether there is room. */
static int make_record(event_loop *m, const mode_tables *at, const link *l, event *e) {
  if (!has_room(m, l)) return 0;
  double *record = m->records + m->used;
  memset(record, 0, (size_t)l->width * sizeof(double));
  return lay_out(m, at, at, record, e) == l->width;
}

/* Evaluate a point of a mode, at the integrator's x and a memory; returns whether it is finite. */
static int look_at(event_loop *m, const link *l, double t, const double *given, const double *memory, double *x, double *xdot,
                   double *guards, integer n) {
  double *res[5] = {x, xdot, guards, guards + n, guards + 2 * n};
  return !call(m, l->cross, l->numbers, t, given, memory, res, 5) && all_finite(x, guards + 3 * n - x);
}

/* Complete the record of a point without transition, except for changes there. */
static void note_point(event_loop *m, const mode_tables *at, const link *l, const event *e) {
  const run *r = at->run;
  const context *c = r->model;
  alarms *own = &m->schedule[m->at];
  memcpy(e->memory, c->memory, (size_t)m->n_memory * sizeof(double));
  note_end(m, at, e);
  for (integer i = 0; i < m->n_directions; i++)
    memcpy(e->costs_before + i * m->n_integrals, (double *)c->api->array(r->sensitivities[i]) + c->n,
           (size_t)m->n_integrals * sizeof(double));
  memcpy(e->after, e->before, (size_t)(m->n_directions * (at->n_y + m->n_memory)) * sizeof(double));
  memcpy(e->costs_after, e->costs_before, (size_t)(m->n_directions * m->n_integrals) * sizeof(double));
  const double header[HEADER] = {r->t, (double)m->at, (double)m->exit, 0, 1, 0, (double)m->row, (double)r->n_rows,
                                 m->began_with, 1, (double)r->steps, (double)r->n_path, (double)own->counts[own->next], r->t_stop};
  memcpy(m->records + m->used, header, sizeof header);
  m->offsets[m->n_events++] = m->used;
  m->n_segments += !m->later;
  m->n_passed++;
  m->used += l->width;
  own->next++;
}

/* Record the point of a measurement at the end of a segment, if nothing else is near; returns 1 if so, else 0. */
static int measure(event_loop *m) {
  const mode_tables *at = &m->modes[m->at];
  const run *r = at->run;
  const context *c = r->model;
  const double t = r->t, instant = SAME_INSTANT * elapsed(m, t);
  const link *l = &at->links[m->exit];
  event e;
  if (!l->cross || (t != m->begun && !(t - m->begun > instant))) return 0;
  if (!(m->t_stop - t > fmax(instant, m->slack * elapsed(m, t))) || !no_other_alarm(m, t, l)) return 0;
  if (!make_record(m, at, l, &e)) return 0;
  if (!look_at(m, l, t, c->api->array(r->x), c->memory, e.x, e.xdot, e.guards, at->n_guards)) return 0;
  if (!one_alone(m, at, -1, t, &e)) return 0;
  const alarms *own = &m->schedule[m->at];
  if (m->measured && !take_measured(m, own->counts[own->next], t, e.x, e.xdot, c->memory)) return 0;
  note_point(m, at, l, &e);
  memcpy(e.x_after, e.x, (size_t)at->n_x * sizeof(double));
  memcpy(e.memory_after, e.memory, (size_t)m->n_memory * sizeof(double));
  memcpy(e.xdot_after, e.xdot, (size_t)at->n_x * sizeof(double));
  memcpy(e.guards_after, e.guards, (size_t)(3 * at->n_guards) * sizeof(double));
  if (at->implicit && complete_directions(at->run, e.completed)) return 0;
  go_behind(m, r, r);
  return 1;
}

/* Solve for the algebraic variables after a knot, starting from those before it. */
static int close_algebraic(event_loop *m, const mode_tables *at, const link *l, double t, double *x, const double *memory) {
  const integer n = at->n_z, one = 3 * n + 2 * n * n;
  trial now = lay_out_trial(m->solving, n), next = lay_out_trial(m->solving + one, n);
  memcpy(now.xi, x + at->n_y, (size_t)n * sizeof(double));
  if (!try_unknowns(m, l, t, x, memory, &now)) return 0;
  if (!iterate(m, l, t, x, memory, &now, &next, m->solving + 2 * one)) return 0;
  memcpy(x + at->n_y, now.xi, (size_t)n * sizeof(double));
  return 1;
}

/* Give signals their next coefficients at a knot, if no guard is near zero or changes sign; returns 1 if so, else 0. */
static int turn(event_loop *m) {
  const mode_tables *at = &m->modes[m->at];
  run *r = at->run;
  context *c = r->model;
  const double t = r->t, instant = SAME_INSTANT * elapsed(m, t);
  const link *l = &at->links[m->exit];
  alarms *own = &m->schedule[m->at];
  /* the last of several knots at one time has the values of all */
  while (own->next + 1 < own->n && own->times[own->next + 1] == t && own->links[own->next + 1] == m->exit) own->next++;
  const integer n = at->n_guards, knot = own->counts[own->next], size = at->n_y + m->n_memory;
  event e;
  if (!l->cross || !(t - m->begun > instant) || !(m->t_stop - t > instant) || !no_other_alarm(m, t, l)) return 0;
  if (!make_record(m, at, l, &e)) return 0;
  double *x = m->work;
  memcpy(x, c->api->array(r->x), (size_t)c->n * sizeof(double));
  if (!look_at(m, l, t, x, c->memory, e.x, e.xdot, e.guards, n)) return 0;
  memcpy(e.memory_after, c->memory, (size_t)m->n_memory * sizeof(double));
  for (integer j = 0; j < m->n_entries; j++) e.memory_after[m->entries[j]] = m->knots[knot * m->n_entries + j];
  if (l->solve && !close_algebraic(m, at, l, t, x, e.memory_after)) return 0;
  if (!look_at(m, l, t, x, e.memory_after, e.x_after, e.xdot_after, e.guards_after, n)) return 0;
  event after = e;
  after.guards = e.guards_after;
  if (!one_alone(m, at, -1, t, &e) || !one_alone(m, at, -1, t, &after)) return 0;
  for (integer j = 0; j < n; j++)
    if (c->zero_band[j] != 0 || (e.guards[j] > 0) != (e.guards_after[j] > 0)) return 0;
  retract(m, r);
  note_point(m, at, l, &e);
  for (integer i = 0; i < m->n_directions; i++)
    for (integer j = 0; j < m->n_entries; j++)
      e.after[i * size + at->n_y + m->entries[j]] = m->knot_directions[(knot * m->n_directions + i) * m->n_entries + j];
  memset(m->entered, 0, (size_t)(2 * c->n_guards) * sizeof(double));
  return 1;
}

/* Continue the segment after measurements, with the solver unchanged. */
static int carry_on(event_loop *m) {
  run *r = m->modes[m->at].run;
  context *c = r->model;
  memcpy(m->bands, c->zero_band, (size_t)c->n_guards * sizeof(double));
  memcpy(m->bands + c->n_guards, c->leaving_sign, (size_t)c->n_guards * sizeof(double));
  m->begun = r->t;
  m->began_with = r->step ? r->next_step : 0;
  set_stop(m, r);
  int flag = c->api->set_stop_time(r->memory, r->t_stop);
  if (!flag) flag = keep(r, 0);
  if (!flag && r->record == RECORD_STEPS && !r->n_eval) record_point(r, r->t);
  return flag;
}

/* Whether more is stored than allowed at a point where another record table may begin. */
static int is_complete(const event_loop *m) { return m->kept + (m->counts_records ? (double)m->used : 0) > m->bound; }

/* Carry out what else is due now, in order. Returns 0, COMPLETE if the automaton has to carry out the rest, or SUNDIALS'
 * return code. */
static int finish_instant(event_loop *m) {
  const double t = m->modes[m->at].run->t;
  for (m->later = 1; 1;) {
    alarms *own = &m->schedule[m->at];
    while (own->next < own->n && own->times[own->next] < t) own->next++;
    if (own->next == own->n || own->times[own->next] > t) return 0;
    const link *l = &m->modes[m->at].links[own->links[own->next]];
    m->exit = own->links[own->next];
    if (l->measures && is_end(m, t)) return 0; /* see `measure_end` */
    if (m->ticked_clock >= 0 && l->clock == m->ticked_clock) own->next++;
    else if (l->turns || !(l->measures ? measure(m) : fire(m))) return COMPLETE;
    else if (!l->measures) {
      if (l->target != m->at) m->ticked_clock = l->clock;
      const int flag = place(m);
      if (flag) return flag;
    }
  }
}

/* End the run at the point after a transition, without another segment. */
static int close_run(event_loop *m) {
  run *r = m->modes[m->at].run;
  const context *c = r->model;
  double *record = m->records + m->offsets[m->n_events - 1];
  event e;
  lay_out(m, &m->modes[(integer)record[MODE_AT]], &m->modes[m->at], record, &e);
  m->placed = 0;
  r->steps = r->error_test_failures = r->newton_failures = 0;
  r->t = m->t_end;
  for (; r->next_eval < r->n_eval; r->next_eval++) record_point(r, r->t_eval[r->next_eval]);
  memcpy(r->completed, e.x_after, (size_t)c->n * sizeof(double));
  memcpy(r->completed + c->n, e.xdot_after, (size_t)c->n * sizeof(double));
  return REACHED_STOP;
}

/* Continue from the current point of the mode's run for at most `budget` steps; like `dh_advance`, with FOUND_ROOT if an event
 * cannot be taken natively, a mode is wanted or there is no room for the record, and COMPLETE if the table is full or an
 * instant is to be completed by the automaton. */
int dh_run_events(event_loop *m) {
  const integer end = m->steps + m->modes[m->at].run->steps + m->budget;
  while (1) {
    run *r = m->modes[m->at].run;
    if (m->n_events >= m->last) return COMPLETE;
    if (!m->resumed) {
      r->budget = end - m->steps - r->steps;
      if (r->budget <= 0) return PAUSED;
      const int status = dh_advance(r);
      const alarms *own = &m->schedule[m->at];
      if (status == FOUND_ROOT && r->root < m->modes[m->at].n_guards) m->exit = r->root;
      else if (status == REACHED_STOP && own->next < own->n && r->t == own->times[own->next]) m->exit = own->links[own->next];
      else return status;
    }
    const link *l = &m->modes[m->at].links[m->exit];
    if (!m->resumed) m->later = m->fired = 0, m->ticked_clock = -1;
    m->resumed = 0;
    int flag = COMPLETE;
    if (l->measures ? measure(m) : l->turns ? turn(m) : fire(m)) {
      if (l->target != m->at) m->ticked_clock = l->clock;
      flag = l->measures ? 0 : place(m);
      if (!flag) flag = finish_instant(m);
    } else if (!m->later) {
      return l->clock < 0 && !stays(l) ? FOUND_ROOT : REACHED_STOP;
    }
    if (m->wanted >= 0 || m->full) return REACHED_STOP;
    const int is_open = flag == COMPLETE;
    const int is_placed = m->placed;
    if (is_placed && is_end(m, m->modes[m->at].run->t)) return flag ? NOT_STARTED : close_run(m);
    if (!flag || is_open) flag = is_placed ? begin(m) : carry_on(m);
    if (flag) return flag;
    if (is_open || (is_placed && is_complete(m))) return COMPLETE;
  }
}
