"""Options of rocksdict for Flink's options, and for tables that Flink reads.

Source: `RocksDBResourceContainer.createBaseCommonDBOptions`, `RocksDBResourceContainer.getColumnOptions`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from rocksdict import BlockBasedIndexType, Cache, DBCompactionStyle, DBCompressionType

from state_pipelines.backends.rocksdb_options import CompactionStyle
from state_pipelines.rocksdb.writer import load_flink_options, make_table_format

if TYPE_CHECKING:
    from rocksdict import BlockBasedOptions, Options

    from state_pipelines.backends.rocksdb_memory import MemoryLease
    from state_pipelines.backends.rocksdb_options import RocksOptions

_STYLES = {
    CompactionStyle.LEVEL: DBCompactionStyle.level,
    CompactionStyle.FIFO: DBCompactionStyle.fifo,
    CompactionStyle.UNIVERSAL: DBCompactionStyle.universal,
}


def make_options(options: RocksOptions, lease: MemoryLease | None) -> Options:
    """Options of a database and of its column families.

    Args:
        options: Flink's.
        lease: shared memory; None when every column family has its own.
    """
    made = load_flink_options()
    made.create_if_missing(True)
    made.set_use_fsync(False)
    made.set_stats_dump_period_sec(0)
    made.set_max_background_jobs(options.thread_num)
    made.set_max_open_files(options.files_open)
    made.set_max_log_file_size(options.log_max_file_size)
    made.set_keep_log_file_num(options.log_file_num)
    if options.log_dir:
        made.set_db_log_dir(options.log_dir)
    if options.compaction_style is CompactionStyle.NONE:
        made.set_disable_auto_compactions(True)
    else:
        made.set_compaction_style(_STYLES[options.compaction_style]())
    made.set_level_compaction_dynamic_level_bytes(options.use_dynamic_size)
    made.set_target_file_size_base(options.target_file_size_base)
    made.set_max_bytes_for_level_base(options.max_size_level_base)
    kinds = [getattr(DBCompressionType, name)() for name in options.compression_per_level]
    if len(kinds) == 1:
        made.set_compression_type(kinds[0])
    else:
        made.set_compression_per_level(kinds)
    made.set_write_buffer_size(options.writebuffer_size)
    made.set_max_write_buffer_number(options.writebuffer_count)
    made.set_min_write_buffer_number_to_merge(options.writebuffer_number_to_merge)
    made.set_block_based_table_factory(_make_blocks(options, lease))
    if lease is not None:
        made.set_write_buffer_manager(lease.manager)
    return made


def _make_blocks(options: RocksOptions, lease: MemoryLease | None) -> BlockBasedOptions:
    blocks = make_table_format()
    blocks.set_block_size(options.block_size)
    blocks.set_metadata_block_size(options.metadata_block_size)
    blocks.set_block_cache(Cache(options.block_cache_size) if lease is None else lease.cache)
    if options.bloom_filter_bits is not None:
        bits = options.bloom_filter_bits
        blocks.set_bloom_filter(bits, options.bloom_filter_block_based)  # type: ignore[arg-type]  # it takes a float
    if lease is not None:
        # Index and filters count towards the budget.
        blocks.set_cache_index_and_filter_blocks(True)
        blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
        if options.partitioned_index_filters:
            blocks.set_index_type(BlockBasedIndexType.two_level_index_search())
            blocks.set_partition_filters(True)
            blocks.set_pin_top_level_index_and_filter(True)
    return blocks
