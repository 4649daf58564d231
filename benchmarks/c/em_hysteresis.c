/* The yardstick: the EM hysteretic oscillator of Serban and Recuero (TR-2019-01, section 5.2)
 * written by hand against CVODES and IDAS, the way one would without a hybrid-system library.
 *
 *     u' = v,   v' = -z + 0.5 t sin(2 pi t),   0 = sigma(u, u*, z*, xi, p) - z
 *
 * The mode xi = +-1 flips whenever v crosses zero; u* and z* then remember u and z of the reversal.
 * G is the integral of u^2 over [0, 10]; its gradient is taken by forward or adjoint analysis.
 *
 *     em_hysteresis FAMILY TASK RTOL ATOL REPEATS
 *     FAMILY  cvodes-bdf | cvodes-adams   two-state ODE, z eliminated
 *             idas                        three-variable index-1 DAE
 *     TASK    forward | fsa | asa
 *
 * One line of JSON goes to stdout. "steps" counts the steps of every pass of one solve, except those
 * CVODES and IDAS repeat on their own when a segment spans several checkpoints.
 */
#define _POSIX_C_SOURCE 200809L

#include <cvodes/cvodes.h>
#include <idas/idas.h>
#include <math.h>
#include <nvector/nvector_serial.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sundials/sundials_core.h>
#include <sunlinsol/sunlinsol_dense.h>
#include <sunmatrix/sunmatrix_dense.h>
#include <sunnonlinsol/sunnonlinsol_fixedpoint.h>
#include <time.h>

#define PI    3.14159265358979323846
#define T_END 10.0

/* Every SUNDIALS call and every allocation goes through one of these two. */
#define CHECK(call) checked((call), #call, __LINE__)
#define NEW(call)   created((call), #call, __LINE__)

enum
{
  KA,
  KB,
  ALPHA,
  BETA,
  NP
};

enum
{
  NQB          = NP + 2, /* backward quadratures: K for the parameters, I for u*, J for z* */
  MAX_SEGMENTS = 64,
  MAX_STEPS    = 1000000,
  ADJ_STEPS    = 200,
  WARM_UPS     = 3
};

typedef enum
{
  CVODES_BDF,
  CVODES_ADAMS,
  IDAS
} Family;

typedef enum
{
  FORWARD,
  FSA,
  ASA
} Task;

typedef struct
{
  double p[NP];
  double xi, u_star, z_star;
  double c, offset, slope_star; /* what of sigma stays constant while a mode lasts */
  double su_star[NP], w_star[NP]; /* d(u*)/dp, d(z*)/dp */
} Mode;

typedef struct
{
  double u, u_star, z_star, p[NP];
} StressPartials;

typedef struct
{
  double t, u, z;
} SegmentStart;

typedef struct
{
  double* rows;
  size_t count, capacity;
} Trajectory;

/* One solve: what it is asked to do, the mode it is in (the user data of every callback), what it found. */
typedef struct
{
  SUNContext ctx;
  Family family;
  Task task;
  double rtol, atol;

  Mode mode;
  SegmentStart segments[MAX_SEGMENTS];
  int events;
  Trajectory trajectory;

  double G, gradient[NP];
  long int steps;
} Run;

static int checked(int flag, const char* call, int line)
{
  if (flag < 0)
  {
    fprintf(stderr, "em_hysteresis.c:%d: %s returned %d\n", line, call, flag);
    exit(EXIT_FAILURE);
  }
  return flag;
}

static void* created(void* object, const char* call, int line)
{
  if (!object)
  {
    fprintf(stderr, "em_hysteresis.c:%d: %s returned NULL\n", line, call);
    exit(EXIT_FAILURE);
  }
  return object;
}

/* ---------------------------------------------------------------------------
 * The material law
 * ------------------------------------------------------------------------- */

static double load(double t) { return 0.5 * t * sin(2.0 * PI * t); }

static double backbone(const double* p, double u)
{
  return -2.0 * p[BETA] * u + 2.0 * sinh(p[BETA] * u) + p[KB] * u;
}

static double backbone_slope(const double* p, double u)
{
  return -2.0 * p[BETA] + 2.0 * p[BETA] * cosh(p[BETA] * u) + p[KB];
}

static double backbone_beta(const double* p, double u)
{
  return -2.0 * u + 2.0 * u * cosh(p[BETA] * u);
}

static void enter_mode(Mode* m, double xi, double u_star, double z_star)
{
  const double delta = 1e-20;
  m->xi              = xi;
  m->u_star          = u_star;
  m->z_star          = z_star;
  m->c               = xi * (m->p[KA] - m->p[KB] + delta) / (2.0 * m->p[ALPHA]);
  m->offset          = backbone(m->p, u_star) + m->c - z_star;
  m->slope_star      = backbone_slope(m->p, u_star);
}

static double decay(const Mode* m, double u)
{
  return exp(-m->p[ALPHA] * m->xi * (u - m->u_star));
}

static double stress(const Mode* m, double u)
{
  return backbone(m->p, u) + m->c - decay(m, u) * m->offset;
}

static double stress_slope(const Mode* m, double u)
{
  return backbone_slope(m->p, u) + m->p[ALPHA] * m->xi * decay(m, u) * m->offset;
}

static void stress_partials(const Mode* m, double u, StressPartials* d)
{
  const double* p  = m->p;
  const double e   = decay(m, u);
  const double bow = m->xi * e * m->offset;
  const double c_k = m->xi / (2.0 * p[ALPHA]);

  d->u        = backbone_slope(p, u) + p[ALPHA] * bow;
  d->u_star   = -p[ALPHA] * bow - e * m->slope_star;
  d->z_star   = e;
  d->p[KA]    = c_k * (1.0 - e);
  d->p[KB]    = u - c_k - e * (m->u_star - c_k);
  d->p[ALPHA] = -m->c / p[ALPHA] * (1.0 - e) + (u - m->u_star) * bow;
  d->p[BETA]  = backbone_beta(p, u) - e * backbone_beta(p, m->u_star);
}

/* w = dz/dp for parameter i, memory included. */
static double stress_sensitivity(const Mode* m, const StressPartials* d, int i, double su)
{
  return d->u * su + d->u_star * m->su_star[i] + d->z_star * m->w_star[i] + d->p[i];
}

/* ---------------------------------------------------------------------------
 * What a reversal does, whichever solver found it
 * ------------------------------------------------------------------------- */

static void start_run(Run* run)
{
  const double nominal[NP] = {32.0 * PI * PI, PI * PI, 205.0, 0.0};

  memset(&run->mode, 0, sizeof run->mode);
  memcpy(run->mode.p, nominal, sizeof nominal);
  memset(run->gradient, 0, sizeof run->gradient);
  enter_mode(&run->mode, 1.0, 0.0, 0.0);
  run->segments[0] = (SegmentStart){0.0, 0.0, 0.0};
  run->events      = 0;
  run->G           = 0.0;
  run->steps       = 0;
}

static void reverse_mode(Run* run, double t, double u)
{
  Mode* m        = &run->mode;
  const double z = stress(m, u);

  run->events++;
  if (run->events >= MAX_SEGMENTS)
  {
    fprintf(stderr, "em_hysteresis: more than %d reversals\n", MAX_SEGMENTS - 1);
    exit(EXIT_FAILURE);
  }
  run->segments[run->events] = (SegmentStart){t, u, z};
  enter_mode(m, -m->xi, u, z);
}

/* Call before reverse_mode. No dt_i/dp terms: u' = v and z' = sigma_u v both vanish at a reversal, so the
 * partial derivatives are already the total ones; for the same reason the sensitivities do not jump. */
static void remember_sensitivities(Mode* m, double u, N_Vector* yS)
{
  StressPartials d;
  double w[NP];

  stress_partials(m, u, &d);
  for (int i = 0; i < NP; i++) { w[i] = stress_sensitivity(m, &d, i, NV_Ith_S(yS[i], 0)); }
  for (int i = 0; i < NP; i++)
  {
    m->su_star[i] = NV_Ith_S(yS[i], 0);
    m->w_star[i]  = w[i];
  }
}

/* Algorithm 1 of the paper, lines 9 to 21, for scalar y* = u and z*. `qB` is what the backward quadratures
 * returned: integrated against time, hence negated. On return the mode is the one before the reversal. */
static void adjoint_jump(Run* run, int segment, N_Vector qB, double* lambda_u, double* A, double* B)
{
  const double* q = NV_DATA_S(qB);
  const double I  = -q[NP];
  const double J  = -q[NP + 1];
  StressPartials d;

  for (int i = 0; i < NP; i++) { run->gradient[i] -= q[i]; }
  if (segment == 0) { return; }

  const SegmentStart* before = &run->segments[segment - 1];
  enter_mode(&run->mode, -run->mode.xi, before->u, before->z);
  stress_partials(&run->mode, run->segments[segment].u, &d);

  const double C = J + *A;
  *lambda_u += I + C * d.u + *B;
  for (int i = 0; i < NP; i++) { run->gradient[i] += C * d.p[i]; }
  *B = C * d.u_star;
  *A = C * d.z_star;
}

static void store(Trajectory* trajectory, double t, N_Vector y)
{
  const size_t n = (size_t)NV_LENGTH_S(y);

  if (trajectory->count + n + 1 > trajectory->capacity)
  {
    trajectory->capacity = trajectory->capacity ? 2 * trajectory->capacity : 4096;
    trajectory->rows = NEW(realloc(trajectory->rows, trajectory->capacity * sizeof(double)));
  }
  double* row = trajectory->rows + trajectory->count;
  row[0]      = t;
  memcpy(row + 1, NV_DATA_S(y), n * sizeof(double));
  trajectory->count += n + 1;
}

static void discard(Trajectory* trajectory)
{
  free(trajectory->rows);
  *trajectory = (Trajectory){NULL, 0, 0};
}

/* Scales of the parameters, from which SUNDIALS estimates the tolerances of the sensitivities. */
static void parameter_scales(const Mode* m, double* pbar)
{
  for (int i = 0; i < NP; i++) { pbar[i] = m->p[i] != 0.0 ? fabs(m->p[i]) : 1.0; }
}

static N_Vector new_vector(SUNContext ctx, sunindextype n)
{
  N_Vector v = NEW(N_VNew_Serial(n, ctx));
  N_VConst(0.0, v);
  return v;
}

static N_Vector* new_vectors(N_Vector like)
{
  N_Vector* v = NEW(N_VCloneVectorArray(NP, like));
  for (int i = 0; i < NP; i++) { N_VConst(0.0, v[i]); }
  return v;
}

/* ---------------------------------------------------------------------------
 * CVODES: y = (u, v)
 * ------------------------------------------------------------------------- */

static int ode_rhs(sunrealtype t, N_Vector y, N_Vector ydot, void* data)
{
  const double* x = NV_DATA_S(y);
  double* dx      = NV_DATA_S(ydot);

  dx[0] = x[1];
  dx[1] = load(t) - stress(data, x[0]);
  return 0;
}

static int ode_jac(sunrealtype t, N_Vector y, N_Vector fy, SUNMatrix J, void* data, N_Vector tmp1,
                   N_Vector tmp2, N_Vector tmp3)
{
  SM_ELEMENT_D(J, 0, 1) = 1.0;
  SM_ELEMENT_D(J, 1, 0) = -stress_slope(data, NV_Ith_S(y, 0));
  return 0;
}

static int ode_root(sunrealtype t, N_Vector y, sunrealtype* g, void* data)
{
  g[0] = NV_Ith_S(y, 1);
  return 0;
}

static int ode_quad(sunrealtype t, N_Vector y, N_Vector qdot, void* data)
{
  const double u    = NV_Ith_S(y, 0);
  NV_Ith_S(qdot, 0) = u * u;
  return 0;
}

static int ode_sens_rhs(int Ns, sunrealtype t, N_Vector y, N_Vector ydot, N_Vector* yS,
                        N_Vector* ySdot, void* data, N_Vector tmp1, N_Vector tmp2)
{
  StressPartials d;

  stress_partials(data, NV_Ith_S(y, 0), &d);
  for (int i = 0; i < Ns; i++)
  {
    const double* s = NV_DATA_S(yS[i]);
    double* ds      = NV_DATA_S(ySdot[i]);
    ds[0]           = s[1];
    ds[1]           = -stress_sensitivity(data, &d, i, s[0]);
  }
  return 0;
}

static int ode_quad_sens(int Ns, sunrealtype t, N_Vector y, N_Vector* yS, N_Vector qdot,
                         N_Vector* qSdot, void* data, N_Vector tmp, N_Vector tmpQ)
{
  const double u = NV_Ith_S(y, 0);
  for (int i = 0; i < Ns; i++) { NV_Ith_S(qSdot[i], 0) = 2.0 * u * NV_Ith_S(yS[i], 0); }
  return 0;
}

static int ode_adj_rhs(sunrealtype t, N_Vector y, N_Vector yB, N_Vector yBdot, void* data)
{
  const double u       = NV_Ith_S(y, 0);
  const double* lambda = NV_DATA_S(yB);
  double* dlambda      = NV_DATA_S(yBdot);

  dlambda[0] = stress_slope(data, u) * lambda[1] - 2.0 * u;
  dlambda[1] = -lambda[0];
  return 0;
}

static int ode_adj_jac(sunrealtype t, N_Vector y, N_Vector yB, N_Vector fyB, SUNMatrix J, void* data,
                       N_Vector tmp1, N_Vector tmp2, N_Vector tmp3)
{
  SM_ELEMENT_D(J, 0, 1) = stress_slope(data, NV_Ith_S(y, 0));
  SM_ELEMENT_D(J, 1, 0) = -1.0;
  return 0;
}

/* mu times the partials of sigma, the integrand of K, I and J in both formulations. */
static void adjoint_integrand(const Mode* m, double u, double mu, double* dq)
{
  StressPartials d;

  stress_partials(m, u, &d);
  for (int i = 0; i < NP; i++) { dq[i] = mu * d.p[i]; }
  dq[NP]     = mu * d.u_star;
  dq[NP + 1] = mu * d.z_star;
}

static int ode_adj_quad(sunrealtype t, N_Vector y, N_Vector yB, N_Vector qBdot, void* data)
{
  adjoint_integrand(data, NV_Ith_S(y, 0), -NV_Ith_S(yB, 1), NV_DATA_S(qBdot));
  return 0;
}

/* CVODES 7.9 forgets the quadrature sensitivities when the order of Adams changes: cvAdjustAdams neither
 * clears the new column of their history on an increase nor adjusts the history on a decrease. The error
 * test has to absorb that, but the first increase also reads memory nobody wrote, unless it is born zero. */
static N_Vector zeroed_clone(N_Vector v)
{
  N_Vector clone = N_VClone_Serial(v);
  if (clone) { N_VConst(0.0, clone); }
  return clone;
}

static void cvodes_march(Run* run, void* mem, N_Vector y, N_Vector q, N_Vector* yS, N_Vector* qS)
{
  const int every_step = run->task == FORWARD;
  N_Vector slope       = new_vector(run->ctx, 2);
  long int steps;
  double t = 0.0;

  CHECK(CVodeSetStopTime(mem, T_END));
  if (every_step) { store(&run->trajectory, t, y); }
  for (;;)
  {
    int direction = run->mode.xi > 0.0 ? -1 : 1;
    int flag      = CV_SUCCESS;
    CHECK(CVodeSetRootDirection(mem, &direction));
    while (flag == CV_SUCCESS)
    {
      flag = CHECK(CVode(mem, T_END, y, &t, every_step ? CV_ONE_STEP : CV_NORMAL));
      if (every_step && flag != CV_ROOT_RETURN) { store(&run->trajectory, t, y); }
    }
    CHECK(CVodeGetNumSteps(mem, &steps));
    run->steps += steps;
    if (flag != CV_ROOT_RETURN) { break; }

    /* The root finder stops at a bracket, a few hundred rounding errors wide; Newton closes it. */
    for (int k = 0; k < 2; k++)
    {
      CHECK(CVodeGetDky(mem, t, 1, slope));
      t -= NV_Ith_S(y, 1) / NV_Ith_S(slope, 1);
      CHECK(CVodeGetDky(mem, t, 0, y));
    }
    NV_Ith_S(y, 1) = 0.0;
    if (every_step) { store(&run->trajectory, t, y); }

    CHECK(CVodeGetQuadDky(mem, t, 0, q));
    if (yS)
    {
      CHECK(CVodeGetSensDky(mem, t, 0, yS));
      CHECK(CVodeGetQuadSensDky(mem, t, 0, qS));
      remember_sensitivities(&run->mode, NV_Ith_S(y, 0), yS);
    }
    reverse_mode(run, t, NV_Ith_S(y, 0));
    CHECK(CVodeReInit(mem, t, y));
    CHECK(CVodeQuadReInit(mem, q));
    if (yS)
    {
      CHECK(CVodeSensReInit(mem, CV_STAGGERED, yS));
      CHECK(CVodeQuadSensReInit(mem, qS));
    }
  }

  CHECK(CVodeGetQuad(mem, &t, q));
  run->G = NV_Ith_S(q, 0);
  if (yS)
  {
    CHECK(CVodeGetQuadSens(mem, &t, qS));
    for (int i = 0; i < NP; i++) { run->gradient[i] = NV_Ith_S(qS[i], 0); }
  }
  N_VDestroy(slope);
}

/* Backward sweep, one segment at a time: each is integrated again with checkpoints, up to a stop time and
 * without root functions, because CVodeB cannot restart from a CVodeF that a root has ended. */
static void cvodes_sweep(Run* run, void* mem, N_Vector y)
{
  const int lmm             = run->family == CVODES_BDF ? CV_BDF : CV_ADAMS;
  N_Vector yB               = new_vector(run->ctx, 2);
  N_Vector qB               = new_vector(run->ctx, NQB);
  SUNMatrix J               = NULL;
  SUNLinearSolver ls        = NULL;
  SUNNonlinearSolver nls    = NULL;
  double A = 0.0, B = 0.0, t, t_end = T_END;
  long int steps;
  int which, checkpoints;

  CHECK(CVodeRootInit(mem, 0, NULL));
  CVodeQuadFree(mem);
  CHECK(CVodeAdjInit(mem, ADJ_STEPS, CV_HERMITE));
  CHECK(CVodeCreateB(mem, lmm, &which));

  for (int i = run->events; i >= 0; i--)
  {
    const SegmentStart* start = &run->segments[i];

    NV_Ith_S(y, 0) = start->u;
    NV_Ith_S(y, 1) = 0.0;
    CHECK(CVodeReInit(mem, start->t, y));
    CHECK(CVodeSetStopTime(mem, t_end));
    if (i < run->events) { CHECK(CVodeAdjReInit(mem)); }
    CHECK(CVodeF(mem, t_end, y, &t, CV_NORMAL, &checkpoints));
    CHECK(CVodeGetNumSteps(mem, &steps));
    run->steps += steps;

    N_VConst(0.0, qB);
    if (i == run->events)
    {
      CHECK(CVodeInitB(mem, which, ode_adj_rhs, t_end, yB));
      CHECK(CVodeSStolerancesB(mem, which, run->rtol, run->atol));
      CHECK(CVodeSetUserDataB(mem, which, &run->mode));
      CHECK(CVodeSetMaxNumStepsB(mem, which, MAX_STEPS));
      if (run->family == CVODES_BDF)
      {
        J  = NEW(SUNDenseMatrix(2, 2, run->ctx));
        ls = NEW(SUNLinSol_Dense(yB, J, run->ctx));
        CHECK(CVodeSetLinearSolverB(mem, which, ls, J));
        CHECK(CVodeSetJacFnB(mem, which, ode_adj_jac));
      }
      else
      {
        nls = NEW(SUNNonlinSol_FixedPoint(yB, 0, run->ctx));
        CHECK(CVodeSetNonlinearSolverB(mem, which, nls));
      }
      CHECK(CVodeQuadInitB(mem, which, ode_adj_quad, qB));
      CHECK(CVodeQuadSStolerancesB(mem, which, run->rtol, run->atol));
      CHECK(CVodeSetQuadErrConB(mem, which, SUNTRUE));
    }
    else
    {
      CHECK(CVodeReInitB(mem, which, t_end, yB));
      CHECK(CVodeQuadReInitB(mem, which, qB));
    }
    CHECK(CVodeB(mem, start->t, CV_NORMAL));
    CHECK(CVodeGetB(mem, which, &t, yB));
    CHECK(CVodeGetQuadB(mem, which, &t, qB));
    CHECK(CVodeGetNumSteps(CVodeGetAdjCVodeBmem(mem, which), &steps));
    run->steps += steps;

    adjoint_jump(run, i, qB, &NV_Ith_S(yB, 0), &A, &B);
    t_end = start->t;
  }

  /* Frees the backward problem, which must not outlive its solvers below. */
  CVodeAdjFree(mem);
  SUNNonlinSolFree(nls);
  SUNLinSolFree(ls);
  SUNMatDestroy(J);
  N_VDestroy(qB);
  N_VDestroy(yB);
}

static void cvodes_solve(Run* run)
{
  const int bdf              = run->family == CVODES_BDF;
  N_Vector y                 = new_vector(run->ctx, 2);
  N_Vector q                 = new_vector(run->ctx, 1);
  N_Vector* yS               = NULL;
  N_Vector* qS               = NULL;
  SUNMatrix J                = NULL;
  SUNLinearSolver ls         = NULL;
  SUNNonlinearSolver nls     = NULL;
  SUNNonlinearSolver nlsSens = NULL;
  void* mem                  = NEW(CVodeCreate(bdf ? CV_BDF : CV_ADAMS, run->ctx));
  double pbar[NP];

  CHECK(CVodeInit(mem, ode_rhs, 0.0, y));
  CHECK(CVodeSStolerances(mem, run->rtol, run->atol));
  CHECK(CVodeSetUserData(mem, &run->mode));
  CHECK(CVodeSetMaxNumSteps(mem, MAX_STEPS));
  if (bdf)
  {
    J  = NEW(SUNDenseMatrix(2, 2, run->ctx));
    ls = NEW(SUNLinSol_Dense(y, J, run->ctx));
    CHECK(CVodeSetLinearSolver(mem, ls, J));
    CHECK(CVodeSetJacFn(mem, ode_jac));
  }
  else
  {
    nls = NEW(SUNNonlinSol_FixedPoint(y, 0, run->ctx));
    CHECK(CVodeSetNonlinearSolver(mem, nls));
  }
  CHECK(CVodeRootInit(mem, 1, ode_root));
  CHECK(CVodeSetNoInactiveRootWarn(mem)); /* v has a triple zero at t = 0 */
  CHECK(CVodeQuadInit(mem, ode_quad, q));
  CHECK(CVodeQuadSStolerances(mem, run->rtol, run->atol));
  CHECK(CVodeSetQuadErrCon(mem, SUNTRUE));

  if (run->task == FSA)
  {
    if (!bdf) { q->ops->nvclone = zeroed_clone; }
    yS = new_vectors(y);
    qS = new_vectors(q);
    parameter_scales(&run->mode, pbar);
    CHECK(CVodeSensInit(mem, NP, CV_STAGGERED, ode_sens_rhs, yS));
    CHECK(CVodeSetSensParams(mem, NULL, pbar, NULL));
    CHECK(CVodeSensEEtolerances(mem));
    CHECK(CVodeSetSensErrCon(mem, SUNTRUE));
    if (!bdf)
    {
      nlsSens = NEW(SUNNonlinSol_FixedPointSens(NP, y, 0, run->ctx));
      CHECK(CVodeSetNonlinearSolverSensStg(mem, nlsSens));
    }
    CHECK(CVodeQuadSensInit(mem, ode_quad_sens, qS));
    CHECK(CVodeQuadSensEEtolerances(mem));
    CHECK(CVodeSetQuadSensErrCon(mem, SUNTRUE));
  }

  cvodes_march(run, mem, y, q, yS, qS);
  if (run->task == ASA) { cvodes_sweep(run, mem, y); }

  CVodeFree(&mem);
  SUNNonlinSolFree(nlsSens);
  SUNNonlinSolFree(nls);
  SUNLinSolFree(ls);
  SUNMatDestroy(J);
  N_VDestroyVectorArray(qS, NP);
  N_VDestroyVectorArray(yS, NP);
  N_VDestroy(q);
  N_VDestroy(y);
}

/* ---------------------------------------------------------------------------
 * IDAS: y = (u, v, z), adjoint (lambda_u, lambda_v, mu)
 * ------------------------------------------------------------------------- */

static int dae_res(sunrealtype t, N_Vector y, N_Vector yp, N_Vector r, void* data)
{
  const double* x  = NV_DATA_S(y);
  const double* dx = NV_DATA_S(yp);
  double* f        = NV_DATA_S(r);

  f[0] = dx[0] - x[1];
  f[1] = dx[1] + x[2] - load(t);
  f[2] = stress(data, x[0]) - x[2];
  return 0;
}

static int dae_jac(sunrealtype t, sunrealtype cj, N_Vector y, N_Vector yp, N_Vector r, SUNMatrix J,
                   void* data, N_Vector tmp1, N_Vector tmp2, N_Vector tmp3)
{
  SM_ELEMENT_D(J, 0, 0) = cj;
  SM_ELEMENT_D(J, 0, 1) = -1.0;
  SM_ELEMENT_D(J, 1, 1) = cj;
  SM_ELEMENT_D(J, 1, 2) = 1.0;
  SM_ELEMENT_D(J, 2, 0) = stress_slope(data, NV_Ith_S(y, 0));
  SM_ELEMENT_D(J, 2, 2) = -1.0;
  return 0;
}

static int dae_root(sunrealtype t, N_Vector y, N_Vector yp, sunrealtype* g, void* data)
{
  g[0] = NV_Ith_S(y, 1);
  return 0;
}

static int dae_quad(sunrealtype t, N_Vector y, N_Vector yp, N_Vector qdot, void* data)
{
  const double u    = NV_Ith_S(y, 0);
  NV_Ith_S(qdot, 0) = u * u;
  return 0;
}

static int dae_sens_res(int Ns, sunrealtype t, N_Vector y, N_Vector yp, N_Vector r, N_Vector* yS,
                        N_Vector* ypS, N_Vector* rS, void* data, N_Vector tmp1, N_Vector tmp2,
                        N_Vector tmp3)
{
  StressPartials d;

  stress_partials(data, NV_Ith_S(y, 0), &d);
  for (int i = 0; i < Ns; i++)
  {
    const double* s  = NV_DATA_S(yS[i]);
    const double* ds = NV_DATA_S(ypS[i]);
    double* f        = NV_DATA_S(rS[i]);
    f[0]             = ds[0] - s[1];
    f[1]             = ds[1] + s[2];
    f[2]             = stress_sensitivity(data, &d, i, s[0]) - s[2];
  }
  return 0;
}

static int dae_quad_sens(int Ns, sunrealtype t, N_Vector y, N_Vector yp, N_Vector* yS, N_Vector* ypS,
                         N_Vector qdot, N_Vector* qSdot, void* data, N_Vector tmp1, N_Vector tmp2,
                         N_Vector tmp3)
{
  const double u = NV_Ith_S(y, 0);
  for (int i = 0; i < Ns; i++) { NV_Ith_S(qSdot[i], 0) = 2.0 * u * NV_Ith_S(yS[i], 0); }
  return 0;
}

static int dae_adj_res(sunrealtype t, N_Vector y, N_Vector yp, N_Vector yB, N_Vector ypB, N_Vector rB,
                       void* data)
{
  const double u        = NV_Ith_S(y, 0);
  const double* adjoint = NV_DATA_S(yB);
  const double* rate    = NV_DATA_S(ypB);
  double* f             = NV_DATA_S(rB);

  f[0] = rate[0] + stress_slope(data, u) * adjoint[2] + 2.0 * u;
  f[1] = rate[1] + adjoint[0];
  f[2] = adjoint[1] + adjoint[2];
  return 0;
}

static int dae_adj_jac(sunrealtype t, sunrealtype cj, N_Vector y, N_Vector yp, N_Vector yB,
                       N_Vector ypB, N_Vector rB, SUNMatrix J, void* data, N_Vector tmp1,
                       N_Vector tmp2, N_Vector tmp3)
{
  SM_ELEMENT_D(J, 0, 0) = cj;
  SM_ELEMENT_D(J, 0, 2) = stress_slope(data, NV_Ith_S(y, 0));
  SM_ELEMENT_D(J, 1, 0) = 1.0;
  SM_ELEMENT_D(J, 1, 1) = cj;
  SM_ELEMENT_D(J, 2, 1) = 1.0;
  SM_ELEMENT_D(J, 2, 2) = 1.0;
  return 0;
}

static int dae_adj_quad(sunrealtype t, N_Vector y, N_Vector yp, N_Vector yB, N_Vector ypB,
                        N_Vector qBdot, void* data)
{
  adjoint_integrand(data, NV_Ith_S(y, 0), NV_Ith_S(yB, 2), NV_DATA_S(qBdot));
  return 0;
}

/* Every segment starts with v = 0, where z' = sigma_u v vanishes: consistent values in closed form, no
 * IDACalcIC. The same holds for the sensitivities, whose dw/dt is then sigma_u times s_v. */
static void dae_start(const Mode* m, double t, double u, N_Vector y, N_Vector yp)
{
  const double z = stress(m, u);

  NV_Ith_S(y, 0)  = u;
  NV_Ith_S(y, 1)  = 0.0;
  NV_Ith_S(y, 2)  = z;
  NV_Ith_S(yp, 0) = 0.0;
  NV_Ith_S(yp, 1) = load(t) - z;
  NV_Ith_S(yp, 2) = 0.0;
}

static void dae_start_sensitivities(const Mode* m, double u, N_Vector* yS, N_Vector* ypS)
{
  StressPartials d;

  stress_partials(m, u, &d);
  for (int i = 0; i < NP; i++)
  {
    double* s  = NV_DATA_S(yS[i]);
    double* ds = NV_DATA_S(ypS[i]);
    s[2]       = stress_sensitivity(m, &d, i, s[0]);
    ds[0]      = s[1];
    ds[1]      = -s[2];
    ds[2]      = d.u * s[1];
  }
}

static void dae_start_adjoint(const Mode* m, double u, N_Vector yB, N_Vector ypB)
{
  double* adjoint = NV_DATA_S(yB);
  double* rate    = NV_DATA_S(ypB);

  adjoint[2] = -adjoint[1];
  rate[0]    = -stress_slope(m, u) * adjoint[2] - 2.0 * u;
  rate[1]    = -adjoint[0];
  rate[2]    = adjoint[0];
}

static void idas_march(Run* run, void* mem, N_Vector y, N_Vector yp, N_Vector q, N_Vector* yS,
                       N_Vector* ypS, N_Vector* qS)
{
  const int every_step = run->task == FORWARD;
  N_Vector slope       = new_vector(run->ctx, 3);
  long int steps;
  double t = 0.0;

  CHECK(IDASetStopTime(mem, T_END));
  if (every_step) { store(&run->trajectory, t, y); }
  for (;;)
  {
    int direction = run->mode.xi > 0.0 ? -1 : 1;
    int flag      = IDA_SUCCESS;
    CHECK(IDASetRootDirection(mem, &direction));
    while (flag == IDA_SUCCESS)
    {
      flag = CHECK(IDASolve(mem, T_END, &t, y, yp, every_step ? IDA_ONE_STEP : IDA_NORMAL));
      if (every_step && flag != IDA_ROOT_RETURN) { store(&run->trajectory, t, y); }
    }
    CHECK(IDAGetNumSteps(mem, &steps));
    run->steps += steps;
    if (flag != IDA_ROOT_RETURN) { break; }

    for (int k = 0; k < 2; k++)
    {
      CHECK(IDAGetDky(mem, t, 1, slope));
      t -= NV_Ith_S(y, 1) / NV_Ith_S(slope, 1);
      CHECK(IDAGetDky(mem, t, 0, y));
    }
    const double u = NV_Ith_S(y, 0);
    CHECK(IDAGetQuadDky(mem, t, 0, q));
    if (yS)
    {
      CHECK(IDAGetSensDky(mem, t, 0, yS));
      CHECK(IDAGetQuadSensDky(mem, t, 0, qS));
      remember_sensitivities(&run->mode, u, yS);
    }
    reverse_mode(run, t, u);
    dae_start(&run->mode, t, u, y, yp);
    if (every_step) { store(&run->trajectory, t, y); }
    CHECK(IDAReInit(mem, t, y, yp));
    CHECK(IDAQuadReInit(mem, q));
    if (yS)
    {
      dae_start_sensitivities(&run->mode, u, yS, ypS);
      CHECK(IDASensReInit(mem, IDA_STAGGERED, yS, ypS));
      CHECK(IDAQuadSensReInit(mem, qS));
    }
  }

  CHECK(IDAGetQuad(mem, &t, q));
  run->G = NV_Ith_S(q, 0);
  if (yS)
  {
    CHECK(IDAGetQuadSens(mem, &t, qS));
    for (int i = 0; i < NP; i++) { run->gradient[i] = NV_Ith_S(qS[i], 0); }
  }
  N_VDestroy(slope);
}

/* See cvodes_sweep. */
static void idas_sweep(Run* run, void* mem, N_Vector y, N_Vector yp, N_Vector id)
{
  N_Vector yB        = new_vector(run->ctx, 3);
  N_Vector ypB       = new_vector(run->ctx, 3);
  N_Vector qB        = new_vector(run->ctx, NQB);
  SUNMatrix J        = NULL;
  SUNLinearSolver ls = NULL;
  double A = 0.0, B = 0.0, t, t_end = T_END;
  long int steps;
  int which, checkpoints;

  CHECK(IDARootInit(mem, 0, NULL));
  IDAQuadFree(mem);
  CHECK(IDAAdjInit(mem, ADJ_STEPS, IDA_HERMITE));
  CHECK(IDACreateB(mem, &which));

  for (int i = run->events; i >= 0; i--)
  {
    const SegmentStart* start = &run->segments[i];

    dae_start(&run->mode, start->t, start->u, y, yp);
    CHECK(IDAReInit(mem, start->t, y, yp));
    CHECK(IDASetStopTime(mem, t_end));
    if (i < run->events) { CHECK(IDAAdjReInit(mem)); }
    CHECK(IDASolveF(mem, t_end, &t, y, yp, IDA_NORMAL, &checkpoints));
    CHECK(IDAGetNumSteps(mem, &steps));
    run->steps += steps;

    N_VConst(0.0, qB);
    dae_start_adjoint(&run->mode, NV_Ith_S(y, 0), yB, ypB);
    if (i == run->events)
    {
      CHECK(IDAInitB(mem, which, dae_adj_res, t_end, yB, ypB));
      CHECK(IDASStolerancesB(mem, which, run->rtol, run->atol));
      CHECK(IDASetUserDataB(mem, which, &run->mode));
      CHECK(IDASetMaxNumStepsB(mem, which, MAX_STEPS));
      CHECK(IDASetIdB(mem, which, id));
      CHECK(IDASetSuppressAlgB(mem, which, SUNTRUE));
      J  = NEW(SUNDenseMatrix(3, 3, run->ctx));
      ls = NEW(SUNLinSol_Dense(yB, J, run->ctx));
      CHECK(IDASetLinearSolverB(mem, which, ls, J));
      CHECK(IDASetJacFnB(mem, which, dae_adj_jac));
      CHECK(IDAQuadInitB(mem, which, dae_adj_quad, qB));
      CHECK(IDAQuadSStolerancesB(mem, which, run->rtol, run->atol));
      CHECK(IDASetQuadErrConB(mem, which, SUNTRUE));
    }
    else
    {
      CHECK(IDAReInitB(mem, which, t_end, yB, ypB));
      CHECK(IDAQuadReInitB(mem, which, qB));
    }
    CHECK(IDASolveB(mem, start->t, IDA_NORMAL));
    CHECK(IDAGetB(mem, which, &t, yB, ypB));
    CHECK(IDAGetQuadB(mem, which, &t, qB));
    CHECK(IDAGetNumSteps(IDAGetAdjIDABmem(mem, which), &steps));
    run->steps += steps;

    adjoint_jump(run, i, qB, &NV_Ith_S(yB, 0), &A, &B);
    t_end = start->t;
  }

  IDAAdjFree(mem);
  SUNLinSolFree(ls);
  SUNMatDestroy(J);
  N_VDestroy(qB);
  N_VDestroy(ypB);
  N_VDestroy(yB);
}

static void idas_solve(Run* run)
{
  N_Vector y         = new_vector(run->ctx, 3);
  N_Vector yp        = new_vector(run->ctx, 3);
  N_Vector id        = new_vector(run->ctx, 3);
  N_Vector q         = new_vector(run->ctx, 1);
  N_Vector* yS       = NULL;
  N_Vector* ypS      = NULL;
  N_Vector* qS       = NULL;
  SUNMatrix J        = NEW(SUNDenseMatrix(3, 3, run->ctx));
  SUNLinearSolver ls = NEW(SUNLinSol_Dense(y, J, run->ctx));
  void* mem          = NEW(IDACreate(run->ctx));
  double pbar[NP];

  NV_Ith_S(id, 0) = 1.0;
  NV_Ith_S(id, 1) = 1.0;
  dae_start(&run->mode, 0.0, 0.0, y, yp);
  CHECK(IDAInit(mem, dae_res, 0.0, y, yp));
  CHECK(IDASStolerances(mem, run->rtol, run->atol));
  CHECK(IDASetUserData(mem, &run->mode));
  CHECK(IDASetMaxNumSteps(mem, MAX_STEPS));
  CHECK(IDASetId(mem, id));
  CHECK(IDASetSuppressAlg(mem, SUNTRUE));
  CHECK(IDASetLinearSolver(mem, ls, J));
  CHECK(IDASetJacFn(mem, dae_jac));
  CHECK(IDARootInit(mem, 1, dae_root));
  CHECK(IDASetNoInactiveRootWarn(mem));
  CHECK(IDAQuadInit(mem, dae_quad, q));
  CHECK(IDAQuadSStolerances(mem, run->rtol, run->atol));
  CHECK(IDASetQuadErrCon(mem, SUNTRUE));

  if (run->task == FSA)
  {
    yS  = new_vectors(y);
    ypS = new_vectors(y);
    qS  = new_vectors(q);
    parameter_scales(&run->mode, pbar);
    dae_start_sensitivities(&run->mode, 0.0, yS, ypS);
    CHECK(IDASensInit(mem, NP, IDA_STAGGERED, dae_sens_res, yS, ypS));
    CHECK(IDASetSensParams(mem, NULL, pbar, NULL));
    CHECK(IDASensEEtolerances(mem));
    CHECK(IDASetSensErrCon(mem, SUNTRUE));
    CHECK(IDAQuadSensInit(mem, dae_quad_sens, qS));
    CHECK(IDAQuadSensEEtolerances(mem));
    CHECK(IDASetQuadSensErrCon(mem, SUNTRUE));
  }

  idas_march(run, mem, y, yp, q, yS, ypS, qS);
  if (run->task == ASA) { idas_sweep(run, mem, y, yp, id); }

  IDAFree(&mem);
  SUNLinSolFree(ls);
  SUNMatDestroy(J);
  N_VDestroyVectorArray(qS, NP);
  N_VDestroyVectorArray(ypS, NP);
  N_VDestroyVectorArray(yS, NP);
  N_VDestroy(q);
  N_VDestroy(id);
  N_VDestroy(yp);
  N_VDestroy(y);
}

/* ---------------------------------------------------------------------------
 * Command line and clock
 * ------------------------------------------------------------------------- */

static double solve(Run* run)
{
  struct timespec begin, end;

  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &begin);
  start_run(run);
  if (run->family == IDAS) { idas_solve(run); }
  else { cvodes_solve(run); }
  discard(&run->trajectory);
  clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &end);
  return 1e3 * (double)(end.tv_sec - begin.tv_sec) + 1e-6 * (double)(end.tv_nsec - begin.tv_nsec);
}

static int by_size(const void* a, const void* b)
{
  const double x = *(const double*)a, y = *(const double*)b;
  return (x > y) - (x < y);
}

static int position(const char* name, const char* const* names, int count)
{
  for (int i = 0; i < count; i++)
  {
    if (strcmp(name, names[i]) == 0) { return i; }
  }
  return -1;
}

int main(int argc, char** argv)
{
  static const char* const families[] = {"cvodes-bdf", "cvodes-adams", "idas"};
  static const char* const tasks[]    = {"forward", "fsa", "asa"};

  const int family  = argc == 6 ? position(argv[1], families, 3) : -1;
  const int task    = argc == 6 ? position(argv[2], tasks, 3) : -1;
  const double rtol = argc == 6 ? atof(argv[3]) : 0.0;
  const double atol = argc == 6 ? atof(argv[4]) : 0.0;
  const int repeats = argc == 6 ? atoi(argv[5]) : 0;
  if (family < 0 || task < 0 || !(rtol > 0.0) || !(atol > 0.0) || repeats < 1)
  {
    fprintf(stderr, "usage: em_hysteresis cvodes-bdf|cvodes-adams|idas forward|fsa|asa "
                    "RTOL ATOL REPEATS\n");
    return EXIT_FAILURE;
  }

  Run run     = {.family = (Family)family, .task = (Task)task, .rtol = rtol, .atol = atol};
  double* cpu = NEW(malloc((size_t)repeats * sizeof *cpu));

  /* One context per process, outside the clock, as a program that solves many times would have it. */
  CHECK(SUNContext_Create(SUN_COMM_NULL, &run.ctx));
  for (int i = 0; i < WARM_UPS; i++) { solve(&run); }
  for (int i = 0; i < repeats; i++) { cpu[i] = solve(&run); }
  qsort(cpu, (size_t)repeats, sizeof *cpu, by_size);

  const double median = 0.5 * (cpu[(repeats - 1) / 2] + cpu[repeats / 2]);
  printf("{\"family\": \"%s\", \"task\": \"%s\", \"G\": %.17g, \"gradient\": [", argv[1], argv[2], run.G);
  for (int i = 0; i < NP && run.task != FORWARD; i++)
  {
    printf("%s%.17g", i ? ", " : "", run.gradient[i]);
  }
  printf("], \"events\": %d, \"steps\": %ld, \"cpu_ms\": {\"min\": %.6g, \"median\": %.6g}}\n",
         run.events, run.steps, cpu[0], median);

  free(cpu);
  SUNContext_Free(&run.ctx);
  return EXIT_SUCCESS;
}
