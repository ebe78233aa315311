"""SavedModels with tables: what to tell who serves them, and how to load them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Optional, Union

import tensorflow as tf

_NOTICE = "mx_rec.txt"


def serving_notice() -> dict[str, str]:
    """For `assets_extra` of `export_saved_model`: a text in the SavedModel that says which library to load, and how.

    `NPUEstimator` adds it by itself.
    """
    return {_NOTICE: str(Path(__file__).with_name("serving_notice.txt"))}


def load_saved_model(export_dir: Union[str, bytes, os.PathLike], tags: Optional[Any] = None) -> Any:
    """Loads the op library, then the SavedModel; without the library TensorFlow knows no op of a table.

    Args:
        export_dir: of the SavedModel.
        tags: as in `tf.saved_model.load`.

    Returns:
        What `tf.saved_model.load` returns: `.signatures["serving_default"]` predicts. In a graph it is what
        `tf.compat.v1.saved_model.load` needs that counts, so use that with `mx_rec.ops.load_library()` before it.

    Raises:
        LibraryNotLoadedError: the op library is missing or was built for another TensorFlow; the message says how to
            build it.
        OSError: no SavedModel is there.
    """
    # Imported late: exporting needs no library of its own.
    from mx_rec.ops.library import load_library

    load_library()
    return tf.saved_model.load(tf.compat.as_str(os.fspath(export_dir)), tags)
