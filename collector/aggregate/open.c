/*
 * Finds and makes open buckets. Runs under the aggregate's lock.
 */
#include "collector/aggregate/internal.h"

#define MAP_SHARE 40u /* bytes of the map for each bucket: a slot of 17 at 7/16 to 7/8 full */

static uint64_t
key_of(uint32_t series_id, int64_t bucket_ns)
{
    return (uint64_t)series_id << 32 | (uint32_t)(bucket_ns / EF_BUCKET_NS);
}

struct ef_bucket *
ef_open_find(struct ef_aggregate *aggregate, uint32_t series_id, int64_t bucket_ns)
{
    struct ef_bucket *bucket;
    bool is_new;
    uint64_t *slot = ef_map_upsert(&aggregate->open_of, key_of(series_id, bucket_ns), &is_new);

    if (slot == NULL)
        return NULL;
    if (!is_new)
        return (struct ef_bucket *)(uintptr_t)*slot;
    bucket = ef_bucket_open(series_id, bucket_ns);
    if (bucket == NULL) {
        ef_map_remove(&aggregate->open_of, key_of(series_id, bucket_ns));
        return NULL;
    }
    *slot = (uint64_t)(uintptr_t)bucket;
    bucket->next = aggregate->open;
    aggregate->open = bucket;
    aggregate->open_count++;
    bucket->bytes += MAP_SHARE;
    aggregate->open_bytes += bucket->bytes;
    return bucket;
}

void
ef_open_account(struct ef_aggregate *aggregate, struct ef_bucket *bucket, size_t bytes_before)
{
    aggregate->open_bytes += bucket->bytes - bytes_before;
}

void
ef_bucket_list_free(struct ef_bucket *bucket)
{
    while (bucket != NULL) {
        struct ef_bucket *next = bucket->next;
        ef_bucket_free(bucket);
        bucket = next;
    }
}
