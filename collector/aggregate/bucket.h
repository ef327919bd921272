/*
 * One (series, bucket) that is being filled: totals, and sections of (stack, count, value).
 *
 * Invariants: room is reserved before anything is booked, so booking cannot fail. A section's log
 * holds (stack, count) in order of arrival and is merged when it is full: adding a sample is one
 * store. Samples whose value is not count × interval go to `wide`. The sum of |value| of a bucket
 * stays below 2^62, so that no sum of its pairs can overflow.
 * Not thread-safe: an open bucket is used under the aggregate's lock, a frozen one by the flush.
 */
#ifndef COLLECTOR_AGGREGATE_BUCKET_H
#define COLLECTOR_AGGREGATE_BUCKET_H

#include "storage/block.h"
#include "storage/store.h"

#define EF_BUCKET_VALUE_MAX (UINT64_C(1) << 62) /* Σ |value|, and Σ count, of one bucket */

struct ef_section_key {
    uint8_t stratum;
    uint64_t weight_milli;
    uint64_t interval;
};

struct ef_section_log {
    struct ef_section_key key;
    uint64_t *log; /* stack << 32 | count */
    struct ef_block_pair *wide;
    uint32_t log_len, log_cap, log_reserved;
    uint32_t wide_len, wide_cap, wide_reserved;
};

/* Distinct 64-bit hashes, 0 not among them. */
struct ef_hash_set {
    uint64_t *slots;
    uint32_t slot_count, count;
};

struct ef_bucket {
    uint32_t series_id;
    int64_t bucket_ns;
    struct ef_store_totals totals;
    uint64_t magnitude, magnitude_weighted; /* Σ |value|, Σ |value × weight| */
    struct ef_hash_set instances;
    struct ef_section_log first; /* nearly always the only one: no memory of its own */
    struct ef_section_log *more;
    uint32_t section_count;
    bool used; /* something was booked; otherwise it was only prepared */
    size_t bytes;
    struct ef_bucket *next;
};

/* Sums by dense id while pairs are merged; one for each thread that merges. */
struct ef_merge {
    uint64_t *counts;
    int64_t *values;
    uint64_t *seen; /* one bit for each id */
    uint32_t id_cap;
};
void ef_merge_fini(struct ef_merge *merge);
size_t ef_merge_bytes(const struct ef_merge *merge);

struct ef_bucket *ef_bucket_open(uint32_t series_id, int64_t bucket_ns); /* NULL: no memory */
void ef_bucket_free(struct ef_bucket *bucket);
static inline struct ef_section_log *
ef_bucket_section(struct ef_bucket *bucket, uint32_t index)
{
    return index == 0 ? &bucket->first : &bucket->more[index - 1];
}
/*
 * Index of the section for the key, made when absent. With too many sections of a stratum it is the
 * nearest in weight (*ret_exact false when its interval differs: book values as wide); totals stay
 * exact. -1 = no memory.
 */
int ef_bucket_find_section(struct ef_bucket *bucket, const struct ef_section_key *key,
                           bool *ret_exact);
/* Room for `count` more bookings, in addition to what is reserved; false = no memory. */
bool ef_bucket_reserve(struct ef_bucket *bucket, uint32_t section, uint32_t count, bool wide,
                       struct ef_merge *merge);
void ef_bucket_unreserve(struct ef_bucket *bucket, uint32_t section, uint32_t count, bool wide);
/* false = no memory. At most EF_BUCKET_INSTANCES_MAX are told apart. */
#define EF_BUCKET_INSTANCES_MAX 65536u
bool ef_bucket_reserve_instance(struct ef_bucket *bucket);
void ef_bucket_add_instance(struct ef_bucket *bucket, uint64_t instance);

static inline void
ef_section_book(struct ef_section_log *section, uint32_t stack, uint32_t count)
{
    section->log[section->log_len++] = (uint64_t)stack << 32 | count;
}
static inline void
ef_section_book_wide(struct ef_section_log *section, uint32_t stack, uint64_t count, int64_t value)
{
    section->wide[section->wide_len++] = (struct ef_block_pair){stack, count, value};
}

/* Appends the block of all sections to `out` (ef_block_encode). `pairs` is scratch. */
EF_MUST_USE ef_rc ef_bucket_encode(const struct ef_bucket *bucket, struct ef_merge *merge,
                                   struct ef_buf *pairs, struct ef_buf *out, struct ef_err *err);
static inline bool
ef_bucket_has_pairs(const struct ef_bucket *bucket)
{
    return bucket->section_count > 0;
}

#endif
