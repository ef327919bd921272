/*
 * Decides the life of the aggregate, its limits, and what its memory amounts to.
 */
#include "collector/aggregate/internal.h"

#include <stdlib.h>
#include <string.h>

#define MEMORY_BYTES (UINT64_C(48) << 20)
#define PARKED_BYTES (UINT64_C(8) << 20)
#define OPEN_MAX (UINT64_C(1) << 24) /* open buckets; memory is full long before */
#define TIME_MS_MAX (UINT64_C(400) * 86400 * 1000)

static uint64_t
or_default(uint64_t value, uint64_t otherwise, uint64_t max)
{
    if (value == 0)
        return otherwise;
    return value < max ? value : max;
}

static struct ef_aggregate_options
with_defaults(const struct ef_aggregate_options *given)
{
    struct ef_aggregate_options o = *given;
    const uint64_t ids_max = EF_BLOCK_PAIRS_MAX - 2; /* with the reserved stacks, one block */

    o.memory_bytes_max = or_default(o.memory_bytes_max, MEMORY_BYTES, UINT64_MAX / 16);
    o.stacks_per_version_max = (uint32_t)or_default(o.stacks_per_version_max, 65536, ids_max);
    o.versions_per_worker_max = (uint32_t)or_default(o.versions_per_worker_max, 1024, 1 << 20);
    o.series_max = (uint32_t)or_default(o.series_max, 100000, 1 << 24);
    o.workers_max = (uint32_t)or_default(o.workers_max, 10000, 1 << 24);
    o.publishers_max = (uint32_t)or_default(o.publishers_max, 10000, 1 << 24);
    o.parked_bytes_max = or_default(o.parked_bytes_max, PARKED_BYTES, UINT64_MAX / 16);
    o.parked_wait_ms = or_default(o.parked_wait_ms, 60000, TIME_MS_MAX);
    o.clock_error_ms_max = or_default(o.clock_error_ms_max, 30000, TIME_MS_MAX);
    o.late_ms = or_default(o.late_ms, 3600000, TIME_MS_MAX);
    o.retention_ms = or_default(o.retention_ms, UINT64_C(3) * 86400 * 1000, TIME_MS_MAX);
    return o;
}

static ef_rc
load_flush_count(struct ef_aggregate *aggregate, struct ef_err *err)
{
    struct ef_buf value;
    struct ef_cursor cursor;
    ef_rc rc;

    ef_buf_init(&value, 64);
    rc = ef_store_get_meta(aggregate->store, "flush", &value, err);
    cursor = ef_cursor_of(value.data, value.len);
    if (rc == EF_OK)
        aggregate->flush_count = ef_cursor_le32(&cursor);
    ef_buf_fini(&value);
    if (rc == EF_OK && cursor.failed)
        return ef_err_set(err, EF_ECORRUPT, "the store's flush counter is damaged");
    return rc == EF_ENOTFOUND ? EF_OK : rc;
}

ef_rc
ef_aggregate_open(struct ef_store *store, const struct ef_aggregate_options *options,
                  struct ef_aggregate **ret_aggregate, struct ef_err *err)
{
    static const struct ef_aggregate_options none;
    struct ef_aggregate *aggregate = calloc(1, sizeof(*aggregate));
    ef_rc rc;

    if (aggregate == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for the aggregate");
    aggregate->store = store;
    aggregate->options = with_defaults(options != NULL ? options : &none);
    pthread_mutex_init(&aggregate->lock, NULL);
    pthread_mutex_init(&aggregate->flush_lock, NULL);
    ef_map_init(&aggregate->open_of, OPEN_MAX);
    rc = ef_catalogue_load(aggregate, err);
    if (rc == EF_OK)
        rc = ef_delivery_load(aggregate, err);
    if (rc == EF_OK)
        rc = load_flush_count(aggregate, err);
    if (rc != EF_OK) {
        ef_err_prefix(err, "opening the aggregate");
        ef_aggregate_free(aggregate);
        return rc;
    }
    *ret_aggregate = aggregate;
    return EF_OK;
}

static void
scratch_fini(struct ef_scratch *scratch)
{
    free(scratch->sources);
    free(scratch->ids);
    free(scratch->plans);
    free(scratch->parts);
    free(scratch->usages);
    ef_merge_fini(&scratch->merge);
}

void
ef_aggregate_free(struct ef_aggregate *aggregate)
{
    if (aggregate == NULL)
        return;
    ef_frozen_free(aggregate->frozen);
    ef_bucket_list_free(aggregate->open);
    ef_map_fini(&aggregate->open_of);
    ef_delivery_fini(&aggregate->delivery);
    ef_catalogue_fini(&aggregate->catalogue);
    scratch_fini(&aggregate->scratch);
    ef_merge_fini(&aggregate->flush_merge);
    pthread_mutex_destroy(&aggregate->lock);
    pthread_mutex_destroy(&aggregate->flush_lock);
    free(aggregate);
}

bool
ef_agg_grow(void **array, size_t *cap, size_t count, size_t item_bytes)
{
    size_t bigger = *cap < 8 ? 8 : *cap;
    void *moved;

    if (count <= *cap)
        return true;
    while (bigger < count)
        bigger += bigger / 2;
    moved = realloc(*array, bigger * item_bytes);
    if (moved == NULL)
        return false;
    *array = moved;
    *cap = bigger;
    return true;
}

bool
ef_agg_grow_u32(void **array, uint32_t *cap, uint32_t count, size_t item_bytes)
{
    size_t bigger = *cap;

    if (!ef_agg_grow(array, &bigger, count, item_bytes))
        return false;
    *cap = (uint32_t)bigger;
    return true;
}

static uint64_t
scratch_bytes(const struct ef_scratch *scratch)
{
    return scratch->source_cap * sizeof(*scratch->sources) +
           scratch->id_cap * sizeof(*scratch->ids) + scratch->plan_cap * sizeof(*scratch->plans) +
           scratch->part_cap * sizeof(*scratch->parts) +
           scratch->usage_cap * sizeof(*scratch->usages) + ef_merge_bytes(&scratch->merge);
}

uint64_t
ef_agg_bytes(const struct ef_aggregate *aggregate)
{
    return sizeof(*aggregate) + aggregate->catalogue_bytes + aggregate->dictionary_bytes +
           aggregate->fresh_bytes + aggregate->open_bytes + aggregate->frozen_bytes +
           aggregate->delivery_bytes + aggregate->delivery.parked_bytes +
           scratch_bytes(&aggregate->scratch);
}

bool
ef_agg_full(const struct ef_aggregate *aggregate, uint64_t more_bytes)
{
    uint64_t max = aggregate->options.memory_bytes_max;

    /* Definitions are held once more by the store's batch while they are written. */
    if (aggregate->fresh_bytes > max / 8)
        return true;
    /* A sixteenth is kept back: arrays that grow take more than what is put into them. */
    return ef_agg_bytes(aggregate) + more_bytes > max - max / 16;
}

uint64_t
ef_aggregate_bytes(struct ef_aggregate *aggregate)
{
    uint64_t bytes;

    pthread_mutex_lock(&aggregate->lock);
    bytes = ef_agg_bytes(aggregate);
    pthread_mutex_unlock(&aggregate->lock);
    return bytes;
}
