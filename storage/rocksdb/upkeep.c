/*
 * Expiry, compaction and figures of the RocksDB backend. Must not know what a block holds. Any
 * thread; expiry holds back commits while it looks for what to delete (2 seeks a series).
 */
#include "storage/rocksdb/rocksdb.h"

/* One family under expiry: how its keys look. */
struct shelf {
    enum ef_family family;
    enum ef_tier tier;
};

static struct ef_key
shelf_key(const struct shelf *shelf, uint32_t series_id, int64_t bucket_ns)
{
    if (shelf->family == EF_FAMILY_TOTALS)
        return ef_key_totals(shelf->tier, series_id, bucket_ns, 0);
    return ef_key_block(series_id, bucket_ns, 0);
}

/* Where the tier's keys end: totals of all tiers share a family. */
static struct ef_key
shelf_end(const struct shelf *shelf)
{
    struct ef_key end = ef_key_totals(shelf->tier, 0, 0, 0);

    end.len = shelf->family == EF_FAMILY_TOTALS ? 1 : 0;
    return ef_key_after(&end);
}

static ef_rc
read_shelf_key(struct ef_rocksdb *self, const struct shelf *shelf, const struct ef_key *key,
               uint32_t *ret_series_id, int64_t *ret_bucket_ns, struct ef_err *err)
{
    uint32_t part;
    bool ok = shelf->family == EF_FAMILY_TOTALS
                  ? ef_key_read_totals(key->bytes, key->len, ret_series_id, ret_bucket_ns, &part)
                  : ef_key_read_block(key->bytes, key->len, ret_series_id, ret_bucket_ns, &part);

    if (ok)
        return EF_OK;
    return ef_err_set(err, EF_ECORRUPT, "store '%s': a bucket with a key of %zu bytes",
                      ef_db_path(self->db), key->len);
}

/*
 * Adds one range delete per series that has something old; *oldest_ns becomes the oldest bucket
 * that stays. Jumps from series to series by seeks, so its time does not grow with the data.
 */
static ef_rc
find_old(struct ef_rocksdb *self, const struct shelf *shelf, int64_t before_ns,
         struct ef_writes *writes, int64_t *oldest_ns, struct ef_err *err)
{
    struct ef_key at = shelf_key(shelf, 0, INT64_MIN);
    struct ef_key end = shelf_end(shelf);
    struct ef_key found;
    ef_rc rc;

    while ((rc = ef_db_edge(self->db, shelf->family, &at, &end, false, &found, err)) == EF_OK) {
        uint32_t series_id;
        int64_t bucket_ns;

        rc = read_shelf_key(self, shelf, &found, &series_id, &bucket_ns, err);
        if (rc != EF_OK)
            return rc;
        if (bucket_ns < before_ns) {
            struct ef_key from = shelf_key(shelf, series_id, INT64_MIN);
            at = shelf_key(shelf, series_id, before_ns);
            ef_writes_add(writes, EF_WRITE_DELETE_RANGE, shelf->family, &from, at.bytes, at.len);
            continue;
        }
        if (bucket_ns < *oldest_ns)
            *oldest_ns = bucket_ns;
        if (series_id == UINT32_MAX)
            return EF_OK;
        at = shelf_key(shelf, series_id + 1, INT64_MIN);
    }
    return rc == EF_ENOTFOUND ? EF_OK : rc;
}

/* Tables are written at once, so that the deletes are in files that the hint can speak of. */
static void
hint(struct ef_rocksdb *self, const struct shelf *shelf, int64_t before_ns)
{
    struct ef_key from = shelf_key(shelf, 0, INT64_MIN);
    struct ef_key to = shelf_key(shelf, UINT32_MAX, before_ns);

    EF_IGNORE(ef_db_flush(self->db, shelf->family, NULL),
              "the deletes are in the log; the next commit meets the same trouble and tells");
    ef_db_suggest_compact(self->db, shelf->family, &from, &to);
}

/* The tier's new span, added to the writes. */
static ef_rc
narrow_span(struct ef_span *span, enum ef_tier tier, int64_t oldest_ns, struct ef_writes *writes,
            struct ef_err *err)
{
    struct ef_key key = ef_key_meta_id(EF_META_TIER, tier);
    struct ef_buf value;

    span->oldest_ns = oldest_ns;
    if (ef_span_is_none(span)) {
        *span = ef_span_none();
        ef_writes_add(writes, EF_WRITE_DELETE, EF_FAMILY_META, &key, NULL, 0);
        return ef_writes_check(writes, err);
    }
    ef_buf_init(&value, 64);
    ef_record_write_span(&value, span);
    ef_writes_put(writes, EF_FAMILY_META, &key, &value);
    ef_buf_fini(&value);
    return ef_writes_check(writes, err);
}

static ef_rc
expire_locked(struct ef_rocksdb *self, const struct shelf shelves[2], int64_t before_ns,
              bool *ret_any, struct ef_err *err)
{
    enum ef_tier tier = shelves[0].tier;
    struct ef_span span = self->spans[tier];
    int64_t oldest_ns = INT64_MAX;
    struct ef_writes writes;
    const struct ef_writes *list = &writes;
    bool any;
    ef_rc rc;

    ef_writes_init(&writes);
    rc = find_old(self, &shelves[0], before_ns, &writes, &oldest_ns, err);
    if (rc == EF_OK)
        rc = find_old(self, &shelves[1], before_ns, &writes, &oldest_ns, err);
    any = writes.bytes.len > 0;
    if (rc == EF_OK)
        rc = narrow_span(&span, tier, oldest_ns, &writes, err);
    if (rc == EF_OK && any)
        rc = ef_db_write(self->db, &list, 1, err);
    ef_writes_fini(&writes);
    if (rc != EF_OK)
        return rc;
    pthread_mutex_lock(&self->span_lock);
    self->spans[tier] = span;
    pthread_mutex_unlock(&self->span_lock);
    *ret_any = any;
    return EF_OK;
}

ef_rc
ef_rocksdb_expire(void *arg, enum ef_tier tier, int64_t before_ns, struct ef_err *err)
{
    struct ef_rocksdb *self = arg;
    const struct shelf shelves[2] = {{(enum ef_family)(EF_FAMILY_BLOCKS + (int)tier), tier},
                                     {EF_FAMILY_TOTALS, tier}};
    bool any = false;
    ef_rc rc;

    ef_db_lock(self->db);
    rc = expire_locked(self, shelves, before_ns, &any, err);
    ef_db_unlock(self->db);
    for (size_t i = 0; rc == EF_OK && any && i < EF_COUNT_OF(shelves); i++)
        hint(self, &shelves[i], before_ns);
    return rc;
}

struct old_acks {
    struct ef_writes writes;
    int64_t before_ns;
    const char *path;
};

static ef_rc
on_ack(void *arg, const uint8_t *key, size_t key_len, const uint8_t *value, size_t value_len,
       struct ef_err *err)
{
    struct old_acks *old = arg;
    struct ef_store_ack ack;
    struct ef_key ack_key;
    ef_rc rc = ef_record_read_ack(key, key_len, value, value_len, &ack, err);

    if (rc != EF_OK) {
        ef_err_prefix(err, "store '%s'", old->path);
        return rc;
    }
    if (ack.updated_ns >= old->before_ns)
        return EF_OK;
    ack_key = ef_key_ack(ack.publisher, ack.epoch);
    ef_writes_add(&old->writes, EF_WRITE_DELETE, EF_FAMILY_ACK, &ack_key, NULL, 0);
    return ef_writes_check(&old->writes, err);
}

ef_rc
ef_rocksdb_expire_acks(void *arg, int64_t before_ns, struct ef_err *err)
{
    struct ef_rocksdb *self = arg;
    struct old_acks old = {.before_ns = before_ns, .path = ef_db_path(self->db)};
    const struct ef_writes *list = &old.writes;
    struct ef_key all = {.len = 0};
    ef_rc rc;

    ef_writes_init(&old.writes);
    ef_db_lock(self->db); /* an ack that is renewed meanwhile must not be deleted */
    rc = ef_db_scan(self->db, EF_FAMILY_ACK, &all, &all, on_ack, &old, err);
    if (rc == EF_OK && old.writes.bytes.len > 0)
        rc = ef_db_write(self->db, &list, 1, err);
    ef_db_unlock(self->db);
    ef_writes_fini(&old.writes);
    return rc;
}

ef_rc
ef_rocksdb_compact(void *arg, struct ef_err *err)
{
    struct ef_rocksdb *self = arg;

    return ef_db_compact(self->db, err);
}

static uint64_t
memory_bytes(struct ef_db *db)
{
    /* The block cache is shared: any family tells its whole use. */
    uint64_t bytes = ef_db_property(db, EF_FAMILY_META, "rocksdb.block-cache-usage");

    for (int i = 0; i < EF_FAMILY_COUNT; i++) {
        bytes += ef_db_property(db, (enum ef_family)i, "rocksdb.cur-size-all-mem-tables");
        bytes += ef_db_property(db, (enum ef_family)i, "rocksdb.estimate-table-readers-mem");
    }
    return bytes;
}

void
ef_rocksdb_get_stat(void *arg, struct ef_store_stat *ret_stat)
{
    struct ef_rocksdb *self = arg;

    ret_stat->disk_bytes = ef_db_folder_bytes(self->db, NULL);
    ret_stat->definition_bytes = ef_db_family_bytes(self->db, EF_FAMILY_DICT);
    ret_stat->totals_bytes = ef_db_family_bytes(self->db, EF_FAMILY_TOTALS);
    ret_stat->memory_bytes = memory_bytes(self->db);
    pthread_mutex_lock(&self->span_lock);
    for (int tier = 0; tier < EF_TIER_COUNT; tier++) {
        const struct ef_span *span = &self->spans[tier];
        if (span->oldest_ns < ret_stat->oldest_bucket_ns)
            ret_stat->oldest_bucket_ns = span->oldest_ns;
        if (span->newest_ns > ret_stat->newest_bucket_ns)
            ret_stat->newest_bucket_ns = span->newest_ns;
    }
    pthread_mutex_unlock(&self->span_lock);
    for (int tier = 0; tier < EF_TIER_COUNT; tier++)
        ret_stat->block_bytes[tier] =
            ef_db_family_bytes(self->db, (enum ef_family)(EF_FAMILY_BLOCKS + tier));
}
