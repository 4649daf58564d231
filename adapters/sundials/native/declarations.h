/* Callbacks and step loop of the native SUNDIALS adapter.
 *
 * The code is model-independent and includes no SUNDIALS header: the functions of the model (generated
 * by CasADi) and the SUNDIALS functions that the loop calls are passed as tables of pointers, so that any C
 * compiler can build it and it binds to exactly the library that Python loaded.
 *
 * A mode is the system  M x' = F(t, x, m, p)  with M = diag(1, .., 1, 0, .., 0): the first
 * `n_differential` rows are differential equations, the others 0 = F_i. CVODES integrates it if all rows
 * are differential, IDAS otherwise. ARKODE takes explicit Runge-Kutta steps; sensitivities are then additional states,
 * and algebraic variables are solved for. `m` is the memory, constant between transitions. Integrands are integrated as
 * additional states q' = g after x (measured: a third less work than SUNDIALS' quadratures on small systems, under the
 * same error control, and not affected by a defect of Adams with quadrature sensitivities).
 * Python parses the constants and structs of this file (header.py), and prepends constants of its own
 * (interface/native_constants.py).
 *
 * The parts form one translation unit: sparse_lu.c, which the adapters share, this file, model.c (evaluation of the
 * model), callbacks.c (SUNDIALS callbacks), linear.c (Newton's matrix of large systems), staggered.c (sensitivities of
 * implicit steps), runge_kutta.c (explicit steps), guards.c (zeros within steps), steps.c (the loops), arrival.c (the
 * point after an event), resting_guards.c (guards at rest after an event), event_loop.c and sweep.c (forward and backward
 * through native events), stiffness.c (detection of stiffness), native_run.c (complete runs), batch.c (batches of runs,
 * with the checks of conditions.c). */
#include <stddef.h>
#include <time.h>

typedef void *vector;
typedef int (*casadi_function)(const double **arg, double **res, integer *iw, double *w, int mem);

enum { ONE_STEP = 2 };                       /* CV_ONE_STEP and IDA_ONE_STEP */
enum { REACHED_STOP = 1, FOUND_ROOT = 2 };   /* CV_TSTOP_RETURN, CV_ROOT_RETURN and IDA's equivalents */
enum { PAUSED = 100, ROWS_FULL = 101, STALLED = 102, LOST = 103, SINGULAR = 106, STUCK = 50 }; /* STUCK: limit on steps without progress */
enum { RECORD_NOTHING = 0, RECORD_STEPS = 1, RECORD_DENSE = 2 };
enum { RECOVERABLE = 1, FATAL = -1 };
enum { UNCONVERGED = -4 };                   /* ARK_CONV_FAILURE */
enum { SOLVER_DIRECT = 0, MATRIX_CUSTOM = 10, SOLVER_CUSTOM = 18 }; /* of SUNLinearSolver_Type, SUNMatrix_ID, .._ID */
enum { POLISH = 10000 };                     /* limit on the move of a polished event time, in roundings */
#define SHRINKS 0.25                         /* of the guard, per iteration: convergence */
enum { TO_AND_FRO = 8 };                     /* accuracy of a zero, in roundings of time, */
#define REFINED 1e-6                         /* or relative to the step */
enum { HALVES, START = DEPTH + 1, END, TRIAL, GLANCES }; /* rows of `run.glances` */
enum { SHORTER = 10 };                       /* factor by which an explicit step with non-finite values is shortened */
enum { LOOKS = 3 };                          /* evaluations of the cubic through the ends of an explicit step */
enum { SHORT = 16 };                         /* longest vectors that are combined elementwise */
enum { TOGETHER = 8 };                       /* directions processed at a time */
enum { FROM_END, FROM_START };               /* of a segment: origin of the solver's time, in an adjoint */
#define COARSEST 1e-2                        /* largest relative tolerance of an algebraic variable */
enum { PROBES = 3 };                         /* perturbations of y that estimate the propagation of its errors */
enum { PART = 4 };                           /* integers per part of the derivatives by p: no columns: a vector, else the
                                                product of a column and a row */
enum { BLOCKS = 6 };                         /* blocks of the linearised equations */
enum { OF_BLOCKS = 1, OF_TAPE };             /* data cached at a point */
enum { REST_STATES = 7, REST_GUARDS = 15 };  /* of `event_loop.rest`: states, followed by values of guards */
enum { HISTORY = 3 };                        /* step ends with stored guards */
/* fields of a near miss of a guard */
enum { TURN_GUARD, TURN_FROM, TURN_TO, TURN_SHARE, TURN };
#define LEAVING 2.5                          /* bound on a cubic's error, s^2 (1 - s)^2, over s, relative to that at INSIDE */
#define TRIALS 100
#define NEGLIGIBLE 1e-3                      /* errors of states, in tolerances, that do not affect the order if sensitivities do, */
#define LESS_EXACT 4.0                       /* and the factor per lower order */
#define BESIDE 100.0                         /* tolerances of the state within which a guard is close to zero on entry */
#define FROM_REST 0.1                        /* share of a guard's range from which it may have come to rest at zero */
#define FAR 100.0                            /* times ZENO_REST: an estimate from three events is as reliable */
#define RANK_ROUNDINGS (RANK_TOLERANCE / DBL_EPSILON)
#define ALLOWED 10.0                         /* tolerances of an adjoint by which the embedded method may differ */
enum { PARTS = 16 };                         /* subdivisions of a step for the adjoint */
enum { UNRESOLVED = 104, NOT_STARTED = 105, FINISHED = 107, COMPLETE = 108, AT_ROUNDING = 109 };
enum { BUDGET = 20000 };                     /* steps between checks for progress */
enum { FEW_STATES = 16 };                    /* largest system with solved algebraic variables for the stiffness rule */
enum { COUNTED = 5 };                        /* counters of a context */
#define FINE 1e4                             /* roundings of time: shorter steps need an origin of time that is closer, */
#define NEARBY 1e-6                          /* and the first step from it is at most this share of the rest */
#define MOMENT 1e-3                          /* share of a step after which a guard has left zero */
enum { GUESSES = 8 };                        /* iterations for the zero of a cubic */
#define CLOSE 1e-8                           /* share of a step: the square of a Newton step this small is rounding */
#define NEAR 1e-5                            /* the same if each evaluation takes a step of its own; `polish` continues */
#define CORRECTED 1e-8                       /* relative to x: the square of a correction this small is rounding, */
#define CORRECTED_DUST 1e-3                  /* or relative to its absolute tolerance, for x near zero */
#define CORRECTED_ROUNDING 1e-13             /* or rounding of other variables, from the second correction on */
#define SMALL_SHARE 1e-6                     /* of the largest algebraic variable: scale for corrections of small ones */
enum { MOST_PIECES = 64 };                   /* of a partial step */
enum { MOST_CORRECTIONS = 8 };               /* of Newton's method within explicit steps, */
#define CONTRACTS 0.25                       /* largest ratio of successive corrections */
#define APART 10.0                           /* tolerances between algebraic variables from their rates and from their equations */
#define CERTAIN 10.0                         /* a guard needs no solve if it exceeds its error at x by this factor */
#define SIGNALS 0.1                          /* seconds between checks for Python signals and cancellation */
enum { SHORTER_STEP = 902, UNSOLVED = -41 }; /* SUN_NLS_CONV_RECVR; CV_SRHSFUNC_FAIL == IDA_SRES_FAIL */
enum { LANES = 4 };                          /* right-hand sides that one loop solves */
enum { ITERATIONS = 3 };                     /* iterations for sensitivities with factors of another step */
#define GAMMA_MOVED 0.3                      /* largest relative change of gamma, or c_j, since these factors */
#define SLOWER 0.3                           /* lower bound on the next rate of convergence, as a share of the measured one */
#define AGEING 1.3                           /* assumed growth of that rate in a step */
#define SLOW 0.3                             /* rate above which the factors are renewed */
enum { UNWATCHED = 64 };                     /* short evaluations between readings of the clock */

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
  int (*set_first_step)(void *, double);
  int (*get_dky)(void *, double, int, vector);
  int (*get_sens_dky)(void *, double, int, vector *);
  int (*get_current_sens)(void *, vector **);
  int (*cvode_sens_system)(void *, double *, vector **, vector **, double *, double *, vector **, void **);
  int (*ida_sens_system)(void *, double *, vector **, vector **, vector **, vector **, double *, void **);
  int (*cvode_system)(void *, double *, vector *, vector *, vector *, double *, double *, vector *, void **);
  int (*ida_system)(void *, double *, vector *, vector *, vector *, vector *, vector *, double *, void **);
  int (*get_local_errors)(void *, vector);
  int (*get_last_step)(void *, double *);
  int (*get_next_step)(void *, double *);
  int (*get_last_order)(void *, int *);
  int (*get_current_time)(void *, double *);
  int (*get_root_info)(void *, int *);
  int (*get_error_test_failures)(void *, long *);
  int (*get_newton_failures)(void *, long *);
  int (*erk_reinit)(void *, int (*)(double, vector, vector, void *), double, vector);
  int (*quad_reinit)(void *, vector);
  int (*get_quad)(void *, double *, vector);
} sundials_api;

typedef struct {                             /* Python's C functions: PyGILState_Ensure, PyGILState_Release, */
  int (*acquire)(void);                      /* PyErr_CheckSignals, PyErr_GetRaisedException, */
  void (*release)(int);                      /* PyObject_CallNoArgs, Py_DecRef; */
  int (*check_signals)(void);
  void *(*take_raised)(void);
  void *(*call)(void *);
  void (*drop)(void *);
  void *raise_if_cancelled;                  /* a Python function */
} python_api;

typedef struct {                             /* compressed columns, with the entries in `value` */
  const integer *column;
  const integer *row;
  const integer *owner;                      /* column of each value */
  double *value;
} sparse;

typedef struct {
  const sundials_api *api;
  casadi_function flow, jacobian, linearised, guards, rates, complete, constants;
  casadi_function tape, tangent, pullback;   /* replace `linearised` if present; see model.c */
  casadi_function sketch, settle, weigh, poles; /* replace `guards` if these need a consistent point; see model.c */
  const double **arg;
  double **res;
  integer *iw;
  double *w;
  integer n, n_differential, n_functionals, n_integrals, n_memory, n_parameters, n_guards, n_directions, n_wrt;
  const double *parameters, *numbers;        /* numbers: constants of this mode, for shared functions */
  double *memory;
  const double *parameter_directions;        /* n_parameters x n_directions, column by column */
  double *memory_directions;                 /* n_memory x n_directions */
  sparse moved;                              /* the parameter directions in sparse form */
  const integer *wrt;                        /* parameters to differentiate by */
  const double *weights;                     /* n_wrt + n_memory: weights of the guide of the backward pass, see `adjoint` */
  double *integrands;                        /* n_wrt + n_memory: work */
  sparse state_jacobian, integrand_jacobian; /* F_x and the transpose of g_x; computed by `jacobian` */
  sparse f_x, f_p, f_m;                      /* computed together by `linearised` */
  sparse g_x, g_p, g_m;                      /* transposed: one column per integrand */
  integer n_tape;
  double *recorded;                          /* n_tape: output of `tape` at the point */
  integer n_product, n_parts;
  double *product;                           /* n_product: output of `pullback`: derivatives by x, m and parts of those by p */
  const integer *parts;                      /* n_parts x PART: offset, rows, columns, position in `product` */
  double *by_parameters;                     /* n_parameters + n_memory: assembled derivatives */
  double *selected, *vector;                 /* n_functionals, zero except during a call; 2 n + n_parameters + n_memory:
                                                work */
  double *zero_band;                         /* per guard: |guard| up to this value counts as zero until it has left */
  double *leaving_sign;                      /* sign of the guard on leaving zero, 0 if unknown */
  double *latest;                            /* n_guards: guards last seen by SUNDIALS, and their time */
  double latest_time;
  integer n_poles, n_off;                    /* number of determinants among the guards; number of residuals of x */
  double *off, *guard_weights;               /* residuals; (n_guards - n_poles) x n_off: their effect on the guards */
  integer weighed;                           /* 1 + setups of Newton's matrix at the time of `weigh`; 0: not in this segment */
  double *settled;                           /* 2 n: work */
  double *point;                             /* n: argument of the cached linearisation */
  double *parameter_gradient;                /* n_parameters: work */
  const double *path;                        /* rows of `record_dense`: the solution that the adjoint follows */
  integer path_rows, path_width, path_row;   /* number and width of its rows, and the last row used */
  double *clocks;                            /* the ends of its steps on an adjoint's clock, see `start_back`; */
  double origin, earliest;                   /* time where it is zero, and the end of the adjoint */
  double *interpolated;                      /* 4 n: the state at a time of the path, and work */
  double interpolated_clock;
  integer interpolated_valid;
  integer component;                         /* index of the adjoint's integrand */
  double point_time;
  integer point_valid;                       /* data cached at the point: OF_BLOCKS, OF_TAPE or 0 */
  void *memory_of;                           /* SUNDIALS' memory if sensitivities are excluded from its error test: */
  const double *sensitivity_absolute;        /* their absolute tolerances, n_directions x (n + n_integrals), */
  double sensitivity_rtol, sensitivity_error; /* their relative tolerance, and the sum of their local errors; see steps.c */
  double *predicted;                         /* the same size: predicted sensitivities of a step, and work */
  integer flow_calls, jacobian_calls, linearised_calls, guard_calls, not_finite, returned;
  integer solves, unsolved, parted;          /* explicit steps: whether algebraic variables are solved for; number of failures;
                                                whether a step has left their branch */
  integer root_calls, resting;               /* calls of the guards by SUNDIALS; whether a guard was zero at the start */
  const python_api *python;
  void *raised;                              /* exception of a signal handler, or Cancelled; raised by the caller */
  double clock, asked;                       /* seconds: last readings of the clock and of the signals */
  integer unwatched;                         /* evaluations until the next reading of the clock */
  double *held;                              /* values of `constants` */
  integer held_valid;
  struct linear *linear;                     /* Newton's matrix, unless it is SUNDIALS' dense one */
  struct staggered *together;                /* solver of sensitivities, unless it is SUNDIALS' own */
  const double *absolute;                    /* n + n_integrals: absolute tolerances, */
  double rtol;                               /* and other inputs of `dh_ida_weights`, see callbacks.c: */
  double *spread;                            /* n_z x n_differential if dense, else n_z; null if unused */
  double *spread_work;                       /* n_z x n; else 2 (n + n_integrals) + n_differential */
} context;

typedef struct linear {                      /* see linear.c; the band functions are SUNDIALS' */
  context *model;
  integer n, border, backward, n_entries, n_matrix;
  const integer *place, *diagonal;           /* positions of the entries of F_x and of the diagonal in `matrix` */
  const integer *order, *equations;          /* permutations of the unknowns and of the equations in `matrix` */
  double *jacobian, *rows, *matrix, *right;
  double row_scale, corner;
  double **columns;                          /* of a band */
  integer upper, lower, stored, *pivots;
  integer (*factor_band)(double **, integer, integer, integer, integer, integer *);
  void (*solve_band)(double **, integer, integer, integer, integer *, double *);
  int (*factor)(void), (*solve)(void);       /* Python functions: factorise `matrix`, solve for `right` in place; null for bands */
  sparse_lu *lu;                             /* compiled factorisation, until its capacity is exceeded; else null */
  integer setups, solves;
} linear;

typedef struct staggered {                   /* see staggered.c */
  context *model;
  linear *own;                               /* factors for sensitivities; by columns if `dense` */
  integer implicit, dense, exact, width;     /* exact: factorised in every step; width: n_directions in whole LANES */
  integer held;                              /* whether there are factors */
  double held_gamma, rate;                   /* their gamma, or c_j; rate of convergence with them */
  double gamma, rate_share;                  /* those of the step; rate_share multiplies the rates */
  double *sides, *rows, *moved;              /* n_directions x (n + n_integrals); 2 n x width; TOGETHER x (n + n_integrals) */
} staggered;

typedef struct {                             /* Butcher tableau, with full rows of `a` */
  integer stages;
  const double *a, *b, *c, *d;               /* d: weights of the embedded method */
} tableau;

typedef struct {                             /* data of an explicit step, to evaluate states within it */
  tableau table;
  const double *to_derivatives;              /* NODES x NODES: values at Chebyshev points -> derivatives at the end */
  const double *nodes;                       /* Chebyshev points on [0, 1] */
  integer size;                              /* of a state with integrals and sensitivities */
  double *begin, *end, *stages, *trial;      /* states at both ends of the step; stages x size; work */
  double begins, ends;                       /* times of both ends, */
  double length;                             /* whose difference is the step to rounding of time only */
} explicit_step;

typedef struct {
  context *model;
  void *memory;                              /* CVodeMem, IDAMem or ARKodeMem */
  vector x, xdot, work;
  vector errors;                             /* of explicit steps, same size as x; null if unused */
  vector *sensitivities, *sensitivity_rates;
  double *completed;                         /* 2 n, followed by the last Newton correction (n) */
  double *guard_values;                      /* 2 n_guards: work */
  int *roots;
  double *glances;                           /* GLANCES rows of 2 n_guards: values and rates of guards */
  double *history;                           /* HISTORY rows of n_guards: guards at step ends */
  double *band;                              /* n_guards: zero_band at the start of the step */
  double *noise;                             /* n_guards: threshold for zero within the step, so that a touch is not a crossing */
  double *pace;                              /* 2 n_guards: speed and range of each guard */
  const int *directions;
  const double *t_eval;
  double *rows;
  double t, t_stop, until;
  integer n_eval, next_eval;
  integer n_rows, capacity, width;
  integer record, dense_order, implicit, closed_end, budget, steps, root, corrector;
  long error_test_failures, newton_failures;
  double times[GLANCES];                     /* of the glances */
  double past[HISTORY];                      /* times of the history, latest first */
  integer n_past;
  double resolution;                         /* longest time between evaluations of the guards */
  double loose;                              /* largest relative residual of the algebraic variables */
  explicit_step *step;                       /* null for multistep methods */
  integer jumps;                             /* whether the guard changes sign between adjacent numbers */
  long failures_before;                      /* ARKODE's count of failed error tests at the start of the segment */
  double *path;                              /* a row per step, for the adjoint: t, h and x for explicit steps */
  integer n_path, path_capacity, path_width;
  double first_step, next_step;              /* first step (0: the solver's choice), and proposed next step */
  double approach;                           /* the guard one iteration before its zero was found; 0: unknown */
  double bracket[2], beyond;                 /* bracket of the zero if `approach` is known, and the guard beyond it */
  integer n_singularities;                   /* number of determinants of implicit equations, the last guards */
  double turns[TURNED * TURN];               /* near misses of guards, in all segments */
  integer n_turns;
  double longest;                            /* step of the segment so far */
  integer blurred;                           /* whether steps have shrunk to the rounding of time */
} run;

typedef struct {                             /* an adjoint, integrated backward along the path */
  context *model;
  void *memory;
  vector x, xdot, sample, integrals;
  const double *longest;                     /* longest step starting within each step of the path */
  const double *t_eval;                      /* decreasing */
  double *samples;                           /* n per time */
  double t, t_stop, max_step, bound;         /* bound: the step limit set in the solver */
  double begun, clock, target, toward;       /* start; the solver's time, its stop time, a time in its direction */
  integer n_eval, next_eval, budget, steps, implicit, anchor;
  integer cautious;                          /* whether the first step is short */
} backward;

typedef struct {                             /* a transition, measurement or knot */
  casadi_function cross, tangent, cost;      /* null if it is never native, or has no costs; see event_loop.c */
  casadi_function permit;                    /* null without a condition; gives 0 where `otherwise` replaces it */
  casadi_function sides;                     /* null without relations in it: their margins, and these by (t, x, m, p) */
  casadi_function begin, solve;              /* equations to be solved after it; see arrival.c */
  const double *numbers;                     /* constants of this transition, for shared functions */
  integer target, transition, index, direction, width; /* `index`: the link whose trigger it has */
  integer shared;                            /* number of the statement that it shares with others modes' links, or -1 */
  integer recorded;                          /* its own transition; `transition` is the one whose trigger it has */
  integer otherwise;                         /* the link that replaces it if its condition does not hold */
  integer clock;                             /* of time events: index of the shared clock, else -1 */
  integer fixed;                             /* whether its time is given, independent of parameters */
  integer measures, turns;                   /* no transition: the point is recorded for a measurement, or is a knot of signals */
  integer waits, toggles, jumps, keeps;      /* on_entry="wait"; whether it switches a relation; whether its guard may
                                                jump across zero; whether it leaves its guard unchanged */
  integer becomes;                           /* whether it also fires if another transition makes its guard negative */
  integer unknowns, simple, slopes;          /* number of unknowns; whether they are exactly z after it; whether
                                                derivatives depend on them */
  integer others;                            /* number of target constraints that are not among the solved equations */
  integer n_sides;                           /* number of margins of `sides` */
  sparse jump;                               /* pattern of w after the transition by (w, p, t) */
} link;

typedef struct {                             /* a mode */
  run *run;                                  /* null until the mode is first needed */
  integer n_x, n_y, n_z, n_guards, implicit, fragile, n_held; /* whether matrices of its equations may become singular; number
                                                of its constraints */
  const link *links;                         /* n_guards, followed by those of time events */
  const double *absolute, *numbers;          /* absolute tolerances of (y, z); constants of shared functions */
} mode_tables;

typedef struct {                             /* due times of time events in a mode, in order */
  const double *times;
  const integer *links, *counts;             /* index of the link, count of periods */
  integer n, next;
} alarms;

typedef struct {                             /* a measurement; see `MeasurementFunctions` in port/native_plan.py */
  const casadi_function *of_mode;
  const double *data;
  integer first, count;                      /* components of the functionals */
} measuring;

typedef struct {                             /* views of an event's record */
  double *x, *xdot, *guards, *x_after, *memory_after, *xdot_after, *guards_after, *xi, *open, *memory, *integrals, *tau, *before,
      *after, *costs_before, *costs_after, *gained, *completed; /* per direction dz after the event and, for implicit equations,
                                                          the rates of dy */
} event;

typedef struct {
  const mode_tables *modes;
  const double **arg;
  double **res;
  integer *iw;
  double *w, *work, *tangent;
  double *solving, *slopes;                  /* work of arrival.c; derivatives of the unknowns by (w, p, t) */
  const double *xi;                          /* solved unknowns */
  double *cost;                              /* of one event: costs of all functionals, and their derivatives by (w, p, t) */
  double *gained, *gained_directions;        /* costs of all events, and their derivatives along every direction */
  const measuring *measured;                 /* null if measurements are left to Python; */
  casadi_function moves;                     /* null if their times are fixed, else the derivatives of these by p: */
  double *moved;                             /* n_parameters per measurement */
  double *ticked;                            /* derivatives of the time of the latest time event by p */
  double *taken, *taken_directions;          /* sums over all measurements, and their derivatives */
  const double *parameters, *directions;
  double *rest;                              /* see resting_guards.c */
  double *bands, *entered;                   /* bands and leaving signs of the guards at the start of the current segment; the same
                                                after a pending event, which may be discarded */
  double *ranges;                            /* per transition: range of its guard */
  integer *rested;                           /* per transition: whether its guard stayed at zero */
  double *records;
  integer *offsets;                          /* start of each record */
  alarms *schedule;                          /* per mode */
  const integer *entries;                    /* n_entries: memory indices of signals; */
  const double *knots, *knot_directions;     /* memory entries written at the listed knots; the same along every direction */
  integer exit;                              /* the link in progress, or the last one */
  integer at, n_memory, n_parameters, n_functionals, n_integrals, n_directions, n_entries, certify;
  integer charges, n_unknowns;               /* whether any event has costs; largest number of unknowns besides z */
  integer reversed, later, placed;           /* whether simultaneous transitions fire last first; whether something else of the
                                                instant precedes; whether a segment is to begin */
  integer fired, max_fired;                  /* number of transitions at the instant, and its limit */
  integer ticked_clock;                      /* clock of the tick that led into the mode at this instant, -1 if none did */
  integer moving;                            /* whether any due time depends on parameters */
  integer closes;                            /* whether events at the end of the run are carried out, see `close_run` */
  integer capacity, room, used, n_events, n_passed, n_segments, max_events, budget, steps, failures, newton_failures;
  integer row, path_row, n_times;
  double kept, bound;                        /* numbers stored for paths, and for rows if they count; above the bound, */
  integer counts_rows, counts_records, last; /* which may include records, or after the last record it is COMPLETE */
  integer wanted, full, resumed;             /* reasons for stopping: a mode without memory, lack of room for records */
  double t0, t1, t_stop, begun, began_with, slack, rtol, t_end, now, first_step; /* first_step 0: the last proposed step */
  double recent[RECENT];                     /* times of the latest events, last first */
  double clock[2];                           /* start of the run, and period count of an event */
} event_loop;

typedef struct {                             /* a run from start to end, see native_run.c */
  event_loop *tables;
  mode_tables *modes;                        /* the modes of the tables */
  run *const *runs;                          /* per mode */
  casadi_function origin;                    /* start, null if it is given; end, per mode: see `BoundaryFunctions` */
  const casadi_function *final;
  double *start, *end;                       /* their outputs; after the start the derivatives of initial measurements
                                                by (y, m, p, t), if any; after the end the rates of the integrals,
                                                the integrals, the memory, and the gradient along every direction */
  double *by_u;                              /* work: derivatives of the terminal values by u */
  integer *counted;                          /* per mode: its counters at the start of the run */
  integer mode, n_modes, n_transitions, max_steps;
  integer watch, under_way;                  /* whether to check for stiffness; whether the run has started */
  integer look, interval, taken, events;     /* steps at the next check, interval; steps and events at the last check, */
  integer resting, doubtful;                 /* whether a guard stayed at zero; number of events to be checked */
  double before;                             /* time of the last check */
  double reach, longest;                     /* decay rate times step up to which steps stay explicit; `max_step`, or 0 */
  integer counts[COUNTED];
} native_run;

typedef struct {                             /* the adjoint of explicit steps */
  context *model;
  tableau table;
  integer n_components, n_rows, width;       /* of the path: t, the step that ended there and x */
  const integer *components;
  const double *path;
  double *adjoint;                           /* n_components x n: dG/dx, input at the end, output at the start */
  double *totals;                            /* n_components x (n_wrt + n_memory): integrals, accumulated */
  double *states, *slopes;                   /* stages x n */
  double *nu, *theta;                        /* stages x n x 2 n_components; n x 2 n_components */
  double *values;                            /* stages x nonzeros: the linearised equations at each stage, or x and tape */
  double *products, *sum;                    /* stages x n_product, n_parameters + n_memory */
  double *found, *middle;                    /* (n + n_wrt + n_memory) x 2 n_components, (PARTS + 1) x n: work */
  const double *absolute, *absolute_totals;  /* tolerances of `adjoint` and `totals` */
  integer nonzeros, steps, max_steps;
  double rtol;
} explicit_adjoint;

typedef struct {                             /* backward sweep through a record table */
  event_loop *tables;                        /* modes, work and sizes; its runs are not used */
  explicit_adjoint **modes;                  /* per mode, for explicit steps; */
  backward **integrated;                     /* for other methods, per mode and component */
  const double *const *paths;                /* per mode */
  const integer *offsets;                    /* n_events: start of each record */
  double *records;
  integer n_events, n_measured, n_components, n_wrt, marks_width, failed; /* failed: the event at or before which it failed */
  const integer *wrt, *components;
  double *adjoint;                           /* n_components x (n_y + n_memory), capacity of the largest mode; input and output */
  double *totals;                            /* n_components x n_wrt */
  const double *measured;                    /* contributions of measurements: n_measured x n_components x (marks_width + n_wrt) */
  const integer *sided;                      /* n_events: place of an event in `sides`, or -1; NULL if there are none */
  const double *sides;                       /* contributions after and before events: n x 2 x n_components x (marks_width + n_wrt) */
  double *marks;                             /* n_events x n_components x marks_width: adjoint and totals before each event */
  double *work, *longest;                    /* work; one number per step of the longest path */
  double begin, precision;                   /* start of the table; rounding of adjoints at the start of an integration */
  integer steps, max_steps;                  /* of integrations */
} sweep;

typedef struct {                             /* the adjoint of a native run, see native_run.c */
  sweep *back;                               /* sweep of its record table, with the paths of all modes and the result */
  const casadi_function *final;              /* as in `native_run` */
  const integer *slots;                      /* n_modes x widest: index of the extent of each named variable */
  const integer *path_rows;                  /* per mode */
  const double *start, *end;                 /* as in `native_run`; views of them, `at_start` if there are initial measurements: */
  const double *by_p, *at_start, *by_w, *sizes_end, *weights_end, *rates_end, *integrals, *memory;
  double *extent, *costs;                    /* n_slots + n_memory; n_components + 2 n_functionals: work */
  integer n_modes, n_slots, widest, first, last, path_row;
  double moved;                              /* length of the last segment */
  integer steps, counts[COUNTED];
} native_gradient;

enum { MARKS_FULL = 107 };                   /* no room for the marks of an adjoint */

typedef struct {                             /* tolerances of the sensitivities in a mode, see batch.c */
  int (*tell)(void *, double, vector);       /* `SVtolerances` for explicit steps, else `SensSVtolerances` */
  vector absolute;                           /* for explicit steps only, */
  double *values;                            /* and its data */
  const double *of_states;                   /* `block` absolute tolerances */
  integer block, n_tested;                   /* sensitivities of the first `n_tested` states and of integrals are tested */
  double rtol, share, untested;
} resolution;

typedef struct {                             /* the adjoint of one functional */
  native_gradient *adjoint;
  explicit_adjoint *const *modes;            /* per mode */
} returning;

typedef struct {                             /* successive runs, see batch.c */
  native_run *run;
  const returning *back;                     /* n_back */
  const resolution *resolutions;             /* per mode; null without directions */
  double *scales, *found;                    /* n_directions: scales set in the memories; largest sensitivities found */
  const integer *wrt, *components;           /* of the gradients: parameters, and n_components of the functionals */
  const double *absolute;                    /* of all functionals, and whether they are integrated: */
  const integer *integrated;
  integer *events, *begins;                  /* 2 n_transitions; n_modes: work */
  double *largest, *marks;                   /* `widest`; `room`: work */
  const double *given;                       /* n_given numbers per run: parameters and initial values */
  const double *starts;                      /* null, or the start of the runs from `started` on, `start_size` numbers each */
  const alarms *listed;                      /* per mode; null without time events; with times from run `first` on, */
  const double *listed_until;                /* time up to which they are complete; NaN if unknown */
  integer first, is_shared;                  /* whether both are shared by all runs */
  integer started, start_size;
  integer *outcomes, *reasons, *n_events, *n_steps, *modes; /* per run: whether it is done; why not, and the transition
                                                concerned or -1; events; steps; last mode */
  integer *digests;                          /* digest of its sequence, see `dae_hybrid.conditions.sequences` */
  const integer *sides;                      /* n_sides: entries of relations in the memory */
  double *times, *ends, *values, *gradients; /* end time; widest + n_memory; all functionals; n_components x n_wrt */
  double *outputs;                           /* n_t x (widest + n_memory) */
  integer *output_modes;
  integer n_back, n_wrt, n_components, n_given, n_t, widest, room, fewest_steps, differentiates, certify;
  integer n_sides;
  integer next, until, stage, stopped, broken; /* current run; its stage; whether a memory must not be used again */
} batch;
