"""Random hybrid systems in numbers: ``python benchmarks/random_systems.py --count 500 --seed 0 --markdown FILE``.

Every system is declared from its seed, simulated and differentiated forwards, backwards and by finite differences, in
a process of its own: one that crashes or hangs is counted too. ``--closed-forms`` takes systems with known solutions
(tests/support/closed_forms.py), ``--edges`` such systems with events at the edge of their conditions
(tests/support/closed_forms_at_edges.py), ``--scales`` such systems in which numbers vanish, cancel or are large
(tests/support/closed_forms_of_scale.py), ``--words`` such systems with jumps that no relation shows
(tests/support/closed_forms_of_words.py), ``--relations`` systems with relations and ties
(tests/support/random_relations.py); all five go through all adapters and methods. ``--events`` takes systems with
conditions, clocks, queues and tables of times (tests/support/random_events.py), ``--inputs`` systems with peaks, other
starts, lookup tables and mass matrices (tests/support/random_inputs.py). ``--only SEED`` judges one system and prints
all of it.
"""

from __future__ import annotations

import argparse
import multiprocessing as mp
import re
import signal
import sys
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import count as counter
from pathlib import Path
from threading import local
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from closed_forms import judge_closed_form
from closed_forms_at_edges import judge_at_an_edge
from closed_forms_of_scale import judge_of_scale
from closed_forms_of_words import judge_words
from random_events import event_system
from random_inputs import input_system
from random_relations import judge_relations, relations_system
from random_systems import FORMS, random_system
from verdicts import Verdict, judge

from dae_hybrid.tables import markdown

HANG = 120.0  # seconds; all the runs of one system take a few
#: what the titles of reports add
WITH = {
    "relations": " with relations",
    "edges": " with events at the edge of their conditions",
    "scales": " in which numbers vanish, cancel or are large",
    "words": " with jumps that no relation shows",
    "events": " with conditions, clocks and queues",
    "inputs": " with peaks, other starts, tables and masses",
}
#: judges of seeds other than random systems of any formulation through one adapter
FAMILIES = {
    "closed forms": judge_closed_form,
    "edges": judge_at_an_edge,
    "scales": judge_of_scale,
    "words": judge_words,
    "relations": judge_relations,
}
#: systems with further statements, through SUNDIALS
KINDS = {"events": event_system, "inputs": input_system}


def verdict_of(seed: int, adapter: str, every: int) -> Verdict:
    """What comes of one seed; `adapter` may be one of `FAMILIES`, which choose their own."""
    if adapter in FAMILIES:
        return FAMILIES[adapter](seed)
    native = not every or seed % every > 0
    if adapter in KINDS:
        return judge(KINDS[adapter](seed), native=native, directions=1)
    return judge(random_system(seed), adapter=adapter, native=native)


def _serve(pipe: Any, adapter: str, every: int) -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process that reports takes it
    with suppress(EOFError):  # the end
        while True:
            pipe.send(verdict_of(pipe.recv(), adapter, every))


class Workers:
    """A process for every thread, made anew after a crash or a hang."""

    def __init__(self, adapter: str, every: int) -> None:
        self.arguments, self.own = (adapter, every), local()

    def _start(self) -> None:
        context = mp.get_context("spawn")
        self.own.pipe, other = context.Pipe()
        self.own.process = context.Process(target=_serve, args=(other, *self.arguments), daemon=True)
        self.own.process.start()
        other.close()

    def __call__(self, seed: int) -> Verdict:
        if getattr(self.own, "process", None) is None:
            self._start()
        begin = time.monotonic()
        self.own.pipe.send(seed)
        try:
            if self.own.pipe.poll(HANG):
                return self.own.pipe.recv()
            outcome = f"DEFECT: no end within {HANG:.0f} s"
        except (EOFError, ConnectionError):
            outcome = f"DEFECT: crash after {time.monotonic() - begin:.0f} s"
        self.own.process.kill()
        self.own.process = None
        return Verdict(seed=seed, outcome=outcome)


def reason(verdict: Verdict) -> str:
    """The kind of error and the sentence without its numbers."""
    _, kind, text = verdict.outcome.split(": ", 2)
    sentence = re.sub(r"[-+]?\d+(\.\d+)?(e[-+]?\d+)?", "#", text.split("\n")[0].split(" [")[0].split(". ")[0])
    return f"{kind}: {re.sub(r"'[^']*'", "'...'", sentence)[:110]}".replace("|", r"\|")


def report(verdicts: list[Verdict], title: str) -> str:
    """Tables of the trials and their outcomes."""
    kinds = ("agree", "refused", "needless", "DISAGREE", "DEFECT")
    if not any(v.kind == "needless" for v in verdicts):
        kinds = ("agree", "refused", "DISAGREE", "DEFECT")
    if any(v.kind == "coarse" for v in verdicts):
        kinds = (kinds[0], "coarse", *kinds[1:])
    names = {"needless": "refused without need"}
    known = sorted({form for v in verdicts for form in v.forms} - {*FORMS, "implicit index 2"})
    what = "systems with" if known else "systems with a mode that is"
    rows = [[what, "tried", *(names.get(k, k.lower()) for k in kinds)]]
    for form in (*(() if known else (*FORMS, "implicit index 2")), *known, "any form"):
        of = [v for v in verdicts if form in v.forms or form == "any form"]
        found = Counter(v.kind for v in of)
        rows.append([form, str(len(of)), *(str(found[k]) for k in kinds)])
    agreed = [v for v in verdicts if v.kind == "agree"]
    parts = [title, markdown(rows)]
    refusals = Counter((reason(v), v.stage) for v in verdicts if v.kind == "refused")
    parts.append(markdown([["refused", "by", "systems"], *([*k, str(n)] for k, n in refusals.most_common())]))
    if any(v.tried for v in agreed):
        one, two = max(agreed, key=lambda v: v.adjoint), max(agreed, key=lambda v: v.differences)
        compared, tried = sum(v.compared for v in agreed), sum(v.tried for v in agreed)
        parts.append(
            f"{sum(v.events > 0 for v in agreed)} of the systems that agree have events, "
            f"{sum(v.events for v in agreed)} in total. Worst relative difference FSA - ASA: "
            f"{one.adjoint:.1e} (seed {one.seed}); FSA - finite differences: {two.differences:.1e} (seed {two.seed}). "
            f"Finite differences converged in {compared} of {tried} directions; in the others a perturbed run "
            "had different transitions or was refused."
        )
    for verdict in (v for kind in kinds for v in verdicts if v.kind == kind and kind not in {"agree", "refused"}):
        said = verdict.outcome.splitlines()[0][:400]
        parts.append(f"- seed {verdict.seed} ({', '.join(verdict.forms)}): {said}")
    return "\n\n".join(parts) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=0, help="of the first system")
    parser.add_argument("--adapter", default="sundials")
    parser.add_argument("--closed-forms", dest="adapter", action="store_const", const="closed forms")
    parser.add_argument("--edges", dest="adapter", action="store_const", const="edges")
    parser.add_argument("--scales", dest="adapter", action="store_const", const="scales")
    parser.add_argument("--words", dest="adapter", action="store_const", const="words")
    parser.add_argument("--relations", dest="adapter", action="store_const", const="relations")
    parser.add_argument("--events", dest="adapter", action="store_const", const="events")
    parser.add_argument("--inputs", dest="adapter", action="store_const", const="inputs")
    parser.add_argument("--interpret-every", type=int, default=10, help="do not compile every n-th system; 0: all are")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--only", type=int, help="judge one system")
    parser.add_argument("--markdown", type=Path)
    given = parser.parse_args()
    if given.only is not None:
        if given.adapter == "relations":
            print(relations_system(given.only).statement)
        elif given.adapter not in FAMILIES:
            drawn = KINDS.get(given.adapter, random_system)(given.only)
            print(drawn.system(native=False).describe())
        print(verdict_of(given.only, given.adapter, given.interpret_every))
        return
    work, done = Workers(given.adapter, given.interpret_every), counter(1)
    verdicts: list[Verdict] = []
    pool = ThreadPoolExecutor(given.jobs)
    with suppress(KeyboardInterrupt):  # the report is of the systems judged so far
        for verdict in pool.map(work, range(given.seed, given.seed + given.count)):
            verdicts.append(verdict)
            if verdict.kind != "agree" or verdict.notes:
                print(f"{verdict.seed}: {verdict.stage}: {verdict.outcome} {' '.join(verdict.notes)}", flush=True)
            if (i := next(done)) % 50 == 0:
                print(f"-- {i} of {given.count}", flush=True)
    pool.shutdown(wait=False, cancel_futures=True)
    last = given.seed + len(verdicts) - 1
    through = given.adapter
    if given.adapter in FAMILIES:
        through = "all adapters and methods"
    elif given.adapter in KINDS:
        through = "sundials"
    what = f"Random systems{WITH.get(given.adapter, '')}"
    text = report(verdicts, f"# {what} {given.seed} to {last} through {through}")
    print(text)
    if given.markdown is not None:
        given.markdown.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
