/*
 * The store: batches of additions and folds over ranges; the smallest set that RocksDB and a
 * distributed engine both do well.
 *
 * Invariants: a batch is applied whole or not at all; an ack is in the same batch as the data it
 * covers. Ids (version, series, function, stack) are given out by the caller, dense, ascending,
 * never reused; the store only keeps them. What is put is never changed, except the ack record of
 * an epoch, which is replaced. A (series, bucket) may have several parts; a fold gives all of them,
 * in ascending (bucket, part) order. No caller asks which backend it is.
 *
 * Threads: reads from any number of threads, also during a commit; one batch per thread;
 * ef_store_commit from any thread. Iteration callbacks run in the calling thread, borrow their
 * arguments, and stop the iteration by returning something other than EF_OK, which is then
 * returned. A callback may read the store, but must not commit or expire: that may wait for the
 * readers to end.
 */
#ifndef STORAGE_STORE_H
#define STORAGE_STORE_H

#include "proto/base/buf.h"
#include "proto/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EF_STORE_NAME_MAX 128 /* bytes of account, worker, version, region */
/* On-disk format version; a newer one is refused, an older one opened. */
#define EF_STORE_FORMAT 1
#define EF_BUCKET_NS INT64_C(10000000000) /* 10 s */

enum ef_tier { EF_TIER_10S = 0, EF_TIER_COUNT };
enum ef_type {
    EF_TYPE_CPU = 1,
    EF_TYPE_ALLOC = 2,
    EF_TYPE_INUSE = 3,
    EF_TYPE_WALL = 4
}; /* as on the wire */

struct ef_store_version {
    uint32_t id; /* 1 … */
    const char *account, *worker, *version;
    int64_t created_ns; /* wall clock: first seen */
};

struct ef_store_series {
    uint32_t id; /* 1 … */
    uint32_t version_id;
    uint8_t profile_type; /* enum ef_type */
    const char *region;   /* "" = unknown */
};

/* Dense local ids of one version. Records are put in runs of ascending ids; parents and functions
 * before those who use them. */
struct ef_store_function {
    uint32_t id; /* 1 … */
    uint64_t hash;
    const char *name, *file; /* NUL-terminated */
    uint32_t line;
};
struct ef_store_stack {
    uint32_t id; /* 1 …; the root is 0 and is not stored */
    uint64_t hash;
    uint32_t parent; /* < id; 0 = root */
    uint32_t function;
    uint32_t line;
};

/*
 * What is known of one (series, bucket) without reading stacks; additive over parts, except
 * instances (maximum). One per part.
 */
struct ef_store_totals {
    uint64_t samples;       /* Σ count */
    int64_t value;          /* Σ value as sampled */
    int64_t value_weighted; /* Σ value × weight: estimate for the sampled instances' whole time */
    uint64_t covered_ns;    /* Σ of fragment spans (instance time that sampling covered) */
    uint64_t expected_ns;   /* Σ of usage spans (instance time that there was); 0 = not reported */
    uint64_t bursts;        /* fragments, or slices of fragments, that fell into the bucket */
    uint64_t snapshots;     /* state types: number of snapshots summed in value */
    uint64_t squares;       /* Σ over bursts of (samples of the burst)² */
    uint64_t hot_samples;   /* samples of stratum hot */
    uint64_t cpu_ns; /* exact process CPU (usage), split evenly over the isolates of a process; CPU
                        series only */
    uint64_t hot_cpu_ns;
    uint64_t instances; /* distinct instances of this part */
    uint64_t heap_used_bytes_max;
    uint64_t pause_ns_max;
};

/* Delivery state of one life of one publisher. Replaced whole at each flush in which it changed. */
#define EF_ACK_ABOVE_MAX                                                                           \
    1024 /* sequences applied above the contiguous one; more are refused until the gap is filled   \
          */
struct ef_store_ack {
    uint8_t publisher[16];
    uint64_t epoch;
    uint64_t contiguous; /* all sequences up to here are applied or known to be lost */
    uint32_t above_count;
    uint64_t above[EF_ACK_ABOVE_MAX]; /* ascending */
    /* Totals since the epoch began; exact, because they are written with the data. */
    uint64_t fragments_stored, samples_stored;
    uint64_t fragments_lost, samples_lost;
    uint64_t batches_duplicate, samples_duplicate;
    uint64_t samples_late;
    int64_t updated_ns;           /* wall clock */
    char name[EF_STORE_NAME_MAX]; /* the publisher's name for people; "" = not yet told */
};

struct ef_store_stat {
    uint64_t disk_bytes; /* whole folder */
    /* Estimates: as compressed on disk, and as encoded for what waits in memory to get there. */
    uint64_t block_bytes[EF_TIER_COUNT];
    uint64_t definition_bytes, totals_bytes;
    uint64_t memory_bytes;    /* caches and write buffers */
    uint64_t blocks, samples; /* committed since open; samples as in totals */
    int64_t oldest_bucket_ns; /* INT64_MAX = no data */
    int64_t newest_bucket_ns; /* INT64_MIN = no data */
};

struct ef_store_options {
    uint64_t cache_bytes;        /* block cache; default 16 MiB when 0 */
    uint64_t write_buffer_bytes; /* all write buffers together; default 12 MiB when 0 */
    uint64_t wal_bytes_max;      /* default 64 MiB when 0: bounds reopening to seconds */
    bool sync; /* fdatasync at each commit: survives power loss, not only kill -9 */
};

struct ef_store;
struct ef_store_batch;

/* backend: "rocksdb" or "memory" (storage/backends.def). path: folder, made when absent (one
 * level); ignored by memory. */
EF_MUST_USE ef_rc ef_store_open(const char *backend, const char *path,
                                const struct ef_store_options *options, struct ef_store **ret_store,
                                struct ef_err *err);
/* No reads or batches may be under way. Flushes; takes the store. NULL is fine. */
void ef_store_close(struct ef_store *store);

EF_MUST_USE ef_rc ef_store_batch_open(struct ef_store *store, struct ef_store_batch **ret_batch,
                                      struct ef_err *err);
void ef_store_batch_free(struct ef_store_batch *batch);
EF_MUST_USE ef_rc ef_store_put_version(struct ef_store_batch *batch,
                                       const struct ef_store_version *version, struct ef_err *err);
EF_MUST_USE ef_rc ef_store_put_series(struct ef_store_batch *batch,
                                      const struct ef_store_series *series, struct ef_err *err);
EF_MUST_USE ef_rc ef_store_put_functions(struct ef_store_batch *batch, uint32_t version_id,
                                         const struct ef_store_function *functions, size_t count,
                                         struct ef_err *err);
EF_MUST_USE ef_rc ef_store_put_stacks(struct ef_store_batch *batch, uint32_t version_id,
                                      const struct ef_store_stack *stacks, size_t count,
                                      struct ef_err *err);
/* `part` must be new for (tier, series, bucket): the caller uses a number that ascends with each
 * flush. */
EF_MUST_USE ef_rc ef_store_put_block(struct ef_store_batch *batch, enum ef_tier tier,
                                     uint32_t series_id, int64_t bucket_ns, uint32_t part,
                                     const void *block, size_t len, struct ef_err *err);
EF_MUST_USE ef_rc ef_store_put_totals(struct ef_store_batch *batch, enum ef_tier tier,
                                      uint32_t series_id, int64_t bucket_ns, uint32_t part,
                                      const struct ef_store_totals *totals, struct ef_err *err);
EF_MUST_USE ef_rc ef_store_put_ack(struct ef_store_batch *batch, const struct ef_store_ack *ack,
                                   struct ef_err *err);
/* Small named values of the daemon ("flush" -> le32 counter). Name up to 64 bytes. */
EF_MUST_USE ef_rc ef_store_put_meta(struct ef_store_batch *batch, const char *name,
                                    const void *value, size_t len, struct ef_err *err);
/*
 * Applies the batch whole, or not at all: EF_ENOSPC and EF_EIO may be tried again with the same
 * batch (it stays valid), also after the store had switched itself to read-only on a full disk:
 * commit first tries to resume it. EF_EBUSY: that waits for readers; try again as well. After a
 * failure it is not known that nothing reached the disk, so the same batch is to be tried again, or
 * one with the same keys. Takes nothing; the caller frees. A batch whose put failed by the
 * backend (not by a check of its arguments), and one that was committed, is refused (EF_EINVAL).
 */
EF_MUST_USE ef_rc ef_store_commit(struct ef_store *store, struct ef_store_batch *batch,
                                  struct ef_err *err);

typedef ef_rc (*ef_store_version_fn)(void *arg, const struct ef_store_version *version);
typedef ef_rc (*ef_store_series_fn)(void *arg, const struct ef_store_series *series);
typedef ef_rc (*ef_store_function_fn)(void *arg, const struct ef_store_function *function);
typedef ef_rc (*ef_store_stack_fn)(void *arg, const struct ef_store_stack *stack);
typedef ef_rc (*ef_store_block_fn)(void *arg, int64_t bucket_ns, uint32_t part, const void *block,
                                   size_t len);
typedef ef_rc (*ef_store_totals_fn)(void *arg, int64_t bucket_ns, uint32_t part,
                                    const struct ef_store_totals *totals);
typedef ef_rc (*ef_store_ack_fn)(void *arg, const struct ef_store_ack *ack);

EF_MUST_USE ef_rc ef_store_each_version(struct ef_store *store, ef_store_version_fn fn, void *arg,
                                        struct ef_err *err);
EF_MUST_USE ef_rc ef_store_each_series(struct ef_store *store, ef_store_series_fn fn, void *arg,
                                       struct ef_err *err);
EF_MUST_USE ef_rc ef_store_each_function(struct ef_store *store, uint32_t version_id,
                                         ef_store_function_fn fn, void *arg, struct ef_err *err);
EF_MUST_USE ef_rc ef_store_each_stack(struct ef_store *store, uint32_t version_id,
                                      ef_store_stack_fn fn, void *arg, struct ef_err *err);
/* Buckets whose start is in [from, to). */
EF_MUST_USE ef_rc ef_store_fold(struct ef_store *store, enum ef_tier tier, uint32_t series_id,
                                int64_t from_ns, int64_t to_ns, ef_store_block_fn fn, void *arg,
                                struct ef_err *err);
EF_MUST_USE ef_rc ef_store_fold_totals(struct ef_store *store, enum ef_tier tier,
                                       uint32_t series_id, int64_t from_ns, int64_t to_ns,
                                       ef_store_totals_fn fn, void *arg, struct ef_err *err);
/* First and last bucket start of a series (totals); EF_ENOTFOUND when it has none. */
EF_MUST_USE ef_rc ef_store_series_span(struct ef_store *store, enum ef_tier tier,
                                       uint32_t series_id, int64_t *ret_first_ns,
                                       int64_t *ret_last_ns, struct ef_err *err);
EF_MUST_USE ef_rc ef_store_each_ack(struct ef_store *store, ef_store_ack_fn fn, void *arg,
                                    struct ef_err *err);
/* Appends the value to `out`; EF_ENOTFOUND when absent. */
EF_MUST_USE ef_rc ef_store_get_meta(struct ef_store *store, const char *name, struct ef_buf *out,
                                    struct ef_err *err);
/* Deletes buckets of a tier that start before `before_ns`, blocks and totals. */
EF_MUST_USE ef_rc ef_store_expire(struct ef_store *store, enum ef_tier tier, int64_t before_ns,
                                  struct ef_err *err);
/* Forgets the acks of epochs not updated since `before_ns`. */
EF_MUST_USE ef_rc ef_store_expire_acks(struct ef_store *store, int64_t before_ns,
                                       struct ef_err *err);
/* Merges and compresses now what would be merged later; for measurements and `everflame admin`.
 * Blocks for seconds. */
EF_MUST_USE ef_rc ef_store_compact(struct ef_store *store, struct ef_err *err);
void ef_store_get_stat(struct ef_store *store, struct ef_store_stat *ret_stat);
/* Merges one part's totals into a sum, by the rules above. */
void ef_store_totals_add(struct ef_store_totals *sum, const struct ef_store_totals *part);

#endif
