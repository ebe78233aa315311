"""Runs `recgraph` on damaged graph files until the time is up, and keeps those that show a bug.

    fuzz_recgraph.py --minutes 15 --out DIR [--graphs FOLDER] [--first-seed N]

Case N is made from the random numbers of seed N. The work is done in child processes, so that even an abort of
TensorFlow is seen: the file of the case is then left in DIR too. Prints a line per bug and the counts at the end; the
exit code is 1 if there was any bug. `tests/fuzz` runs a few of these cases.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CASES_PER_CHILD = 2_000


def child(out: Path, first: int, deadline: float) -> int:
    """Runs cases until the deadline; writes `<seed> <outcome>` lines."""
    sys.path.insert(0, str(ROOT / "tests" / "fuzz"))
    from fuzz_case import Bug, options_of, run_case
    from mutations import damaged_file
    from seed_graphs import seed_graphs

    from mx_rec.ops import load_library

    load_library()
    graphs = list(seed_graphs().items())
    with tempfile.TemporaryDirectory() as directory:
        for seed in range(first, first + CASES_PER_CHILD):
            if time.time() > deadline:
                break
            random_ = random.Random(seed)
            origin, graph_def = random_.choice(graphs)
            name, data = damaged_file(random_, graph_def)
            current = out / f"running_{first}_{name}"
            current.write_bytes(data)
            try:
                verdict = run_case(name, data, Path(directory), options_of(seed, name))
                print(f"{seed} code{verdict.code} {verdict.modified:d} {verdict.accepted:d}", flush=True)
            except Bug as bug:
                (out / f"bug_{seed}_{name}").write_bytes(data)
                (out / f"bug_{seed}.txt").write_text(f"{origin}\n{bug}\n")
                print(f"{seed} bug", flush=True)
            current.unlink()
    return 0


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=15)
    parser.add_argument("--out", type=Path, default=Path("fuzz"))
    parser.add_argument("--graphs", type=Path, help="folder of further .pb files to begin with")
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--child", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.child:
        return child(args.out, args.first_seed, args.child)
    args.out.mkdir(parents=True, exist_ok=True)
    deadline = time.time() + 60 * args.minutes
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    if args.graphs:
        environment["MX_REC_FUZZ_GRAPHS"] = str(args.graphs.resolve())
    counts: collections.Counter[str] = collections.Counter()
    seed = args.first_seed
    while time.time() < deadline:
        command = [
            sys.executable,
            __file__,
            "--child",
            str(deadline),
            "--out",
            str(args.out),
            "--first-seed",
            str(seed),
        ]
        run = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
        lines = run.stdout.splitlines()
        for line in lines:
            number, outcome, *flags = line.split()
            counts["cases"] += 1
            counts[outcome] += 1
            counts["rewritten"] += flags[:1] == ["1"]
            counts["rewritten, accepted by TensorFlow"] += flags[1:] == ["1"]
            if outcome == "bug":
                text = (args.out / f"bug_{number}.txt").read_text().strip().splitlines()
                print(f"{number}: {text[1][:150]} ... {text[-1][:300]}", flush=True)
            seed = int(number)
        seed += 1
        if run.returncode:
            counts["aborts"] += 1
            print(f"{seed}: the process ended with {run.returncode}; see {args.out}/running_*", flush=True)
            for path in args.out.glob("running_*"):
                path.rename(args.out / f"abort_{seed}_{path.name.rpartition('_')[2]}")
            seed += 1
    print(", ".join(f"{what}: {count}" for what, count in sorted(counts.items())))
    return 1 if counts["bug"] or counts["aborts"] else 0


if __name__ == "__main__":
    sys.exit(main())
