/* Callbacks and step loop of the native SUNDIALS adapter.
 *
 * The file is model-independent and includes no SUNDIALS header: the functions of the model (generated
 * by CasADi) and the few SUNDIALS functions that the loop needs arrive as tables of pointers, so any C
 * compiler can build it and it binds to exactly the library that Python loaded.
 *
 * A mode is the system  M x' = F(t, x, m, p)  with M = diag(1, .., 1, 0, .., 0): the first
 * `n_differential` rows are differential equations, the others 0 = F_i. CVODES serves it when all rows
 * are differential, IDAS otherwise. `m` is the memory, constant between transitions. Integrands are
 * integrated as further states q' = g behind x (measured: a third less work than SUNDIALS' quadratures on
 * small systems, under the same error control, and clear of a defect of Adams with quadrature sensitivities).
 * The layout of the structs is mirrored in driver.py; `dh_sizes` lets Python check that they agree. */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

typedef long long integer;
typedef void *vector;
typedef int (*casadi_function)(const double **arg, double **res, integer *iw, double *w, int mem);

enum { ONE_STEP = 2 };                       /* CV_ONE_STEP == IDA_ONE_STEP */
enum { REACHED_STOP = 1, FOUND_ROOT = 2 };   /* CV_TSTOP_RETURN, CV_ROOT_RETURN and IDA's twins */
enum { PAUSED = 100, ROWS_FULL = 101, STALLED = 102, STUCK = 50 }; /* STUCK steps without progress are enough */
enum { RECORD_NOTHING = 0, RECORD_STEPS = 1, RECORD_DENSE = 2 };
enum { RECOVERABLE = 1, FATAL = -1 };
enum { SOLVES = 10 };                        /* of three Newton steps each */
#define CONVERGED 1e-11                      /* last relative correction of algebraic variables */
enum { POLISH = 10000 };                     /* roundings that the polished event time may move by */
enum { DEPTH = 8 };                          /* halvings of a step in search of a guard's zeros */
enum { HALVES, START = DEPTH + 1, END, TRIAL, GLANCES }; /* rows of `run.glances` */
enum { HISTORY = 3 };                        /* ends of steps whose guards are kept */
#define SAFETY 4.0                           /* a cubic is at most this many times as wrong as within */
#define CALM 0.25                            /* a parabola that is this far from zero and from wrong needs no look */
#define GROWN 0.4                            /* and the steps before were no shorter than this share of the next */
#define INSIDE 0.43                          /* where in a step it is looked at; the middle may be a zero of its own */
#define NOISE 1e-13                          /* of a guard, relative to its values at the ends of a step */
#define TRIALS 100
#define SIGNALS 0.1                          /* seconds between two looks at Python's signals */
enum { UNWATCHED = 64 };                     /* evaluations between two looks at the clock, where they are short */

typedef struct {
  double *(*array)(vector);
  double *(*matrix)(void *);
  int (*cvode)(void *, double, vector, double *, int);
  int (*ida)(void *, double, double *, vector, vector, int);
  int (*cvode_reinit)(void *, double, vector);
  int (*ida_reinit)(void *, double, vector, vector);
  int (*cvode_sens_reinit)(void *, int, vector *);
  int (*ida_sens_reinit)(void *, int, vector *, vector *);
  int (*set_stop_time)(void *, double);
  int (*set_max_step)(void *, double);
  int (*get_dky)(void *, double, int, vector);
  int (*get_sens_dky)(void *, double, int, vector *);
  int (*get_current_sens)(void *, vector **);
  int (*get_last_step)(void *, double *);
  int (*get_last_order)(void *, int *);
  int (*get_current_time)(void *, double *);
  int (*get_root_info)(void *, int *);
  int (*get_error_test_failures)(void *, long *);
  int (*get_newton_failures)(void *, long *);
} sundials_api;

typedef struct {                             /* of Python's own C functions: PyGILState_Ensure, PyGILState_Release, */
  int (*acquire)(void);                      /* PyErr_CheckSignals, PyErr_GetRaisedException */
  void (*release)(int);
  int (*check_signals)(void);
  void *(*take_raised)(void);
} python_api;

typedef struct {                             /* compressed columns; the values lie in `value` */
  const integer *column;
  const integer *row;
  double *value;
} sparse;

typedef struct {
  const sundials_api *api;
  casadi_function flow, jacobian, linearised, guards, rates, complete;
  const double **arg;
  double **res;
  integer *iw;
  double *w;
  integer n, n_differential, n_functionals, n_integrals, n_memory, n_parameters, n_guards, n_directions, n_wrt;
  const double *parameters, *memory;
  const double *parameter_directions;        /* n_parameters x n_directions, column by column */
  const double *memory_directions;           /* n_memory x n_directions */
  const integer *wrt;                        /* parameters whose gradient is wanted */
  const double *weights;                     /* n_wrt + n_memory: the guide of the backward pass, see `adjoint` */
  double *integrands;                        /* n_wrt + n_memory doubles of work */
  sparse state_jacobian, integrand_jacobian; /* F_x and, transposed, g_x; filled by `jacobian` */
  sparse f_x, f_p, f_m;                      /* filled together by `linearised` */
  sparse g_x, g_p, g_m;                      /* transposed: one column per integrand */
  double *zero_band;                         /* per guard: |guard| at most this counts as zero until it has left */
  const double *departure;                   /* sign with which it has to leave zero, 0 where unknown */
  double *latest;                            /* n_guards: guards as SUNDIALS has seen them last, and when */
  double latest_time;
  double *point;                             /* n doubles: argument of the cached linearisation */
  double *parameter_gradient;                /* n_parameters doubles of work */
  const double *path;                        /* rows of `record_dense`, the solution that the adjoint follows */
  integer path_rows, path_width, path_row;   /* how many, how wide, and where it was looked at last */
  double *interpolated;                      /* 4 n doubles: the state at a time of the path; and work */
  double interpolated_time;
  integer interpolated_valid;
  integer component;                         /* which integrand the adjoint belongs to */
  double point_time;
  integer point_valid;
  integer flow_calls, jacobian_calls, linearised_calls, guard_calls, not_finite, returned;
  const python_api *python;
  void *raised;                              /* the exception of a signal handler, for the caller to raise */
  double clock, asked;                       /* seconds: the last look at the clock, and at the signals */
  integer unwatched;                         /* evaluations until the next look at the clock */
} context;

typedef struct {
  context *model;
  void *memory;                              /* CVodeMem or IDAMem */
  vector x, xdot, work;
  vector *sensitivities, *sensitivity_rates;
  double *completed;                         /* 2 n doubles and the n of the last Newton correction */
  double *guard_values;                      /* 2 n_guards doubles of work */
  int *roots;
  double *glances;                           /* GLANCES rows of 2 n_guards doubles: values and rates of guards */
  double *history;                           /* HISTORY rows of n_guards doubles: guards at ends of steps */
  double *band;                              /* n_guards: zero_band where the step began */
  double *noise;                             /* n_guards: what counts as zero within the step; a touch does not cross */
  const int *directions;
  const double *t_eval;
  double *rows;
  double t, t_stop, until;
  integer n_eval, next_eval;
  integer n_rows, capacity, width;
  integer record, dense_order, implicit, closed_end, budget, steps, root, corrector;
  long error_test_failures, newton_failures;
  double times[GLANCES];                     /* of the glances */
  double past[HISTORY];                      /* times of the history, the latest first */
  integer n_past;
  double resolution;                         /* longest time between two looks at the guards */
  double loose;                              /* how far algebraic variables were from what the equations say */
} run;

typedef struct {                             /* an adjoint, integrated back along the path */
  context *model;
  void *memory;
  vector x, xdot, sample;
  const double *longest;                     /* longest step from within each step of the path */
  const double *t_eval;                      /* decreasing */
  double *samples;                           /* n doubles for each of them */
  double t, t_stop, max_step, bound;         /* bound is what the solver has been told */
  integer n_eval, next_eval, budget, steps, implicit;
} backward;

size_t dh_sizes(int which) {
  switch (which) {
    case 0: return sizeof(sundials_api);
    case 1: return sizeof(context);
    case 2: return sizeof(run);
    case 3: return sizeof(backward);
    default: return sizeof(python_api);
  }
}

/* ---- evaluating the model ---------------------------------------------------------------------- */

static int all_finite(const double *values, integer n) {
  double sum = 0;
  for (integer i = 0; i < n; i++) sum += 0 * values[i];
  return sum == 0;
}

/* Whether a signal handler has raised: no Python runs in here, so that nobody else would see Ctrl-C before the end of a
 * long stretch. The handlers run from here, at most every SIGNALS seconds. */
static int interrupted(context *c) {
  struct timespec now;
  if (c->raised) return 1;
  timespec_get(&now, TIME_UTC);
  const double clock = (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
  c->unwatched = fabs(clock - c->clock) < SIGNALS / 100 ? UNWATCHED : 0;
  c->clock = clock;
  if (fabs(clock - c->asked) < SIGNALS) return 0;
  c->asked = clock;
  const int state = c->python->acquire();
  if (c->python->check_signals()) c->raised = c->python->take_raised();
  c->python->release(state);
  return c->raised != 0;
}

static int evaluate(context *c, casadi_function function, double t, const double *x) {
  if (--c->unwatched < 0 && interrupted(c)) return FATAL;
  c->arg[0] = &t;
  c->arg[1] = x;
  c->arg[2] = c->memory;
  c->arg[3] = c->parameters;
  return function(c->arg, c->res, c->iw, c->w, 0) ? FATAL : 0;
}

static int checked(context *c, const double *values, integer n) {
  if (all_finite(values, n)) return 0;
  c->not_finite++;
  return RECOVERABLE; /* the solver tries a smaller step first */
}

/* F and, behind it, the integrands where they are integrated */
static int flow(context *c, double t, const double *x, double *out) {
  c->flow_calls++;
  c->res[0] = out;
  c->res[1] = c->n_integrals ? out + c->n : 0;
  if (evaluate(c, c->flow, t, x)) return FATAL;
  return checked(c, out, c->n + c->n_integrals);
}

/* Newton iterations and quadratures come back to the same (t, x): evaluate once. */
static int linearise(context *c, double t, const double *x) {
  if (c->point_valid && c->point_time == t && !memcmp(c->point, x, (size_t)c->n * sizeof(double))) return 0;
  c->linearised_calls++;
  c->point_valid = 0;
  sparse *blocks[6] = {&c->f_x, &c->f_p, &c->f_m, &c->g_x, &c->g_p, &c->g_m};
  for (int i = 0; i < 6; i++) c->res[i] = blocks[i]->value;
  if (evaluate(c, c->linearised, t, x)) return FATAL;
  const integer columns[6] = {c->n, c->n_parameters, c->n_memory, c->n_functionals, c->n_functionals, c->n_functionals};
  for (int i = 0; i < 6; i++)
    if (checked(c, blocks[i]->value, blocks[i]->column[columns[i]])) return RECOVERABLE;
  memcpy(c->point, x, (size_t)c->n * sizeof(double));
  c->point_time = t;
  c->point_valid = 1;
  return 0;
}

static void add_product(const sparse *a, integer columns, const double *v, double *out) {
  for (integer j = 0; j < columns; j++) {
    if (v[j] == 0) continue;
    for (integer k = a->column[j]; k < a->column[j + 1]; k++) out[a->row[k]] += a->value[k] * v[j];
  }
}

static double column_dot(const sparse *a, integer j, const double *v) {
  double sum = 0;
  for (integer k = a->column[j]; k < a->column[j + 1]; k++) sum += a->value[k] * v[a->row[k]];
  return sum;
}

static void scatter_column(const sparse *a, integer j, double *out) {
  for (integer k = a->column[j]; k < a->column[j + 1]; k++) out[a->row[k]] += a->value[k];
}

/* the step of the path that a time lies in */
static integer path_row(context *c, double t) {
  integer i = c->path_row;
  while (i > 0 && t <= c->path[(i - 1) * c->path_width]) i--;
  while (i < c->path_rows - 1 && t > c->path[i * c->path_width]) i++;
  return c->path_row = i;
}

/* The solver's own polynomial on the step of the path that a time lies in. It is as good as the tolerance for y, but
 * not for algebraic variables, which may move faster than the steps: solve for them. */
static int follow(context *c, double t) {
  const integer n = c->n, nz = n - c->n_differential;
  if (c->interpolated_valid && c->interpolated_time == t) return 0;
  double *at = c->interpolated, *next = at + n, *correction = next + 2 * n;
  const double *row = c->path + path_row(c, t) * c->path_width, *derivatives = row + 3, offset = t - row[0];
  const integer order = (integer)row[2];
  memcpy(at, derivatives + order * n, (size_t)n * sizeof(double));
  for (integer k = order - 1; k >= 0; k--)
    for (integer j = 0; j < n; j++) at[j] = derivatives[k * n + j] + at[j] * offset / (double)(k + 1);
  c->interpolated_valid = 0;
  for (int k = 0; nz && k <= SOLVES; k++) {
    if (k == SOLVES) return RECOVERABLE;
    c->res[0] = next;
    c->res[1] = next + n;
    c->res[2] = correction;
    if (evaluate(c, c->complete, t, at)) return FATAL;
    if (checked(c, next, n)) return RECOVERABLE;
    memcpy(at, next, (size_t)n * sizeof(double));
    int converged = 1;
    for (integer j = 0; j < nz; j++)
      if (!(correction[j] <= CONVERGED)) converged = 0;
    if (converged) break;
  }
  c->interpolated_time = t;
  c->interpolated_valid = 1;
  return 0;
}

static int linearise_path(context *c, double t) {
  const int flag = follow(c, t);
  return flag ? flag : linearise(c, t, c->interpolated);
}

/* ---- what both families share -------------------------------------------------------------------- */

static int fill_jacobian(context *c, double t, const double *x, double cj, double *dense) {
  const integer n = c->n, size = n + c->n_integrals;
  c->jacobian_calls++;
  c->res[0] = c->state_jacobian.value;
  c->res[1] = c->n_integrals ? c->integrand_jacobian.value : 0;
  if (evaluate(c, c->jacobian, t, x)) return FATAL;
  if (checked(c, c->state_jacobian.value, c->state_jacobian.column[n])) return RECOVERABLE;
  memset(dense, 0, (size_t)(size * size) * sizeof(double));
  for (integer j = 0; j < n; j++) scatter_column(&c->state_jacobian, j, dense + j * size);
  for (integer i = 0; i < c->n_integrals; i++)
    for (integer k = c->integrand_jacobian.column[i]; k < c->integrand_jacobian.column[i + 1]; k++)
      dense[c->integrand_jacobian.row[k] * size + n + i] = c->integrand_jacobian.value[k];
  for (integer i = 0; i < c->n_differential; i++) dense[i * size + i] -= cj;
  for (integer i = n; i < size; i++) dense[i * size + i] -= cj;
  return 0;
}

/* subtract the rates of the differential rows */
static void subtract_rates(const context *c, const double *rate, double *residual) {
  for (integer i = 0; i < c->n_differential; i++) residual[i] -= rate[i];
  for (integer i = c->n; i < c->n + c->n_integrals; i++) residual[i] -= rate[i];
}

static int guard_values(context *c, double t, const double *x, double *out) {
  c->guard_calls++;
  c->res[0] = out;
  if (evaluate(c, c->guards, t, x)) return FATAL;
  if (!all_finite(out, c->n_guards)) { c->not_finite++; return FATAL; }
  for (integer i = 0; i < c->n_guards; i++) {
    if (c->zero_band[i] == 0) continue;
    /* exact zeros stay inactive in SUNDIALS' root finding until they have become something else */
    if (fabs(out[i]) <= c->zero_band[i]) out[i] = 0;
    else if (out[i] * c->departure[i] < 0) { c->returned = i + 1; return FATAL; } /* and back within one step */
    else c->zero_band[i] = 0;
  }
  memcpy(c->latest, out, (size_t)c->n_guards * sizeof(double));
  c->latest_time = t;
  return 0;
}

/* F_x s + F_p dp + F_m dm, and the same of the integrands, for every direction; SR eq. 5, 18, 25 */
static int directional(context *c, double t, const double *x, vector *s, vector *out) {
  const int flag = linearise(c, t, x);
  if (flag) return flag;
  for (integer i = 0; i < c->n_directions; i++) {
    double *result = c->api->array(out[i]);
    const double *si = c->api->array(s[i]);
    const double *dp = c->parameter_directions + i * c->n_parameters, *dm = c->memory_directions + i * c->n_memory;
    memset(result, 0, (size_t)c->n * sizeof(double));
    add_product(&c->f_x, c->n, si, result);
    add_product(&c->f_p, c->n_parameters, dp, result);
    add_product(&c->f_m, c->n_memory, dm, result);
    for (integer j = 0; j < c->n_integrals; j++)
      result[c->n + j] = column_dot(&c->g_x, j, si) + column_dot(&c->g_p, j, dp) + column_dot(&c->g_m, j, dm);
  }
  return 0;
}

/* SR eq. 33 to 35: parameters first, then memory. The minus undoes the direction of integration. */
static int adjoint_quadrature(context *c, double t, const double *lambda, double *out) {
  const int flag = linearise_path(c, t);
  if (flag) return flag;
  memset(c->parameter_gradient, 0, (size_t)c->n_parameters * sizeof(double));
  scatter_column(&c->g_p, c->component, c->parameter_gradient);
  for (integer i = 0; i < c->n_wrt; i++)
    out[i] = -(c->parameter_gradient[c->wrt[i]] + column_dot(&c->f_p, c->wrt[i], lambda));
  double *memory = out + c->n_wrt;
  memset(memory, 0, (size_t)c->n_memory * sizeof(double));
  scatter_column(&c->g_m, c->component, memory);
  for (integer i = 0; i < c->n_memory; i++) memory[i] = -(memory[i] + column_dot(&c->f_m, i, lambda));
  return 0;
}

/* sign * (F_x^T lambda + g_x^T), SR eq. 12, 20, 36; behind it the guide: one weighted sum of the integrands of eq. 33
 * to 35. SUNDIALS chooses the order by the states alone, and where lambda stands still the integrals would be summed at
 * order one; the guide is a state that moves as they do. */
static int adjoint(context *c, double t, const double *lambda, double sign, double *out) {
  const int flag = adjoint_quadrature(c, t, lambda, c->integrands);
  if (flag) return flag;
  memset(out, 0, (size_t)c->n * sizeof(double));
  scatter_column(&c->g_x, c->component, out);
  for (integer j = 0; j < c->n; j++) out[j] = sign * (out[j] + column_dot(&c->f_x, j, lambda));
  out[c->n] = 0;
  for (integer i = 0; i < c->n_wrt + c->n_memory; i++) out[c->n] += c->weights[i] * c->integrands[i];
  return 0;
}

static int adjoint_jacobian(context *c, double t, double sign, double cj, double *dense) {
  const integer n = c->n, size = n + 1;
  const int flag = linearise_path(c, t);
  if (flag) return flag;
  memset(dense, 0, (size_t)(size * size) * sizeof(double));
  for (integer j = 0; j < n; j++)
    for (integer k = c->f_x.column[j]; k < c->f_x.column[j + 1]; k++)
      dense[c->f_x.row[k] * size + j] = sign * c->f_x.value[k];
  for (integer i = 0; i < c->n_wrt + c->n_memory; i++) {
    const sparse *a = i < c->n_wrt ? &c->f_p : &c->f_m;
    const integer j = i < c->n_wrt ? c->wrt[i] : i - c->n_wrt;
    for (integer k = a->column[j]; k < a->column[j + 1]; k++) dense[a->row[k] * size + n] -= c->weights[i] * a->value[k];
  }
  for (integer i = 0; i < c->n_differential; i++) dense[i * size + i] += cj;
  dense[n * size + n] -= cj;
  return 0;
}

/* ---- callbacks with SUNDIALS' signatures --------------------------------------------------------- */

#define ARRAY(v) (((context *)data)->api->array(v))
#define MATRIX(m) (((context *)data)->api->matrix(m))

int dh_cv_rhs(double t, vector y, vector ydot, void *data) { return flow(data, t, ARRAY(y), ARRAY(ydot)); }

int dh_cv_jac(double t, vector y, vector fy, void *jac, void *data, vector a, vector b, vector c) {
  (void)fy, (void)a, (void)b, (void)c;
  return fill_jacobian(data, t, ARRAY(y), 0, MATRIX(jac));
}

int dh_cv_root(double t, vector y, double *out, void *data) { return guard_values(data, t, ARRAY(y), out); }

int dh_cv_sens(int ns, double t, vector y, vector ydot, vector *s, vector *sdot, void *data, vector a, vector b) {
  (void)ns, (void)ydot, (void)a, (void)b;
  return directional(data, t, ARRAY(y), s, sdot);
}

int dh_cv_rhs_b(double t, vector yb, vector ybdot, void *data) { return adjoint(data, t, ARRAY(yb), -1, ARRAY(ybdot)); }

int dh_cv_jac_b(double t, vector yb, vector fyb, void *jac, void *data, vector a, vector b, vector c) {
  (void)yb, (void)fyb, (void)a, (void)b, (void)c;
  return adjoint_jacobian(data, t, -1, 0, MATRIX(jac));
}

int dh_cv_quad_b(double t, vector yb, vector qbdot, void *data) {
  return adjoint_quadrature(data, t, ARRAY(yb), ARRAY(qbdot));
}

int dh_ida_res(double t, vector x, vector xdot, vector out, void *data) {
  context *c = data;
  const double *rate = ARRAY(xdot);
  double *residual = ARRAY(out);
  const int flag = flow(c, t, ARRAY(x), residual);
  if (!flag) subtract_rates(c, rate, residual);
  return flag;
}

int dh_ida_jac(double t, double cj, vector x, vector xdot, vector r, void *jac, void *data, vector a, vector b, vector c) {
  (void)xdot, (void)r, (void)a, (void)b, (void)c;
  return fill_jacobian(data, t, ARRAY(x), cj, MATRIX(jac));
}

int dh_ida_root(double t, vector x, vector xdot, double *out, void *data) {
  (void)xdot;
  return guard_values(data, t, ARRAY(x), out);
}

int dh_ida_sens(int ns, double t, vector x, vector xdot, vector r, vector *s, vector *sdot, vector *out, void *data,
                vector a, vector b, vector d) {
  (void)ns, (void)xdot, (void)r, (void)a, (void)b, (void)d;
  context *c = data;
  const int flag = directional(c, t, ARRAY(x), s, out);
  for (integer i = 0; !flag && i < c->n_directions; i++) subtract_rates(c, ARRAY(sdot[i]), ARRAY(out[i]));
  return flag;
}

int dh_ida_res_b(double t, vector xb, vector xbdot, vector out, void *data) {
  const context *c = data;
  double *residual = ARRAY(out);
  const double *rate = ARRAY(xbdot);
  const int flag = adjoint(data, t, ARRAY(xb), 1, residual);
  if (flag) return flag;
  for (integer i = 0; i < c->n_differential; i++) residual[i] += rate[i];
  residual[c->n] -= rate[c->n];
  return 0;
}

int dh_ida_jac_b(double t, double cj, vector xb, vector xbdot, vector r, void *jac, void *data, vector a, vector b,
                 vector c) {
  (void)xb, (void)xbdot, (void)r, (void)a, (void)b, (void)c;
  return adjoint_jacobian(data, t, 1, cj, MATRIX(jac));
}

int dh_ida_quad_b(double t, vector xb, vector xbdot, vector out, void *data) {
  (void)xbdot;
  return adjoint_quadrature(data, t, ARRAY(xb), ARRAY(out));
}

/* ---- the step loop ---------------------------------------------------------------------------------- */

/* the caller makes room for every output time and for the rows of one step */
static double *new_row(run *r) { return r->rows + r->n_rows++ * r->width; }

/* a row holds t, x as it stands in the vector of the run, and every sensitivity vector */
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

/* everything the run reports, taken from the solver's interpolant at t */
static int fetch(run *r, double t) {
  const context *c = r->model;
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

/* t_n, h, order and the derivatives 0..order at t_n: the solver's own interpolant on [t_n - h, t_n] */
static int record_dense(run *r) {
  const context *c = r->model;
  double *row = new_row(r);
  int order = 0;
  memset(row, 0, (size_t)r->width * sizeof(double));
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

/* x and x' that satisfy the mode's equations to rounding, starting from what the solver gave */
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

static int guards_and_rates(run *r, double t) {
  context *c = r->model;
  const double *x = c->api->array(r->x);
  c->res[0] = r->guard_values;
  if (evaluate(c, c->guards, t, x)) return FATAL;
  c->res[0] = r->guard_values + c->n_guards;
  return evaluate(c, c->rates, t, x);
}

/* ---- guards within a step ------------------------------------------------------------------------------ */

/* SUNDIALS compares guards at the ends of steps. One that passes through zero and comes back in between is found here:
 * the step is halved where the cubic through values and rates at the ends does not stay away from zero by more than it
 * is off within. Where a parabola through the ends of the last steps is clearly away from zero, and right within
 * the step, that is not needed. */
static double *values_of(const run *r, int row) { return r->glances + row * 2 * r->model->n_guards; }

/* guards and rates at a time: of the state as it stands where it is the end of the step, else of the polynomial */
static int glance(run *r, int row, double t, int here) {
  context *c = r->model;
  const double *x = c->api->array(here ? r->x : r->work);
  double *value = values_of(r, row);
  if (!here) {
    const int flag = c->api->get_dky(r->memory, t, 0, r->work);
    if (flag) return flag;
  }
  c->guard_calls++;
  c->res[0] = value;
  if (evaluate(c, c->guards, t, x)) return FATAL;
  c->res[0] = value + c->n_guards;
  if (evaluate(c, c->rates, t, x)) return FATAL;
  for (integer i = 0; i < c->n_guards; i++)
    if (fabs(value[i]) <= r->noise[i]) value[i] = 0;
  r->times[row] = t;
  return 0;
}

static void cubic(const run *r, int a, int b, integer i, double *k) {
  const integer n = r->model->n_guards;
  const double h = r->times[b] - r->times[a], v0 = values_of(r, a)[i], v1 = values_of(r, b)[i];
  const double r0 = h * values_of(r, a)[n + i], r1 = h * values_of(r, b)[n + i];
  k[0] = v0, k[1] = r0, k[2] = 3 * (v1 - v0) - 2 * r0 - r1, k[3] = 2 * (v0 - v1) + r0 + r1;
}

static double horner(const double *k, double s) { return k[0] + s * (k[1] + s * (k[2] + s * k[3])); }

/* smallest value on [0, 1] of a cubic, or of its negative, and where it is */
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

/* Whether all guards are so far from zero, and so well known, that a step needs no closer look: 1 if so, negative on
 * failure. One look within the step tells a guard that moves faster than the steps from one that does not. */
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
  c->res[0] = value;
  if (evaluate(c, c->guards, inside, c->api->array(r->work))) return FATAL;
  for (integer i = 0; i < n; i++) {
    const double v0 = r->history[i], v1 = r->history[n + i], v2 = r->history[2 * n + i];
    if (v0 == 0 && v1 == 0) continue;
    const double slope = (v0 - v1) / h, bend = (slope - (v1 - v2) / (t[1] - t[2])) / (t[0] - t[2]);
    const double extremum = bend ? (t[0] + t[1]) / 2 - slope / (2 * bend) : t[0];
    const double away = CALM * fmin(fabs(v0), fabs(v1)), largest = fmax(fabs(v0), fmax(fabs(v1), fabs(v2)));
#define PARABOLA(at) (v0 + ((at) - t[0]) * (slope + bend * ((at) - t[1])))
    if (extremum > t[1] && extremum < t[0] && !(sign_of(v0) * PARABOLA(extremum) >= away)) return 0;
    if (!(fabs(PARABOLA(inside) - value[i]) <= CALM * largest)) return 0;
  }
  return 1;
}

/* where a guard may cross zero without showing it at the ends or within, in (0, 1]; else 0 */
static double may_cross(const run *r, int a, int m, int b) {
  for (integer i = 0; i < r->model->n_guards; i++) {
    const double v0 = values_of(r, a)[i], v = values_of(r, m)[i], v1 = values_of(r, b)[i];
    double k[4], place;
    cubic(r, a, b, i, k);
    const double off = fmax(fabs(horner(k, INSIDE) - v) - 2 * r->noise[i], 0), largest = fmax(fabs(v0), fmax(fabs(v), fabs(v1)));
    if (v0 * v1 > 0 && v0 * v > 0) {
      if (smallest(k, sign_of(v0), &place) <= SAFETY * off) return place > 0 ? place : 1;
    } else if (SAFETY * off > largest)
      return 1;
    else if (v0 == 0 && v * v1 > 0) { /* leaving zero, perhaps not for good: k1 + k2 s + k3 s^2 */
      const double rest[4] = {k[1], k[2], k[3], 0};
      if (smallest(rest, sign_of(v), &place) < 0) return place > 0 ? place : 1;
    }
  }
  return 0;
}

/* the first of the guards that change sign between two glances, and where, by the Illinois method */
static int first_root(run *r, int a, int b, double *where) {
  int found = 0;
  for (integer i = 0; i < r->model->n_guards; i++) {
    double f0 = values_of(r, a)[i], f1 = values_of(r, b)[i], t0 = r->times[a], t1 = r->times[b];
    if (!(f0 * f1 < 0) || r->directions[i] * f0 > 0) continue;
    for (int k = 0; k < TRIALS && fabs(t1 - t0) > 4 * DBL_EPSILON * fmax(fabs(t0), fabs(t1)); k++) {
      double t = t1 - f1 * (t1 - t0) / (f1 - f0);
      if (!(t > fmin(t0, t1) && t < fmax(t0, t1))) t = (t0 + t1) / 2;
      if (glance(r, TRIAL, t, 0)) return FATAL;
      const double f = values_of(r, TRIAL)[i];
      if (f * f1 < 0) t0 = t1, f0 = f1;
      else f0 /= 2;
      t1 = t, f1 = f;
      if (f == 0) break;
    }
    if (!found || t1 < *where) *where = t1, r->root = i;
    found = 1;
  }
  return found;
}

/* zeros have the sign they had before */
static void keep_signs(run *r, int row, int earlier) {
  for (integer i = 0; i < r->model->n_guards; i++)
    if (values_of(r, row)[i] == 0) values_of(r, row)[i] = values_of(r, earlier)[i];
}

/* 1 where a crossing has been found between two glances */
static int scan(run *r, int a, int b, int depth, double *where) {
  const int m = HALVES + depth;
  int found = glance(r, m, r->times[a] + INSIDE * (r->times[b] - r->times[a]), 0);
  if (found) return FATAL;
  const double place = may_cross(r, a, m, b);
  if (depth && place > 0) {
    found = scan(r, a, m, depth - 1, where);
    if (found) return found;
    keep_signs(r, m, a);
    return scan(r, m, b, depth - 1, where);
  }
  if (place > 0 && place < 1) { /* the last resort */
    found = glance(r, m, r->times[a] + place * (r->times[b] - r->times[a]), 0);
    if (found) return FATAL;
  }
  found = first_root(r, a, m, where);
  if (found) return found;
  keep_signs(r, m, a);
  return first_root(r, m, b, where);
}

static int remember(run *r) {
  context *c = r->model;
  const size_t row = (size_t)c->n_guards;
  memmove(r->history + row, r->history, (HISTORY - 1) * row * sizeof(double));
  memmove(r->past + 1, r->past, (HISTORY - 1) * sizeof(double));
  if (c->latest_time != r->t) {
    if (glance(r, END, r->t, 1)) return FATAL;
    memcpy(c->latest, values_of(r, END), row * sizeof(double));
    c->latest_time = r->t;
  }
  memcpy(r->history, c->latest, row * sizeof(double));
  r->past[0] = r->t;
  r->n_past++;
  return 0;
}

/* Looks at the guards within the step that has ended; where one has crossed before anything else happened, r->t is
 * about when. Returns 1 then, a negative flag on failure. */
static int look(run *r, int status) {
  context *c = r->model;
  if (!c->n_guards || r->record == RECORD_DENSE) return 0;
  if (remember(r)) return FATAL;
  const double begin = r->past[1], h = r->t - begin;
  const integer pieces = h > r->resolution ? (integer)ceil(h / r->resolution) : 1;
  double where = 0;
  int found = 0;
  const int calm = h > 0 && pieces == 1 ? is_calm(r) : 0;
  if (calm < 0) return FATAL;
  if (h > 0 && !calm) {
    for (integer i = 0; i < c->n_guards; i++)
      r->noise[i] = fmax(r->band[i], NOISE * fmax(fabs(r->history[i]), fabs(r->history[c->n_guards + i])));
    if (glance(r, START, begin, 0)) return FATAL;
    memcpy(values_of(r, START), r->history + c->n_guards, (size_t)c->n_guards * sizeof(double));
    for (integer piece = 1; piece <= pieces && !found; piece++) {
      const int last = piece == pieces;
      if (glance(r, END, last ? r->t : begin + h * (double)piece / (double)pieces, last)) return FATAL;
      for (integer i = 0; last && status == FOUND_ROOT && i < c->n_guards; i++)
        if (r->roots[i]) values_of(r, END)[i] = 0;
      found = scan(r, START, END, DEPTH, &where);
      keep_signs(r, END, START);
      memcpy(values_of(r, START), values_of(r, END), (size_t)(2 * c->n_guards) * sizeof(double));
      r->times[START] = r->times[END];
    }
  }
  memcpy(r->band, c->zero_band, (size_t)c->n_guards * sizeof(double));
  if (found == 1) r->t = where;
  return found;
}

/* Newton on the solver's interpolant takes the event time from the bracket's tolerance to rounding. */
static int polish(run *r) {
  context *c = r->model;
  double now, h, t = r->t;
  c->api->get_current_time(r->memory, &now);
  c->api->get_last_step(r->memory, &h);
  for (int i = 0; i < 4; i++) {
    int flag = c->api->get_dky(r->memory, t, 0, r->x);
    if (!flag) flag = complete(r, t);
    if (!flag) flag = guards_and_rates(r, t);
    if (flag) return flag;
    const double dt = -r->guard_values[r->root] / r->guard_values[c->n_guards + r->root];
    /* the root is known to 100 roundings: whatever lies farther away is another one */
    if (!(fabs(t + dt - r->t) <= POLISH * DBL_EPSILON * (fabs(now) + fabs(h))) || t + dt > now || t + dt < now - h) break;
    t += dt;
    if (fabs(dt) <= DBL_EPSILON * fabs(t)) break;
  }
  r->t = t;
  return 0;
}

static int finish(run *r, int status) {
  const context *c = r->model;
  const double t = r->t;
  int flag = record_outputs(r, t, r->closed_end && status == REACHED_STOP);
  if (!flag) flag = fetch(r, t);
  if (!flag) flag = complete(r, t);
  if (!flag && status == FOUND_ROOT) flag = guards_and_rates(r, t);
  if (!flag && r->record == RECORD_STEPS && !r->n_eval) record_point(r, t);
  c->api->get_error_test_failures(r->memory, &r->error_test_failures);
  c->api->get_newton_failures(r->memory, &r->newton_failures);
  return flag ? flag : status;
}

/* Restarts the solver at r->t from what stands in the vectors, and records the start. */
int dh_begin(run *r) {
  context *c = r->model;
  r->n_rows = r->next_eval = r->steps = 0;
  r->error_test_failures = r->newton_failures = 0;
  r->loose = 0;
  c->point_valid = c->interpolated_valid = 0;
  int flag = r->implicit ? c->api->ida_reinit(r->memory, r->t, r->x, r->xdot) : c->api->cvode_reinit(r->memory, r->t, r->x);
  if (!flag && r->sensitivities)
    flag = r->implicit
               ? c->api->ida_sens_reinit(r->memory, (int)r->corrector, r->sensitivities, r->sensitivity_rates)
               : c->api->cvode_sens_reinit(r->memory, (int)r->corrector, r->sensitivities);
  if (!flag) flag = c->api->set_stop_time(r->memory, r->t_stop);
  memcpy(r->band, c->zero_band, (size_t)c->n_guards * sizeof(double));
  memcpy(r->noise, c->zero_band, (size_t)c->n_guards * sizeof(double));
  r->n_past = 0;
  c->latest_time = HUGE_VAL; /* there is none yet */
  if (!flag && c->n_guards) flag = remember(r);
  if (!flag && r->record == RECORD_STEPS) {
    if (!r->n_eval) record_point(r, r->t);
    for (; r->next_eval < r->n_eval && r->t_eval[r->next_eval] <= r->t; r->next_eval++)
      record_point(r, r->t_eval[r->next_eval]);
  }
  return flag;
}

/* What the run reports, at the point where it was paused. */
int dh_stop(run *r) {
  const context *c = r->model;
  int flag = fetch(r, r->t);
  if (!flag) flag = complete(r, r->t);
  c->api->get_error_test_failures(r->memory, &r->error_test_failures);
  c->api->get_newton_failures(r->memory, &r->newton_failures);
  return flag;
}

/* Steps from r->t until the stop time, a root, a failure or the end of the budget (then call again). */
int dh_advance(run *r) {
  const context *c = r->model;
  for (integer step = 0, stuck = 0; step < r->budget; step++) {
    const double before = r->t;
    if (r->record && !r->n_eval && r->n_rows + 2 > r->capacity) return ROWS_FULL;
    const int status = r->implicit ? c->api->ida(r->memory, r->t_stop, &r->t, r->x, r->xdot, ONE_STEP)
                                   : c->api->cvode(r->memory, r->t_stop, r->x, &r->t, ONE_STEP);
    if (status < 0) return status;
    r->steps++;
    stuck = r->t == before ? stuck + 1 : 0; /* SUNDIALS would go on until its step underflows, and then for ever */
    if (stuck >= STUCK) return STALLED;
    if (r->record == RECORD_DENSE) {
      const int flag = record_dense(r);
      if (flag) return flag;
      if (r->t >= r->until) return finish(r, REACHED_STOP);
    }
    if (status == FOUND_ROOT) {
      c->api->get_root_info(r->memory, r->roots);
      for (r->root = 0; r->root < c->n_guards - 1 && !r->roots[r->root]; r->root++) {}
    }
    const int seen = look(r, status);
    if (seen < 0) return seen;
    if (seen || status == FOUND_ROOT) {
      const int flag = polish(r);
      return flag ? flag : finish(r, FOUND_ROOT);
    }
    if (status == REACHED_STOP) {
      r->t = r->t_stop;
      return finish(r, status);
    }
    if (r->record == RECORD_STEPS) {
      vector *now = 0; /* the corrector's own vectors: no interpolation, no copy */
      int flag = r->sensitivities && !r->n_eval ? c->api->get_current_sens(r->memory, &now) : 0;
      if (!flag && r->n_eval) flag = record_outputs(r, r->t, 1);
      if (flag) return flag;
      if (!r->n_eval) record_values(r, r->t, now);
    }
  }
  return PAUSED;
}

/* ---- the adjoint of a segment ------------------------------------------------------------------------- */

/* At most `budget` steps back to r->t_stop, none longer than the path allows. */
int dh_back(backward *r) {
  context *c = r->model;
  for (integer step = 0, stuck = 0; step < r->budget; step++) {
    const double before = r->t;
    const double allowed = r->longest[path_row(c, r->t)], bound = allowed < r->max_step ? allowed : r->max_step;
    if (bound != r->bound) {
      const int flag = c->api->set_max_step(r->memory, bound < HUGE_VAL ? bound : 0);
      if (flag) return flag;
      r->bound = bound;
    }
    const int status = r->implicit ? c->api->ida(r->memory, r->t_stop, &r->t, r->x, r->xdot, ONE_STEP)
                                   : c->api->cvode(r->memory, r->t_stop, r->x, &r->t, ONE_STEP);
    if (status < 0) return status;
    r->steps++;
    stuck = r->t == before ? stuck + 1 : 0;
    if (stuck >= STUCK) return STALLED;
    for (; r->next_eval < r->n_eval && r->t_eval[r->next_eval] >= r->t; r->next_eval++) {
      const int flag = c->api->get_dky(r->memory, r->t_eval[r->next_eval], 0, r->sample);
      if (flag) return flag;
      memcpy(r->samples + r->next_eval * c->n, c->api->array(r->sample), (size_t)c->n * sizeof(double));
    }
    if (status == REACHED_STOP) return status;
  }
  return PAUSED;
}
