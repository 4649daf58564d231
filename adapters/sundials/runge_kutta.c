/* ---- explicit Runge-Kutta steps ----------------------------------------------------------------------------
 *
 * ARKODE takes the steps and chooses their size. Its interpolant is of lower order than they are; a state within a step
 * is therefore the end of a shorter step from the same beginning, as accurate as the step itself. The state is
 * (x, q, s_1, .., s_d) with s_i = d(x, q) along direction i. */
static int augmented(context *c, double t, const double *x, double *out) {
  if (!c->n_directions) return flow(c, t, x, out);
  const int flag = linearise_and(c, t, x, out);
  if (!flag) along_all(c, 0, 0, x, out);
  return flag;
}

/* what the steps are combined by, element by element where vectors are short: SUNDIALS' loops over vectors cost more than
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

/* F alone */
static int rates_of(context *c, double t, const double *x, double *out) {
  c->flow_calls++;
  c->res[0] = out;
  c->res[1] = 0;
  if (evaluate(c, c->flow, t, x)) return FATAL;
  return checked(c, out, c->n);
}

/* base + h * sum of weights_j K_j */
static void combine(const double *base, double h, const double *weights, const double *stages, integer count,
                    integer size, double *out) {
  memcpy(out, base, (size_t)size * sizeof(double));
  for (integer j = 0; j < count; j++) {
    const double factor = h * weights[j], *stage = stages + j * size;
    if (factor == 0) continue;
    for (integer k = 0; k < size; k++) out[k] += factor * stage[k];
  }
}

/* the state at a time within the step, or x alone where size is n */
static int part_of_step(run *r, double t, integer size, double *out) {
  context *c = r->model;
  const explicit_step *s = r->step;
  const tableau *rk = &s->table;
  const double h = t - s->begins;
  if (t == s->begins || t == s->ends) {
    memcpy(out, t == s->ends ? s->end : s->begin, (size_t)size * sizeof(double));
    return 0;
  }
  for (integer i = 0; i < rk->stages; i++) {
    const double at = s->begins + rk->c[i] * h;
    combine(s->begin, h, rk->a + i * rk->stages, s->stages, i, size, s->trial);
    const int flag = size == c->n ? rates_of(c, at, s->trial, s->stages + i * size)
                                  : augmented(c, at, s->trial, s->stages + i * size);
    if (flag) return flag;
  }
  combine(s->begin, h, rk->b, s->stages, rk->stages, size, out);
  return 0;
}

/* the step as a polynomial: t_n, h, order and the derivatives at t_n, as `record_dense` of the other methods */
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

int dh_ark_rhs(double t, vector y, vector ydot, void *data) { return augmented(data, t, ARRAY(y), ARRAY(ydot)); }
