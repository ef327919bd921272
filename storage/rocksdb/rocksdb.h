/*
 * What the files of this folder share: the open backend. Nobody else includes this.
 *
 * Invariants: spans hold what family "meta" says under 't'; they change under both db's writer lock
 * and span_lock, and are read under span_lock.
 */
#ifndef STORAGE_ROCKSDB_ROCKSDB_H
#define STORAGE_ROCKSDB_ROCKSDB_H

#include <pthread.h>

#include "storage/rocksdb/db.h"

struct ef_rocksdb {
    struct ef_db *db;
    pthread_mutex_t span_lock; /* taken last; nothing is called with it held */
    struct ef_span spans[EF_TIER_COUNT];
};

/* A span without buckets. */
struct ef_span ef_span_none(void);
bool ef_span_is_none(const struct ef_span *span);
/* Widens the span so that it holds the bucket. */
void ef_span_add(struct ef_span *span, int64_t bucket_ns);

/* Operations of storage/store_ops.h that upkeep.c defines; `self` is a struct ef_rocksdb. */
ef_rc ef_rocksdb_expire(void *self, enum ef_tier tier, int64_t before_ns, struct ef_err *err);
ef_rc ef_rocksdb_expire_acks(void *self, int64_t before_ns, struct ef_err *err);
ef_rc ef_rocksdb_compact(void *self, struct ef_err *err);
void ef_rocksdb_get_stat(void *self, struct ef_store_stat *ret_stat);

#endif
