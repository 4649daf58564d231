#!/bin/sh
# casadi 3.8.2 (wheel for Linux): plugins are loaded with RTLD_DEEPBIND.
#
# Guess: a plugin such as the linear solver "qr", which has no dependence of its own, is loaded by a plain dlopen.
# Seen:  the flags of its dlopen contain RTLD_DEEPBIND (8): its symbols come before those of the process. So what is
#        preloaded does not reach it, and AddressSanitizer refuses the call and ends the process, whatever the model
#        does. A preloaded dlopen that clears the flag, before the runtime of the sanitizer, lets such a run go on.
# Exit status 0 while this is so. Needs a C compiler.
set -eu
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
python3 -m venv "$work/venv"
"$work/venv/bin/python" -m pip install --quiet casadi==3.8.2 numpy==2.3.5
cat >"$work/watch.c" <<'C'
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
void *dlopen(const char *name, int flags) {
  void *(*real)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
  if (name && strstr(name, "linsol_qr")) fprintf(stderr, "linsol_qr deep %d\n", (flags & RTLD_DEEPBIND) != 0);
  return real(name, flags);
}
C
${CC:-cc} -shared -fPIC -o "$work/watch.so" "$work/watch.c"
said=$(LD_PRELOAD="$work/watch.so" "$work/venv/bin/python" -c '
import casadi
casadi.Linsol("solver", "qr", casadi.Sparsity.dense(2, 2))' 2>&1)
echo "$said"
case $said in *"linsol_qr deep 1"*) ;; *) exit 1 ;; esac
