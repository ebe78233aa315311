"""Writes a sample of the present checkpoint format for tests/data/checkpoints.

    python tools/make_checkpoint_sample.py tests/data/checkpoints/v1

Once per format version, by the first program that writes it: the samples show that later programs read it.
"""

from __future__ import annotations

import glob
import json
import os
import shutil
import sys
import tempfile

import tensorflow as tf

from mx_rec.core.embedding import create_table, sparse_lookup
from mx_rec.optimizers import adagrad_by_addr, lazy_adam_by_addr
from mx_rec.saver.saver import save_incremental
from mx_rec.util.initialize import init

tf1 = tf.compat.v1
DIM = 4
TABLES = {
    "user": ("lazy_adam", lazy_adam_by_addr.create_hash_optimizer_by_address),
    "item.id": ("adagrad", adagrad_by_addr.create_hash_optimizer_by_address),
}


def main(directory: str) -> None:
    if os.path.exists(directory):
        sys.exit(f"{directory} exists; samples are made once")
    tf1.disable_eager_execution()
    init(use_dynamic_expansion=True)
    ids = tf1.placeholder(tf.int64, [None])
    tables, steps = {}, []
    for name, (_, make) in TABLES.items():
        tables[name] = create_table(tf.int64, DIM, name, tf1.random_uniform_initializer(-1.0, 1.0, seed=3))
        loss = tf.reduce_sum(tf.square(sparse_lookup(tables[name], ids, name=f"look_up_{name}")))
        steps.append(make(0.1).minimize(loss, var_list=tf1.get_collection("ASCEND_SPARSE_LOOKUP_LOCAL_EMB")[-1:]))
    saver = tf1.train.Saver([tf1.get_variable("dense", [2]), *tf1.get_collection("saveable_objects")])
    with tempfile.TemporaryDirectory() as work, tf1.Session() as session:
        session.run(tf1.global_variables_initializer())
        for i, batch in enumerate(([1, -2, 2**40], [1, 7], [-(2**63), 2**63 - 1])):
            session.run(steps, {ids: batch})
            prefix = save_incremental(
                saver, session, f"{work}/model", i, delta=i > 0, write_meta_graph=False, write_state=False
            )
        expected = {"prefix": os.path.basename(prefix), "tables": {}}
        for name, (optimizer, _) in TABLES.items():
            content = tables[name].export(session)
            expected["tables"][name] = {
                "optimizer": optimizer,
                "updates": 3,
                "rows": {str(key): row.tolist() for key, row in zip(content.keys, content.rows)},
            }
        os.makedirs(directory)
        for path in glob.glob(f"{prefix}.*"):
            shutil.copy(path, directory)
        with open(os.path.join(directory, "expected.json"), "w") as stream:
            json.dump(expected, stream, indent=1)
            stream.write("\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
