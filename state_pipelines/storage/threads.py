"""Threads that work in the context of who starts them, such as with the storage options of a block."""

from __future__ import annotations

from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import copy_context
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

_Result = TypeVar("_Result")


class Threads(ThreadPoolExecutor):
    """A pool of threads; each work has the context variables of the caller, as of `scoped_storage_options`."""

    def submit(self, work: Callable[..., _Result], /, *args: Any, **others: Any) -> Future[_Result]:
        """Begin a work, in the context of the caller."""
        return super().submit(copy_context().run, work, *args, **others)
