"""Keyed functions with Flink's state, written as in PyFlink.

Names and meaning are those of `pyflink.common` and `pyflink.datastream` (2.2). `KeyedProcessOperator` runs a function
in one subtask, on state that Flink restores.
"""

from state_pipelines.datastream.aggregations import AggregateFunction as AggregateFunction
from state_pipelines.datastream.aggregations import Function as Function
from state_pipelines.datastream.aggregations import ReduceFunction as ReduceFunction
from state_pipelines.datastream.broadcast_functions import BaseBroadcastProcessFunction as BaseBroadcastProcessFunction
from state_pipelines.datastream.broadcast_functions import BroadcastProcessFunction as BroadcastProcessFunction
from state_pipelines.datastream.broadcast_functions import (
    KeyedBroadcastProcessFunction as KeyedBroadcastProcessFunction,
)
from state_pipelines.datastream.broadcast_operator import BroadcastProcessOperator as BroadcastProcessOperator
from state_pipelines.datastream.broadcast_operator import KeyedBroadcastProcessOperator as KeyedBroadcastProcessOperator
from state_pipelines.datastream.checkpoint_hooks import CheckpointedFunction as CheckpointedFunction
from state_pipelines.datastream.checkpoint_hooks import CheckpointListener as CheckpointListener
from state_pipelines.datastream.checkpoint_hooks import FunctionInitializationContext as FunctionInitializationContext
from state_pipelines.datastream.checkpoint_hooks import FunctionSnapshotContext as FunctionSnapshotContext
from state_pipelines.datastream.clocks import ManualClock as ManualClock
from state_pipelines.datastream.descriptors import AggregatingStateDescriptor as AggregatingStateDescriptor
from state_pipelines.datastream.descriptors import ListStateDescriptor as ListStateDescriptor
from state_pipelines.datastream.descriptors import MapStateDescriptor as MapStateDescriptor
from state_pipelines.datastream.descriptors import ReducingStateDescriptor as ReducingStateDescriptor
from state_pipelines.datastream.descriptors import StateDescriptor as StateDescriptor
from state_pipelines.datastream.descriptors import ValueStateDescriptor as ValueStateDescriptor
from state_pipelines.datastream.durations import Duration as Duration
from state_pipelines.datastream.durations import Instant as Instant
from state_pipelines.datastream.durations import Time as Time
from state_pipelines.datastream.flink_types import Types as Types
from state_pipelines.datastream.functions import KeyedCoProcessFunction as KeyedCoProcessFunction
from state_pipelines.datastream.functions import KeyedProcessFunction as KeyedProcessFunction
from state_pipelines.datastream.functions import KeySelector as KeySelector
from state_pipelines.datastream.keyed_operator import KeyedCoProcessOperator as KeyedCoProcessOperator
from state_pipelines.datastream.keyed_operator import KeyedProcessOperator as KeyedProcessOperator
from state_pipelines.datastream.output_tag import OutputTag as OutputTag
from state_pipelines.datastream.restored_state import RestoredState as RestoredState
from state_pipelines.datastream.rows import Row as Row
from state_pipelines.datastream.rows import RowKind as RowKind
from state_pipelines.datastream.runtime_context import RuntimeContext as RuntimeContext
from state_pipelines.datastream.savepoints import write_savepoint as write_savepoint
from state_pipelines.datastream.states import AggregatingState as AggregatingState
from state_pipelines.datastream.states import AppendingState as AppendingState
from state_pipelines.datastream.states import BroadcastState as BroadcastState
from state_pipelines.datastream.states import KeyedStateStore as KeyedStateStore
from state_pipelines.datastream.states import ListState as ListState
from state_pipelines.datastream.states import MapState as MapState
from state_pipelines.datastream.states import OperatorStateStore as OperatorStateStore
from state_pipelines.datastream.states import ReadOnlyBroadcastState as ReadOnlyBroadcastState
from state_pipelines.datastream.states import ReducingState as ReducingState
from state_pipelines.datastream.states import ValueState as ValueState
from state_pipelines.datastream.task_info import TaskInfo as TaskInfo
from state_pipelines.datastream.timer_service import TimeDomain as TimeDomain
from state_pipelines.datastream.timer_service import TimerService as TimerService
from state_pipelines.datastream.ttl_config import StateTtlConfig as StateTtlConfig
from state_pipelines.datastream.type_information import TypeInformation as TypeInformation
