"""Spark as a Dagster resource (`SparkResource`), and the resources of one Flink job (`JobResource`).

A Flink job has resources of its own, configured in its YAML, or those that the code location defines. Each job defines
`<job>_spark` and `<job>_expectations`, so that it loads alone and never conflicts with others when definitions are
merged. Each of them is an alias, resolved with the definitions of the whole code location at hand.
"""

from __future__ import annotations

import functools
import inspect
import json
import os
import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Annotated, Any, TypeVar, cast

import dagster as dg
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, PrivateAttr, ValidationError, field_validator

from state_pipelines.dagster.metadata_values import ExpectationsResource
from state_pipelines.snapshot.declarations import KINDS
from state_pipelines.storage.resolution import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pyspark.sql import DataFrame, SparkSession

    from state_pipelines.operations.local_processes import Work
    from state_pipelines.snapshot import Snapshot, State
    from state_pipelines.snapshot.snapshot_files import OperatorFiles

_MEMORY = re.compile(r"[1-9][0-9]*[kmgt]?", re.ASCII | re.IGNORECASE)
_PER_OPERATOR = ("key_serializers", "connectors", "python_types")


class SparkResource(dg.ConfigurableResource["SparkResource"]):
    """A Spark session with the data sources `flink-state` and `flink-state-metadata`."""

    model_config = ConfigDict(extra="forbid")

    cores: int = Field(
        default=0, ge=0, description="Number of concurrent tasks of a local master; 0 for all cores of the process."
    )
    memory: str = Field(
        default="2g",
        description="Heap of the driver JVM, such as 2g; Python workers need memory besides.",
    )
    master: str = Field(default="", description="Spark master, such as spark://host:7077; local by default.")
    conf: dict[str, str] = Field(default={}, description="Further Spark options; they override the fields above.")
    _session: Any = PrivateAttr(default=None)

    @field_validator("memory", mode="before")
    @classmethod
    def _check_memory(cls, memory: object) -> object:
        # The value of an environment variable is validated when it is read.
        if isinstance(memory, str) and not isinstance(memory, dg.EnvVar) and not _MEMORY.fullmatch(memory):
            raise ValueError(f"{memory!r} is no size of a heap: write a number with k, m, g or t, such as 2g")
        return memory

    @contextmanager
    def yield_for_execution(self, context: dg.InitResourceContext) -> Iterator[SparkResource]:
        """Stop the session at the end of the run, unless it existed before."""
        try:
            yield self
        finally:
            if self._session is not None:
                self._session.stop()
                self._session = None

    def run_tasks(self, tasks: Sequence[Work[Any]], what: str) -> list[Any]:
        """Run tasks of an operation, as its argument `run`; the session starts when there are some.

        Raises:
            StateError: a task failed.
        """
        from state_pipelines.spark.tasks import run_tasks

        return run_tasks(self.session, tasks, what) if tasks else []

    @property
    def session(self) -> SparkSession:
        """The active session of this process, or a new one.

        Raises:
            UsageError: no Java runtime that Spark supports was found.
        """
        from state_pipelines.spark import create_session, register  # Importing Spark takes seconds.
        from state_pipelines.spark.session import SparkSession

        active: SparkSession | None = SparkSession.getActiveSession()
        if active is None:
            conf = {"spark.master": self.master} if self.master else {}
            if VARIABLE in os.environ:
                conf[f"spark.executorEnv.{VARIABLE}"] = os.environ[VARIABLE]
            active = self._session = create_session(
                "state-pipelines", cores=self.cores or None, memory=self.memory, conf=conf | self.conf
            )
        register(active)
        return active

    def read_state(self, snapshot: Snapshot, state: State, *, raw: bool = False) -> DataFrame:
        """Return a state as a DataFrame; with `raw`, keys and values are bytes."""
        reader = self.session.read.format("flink-state").option("path", snapshot.path)
        mapping = snapshot.path_mapping
        reader = reader.option("pathMapping", json.dumps([f"{old}={new}" for old, new in mapping.rules]))
        reader = reader.option("allowRoots", json.dumps(mapping.roots))
        for kind in KINDS:
            texts = snapshot.declarations.texts.get(kind.name, ())
            if kind.name in _PER_OPERATOR:
                # The data source rejects operators that the snapshot lacks; a job declares those of all its snapshots.
                texts = tuple(text for text in texts if _is_about(text, state.operator))
            reader = reader.option(kind.spark_option, kind.separator.join(texts))
        reader = reader.option("raw", str(raw).lower())
        return reader.option("operatorId", state.operator.id).option("stateVarName", state.name).load()


def _is_about(text: str, operator: OperatorFiles) -> bool:
    """Return whether a declaration (`OPERATOR=…`, `OPERATOR.STATE=…`, or a file) concerns an operator."""
    path, equals, _ = text.partition("=")
    names = {operator.id, operator.label, operator.uid}
    return not equals or path in names or path.rpartition(".")[0] in names


# No `from __future__ import annotations`: Dagster reads the annotations of decorated functions as classes.


_Resource = SparkResource | ExpectationsResource
_Function = TypeVar("_Function", bound=Callable[..., object])

CLASSES: Mapping[str, type[_Resource]] = {"spark": SparkResource, "expectations": ExpectationsResource}
"""Classes of the resources that the assets and ops of a job need, by the name of their argument."""


def _accepted_by(cls: type[_Resource]) -> AfterValidator:
    """Return a validator of the fields of a resource; the name of a resource of the code location stays as it is."""

    def check(value: object) -> object:
        if isinstance(value, dict):
            try:
                cls(**value)
            except ValidationError as error:
                lines = [f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()]
                raise ValueError("; ".join(lines)) from None
        elif isinstance(value, str) and not value.isidentifier():
            raise ValueError(f"{value!r} is not the key of a resource of the code location, such as big_spark")
        return value

    return AfterValidator(check)


class ResourceSettings(BaseModel):
    """The resources of a job: fields of its own ones, or keys of resources that the code location defines."""

    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)

    spark: Annotated[dict[str, Any] | str | None, _accepted_by(SparkResource)] = Field(
        default=None,
        description="Fields of `SparkResource`, such as {memory: 4g}, or the key of a resource of the code location.",
    )
    expectations: Annotated[dict[str, Any] | str | None, _accepted_by(ExpectationsResource)] = Field(
        default=None,
        description="Fields of `ExpectationsResource`, such as {sample_size: 20}, or the key of a resource of the code "
        "location.",
    )


class JobResource(dg.ResourceDefinition):
    """A resource of one job: that of the code location, if it defines one, or else the job's own.

    Args:
        job: name of the job.
        name: of the argument in assets and ops: `spark` or `expectations`.
        setting: fields of the own resource, the key of one of the code location, or None.

    The code location overrides fields of the YAML under `<job>__<name>`, and the defaults of all jobs under `<name>`.
    """

    def __init__(self, job: str, name: str, setting: Mapping[str, Any] | str | None) -> None:
        self._job = job
        self._class = CLASSES[name]
        self._own = self._class(**(setting if isinstance(setting, Mapping) else {}))
        shared = (name,) if setting is None else ()
        self._candidates = (setting,) if isinstance(setting, str) else (f"{job}__{name}", *shared)
        super().__init__(
            resource_fn=self._open,
            description=f"{inspect.getdoc(self._class)} Its definition in the code location, under "
            f"{' or '.join(self._candidates)}, has precedence.",
            required_resource_keys={setting} if isinstance(setting, str) else set(),
        )

    def get_required_resource_keys(self, resource_defs: Mapping[str, dg.ResourceDefinition]) -> set[str]:
        """Return the key of the defined resource that replaces the job's own; empty if none does.

        Dagster calls it when it loads definitions and when it initialises resources.

        Raises:
            dg.DagsterInvalidDefinitionError: the resource under this key has another class.
        """
        for key in self._candidates:
            if (definition := resource_defs.get(key)) is not None:
                self._check(key, definition)
                return {key}
        return set()

    def _check(self, key: str, definition: dg.ResourceDefinition) -> None:
        # Only resources with fields have `configurable_resource_cls`; others are plain values or functions.
        cls = getattr(definition, "configurable_resource_cls", type(definition))
        if not issubclass(cls, self._class):
            raise dg.DagsterInvalidDefinitionError(
                f"the resource {key} of the code location is no {self._class.__name__}, as the job {self._job} needs "
                f"it: define {self._class.__name__}(…) under this key, or configure another one in the YAML of the job "
                "(`resources`)"
            )

    def _open(self, context: dg.InitResourceContext) -> Iterator[object]:
        for key in self.get_required_resource_keys(context.all_resource_defs):
            yield getattr(context.resources, key)
            return
        with self._own.yield_for_execution(context) as resource:
            yield resource


def build_job_resources(job: str, settings: ResourceSettings) -> dict[str, dg.ResourceDefinition]:
    """Build the resources of a job by key, `<job>_spark` and `<job>_expectations`."""
    return {f"{job}_{name}": JobResource(job, name, getattr(settings, name)) for name in CLASSES}


def using_resources_of(job: str) -> Callable[[_Function], _Function]:
    """Decorate the function of an asset or op: its arguments `spark` and `expectations` are the resources of a job.

    Dagster takes the key of a resource from the name of the argument, so the arguments are renamed for it.
    """

    def decorate(function: _Function) -> _Function:
        keys = {name: f"{job}_{name}" for name in CLASSES if name in inspect.signature(function).parameters}
        names = {key: name for name, key in keys.items()}
        renamed = with_arguments(function, lambda given: {names.get(key, key): given[key] for key in given}, keys)
        return cast("_Function", renamed)

    return decorate


def with_arguments(
    function: Callable[..., Any], change: Callable[[dict[str, Any]], dict[str, Any]], names: Mapping[str, str | None]
) -> Callable[..., Any]:
    """Return a function that calls `function`, a generator or not, with changed keyword arguments.

    Args:
        function: the function that is called.
        change: converts the given arguments to those of `function`.
        names: new names of arguments, by their names in `function`; None for arguments that callers do not give.
    """
    changed: Callable[..., Any]
    if inspect.isgeneratorfunction(function):

        @functools.wraps(function)
        def generate(*args: Any, **given: Any) -> Iterator[Any]:
            yield from function(*args, **change(given))

        changed = generate
    else:

        @functools.wraps(function)
        def call(*args: Any, **given: Any) -> Any:
            return function(*args, **change(given))

        changed = call
    signature = inspect.signature(function)
    new = {name: names.get(name, name) for name in signature.parameters}
    parameters = [each.replace(name=key) for name, each in signature.parameters.items() if (key := new[name])]
    vars(changed)["__signature__"] = signature.replace(parameters=parameters)
    changed.__annotations__ = {
        key: each for name, each in function.__annotations__.items() if (key := names.get(name, name))
    }
    return changed
