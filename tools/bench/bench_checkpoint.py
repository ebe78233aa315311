"""Saving and restoring 1,000,000 keys of dim 64 with the two slots of Adam, 792 MB, through `tf.compat.v1.train.Saver`.

Candidates: tables of ours that grow and of fixed capacity, three TFRA tables (rows and two slots), and three static
variables. Each runs in a process of its own, in turn. Restores are cold: the files have been dropped from the page
cache. Ours flushes its files to disk before a save is done; the others do not, so their time to flush is given
beside. Beside them the disk: plain writes of as many bytes with a flush, and plain cold reads. Before all that is
timed, memory is touched and given back, so that no candidate waits for memory of the host.

    bench_checkpoint.py [--keys 1000000] [--dim 64] [--repeats 3] [--only "mx_rec,fixed capacity"]
"""

from __future__ import annotations

import argparse
import glob
import json
import mmap
import os
import subprocess
import sys
import tempfile
import threading
import time

import numpy as np
import tensorflow as tf
from harness import environment, scrambled

from mx_rec.constants.constants import ASCEND_SPARSE_LOOKUP_ID_OFFSET, ASCEND_SPARSE_LOOKUP_LOCAL_EMB

try:
    import tensorflow_recommenders_addons as tfra

    de = tfra.dynamic_embedding
except ImportError:
    de = None

tf1 = tf.compat.v1
BATCH = 65_536
MIB = 1 << 20
OURS, FIXED, TFRA, STATIC, DISK = "mx_rec", "fixed capacity", "TFRA", "static variables", "disk"


def flush(paths) -> float:
    start = time.perf_counter()
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.close(handle)
    return time.perf_counter() - start


def drop_from_cache(paths) -> None:
    for path in paths:
        handle = os.open(path, os.O_RDONLY)
        os.fsync(handle)
        os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(handle)


def have_memory(size: int) -> None:
    """Has the host give this machine memory again that it took back while it was free.

    Else whoever first touches it pays for that, a second for 800 MB here, and in some runs it is one candidate, in
    others another.
    """
    area = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    area.madvise(mmap.MADV_HUGEPAGE)
    for at in range(0, size, 4096):
        area[at] = 1
    area.close()


def memory(reset: bool = False) -> int:
    """Bytes of resident memory, or its peak since the last reset."""
    if reset:
        with open("/proc/self/clear_refs", "w") as stream:
            stream.write("5")
    with open("/proc/self/status") as stream:
        fields = dict(line.split(":", 1) for line in stream)
    return int(fields["VmRSS" if reset else "VmHWM"].split()[0]) * 1024


def disk(size: int, directory: str) -> dict:
    path = os.path.join(directory, "plain")
    block = os.urandom(MIB)
    have_memory(3 * size)
    start = time.perf_counter()
    with open(path, "wb", buffering=0) as stream:
        for _ in range(size // MIB):
            stream.write(block)
        os.fsync(stream.fileno())
    wrote = time.perf_counter() - start
    drop_from_cache([path])
    have_memory(3 * size)
    buffer = bytearray(MIB)
    start = time.perf_counter()
    with open(path, "rb", buffering=0) as stream:
        while stream.readinto(buffer):
            pass
    read = time.perf_counter() - start
    os.unlink(path)
    return {"save": wrote, "flush": 0.0, "restore": read, "bytes": size // MIB * MIB}


def ours(keys, dim, is_fixed=False):
    from mx_rec.core.embedding import create_table, sparse_lookup
    from mx_rec.optimizers import lazy_adam, lazy_adam_by_addr
    from mx_rec.util.initialize import init

    init(use_dynamic_expansion=not is_fixed)
    initializer = tf1.random_uniform_initializer(-0.1, 0.1, seed=1)
    table = create_table(tf.int64, dim, "t", initializer, device_vocabulary_size=keys)
    ids = tf1.placeholder(tf.int64, [None])
    rows = sparse_lookup(table, ids)
    if is_fixed:
        step = lazy_adam.create_hash_optimizer(1e-3).minimize(tf.reduce_sum(rows), var_list=[table.variable])
    else:
        gradients = tf.gradients(tf.reduce_sum(rows), tf1.get_collection(ASCEND_SPARSE_LOOKUP_LOCAL_EMB))
        addresses = tf1.get_collection(ASCEND_SPARSE_LOOKUP_ID_OFFSET)
        optimizer = lazy_adam_by_addr.create_hash_optimizer_by_address(1e-3)
        step = optimizer.apply_gradients(list(zip(gradients, addresses)))
    read = sparse_lookup(table, ids, is_train=False)
    return step, ids, read, lambda session: table.size(session)


def fixed(keys, dim):
    return ours(keys, dim, is_fixed=True)


def tfra_tables(keys, dim):
    ids = tf1.placeholder(tf.int64, [None])
    values = tf.random.uniform([tf.size(ids), dim])
    tables = [de.get_variable(f"tfra_{name}", dim=dim, initializer=0.0) for name in "wmv"]
    step = tf.group(*(table.upsert(ids, values) for table in tables))
    return step, ids, tables[0].lookup(ids), lambda session: int(session.run(tables[0].size()))


def static(keys, dim):
    variables = [tf1.get_variable(name, [keys, dim], use_resource=True) for name in "wmv"]
    ids = tf1.placeholder(tf.int64, [None])
    return tf.no_op(), ids, tf.gather(variables[0], ids), lambda session: keys


def measure(candidate: str, keys: int, dim: int, directory: str) -> dict:
    """Times of one candidate."""
    if candidate == DISK:
        return disk(keys * (8 + 12 * dim), directory)
    tf1.disable_eager_execution()
    make = {OURS: ours, FIXED: fixed, TFRA: tfra_tables, STATIC: static}[candidate]
    step, ids, read, size = make(keys, dim)
    saver = tf1.train.Saver(max_to_keep=None)
    all_keys = np.arange(keys) if candidate == STATIC else scrambled(np.arange(keys))
    prefix = os.path.join(directory, "model")
    result = {}
    with tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for begin in range(0, keys, BATCH):
            session.run(step, {ids: all_keys[begin : begin + BATCH]})
        some = session.run(read, {ids: all_keys[:1000]})
        have_memory(2 * keys * (8 + 12 * dim))
        held = memory(reset=True)
        start = time.perf_counter()
        saver.save(session, prefix, write_meta_graph=False)
        result["save"] = time.perf_counter() - start
        result["save_memory"] = memory() - held
        files = glob.glob(prefix + ".*")
        result["flush"] = flush(files)
        result["bytes"] = sum(map(os.path.getsize, files))
        if candidate in (OURS, FIXED):
            result.update(of_ours(session, saver, directory, step, ids, all_keys, result))
            held = memory(reset=True)
            saver.restore(session, prefix)
            result["live_restore_memory"] = memory() - held
    with tf1.Session() as session:
        drop_from_cache(files)
        have_memory(3 * keys * (8 + 12 * dim))
        held = memory(reset=True)
        start = time.perf_counter()
        saver.restore(session, prefix)
        result["restore"] = time.perf_counter() - start
        result["restore_memory"] = memory() - held
        assert size(session) == keys
        np.testing.assert_array_equal(session.run(read, {ids: all_keys[:1000]}), some)
    return result


def of_ours(session, saver, directory, step, ids, keys, full) -> dict:
    """A delta of 1 % of the rows, and how long steps wait while a save goes on."""
    from mx_rec.checkpoint import read_saved_table
    from mx_rec.saver.saver import save_incremental

    result = {}
    path = os.path.join(directory, "incremental")
    quiet = {"write_meta_graph": False}
    start = time.perf_counter()
    base = save_incremental(saver, session, path, 0, delta=False, **quiet)
    result["base"] = time.perf_counter() - start
    session.run(step, {ids: keys[: len(keys) // 100]})
    start = time.perf_counter()
    delta = save_incremental(saver, session, path, 1, delta=True, **quiet)
    result["delta"] = time.perf_counter() - start
    own = read_saved_table(delta, "t").files[-1].suffix
    result["delta_bytes"] = os.path.getsize(delta + own)
    for prefix in (base, delta):
        tf1.train.remove_checkpoint(prefix)

    result.update(steps_beside_a_save(session, saver, directory, step, ids, keys))
    return result


def steps_beside_a_save(session, saver, directory, step, ids, keys) -> dict:
    """Steps of 1,024 keys, the same ones and other ones each, so that a wait shows."""
    from mx_rec.checkpoint import read_saved_table

    result = {}
    rng = np.random.default_rng(0)
    for kind in ("same", "others"):
        times: list[tuple[float, float]] = []
        stop = threading.Event()

        def train(kind=kind, times=times, stop=stop):
            while not stop.is_set():
                batch = keys[:1024] if kind == "same" else keys[rng.integers(0, len(keys), 1024)]
                begin = time.perf_counter()
                session.run(step, {ids: batch})
                times.append((begin, time.perf_counter() - begin))

        thread = threading.Thread(target=train)
        thread.start()
        time.sleep(1.0)
        held = memory(reset=True)
        begin = time.perf_counter()
        prefix = saver.save(session, os.path.join(directory, "while_training"), write_meta_graph=False)
        end = time.perf_counter()
        used = memory() - held
        time.sleep(0.2)
        stop.set()
        thread.join()
        alone = [took for at, took in times if at + took < begin]
        during = [took for at, took in times if at + took >= begin and at <= end]
        result[kind] = {
            "pause_us": int(read_saved_table(prefix, "t").manifest.notes["pause_us"]),
            "alone": [float(np.median(alone)), float(np.mean(alone)), float(max(alone))],
            "during": [float(np.median(during)), float(np.mean(during)), float(max(during)), len(during)],
            "save": end - begin,
            "memory": used,
        }
        tf1.train.remove_checkpoint(prefix)
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", help="candidates, separated by commas")
    parser.add_argument("--directory", help="where to write; by default a temporary directory")
    parser.add_argument("--candidate", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.candidate:
        with tempfile.TemporaryDirectory(dir=arguments.directory) as directory:
            print("RESULT", json.dumps(measure(arguments.candidate, arguments.keys, arguments.dim, directory)))
        return
    candidates = [DISK, OURS, FIXED, *([TFRA] if de is not None else []), STATIC]
    if arguments.only:
        candidates = arguments.only.split(",")
    results: dict[str, list[dict]] = {name: [] for name in candidates}
    for _ in range(arguments.repeats):
        for name in candidates:
            ended = subprocess.run(
                [sys.executable, __file__, *sys.argv[1:], "--candidate", name],
                capture_output=True, text=True, check=False,
            )  # fmt: skip
            lines = [line for line in ended.stdout.splitlines() if line.startswith("RESULT ")]
            if not lines:
                sys.exit(f"{name} failed:\n{ended.stdout}\n{ended.stderr}")
            results[name].append(json.loads(lines[-1][len("RESULT ") :]))
    report(results)


def report(results: dict[str, list[dict]]) -> None:
    def of(name: str, what: str) -> float:
        return float(np.median([result[what] for result in results[name]]))

    def spread(name: str, what: str) -> str:
        values = [result[what] for result in results[name]]
        return f"{np.median(values):.2f} ({min(values):.2f}..{max(values):.2f})"

    print(environment(), "\n")
    print(
        "| candidate | MB | save s | flush s | restore s | MB more while saving | MB beyond the table while restoring |"
    )
    print("|---|---|---|---|---|---|---|")
    for name in results:
        size = of(name, "bytes")
        saving = restoring = "-"
        if name != DISK:
            saving = f"{of(name, 'save_memory') / 1e6:.0f}"
            # The new session's variables get memory of the old one's, which the allocator has kept.
            restoring = "-" if name == FIXED else f"{(of(name, 'restore_memory') - size) / 1e6:.0f}"
        print(f"| {name} | {size / 1e6:.0f} | {spread(name, 'save')} | {spread(name, 'flush')} | "
              f"{spread(name, 'restore')} | {saving} | {restoring} |")  # fmt: skip
    for name in {OURS, FIXED} & set(results):
        print(f"\n{name}:", end=" ")
        if DISK in results:
            print(
                f"{of(DISK, 'save') / of(name, 'save'):.0%} of the disk's speed when saving, "
                f"{of(DISK, 'restore') / of(name, 'restore'):.0%} when restoring.",
                end=" ",
            )
        print(
            f"Restore into a live table: {of(name, 'live_restore_memory') / 1e6:.0f} MB at most beyond it.\n"
            f"A delta of 1 % of the rows: {of(name, 'delta') * 1e3:.0f} ms ({of(name, 'delta') / of(name, 'base'):.1%} "
            f"of a full save), {of(name, 'delta_bytes') / 1e6:.1f} MB "
            f"({of(name, 'delta_bytes') / of(name, 'bytes'):.1%})."
        )
    print("\nSteps of 1,024 keys, in ms: median, mean, longest.\n")
    print("| candidate | keys of a step | alone | beside a save | steps | save s | pause ms | MB more |")
    print("|---|---|---|---|---|---|---|---|")
    for name in results:
        for result in results[name]:
            for kind in ("same", "others"):
                if kind not in result:
                    continue
                found = result[kind]
                alone, during = (
                    ", ".join(f"{took * 1e3:.2f}" for took in found[when][:3]) for when in ("alone", "during")
                )
                print(
                    f"| {name} | {kind} | {alone} | {during} | {found['during'][3]} | {found['save']:.2f} | "
                    f"{found['pause_us'] / 1e3:.2f} | {found['memory'] / 1e6:.0f} |"
                )


if __name__ == "__main__":
    main()
