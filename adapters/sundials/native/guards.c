/* ---- guards within a step ------------------------------------------------------------------------------ */

/* SUNDIALS compares guards at step ends. A guard that passes through zero and returns in between is found here:
 * the step is bisected if the cubic through values and rates at the ends does not stay away from zero by more than its
 * error at an interior point. This is skipped if a parabola through the last step ends is clearly away from zero and
 * accurate within the step. */
static double *values_of(const run *r, int row) { return r->glances + row * 2 * r->model->n_guards; }

/* x at a time within the last step, by the solver's polynomial or by a shorter explicit step, in r->work */
static int within(run *r, double t) {
  const context *c = r->model;
  return r->step ? part_of_step(r, t, c->n, c->api->array(r->work)) : c->api->get_dky(r->memory, t, 0, r->work);
}

/* guards, followed by their rates, at a point */
static int guards_and_rates(context *c, double t, const double *x, double *value) {
  return guards_at(c, t, x, 0, value, value + c->n_guards);
}

/* the same at a time: of the current state if `here`, else within the step */
static int glance(run *r, int row, double t, int here) {
  context *c = r->model;
  const double *x = c->api->array(here ? r->x : r->work);
  double *value = values_of(r, row);
  if (!here && within(r, t)) return FATAL;
  c->guard_calls++;
  if (guards_and_rates(c, t, x, value)) return FATAL;
  for (integer i = 0; row != TRIAL && i < c->n_guards; i++) /* trials follow a guard over all orders of magnitude */
    if (fabs(value[i]) <= r->noise[i]) value[i] = 0;
  r->times[row] = t;
  return 0;
}

/* index of the first determinant among the guards */
static integer determinants(const run *r) { return r->model->n_guards - r->n_singularities; }

/* Whether a determinant is zero at a sample. A determinant that only touches zero does not change sign, but leaves the
 * algebraic variables undetermined as well. */
static int is_singular(run *r, int row, double *where) {
  for (integer i = determinants(r); i < r->model->n_guards; i++)
    if (values_of(r, row)[i] == 0) {
      *where = r->times[row], r->root = i, r->jumps = 1, r->approach = 0;
      return 1;
    }
  return 0;
}

static void cubic(const run *r, int a, int b, integer i, double *k) {
  const integer n = r->model->n_guards;
  const double h = r->times[b] - r->times[a], v0 = values_of(r, a)[i], v1 = values_of(r, b)[i];
  const double r0 = h * values_of(r, a)[n + i], r1 = h * values_of(r, b)[n + i];
  k[0] = v0, k[1] = r0, k[2] = 3 * (v1 - v0) - 2 * r0 - r1, k[3] = 2 * (v0 - v1) + r0 + r1;
}

static double horner(const double *k, double s) { return k[0] + s * (k[1] + s * (k[2] + s * k[3])); }

/* smallest value on [0, 1] of a cubic, or of its negative, and its position */
static double smallest(const double *k, double sign, double *place) {
  double least = fmin(sign * k[0], sign * horner(k, 1));
  *place = 0;
  const double root = sqrt(k[2] * k[2] - 3 * k[1] * k[3]);
  const double places[3] = {(-k[2] + root) / (3 * k[3]), (-k[2] - root) / (3 * k[3]), -k[1] / (2 * k[2])};
  for (int i = 0; i < 3; i++)
    if (places[i] > 0 && places[i] < 1 && sign * horner(k, places[i]) < least)
      least = sign * horner(k, *place = places[i]);
  return least;
}

static double sign_of(double v) { return v < 0 ? -1 : 1; }

/* ---- near misses: guards that turn close to zero without crossing it ----
 *
 * Whether they cross may be a matter of accuracy: the closest ones are recorded for trajectory/grazing.py, which checks
 * them if derivatives are requested. */
static void note_turn(run *r, integer i, double from, double to, double least, double most) {
  const double share = fabs(least) / most;
  if (!(share <= NEXT_TO) || i >= determinants(r)) return;
  integer at = r->n_turns;
  for (integer k = 0; k < r->n_turns; k++) { /* replaces an overlapping near miss of the guard, or the farthest one */
    const double *known = r->turns + k * TURN;
    if ((integer)known[TURN_GUARD] == i && known[TURN_FROM] <= to && from <= known[TURN_TO]) {
      at = k;
      break;
    }
    if (r->n_turns == TURNED && (at == TURNED || known[TURN_SHARE] > r->turns[at * TURN + TURN_SHARE])) at = k;
  }
  double *turn = r->turns + at * TURN;
  if (at < r->n_turns && !(share < turn[TURN_SHARE])) return;
  if (at == r->n_turns) r->n_turns++;
  turn[TURN_GUARD] = (double)i, turn[TURN_FROM] = from, turn[TURN_TO] = to, turn[TURN_SHARE] = share;
}

/* Near misses between two samples, by the cubics through them. */
static void note_turns(run *r, int a, int b) {
  for (integer i = 0; i < determinants(r); i++) {
    const double v0 = values_of(r, a)[i], v1 = values_of(r, b)[i];
    double k[4], place;
    if (!(v0 * v1 > 0)) continue;
    cubic(r, a, b, i, k);
    const double least = smallest(k, sign_of(v0), &place);
    if (place > 0) note_turn(r, i, r->times[a], r->times[b], least, fmax(fabs(v0), fabs(v1)));
  }
}

/* Near misses at the end of the previous step, from the last three step ends. */
static void note_turns_at_end(run *r) {
  const integer n = r->model->n_guards;
  if (r->n_past < HISTORY) return;
  for (integer i = 0; i < determinants(r); i++) {
    const double v0 = r->history[i], v1 = r->history[n + i], v2 = r->history[2 * n + i];
    if (v0 * v2 > 0 && v1 * v0 >= 0 && fabs(v1) <= fabs(v0) && fabs(v1) <= fabs(v2))
      note_turn(r, i, r->past[2], r->past[0], v1, fmax(fabs(v0), fabs(v2)));
  }
}

/* ---- guards that turn several times within a step ----
 *
 * Steps are chosen for the state. If a guard's rates could take it through its range several times within one step
 * without a trace in its values, it turns in between: it is sampled as often as these rates require, and less often
 * once it has been found to be slower. */
static double *speed_of(const run *r) { return r->pace; }
static double *range_of(const run *r) { return r->pace + r->model->n_guards; }

/* Update speed and range of a guard from values within a time; both decay unless confirmed. */
static void pace(run *r, integer i, double h, double v0, double v, double v1) {
  const double moved = fabs(v - v0) + fabs(v1 - v), range = fmax(v0, fmax(v, v1)) - fmin(v0, fmin(v, v1));
  speed_of(r)[i] = fmax(moved / h, HELD * speed_of(r)[i]);
  range_of(r)[i] = fmax(range, HELD * range_of(r)[i]);
}

/* Trusted rates at a sample count as speeds. */
static void hasten(run *r, int row) {
  const integer n = r->model->n_guards;
  for (integer i = 0; i < n; i++) {
    const double rate = fabs(values_of(r, row)[n + i]);
    if (isfinite(rate)) speed_of(r)[i] = fmax(speed_of(r)[i], rate);
  }
}

/* whether a guard may have turned often within a step, given its values at three times */
static int keeps_pace(run *r, integer i, double h, double v0, double v1, double v) {
  const double noise = NOISE * fmax(fabs(v0), fabs(v1));
  pace(r, i, h, v1, v, v0);
  return !(speed_of(r)[i] * h > TURNS * (range_of(r)[i] + noise));
}

/* The guard that could go through its range most often within the step, from START, END and a sample in between;
 * negative if none could turn, n_guards on failure. */
static integer restless(run *r) {
  const integer n = r->model->n_guards;
  const double h = r->times[END] - r->times[START];
  integer found = -1;
  double most = TURNS;
  const double inside = r->times[START] + INSIDE * h;
  double *middle = values_of(r, HALVES + DEPTH);
  if (r->step) { /* of ARKODE's interpolant, which costs no stages */
    context *c = r->model;
    c->guard_calls++;
    if (c->api->get_dky(r->memory, inside, 0, r->work)) return n;
    if (guards_and_rates(c, inside, c->api->array(r->work), middle)) return n;
    r->times[HALVES + DEPTH] = inside;
  } else if (glance(r, HALVES + DEPTH, inside, 0)) return n;
  for (integer i = 0; i < n; i++)
    pace(r, i, h, values_of(r, START)[i], middle[i], values_of(r, END)[i]);
  for (integer i = 0; i < n; i++) {
    const double r0 = fabs(values_of(r, START)[n + i]), rate = fabs(middle[n + i]);
    const double r1 = fabs(values_of(r, END)[n + i]), two = (r0 + rate + r1 - fmin(rate, fmin(r0, r1))) / 2;
    const double mean = fmax((r0 + 4 * rate + r1) / 6, two); /* one of them may be an extremum */
    const double speed = isfinite(mean) ? fmax(mean, speed_of(r)[i]) : speed_of(r)[i];
    const double often = speed * h / (range_of(r)[i] + r->noise[i]);
    if (often > most && isfinite(often)) most = often, found = i;
  }
  return found;
}

/* Whether a guard moves at its rates; those of a stiff state may be inaccurate. Negative on failure. */
static int moves(run *r, integer i) {
  const integer n = r->model->n_guards;
  const int rows[3] = {START, HALVES + DEPTH, END};
  int fastest = START;
  for (int k = 1; k < 3; k++)
    if (fabs(values_of(r, rows[k])[n + i]) > fabs(values_of(r, fastest)[n + i])) fastest = rows[k];
  const double rate = values_of(r, fastest)[n + i], value = values_of(r, fastest)[i];
  const double away = SHORTLY * range_of(r)[i] / fabs(rate), sign = fastest == END ? -1 : 1;
  if (!(away > 0 && away < (r->times[END] - r->times[START]) / 2)) return 0;
  if (glance(r, TRIAL, r->times[fastest] + sign * away, 0)) return FATAL;
  return fabs(values_of(r, TRIAL)[i] - value) >= MOVES * fabs(rate) * away;
}

static int scan(run *r, int a, int b, int depth, double *where);
static void keep_signs(run *r, int row, int earlier);

/* Scan a step at intervals adapted to the guards' speeds; see crossings.py. */
static int keep_up(run *r, int trusted, double until, double *where) {
  context *c = r->model;
  const integer n = c->n_guards;
  const double shortest = (until - r->times[START]) / MOST_LOOKS;
  const int m = HALVES + DEPTH;
  integer crowded = 0, fastest = 0;
  int found = 0;
  if (trusted) /* a guard that starts at an extremum is as fast as elsewhere in the step */
    hasten(r, START), hasten(r, m), hasten(r, END);
  while (!found && r->times[START] < until) {
    double away = r->resolution;
    if (trusted) hasten(r, START);
    for (integer i = 0; i < n; i++) {
      const double one = SPACING * (range_of(r)[i] + r->noise[i] + r->band[i]) / speed_of(r)[i];
      if (one < shortest && one < away) crowded++, fastest = i + 1;
      if (one < away) away = one;
    }
    away = fmax(away, shortest);
    const double t = r->times[START], left = until - t, next = left <= SPACING * away ? until : t + away;
    const int last = next >= until;
    if (glance(r, END, last ? until : next, last && until == r->t)) return FATAL;
    note_turns(r, START, END);
    found = scan(r, START, END, DEPTH, where);
    for (integer i = 0; i < n; i++)
      pace(r, i, r->times[END] - t, values_of(r, START)[i], values_of(r, m)[i], values_of(r, END)[i]);
    if (trusted) hasten(r, m), hasten(r, END);
    keep_signs(r, END, START);
    memcpy(values_of(r, START), values_of(r, END), (size_t)(2 * n) * sizeof(double));
    r->times[START] = r->times[END];
  }
  if (!found && crowded > MOST_LOOKS / 2) { /* too fast to be resolved */
    c->returned = fastest;
    return FATAL;
  }
  return found;
}

/* Whether all guards are far enough from zero, and accurate enough, to skip a closer check: 1 if so, negative on
 * failure. One sample within the step detects guards that vary faster than the steps. */
static int is_calm(run *r) {
  context *c = r->model;
  const integer n = c->n_guards;
  const double *t = r->past, h = t[0] - t[1], inside = t[1] + INSIDE * h;
  double *value = values_of(r, TRIAL);
  if (r->n_past < HISTORY || t[1] - t[2] < GROWN * h) return 0;
  for (integer i = 0; i < n; i++) {
    const double v0 = r->history[i], v1 = r->history[n + i];
    if (!(v0 * v1 > 0) && (v0 != 0 || v1 != 0)) return 0;
  }
  if (c->api->get_dky(r->memory, inside, 0, r->work)) return FATAL;
  c->guard_calls++;
  const double *x = c->api->array(r->work);
  /* only the rate there shows the error of a cubic through the ends */
  if (r->step ? guards_at(c, inside, x, 0, value, value + n) : guards_near(c, inside, x, value)) return FATAL;
  for (integer i = 0; i < n; i++) {
    const double v0 = r->history[i], v1 = r->history[n + i], v2 = r->history[2 * n + i];
    if (v0 == 0 && v1 == 0) continue;
    const double slope = (v0 - v1) / h, bend = (slope - (v1 - v2) / (t[1] - t[2])) / (t[0] - t[2]);
    const double extremum = bend ? (t[0] + t[1]) / 2 - slope / (2 * bend) : t[0];
    const double nearest = fmin(fabs(v0), fabs(v1));
#define PARABOLA(at) (v0 + ((at) - t[0]) * (slope + bend * ((at) - t[1])))
    double off = fabs(PARABOLA(inside) - value[i]);
    if (r->step) off = fmax(off, fabs(h * (slope + bend * (2 * inside - t[0] - t[1]) - value[n + i])));
    if (!keeps_pace(r, i, h, v0, v1, value[i])) return 0;
    const double turn = sign_of(v0) * PARABOLA(extremum);
    const double least = extremum > t[1] && extremum < t[0] ? fmin(nearest, turn) : nearest;
    if (!(least - SAFETY * off >= CALM * nearest)) return 0;
  }
  return 1;
}

/* The same for an explicit step, including the first ones of a segment: by the cubic through values and rates at its ends,
 * and ARKODE's interpolant. That is a cubic as well, so that values of a guard may agree although both are wrong:
 * the rates show it, where the error of a cubic, s^2 (1 - s)^2 (c0 + c1 (s - 1/2)), varies most. */
static int is_clear(run *r) {
  context *c = r->model;
  const integer n = c->n_guards;
  const double h = r->times[END] - r->times[START], places[LOOKS] = {0.21, 0.5, 0.79};
  double *value = values_of(r, TRIAL), *rate = value + n, *off = values_of(r, HALVES), k[4], place;
  memset(off, 0, (size_t)n * sizeof(double));
  for (int j = 0; j < LOOKS; j++) {
    const double s = places[j], t = r->times[START] + s * h;
    if (c->api->get_dky(r->memory, t, 0, r->work)) return FATAL;
    c->guard_calls++;
    if (guards_and_rates(c, t, c->api->array(r->work), value)) return FATAL;
    for (integer i = 0; i < n; i++) {
      cubic(r, START, END, i, k);
      const double slope = k[1] + s * (2 * k[2] + s * 3 * k[3]);
      const double here = fmax(fabs(horner(k, s) - value[i]), fabs(slope - h * rate[i]));
      if (!(here <= off[i])) off[i] = isfinite(here) ? here : HUGE_VAL;
    }
  }
  for (integer i = 0; i < n; i++) {
    const double v0 = values_of(r, START)[i], v1 = values_of(r, END)[i], wrong = SAFETY * off[i];
    cubic(r, START, END, i, k);
    if (v0 * v1 > 0) {
      if (!(smallest(k, sign_of(v0), &place) > wrong + r->noise[i])) return 0;
    } else {
      const double rest[4] = {k[1], k[2], k[3], 0}; /* has left zero for good: k1 + k2 s + k3 s^2 */
      const int leaves = v0 == 0 && v1 != 0 && (c->leaving_sign[i] == 0 || c->leaving_sign[i] * v1 > 0);
      if (!leaves || !(smallest(rest, sign_of(v1), &place) > LEAVING * wrong)) return 0;
    }
  }
  return 1;
}

/* position where a cubic that changes sign from v0 to v1 has crossed and returned before, within an error; else 0 */
static double turns_back(const double *k, double v0, double v1, double off) {
  const double root = sqrt(k[2] * k[2] - 3 * k[1] * k[3]), side = sign_of(v0);
  const double one = (-k[2] + root) / (3 * k[3]), two = (-k[2] - root) / (3 * k[3]);
  const double first = fmin(one, two), second = fmax(one, two);
  if (!(first > 0 && first < 1)) return 0;
  const double over = side * horner(k, first), back = second < 1 ? side * horner(k, second) : -HUGE_VAL;
  if (v1 == 0) return over <= off ? first : 0;
  return over <= off && back >= -off ? first : 0;
}

/* position in (0, 1] where a guard may cross zero without a trace at the ends or the interior sample; else 0 */
static double may_cross(const run *r, int a, int m, int b) {
  for (integer i = 0; i < r->model->n_guards; i++) {
    const double v0 = values_of(r, a)[i], v = values_of(r, m)[i], v1 = values_of(r, b)[i];
    double k[4], place;
    cubic(r, a, b, i, k);
    double off = fabs(horner(k, INSIDE) - v);
    if (r->step) { /* of the state itself: the rate is an independent check */
      const double slope = k[1] + INSIDE * (2 * k[2] + INSIDE * 3 * k[3]), h = r->times[b] - r->times[a];
      off = fmax(off, fabs(slope - h * values_of(r, m)[r->model->n_guards + i]));
    }
    off = fmax(off - 2 * r->noise[i], 0);
    const double largest = fmax(fabs(v0), fmax(fabs(v), fabs(v1)));
    if (v0 * v1 > 0 && v0 * v > 0) {
      const double near = i < determinants(r) ? 0 : r->noise[i];
      if (smallest(k, sign_of(v0), &place) <= SAFETY * off + near) return place > 0 ? place : 1;
    } else if (SAFETY * off > largest)
      return 1;
    else if (v0 != 0 && (place = turns_back(k, v0, v1, SAFETY * off)) > 0)
      return place;
    else if (v0 == 0 && v * v1 > 0) { /* leaving zero, perhaps not for good: k1 + k2 s + k3 s^2 */
      const double rest[4] = {k[1], k[2], k[3], 0};
      if (smallest(rest, sign_of(v), &place) < 0) return place > 0 ? place : 1;
    }
  }
  return 0;
}

/* zero of a cubic that changes sign on [0, 1], as an initial guess for Newton's method */
static double cubic_zero(const double *k) {
  double low = 0, high = 1, s = k[0] / (k[0] - horner(k, 1));
  for (int i = 0; i < GUESSES; i++) {
    const double value = horner(k, s);
    if (value * k[0] > 0) low = s;
    else high = s;
    s -= value / (k[1] + s * (2 * k[2] + s * 3 * k[3]));
    if (!(s > low && s < high)) s = (low + high) / 2;
  }
  return s;
}

/* The first of the guards that change sign between two samples, and its time: Newton's method, safeguarded by a bracket,
 * to the accuracy from which `polish` continues. */
static int first_root(run *r, int a, int b, double *where) {
  const integer n = r->model->n_guards;
  int found = 0;
  for (integer i = 0; i < n; i++) {
    const double f0 = values_of(r, a)[i], f1 = values_of(r, b)[i], h = r->times[b] - r->times[a];
    double t0 = r->times[a], t1 = r->times[b], k[4], before = HUGE_VAL, last = 0, low = 0, high = 0;
    integer jumps = 1;
    if (f0 == 0 || !(sign_of(f0) * f1 < 0) || r->directions[i] * f0 > 0) continue; /* a product may underflow */
    cubic(r, a, b, i, k);
    double t = t0 + h * cubic_zero(k);
    for (int trial = 0; trial < TRIALS && t1 - t0 > 4 * DBL_EPSILON * fmax(fabs(t0), fabs(t1)); trial++) {
      if (!(t > t0 && t < t1)) t = (t0 + t1) / 2;
      if (glance(r, TRIAL, t, 0)) return FATAL;
      const double f = values_of(r, TRIAL)[i], slope = values_of(r, TRIAL)[n + i];
      if (sign_of(f1) * f > 0) t1 = t;
      else t0 = t;
      const double next = t - f / slope, move = fabs(next - t);
      if (f == 0 || (move <= (r->step ? NEAR : CLOSE) * h && next >= t0 && next <= t1)) {
        low = t0, high = t1;
        t1 = f == 0 ? t : next;
        jumps = 0;
        last = f;
        break;
      }
      t = move < before / 2 ? next : (t0 + t1) / 2; /* Newton steps shrink, or the bracket does */
      before = move;
    }
    if (!found || t1 < *where) {
      *where = t1, r->root = i, r->jumps = jumps, r->approach = last;
      r->bracket[0] = low, r->bracket[1] = high, r->beyond = f1;
    }
    found = 1;
  }
  return found;
}

/* replace zeros by the earlier sign */
static void keep_signs(run *r, int row, int earlier) {
  for (integer i = 0; i < r->model->n_guards; i++)
    if (values_of(r, row)[i] == 0) values_of(r, row)[i] = values_of(r, earlier)[i];
}

/* Explicit steps are long from the start: a guard that starts at zero may have left it and returned before the first
 * sample. It is given the sign that it has shortly after the start. */
static int leave_zero(run *r, int a, int m) {
  const context *c = r->model;
  int back = 0;
#define LEAVES(i) (values_of(r, a)[i] == 0 && r->band[i] > 0 && c->leaving_sign[i] != 0)
  for (integer i = 0; i < c->n_guards; i++) back |= LEAVES(i) && values_of(r, m)[i] * c->leaving_sign[i] < 0;
  if (!back) return 0;
  if (glance(r, TRIAL, r->times[a] + MOMENT * (r->times[m] - r->times[a]), 0)) return FATAL;
  for (integer i = 0; i < c->n_guards; i++) {
    const double value = values_of(r, TRIAL)[i];
    if (LEAVES(i) && value * c->leaving_sign[i] > 0) values_of(r, a)[i] = value;
  }
#undef LEAVES
  return 0;
}

/* 1 if a crossing is found between two samples */
static int scan(run *r, int a, int b, int depth, double *where) {
  const int m = HALVES + depth;
  int found = glance(r, m, r->times[a] + INSIDE * (r->times[b] - r->times[a]), 0);
  if (!found && r->step && a == START) found = leave_zero(r, a, m);
  if (found) return FATAL;
  if (is_singular(r, m, where)) {
    const int before = first_root(r, a, m, where); /* a guard that crosses before it */
    return before ? before : is_singular(r, m, where);
  }
  const double place = may_cross(r, a, m, b);
  if (depth && place > 0) {
    found = scan(r, a, m, depth - 1, where);
    if (found) return found;
    keep_signs(r, m, a);
    return scan(r, m, b, depth - 1, where);
  }
  if (place > 0 && place < 1) { /* at the finest level */
    found = glance(r, m, r->times[a] + place * (r->times[b] - r->times[a]), 0);
    if (found) return FATAL;
  }
  found = first_root(r, a, m, where);
  if (found) return found;
  if (is_singular(r, m, where)) return 1;
  keep_signs(r, m, a);
  return first_root(r, m, b, where);
}

static int remember(run *r) {
  context *c = r->model;
  const size_t row = (size_t)c->n_guards;
  memmove(r->history + row, r->history, (HISTORY - 1) * row * sizeof(double));
  memmove(r->past + 1, r->past, (HISTORY - 1) * sizeof(double));
  if (r->step) { /* ARKODE has no root finding: the only evaluation at a step end */
    if (guard_values(c, r->t, c->api->array(r->x), c->latest, 0)) return FATAL;
  } else if (c->latest_time != r->t) {
    if (glance(r, END, r->t, 1)) return FATAL;
    memcpy(c->latest, values_of(r, END), row * sizeof(double));
    c->latest_time = r->t;
  }
  memcpy(r->history, c->latest, row * sizeof(double));
  r->past[0] = r->t;
  r->n_past++;
  return 0;
}

/* Check the guards within the last step; if one has crossed first, r->t becomes the approximate time. Returns 1 then, a
 * negative flag on failure. */
static int look(run *r, int status) {
  context *c = r->model;
  r->approach = 0;
  if (!c->n_guards || r->record == RECORD_DENSE) return 0;
  if (remember(r)) return FATAL;
  const double begin = r->past[1], h = r->t - begin;
  const integer pieces = h > r->resolution ? (integer)ceil(h / r->resolution) : 1;
  double where = 0;
  int found = 0;
  note_turns_at_end(r);
  const int calm = h > 0 && pieces == 1 && !c->returned ? is_calm(r) : 0;
  if (calm < 0) return FATAL;
  if (h > 0 && !calm) {
    for (integer i = 0; i < c->n_guards; i++) { /* relative to the larger end for polynomials, the smaller for explicit steps */
      const double one = fabs(r->history[i]), other = fabs(r->history[c->n_guards + i]);
      r->noise[i] = fmax(r->band[i], NOISE * (r->step ? fmin(one, other) : fmax(one, other)));
      if (i >= determinants(r)) r->noise[i] = TOUCHED * fmax(one, other);
    }
    if (glance(r, START, begin, 0)) return FATAL;
    memcpy(values_of(r, START), r->history + c->n_guards, (size_t)c->n_guards * sizeof(double));
    for (integer piece = 1; piece <= pieces && !found; piece++) {
      const int last = piece == pieces;
      if (glance(r, END, last ? r->t : begin + h * (double)piece / (double)pieces, last)) return FATAL;
      for (integer i = 0; last && status == FOUND_ROOT && i < c->n_guards; i++)
        if (r->roots[i]) values_of(r, END)[i] = 0;
      const integer fast = restless(r);
      if (fast == c->n_guards) return FATAL;
      if (fast >= 0) {
        const double until = r->times[END];
        const int trusted = moves(r, fast);
        found = trusted < 0 ? trusted : keep_up(r, trusted, until, &where);
        if (found < 0) return FATAL;
        continue;
      }
      note_turns(r, START, END);
      const int clear = r->step && pieces == 1 ? is_clear(r) : 0;
      if (clear < 0) return FATAL;
      if (!clear) found = scan(r, START, END, DEPTH, &where);
      if (!found && is_singular(r, END, &where)) found = 1;
      keep_signs(r, END, START);
      memcpy(values_of(r, START), values_of(r, END), (size_t)(2 * c->n_guards) * sizeof(double));
      r->times[START] = r->times[END];
    }
  }
  if (c->returned && !found) { /* it has left in its direction; its return does not concern its transition */
    const integer i = c->returned - 1;
    if (!(r->directions[i] * c->leaving_sign[i] > 0)) return FATAL;
    c->zero_band[i] = 0;
    c->latest[i] = r->history[i] = values_of(r, START)[i];
  }
  c->returned = 0;
  for (integer i = 0; r->step && !found && i < c->n_guards; i++) { /* a zero exactly at the end */
    const double before = r->history[c->n_guards + i];
    if (r->history[i] == 0 && before != 0 && c->zero_band[i] == 0 && r->directions[i] * before <= 0)
      found = 1, where = r->t, r->root = i, r->jumps = 0;
  }
  memcpy(r->band, c->zero_band, (size_t)c->n_guards * sizeof(double));
  if (found == 1) r->t = where;
  return found;
}
