"""Plug-ins: modules that installed packages name as entry points, which register something when they are loaded."""

from __future__ import annotations

import threading

from state_pipelines.errors import UsageError

_loaded: set[str] = set()
_lock = threading.RLock()


def load_plugins(group: str, kind: str) -> None:
    """Load the modules behind the entry points of a group; once per process.

    Args:
        group: name of the group of entry points, such as `state_pipelines.serializers`.
        kind: kind of the plug-ins, for messages, such as `serializer`.

    Raises:
        UsageError: a module cannot be loaded.
    """
    with _lock:
        if group in _loaded:
            return
        # The group counts as loaded while its modules are loaded, because these may call this function again. Other
        # threads wait for the lock.
        _loaded.add(group)
        from importlib.metadata import entry_points  # with the parser of e-mail, for what may never be asked

        for plugin in entry_points(group=group):
            try:
                plugin.load()
            except (ImportError, AttributeError) as error:
                raise UsageError(
                    f"the {kind} plug-in {plugin.name} ({plugin.value}) cannot be loaded: {error}",
                    hint="Repair or uninstall the package that declares it",
                ) from error
