/*
 * The RocksDB options of a store, made once at open and used again when the database is reopened.
 * Read-only afterwards; any thread.
 */
#ifndef STORAGE_ROCKSDB_OPTIONS_H
#define STORAGE_ROCKSDB_OPTIONS_H

#include <rocksdb/c.h>

#include "storage/store.h"

struct ef_db_options {
    rocksdb_options_t *db; /* also of every column family */
    rocksdb_block_based_table_options_t *table;
    rocksdb_cache_t *cache;
    rocksdb_writeoptions_t *write;
    rocksdb_flushoptions_t *flush;
};

/* Zero members of `options` mean the defaults of store.h. RocksDB ends the process when memory runs
 * out here, so this cannot fail. */
void ef_db_options_init(struct ef_db_options *made, const struct ef_store_options *options);
void ef_db_options_fini(struct ef_db_options *made);

#endif
