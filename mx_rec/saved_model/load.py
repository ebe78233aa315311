"""Loading a SavedModel with tables, and what to tell those who load it by other means."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional, Union

import tensorflow as tf

NOTICE = "mx_rec.txt"


def serving_notice() -> dict[str, str]:
    """For `assets_extra` of `export_saved_model`: a text in the SavedModel that says which library to load, and how.

    `NPUEstimator` adds it by itself.
    """
    return {NOTICE: str(Path(__file__).with_name("serving_notice.txt"))}


def load_saved_model(export_dir: Union[str, bytes, os.PathLike], tags: Optional[Any] = None) -> Any:
    """Loads the op library, then the SavedModel; without the library TensorFlow knows no op of a table.

    Args:
        export_dir: of the SavedModel.
        tags: as in `tf.saved_model.load`.

    Returns:
        What `tf.saved_model.load` returns: `.signatures["serving_default"](ids=...)` predicts. For a Session call
        `mx_rec.ops.load_library()` and `tf.compat.v1.saved_model.load` instead.

    Raises:
        LibraryNotLoadedError: the op library is missing or was built for another TensorFlow; the message says how to
            build it.
        OSError: no SavedModel is there.
    """
    # Imported late: a script that exports needs no library for the notice.
    from mx_rec.ops.library import load_library

    load_library()
    return tf.saved_model.load(tf.compat.as_str(os.fspath(export_dir)), tags)
