/*
 * Decides which call fails; everything else goes to the inner store. Must not know the backend.
 * Any thread.
 */
#include "tests/support/fault_store.h"

#include <pthread.h>
#include <stdlib.h>

#include "storage/store_ops.h"

struct plan {
    uint64_t nth, times, calls;
    ef_rc rc;
};

struct ef_fault_store {
    struct ef_store *inner;
    pthread_mutex_t lock; /* guards plans */
    struct plan plans[EF_FAULT_KINDS];
};

struct fault_batch {
    struct ef_fault_store *fault;
    struct ef_store_batch *inner;
    bool applied; /* the inner store has it, whatever we said */
};

/* Counts a call; EF_OK or what the plan says. */
static ef_rc
count(struct ef_fault_store *fault, enum ef_fault_kind kind, struct ef_err *err)
{
    struct plan *plan = &fault->plans[kind];
    ef_rc rc = EF_OK;
    uint64_t call;

    pthread_mutex_lock(&fault->lock);
    call = ++plan->calls;
    if (plan->times > 0 && call >= plan->nth && call - plan->nth < plan->times)
        rc = plan->rc;
    pthread_mutex_unlock(&fault->lock);
    if (rc != EF_OK)
        return ef_err_set(err, rc, "fault: call %llu fails by plan", (unsigned long long)call);
    return EF_OK;
}

static void
fault_close(void *self)
{
    struct ef_fault_store *fault = self;

    ef_store_close(fault->inner);
    pthread_mutex_destroy(&fault->lock);
    free(fault);
}

static ef_rc
fault_open(const char *path, const struct ef_store_options *options, void **ret_self,
           struct ef_err *err)
{
    (void)path;
    (void)options;
    (void)ret_self;
    return ef_err_set(err, EF_EUNSUP, "a fault store wraps an open one: ef_fault_store_open");
}

static ef_rc
fault_batch_open(void *self, void **ret_batch, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    struct fault_batch *batch;
    ef_rc rc = count(fault, EF_FAULT_BATCH_OPEN, err);

    if (rc != EF_OK)
        return rc;
    batch = calloc(1, sizeof(*batch));
    if (batch == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a batch");
    batch->fault = fault;
    rc = ef_store_batch_open(fault->inner, &batch->inner, err);
    if (rc != EF_OK) {
        free(batch);
        return rc;
    }
    *ret_batch = batch;
    return EF_OK;
}

static void
fault_batch_free(void *arg)
{
    struct fault_batch *batch = arg;

    ef_store_batch_free(batch->inner);
    free(batch);
}

static ef_rc
fault_put_version(void *arg, const struct ef_store_version *version, struct ef_err *err)
{
    struct fault_batch *batch = arg;
    ef_rc rc = count(batch->fault, EF_FAULT_PUT, err);

    return rc == EF_OK ? ef_store_put_version(batch->inner, version, err) : rc;
}

static ef_rc
fault_put_series(void *arg, const struct ef_store_series *series, struct ef_err *err)
{
    struct fault_batch *batch = arg;
    ef_rc rc = count(batch->fault, EF_FAULT_PUT, err);

    return rc == EF_OK ? ef_store_put_series(batch->inner, series, err) : rc;
}

static ef_rc
fault_put_functions(void *arg, uint32_t version_id, const struct ef_store_function *functions,
                    size_t function_count, struct ef_err *err)
{
    struct fault_batch *batch = arg;
    ef_rc rc = count(batch->fault, EF_FAULT_PUT, err);

    if (rc != EF_OK)
        return rc;
    return ef_store_put_functions(batch->inner, version_id, functions, function_count, err);
}

static ef_rc
fault_put_stacks(void *arg, uint32_t version_id, const struct ef_store_stack *stacks,
                 size_t stack_count, struct ef_err *err)
{
    struct fault_batch *batch = arg;
    ef_rc rc = count(batch->fault, EF_FAULT_PUT, err);

    if (rc != EF_OK)
        return rc;
    return ef_store_put_stacks(batch->inner, version_id, stacks, stack_count, err);
}

static ef_rc
fault_put_block(void *arg, enum ef_tier tier, uint32_t series_id, int64_t bucket_ns, uint32_t part,
                const void *block, size_t len, struct ef_err *err)
{
    struct fault_batch *batch = arg;
    ef_rc rc = count(batch->fault, EF_FAULT_PUT, err);

    if (rc != EF_OK)
        return rc;
    return ef_store_put_block(batch->inner, tier, series_id, bucket_ns, part, block, len, err);
}

static ef_rc
fault_put_totals(void *arg, enum ef_tier tier, uint32_t series_id, int64_t bucket_ns, uint32_t part,
                 const struct ef_store_totals *totals, struct ef_err *err)
{
    struct fault_batch *batch = arg;
    ef_rc rc = count(batch->fault, EF_FAULT_PUT, err);

    if (rc != EF_OK)
        return rc;
    return ef_store_put_totals(batch->inner, tier, series_id, bucket_ns, part, totals, err);
}

static ef_rc
fault_put_ack(void *arg, const struct ef_store_ack *ack, struct ef_err *err)
{
    struct fault_batch *batch = arg;
    ef_rc rc = count(batch->fault, EF_FAULT_PUT, err);

    return rc == EF_OK ? ef_store_put_ack(batch->inner, ack, err) : rc;
}

static ef_rc
fault_put_meta(void *arg, const char *name, const void *value, size_t len, struct ef_err *err)
{
    struct fault_batch *batch = arg;
    ef_rc rc = count(batch->fault, EF_FAULT_PUT, err);

    return rc == EF_OK ? ef_store_put_meta(batch->inner, name, value, len, err) : rc;
}

static ef_rc
fault_commit(void *self, void *arg, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    struct fault_batch *batch = arg;
    ef_rc rc = count(fault, EF_FAULT_COMMIT, err);

    if (rc == EF_OK && !batch->applied)
        rc = ef_store_commit(fault->inner, batch->inner, err);
    if (rc != EF_OK)
        return rc;
    batch->applied = true; /* applying the same keys and values again would change nothing */
    return count(fault, EF_FAULT_COMMIT_AFTER, err);
}

static ef_rc
fault_each_version(void *self, ef_store_version_fn fn, void *arg, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_READ, err);

    return rc == EF_OK ? ef_store_each_version(fault->inner, fn, arg, err) : rc;
}

static ef_rc
fault_each_series(void *self, ef_store_series_fn fn, void *arg, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_READ, err);

    return rc == EF_OK ? ef_store_each_series(fault->inner, fn, arg, err) : rc;
}

static ef_rc
fault_each_function(void *self, uint32_t version_id, ef_store_function_fn fn, void *arg,
                    struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_READ, err);

    return rc == EF_OK ? ef_store_each_function(fault->inner, version_id, fn, arg, err) : rc;
}

static ef_rc
fault_each_stack(void *self, uint32_t version_id, ef_store_stack_fn fn, void *arg,
                 struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_READ, err);

    return rc == EF_OK ? ef_store_each_stack(fault->inner, version_id, fn, arg, err) : rc;
}

static ef_rc
fault_fold(void *self, enum ef_tier tier, uint32_t series_id, int64_t from_ns, int64_t to_ns,
           ef_store_block_fn fn, void *arg, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_READ, err);

    if (rc != EF_OK)
        return rc;
    return ef_store_fold(fault->inner, tier, series_id, from_ns, to_ns, fn, arg, err);
}

static ef_rc
fault_fold_totals(void *self, enum ef_tier tier, uint32_t series_id, int64_t from_ns, int64_t to_ns,
                  ef_store_totals_fn fn, void *arg, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_READ, err);

    if (rc != EF_OK)
        return rc;
    return ef_store_fold_totals(fault->inner, tier, series_id, from_ns, to_ns, fn, arg, err);
}

static ef_rc
fault_series_span(void *self, enum ef_tier tier, uint32_t series_id, int64_t *ret_first_ns,
                  int64_t *ret_last_ns, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_READ, err);

    if (rc != EF_OK)
        return rc;
    return ef_store_series_span(fault->inner, tier, series_id, ret_first_ns, ret_last_ns, err);
}

static ef_rc
fault_each_ack(void *self, ef_store_ack_fn fn, void *arg, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_READ, err);

    return rc == EF_OK ? ef_store_each_ack(fault->inner, fn, arg, err) : rc;
}

static ef_rc
fault_get_meta(void *self, const char *name, struct ef_buf *out, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_READ, err);

    return rc == EF_OK ? ef_store_get_meta(fault->inner, name, out, err) : rc;
}

static ef_rc
fault_expire(void *self, enum ef_tier tier, int64_t before_ns, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_EXPIRE, err);

    return rc == EF_OK ? ef_store_expire(fault->inner, tier, before_ns, err) : rc;
}

static ef_rc
fault_expire_acks(void *self, int64_t before_ns, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_EXPIRE, err);

    return rc == EF_OK ? ef_store_expire_acks(fault->inner, before_ns, err) : rc;
}

static ef_rc
fault_compact(void *self, struct ef_err *err)
{
    struct ef_fault_store *fault = self;
    ef_rc rc = count(fault, EF_FAULT_COMPACT, err);

    return rc == EF_OK ? ef_store_compact(fault->inner, err) : rc;
}

static void
fault_get_stat(void *self, struct ef_store_stat *ret_stat)
{
    struct ef_fault_store *fault = self;

    ef_store_get_stat(fault->inner, ret_stat);
}

static const struct ef_store_ops fault_ops = {
    .name = "fault",
    .open = fault_open,
    .close = fault_close,
    .batch_open = fault_batch_open,
    .batch_free = fault_batch_free,
    .put_version = fault_put_version,
    .put_series = fault_put_series,
    .put_functions = fault_put_functions,
    .put_stacks = fault_put_stacks,
    .put_block = fault_put_block,
    .put_totals = fault_put_totals,
    .put_ack = fault_put_ack,
    .put_meta = fault_put_meta,
    .commit = fault_commit,
    .each_version = fault_each_version,
    .each_series = fault_each_series,
    .each_function = fault_each_function,
    .each_stack = fault_each_stack,
    .fold = fault_fold,
    .fold_totals = fault_fold_totals,
    .series_span = fault_series_span,
    .each_ack = fault_each_ack,
    .get_meta = fault_get_meta,
    .expire = fault_expire,
    .expire_acks = fault_expire_acks,
    .compact = fault_compact,
    .get_stat = fault_get_stat,
};

struct ef_store *
ef_fault_store_open(struct ef_store *inner, struct ef_fault_store **ret_fault)
{
    struct ef_fault_store *fault = calloc(1, sizeof(*fault));
    struct ef_store *store = NULL;

    if (fault == NULL)
        abort(); /* A test cannot go on without memory. */
    fault->inner = inner;
    pthread_mutex_init(&fault->lock, NULL);
    if (ef_store_open_ops(&fault_ops, fault, &store, NULL) != EF_OK)
        abort();
    *ret_fault = fault;
    return store;
}

void
ef_fault_store_arm(struct ef_fault_store *fault, enum ef_fault_kind kind, uint64_t nth,
                   uint64_t times, ef_rc rc)
{
    pthread_mutex_lock(&fault->lock);
    fault->plans[kind] = (struct plan){.nth = nth, .times = times, .rc = rc};
    pthread_mutex_unlock(&fault->lock);
}

uint64_t
ef_fault_store_calls(struct ef_fault_store *fault, enum ef_fault_kind kind)
{
    uint64_t calls;

    pthread_mutex_lock(&fault->lock);
    calls = fault->plans[kind].calls;
    pthread_mutex_unlock(&fault->lock);
    return calls;
}
