/* Callbacks and step loop of the native SUNDIALS adapter.
 *
 * The file is model-independent and includes no SUNDIALS header: the functions of the model (generated
 * by CasADi) and the few SUNDIALS functions that the loop needs arrive as tables of pointers, so any C
 * compiler can build it and it binds to exactly the library that Python loaded.
 *
 * A mode is the system  M x' = F(t, x, m, p)  with M = diag(1, .., 1, 0, .., 0): the first
 * `n_differential` rows are differential equations, the others 0 = F_i. CVODES serves it when all rows
 * are differential, IDAS otherwise; ARKODE takes explicit Runge-Kutta steps, for which sensitivities are further states,
 * and algebraic variables are solved for. `m` is the memory, constant between transitions. Integrands are integrated as
 * further states q' = g behind x (measured: a third less work than SUNDIALS' quadratures on small systems, under the same
 * error control, and clear of a defect of Adams with quadrature sensitivities).
 * Python reads the constants and structs of this file (header.py), and puts those of its own rules before it
 * (interface/native_constants.py).
 *
 * The parts are one unit: this file, model.c (what the model gives), callbacks.c (what SUNDIALS asks for), linear.c
 * and sparse.c (Newton's matrix of large systems), staggered.c (sensitivities), runge_kutta.c (explicit steps), guards.c (zeros within steps), driver.c
 * (the loops), crossing.c (what an event leads to), march.c and sweep.c (through plain events, and back), stiffness.c
 * (whether explicit steps will do), plain.c (runs from their start), batch.c (many of them, by conditions.c). */
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
enum { PAUSED = 100, ROWS_FULL = 101, STALLED = 102, LOST = 103, SINGULAR = 106, STUCK = 50 }; /* STUCK steps without progress are enough */
enum { RECORD_NOTHING = 0, RECORD_STEPS = 1, RECORD_DENSE = 2 };
enum { RECOVERABLE = 1, FATAL = -1 };
enum { UNCONVERGED = -4 };                   /* ARK_CONV_FAILURE */
enum { SOLVER_DIRECT = 0, MATRIX_CUSTOM = 10, SOLVER_CUSTOM = 18 }; /* of SUNLinearSolver_Type, SUNMatrix_ID, .._ID */
enum { POLISH = 10000 };                     /* roundings that the polished event time may move by, */
#define SHRINKS 0.25                         /* of the guard, from one iteration to the next, that converges to it */
enum { TO_AND_FRO = 8 };                     /* roundings of time that it may miss a zero by */
#define REFINED 1e-6                         /* or this share of a step */
enum { HALVES, START = DEPTH + 1, END, TRIAL, GLANCES }; /* rows of `run.glances` */
enum { SHORTER = 10 };                       /* times that an explicit step is made shorter where there are no numbers */
enum { LOOKS = 3 };                          /* at the cubic through the ends of an explicit step */
enum { SHORT = 16 };                         /* vectors of at most so many numbers are combined number by number */
enum { TOGETHER = 8 };                       /* directions that are gone along at once */
enum { ABSOLUTE, FROM_END, FROM_START };     /* what the solver's time counts from, in an adjoint */
#define COARSEST 1e-2                        /* share of an algebraic variable that its tolerance may become */
enum { PROBES = 3 };                         /* perturbations of y that tell how far its errors reach */
enum { PART = 4 };                           /* integers about a part of derivatives by p: no columns, a plain one, else the
                                                product of a column and a row */
enum { BLOCKS = 6 };                         /* of the linearised equations */
enum { OF_BLOCKS = 1, OF_TAPE };             /* what is evaluated at a point once */
enum { HISTORY = 3 };                        /* ends of steps whose guards are kept */
/* of the turns of guards next to zero that are noted */
enum { TURN_GUARD, TURN_FROM, TURN_TO, TURN_SHARE, TURN };
#define LEAVING 2.5                          /* the error of a cubic, s^2 (1 - s)^2, over s, is at most this times it within */
#define TRIALS 100
#define NEGLIGIBLE 1e-3                      /* errors of states, in tolerances, that do not choose the order where sensitivities do, */
#define LESS_EXACT 4.0                       /* and how much larger they count at an order below */
#define BESIDE 100.0                          /* a guard is next to zero on entry within so many tolerances of the state */
#define FAR 100.0                            /* times ZENO_REST: an estimate from three events tells as much */
#define RANK_ROUNDINGS (RANK_TOLERANCE / DBL_EPSILON)
#define ALLOWED 10.0                         /* the embedded method may differ by so many tolerances of an adjoint */
enum { PARTS = 16 };                         /* times that a step is halved for the adjoint */
enum { UNRESOLVED = 104, NOT_PLAIN = 105, FINISHED = 107, COMPLETE = 108 };
enum { BUDGET = 20000 };                     /* steps between two looks at whether they get anywhere */
enum { FEW_STATES = 16 };                    /* of equations whose algebraic variables are solved for, for the rule on stiffness */
enum { COUNTED = 5 };                        /* counters of a context */
#define FINE 1e4                             /* roundings of time: shorter steps need another origin, */
#define NEARBY 1e-6                          /* and the first step from there keeps within this share of what is left */
#define MOMENT 1e-3                          /* of a step, after which a guard has left zero */
enum { GUESSES = 8 };                        /* of the zero of a cubic */
#define CLOSE 1e-8                           /* of a step: Newton's next move is its square, which is rounding */
#define NEAR 1e-5                            /* the same where each look takes a step of its own: `polish` goes on */
#define CORRECTED 1e-8                        /* of x: the next correction is its square, */
#define CORRECTED_DUST 1e-3                  /* or of its absolute tolerance, where x is next to zero */
#define CORRECTED_ROUNDING 1e-13             /* or rounding of others, from the second correction on */
#define SMALL_SHARE 1e-6                     /* of the largest algebraic variable: corrections of others are compared with that */
enum { MOST_PIECES = 64 };                   /* of a part of a step */
enum { MOST_CORRECTIONS = 8 };               /* of Newton's method within explicit steps, */
#define CONTRACTS 0.25                       /* which go on by at most this share of the one before */
#define APART 10.0                           /* tolerances between algebraic variables by their rates and by their equations */
#define CERTAIN 10.0                         /* a guard so many times as far from zero as x misses it by needs no solving */
#define SIGNALS 0.1                          /* seconds between two looks at Python's signals */
enum { SHORTER_STEP = 902, UNSOLVED = -41 }; /* SUN_NLS_CONV_RECVR; CV_SRHSFUNC_FAIL == IDA_SRES_FAIL */
enum { LANES = 4 };                          /* right-hand sides that are solved for in one loop */
enum { ITERATIONS = 3 };                     /* for sensitivities, with factors of another step, */
#define GAMMA_MOVED 0.3                      /* by which gamma, or c_j, may have changed since; */
#define SLOWER 0.3                           /* share of the rate of convergence that is measured, which the next one is at */
#define AGEING 1.3                           /* least; factor by which the rate is taken to grow in a step; */
#define SLOW 0.3                             /* and a rate at which other factors are better */
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

typedef struct {                             /* of Python's own C functions: PyGILState_Ensure, PyGILState_Release, */
  int (*acquire)(void);                      /* PyErr_CheckSignals, PyErr_GetRaisedException */
  void (*release)(int);
  int (*check_signals)(void);
  void *(*take_raised)(void);
} python_api;

typedef struct {                             /* compressed columns; the values lie in `value` */
  const integer *column;
  const integer *row;
  const integer *owner;                      /* the column of every value */
  double *value;
} sparse;

typedef struct {
  const sundials_api *api;
  casadi_function flow, jacobian, linearised, guards, rates, complete, constants;
  casadi_function tape, tangent, pullback;   /* instead of `linearised`, where they are there; see model.c */
  casadi_function sketch, settle, weigh, poles; /* instead of `guards`, where these need a consistent point; see model.c */
  const double **arg;
  double **res;
  integer *iw;
  double *w;
  integer n, n_differential, n_functionals, n_integrals, n_memory, n_parameters, n_guards, n_directions, n_wrt;
  const double *parameters, *numbers;        /* numbers: in which this mode differs from those that share its functions */
  double *memory;
  const double *parameter_directions;        /* n_parameters x n_directions, column by column */
  double *memory_directions;                 /* n_memory x n_directions */
  sparse moved;                              /* the parameter directions once more, without their zeros */
  const integer *wrt;                        /* parameters whose gradient is wanted */
  const double *weights;                     /* n_wrt + n_memory: the guide of the backward pass, see `adjoint` */
  double *integrands;                        /* n_wrt + n_memory doubles of work */
  sparse state_jacobian, integrand_jacobian; /* F_x and, transposed, g_x; filled by `jacobian` */
  sparse f_x, f_p, f_m;                      /* filled together by `linearised` */
  sparse g_x, g_p, g_m;                      /* transposed: one column per integrand */
  integer n_tape;
  double *recorded;                          /* n_tape: what `tape` gives at the point */
  integer n_product, n_parts;
  double *product;                           /* n_product: what `pullback` gives, derivatives by x, m and parts of those by p */
  const integer *parts;                      /* n_parts x PART: where each begins, its rows, its columns, its place in that */
  double *by_parameters;                     /* n_parameters + n_memory: put together */
  double *selected, *vector;                 /* n_functionals, all zero but within a call; 2 n + n_parameters + n_memory doubles
                                                of work */
  double *zero_band;                         /* per guard: |guard| at most this counts as zero until it has left */
  double *departure;                         /* sign with which it has to leave zero, 0 where unknown */
  double *latest;                            /* n_guards: guards as SUNDIALS has seen them last, and when */
  double latest_time;
  integer n_poles, n_off;                    /* guards that are determinants; by how many numbers x misses its equations */
  double *off, *guard_weights;               /* those numbers; (n_guards - n_poles) x n_off: what they do to the guards */
  integer weighed;                           /* 1 + setups of Newton's matrix when they did; 0: not in this segment */
  double *settled;                           /* 2 n doubles of work */
  double *point;                             /* n doubles: argument of the cached linearisation */
  double *parameter_gradient;                /* n_parameters doubles of work */
  const double *path;                        /* rows of `record_dense`, the solution that the adjoint follows */
  integer path_rows, path_width, path_row;   /* how many, how wide, and where it was looked at last */
  double origin, earliest;                   /* of the time in an adjoint's callbacks, and its end; see `start_back` */
  double *interpolated;                      /* 4 n doubles: the state at a time of the path; and work */
  double interpolated_time;
  integer interpolated_valid;
  integer component;                         /* which integrand the adjoint belongs to */
  double point_time;
  integer point_valid;                       /* what has been evaluated at the point: OF_BLOCKS, OF_TAPE or 0 */
  void *memory_of;                           /* SUNDIALS' memory, where sensitivities are left out of its error test: */
  const double *sensitivity_absolute;        /* their absolute tolerances, n_directions x (n + n_integrals), */
  double sensitivity_rtol, sensitivity_error; /* the relative one, and the sum of their local errors; see driver.c */
  double *predicted;                         /* as many numbers: what a step was predicted to be, and work */
  integer flow_calls, jacobian_calls, linearised_calls, guard_calls, not_finite, returned;
  integer solves, unsolved, parted;          /* of explicit steps: whether algebraic variables are solved for; how often they
                                                were not found; whether a step has left their branch */
  integer root_calls, resting;               /* how often SUNDIALS has asked for the guards; whether one began at zero */
  const python_api *python;
  void *raised;                              /* the exception of a signal handler, for the caller to raise */
  double clock, asked;                       /* seconds: the last look at the clock, and at the signals */
  integer unwatched;                         /* evaluations until the next look at the clock */
  double *held;                              /* what depends on parameters and memory alone */
  integer held_valid;
  struct linear *linear;                     /* Newton's matrix, where it is not SUNDIALS' own dense one */
  struct staggered *together;                /* what solves for sensitivities, where SUNDIALS does not */
  const double *absolute;                    /* n + n_integrals: absolute tolerances, */
  double rtol;                               /* and what else `dh_ida_weights` works on, see callbacks.c: */
  double *spread;                            /* n_z x n_differential, dense; else n_z; null where nobody asks for it */
  double *spread_work;                       /* n_z x n; else 2 (n + n_integrals) + n_differential */
} context;

typedef struct {                             /* see sparse.c */
  integer n, room;                           /* room for entries of L, and for those of U */
  const int *column, *row;                   /* the pattern of the matrix, by columns */
  double keeps;                              /* share of the largest entry down to which the diagonal is the pivot */
  integer *l_column, *l_row, *u_column, *u_row, *pivot, *work;
  double *l_value, *u_value, *x;
} sparse_lu;

typedef struct linear {                      /* see linear.c; the functions of the band are SUNDIALS' */
  context *model;
  integer n, border, backward, n_entries, n_matrix;
  const integer *place, *diagonal;           /* where the entries of F_x and the diagonal stand in `matrix` */
  const integer *order, *equations;          /* of the unknowns and of the equations in `matrix` */
  double *jacobian, *rows, *matrix, *right;
  double row_scale, corner;
  double **columns;                          /* of the band */
  integer upper, lower, stored, *pivots;
  integer (*factor_band)(double **, integer, integer, integer, integer, integer *);
  void (*solve_band)(double **, integer, integer, integer, integer *, double *);
  int (*factor)(void), (*solve)(void);       /* of Python: `matrix`, and `right` in place; null for a band */
  sparse_lu *lu;                             /* a factorisation here, as long as it has room; else null */
  integer setups, solves;
} linear;

typedef struct staggered {                   /* see staggered.c */
  context *model;
  linear *own;                               /* factors for sensitivities; where `dense`, by columns */
  integer implicit, dense, exact, width;     /* exact: factorised at every step; width: n_directions, up to whole LANES */
  integer held;                              /* whether there are factors, */
  double held_gamma, rate;                   /* of which gamma, or c_j; how fast iterations with them converge */
  double gamma, rate_share;                  /* those of the step; the latter what the rates are multiplied by */
  double *sides, *rows, *moved;              /* n_directions x (n + n_integrals); 2 n x width; TOGETHER x (n + n_integrals) */
} staggered;

typedef struct {                             /* Butcher's table, rows of `a` full */
  integer stages;
  const double *a, *b, *c, *d;               /* d: weights of the embedded method */
} tableau;

typedef struct {                             /* an explicit step: what is needed to go through parts of it */
  tableau table;
  const double *to_derivatives;              /* NODES x NODES: from values at Chebyshev points to derivatives at the end */
  const double *nodes;                       /* those points, on [0, 1] */
  integer size;                              /* of a state with integrals and sensitivities */
  double *begin, *end, *stages, *trial;      /* states at the ends of the step; `stages` sizes; work */
  double begins, ends;                       /* when */
} explicit_step;

typedef struct {
  context *model;
  void *memory;                              /* CVodeMem, IDAMem or ARKodeMem */
  vector x, xdot, work;
  vector errors;                             /* of explicit steps, as large as x; where they are looked at */
  vector *sensitivities, *sensitivity_rates;
  double *completed;                         /* 2 n doubles and the n of the last Newton correction */
  double *guard_values;                      /* 2 n_guards doubles of work */
  int *roots;
  double *glances;                           /* GLANCES rows of 2 n_guards doubles: values and rates of guards */
  double *history;                           /* HISTORY rows of n_guards doubles: guards at ends of steps */
  double *band;                              /* n_guards: zero_band where the step began */
  double *noise;                             /* n_guards: what counts as zero within the step; a touch does not cross */
  double *pace;                              /* 2 n_guards: speed and range of every guard */
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
  explicit_step *step;                       /* of Runge-Kutta methods */
  integer jumps;                             /* whether the guard changes sign from one number to the next */
  long failures_before;                      /* failed error tests that ARKODE had counted when the segment began */
  double *path;                              /* rows of every step, for the adjoint: of explicit ones t and x */
  integer n_path, path_capacity, path_width;
  double first_step, next_step;              /* to begin with (0: the solver's choice), and what it would go on with */
  double approach;                           /* the guard one iteration before where it was found; 0: unknown */
  double bracket[2], beyond;                 /* around the zero, where `approach` is known, and the guard past it */
  integer n_singularities;                   /* how many of the guards, the last ones, are determinants of implicit equations */
  double turns[TURNED * TURN];               /* where guards have turned next to zero, in all segments */
  integer n_turns;
} run;

typedef struct {                             /* an adjoint, integrated back along the path */
  context *model;
  void *memory;
  vector x, xdot, sample, integrals;
  const double *longest;                     /* longest step from within each step of the path */
  const double *t_eval;                      /* decreasing */
  double *samples;                           /* n doubles for each of them */
  double t, t_stop, max_step, bound;         /* bound is what the solver has been told */
  double begun, clock, target, toward;       /* where it began; the solver's time, its stop time, a time in its direction */
  integer n_eval, next_eval, budget, steps, implicit, anchor;
} backward;

typedef struct {                             /* what follows where a guard crosses, or a time comes */
  casadi_function cross, tangent, cost;      /* none where that is never plain, and where nothing is charged; see march.c */
  casadi_function begin, solve;              /* of what is solved for after it; see crossing.c */
  const double *numbers;                     /* in which it differs from those that share its functions */
  integer target, transition, index, direction, width;
  integer clock;                             /* of time events: what they have in common that tick together; else -1 */
  integer measures, turns;                   /* nothing happens: the point is recorded, for a measurement; a knot of signals */
  integer waits, toggles, jumps, keeps;      /* on_entry="wait"; whether it changes the side of a relation; whether its guard
                                                may jump across zero; whether it is after it what it was before */
  integer unknowns, simple, slopes;          /* how many are solved for; whether they are z after it and nothing else; whether
                                                derivatives depend on them */
  integer others;                            /* how many of the constraints after it are not among what is solved */
} link;

typedef struct {                             /* a mode */
  run *run;                                  /* none yet where the mode has not been needed */
  integer n_x, n_y, n_z, n_guards, implicit, fragile, n_held; /* whether matrices of its equations may become singular; how
                                                many constraints it is kept on */
  const link *links;                         /* n_guards, and those of time events behind them */
  const double *absolute, *numbers;          /* absolute tolerances of (y, z); numbers of its functions */
} station;

typedef struct {                             /* when time events of a mode are due: one after the other */
  const double *times;
  const integer *links, *counts;             /* by which link, after how many periods */
  integer n, next;
} alarms;

typedef struct {                             /* a measurement: `Measured` in port/native_plan.py */
  const casadi_function *of_mode;
  const double *data;
  integer first, count;                      /* components of the functionals */
} measuring;

typedef struct {                             /* parts of an event's record */
  double *x, *xdot, *guards, *x_after, *memory_after, *xdot_after, *guards_after, *xi, *open, *memory, *integrals, *tau, *before,
      *after, *costs_before, *costs_after, *gained, *completed; /* of every direction dz after and the rates of dy, of implicit
                                                          equations */
} event;

typedef struct {
  const station *stations;
  const double **arg;
  double **res;
  integer *iw;
  double *w, *work, *tangent;
  double *solving, *slopes;                  /* work of crossing.c; derivatives of what was solved for, by (w, p, t) */
  const double *xi;                          /* what has been solved for */
  double *cost;                              /* of one event: those of all functionals, and their derivatives by (w, p, t) */
  double *gained, *gained_directions;        /* costs of all events, and their derivatives along every direction */
  const measuring *measured;                 /* null where what is measured is left to Python; */
  double *taken, *taken_directions;          /* else, of all measurements, the same as of events */
  const double *parameters, *directions;
  double *bands, *entered;                   /* bands and departures of the guards where the segment under way began; the same
                                                where an event leads to, which may not be carried out */
  double *ranges;                            /* by transition: how large its guard has been */
  integer *rested;                           /* by transition: whether its guard stayed at zero */
  double *records;
  integer *offsets;                          /* where each of them begins */
  alarms *schedule;                          /* by mode */
  const integer *entries;                    /* n_entries: the places of signals in the memory; */
  const double *knots, *knot_directions;     /* of the knots that are listed what they write there; the same, of every direction */
  integer exit;                              /* the link that is gone through, or was last */
  integer at, n_memory, n_parameters, n_functionals, n_integrals, n_directions, n_entries, certify;
  integer charges, n_unknowns;               /* whether any event costs; how many unknowns beside z an event has at most */
  integer capacity, room, used, n_events, n_passed, max_events, budget, steps, failures, newton_failures, row, path_row, n_times;
  double kept, bound;                        /* numbers that are kept of paths, and of rows where they count; beyond the bound, */
  integer counts_rows, counts_records, last; /* to which records may count, too, or with the last record it is COMPLETE */
  integer wanted, full, resumed;             /* why it stopped: a mode that has not been opened, no room for so many records */
  double t0, t1, t_stop, begun, began_with, slack, rtol, t_end, now, first_step; /* 0: as the last one would have gone on */
  double recent[RECENT];                     /* times of the latest events, the last first */
  double clock[2];                           /* when the run began, and after how many periods an event comes */
} march;

typedef struct {                             /* a run from its start to its end, see plain.c */
  march *tables;
  station *stations;                         /* those of the tables */
  run *const *runs;                          /* by mode */
  casadi_function origin;                    /* the start, and the end by mode: `BoundaryFunctions` in port/native_plan.py */
  const casadi_function *final;
  double *start, *end;                       /* what they give; behind the start the derivatives of what is measured there,
                                                by (y, m, p, t), if anything is; behind the end the rates of what is
                                                integrated, integrals, memory, and the gradient by every direction */
  double *by_u;                              /* work: derivatives of the terminal values by u */
  integer *counted;                          /* by mode: its counters when the run began */
  integer mode, n_modes, n_transitions, max_steps;
  integer watch, under_way;                  /* whether to look how stiff it is; whether it has begun */
  integer look, interval, taken, events;     /* after so many steps, so many since; steps and events at the look before, */
  integer resting, doubtful;                 /* whether any guard stayed at zero; how many events need a closer look */
  double before;                             /* time of the look before */
  double reach, longest;                     /* rate of a decay times the step, up to which steps stay explicit; `max_step`, or 0 */
  integer counts[COUNTED];
} plain;

typedef struct {                             /* the adjoint of explicit steps */
  context *model;
  tableau table;
  integer n_components, n_rows, width;       /* of the path: t and x of every point */
  const integer *components;
  const double *path;
  double *adjoint;                           /* n_components x n: dG/dx, from the end to the start */
  double *totals;                            /* n_components x (n_wrt + n_memory): the integrals are added to it */
  double *states, *slopes;                   /* stages x n */
  double *nu, *theta;                        /* stages x n x 2 n_components; n x 2 n_components */
  double *values;                            /* stages x nonzeros: the linearised equations at every stage, or x and tape */
  double *products, *sum;                    /* stages x n_product, n_parameters + n_memory */
  double *found, *middle;                    /* (n + n_wrt + n_memory) x 2 n_components, (PARTS + 1) x n: work */
  const double *absolute, *absolute_totals;  /* tolerances of `adjoint` and of `totals` */
  integer nonzeros, steps, max_steps;
  double rtol;
} explicit_adjoint;

typedef struct {                             /* back through the events of a leg */
  march *tables;                             /* `stations`, work and sizes; its runs are not used */
  explicit_adjoint **modes;                  /* by mode, of explicit steps; */
  backward **integrated;                     /* of others, by mode and component */
  const double *const *paths;                /* by mode */
  const integer *offsets;                    /* n_events: of the records */
  double *records;
  integer n_events, n_measured, n_components, n_wrt, marks_width, failed; /* the event that it failed at or before */
  const integer *wrt, *components;
  double *adjoint;                           /* n_components x (n_y + n_memory), room for the largest; in and out */
  double *totals;                            /* n_components x n_wrt */
  const double *measured;                    /* what measurements add to them: n_measured x n_components x (marks_width + n_wrt) */
  double *marks;                             /* n_events x n_components x marks_width: adjoint and totals before it */
  double *work, *longest;                    /* work; a number for every step of the longest path */
  double begin, precision;                   /* of the leg; what adjoints are rounded to where integration begins */
  integer steps, max_steps;                  /* of integrations */
} sweep;

typedef struct {                             /* the adjoint of a whole run, see plain.c */
  sweep *back;                               /* through its leg; it has the paths of all modes, and the result */
  const casadi_function *final;              /* as in `plain` */
  const integer *slots;                      /* n_modes x widest: where the extents of variables of one name stand */
  const integer *path_rows;                  /* by mode */
  const double *start, *end;                 /* as in `plain`; of them, `at_start` where anything is measured: */
  const double *by_p, *at_start, *by_w, *sizes_end, *weights_end, *rates_end, *integrals, *memory;
  double *extent, *costs;                    /* n_slots + n_memory; n_components + 2 n_functionals: work */
  integer n_modes, n_slots, widest, first, last, path_row;
  double moved;                              /* how long the last segment is */
  integer steps, counts[COUNTED];
} plain_adjoint;

enum { MARKS_FULL = 107 };                   /* no room for the marks of an adjoint */

typedef struct {                             /* how the sensitivities of a mode are resolved, see batch.c */
  int (*tell)(void *, double, vector);       /* `SVtolerances` of explicit steps, else `SensSVtolerances` */
  vector absolute;                           /* of explicit steps alone, */
  double *values;                            /* and what is in it */
  const double *of_states;                   /* `block` absolute tolerances */
  integer block, n_tested;                   /* sensitivities of the first `n_tested`, and of integrals, are tested */
  double rtol, share, untested;
} resolution;

typedef struct {                             /* the adjoint of one functional */
  plain_adjoint *adjoint;
  explicit_adjoint *const *modes;            /* of all modes */
} returning;

typedef struct {                             /* many runs, one after the other, see batch.c */
  plain *run;
  const returning *back;                     /* n_back */
  const resolution *resolutions;             /* by mode; null without directions */
  double *scales, *found;                    /* n_directions: what the memories have been told; how large they become */
  const integer *wrt, *components;           /* of the gradients: parameters, and n_components of the functionals */
  const double *absolute;                    /* of all functionals, and whether they are integrated: */
  const integer *integrated;
  integer *events, *begins;                  /* 2 n_transitions; n_modes: work */
  double *largest, *marks;                   /* `widest`; `room`: work */
  const double *given;                       /* n_given numbers for every run: parameters, and initial values */
  const alarms *listed;                      /* by mode; null without time events; with times from run `first` on, */
  const double *listed_until;                /* until when they are complete; NaN where they are not known */
  integer first, is_shared;                  /* whether both are those of all runs */
  integer *outcomes, *n_events, *n_steps, *modes; /* of every run: whether it is done; events; steps; the last mode */
  double *times, *ends, *values, *gradients; /* when it ended; widest + n_memory; all functionals; n_components x n_wrt */
  double *outputs;                           /* n_t x (widest + n_memory) */
  integer *output_modes;
  integer n_back, n_wrt, n_components, n_given, n_t, widest, room, fewest_steps, differentiates, certify;
  integer next, until, stage, stopped, broken; /* which run; how far it is; whether a memory is not to be used any more */
} batch;
