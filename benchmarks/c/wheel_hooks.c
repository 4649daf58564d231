/* The static libraries in the sundials4py wheel are compiled for its Python extension: on destruction
 * every object hands the table of its Python callbacks to a function that only the extension defines.
 * In a C program that table is NULL, so there is nothing to do here but satisfy the linker.
 */
#define NO_PYTHON_CALLBACKS(name) \
  void name(void* table);         \
  void name(void* table) { (void)table; }

NO_PYTHON_CALLBACKS(SUNContextFunctionTable_Destroy)
NO_PYTHON_CALLBACKS(SUNDomEigEstimatorFunctionTable_Destroy)
NO_PYTHON_CALLBACKS(SUNLinearSolverFunctionTable_Destroy)
NO_PYTHON_CALLBACKS(SUNLoggerFunctionTable_Destroy)
NO_PYTHON_CALLBACKS(SUNNonlinearSolverFunctionTable_Destroy)
NO_PYTHON_CALLBACKS(SUNStepperFunctionTable_Destroy)
NO_PYTHON_CALLBACKS(cvode_user_supplied_fn_table_destroy)
NO_PYTHON_CALLBACKS(idas_user_supplied_fn_table_destroy)
