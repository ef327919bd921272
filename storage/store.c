/*
 * The front of the store: checks arguments, refuses incomplete batches, counts what was put, and
 * hands the rest to a backend. Must not know any backend beyond its row in backends.def. Any
 * thread, by the rules of store.h.
 */
#include "storage/store.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/limit.h"
#include "storage/store_ops.h"

struct ef_store {
    const struct ef_store_ops *ops;
    void *self;
    atomic_uint_least64_t blocks, samples; /* committed since open */
};

struct ef_store_batch {
    const struct ef_store_ops *ops;
    struct ef_store *store; /* borrowed */
    void *inner;
    uint64_t blocks, samples;
    bool broken;    /* a put failed half-way: what follows must not be committed without it */
    bool committed; /* done: a second commit would be a caller's mistake */
};

static const struct ef_store_ops *const backends[] = {
#define X(name) &ef_store_##name##_ops,
#include "storage/backends.def"
#undef X
};

static const char *
backend_names(char *text, size_t len)
{
    size_t at = 0;

    text[0] = '\0';
    for (size_t i = 0; i < EF_COUNT_OF(backends); i++) {
        size_t name_len = strlen(backends[i]->name);
        if (at + name_len + 3 > len)
            break;
        memcpy(text + at, i > 0 ? ", " : "", i > 0 ? 3 : 1);
        at += i > 0 ? 2 : 0;
        memcpy(text + at, backends[i]->name, name_len + 1);
        at += name_len;
    }
    return text;
}

static const struct ef_store_ops *
find_backend(const char *name)
{
    for (size_t i = 0; i < EF_COUNT_OF(backends); i++) {
        if (strcmp(backends[i]->name, name) == 0)
            return backends[i];
    }
    return NULL;
}

ef_rc
ef_store_open_ops(const struct ef_store_ops *ops, void *self, struct ef_store **ret_store,
                  struct ef_err *err)
{
    struct ef_store *store = calloc(1, sizeof(*store));

    if (store == NULL) {
        ops->close(self);
        return ef_err_set(err, EF_ENOMEM, "no memory for a store");
    }
    store->ops = ops;
    store->self = self;
    *ret_store = store;
    return EF_OK;
}

ef_rc
ef_store_open(const char *backend, const char *path, const struct ef_store_options *options,
              struct ef_store **ret_store, struct ef_err *err)
{
    static const struct ef_store_options defaults = {0};
    const struct ef_store_ops *ops = find_backend(backend);
    char names[128];
    void *self = NULL;
    ef_rc rc;

    if (ops == NULL)
        return ef_err_set(err, EF_EINVAL, "no storage backend '%s' (there are: %s)", backend,
                          backend_names(names, sizeof(names)));
    rc = ops->open(path != NULL ? path : "", options != NULL ? options : &defaults, &self, err);
    if (rc != EF_OK)
        return rc;
    return ef_store_open_ops(ops, self, ret_store, err);
}

void
ef_store_close(struct ef_store *store)
{
    if (store == NULL)
        return;
    store->ops->close(store->self);
    free(store);
}

ef_rc
ef_store_batch_open(struct ef_store *store, struct ef_store_batch **ret_batch, struct ef_err *err)
{
    struct ef_store_batch *batch = calloc(1, sizeof(*batch));
    ef_rc rc;

    if (batch == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a batch");
    batch->ops = store->ops;
    batch->store = store;
    rc = store->ops->batch_open(store->self, &batch->inner, err);
    if (rc != EF_OK) {
        free(batch);
        return rc;
    }
    *ret_batch = batch;
    return EF_OK;
}

void
ef_store_batch_free(struct ef_store_batch *batch)
{
    if (batch == NULL)
        return;
    batch->ops->batch_free(batch->inner);
    free(batch);
}

/* After the backend's part of a put. */
static ef_rc
put_done(struct ef_store_batch *batch, ef_rc rc)
{
    if (rc != EF_OK)
        batch->broken = true;
    return rc;
}

static ef_rc
check_open(const struct ef_store_batch *batch, struct ef_err *err)
{
    if (batch->committed)
        return ef_err_set(err, EF_EINVAL, "the batch was committed already");
    return EF_OK;
}

static ef_rc
check_id(uint32_t id, const char *what, struct ef_err *err)
{
    return id != 0 ? EF_OK : ef_err_set(err, EF_EINVAL, "%s id 0 is not used", what);
}

static ef_rc
check_text(const char *text, size_t len_max, const char *what, struct ef_err *err)
{
    if (text == NULL)
        return ef_err_set(err, EF_EINVAL, "%s is missing", what);
    if (strnlen(text, len_max + 1) > len_max)
        return ef_err_set(err, EF_EINVAL, "%s is longer than %zu bytes", what, len_max);
    return EF_OK;
}

static ef_rc
check_tier(enum ef_tier tier, struct ef_err *err)
{
    if ((unsigned)tier >= EF_TIER_COUNT)
        return ef_err_set(err, EF_EINVAL, "no tier %u", (unsigned)tier);
    return EF_OK;
}

static ef_rc
check_place(const struct ef_store_batch *batch, enum ef_tier tier, uint32_t series_id,
            struct ef_err *err)
{
    ef_rc rc = check_open(batch, err);

    if (rc == EF_OK)
        rc = check_tier(tier, err);
    return rc == EF_OK ? check_id(series_id, "series", err) : rc;
}

ef_rc
ef_store_put_version(struct ef_store_batch *batch, const struct ef_store_version *version,
                     struct ef_err *err)
{
    ef_rc rc = check_open(batch, err);

    if (rc == EF_OK)
        rc = check_id(version->id, "version", err);
    if (rc == EF_OK)
        rc = check_text(version->account, EF_STORE_NAME_MAX, "account", err);
    if (rc == EF_OK)
        rc = check_text(version->worker, EF_STORE_NAME_MAX, "worker", err);
    if (rc == EF_OK)
        rc = check_text(version->version, EF_STORE_NAME_MAX, "version", err);
    if (rc != EF_OK)
        return rc;
    return put_done(batch, batch->ops->put_version(batch->inner, version, err));
}

ef_rc
ef_store_put_series(struct ef_store_batch *batch, const struct ef_store_series *series,
                    struct ef_err *err)
{
    ef_rc rc = check_open(batch, err);

    if (rc == EF_OK)
        rc = check_id(series->id, "series", err);
    if (rc == EF_OK)
        rc = check_id(series->version_id, "version", err);
    if (rc == EF_OK)
        rc = check_text(series->region, EF_STORE_NAME_MAX, "region", err);
    if (rc != EF_OK)
        return rc;
    return put_done(batch, batch->ops->put_series(batch->inner, series, err));
}

static ef_rc
check_functions(const struct ef_store_function *functions, size_t count, struct ef_err *err)
{
    uint32_t last = 0;

    for (size_t i = 0; i < count; i++) {
        if (functions[i].id <= last)
            return ef_err_set(err, EF_EINVAL, "function id %u after id %u", functions[i].id, last);
        if (functions[i].name == NULL || functions[i].file == NULL)
            return ef_err_set(err, EF_EINVAL, "function %u without name or file", functions[i].id);
        last = functions[i].id;
    }
    return EF_OK;
}

static ef_rc
check_stacks(const struct ef_store_stack *stacks, size_t count, struct ef_err *err)
{
    uint32_t last = 0;

    for (size_t i = 0; i < count; i++) {
        if (stacks[i].id <= last)
            return ef_err_set(err, EF_EINVAL, "stack id %u after id %u", stacks[i].id, last);
        if (stacks[i].parent >= stacks[i].id)
            return ef_err_set(err, EF_EINVAL, "stack %u with parent %u, which is not before it",
                              stacks[i].id, stacks[i].parent);
        last = stacks[i].id;
    }
    return EF_OK;
}

ef_rc
ef_store_put_functions(struct ef_store_batch *batch, uint32_t version_id,
                       const struct ef_store_function *functions, size_t count, struct ef_err *err)
{
    ef_rc rc = check_open(batch, err);

    if (rc == EF_OK)
        rc = check_id(version_id, "version", err);
    if (rc == EF_OK)
        rc = check_functions(functions, count, err);
    if (rc != EF_OK || count == 0)
        return rc;
    return put_done(batch,
                    batch->ops->put_functions(batch->inner, version_id, functions, count, err));
}

ef_rc
ef_store_put_stacks(struct ef_store_batch *batch, uint32_t version_id,
                    const struct ef_store_stack *stacks, size_t count, struct ef_err *err)
{
    ef_rc rc = check_open(batch, err);

    if (rc == EF_OK)
        rc = check_id(version_id, "version", err);
    if (rc == EF_OK)
        rc = check_stacks(stacks, count, err);
    if (rc != EF_OK || count == 0)
        return rc;
    return put_done(batch, batch->ops->put_stacks(batch->inner, version_id, stacks, count, err));
}

ef_rc
ef_store_put_block(struct ef_store_batch *batch, enum ef_tier tier, uint32_t series_id,
                   int64_t bucket_ns, uint32_t part, const void *block, size_t len,
                   struct ef_err *err)
{
    ef_rc rc = check_place(batch, tier, series_id, err);

    if (rc == EF_OK && len == 0)
        rc = ef_err_set(err, EF_EINVAL, "a block of 0 bytes");
    if (rc != EF_OK)
        return rc;
    rc = batch->ops->put_block(batch->inner, tier, series_id, bucket_ns, part, block, len, err);
    if (rc == EF_OK)
        batch->blocks++;
    return put_done(batch, rc);
}

ef_rc
ef_store_put_totals(struct ef_store_batch *batch, enum ef_tier tier, uint32_t series_id,
                    int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals,
                    struct ef_err *err)
{
    ef_rc rc = check_place(batch, tier, series_id, err);

    if (rc != EF_OK)
        return rc;
    rc = batch->ops->put_totals(batch->inner, tier, series_id, bucket_ns, part, totals, err);
    if (rc == EF_OK)
        batch->samples = ef_sat_add_u64(batch->samples, totals->samples);
    return put_done(batch, rc);
}

static ef_rc
check_ack(const struct ef_store_ack *ack, struct ef_err *err)
{
    uint64_t last = ack->contiguous;

    if (ack->above_count > EF_ACK_ABOVE_MAX)
        return ef_err_set(err, EF_EINVAL, "ack with %u sequences above the contiguous one",
                          ack->above_count);
    for (uint32_t i = 0; i < ack->above_count; i++) {
        if (ack->above[i] <= last)
            return ef_err_set(err, EF_EINVAL, "ack: sequence %llu after %llu",
                              (unsigned long long)ack->above[i], (unsigned long long)last);
        last = ack->above[i];
    }
    if (memchr(ack->name, 0, sizeof(ack->name)) == NULL)
        return ef_err_set(err, EF_EINVAL, "ack with a name that does not end");
    return EF_OK;
}

ef_rc
ef_store_put_ack(struct ef_store_batch *batch, const struct ef_store_ack *ack, struct ef_err *err)
{
    ef_rc rc = check_open(batch, err);

    if (rc == EF_OK)
        rc = check_ack(ack, err);
    if (rc != EF_OK)
        return rc;
    return put_done(batch, batch->ops->put_ack(batch->inner, ack, err));
}

static ef_rc
check_meta_name(const char *name, struct ef_err *err)
{
    ef_rc rc = check_text(name, EF_STORE_META_NAME_MAX, "meta name", err);

    if (rc == EF_OK && name[0] == '\0')
        rc = ef_err_set(err, EF_EINVAL, "meta name is empty");
    return rc;
}

ef_rc
ef_store_put_meta(struct ef_store_batch *batch, const char *name, const void *value, size_t len,
                  struct ef_err *err)
{
    ef_rc rc = check_open(batch, err);

    if (rc == EF_OK)
        rc = check_meta_name(name, err);
    if (rc != EF_OK)
        return rc;
    return put_done(batch, batch->ops->put_meta(batch->inner, name, value, len, err));
}

ef_rc
ef_store_commit(struct ef_store *store, struct ef_store_batch *batch, struct ef_err *err)
{
    ef_rc rc = check_open(batch, err);

    if (rc == EF_OK && batch->store != store)
        rc = ef_err_set(err, EF_EINVAL, "the batch belongs to another store");
    if (rc == EF_OK && batch->broken)
        rc = ef_err_set(err, EF_EINVAL, "the batch is incomplete: an earlier put failed");
    if (rc == EF_OK)
        rc = store->ops->commit(store->self, batch->inner, err);
    if (rc != EF_OK)
        return rc;
    batch->committed = true;
    atomic_fetch_add_explicit(&store->blocks, batch->blocks, memory_order_relaxed);
    atomic_fetch_add_explicit(&store->samples, batch->samples, memory_order_relaxed);
    return EF_OK;
}

ef_rc
ef_store_each_version(struct ef_store *store, ef_store_version_fn fn, void *arg, struct ef_err *err)
{
    return store->ops->each_version(store->self, fn, arg, err);
}

ef_rc
ef_store_each_series(struct ef_store *store, ef_store_series_fn fn, void *arg, struct ef_err *err)
{
    return store->ops->each_series(store->self, fn, arg, err);
}

ef_rc
ef_store_each_function(struct ef_store *store, uint32_t version_id, ef_store_function_fn fn,
                       void *arg, struct ef_err *err)
{
    ef_rc rc = check_id(version_id, "version", err);

    return rc == EF_OK ? store->ops->each_function(store->self, version_id, fn, arg, err) : rc;
}

ef_rc
ef_store_each_stack(struct ef_store *store, uint32_t version_id, ef_store_stack_fn fn, void *arg,
                    struct ef_err *err)
{
    ef_rc rc = check_id(version_id, "version", err);

    return rc == EF_OK ? store->ops->each_stack(store->self, version_id, fn, arg, err) : rc;
}

static ef_rc
check_fold(enum ef_tier tier, uint32_t series_id, struct ef_err *err)
{
    ef_rc rc = check_tier(tier, err);

    return rc == EF_OK ? check_id(series_id, "series", err) : rc;
}

ef_rc
ef_store_fold(struct ef_store *store, enum ef_tier tier, uint32_t series_id, int64_t from_ns,
              int64_t to_ns, ef_store_block_fn fn, void *arg, struct ef_err *err)
{
    ef_rc rc = check_fold(tier, series_id, err);

    if (rc != EF_OK || from_ns >= to_ns)
        return rc;
    return store->ops->fold(store->self, tier, series_id, from_ns, to_ns, fn, arg, err);
}

ef_rc
ef_store_fold_totals(struct ef_store *store, enum ef_tier tier, uint32_t series_id, int64_t from_ns,
                     int64_t to_ns, ef_store_totals_fn fn, void *arg, struct ef_err *err)
{
    ef_rc rc = check_fold(tier, series_id, err);

    if (rc != EF_OK || from_ns >= to_ns)
        return rc;
    return store->ops->fold_totals(store->self, tier, series_id, from_ns, to_ns, fn, arg, err);
}

ef_rc
ef_store_series_span(struct ef_store *store, enum ef_tier tier, uint32_t series_id,
                     int64_t *ret_first_ns, int64_t *ret_last_ns, struct ef_err *err)
{
    ef_rc rc = check_fold(tier, series_id, err);

    if (rc != EF_OK)
        return rc;
    return store->ops->series_span(store->self, tier, series_id, ret_first_ns, ret_last_ns, err);
}

ef_rc
ef_store_each_ack(struct ef_store *store, ef_store_ack_fn fn, void *arg, struct ef_err *err)
{
    return store->ops->each_ack(store->self, fn, arg, err);
}

ef_rc
ef_store_get_meta(struct ef_store *store, const char *name, struct ef_buf *out, struct ef_err *err)
{
    ef_rc rc = check_meta_name(name, err);

    return rc == EF_OK ? store->ops->get_meta(store->self, name, out, err) : rc;
}

ef_rc
ef_store_expire(struct ef_store *store, enum ef_tier tier, int64_t before_ns, struct ef_err *err)
{
    ef_rc rc = check_tier(tier, err);

    return rc == EF_OK ? store->ops->expire(store->self, tier, before_ns, err) : rc;
}

ef_rc
ef_store_expire_acks(struct ef_store *store, int64_t before_ns, struct ef_err *err)
{
    return store->ops->expire_acks(store->self, before_ns, err);
}

ef_rc
ef_store_compact(struct ef_store *store, struct ef_err *err)
{
    return store->ops->compact(store->self, err);
}

void
ef_store_get_stat(struct ef_store *store, struct ef_store_stat *ret_stat)
{
    *ret_stat =
        (struct ef_store_stat){.oldest_bucket_ns = INT64_MAX, .newest_bucket_ns = INT64_MIN};
    store->ops->get_stat(store->self, ret_stat);
    ret_stat->blocks = atomic_load_explicit(&store->blocks, memory_order_relaxed);
    ret_stat->samples = atomic_load_explicit(&store->samples, memory_order_relaxed);
}

static int64_t
sat_add_i64(int64_t a, int64_t b)
{
    int64_t sum;

    if (ef_add_i64(a, b, &sum))
        return sum;
    return a < 0 ? INT64_MIN : INT64_MAX;
}

static uint64_t
max_u64(uint64_t a, uint64_t b)
{
    return a > b ? a : b;
}

/* Sums stay at the largest number instead of wrapping: parts come from disk. */
void
ef_store_totals_add(struct ef_store_totals *sum, const struct ef_store_totals *part)
{
    sum->samples = ef_sat_add_u64(sum->samples, part->samples);
    sum->value = sat_add_i64(sum->value, part->value);
    sum->value_weighted = sat_add_i64(sum->value_weighted, part->value_weighted);
    sum->covered_ns = ef_sat_add_u64(sum->covered_ns, part->covered_ns);
    sum->expected_ns = ef_sat_add_u64(sum->expected_ns, part->expected_ns);
    sum->bursts = ef_sat_add_u64(sum->bursts, part->bursts);
    sum->snapshots = ef_sat_add_u64(sum->snapshots, part->snapshots);
    sum->squares = ef_sat_add_u64(sum->squares, part->squares);
    sum->hot_samples = ef_sat_add_u64(sum->hot_samples, part->hot_samples);
    sum->cpu_ns = ef_sat_add_u64(sum->cpu_ns, part->cpu_ns);
    sum->hot_cpu_ns = ef_sat_add_u64(sum->hot_cpu_ns, part->hot_cpu_ns);
    sum->instances = max_u64(sum->instances, part->instances);
    sum->heap_used_bytes_max = max_u64(sum->heap_used_bytes_max, part->heap_used_bytes_max);
    sum->pause_ns_max = max_u64(sum->pause_ns_max, part->pause_ns_max);
}
