/* ---- successive runs ---------------------------------------------------------------------------------------------
 *
 * Each run is one of `dh_run` (native_run.c), with the adjoints of `dh_run_back`, and must be bitwise equal to the result of
 * a single call. The conditions of derivatives are those of conditions.c. */
enum { LEFT_OUT, DONE, STEEP };              /* outcomes, see `Outcomes` in port/native_batch.py */
enum { TO_BEGIN, UNDER_WAY, ARRIVED };       /* stages */

/* Why a run that has stopped is left to a single call. */
static int leave_event(const batch *b, int status) {
  const native_run *v = b->run;
  const event_loop *m = v->tables;
  if (!v->under_way) return leave(b, AT_START, -1);
  const mode_tables *at = m->modes + m->at;
  if (status == PAUSED) return leave(b, m->steps + at->run->steps >= v->max_steps ? TOO_MANY_STEPS : SLOW_OR_STIFF, -1);
  if (status == NOT_STARTED || (at->run->t == m->t1 && status == REACHED_STOP)) return leave(b, AT_END, -1);
  if (status != FOUND_ROOT && status != REACHED_STOP && status != COMPLETE) return leave(b, FAILED_STEP, -1);
  const link *l = at->links + m->exit;
  const integer own = stays(l) ? -1 : l->transition;
  if (m->wanted >= 0) return leave(b, SLOW_OR_STIFF, -1);
  if (!l->cross) return leave(b, NOT_COMPILED, own);
  if (!stays(l) && m->n_events - m->n_passed >= m->max_events) return leave(b, TOO_MANY_EVENTS, -1);
  return leave(b, l->clock < 0 && !stays(l) && accumulates(m, at->run->t) ? ACCUMULATING : SPECIAL_EVENT, own);
}

/* Scale the tolerances of sensitivities by the parameters (`RunBuilder.scales`); returns whether the memories accept them. */
static int set_scales(batch *b) {
  const native_run *v = b->run;
  const event_loop *m = v->tables;
  int same = 1;
  for (integer i = 0; b->resolutions && i < m->n_directions; i++) {
    const double p = m->parameters[b->wrt[i]], size = p != 0 ? fmax(fabs(p), SMALLEST) : 1, scale = 1 / (1 / size);
    same &= scale == b->scales[i];
    b->scales[i] = scale;
  }
  if (same) return 1;
  for (integer k = 0; k < v->n_modes; k++) {
    const resolution *own = b->resolutions + k;
    const run *r = v->runs[k];
    for (integer i = 0; i < m->n_directions; i++) {
      double *values = own->values ? own->values + (i + 1) * own->block : r->model->api->array(r->sensitivities[i]);
      for (integer j = 0; j < own->block; j++) {
        const double absolute = own->of_states[j] / b->scales[i] * own->share;
        values[j] = j < own->n_tested || j >= r->model->n ? absolute : own->untested;
      }
    }
    if (own->tell(r->memory, own->rtol, own->values ? own->absolute : (vector)r->sensitivities) < 0) {
      memset(b->scales, 0, (size_t)m->n_directions * sizeof(double));
      return 0;
    }
  }
  return 1;
}

/* Copy the outputs at given times; returns whether there is one for each time. */
static int put_out(const batch *b, integer place) {
  const event_loop *m = b->run->tables;
  const integer width = b->widest + m->n_memory;
  double *out = b->outputs + place * b->n_t * width;
  integer *modes = b->output_modes + place * b->n_t, count = 0;
  for (integer i = 0; i <= m->n_events; i++) {
    const stretch own = stretch_of(m, i);
    const run *r = m->modes[own.mode].run;
    for (integer k = own.row; k < own.row_end; k++, count++, out += width) {
      if (count == b->n_t) return 0;
      modes[count] = own.mode;
      memcpy(out, r->rows + k * r->width + 1, (size_t)r->model->n * sizeof(double));
      memcpy(out + b->widest, own.memory, (size_t)m->n_memory * sizeof(double));
    }
  }
  return count == b->n_t;
}

/* Digest of a run's sequence; see `digest` in conditions/sequences.py. */
static unsigned long long digested(unsigned long long found, integer code) {
  found = (found ^ (unsigned long long)code) * DIGEST_FACTOR;
  return found ^ found >> DIGEST_SHIFT;
}

static integer digest_of(const batch *b) {
  const native_run *v = b->run;
  event_loop *m = v->tables;
  const double *memory = v->start + v->modes[v->mode].n_x;
  unsigned long long found = DIGEST_BASIS;
  for (integer i = 0; i < b->n_sides; i++) found = digested(found, memory[b->sides[i]] > 0 ? ABOVE : BELOW);
  for (integer i = 0; i < m->n_events; i++) {
    const link *l = link_of(m, i);
    if (l->turns) continue;
    const integer rises = l->clock < 0 && m->records[m->offsets[i] + RATE_AT] > 0;
    found = digested(found, l->measures ? MEASUREMENT : 2 * l->recorded + rises);
  }
  for (integer i = 0; b->differentiates && i < m->n_events; i++) {
    const link *l = link_of(m, i);
    const mode_tables *from;
    const event e = part_of(m, i, &from);
    const double *margin = l->sides ? margins_of(m, l, from, &e, m->records[m->offsets[i]]) : 0;
    for (integer k = 0; margin && k < l->n_sides; k++) found = digested(found, margin[k] > 0 ? ABOVE : BELOW);
  }
  return (integer)found;
}

/* Copy the results of a run. */
static void hand_out(const batch *b, integer place, const double *values) {
  const native_run *v = b->run;
  const event_loop *m = v->tables;
  const run *r = m->modes[m->at].run;
  double *end = b->ends + place * (b->widest + m->n_memory);
  memcpy(end, v->end, (size_t)v->modes[m->at].n_x * sizeof(double));
  memcpy(end + b->widest, r->model->memory, (size_t)m->n_memory * sizeof(double));
  memcpy(b->values + place * m->n_functionals, values, (size_t)m->n_functionals * sizeof(double));
  b->times[place] = r->t;
  b->modes[place] = m->at;
  b->n_events[place] = m->n_events - m->n_passed;
  b->digests[place] = digest_of(b);
  b->n_steps[place] = m->steps + r->steps;
}

/* The adjoint of a completed run; 0, or SUNDIALS' return code. */
static int go_back(const batch *b, const returning *back, double *gradient) {
  const native_run *v = b->run;
  const event_loop *m = v->tables;
  native_gradient *a = back->adjoint;
  sweep *s = a->back;
  memcpy((double *)s->tables->parameters, m->parameters, (size_t)m->n_parameters * sizeof(double));
  for (integer i = 0; i < v->n_modes; i++) {
    const run *own = v->modes[i].run;
    s->modes[i] = own ? back->modes[i] : 0;
    ((const double **)s->paths)[i] = own ? own->path : 0;
    ((integer *)a->path_rows)[i] = own ? own->n_path : 0;
  }
  s->n_events = m->n_events;
  s->begin = m->t0;
  s->marks = b->marks;
  s->offsets = m->offsets;
  s->records = m->records;
  a->start = v->start;
  a->end = v->end;
  a->last = m->at;
  a->path_row = m->path_row;
  a->moved = m->modes[m->at].run->t - (m->n_events ? m->records[m->offsets[m->n_events - 1]] : m->t0);
  const int flag = dh_run_back(a);
  if (!flag) memcpy(gradient, s->totals, (size_t)(s->n_components * s->n_wrt) * sizeof(double));
  return flag;
}

/* The gradients of a completed run, and its outcome. */
static int differentiate_run(const batch *b, const double *values, double *gradients) {
  const native_run *v = b->run;
  const event_loop *m = v->tables;
  if (b->certify && !needs_no_look(b)) return LEFT_OUT;
  const mode_tables *last = v->modes + m->at;
  const integer nf = m->n_functionals, width = last->n_y + m->n_memory + m->n_parameters + 1;
  const double *along = values + nf * (1 + width + 3) + m->modes[m->at].run->model->n + m->n_memory; /* see `arrive` */
  for (integer i = 0; i < m->n_directions; i++)
    for (integer k = 0; k < b->n_components; k++)
      gradients[k * b->n_wrt + i] = along[i * m->n_functionals + b->components[k]];
  if (m->n_directions && !is_resolved_well(b)) return leave(b, UNRESOLVED_DIRECTIONS, -1);
  double *own = gradients;
  for (integer i = 0; i < b->n_back; own += b->back[i].adjoint->back->n_components * b->n_wrt, i++)
    if (go_back(b, b->back + i, own)) return leave(b, FAILED_ADJOINT, -1);
  return !b->certify || is_moderate(b, values, gradients) ? DONE : STEEP;
}

/* Whether Python has raised during the backward sweep, see `interrupted`. */
static int was_interrupted(const batch *b) {
  for (integer i = 0; i < b->n_back; i++)
    for (integer k = 0; k < b->run->n_modes; k++)
      if (b->back[i].modes[k]->model->raised) return 1;
  return 0;
}

/* Set the due times of the time events of a run; returns whether all are known. */
static int set_alarms(const batch *b) {
  event_loop *m = b->run->tables;
  const integer row = b->is_shared ? 0 : b->next - b->first;
  if (!b->listed) return 1;
  for (integer i = 0; i < b->run->n_modes; i++) {
    const integer begin = row * b->listed[i].n;
    m->schedule[i] = b->listed[i];
    m->schedule[i].times += begin;
    m->schedule[i].links += begin; /* the order differs between runs */
    m->schedule[i].counts += begin;
  }
  m->t_stop = m->t1;
  return b->listed_until[row] > m->t1;
}

/* Carry out one run; 0, or the status with which it stopped. */
static int carry_out(batch *b) {
  native_run *v = b->run;
  event_loop *m = v->tables;
  const integer place = b->next, n = b->n_given;
  double *parameters = (double *)m->parameters;
  b->outcomes[place] = LEFT_OUT;
  if (b->stage == TO_BEGIN) {
    memcpy(parameters, b->given + place * n, (size_t)n * sizeof(double));
    if (!all_finite(parameters, n) || !set_alarms(b)) return leave(b, BAD_INPUT, -1);
    if (b->resolutions && !set_scales(b)) return leave(b, BAD_INPUT, -1), FATAL;
    if (b->starts) memcpy(v->start, b->starts + (place - b->started) * b->start_size, (size_t)b->start_size * sizeof(double));
    v->under_way = 0;
    b->stage = UNDER_WAY;
  }
  if (b->stage == UNDER_WAY) {
    const int status = dh_run(v);
    if (status != FINISHED) return status == ROWS_FULL ? status : (leave_event(b, status), status);
    b->stage = ARRIVED;
  }
  if (b->n_back && m->n_events * b->n_components * (b->back->adjoint->back->marks_width + b->n_wrt) > b->room) return MARKS_FULL;
  for (integer i = 0; i < v->n_modes; i++)
    if (b->n_back && v->modes[i].run && !v->runs[i]->path) return leave(b, FAILED_ADJOINT, -1), NOT_STARTED;
  const mode_tables *last = v->modes + m->at;
  const double *values = v->end + 2 * last->n_x + 3 * last->n_guards;
  if (b->n_t && !put_out(b, place)) return leave(b, SPECIAL_EVENT, -1);
  const double steps = (double)(m->steps + last->run->steps);
  if (DBL_EPSILON * fabs(m->t0) * steps > LOST_SHARE * m->rtol * (last->run->t - m->t0)) return leave(b, COARSE_TIMES, -1);
  int outcome = DONE;
  if (b->differentiates) outcome = differentiate_run(b, values, b->gradients + place * b->n_components * b->n_wrt);
  if (outcome == LEFT_OUT) return was_interrupted(b) ? NOT_STARTED : 0;
  hand_out(b, place, values);
  b->outcomes[place] = outcome;
  return 0;
}

/* Carry out runs from `next` on; returns 0 when all are done. Otherwise call again: with larger buffers, or, for the next
 * run, with reset tables and memories (NOT_STARTED), or new ones (`broken`). PAUSED: it was stopped. */
int dh_batch(batch *b) {
  for (; b->next < b->until; b->next++, b->stage = TO_BEGIN) {
    if (b->stopped) return PAUSED;
    const int status = carry_out(b);
    if (status == ROWS_FULL || status == MARKS_FULL) return status;
    if (status) {
      b->broken = status < 0;
      return NOT_STARTED;
    }
  }
  return 0;
}
