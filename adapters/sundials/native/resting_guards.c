/* ---- guards at rest at zero on entry to a mode ---------------------------------------------------
 *
 * The rules are those of simulation/resting_guards.py: a guard is at rest if it and its rate are zero to the accuracy of the
 * state; it leaves zero in the direction of its second or third derivative. */

/* Quantities of every guard at a point x, with the memory of the context. `state` and `rates` are work space. */
typedef int quantity(context *c, double t, const double *x, double past, double *found, double *state, double *rates);

static int at_values(context *c, double t, const double *x, double past, double *found, double *state, double *rates) {
  (void)past, (void)state;
  if (guards_and_rates(c, t, x, rates)) return FATAL;
  memcpy(found, rates, (size_t)c->n_guards * sizeof(double));
  return 0;
}

static int at_rates(context *c, double t, const double *x, double past, double *found, double *state, double *rates) {
  (void)past, (void)state;
  if (guards_and_rates(c, t, x, rates)) return FATAL;
  memcpy(found, rates + c->n_guards, (size_t)c->n_guards * sizeof(double));
  return 0;
}

/* (of(t + h, x + h x') - of(t - h, x - h x')) / 2 h */
static int differenced(context *c, double t, const double *x, double h, double past, quantity *of, double *found, double *state,
                      double *rates) {
  const integer n = c->n;
  double *at = state, *xdot = at + n, *moved = xdot + n, *more = moved + n, *earlier = rates;
  c->res[0] = at, c->res[1] = xdot, c->res[2] = moved;
  if (evaluate(c, c->complete, t, x)) return FATAL;
  for (int side = 1; side >= -1; side -= 2) {
    for (integer i = 0; i < n; i++) moved[i] = at[i] + side * h * xdot[i];
    if (of(c, t + side * h, moved, past, side > 0 ? found : earlier, more, rates + c->n_guards)) return FATAL;
  }
  for (integer j = 0; j < c->n_guards; j++) found[j] = (found[j] - earlier[j]) / (2 * h);
  return 0;
}

static int at_bends(context *c, double t, const double *x, double past, double *found, double *state, double *rates) {
  return differenced(c, t, x, REST_MOMENT * past, past, at_rates, found, state, rates);
}

static int at_twists(context *c, double t, const double *x, double past, double *found, double *state, double *rates) {
  return differenced(c, t, x, REST_WHILE * past, past, at_bends, found, state, rates);
}

/* A state is moved by its tolerances, in one of two patterns: see `patterns`. */
static void move_by_tolerances(const event_loop *m, const mode_tables *at, integer n, const double *x, int side, double *moved) {
  for (integer i = 0; i < n; i++) {
    const double angle = 1.0 + 2.4 * (double)i, allowed = at->absolute[i] + m->rtol * fabs(x[i]);
    moved[i] = x[i] + allowed * (side ? sin(angle) : cos(angle));
  }
}

/* A quantity of every guard after an event, and its uncertainty due to the tolerances of the state. */
static int known_of(event_loop *m, const mode_tables *to, double t, const event *e, double past, quantity *of, double *value) {
  context *c = to->run->model;
  const integer n = c->n, ng = c->n_guards;
  double *x = m->rest, *state = x + n, *rates = m->rest + REST_STATES * n, *moved = rates + 4 * ng, *reach = value + ng;
  if (of(c, t, e->x_after, past, value, state, rates)) return FATAL;
  for (int side = 0; side < 2; side++) {
    move_by_tolerances(m, to, n, e->x_after, side, x);
    if (of(c, t, x, past, moved, state, rates)) return FATAL;
    for (integer j = 0; j < ng; j++) reach[j] = side ? hypot(reach[j], moved[j] - value[j]) : moved[j] - value[j];
  }
  return 0;
}

/* Find the guards at rest that leave zero: write their bands to `band`, followed by the signs with which they leave. */
static int depart(event_loop *m, const mode_tables *to, double t, const event *e, double past, const double *value,
                      const double *rate, double *band) {
  context *c = to->run->model;
  const integer ng = c->n_guards;
  const double *reach = value + ng, *of_rate = rate + ng, by_times = fmax(REST_MOMENT, m->rtol) * past;
  double *bend = m->rest + REST_STATES * c->n + 9 * ng, *twist = bend + 2 * ng, *coarse = twist + 2 * ng, *coarser = coarse + ng;
  double *state = m->rest + c->n, *rates = m->rest + REST_STATES * c->n;
  if (known_of(m, to, t, e, past, at_bends, bend) || known_of(m, to, t, e, past, at_twists, twist)) return FATAL;
  if (at_bends(c, t, e->x_after, 2 * past, coarse, state, rates)) return FATAL;
  if (at_twists(c, t, e->x_after, 2 * past, coarser, state, rates)) return FATAL;
  for (integer j = 0; j < to->n_guards; j++) {
    if (!(fabs(value[j]) <= KNOWN * reach[j] && fabs(rate[j]) <= KNOWN * of_rate[j])) continue;
    const double rounding = DBL_EPSILON / m->rtol * of_rate[j] / (REST_MOMENT * past);
    const double of_twist = twist[ng + j] + rounding / (REST_WHILE * past);
    const double of_bend = bend[ng + j] + rounding + by_times * fabs(twist[j]);
    double away = 0;
    if (fabs(bend[j]) > KNOWN * of_bend + TRUNCATION * fabs(coarse[j] - bend[j])) away = sign_of(bend[j]);
    else if (fabs(twist[j]) > KNOWN * of_twist + TRUNCATION * fabs(coarser[j] - twist[j])) away = sign_of(twist[j]);
    if (away == 0 || ((double)to->links[j].direction * away > 0 && !to->links[j].toggles && !to->links[j].jumps)) continue;
    band[j] = fmax(REST_LEFT * reach[j], 2 * fabs(value[j]));
    band[ng + j] = away;
  }
  return 0;
}

/* Finds the change of a guard by the tolerances of the state: see `_by_tolerances`; returns whether that failed. */
static int change_by_tolerances(const event_loop *m, const mode_tables *at, context *c, double t, const double *x,
                                integer guard, double *change) {
  double *moved = m->rest, *found = m->rest + REST_STATES * c->n;
  if (guards_and_rates(c, t, x, found)) return 1;
  const double here = found[guard];
  *change = 0;
  for (int side = 0; side < 2; side++) {
    move_by_tolerances(m, at, c->n, x, side, moved);
    if (guards_and_rates(c, t, moved, found)) return 1;
    *change = hypot(*change, found[guard] - here);
  }
  return 0;
}

/* Finds the side of zero to which a guard leaves that is zero, as is its rate, 0 if it stays, and a band that it leaves: see
 * `leaving_signs`. Returns whether it may fire, or is not on one side at all the times of that; then the automaton looks. The
 * context's memory becomes that of the point. */
static int may_fire(event_loop *m, const mode_tables *to, context *c, const link *l, double t, const double *from,
                    const double *memory, double *band, double *side) {
  const integer n = c->n;
  double *x = m->rest, *moved = x + n, *completed = moved + n, *correction = completed + n, *rate = correction + n, *sum = rate + n;
  double *guards = m->rest + REST_STATES * n, share = FIRST_LOOK, change;
  const double begin = t;
  *side = 0;
  memcpy(c->memory, memory, (size_t)m->n_memory * sizeof(double));
  c->held_valid = 0;
  if (change_by_tolerances(m, to, c, t, from, l->index, &change)) return 1;
  memcpy(x, from, (size_t)n * sizeof(double));
  for (int look = 0; look < LOOKS_AHEAD; look++, share *= LOOK_RATIO) {
    const double h = begin + share * (m->t1 - m->t0) - t, weights[4] = {0, 0.5, 0.5, 1}, shares[4] = {1, 2, 2, 1};
    memset(sum, 0, (size_t)n * sizeof(double));
    for (int k = 0; k < 4; k++) {
      for (integer i = 0; i < n; i++) moved[i] = k ? x[i] + weights[k] * h * rate[i] : x[i];
      c->res[0] = completed, c->res[1] = rate, c->res[2] = correction;
      if (evaluate(c, c->complete, t + weights[k] * h, moved)) return 1;
      for (integer i = 0; i < n; i++) sum[i] += shares[k] * rate[i] / 6;
    }
    for (integer i = 0; i < n; i++) x[i] += h * sum[i];
    t += h;
    if (guards_and_rates(c, t, x, guards)) return 1;
    const double now = (guards[l->index] > 0) - (guards[l->index] < 0);
    if (look && now != *side) return 1;
    if (now != 0 && (double)l->direction * now >= 0) return 1;
    *side = now;
  }
  if (*side != 0) *band = fmax(*band, REST_LEFT * change);
  return 0;
}

/* Find guards at rest on entry to another mode, and set their bands and signs in `event_loop.entered`; return whether that
 * failed. `decided` becomes 0 if a guard other than the event's own is zero to the accuracy of the state and a
 * neighbouring run would meet it. */
static int at_rest(event_loop *m, const mode_tables *from, const mode_tables *to, integer own, double t, const event *e, int *decided) {
  context *c = to->run->model;
  const integer ng = c->n_guards;
  const double past = t - (m->n_times ? m->recent[0] : m->t0);
  double *value = m->rest + REST_STATES * c->n + 5 * ng, *rate = value + 2 * ng;
  int rests = 0, failed;
  if (to->n_guards <= (own >= 0)) return 0;
  memcpy(c->memory, e->memory_after, (size_t)m->n_memory * sizeof(double));
  c->held_valid = 0;
  failed = known_of(m, to, t, e, past, at_values, value) || known_of(m, to, t, e, past, at_rates, rate);
  for (integer j = 0; j < to->n_guards && !failed; j++) {
    const int meets = (double)to->links[j].direction * e->guards_after[to->n_guards + j] >= 0 || !to->links[j].waits;
    if (j != own && meets && fabs(value[j]) <= BESIDE * value[ng + j]) *decided = 0;
    rests |= fabs(value[j]) <= KNOWN * value[ng + j] && fabs(rate[j]) <= KNOWN * rate[ng + j];
  }
  if (rests && from != to && !failed) failed = depart(m, to, t, e, past, value, rate, m->entered);
  if (from == to) memcpy(c->memory, e->memory, (size_t)m->n_memory * sizeof(double)); /* it is not entered yet */
  c->held_valid = 0;
  return failed && from != to;
}

