/* ---- explicit Runge-Kutta steps ----------------------------------------------------------------------------
 *
 * ARKODE takes the steps and chooses their size. Its interpolant has a lower order than the steps; a state within a
 * step is therefore the end of a shorter step from the same start, as accurate as the step itself. The state is
 * (x, q, s_1, .., s_d) with s_i = d(x, q) along direction i.
 *
 * With algebraic variables, `flow` is x' = (f, -K_z^-1 (K_y f + K_t)), and they are solved for at every
 * evaluation: the steps are those of y' = f(y, z(y)), with the derivatives of the implicit function. The value of z in
 * the steps is the initial guess of Newton's method, and shows whether it converges to the branch that was followed.
 * The derivatives of z are zero among the states, and are solved for where needed. */
static int augmented(context *c, double t, const double *x, double *out) {
  const double *at;
  int flag = solved(c, t, x, &at);
  if (flag) return flag;
  if (!c->n_directions) return flow(c, t, at, out);
  flag = linearise_and(c, t, at, c->solves ? 0 : out);
  if (!flag && c->solves) flag = flow(c, t, at, out);
  return flag ? flag : along_all(c, 0, 0, x, out);
}

/* linear combinations, elementwise for short vectors, where SUNDIALS' loops over vectors cost more than
 * the arithmetic */
typedef struct {
  integer length;
  int own_data;
  double *data;
} serial; /* content of SUNDIALS' serial vectors */
static int (*plain_combination)(int, double *, vector *, vector);

void dh_take_combination(int (*combination)(int, double *, vector *, vector)) { plain_combination = combination; }

int dh_combination(int count, double *factors, vector *terms, vector sum) {
  const serial *out = *(serial **)sum;
  if (out->length > SHORT || count > SHORT) return plain_combination(count, factors, terms, sum);
  const double *data[SHORT];
  for (int j = 0; j < count; j++) data[j] = (*(serial **)terms[j])->data;
  for (integer i = 0; i < out->length; i++) {
    double value = factors[0] * data[0][i];
    for (int j = 1; j < count; j++) value += factors[j] * data[j][i];
    out->data[i] = value;
  }
  return 0;
}

/* F alone, at a consistent point */
static int rates_at(context *c, double t, const double *x, double *out) {
  c->flow_calls++;
  c->res[0] = out;
  c->res[1] = 0;
  if (evaluate(c, c->flow, t, x)) return FATAL;
  return checked(c, out, c->n);
}

static int rates_of(context *c, double t, const double *x, double *out) {
  const double *at;
  const int flag = solved(c, t, x, &at);
  return flag ? flag : rates_at(c, t, at, out);
}

/* base + h * sum of weights_j K_j */
static void combine(const double *base, double h, const double *weights, const double *stages, integer count,
                    integer size, double *out) {
  if (out != base) memcpy(out, base, (size_t)size * sizeof(double));
  for (integer j = 0; j < count; j++) {
    const double factor = h * weights[j], *stage = stages + j * size;
    if (factor == 0) continue;
    for (integer k = 0; k < size; k++) out[k] += factor * stage[k];
  }
}

/* a step from a state, in place; of x alone if size is n */
static int step_from(run *r, double t, double h, integer size, double *x) {
  context *c = r->model;
  const explicit_step *s = r->step;
  const tableau *rk = &s->table;
  for (integer i = 0; i < rk->stages; i++) {
    const double at = t + rk->c[i] * h;
    combine(x, h, rk->a + i * rk->stages, s->stages, i, size, s->trial);
    const int flag = size == c->n ? rates_of(c, at, s->trial, s->stages + i * size)
                                  : augmented(c, at, s->trial, s->stages + i * size);
    if (flag) return flag;
  }
  combine(x, h, rk->b, s->stages, rk->stages, size, x);
  return 0;
}

/* The state at a time within the step, or x alone if size is n; with shorter steps if algebraic variables are not found
 * otherwise. */
static int part_of_step(run *r, double t, integer size, double *out) {
  const explicit_step *s = r->step;
  const int at_end = t == s->ends;
  int flag = RECOVERABLE;
  for (integer pieces = 1; flag == RECOVERABLE && pieces <= (r->model->solves ? MOST_PIECES : 1); pieces *= 4) {
    const double h = (t - s->begins) / (double)pieces;
    memcpy(out, at_end ? s->end : s->begin, (size_t)size * sizeof(double));
    flag = 0;
    for (integer k = 0; !flag && !at_end && h > 0 && k < pieces; k++)
      flag = step_from(r, s->begins + (double)k * h, h, size, out);
  }
  return flag == RECOVERABLE ? UNCONVERGED : flag;
}

/* the step as a polynomial: t_n, h, order and the derivatives at t_n, like `record_dense` of the other methods */
static int record_polynomial(run *r, double *row) {
  const context *c = r->model;
  const explicit_step *s = r->step;
  const double h = s->ends - s->begins;
  double *at = s->trial + s->size; /* NODES states x */
  row[0] = s->ends, row[1] = h, row[2] = NODES - 1;
  for (int i = 0; i < NODES; i++) {
    const double t = i == 0 ? s->begins : i == NODES - 1 ? s->ends : s->begins + s->nodes[i] * h;
    const int flag = part_of_step(r, t, c->n, at + i * c->n);
    if (flag) return flag;
  }
  double scale = 1;
  for (int k = 0; k < NODES; k++, scale /= h)
    for (integer j = 0; j < c->n; j++) {
      double sum = 0;
      for (int i = 0; i < NODES; i++) sum += s->to_derivatives[k * NODES + i] * at[i * c->n + j];
      row[3 + k * c->n + j] = scale * sum;
    }
  return 0;
}

/* After a step: z advanced by its rates must agree with the equations, to the accuracy of the step. */
int dh_ark_settle(double t, vector y, void *data) {
  context *c = data;
  double *x = ARRAY(y);
  const double *at;
  const int flag = solved(c, t, x, &at);
  for (integer i = c->n_differential; i < c->n; i++) {
    const double allowed = APART * (c->absolute[i] + (c->rtol + SMALL_SHARE * CORRECTED) * fabs(x[i]));
    if (flag || !(fabs(at[i] - x[i]) <= allowed)) c->parted = 1;
    else x[i] = at[i];
  }
  return 0;
}

int dh_ark_rhs(double t, vector y, vector ydot, void *data) { return augmented(data, t, ARRAY(y), ARRAY(ydot)); }
