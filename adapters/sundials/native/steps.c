/* ---- the step loop ---------------------------------------------------------------------------------- */

/* the caller provides room for every output time and for the rows of one step */
static double *new_row(run *r) { return r->rows + r->n_rows++ * r->width; }

/* a row holds t, the current x of the run, and every sensitivity vector */
static void record_values(run *r, double t, const vector *sensitivities) {
  const context *c = r->model;
  double *row = new_row(r);
  *row++ = t;
  memcpy(row, c->api->array(r->x), (size_t)c->n * sizeof(double));
  row += c->n;
  for (integer i = 0; i < c->n_directions && sensitivities; i++, row += c->n)
    memcpy(row, c->api->array(sensitivities[i]), (size_t)c->n * sizeof(double));
}

static void record_point(run *r, double t) { record_values(r, t, r->sensitivities); }

/* all reported quantities, from the solver's interpolant at t */
static int fetch(run *r, double t) {
  const context *c = r->model;
  if (r->step) return part_of_step(r, t, r->step->size, c->api->array(r->x));
  int flag = c->api->get_dky(r->memory, t, 0, r->x);
  if (!flag && r->implicit) flag = c->api->get_dky(r->memory, t, 1, r->xdot);
  if (!flag && r->sensitivities) flag = c->api->get_sens_dky(r->memory, t, 0, r->sensitivities);
  return flag;
}

static int record_outputs(run *r, double limit, int inclusive) {
  while (r->next_eval < r->n_eval) {
    const double t = r->t_eval[r->next_eval];
    if (inclusive ? t > limit : t >= limit) break;
    const int flag = fetch(r, t);
    if (flag) return flag;
    record_point(r, t);
    r->next_eval++;
  }
  return 0;
}

/* t_n, h, order and the derivatives 0..order at t_n: the solver's interpolant on [t_n - h, t_n] */
static int record_dense(run *r, double *row) {
  const context *c = r->model;
  int order = 0;
  if (r->step) return record_polynomial(r, row);
  memset(row, 0, (size_t)(3 + (r->dense_order + 1) * c->n) * sizeof(double));
  c->api->get_current_time(r->memory, &row[0]);
  c->api->get_last_step(r->memory, &row[1]);
  c->api->get_last_order(r->memory, &order);
  if (order > r->dense_order) order = (int)r->dense_order;
  row[2] = order;
  for (int k = 0; k <= order; k++) {
    const int flag = c->api->get_dky(r->memory, row[0], k, r->work);
    if (flag) return flag;
    memcpy(row + 3 + k * c->n, c->api->array(r->work), (size_t)c->n * sizeof(double));
  }
  return 0;
}

/* path of the adjoint: the step ends of an explicit method, the polynomials of other methods */
static int keep(run *r, int step) {
  const context *c = r->model;
  if (!r->path || step == !!r->step) return 0;
  double *row = r->path + r->n_path++ * r->path_width;
  if (step) return record_dense(r, row);
  row[0] = r->t;
  row[1] = r->t == r->step->ends ? r->step->length : r->t - r->step->begins;
  memcpy(row + POINT_COLUMNS, c->api->array(r->x), (size_t)c->n * sizeof(double));
  return 0;
}

/* x and x' that satisfy the mode's equations to rounding, starting from the solver's values */
static int complete(run *r, double t) {
  context *c = r->model;
  double *x = c->api->array(r->x);
  c->res[0] = r->completed;
  c->res[1] = r->completed + c->n;
  c->res[2] = r->completed + 2 * c->n;
  if (evaluate(c, c->complete, t, x)) return FATAL;
  if (!all_finite(r->completed, 2 * c->n)) { c->not_finite++; return FATAL; }
  double off = 0, scale = 0;
  for (integer i = 0; i < c->n_differential; i++) scale = fmax(scale, fabs(r->completed[c->n + i]));
  for (integer i = c->n_differential; i < c->n; i++) {
    scale = fmax(scale, fabs(r->completed[i]));
    off = fmax(off, fabs(r->completed[i] - x[i]));
  }
  if (off > r->loose * scale) r->loose = off / scale;
  for (integer i = 0; i < c->n - c->n_differential; i++) r->loose = fmax(r->loose, r->completed[2 * c->n + i]);
  memcpy(x, r->completed, (size_t)c->n * sizeof(double));
  if (r->xdot) memcpy(c->api->array(r->xdot), r->completed + c->n, (size_t)c->n * sizeof(double));
  return 0;
}

/* the consistent point at a time within the step, and the guards there */
static int come_to(run *r, double t) {
  context *c = r->model;
  int flag = r->step ? part_of_step(r, t, c->n, c->api->array(r->x)) : c->api->get_dky(r->memory, t, 0, r->x);
  if (!flag) flag = complete(r, t);
  return flag ? flag : guards_at(c, t, c->api->array(r->x), 1, r->guard_values, r->guard_values + c->n_guards);
}

/* Bisect the bracket of the zero down to rounding. The rate may be infinite at the zero itself, but not beside it. */
static int bisect(run *r, double *t) {
  double t0 = r->bracket[0], t1 = r->bracket[1];
  for (double middle = t0 + (t1 - t0) / 2; middle > t0 && middle < t1; middle = t0 + (t1 - t0) / 2) {
    const int flag = come_to(r, middle);
    if (flag) return flag;
    if (sign_of(r->beyond) * r->guard_values[r->root] >= 0) t1 = middle;
    else t0 = middle;
  }
  const int flag = come_to(r, *t = t1);
  return flag || isfinite(r->guard_values[r->model->n_guards + r->root]) ? flag : come_to(r, *t = t0);
}

/* Newton's method on the solver's interpolant improves the event time from the bracket's tolerance to rounding. For a guard
 * that behaves like a square root it oscillates, and need not come closer. */
static int polish(run *r) {
  context *c = r->model;
  double now, h, t = r->t, before = r->approach;
  c->api->get_current_time(r->memory, &now);
  c->api->get_last_step(r->memory, &h);
  const double rounding = TO_AND_FRO * DBL_EPSILON * (fabs(now) + fabs(h));
  for (int i = 0; i < 4; i++) {
    const int flag = come_to(r, t);
    if (flag) return flag;
    const double dt = -r->guard_values[r->root] / r->guard_values[c->n_guards + r->root];
    if (r->step && r->jumps) break;
    const double value = r->guard_values[r->root], share = before ? fabs(value / before) : 1;
    if (!r->implicit && r->approach && before * value < 0 && (share > SHRINKS || i == 3) && fabs(dt) > rounding) {
      const int off = bisect(r, &t);
      if (off) return off;
      break;
    }
    /* SUNDIALS locates the root to 100 roundings: anything farther away is another root */
    const double allowed = fmax(POLISH * DBL_EPSILON * (fabs(now) + fabs(h)), r->step ? REFINED * h : 0);
    if (!(fabs(t + dt - r->t) <= allowed) || t + dt > now || t + dt < now - h) break;
    t += dt;
    /* values shrink by about the same ratio again: the guard's rate is not exactly that of the states in a step */
    if (fabs(dt) * fmin(share, 1) <= DBL_EPSILON * fabs(t)) break;
    before = value;
  }
  r->t = t;
  if (!r->step) return 0;
  { /* a zero to the accuracy of time, or a jump through zero, but not a pole */
    const double value = fabs(r->guard_values[r->root]), rate = fabs(r->guard_values[c->n_guards + r->root]);
    const double largest = fmax(fabs(r->history[r->root]), fabs(r->history[c->n_guards + r->root]));
    if (value > largest && value > r->band[r->root]) return LOST;
    if (r->jumps) return 0;
    const double reach = REFINED * h + POLISH * DBL_EPSILON * (fabs(now) + fabs(h));
    return value <= rate * reach || value <= r->band[r->root] || value <= r->noise[r->root] ? 0 : LOST;
  }
}

static void count_failures(run *r) {
  const sundials_api *api = r->model->api;
  long failures = 0;
  api->get_error_test_failures(r->memory, &failures);
  if (r->step) failures -= r->failures_before; /* ARKODE's count is cumulative */
  r->error_test_failures = failures;
  if (api->get_newton_failures) api->get_newton_failures(r->memory, &r->newton_failures);
}

static int finish(run *r, int status) {
  context *c = r->model;
  const double t = r->t;
  int flag = record_outputs(r, t, r->closed_end && status == REACHED_STOP);
  if (!flag) flag = fetch(r, t);
  if (!flag) flag = complete(r, t);
  if (!flag && status == FOUND_ROOT)
    flag = guards_at(c, t, c->api->array(r->x), 1, r->guard_values, r->guard_values + c->n_guards);
  if (!flag) flag = keep(r, 0);
  if (!flag && r->record == RECORD_STEPS && !r->n_eval) record_point(r, t);
  count_failures(r);
  if (r->step) c->api->get_next_step(r->memory, &r->next_step);
  return flag ? flag : status;
}

/* Reset the weights: those of a segment must not depend on the previous one. */
static void forget_spread(const context *c) {
  const integer ny = c->n_differential, nz = c->n - ny;
  if (c->spread) memset(c->spread, 0, (size_t)(c->linear ? nz : nz * ny) * sizeof(double));
}

/* Restart the solver at r->t from its vectors, and record the start. */
int dh_begin(run *r) {
  context *c = r->model;
  r->steps = 0;
  r->error_test_failures = r->newton_failures = 0;
  r->loose = r->longest = 0;
  r->blurred = 0;
  c->point_valid = c->interpolated_valid = c->held_valid = 0;
  forget_spread(c);
  if (c->together) c->together->held = 0;
  c->root_calls = c->resting = c->weighed = 0;
  int flag = r->implicit ? c->api->ida_reinit(r->memory, r->t, r->x, r->xdot)
             : r->step   ? c->api->erk_reinit(r->memory, dh_ark_rhs, r->t, r->x)
                         : c->api->cvode_reinit(r->memory, r->t, r->x);
  if (!flag && r->sensitivities && !r->step)
    flag = r->implicit
               ? c->api->ida_sens_reinit(r->memory, (int)r->corrector, r->sensitivities, r->sensitivity_rates)
               : c->api->cvode_sens_reinit(r->memory, (int)r->corrector, r->sensitivities);
  if (!flag) flag = c->api->set_stop_time(r->memory, r->t_stop);
  if (!flag && r->step) {
    explicit_step *s = r->step;
    for (integer i = 0; i < c->n_directions; i++)
      memset((double *)c->api->array(r->sensitivities[i]) + c->n_differential, 0, (size_t)(c->n - c->n_differential) * sizeof(double));
    flag = c->api->set_first_step(r->memory, fmin(r->first_step, r->t_stop - r->t));
    s->begins = s->ends = r->t;
    s->length = 0;
    memcpy(s->end, c->api->array(r->x), (size_t)s->size * sizeof(double));
    c->api->get_error_test_failures(r->memory, &r->failures_before);
  }
  memcpy(r->band, c->zero_band, (size_t)c->n_guards * sizeof(double));
  memcpy(r->noise, c->zero_band, (size_t)c->n_guards * sizeof(double));
  memset(r->pace, 0, (size_t)(2 * c->n_guards) * sizeof(double));
  c->returned = 0;
  r->n_past = 0;
  c->latest_time = HUGE_VAL; /* none yet */
  if (!flag && c->n_guards) flag = remember(r);
  if (!flag) flag = keep(r, 0);
  if (!flag && r->record == RECORD_STEPS) {
    if (!r->n_eval) record_point(r, r->t);
    for (; r->next_eval < r->n_eval && r->t_eval[r->next_eval] <= r->t; r->next_eval++)
      record_point(r, r->t_eval[r->next_eval]);
  }
  return flag;
}

/* Set the reported quantities at the point of a pause. */
int dh_stop(run *r) {
  int flag = fetch(r, r->t);
  if (!flag) flag = complete(r, r->t);
  count_failures(r);
  return flag;
}

/* Whether a guard that was zero has left zero on one side and come back to the other within the step. A guard that was
 * already on its way to the other side at the start of the step is handled by `guard_values`. */
static int came_back(run *r) {
  context *c = r->model;
  int leaving = 0;
  for (integer i = 0; i < c->n_guards; i++) leaving |= c->zero_band[i] > 0 && c->leaving_sign[i] != 0;
  if (!leaving) return 0;
  c->guard_calls++;
  if (guards_at(c, r->t, c->api->array(r->x), 0, r->guard_values, 0)) return 0;
  for (integer i = 0; i < c->n_guards; i++)
    if (c->zero_band[i] > 0 && fabs(r->guard_values[i]) > c->zero_band[i] && r->guard_values[i] * c->leaving_sign[i] < 0) {
      if (guards_at(c, r->step->ends, r->step->end, 0, r->guard_values + c->n_guards, 0)) return 0;
      return !(r->guard_values[c->n_guards + i] * c->leaving_sign[i] < -0.5 * c->zero_band[i]);
    }
  return 0;
}

/* One step. If the equations are not finite beyond a point, or algebraic variables are not found, ARKODE fails: restart
 * with shorter steps; also if a first step was so long that it skipped the next event. */
static int explicit_advance(run *r) {
  context *c = r->model;
  explicit_step *s = r->step;
  double h = 0;
  int status = 0;
  for (int k = 0; k <= SHORTER; k++) {
    const integer before = c->not_finite, unsolved = c->unsolved;
    c->parted = 0;
    status = c->api->cvode(r->memory, r->t_stop, r->x, &r->t, ONE_STEP);
    if (c->parted || (status < 0 && c->unsolved > unsolved)) status = UNCONVERGED;
    if (status >= 0 ? !came_back(r) : c->not_finite == before && status != UNCONVERGED) break;
    if (k == SHORTER) break;
    if (status >= 0 || c->parted) h = r->t - s->ends;
    else if (!k) c->api->get_next_step(r->memory, &h);
    h = fmin(h > 0 ? h : HUGE_VAL, r->t_stop - s->ends) / 8;
    memcpy(c->api->array(r->x), s->end, (size_t)s->size * sizeof(double));
    if (!(h > DBL_EPSILON * fabs(s->ends)) || c->api->cvode_reinit(r->memory, s->ends, r->x) ||
        c->api->set_first_step(r->memory, h) || c->api->set_stop_time(r->memory, r->t_stop))
      break;
  }
  if (status < 0) {
    r->t = s->ends;
    return status;
  }
  double *free_one = s->begin;
  s->begin = s->end, s->end = free_one;
  s->begins = s->ends, s->ends = r->t;
  if (c->api->get_last_step(r->memory, &s->length)) return FATAL;
  memcpy(s->end, c->api->array(r->x), (size_t)s->size * sizeof(double));
  return status;
}

/* Local errors of sensitivities, in tolerances, in a step chosen without them: the largest over all directions
 * is added to the sum of the run. For multistep methods the error is the change from the prediction over order + 1
 * (Hairer, Norsett, Wanner, Solving Ordinary Differential Equations I, III.2, with constant steps), for Runge-Kutta
 * methods the difference of the embedded pair. */
static int add_sensitivity_error(const run *r) {
  context *c = r->model;
  const integer size = c->n + c->n_integrals;
  vector *predicted = 0, *now = 0, *rate = 0, *before = 0;
  double t, cj, largest = 0;
  void *data;
  int order = 0, flag;
  if (r->step) flag = c->api->get_local_errors(r->memory, r->errors);
  else flag = c->api->get_last_order(r->memory, &order);
  if (!flag && r->implicit) flag = c->api->ida_sens_system(r->memory, &t, &predicted, &before, &now, &rate, &cj, &data);
  else if (!flag && !r->step) flag = c->api->get_current_sens(r->memory, &now);
  if (flag) return flag;
  for (integer i = 0; i < c->n_directions; i++) {
    const double *absolute = c->sensitivity_absolute + i * size;
    const double *value = c->api->array(r->step ? r->sensitivities[i] : now[i]);
    const double *from = r->step ? (double *)c->api->array(r->errors) + (i + 1) * size
                         : r->implicit ? c->api->array(predicted[i]) : c->predicted + i * size;
    double sum = 0;
    for (integer j = 0; j < size; j++) {
      const double error = r->step ? from[j] : (value[j] - from[j]) / (order + 1);
      const double share = error / (absolute[j] + c->sensitivity_rtol * fabs(value[j]));
      sum += share * share;
    }
    sum = sqrt(sum / (double)size);
    if (!(sum <= largest)) largest = sum == sum ? sum : HUGE_VAL;
  }
  c->sensitivity_error += largest;
  return 0;
}

/* Whether steps have shrunk to the rounding of time, at a singularity, or (STALLED) have grown again, from noise. */
static int at_rounding(run *r, double moved) {
  const double rounding = DBL_EPSILON * fabs(r->t);
  r->longest = fmax(r->longest, moved);
  if (moved > FINE * rounding) return r->blurred ? STALLED : 0;
  if (moved >= rounding || r->longest <= FINE * rounding || r->blurred) return 0;
  r->blurred = 1;
  return AT_ROUNDING;
}

/* Step from r->t to the stop time, a root, a failure or the end of the budget (then call again); AT_ROUNDING once where steps
 * shrink to the rounding of time. */
int dh_advance(run *r) {
  const context *c = r->model;
  for (integer step = 0, stuck = 0; step < r->budget; step++) {
    const double before = r->t;
    if (r->record && !r->n_eval && r->n_rows + 2 > r->capacity) return ROWS_FULL;
    if (r->path && r->n_path + 2 > r->path_capacity) return ROWS_FULL;
    const int status = r->implicit ? c->api->ida(r->memory, r->t_stop, &r->t, r->x, r->xdot, ONE_STEP)
                       : r->step   ? explicit_advance(r)
                                   : c->api->cvode(r->memory, r->t_stop, r->x, &r->t, ONE_STEP);
    if (status < 0) return status;
    r->steps++;
    if (c->memory_of && add_sensitivity_error(r)) return FATAL;
    stuck = r->t == before ? stuck + 1 : 0; /* SUNDIALS would continue until its step underflows, and then forever */
    const int blurred = status == REACHED_STOP || status == FOUND_ROOT ? 0 : at_rounding(r, r->t - before);
    if (stuck >= STUCK || blurred == STALLED) return STALLED;
    if (r->record == RECORD_DENSE) {
      const int flag = record_dense(r, new_row(r));
      if (flag) return flag;
      if (r->t >= r->until) return finish(r, REACHED_STOP);
    }
    const int kept = keep(r, 1);
    if (kept) return kept;
    if (status == FOUND_ROOT) {
      c->api->get_root_info(r->memory, r->roots);
      for (r->root = 0; r->root < c->n_guards - 1 && !r->roots[r->root]; r->root++) {}
    }
    const integer unsolved = c->unsolved;
    const int seen = look(r, status);
    if (seen < 0 && c->unsolved > unsolved) r->t = r->step->begins;
    if (seen < 0) return c->unsolved > unsolved ? UNCONVERGED : seen;
    if (seen || status == FOUND_ROOT) {
      if (r->root >= determinants(r)) { /* near it there is no consistent point */
        const int flag = record_outputs(r, r->t, 0);
        count_failures(r);
        return flag ? flag : SINGULAR;
      }
      const int flag = polish(r);
      return flag ? flag : finish(r, FOUND_ROOT);
    }
    if (status == REACHED_STOP) {
      r->t = r->t_stop;
      return finish(r, status);
    }
    keep(r, 0);
    if (r->record == RECORD_STEPS) {
      vector *now = 0; /* the corrector's own vectors: no interpolation, no copy */
      if (r->step) now = r->sensitivities;
      int flag = r->sensitivities && !r->n_eval && !r->step ? c->api->get_current_sens(r->memory, &now) : 0;
      if (!flag && r->n_eval) flag = record_outputs(r, r->t, 1);
      if (flag) return flag;
      if (!r->n_eval) record_values(r, r->t, now);
    }
    if (blurred) return blurred;
  }
  return PAUSED;
}

/* ---- the adjoint of a segment ------------------------------------------------------------------------- */

/* Where the steps of the path end on the clock: sums of steps are as accurate near the origin as differences of times are
 * not. */
static void set_clocks(const backward *r) {
  context *c = r->model;
  const integer last = c->path_rows - 1;
  if (r->anchor == FROM_START) {
    for (integer i = 0; i <= last; i++) c->clocks[i] = (i ? c->clocks[i - 1] : 0) + c->path[i * c->path_width + 1];
    return;
  }
  c->clocks[last] = c->path[last * c->path_width] - r->begun;
  for (integer i = last; i > 0; i--) c->clocks[i - 1] = c->clocks[i] - c->path[i * c->path_width + 1];
}

/* Start the solver at r->clock from its vectors. An adjoint has boundary layers of its own at the end of a segment, as short
 * as the equations are fast, and those of the solution at its start: time is measured from the end, or from the start. */
static int start_back(backward *r) {
  context *c = r->model;
  c->origin = r->anchor == FROM_END ? r->begun : r->t_stop;
  c->earliest = r->t_stop;
  c->interpolated_valid = 0;
  r->target = r->toward = r->anchor == FROM_END ? c->clocks[0] - c->path[1] : 0;
  /* CVODE's first step is at least a hundred roundings of the time passed to it */
  if (r->cautious && !r->implicit) r->toward = r->clock + NEARBY * (r->target - r->clock);
  int flag = r->implicit ? c->api->ida_reinit(r->memory, r->clock, r->x, r->xdot)
                         : c->api->cvode_reinit(r->memory, r->clock, r->x);
  if (!flag && c->n_wrt + c->n_memory) flag = c->api->quad_reinit(r->memory, r->integrals);
  return flag ? flag : c->api->set_stop_time(r->memory, r->target);
}

/* Continue from the current point with the other origin of time, or again from the end with a short step. */
static int restart_back(backward *r, integer anchor) {
  context *c = r->model;
  double at, *x = c->api->array(r->x);
  if (!r->steps) {
    memcpy(x, c->api->array(r->sample), (size_t)(c->n + 1) * sizeof(double));
  } else if (c->n_wrt + c->n_memory) {
    const int flag = c->api->get_quad(r->memory, &at, r->integrals);
    if (flag) return flag;
  }
  if (r->implicit) { /* the solver's interpolant gives the rates to tolerance only */
    double *rates = c->api->array(r->xdot);
    const int flag = adjoint(c, r->clock, x, 1, rates);
    if (flag) return flag;
    for (integer j = 0; j < c->n; j++) rates[j] = j < c->n_differential ? -rates[j] : 0;
  }
  const integer i = path_row(c, r->clock);
  const double offset = r->clock - c->clocks[i];
  r->anchor = anchor;
  set_clocks(r);
  r->clock = c->clocks[i] + offset;
  return start_back(r);
}

/* Start at r->t, toward r->t_stop. */
int dh_begin_back(backward *r) {
  const context *c = r->model;
  memcpy(c->api->array(r->sample), c->api->array(r->x), (size_t)(c->n + 1) * sizeof(double));
  r->begun = r->t;
  r->bound = -1;
  r->clock = 0;
  r->steps = r->next_eval = r->cautious = 0;
  r->anchor = FROM_END;
  set_clocks(r);
  return start_back(r);
}

/* Longest backward step from a time; `longest` holds the bound at the ends of forward steps. */
static double longest_step(const backward *r, double clock) {
  context *c = r->model;
  const integer i = path_row(c, clock);
  const double *longest = r->longest + i;
  return i ? fmin(longest[0], longest[-1] + (clock - c->clocks[i - 1]) / 2) : longest[0];
}

/* Take at most `budget` steps back to r->t_stop, none longer than the path allows. */
int dh_back(backward *r) {
  context *c = r->model;
  for (integer stuck = 0, last = r->steps + r->budget; r->steps < last;) {
    const double before = r->clock;
    double ahead = 0; /* SUNDIALS has chosen the length of this step, and chooses the next one at its end */
    if (r->steps && c->api->get_next_step(r->memory, &ahead)) return FATAL;
    const double most = fmin(longest_step(r, r->clock), r->max_step), stop = fmax(r->target, r->clock - most);
    const int is_short = r->steps && fabs(ahead) > most && stop > r->target; /* a bound does not shorten constant functions */
    const int told = c->api->set_stop_time(r->memory, is_short ? stop : r->target);
    if (told) return told;
    const double bound = fmin(longest_step(r, is_short ? r->clock - most : r->clock + ahead), r->max_step);
    if (bound != r->bound) {
      const int flag = c->api->set_max_step(r->memory, bound < HUGE_VAL ? bound : 0);
      if (flag) return flag;
      r->bound = bound;
    }
    int status = r->implicit ? c->api->ida(r->memory, r->toward, &r->clock, r->x, r->xdot, ONE_STEP)
                             : c->api->cvode(r->memory, r->toward, r->x, &r->clock, ONE_STEP);
    if (status == REACHED_STOP && is_short) status = 0;
    const double moved = status < 0 ? 0 : fabs(r->clock - before);
    const int blurred = status != REACHED_STOP && moved < FINE * DBL_EPSILON * fabs(r->steps ? r->clock : r->toward);
    if (!r->steps && !r->cautious && blurred && !c->raised) {
      r->clock = 0;
      r->cautious = 1;
      const int flag = restart_back(r, FROM_END);
      if (flag) return flag;
      continue;
    }
    if (status < 0) return status;
    r->steps++;
    r->t = status == REACHED_STOP ? r->t_stop : time_of(c, r->clock);
    r->toward = r->target;
    stuck = moved == 0 ? stuck + 1 : 0;
    if (stuck >= STUCK) return STALLED;
    for (; r->next_eval < r->n_eval; r->next_eval++) {
      const double asked = r->t_eval[r->next_eval] - c->origin; /* to the rounding of time */
      if (asked < r->clock && status != REACHED_STOP) break;
      const int flag = c->api->get_dky(r->memory, fmax(fmin(asked, before), r->clock), 0, r->sample);
      if (flag) return flag;
      memcpy(r->samples + r->next_eval * c->n, c->api->array(r->sample), (size_t)c->n * sizeof(double));
    }
    if (status == REACHED_STOP) return status;
    const integer anchor = r->t - r->t_stop > (r->begun - r->t_stop) / 2 ? FROM_END : FROM_START;
    const int flag = blurred && anchor != r->anchor ? restart_back(r, anchor) : 0;
    if (flag) return flag;
  }
  return PAUSED;
}
