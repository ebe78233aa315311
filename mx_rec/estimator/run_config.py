"""`NPURunConfig`: a `RunConfig` that takes the options of a device and leaves them unused."""

from __future__ import annotations

import difflib
import inspect
from typing import Any

from mx_rec.estimator import api
from mx_rec.util.log import logger

_RUN_CONFIG_OPTIONS = frozenset(inspect.signature(api.RunConfig.__init__).parameters) - {"self"}


class NPURunConfig(api.RunConfig):
    """A `tf.estimator.RunConfig` that scripts made for a device can build unchanged.

    Every option of `RunConfig` means what it means there. Any other (`precision_mode`, `op_precision_mode`,
    `enable_data_pre_proc`, ...) chooses something of a device, so it is accepted and ignored. One line of the log
    names all that were ignored, and what those that look misspelt may have meant.

    Args:
        iterations_per_loop: accepted; hooks see every step.
        profiling_config: accepted; `tf.compat.v1.train.ProfilerHook` profiles.
        model_dir: as in `RunConfig`.
        **options: of `RunConfig`, or of a device.

    Raises:
        ValueError: an option of `RunConfig` is out of its range.
    """

    def __init__(
        self, iterations_per_loop: int = 1, profiling_config: Any = None, model_dir: Any = None, **options: Any
    ) -> None:
        kept = {name: value for name, value in options.items() if name in _RUN_CONFIG_OPTIONS}
        super().__init__(model_dir=model_dir, **kept)
        ignored = set(options) - set(kept)
        if iterations_per_loop != 1:
            ignored.add("iterations_per_loop")
        if profiling_config is not None:
            ignored.add("profiling_config")
        if ignored:
            logger.warning(
                "NPURunConfig: not options of RunConfig, so without effect here: %s",
                ", ".join(map(_with_suggestion, sorted(ignored))),
            )


def _with_suggestion(name: str) -> str:
    close = difflib.get_close_matches(name, _RUN_CONFIG_OPTIONS, n=1, cutoff=0.9)
    return f"{name} (is {close[0]} meant?)" if close else name
