"""Java hash codes of keys, many at a time.

Flink assigns a key to a key group by its `hashCode()`, which no snapshot stores: rewriting keys or moving them to
another number of key groups must compute it. Values come as Arrow arrays in the form that the codecs give them.
"""

from state_pipelines.keyed.hashing.basic_hashes import HashCodes as HashCodes
from state_pipelines.keyed.hashing.class_hashes import HashExpression as HashExpression
from state_pipelines.keyed.hashing.class_hashes import parse_hash_expression as parse_hash_expression
from state_pipelines.keyed.hashing.value_hashes import ClassHash as ClassHash
from state_pipelines.keyed.hashing.value_hashes import hash_codes as hash_codes
