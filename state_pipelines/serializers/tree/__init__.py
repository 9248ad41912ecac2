"""Serializer trees: the content of serializer snapshots as frozen values.

One node class per family of Flink serializers, in the module of its family. A node holds what the snapshot stores and
nothing else. `state_pipelines.serializers` reads and writes the bytes of snapshots, `state_pipelines.codecs` those of
the data. Source: `org.apache.flink.api.common.typeutils.TypeSerializerSnapshot` and its implementations.
"""

from state_pipelines.serializers.tree.base import Composite as Composite
from state_pipelines.serializers.tree.base import Serializer as Serializer
from state_pipelines.serializers.tree.base import is_built_in as is_built_in
from state_pipelines.serializers.tree.basic import Basic as Basic
from state_pipelines.serializers.tree.basic import BasicKind as BasicKind
from state_pipelines.serializers.tree.basic import ClassBound as ClassBound
from state_pipelines.serializers.tree.basic import ClassBoundKind as ClassBoundKind
from state_pipelines.serializers.tree.basic import Enum as Enum
from state_pipelines.serializers.tree.basic import ScalaEnum as ScalaEnum
from state_pipelines.serializers.tree.containers import Either as Either
from state_pipelines.serializers.tree.containers import GenericArray as GenericArray
from state_pipelines.serializers.tree.containers import ListOf as ListOf
from state_pipelines.serializers.tree.containers import MapOf as MapOf
from state_pipelines.serializers.tree.containers import Nullable as Nullable
from state_pipelines.serializers.tree.containers import Row as Row
from state_pipelines.serializers.tree.containers import SetOf as SetOf
from state_pipelines.serializers.tree.containers import Tuple as Tuple
from state_pipelines.serializers.tree.objects import Avro as Avro
from state_pipelines.serializers.tree.objects import Kryo as Kryo
from state_pipelines.serializers.tree.objects import KryoRegistration as KryoRegistration
from state_pipelines.serializers.tree.objects import Pojo as Pojo
from state_pipelines.serializers.tree.objects import PojoField as PojoField
from state_pipelines.serializers.tree.objects import PojoSubclass as PojoSubclass
from state_pipelines.serializers.tree.objects import Protobuf as Protobuf
from state_pipelines.serializers.tree.opaque import Declared as Declared
from state_pipelines.serializers.tree.opaque import Opaque as Opaque
from state_pipelines.serializers.tree.python import PythonArray as PythonArray
from state_pipelines.serializers.tree.python import PythonDecimal as PythonDecimal
from state_pipelines.serializers.tree.python import PythonMap as PythonMap
from state_pipelines.serializers.tree.python import PythonRow as PythonRow
from state_pipelines.serializers.tree.scala_api import CaseClass as CaseClass
from state_pipelines.serializers.tree.scala_api import CaseObject as CaseObject
from state_pipelines.serializers.tree.scala_api import Coproduct as Coproduct
from state_pipelines.serializers.tree.scala_api import Mapped as Mapped
from state_pipelines.serializers.tree.scala_api import ScalaCollection as ScalaCollection
from state_pipelines.serializers.tree.scala_api import ScalaMap as ScalaMap
from state_pipelines.serializers.tree.streaming_runtime import Timer as Timer
from state_pipelines.serializers.tree.streaming_runtime import Ttl as Ttl
from state_pipelines.serializers.tree.streaming_runtime import TtlAware as TtlAware
from state_pipelines.serializers.tree.streaming_runtime import VariantKind as VariantKind
from state_pipelines.serializers.tree.streaming_runtime import Variants as Variants
from state_pipelines.serializers.tree.table_runtime import ArrayData as ArrayData
from state_pipelines.serializers.tree.table_runtime import BinaryRow as BinaryRow
from state_pipelines.serializers.tree.table_runtime import Decimal as Decimal
from state_pipelines.serializers.tree.table_runtime import External as External
from state_pipelines.serializers.tree.table_runtime import LinkedListOf as LinkedListOf
from state_pipelines.serializers.tree.table_runtime import ListView as ListView
from state_pipelines.serializers.tree.table_runtime import LogicalType as LogicalType
from state_pipelines.serializers.tree.table_runtime import MapData as MapData
from state_pipelines.serializers.tree.table_runtime import MapView as MapView
from state_pipelines.serializers.tree.table_runtime import RawValue as RawValue
from state_pipelines.serializers.tree.table_runtime import RowData as RowData
from state_pipelines.serializers.tree.table_runtime import RowDataKey as RowDataKey
from state_pipelines.serializers.tree.table_runtime import SortedMapOf as SortedMapOf
from state_pipelines.serializers.tree.table_runtime import TimestampData as TimestampData
from state_pipelines.serializers.tree.table_runtime import WindowKey as WindowKey
