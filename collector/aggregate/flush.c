/*
 * Decides what one store batch holds: everything gathered since the last one, with the definitions
 * and the acks that belong to it. The state is swapped under the lock, encoded and committed
 * without it. A batch that failed stays, and is tried again before anything newer is written.
 */
#include "collector/aggregate/internal.h"

#include "proto/base/metric.h"

#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#define RUN_MAX 256u                   /* definitions put at once; chosen: 16 kB on the stack */
#define BLOCK_BYTES_MAX (64u << 20)    /* one block: a million pairs of 30 bytes */
#define TRIM_BYTES (UINT64_C(4) << 20) /* chosen: less is used again by the next buckets */
#define PAIRS_BYTES_MAX (UINT64_C(1) << 30)

void
ef_frozen_free(struct ef_frozen *frozen)
{
    if (frozen == NULL)
        return;
    ef_bucket_list_free(frozen->buckets);
    for (size_t i = 0; i < frozen->definitions_count; i++)
        ef_fresh_fini(&frozen->definitions[i].fresh);
    for (size_t i = 0; i < frozen->ack_count; i++)
        free(frozen->acks[i].copy.above);
    free(frozen->definitions);
    free(frozen->versions);
    free(frozen->series);
    free(frozen->acks);
    ef_store_batch_free(frozen->batch);
    free(frozen);
}

/* ---- freezing, under the lock ---- */

static size_t
count_dirty_epochs(const struct ef_delivery *delivery)
{
    size_t count = 0;

    for (uint32_t i = 0; i < delivery->epoch_count; i++)
        count += delivery->epochs[i]->dirty;
    return count;
}

static bool
has_fresh(const struct ef_version *version)
{
    return version->fresh.function_count > 0 || version->fresh.stack_count > 0;
}

static size_t
count_fresh_versions(const struct ef_catalogue *catalogue)
{
    size_t count = 0;

    for (uint32_t i = 0; i < catalogue->version_count; i++)
        count += has_fresh(catalogue->versions[i]);
    return count;
}

/* Allocates all that freezing needs, so that it cannot stop half way. */
static struct ef_frozen *
open_frozen(const struct ef_aggregate *aggregate, size_t acks, size_t definitions)
{
    const struct ef_catalogue *catalogue = &aggregate->catalogue;
    struct ef_frozen *frozen = calloc(1, sizeof(*frozen));

    if (frozen == NULL)
        return NULL;
    frozen->version_count = catalogue->version_count - catalogue->versions_put;
    frozen->series_first = catalogue->series_put + 1;
    frozen->series_count = catalogue->series_count - catalogue->series_put;
    frozen->definitions = calloc(definitions + 1, sizeof(*frozen->definitions));
    frozen->versions = calloc(frozen->version_count + 1, sizeof(*frozen->versions));
    frozen->series = calloc((size_t)frozen->series_count + 1, sizeof(*frozen->series));
    frozen->acks = calloc(acks + 1, sizeof(*frozen->acks));
    if (frozen->definitions == NULL || frozen->versions == NULL || frozen->series == NULL ||
        frozen->acks == NULL) {
        ef_frozen_free(frozen);
        return NULL;
    }
    return frozen;
}

static bool
freeze_ack(struct ef_frozen *frozen, struct ef_epoch *epoch)
{
    struct ef_frozen_ack *ack = &frozen->acks[frozen->ack_count];

    ack->epoch = epoch;
    ack->copy = *epoch;
    ack->copy.above = malloc((size_t)epoch->above_count * sizeof(*epoch->above) + 1);
    if (ack->copy.above == NULL)
        return false;
    if (epoch->above_count > 0)
        memcpy(ack->copy.above, epoch->above, epoch->above_count * sizeof(*epoch->above));
    memcpy(ack->publisher, epoch->publisher->id, sizeof(ack->publisher));
    memcpy(ack->name, epoch->publisher->name, sizeof(ack->name));
    frozen->ack_count++;
    return true;
}

static bool
freeze_acks(struct ef_aggregate *aggregate, struct ef_frozen *frozen)
{
    struct ef_delivery *delivery = &aggregate->delivery;

    for (uint32_t i = 0; i < delivery->epoch_count; i++) {
        if (delivery->epochs[i]->dirty && !freeze_ack(frozen, delivery->epochs[i]))
            return false;
    }
    for (size_t i = 0; i < frozen->ack_count; i++) {
        frozen->acks[i].epoch->dirty = false;
        frozen->acks[i].epoch->frozen = true;
    }
    return true;
}

static void
freeze_definitions(struct ef_aggregate *aggregate, struct ef_frozen *frozen)
{
    struct ef_catalogue *catalogue = &aggregate->catalogue;

    for (uint32_t i = 0; i < catalogue->version_count; i++) {
        struct ef_version *version = catalogue->versions[i];
        if (!has_fresh(version))
            continue;
        frozen->definitions[frozen->definitions_count++] =
            (struct ef_frozen_definitions){version, version->fresh};
        version->fresh = (struct ef_fresh){0};
        ef_buf_init(&version->fresh.text, EF_TEXT_BYTES_MAX);
        version->frozen = true;
    }
}

static void
freeze_catalogue(struct ef_aggregate *aggregate, struct ef_frozen *frozen)
{
    struct ef_catalogue *catalogue = &aggregate->catalogue;

    for (size_t i = 0; i < frozen->version_count; i++)
        frozen->versions[i] = catalogue->versions[catalogue->versions_put + i];
    for (size_t i = 0; i < frozen->series_count; i++)
        frozen->series[i] = catalogue->series[catalogue->series_put + i];
    catalogue->versions_put = catalogue->version_count;
    catalogue->series_put = catalogue->series_count;
}

/*
 * Swaps the open state for an empty one. *ret_frozen NULL when there is nothing. On failure
 * nothing has changed.
 */
static ef_rc
freeze(struct ef_aggregate *aggregate, struct ef_frozen **ret_frozen, struct ef_err *err)
{
    size_t acks = count_dirty_epochs(&aggregate->delivery);
    size_t definitions = count_fresh_versions(&aggregate->catalogue);
    struct ef_frozen *frozen;

    *ret_frozen = NULL;
    if (acks == 0 && definitions == 0 && aggregate->open == NULL &&
        aggregate->catalogue.versions_put == aggregate->catalogue.version_count &&
        aggregate->catalogue.series_put == aggregate->catalogue.series_count)
        return EF_OK;
    frozen = open_frozen(aggregate, acks, definitions);
    if (frozen == NULL || !freeze_acks(aggregate, frozen)) {
        ef_frozen_free(frozen);
        return ef_err_set(err, EF_ENOMEM, "no memory to begin a flush");
    }
    freeze_definitions(aggregate, frozen);
    freeze_catalogue(aggregate, frozen);
    frozen->buckets = aggregate->open;
    frozen->part = ++aggregate->flush_count;
    frozen->bytes = aggregate->open_bytes + aggregate->fresh_bytes;
    aggregate->frozen_bytes += frozen->bytes;
    aggregate->open = NULL;
    aggregate->open_count = 0;
    aggregate->open_bytes = aggregate->fresh_bytes = 0;
    ef_map_clear(&aggregate->open_of);
    *ret_frozen = frozen;
    return EF_OK;
}

/* ---- encoding, without the lock ---- */

static ef_rc
put_functions(struct ef_store_batch *batch, uint32_t version_id, const struct ef_fresh *fresh,
              struct ef_err *err)
{
    struct ef_store_function run[RUN_MAX];
    const char *text = (const char *)fresh->text.data;

    for (uint32_t done = 0; done < fresh->function_count;) {
        uint32_t count = fresh->function_count - done;
        ef_rc rc;
        count = count < RUN_MAX ? count : RUN_MAX;
        for (uint32_t i = 0; i < count; i++) {
            const struct ef_new_function *function = &fresh->functions[done + i];
            run[i] = (struct ef_store_function){fresh->function_first + done + i, function->hash,
                                                text + function->name_at, text + function->file_at,
                                                function->line};
        }
        rc = ef_store_put_functions(batch, version_id, run, count, err);
        if (rc != EF_OK)
            return rc;
        done += count;
    }
    return EF_OK;
}

static ef_rc
put_stacks(struct ef_store_batch *batch, uint32_t version_id, const struct ef_fresh *fresh,
           struct ef_err *err)
{
    struct ef_store_stack run[RUN_MAX];

    for (uint32_t done = 0; done < fresh->stack_count;) {
        uint32_t count = fresh->stack_count - done;
        ef_rc rc;
        count = count < RUN_MAX ? count : RUN_MAX;
        for (uint32_t i = 0; i < count; i++) {
            const struct ef_new_stack *stack = &fresh->stacks[done + i];
            run[i] = (struct ef_store_stack){fresh->stack_first + done + i, stack->hash,
                                             stack->parent, stack->function, stack->line};
        }
        rc = ef_store_put_stacks(batch, version_id, run, count, err);
        if (rc != EF_OK)
            return rc;
        done += count;
    }
    return EF_OK;
}

static ef_rc
put_catalogue(const struct ef_frozen *frozen, struct ef_store_batch *batch, struct ef_err *err)
{
    ef_rc rc = EF_OK;

    for (size_t i = 0; i < frozen->version_count && rc == EF_OK; i++) {
        const struct ef_version *version = frozen->versions[i];
        struct ef_store_version row = {version->id, version->account, version->worker,
                                       version->version, version->created_ns};
        rc = ef_store_put_version(batch, &row, err);
    }
    for (uint32_t i = 0; i < frozen->series_count && rc == EF_OK; i++) {
        const struct ef_series *series = &frozen->series[i];
        struct ef_store_series row = {frozen->series_first + i, series->version_id,
                                      series->profile_type, series->region};
        rc = ef_store_put_series(batch, &row, err);
    }
    for (size_t i = 0; i < frozen->definitions_count && rc == EF_OK; i++) {
        uint32_t version_id = frozen->definitions[i].version->id;
        rc = put_functions(batch, version_id, &frozen->definitions[i].fresh, err);
        if (rc == EF_OK)
            rc = put_stacks(batch, version_id, &frozen->definitions[i].fresh, err);
    }
    return rc;
}

static ef_rc
put_buckets(struct ef_aggregate *aggregate, const struct ef_frozen *frozen,
            struct ef_store_batch *batch, struct ef_err *err)
{
    struct ef_buf block, pairs;
    ef_rc rc = EF_OK;

    ef_buf_init(&block, BLOCK_BYTES_MAX);
    ef_buf_init(&pairs, PAIRS_BYTES_MAX);
    for (const struct ef_bucket *bucket = frozen->buckets; bucket != NULL && rc == EF_OK;
         bucket = bucket->next) {
        if (!bucket->used)
            continue;
        ef_buf_clear(&block);
        if (ef_bucket_has_pairs(bucket)) {
            rc = ef_bucket_encode(bucket, &aggregate->flush_merge, &pairs, &block, err);
            if (rc == EF_OK)
                rc = ef_store_put_block(batch, EF_TIER_10S, bucket->series_id, bucket->bucket_ns,
                                        frozen->part, block.data, block.len, err);
            ef_metric_add(EF_METRIC_store_blocks_total, 1);
        }
        if (rc == EF_OK)
            rc = ef_store_put_totals(batch, EF_TIER_10S, bucket->series_id, bucket->bucket_ns,
                                     frozen->part, &bucket->totals, err);
    }
    ef_buf_fini(&block);
    ef_buf_fini(&pairs);
    return rc;
}

static void
fill_ack(struct ef_store_ack *ack, const struct ef_frozen_ack *frozen)
{
    const struct ef_epoch *epoch = &frozen->copy;

    memcpy(ack->publisher, frozen->publisher, sizeof(ack->publisher));
    memcpy(ack->name, frozen->name, sizeof(ack->name));
    ack->epoch = epoch->epoch;
    ack->contiguous = epoch->contiguous;
    ack->above_count = epoch->above_count;
    if (epoch->above_count > 0)
        memcpy(ack->above, epoch->above, epoch->above_count * sizeof(*ack->above));
    ack->fragments_stored = epoch->fragments_stored;
    ack->samples_stored = epoch->samples_stored;
    ack->fragments_lost = epoch->fragments_lost;
    ack->samples_lost = epoch->samples_lost;
    ack->batches_duplicate = epoch->batches_duplicate;
    ack->samples_duplicate = epoch->samples_duplicate;
    ack->samples_late = epoch->samples_late;
}

static ef_rc
put_acks(const struct ef_frozen *frozen, int64_t now_ns, struct ef_store_batch *batch,
         struct ef_err *err)
{
    struct ef_store_ack *ack = calloc(1, sizeof(*ack));
    ef_rc rc = EF_OK;

    if (ack == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for acks");
    ack->updated_ns = now_ns;
    for (size_t i = 0; i < frozen->ack_count && rc == EF_OK; i++) {
        fill_ack(ack, &frozen->acks[i]);
        rc = ef_store_put_ack(batch, ack, err);
    }
    free(ack);
    return rc;
}

static ef_rc
put_flush_count(const struct ef_frozen *frozen, struct ef_store_batch *batch, struct ef_err *err)
{
    uint8_t value[4] = {(uint8_t)frozen->part, (uint8_t)(frozen->part >> 8),
                        (uint8_t)(frozen->part >> 16), (uint8_t)(frozen->part >> 24)};

    return ef_store_put_meta(batch, "flush", value, sizeof(value), err);
}

/* On failure frozen->batch is NULL, and all is encoded again next time. */
static ef_rc
encode(struct ef_aggregate *aggregate, struct ef_frozen *frozen, int64_t now_ns, struct ef_err *err)
{
    struct ef_store_batch *batch = NULL;
    ef_rc rc = ef_store_batch_open(aggregate->store, &batch, err);

    if (rc == EF_OK)
        rc = put_catalogue(frozen, batch, err);
    if (rc == EF_OK)
        rc = put_buckets(aggregate, frozen, batch, err);
    if (rc == EF_OK)
        rc = put_acks(frozen, now_ns, batch, err);
    if (rc == EF_OK)
        rc = put_flush_count(frozen, batch, err);
    if (rc != EF_OK) {
        ef_store_batch_free(batch);
        return rc;
    }
    frozen->batch = batch;
    return EF_OK;
}

/* ---- afterwards, under the lock ---- */

static void
settle(struct ef_aggregate *aggregate, struct ef_frozen *frozen)
{
    for (size_t i = 0; i < frozen->definitions_count; i++)
        frozen->definitions[i].version->frozen = false;
    for (size_t i = 0; i < frozen->ack_count; i++) {
        struct ef_epoch *epoch = frozen->acks[i].epoch;
        epoch->durable = frozen->acks[i].copy.contiguous;
        epoch->frozen = false;
    }
    aggregate->frozen_bytes -= frozen->bytes;
    aggregate->frozen = NULL;
    aggregate->flush_failed = false;
}

/* Frees what was written. Many small pieces between living ones: glibc keeps them, and 110 MB were
 * resident for 29 MB in use after a burst of definitions, unless it is told to look. */
static void
release(struct ef_frozen *frozen)
{
    uint64_t bytes = frozen->bytes;

    ef_frozen_free(frozen);
    if (bytes >= TRIM_BYTES)
        malloc_trim(0); /* takes some milliseconds */
}

/* Writes what is frozen; it stays frozen when that fails. */
static ef_rc
write_frozen(struct ef_aggregate *aggregate, struct ef_frozen *frozen, int64_t now_ns,
             struct ef_err *err)
{
    bool again = frozen->batch != NULL;
    ef_rc rc = EF_OK;

    if (!again)
        rc = encode(aggregate, frozen, now_ns, err);
    if (rc == EF_OK)
        rc = ef_store_commit(aggregate->store, frozen->batch, err);
    if (again && rc == EF_EINVAL) {
        /* It had reached the disk when the last commit said that it failed. The same keys once
         * more do no harm, and say so for certain. */
        ef_store_batch_free(frozen->batch);
        frozen->batch = NULL;
        rc = encode(aggregate, frozen, now_ns, err);
        if (rc == EF_OK)
            rc = ef_store_commit(aggregate->store, frozen->batch, err);
    }
    pthread_mutex_lock(&aggregate->lock);
    if (rc == EF_OK)
        settle(aggregate, frozen);
    else
        aggregate->flush_failed = true;
    pthread_mutex_unlock(&aggregate->lock);
    if (rc == EF_OK)
        release(frozen);
    return rc;
}

static ef_rc
flush(struct ef_aggregate *aggregate, int64_t now_ns, bool *ret_wrote, struct ef_err *err)
{
    struct ef_frozen *frozen;
    ef_rc rc;

    *ret_wrote = aggregate->frozen != NULL;
    if (aggregate->frozen != NULL) {
        rc = write_frozen(aggregate, aggregate->frozen, now_ns, err);
        if (rc != EF_OK)
            return rc;
    }
    pthread_mutex_lock(&aggregate->lock);
    rc = freeze(aggregate, &frozen, err);
    if (rc == EF_OK)
        aggregate->frozen = frozen;
    pthread_mutex_unlock(&aggregate->lock);
    if (rc != EF_OK || frozen == NULL)
        return rc;
    *ret_wrote = true;
    return write_frozen(aggregate, frozen, now_ns, err);
}

ef_rc
ef_aggregate_flush(struct ef_aggregate *aggregate, int64_t now_ns, struct ef_err *err)
{
    ef_mono_ns begin = ef_mono_now();
    bool wrote = false;
    ef_rc rc;

    ef_apply_parked(aggregate, now_ns);
    pthread_mutex_lock(&aggregate->flush_lock);
    rc = flush(aggregate, now_ns, &wrote, err);
    pthread_mutex_unlock(&aggregate->flush_lock);
    if (rc != EF_OK) {
        ef_metric_add(EF_METRIC_store_write_errors_total, 1);
        ef_err_prefix(err, "flush");
        return rc;
    }
    if (wrote)
        ef_metric_add(EF_METRIC_store_flushes_total, 1);
    ef_metric_add_milli(EF_METRIC_store_flush_seconds_total,
                        (uint64_t)(ef_mono_since(begin, ef_mono_now()).ns / EF_NS_PER_MS));
    return EF_OK;
}
