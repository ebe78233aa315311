"""What the parameters of all optimizers share.

Where an optimizer takes the same parameters on variables and by address, they are one dataclass: its fields are the
names, the order and the defaults, its docstring says what is allowed, and making one checks it.
"""

from __future__ import annotations

import functools
import inspect
from typing import TYPE_CHECKING, Any, Callable, TypeVar, Union

import tensorflow as tf

from mx_rec.util.validate import check_float

if TYPE_CHECKING:
    from typing_extensions import ParamSpec

    P = ParamSpec("P")

LearningRate = Union[float, tf.Tensor, Callable[[], Any]]
T = TypeVar("T")
R = TypeVar("R")


def check_learning_rate(learning_rate: LearningRate) -> LearningRate:
    """A number 0..10, a scalar tensor, or a function of no arguments that gives one.

    Raises:
        TypeError: it is none of these; a Keras schedule is a function of the step.
        ValueError: it is a number out of the range, or a tensor of another rank.
    """
    if isinstance(learning_rate, (tf.Tensor, tf.Variable)):
        if learning_rate.shape.rank not in (None, 0):
            raise ValueError(f"learning_rate must be a scalar, got shape {learning_rate.shape}")
        return learning_rate
    if callable(learning_rate):
        if not _takes_no_arguments(learning_rate):
            raise TypeError(
                "learning_rate must be a number, a scalar tensor, or a function of no arguments, got "
                f"{learning_rate!r} of type {type(learning_rate).__name__}, which needs arguments; make a scalar "
                "tensor of a schedule: schedule(global_step), where global_step is "
                "tf.compat.v1.train.get_or_create_global_step() and is given to minimize or apply_gradients too"
            )
        return learning_rate
    return check_float("learning_rate", learning_rate, 0.0, 10.0)


def _takes_no_arguments(function: Callable[..., Any]) -> bool:
    try:
        inspect.signature(function).bind()
    except TypeError:
        return False
    except ValueError:  # some functions written in C have no signature
        return True
    return True


def takes(parameters: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Lets a function of one `parameters` object be called with the fields of that dataclass instead."""

    def decorate(create: Callable[[T], R]) -> Callable[P, R]:
        @functools.wraps(create)
        def call(*args: P.args, **kwargs: P.kwargs) -> R:
            return create(parameters(*args, **kwargs))

        fields = inspect.signature(parameters)
        call.__signature__ = fields.replace(  # type: ignore[attr-defined]
            return_annotation=inspect.signature(create).return_annotation
        )
        return call

    return decorate
