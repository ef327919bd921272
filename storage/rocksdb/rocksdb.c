/*
 * The RocksDB backend: turns the store's operations into records and ranges of keys. Must not know
 * how the database is opened or mended (db.c) nor what a block holds. Any thread, one batch per
 * thread.
 */
#include "storage/rocksdb/rocksdb.h"

#include <stdlib.h>

#include "storage/store_ops.h"

/* A run of definitions is one value; chosen: about one RocksDB block, so reading one run does not
 * decompress others. */
#define RUN_BYTES (16u << 10)

/* Definitions of one version and kind, gathered until the value is large enough. */
struct run {
    char kind;
    bool open;
    uint32_t version_id, first_id, last_id;
    struct ef_buf value;
};

struct batch {
    struct ef_writes writes;
    struct run functions, stacks;
    struct ef_span spans[EF_TIER_COUNT]; /* of what was put */
};

struct ef_span
ef_span_none(void)
{
    return (struct ef_span){INT64_MAX, INT64_MIN};
}

bool
ef_span_is_none(const struct ef_span *span)
{
    return span->oldest_ns > span->newest_ns;
}

void
ef_span_add(struct ef_span *span, int64_t bucket_ns)
{
    if (bucket_ns < span->oldest_ns)
        span->oldest_ns = bucket_ns;
    if (bucket_ns > span->newest_ns)
        span->newest_ns = bucket_ns;
}

static ef_rc
load_span(struct ef_rocksdb *self, enum ef_tier tier, struct ef_err *err)
{
    struct ef_key key = ef_key_meta_id(EF_META_TIER, tier);
    struct ef_buf value;
    ef_rc rc;

    self->spans[tier] = ef_span_none();
    ef_buf_init(&value, 64);
    rc = ef_db_get(self->db, EF_FAMILY_META, &key, &value, err);
    if (rc == EF_OK)
        rc = ef_record_read_span(value.data, value.len, &self->spans[tier], err);
    ef_buf_fini(&value);
    return rc == EF_ENOTFOUND ? EF_OK : rc;
}

static void
rocksdb_close_self(void *arg)
{
    struct ef_rocksdb *self = arg;

    ef_db_close(self->db);
    pthread_mutex_destroy(&self->span_lock);
    free(self);
}

static ef_rc
rocksdb_open_self(const char *path, const struct ef_store_options *options, void **ret_self,
                  struct ef_err *err)
{
    struct ef_rocksdb *self;
    ef_rc rc;

    if (path[0] == '\0')
        return ef_err_set(err, EF_EINVAL, "the store needs a folder");
    self = calloc(1, sizeof(*self));
    if (self == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory to open the store '%s'", path);
    pthread_mutex_init(&self->span_lock, NULL);
    rc = ef_db_open(path, options, &self->db, err);
    for (int tier = 0; rc == EF_OK && tier < EF_TIER_COUNT; tier++) {
        rc = load_span(self, (enum ef_tier)tier, err);
        if (rc == EF_ECORRUPT)
            ef_err_prefix(err, "store '%s': tier %d", path, tier);
    }
    if (rc != EF_OK) {
        rocksdb_close_self(self);
        return rc;
    }
    *ret_self = self;
    return EF_OK;
}

static void
run_init(struct run *run, char kind)
{
    *run = (struct run){.kind = kind};
    ef_buf_init(&run->value, EF_STORE_BATCH_BYTES_MAX);
}

static ef_rc
rocksdb_batch_open(void *self, void **ret_batch, struct ef_err *err)
{
    struct batch *batch = calloc(1, sizeof(*batch));

    (void)self;
    if (batch == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a batch");
    ef_writes_init(&batch->writes);
    run_init(&batch->functions, EF_DICT_FUNCTIONS);
    run_init(&batch->stacks, EF_DICT_STACKS);
    for (int tier = 0; tier < EF_TIER_COUNT; tier++)
        batch->spans[tier] = ef_span_none();
    *ret_batch = batch;
    return EF_OK;
}

static void
rocksdb_batch_free(void *arg)
{
    struct batch *batch = arg;

    ef_writes_fini(&batch->writes);
    ef_buf_fini(&batch->functions.value);
    ef_buf_fini(&batch->stacks.value);
    free(batch);
}

/* Adds a put whose value was written to `value`, which is freed. */
static ef_rc
put_value(struct batch *batch, enum ef_family family, const struct ef_key *key,
          struct ef_buf *value, struct ef_err *err)
{
    ef_rc rc = ef_buf_check(value, "record", err);

    if (rc == EF_OK) {
        ef_writes_add(&batch->writes, EF_WRITE_PUT, family, key, value->data, value->len);
        rc = ef_writes_check(&batch->writes, err);
    }
    ef_buf_fini(value);
    return rc;
}

static struct ef_buf
new_value(void)
{
    struct ef_buf value;

    ef_buf_init(&value, EF_STORE_BATCH_BYTES_MAX);
    return value;
}

static ef_rc
rocksdb_put_version(void *batch, const struct ef_store_version *version, struct ef_err *err)
{
    struct ef_key key = ef_key_meta_id(EF_META_VERSION, version->id);
    struct ef_buf value = new_value();

    ef_record_write_version(&value, version);
    return put_value(batch, EF_FAMILY_META, &key, &value, err);
}

static ef_rc
rocksdb_put_series(void *batch, const struct ef_store_series *series, struct ef_err *err)
{
    struct ef_key key = ef_key_meta_id(EF_META_SERIES, series->id);
    struct ef_buf value = new_value();

    ef_record_write_series(&value, series);
    return put_value(batch, EF_FAMILY_META, &key, &value, err);
}

/* Moves the gathered run, if there is one, into the batch. */
static void
seal_run(struct batch *batch, struct run *run)
{
    struct ef_key key;

    if (!run->open)
        return;
    key = ef_key_dict(run->version_id, run->kind, run->first_id);
    ef_writes_put(&batch->writes, EF_FAMILY_DICT, &key, &run->value);
    ef_buf_clear(&run->value);
    run->open = false;
}

/* Makes the run ready for a record with this id; gives the id that the record counts from. */
static uint32_t
extend_run(struct batch *batch, struct run *run, uint32_t version_id, uint32_t id)
{
    uint32_t last_id = run->last_id;

    if (!run->open || run->version_id != version_id || id <= run->last_id ||
        run->value.len >= RUN_BYTES) {
        seal_run(batch, run);
        run->open = true;
        run->version_id = version_id;
        run->first_id = last_id = id;
        ef_record_begin_run(&run->value);
    }
    run->last_id = id;
    return last_id;
}

static ef_rc
check_run(const struct batch *batch, const struct run *run, struct ef_err *err)
{
    ef_rc rc = ef_buf_check(&run->value, "definitions", err);

    return rc == EF_OK ? ef_writes_check(&batch->writes, err) : rc;
}

static ef_rc
rocksdb_put_functions(void *arg, uint32_t version_id, const struct ef_store_function *functions,
                      size_t count, struct ef_err *err)
{
    struct batch *batch = arg;
    struct run *run = &batch->functions;

    for (size_t i = 0; i < count; i++) {
        uint32_t last_id = extend_run(batch, run, version_id, functions[i].id);
        ef_record_write_function(&run->value, last_id, &functions[i]);
    }
    return check_run(batch, run, err);
}

static ef_rc
rocksdb_put_stacks(void *arg, uint32_t version_id, const struct ef_store_stack *stacks,
                   size_t count, struct ef_err *err)
{
    struct batch *batch = arg;
    struct run *run = &batch->stacks;

    for (size_t i = 0; i < count; i++) {
        uint32_t last_id = extend_run(batch, run, version_id, stacks[i].id);
        ef_record_write_stack(&run->value, last_id, &stacks[i]);
    }
    return check_run(batch, run, err);
}

static enum ef_family
block_family(enum ef_tier tier)
{
    return (enum ef_family)(EF_FAMILY_BLOCKS + (int)tier);
}

static ef_rc
rocksdb_put_block(void *arg, enum ef_tier tier, uint32_t series_id, int64_t bucket_ns,
                  uint32_t part, const void *block, size_t len, struct ef_err *err)
{
    struct batch *batch = arg;
    struct ef_key key = ef_key_block(series_id, bucket_ns, part);

    ef_writes_add(&batch->writes, EF_WRITE_PUT, block_family(tier), &key, block, len);
    ef_span_add(&batch->spans[tier], bucket_ns);
    return ef_writes_check(&batch->writes, err);
}

static ef_rc
rocksdb_put_totals(void *arg, enum ef_tier tier, uint32_t series_id, int64_t bucket_ns,
                   uint32_t part, const struct ef_store_totals *totals, struct ef_err *err)
{
    struct batch *batch = arg;
    struct ef_key key = ef_key_totals(tier, series_id, bucket_ns, part);
    struct ef_buf value = new_value();

    ef_record_write_totals(&value, totals);
    ef_span_add(&batch->spans[tier], bucket_ns);
    return put_value(batch, EF_FAMILY_TOTALS, &key, &value, err);
}

static ef_rc
rocksdb_put_ack(void *batch, const struct ef_store_ack *ack, struct ef_err *err)
{
    struct ef_key key = ef_key_ack(ack->publisher, ack->epoch);
    struct ef_buf value = new_value();

    ef_record_write_ack(&value, ack);
    return put_value(batch, EF_FAMILY_ACK, &key, &value, err);
}

static ef_rc
rocksdb_put_meta(void *arg, const char *name, const void *value, size_t len, struct ef_err *err)
{
    struct batch *batch = arg;
    struct ef_key key = ef_key_meta_name(name);

    ef_writes_add(&batch->writes, EF_WRITE_PUT, EF_FAMILY_META, &key, value, len);
    return ef_writes_check(&batch->writes, err);
}

/* Widens `spans` by the batch; adds the records that change to `writes`. Writer lock is held. */
static ef_rc
widen_spans(const struct batch *batch, struct ef_span *spans, struct ef_writes *writes,
            struct ef_err *err)
{
    for (int tier = 0; tier < EF_TIER_COUNT; tier++) {
        struct ef_key key = ef_key_meta_id(EF_META_TIER, (uint32_t)tier);
        const struct ef_span *added = &batch->spans[tier];
        struct ef_span old = spans[tier];
        struct ef_buf value = new_value();

        if (ef_span_is_none(added))
            continue;
        ef_span_add(&spans[tier], added->oldest_ns);
        ef_span_add(&spans[tier], added->newest_ns);
        if (old.oldest_ns == spans[tier].oldest_ns && old.newest_ns == spans[tier].newest_ns)
            continue;
        ef_record_write_span(&value, &spans[tier]);
        ef_writes_put(writes, EF_FAMILY_META, &key, &value);
        ef_buf_fini(&value);
    }
    return ef_writes_check(writes, err);
}

static ef_rc
commit_locked(struct ef_rocksdb *self, struct batch *batch, struct ef_err *err)
{
    struct ef_span spans[EF_TIER_COUNT];
    struct ef_writes extra;
    const struct ef_writes *lists[] = {&batch->writes, &extra};
    ef_rc rc;

    ef_writes_init(&extra);
    for (int tier = 0; tier < EF_TIER_COUNT; tier++)
        spans[tier] = self->spans[tier];
    rc = widen_spans(batch, spans, &extra, err);
    if (rc == EF_OK)
        rc = ef_db_write(self->db, lists, EF_COUNT_OF(lists), err);
    ef_writes_fini(&extra);
    if (rc != EF_OK)
        return rc;
    pthread_mutex_lock(&self->span_lock);
    for (int tier = 0; tier < EF_TIER_COUNT; tier++)
        self->spans[tier] = spans[tier];
    pthread_mutex_unlock(&self->span_lock);
    return EF_OK;
}

static ef_rc
rocksdb_commit(void *arg, void *batch_arg, struct ef_err *err)
{
    struct ef_rocksdb *self = arg;
    struct batch *batch = batch_arg;
    ef_rc rc;

    seal_run(batch, &batch->functions);
    seal_run(batch, &batch->stacks);
    rc = ef_writes_check(&batch->writes, err);
    if (rc != EF_OK)
        return rc;
    ef_db_lock(self->db);
    rc = commit_locked(self, batch, err);
    ef_db_unlock(self->db);
    return rc;
}

/* One reading operation: which store, and the caller's function (one of them is set). */
struct reading {
    struct ef_rocksdb *self;
    void *arg;
    ef_store_version_fn version_fn;
    ef_store_series_fn series_fn;
    ef_store_function_fn function_fn;
    ef_store_stack_fn stack_fn;
    ef_store_block_fn block_fn;
    ef_store_totals_fn totals_fn;
    ef_store_ack_fn ack_fn;
};

static ef_rc
bad_key(const struct reading *reading, const char *what, size_t len, struct ef_err *err)
{
    return ef_err_set(err, EF_ECORRUPT, "store '%s': %s record with a key of %zu bytes",
                      ef_db_path(reading->self->db), what, len);
}

static ef_rc
on_version(void *arg, const uint8_t *key, size_t key_len, const uint8_t *value, size_t value_len,
           struct ef_err *err)
{
    const struct reading *reading = arg;
    struct ef_store_version version;
    uint32_t id;
    ef_rc rc;

    if (!ef_key_read_id(key, key_len, &id))
        return bad_key(reading, "version", key_len, err);
    rc = ef_record_read_version(value, value_len, &version, err);
    if (rc != EF_OK) {
        ef_err_prefix(err, "store '%s': version %u", ef_db_path(reading->self->db), id);
        return rc;
    }
    version.id = id;
    return reading->version_fn(reading->arg, &version);
}

static ef_rc
on_series(void *arg, const uint8_t *key, size_t key_len, const uint8_t *value, size_t value_len,
          struct ef_err *err)
{
    const struct reading *reading = arg;
    struct ef_store_series series;
    uint32_t id;
    ef_rc rc;

    if (!ef_key_read_id(key, key_len, &id))
        return bad_key(reading, "series", key_len, err);
    rc = ef_record_read_series(value, value_len, &series, err);
    if (rc != EF_OK) {
        ef_err_prefix(err, "store '%s': series %u", ef_db_path(reading->self->db), id);
        return rc;
    }
    series.id = id;
    return reading->series_fn(reading->arg, &series);
}

/* Reads the next definition of a run and hands it to the caller's function. */
static ef_rc
next_definition(const struct reading *reading, struct ef_run *run, struct ef_err *err)
{
    struct ef_store_function function;
    struct ef_store_stack stack;
    ef_rc rc = reading->function_fn != NULL ? ef_run_function(run, &function, err)
                                            : ef_run_stack(run, &stack, err);

    if (rc != EF_OK) {
        ef_err_prefix(err, "store '%s': after id %u", ef_db_path(reading->self->db), run->last_id);
        return rc;
    }
    return reading->function_fn != NULL ? reading->function_fn(reading->arg, &function)
                                        : reading->stack_fn(reading->arg, &stack);
}

static ef_rc
on_definitions(void *arg, const uint8_t *key, size_t key_len, const uint8_t *value,
               size_t value_len, struct ef_err *err)
{
    const struct reading *reading = arg;
    struct ef_run run;
    uint32_t first_id;
    ef_rc rc;

    if (!ef_key_read_dict(key, key_len, &first_id))
        return bad_key(reading, "definition", key_len, err);
    rc = ef_run_begin(&run, first_id, value, value_len, err);
    if (rc != EF_OK) {
        ef_err_prefix(err, "store '%s': id %u", ef_db_path(reading->self->db), first_id);
        return rc;
    }
    while (rc == EF_OK && ef_run_more(&run))
        rc = next_definition(reading, &run, err);
    return rc;
}

static ef_rc
on_block(void *arg, const uint8_t *key, size_t key_len, const uint8_t *value, size_t value_len,
         struct ef_err *err)
{
    const struct reading *reading = arg;
    uint32_t series_id, part;
    int64_t bucket_ns;

    if (!ef_key_read_block(key, key_len, &series_id, &bucket_ns, &part))
        return bad_key(reading, "block", key_len, err);
    return reading->block_fn(reading->arg, bucket_ns, part, value, value_len);
}

static ef_rc
on_totals(void *arg, const uint8_t *key, size_t key_len, const uint8_t *value, size_t value_len,
          struct ef_err *err)
{
    const struct reading *reading = arg;
    struct ef_store_totals totals;
    uint32_t series_id, part;
    int64_t bucket_ns;
    ef_rc rc;

    if (!ef_key_read_totals(key, key_len, &series_id, &bucket_ns, &part))
        return bad_key(reading, "totals", key_len, err);
    rc = ef_record_read_totals(value, value_len, &totals, err);
    if (rc != EF_OK) {
        ef_err_prefix(err, "store '%s': series %u, bucket %lld", ef_db_path(reading->self->db),
                      series_id, (long long)bucket_ns);
        return rc;
    }
    return reading->totals_fn(reading->arg, bucket_ns, part, &totals);
}

static ef_rc
on_ack(void *arg, const uint8_t *key, size_t key_len, const uint8_t *value, size_t value_len,
       struct ef_err *err)
{
    const struct reading *reading = arg;
    struct ef_store_ack ack;
    ef_rc rc = ef_record_read_ack(key, key_len, value, value_len, &ack, err);

    if (rc != EF_OK) {
        ef_err_prefix(err, "store '%s'", ef_db_path(reading->self->db));
        return rc;
    }
    return reading->ack_fn(reading->arg, &ack);
}

static ef_rc
scan_prefix(struct reading *reading, enum ef_family family, const struct ef_key *prefix,
            ef_db_scan_fn fn, struct ef_err *err)
{
    struct ef_key to = ef_key_after(prefix);

    return ef_db_scan(reading->self->db, family, prefix, &to, fn, reading, err);
}

static ef_rc
rocksdb_each_version(void *self, ef_store_version_fn fn, void *arg, struct ef_err *err)
{
    struct reading reading = {.self = self, .arg = arg, .version_fn = fn};
    struct ef_key prefix = ef_key_meta(EF_META_VERSION);

    return scan_prefix(&reading, EF_FAMILY_META, &prefix, on_version, err);
}

static ef_rc
rocksdb_each_series(void *self, ef_store_series_fn fn, void *arg, struct ef_err *err)
{
    struct reading reading = {.self = self, .arg = arg, .series_fn = fn};
    struct ef_key prefix = ef_key_meta(EF_META_SERIES);

    return scan_prefix(&reading, EF_FAMILY_META, &prefix, on_series, err);
}

static ef_rc
each_definition(struct reading *reading, uint32_t version_id, char kind, struct ef_err *err)
{
    struct ef_key from = ef_key_dict(version_id, kind, 0);
    struct ef_key to = ef_key_dict(version_id, (char)(kind + 1), 0);

    return ef_db_scan(reading->self->db, EF_FAMILY_DICT, &from, &to, on_definitions, reading, err);
}

static ef_rc
rocksdb_each_function(void *self, uint32_t version_id, ef_store_function_fn fn, void *arg,
                      struct ef_err *err)
{
    struct reading reading = {.self = self, .arg = arg, .function_fn = fn};

    return each_definition(&reading, version_id, EF_DICT_FUNCTIONS, err);
}

static ef_rc
rocksdb_each_stack(void *self, uint32_t version_id, ef_store_stack_fn fn, void *arg,
                   struct ef_err *err)
{
    struct reading reading = {.self = self, .arg = arg, .stack_fn = fn};

    return each_definition(&reading, version_id, EF_DICT_STACKS, err);
}

static ef_rc
rocksdb_fold(void *arg, enum ef_tier tier, uint32_t series_id, int64_t from_ns, int64_t to_ns,
             ef_store_block_fn fn, void *fn_arg, struct ef_err *err)
{
    struct ef_rocksdb *self = arg;
    struct reading reading = {.self = self, .arg = fn_arg, .block_fn = fn};
    struct ef_key from = ef_key_block(series_id, from_ns, 0);
    struct ef_key to = ef_key_block(series_id, to_ns, 0);

    return ef_db_scan(self->db, block_family(tier), &from, &to, on_block, &reading, err);
}

static ef_rc
rocksdb_fold_totals(void *arg, enum ef_tier tier, uint32_t series_id, int64_t from_ns,
                    int64_t to_ns, ef_store_totals_fn fn, void *fn_arg, struct ef_err *err)
{
    struct ef_rocksdb *self = arg;
    struct reading reading = {.self = self, .arg = fn_arg, .totals_fn = fn};
    struct ef_key from = ef_key_totals(tier, series_id, from_ns, 0);
    struct ef_key to = ef_key_totals(tier, series_id, to_ns, 0);

    return ef_db_scan(self->db, EF_FAMILY_TOTALS, &from, &to, on_totals, &reading, err);
}

/* Bucket of the first or last totals of a series. */
static ef_rc
edge_bucket(struct ef_rocksdb *self, enum ef_tier tier, uint32_t series_id, bool last,
            int64_t *ret_bucket_ns, struct ef_err *err)
{
    struct ef_key from = ef_key_totals(tier, series_id, INT64_MIN, 0);
    struct ef_key to = ef_key_totals(tier, series_id, INT64_MAX, UINT32_MAX);
    struct ef_key found;
    uint32_t part;
    ef_rc rc;

    to = ef_key_after(&to); /* the last possible key itself is inside */
    rc = ef_db_edge(self->db, EF_FAMILY_TOTALS, &from, &to, last, &found, err);
    if (rc != EF_OK)
        return rc;
    if (!ef_key_read_totals(found.bytes, found.len, &series_id, ret_bucket_ns, &part))
        return ef_err_set(err, EF_ECORRUPT, "store '%s': totals record with a key of %zu bytes",
                          ef_db_path(self->db), found.len);
    return EF_OK;
}

static ef_rc
rocksdb_series_span(void *arg, enum ef_tier tier, uint32_t series_id, int64_t *ret_first_ns,
                    int64_t *ret_last_ns, struct ef_err *err)
{
    struct ef_rocksdb *self = arg;
    int64_t first_ns = 0, last_ns = 0;
    ef_rc rc = edge_bucket(self, tier, series_id, false, &first_ns, err);

    if (rc == EF_OK)
        rc = edge_bucket(self, tier, series_id, true, &last_ns, err);
    if (rc == EF_ENOTFOUND)
        return ef_err_set(err, rc, "series %u has no buckets", series_id);
    if (rc != EF_OK)
        return rc;
    *ret_first_ns = first_ns;
    *ret_last_ns = last_ns;
    return EF_OK;
}

static ef_rc
rocksdb_each_ack(void *self, ef_store_ack_fn fn, void *arg, struct ef_err *err)
{
    struct reading reading = {.self = self, .arg = arg, .ack_fn = fn};
    struct ef_key prefix = {.len = 0};

    return scan_prefix(&reading, EF_FAMILY_ACK, &prefix, on_ack, err);
}

static ef_rc
rocksdb_get_meta(void *arg, const char *name, struct ef_buf *out, struct ef_err *err)
{
    struct ef_rocksdb *self = arg;
    struct ef_key key = ef_key_meta_name(name);
    ef_rc rc = ef_db_get(self->db, EF_FAMILY_META, &key, out, err);

    if (rc == EF_ENOTFOUND)
        return ef_err_set(err, rc, "the store has no value '%s'", name);
    return rc;
}

const struct ef_store_ops ef_store_rocksdb_ops = {
    .name = "rocksdb",
    .open = rocksdb_open_self,
    .close = rocksdb_close_self,
    .batch_open = rocksdb_batch_open,
    .batch_free = rocksdb_batch_free,
    .put_version = rocksdb_put_version,
    .put_series = rocksdb_put_series,
    .put_functions = rocksdb_put_functions,
    .put_stacks = rocksdb_put_stacks,
    .put_block = rocksdb_put_block,
    .put_totals = rocksdb_put_totals,
    .put_ack = rocksdb_put_ack,
    .put_meta = rocksdb_put_meta,
    .commit = rocksdb_commit,
    .each_version = rocksdb_each_version,
    .each_series = rocksdb_each_series,
    .each_function = rocksdb_each_function,
    .each_stack = rocksdb_each_stack,
    .fold = rocksdb_fold,
    .fold_totals = rocksdb_fold_totals,
    .series_span = rocksdb_series_span,
    .each_ack = rocksdb_each_ack,
    .get_meta = rocksdb_get_meta,
    .expire = ef_rocksdb_expire,
    .expire_acks = ef_rocksdb_expire_acks,
    .compact = ef_rocksdb_compact,
    .get_stat = ef_rocksdb_get_stat,
};
