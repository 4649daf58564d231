"""Limits of model files. They bound the time and the memory that reading an untrusted file can take."""

#: characters of one expression
MAX_LENGTH = 100_000
#: nodes of the syntax tree of one expression
MAX_NODES = 50_000
#: depth of the syntax tree of one expression
MAX_DEPTH = 100
#: nonzero entries of one vector or matrix, and its rows, and its columns
MAX_ENTRIES = 1_000_000
#: nonzero entries of all intermediate results of a file
MAX_WORK = 100_000_000
#: how many of these an entry of a result in a function of kind scalar counts for
SCALAR_WORK = 100
#: depth of tables and lists, and parts of a dotted key
MAX_NESTING = 32
#: bytes of a model file, and of a data file beside it
MAX_FILE_SIZE = 100_000_000
