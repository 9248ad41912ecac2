"""Java hash codes of keys, many at a time.

Flink files a key by its `hashCode()`, which no snapshot stores: whoever writes keys anew, or moves them to another
number of key groups, must compute it. Values come as Arrow arrays in the form that the codecs give them.
"""

from state_pipelines.keyed.hashing.expressions import HashExpression as HashExpression
from state_pipelines.keyed.hashing.expressions import parse_hash_expression as parse_hash_expression
from state_pipelines.keyed.hashing.trees import ClassHash as ClassHash
from state_pipelines.keyed.hashing.trees import hash_codes as hash_codes
from state_pipelines.keyed.hashing.trees import make_pojo_hash as make_pojo_hash
from state_pipelines.keyed.hashing.trees import objects_hash as objects_hash
from state_pipelines.keyed.hashing.trees import record_hash as record_hash
from state_pipelines.keyed.hashing.values import HashCodes as HashCodes
