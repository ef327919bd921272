/*
 * Decides how RocksDB is set up: few fat values, small memory, bounded reopening. Must not know
 * what is stored. Runs at open only. Measured facts: see README.md.
 */
#include "storage/rocksdb/options.h"

#define MIB (UINT64_C(1) << 20)
#define CACHE_BYTES_DEFAULT (16 * MIB)
#define WRITE_BUFFER_BYTES_DEFAULT (12 * MIB) /* with the cache: 40 MiB in all, measured */
#define WAL_BYTES_MAX_DEFAULT (64 * MIB)
#define BLOCK_BYTES (16u << 10) /* measured: 64 kB saves 1 % */
#define TABLE_FORMAT 5          /* newest that 7.8 writes by default */
#define CHECKSUM_XXH3 4         /* rocksdb::kXXH3; Debian's build has no hardware CRC32 */
#define WAL_POINT_IN_TIME 2     /* rocksdb::WALRecoveryMode::kPointInTimeRecovery */
/* rocksdb::InfoLogLevel::NUM_INFO_LOG_LEVELS: nothing is logged. RocksDB 7.8's own log file aborts
 * the process (Debian builds it with assertions) at the first line after one that met a full disk;
 * the C API has no logger that does not. To be removed when it has. Errors reach us as text. */
#define INFO_LOG_NOTHING 6
#define BACKGROUND_JOBS 2            /* one flush, one compaction */
#define OPEN_FILES_MAX 256           /* chosen: 8 GiB of table files without reopening any */
#define TABLE_FILE_BYTES (32 * MIB)  /* chosen: half the default, smaller compactions */
#define ARENA_BYTES (256u << 10)     /* a memtable takes one at its first key; six families */
#define MANIFEST_BYTES_MAX (4 * MIB) /* chosen; the default of 1 GiB is never reached */
#define PREALLOCATE_BYTES (64u << 10)

static uint64_t
or_default(uint64_t value, uint64_t value_default)
{
    return value != 0 ? value : value_default;
}

static void
set_table(struct ef_db_options *made, const struct ef_store_options *options)
{
    made->cache = rocksdb_cache_create_lru(or_default(options->cache_bytes, CACHE_BYTES_DEFAULT));
    made->table = rocksdb_block_based_options_create();
    rocksdb_block_based_options_set_block_cache(made->table, made->cache);
    rocksdb_block_based_options_set_block_size(made->table, BLOCK_BYTES);
    rocksdb_block_based_options_set_format_version(made->table, TABLE_FORMAT);
    rocksdb_block_based_options_set_checksum(made->table, CHECKSUM_XXH3);
    /* Indexes count against the cache, so memory stays bounded as the store grows. */
    rocksdb_block_based_options_set_cache_index_and_filter_blocks(made->table, 1);
    rocksdb_options_set_block_based_table_factory(made->db, made->table);
}

static void
set_memory(rocksdb_options_t *db, const struct ef_store_options *options)
{
    uint64_t buffer_bytes = or_default(options->write_buffer_bytes, WRITE_BUFFER_BYTES_DEFAULT);

    /* RocksDB flushes when the buffers in use reach 7/8 of the sum; one family alone reaches its
     * own limit earlier, so that one being flushed and one being filled fit in the sum. */
    rocksdb_options_set_db_write_buffer_size(db, buffer_bytes);
    rocksdb_options_set_write_buffer_size(db, buffer_bytes / 2);
    rocksdb_options_set_arena_block_size(db, ARENA_BYTES);
    rocksdb_options_set_max_total_wal_size(
        db, or_default(options->wal_bytes_max, WAL_BYTES_MAX_DEFAULT));
    rocksdb_options_set_max_open_files(db, OPEN_FILES_MAX);
    rocksdb_options_set_table_cache_numshardbits(db, 4);
}

static void
set_files(rocksdb_options_t *db)
{
    rocksdb_options_set_compression(db, rocksdb_zstd_compression);
    rocksdb_options_set_target_file_size_base(db, TABLE_FILE_BYTES);
    rocksdb_options_set_level_compaction_dynamic_level_bytes(db, 1);
    rocksdb_options_set_bytes_per_sync(db, 1 * MIB);
    rocksdb_options_set_max_manifest_file_size(db, MANIFEST_BYTES_MAX);
    rocksdb_options_set_manifest_preallocation_size(db, PREALLOCATE_BYTES);
    rocksdb_options_set_keep_log_file_num(db, 2);
    rocksdb_options_set_info_log_level(db, INFO_LOG_NOTHING);
}

void
ef_db_options_init(struct ef_db_options *made, const struct ef_store_options *options)
{
    made->db = rocksdb_options_create();
    rocksdb_options_set_create_if_missing(made->db, 1);
    rocksdb_options_set_create_missing_column_families(made->db, 1);
    rocksdb_options_set_wal_recovery_mode(made->db, WAL_POINT_IN_TIME);
    rocksdb_options_set_max_background_jobs(made->db, BACKGROUND_JOBS);
    rocksdb_options_set_stats_dump_period_sec(made->db, 0);
    rocksdb_options_set_stats_persist_period_sec(made->db, 0);
    set_table(made, options);
    set_memory(made->db, options);
    set_files(made->db);
    made->write = rocksdb_writeoptions_create();
    rocksdb_writeoptions_set_sync(made->write, options->sync);
    made->flush = rocksdb_flushoptions_create();
    rocksdb_flushoptions_set_wait(made->flush, 1);
}

void
ef_db_options_fini(struct ef_db_options *made)
{
    rocksdb_flushoptions_destroy(made->flush);
    rocksdb_writeoptions_destroy(made->write);
    rocksdb_options_destroy(made->db);
    rocksdb_block_based_options_destroy(made->table);
    rocksdb_cache_destroy(made->cache);
}
