/*
 * Decides the bytes of keys and values. Must not know RocksDB, threads or files. Pure; any thread.
 */
#include "storage/rocksdb/records.h"

#include <string.h>

#define RECORD_FORMAT 1
#define SIGN_BIT (UINT64_C(1) << 63)

static void
key_u8(struct ef_key *key, uint8_t value)
{
    key->bytes[key->len++] = value;
}

static void
key_be(struct ef_key *key, uint64_t value, size_t len)
{
    for (size_t i = 0; i < len; i++)
        key->bytes[key->len + i] = (uint8_t)(value >> (8 * (len - 1 - i)));
    key->len += len;
}

/* Flipping the sign bit makes unsigned byte order equal to the order of signed numbers. */
static void
key_time(struct ef_key *key, int64_t ns)
{
    key_be(key, (uint64_t)ns ^ SIGN_BIT, 8);
}

struct ef_key
ef_key_meta(char kind)
{
    struct ef_key key = {.len = 0};

    key_u8(&key, (uint8_t)kind);
    return key;
}

struct ef_key
ef_key_meta_id(char kind, uint32_t id)
{
    struct ef_key key = ef_key_meta(kind);

    key_be(&key, id, 4);
    return key;
}

struct ef_key
ef_key_meta_name(const char *name)
{
    struct ef_key key = ef_key_meta(EF_META_NAME);
    size_t len = strlen(name);

    EF_ASSERT(len < EF_RECORD_KEY_MAX);
    memcpy(key.bytes + key.len, name, len);
    key.len += len;
    return key;
}

struct ef_key
ef_key_dict(uint32_t version_id, char kind, uint32_t first_id)
{
    struct ef_key key = {.len = 0};

    key_be(&key, version_id, 4);
    key_u8(&key, (uint8_t)kind);
    key_be(&key, first_id, 4);
    return key;
}

struct ef_key
ef_key_block(uint32_t series_id, int64_t bucket_ns, uint32_t part)
{
    struct ef_key key = {.len = 0};

    key_be(&key, series_id, 4);
    key_time(&key, bucket_ns);
    key_be(&key, part, 4);
    return key;
}

struct ef_key
ef_key_totals(enum ef_tier tier, uint32_t series_id, int64_t bucket_ns, uint32_t part)
{
    struct ef_key key = {.len = 0};

    key_u8(&key, (uint8_t)tier);
    key_be(&key, series_id, 4);
    key_time(&key, bucket_ns);
    key_be(&key, part, 4);
    return key;
}

struct ef_key
ef_key_ack(const uint8_t publisher[16], uint64_t epoch)
{
    struct ef_key key = {.len = 16};

    memcpy(key.bytes, publisher, 16);
    key_be(&key, epoch, 8);
    return key;
}

struct ef_key
ef_key_after(const struct ef_key *prefix)
{
    struct ef_key key = *prefix;

    while (key.len > 0 && key.bytes[key.len - 1] == 0xff)
        key.len--;
    if (key.len > 0)
        key.bytes[key.len - 1]++;
    return key;
}

static int64_t
read_time(struct ef_cursor *cursor)
{
    return (int64_t)(ef_cursor_be64(cursor) ^ SIGN_BIT);
}

bool
ef_key_read_id(const uint8_t *key, size_t len, uint32_t *ret_id)
{
    struct ef_cursor cursor = ef_cursor_of(key, len);

    ef_cursor_u8(&cursor);
    if (len != 5)
        return false;
    *ret_id = ef_cursor_be32(&cursor);
    return true;
}

bool
ef_key_read_dict(const uint8_t *key, size_t len, uint32_t *ret_first_id)
{
    struct ef_cursor cursor = ef_cursor_of(key, len);

    ef_cursor_bytes(&cursor, 5);
    if (len != 9)
        return false;
    *ret_first_id = ef_cursor_be32(&cursor);
    return true;
}

bool
ef_key_read_block(const uint8_t *key, size_t len, uint32_t *ret_series_id, int64_t *ret_bucket_ns,
                  uint32_t *ret_part)
{
    struct ef_cursor cursor = ef_cursor_of(key, len);

    if (len != 16)
        return false;
    *ret_series_id = ef_cursor_be32(&cursor);
    *ret_bucket_ns = read_time(&cursor);
    *ret_part = ef_cursor_be32(&cursor);
    return true;
}

bool
ef_key_read_totals(const uint8_t *key, size_t len, uint32_t *ret_series_id, int64_t *ret_bucket_ns,
                   uint32_t *ret_part)
{
    return len == 17 && ef_key_read_block(key + 1, len - 1, ret_series_id, ret_bucket_ns, ret_part);
}

static void
write_text(struct ef_buf *out, const char *text)
{
    ef_buf_append(out, text, strlen(text) + 1);
}

/* Borrows the text, its NUL included; NULL and failed when it does not end. */
static const char *
read_text(struct ef_cursor *cursor)
{
    const uint8_t *end = NULL;
    size_t left = ef_cursor_left(cursor);

    if (left > 0)
        end = memchr(cursor->at, 0, left);
    if (cursor->failed || end == NULL) {
        cursor->failed = true;
        return NULL;
    }
    return (const char *)ef_cursor_bytes(cursor, (size_t)(end - cursor->at) + 1);
}

static ef_rc
begin_record(struct ef_cursor *cursor, const void *data, size_t len, const char *what,
             struct ef_err *err)
{
    uint8_t format;

    *cursor = ef_cursor_of(data, len);
    format = ef_cursor_u8(cursor);
    if (cursor->failed)
        return ef_err_set(err, EF_ECORRUPT, "%s record of 0 bytes", what);
    if (format != RECORD_FORMAT)
        return ef_err_set(err, EF_ECORRUPT, "%s record of format %u, expected %u", what, format,
                          RECORD_FORMAT);
    return EF_OK;
}

static ef_rc
end_record(const struct ef_cursor *cursor, const char *what, struct ef_err *err)
{
    if (cursor->failed)
        return ef_err_set(err, EF_ECORRUPT, "%s record is cut short or damaged", what);
    if (ef_cursor_left(cursor) != 0)
        return ef_err_set(err, EF_ECORRUPT, "%s record with %zu bytes too many", what,
                          ef_cursor_left(cursor));
    return EF_OK;
}

/* A varint that must fit in 32 bits. */
static uint32_t
read_u32(struct ef_cursor *cursor)
{
    uint64_t value = ef_cursor_varint(cursor);

    if (value > UINT32_MAX)
        cursor->failed = true;
    return (uint32_t)value;
}

void
ef_record_write_version(struct ef_buf *out, const struct ef_store_version *version)
{
    ef_buf_put_u8(out, RECORD_FORMAT);
    ef_buf_put_zigzag(out, version->created_ns);
    write_text(out, version->account);
    write_text(out, version->worker);
    write_text(out, version->version);
}

ef_rc
ef_record_read_version(const void *data, size_t len, struct ef_store_version *ret_version,
                       struct ef_err *err)
{
    struct ef_store_version version = {0};
    struct ef_cursor cursor;
    ef_rc rc = begin_record(&cursor, data, len, "version", err);

    if (rc != EF_OK)
        return rc;
    version.created_ns = ef_cursor_zigzag(&cursor);
    version.account = read_text(&cursor);
    version.worker = read_text(&cursor);
    version.version = read_text(&cursor);
    rc = end_record(&cursor, "version", err);
    if (rc == EF_OK)
        *ret_version = version;
    return rc;
}

void
ef_record_write_series(struct ef_buf *out, const struct ef_store_series *series)
{
    ef_buf_put_u8(out, RECORD_FORMAT);
    ef_buf_put_varint(out, series->version_id);
    ef_buf_put_u8(out, series->profile_type);
    write_text(out, series->region);
}

ef_rc
ef_record_read_series(const void *data, size_t len, struct ef_store_series *ret_series,
                      struct ef_err *err)
{
    struct ef_store_series series = {0};
    struct ef_cursor cursor;
    ef_rc rc = begin_record(&cursor, data, len, "series", err);

    if (rc != EF_OK)
        return rc;
    series.version_id = read_u32(&cursor);
    series.profile_type = ef_cursor_u8(&cursor);
    series.region = read_text(&cursor);
    rc = end_record(&cursor, "series", err);
    if (rc == EF_OK)
        *ret_series = series;
    return rc;
}

void
ef_record_write_totals(struct ef_buf *out, const struct ef_store_totals *totals)
{
    ef_buf_put_u8(out, RECORD_FORMAT);
    ef_buf_put_varint(out, totals->samples);
    ef_buf_put_zigzag(out, totals->value);
    ef_buf_put_zigzag(out, totals->value_weighted);
    ef_buf_put_varint(out, totals->covered_ns);
    ef_buf_put_varint(out, totals->expected_ns);
    ef_buf_put_varint(out, totals->bursts);
    ef_buf_put_varint(out, totals->snapshots);
    ef_buf_put_varint(out, totals->squares);
    ef_buf_put_varint(out, totals->hot_samples);
    ef_buf_put_varint(out, totals->cpu_ns);
    ef_buf_put_varint(out, totals->hot_cpu_ns);
    ef_buf_put_varint(out, totals->instances);
    ef_buf_put_varint(out, totals->heap_used_bytes_max);
    ef_buf_put_varint(out, totals->pause_ns_max);
}

ef_rc
ef_record_read_totals(const void *data, size_t len, struct ef_store_totals *ret_totals,
                      struct ef_err *err)
{
    struct ef_store_totals totals = {0};
    struct ef_cursor cursor;
    ef_rc rc = begin_record(&cursor, data, len, "totals", err);

    if (rc != EF_OK)
        return rc;
    totals.samples = ef_cursor_varint(&cursor);
    totals.value = ef_cursor_zigzag(&cursor);
    totals.value_weighted = ef_cursor_zigzag(&cursor);
    totals.covered_ns = ef_cursor_varint(&cursor);
    totals.expected_ns = ef_cursor_varint(&cursor);
    totals.bursts = ef_cursor_varint(&cursor);
    totals.snapshots = ef_cursor_varint(&cursor);
    totals.squares = ef_cursor_varint(&cursor);
    totals.hot_samples = ef_cursor_varint(&cursor);
    totals.cpu_ns = ef_cursor_varint(&cursor);
    totals.hot_cpu_ns = ef_cursor_varint(&cursor);
    totals.instances = ef_cursor_varint(&cursor);
    totals.heap_used_bytes_max = ef_cursor_varint(&cursor);
    totals.pause_ns_max = ef_cursor_varint(&cursor);
    rc = end_record(&cursor, "totals", err);
    if (rc == EF_OK)
        *ret_totals = totals;
    return rc;
}

void
ef_record_write_ack(struct ef_buf *out, const struct ef_store_ack *ack)
{
    uint64_t last = ack->contiguous;

    ef_buf_put_u8(out, RECORD_FORMAT);
    ef_buf_put_varint(out, ack->contiguous);
    ef_buf_put_varint(out, ack->above_count);
    for (uint32_t i = 0; i < ack->above_count; i++) {
        ef_buf_put_varint(out, ack->above[i] - last);
        last = ack->above[i];
    }
    ef_buf_put_varint(out, ack->fragments_stored);
    ef_buf_put_varint(out, ack->samples_stored);
    ef_buf_put_varint(out, ack->fragments_lost);
    ef_buf_put_varint(out, ack->samples_lost);
    ef_buf_put_varint(out, ack->batches_duplicate);
    ef_buf_put_varint(out, ack->samples_duplicate);
    ef_buf_put_varint(out, ack->samples_late);
    ef_buf_put_zigzag(out, ack->updated_ns);
    write_text(out, ack->name);
}

static void
read_above(struct ef_cursor *cursor, struct ef_store_ack *ack)
{
    uint64_t last = ack->contiguous;

    ack->above_count = read_u32(cursor);
    if (ack->above_count > EF_ACK_ABOVE_MAX) {
        cursor->failed = true;
        ack->above_count = 0;
    }
    for (uint32_t i = 0; i < ack->above_count; i++) {
        uint64_t delta = ef_cursor_varint(cursor);
        if (delta == 0 || delta > UINT64_MAX - last)
            cursor->failed = true;
        last += delta;
        ack->above[i] = last;
    }
}

ef_rc
ef_record_read_ack(const void *key, size_t key_len, const void *data, size_t len,
                   struct ef_store_ack *ret_ack, struct ef_err *err)
{
    struct ef_cursor cursor = ef_cursor_of(key, key_len);
    const char *name;
    ef_rc rc;

    if (key_len != 24)
        return ef_err_set(err, EF_ECORRUPT, "ack record with a key of %zu bytes", key_len);
    *ret_ack = (struct ef_store_ack){0};
    memcpy(ret_ack->publisher, ef_cursor_bytes(&cursor, 16), 16);
    ret_ack->epoch = ef_cursor_be64(&cursor);
    rc = begin_record(&cursor, data, len, "ack", err);
    if (rc != EF_OK)
        return rc;
    ret_ack->contiguous = ef_cursor_varint(&cursor);
    read_above(&cursor, ret_ack);
    ret_ack->fragments_stored = ef_cursor_varint(&cursor);
    ret_ack->samples_stored = ef_cursor_varint(&cursor);
    ret_ack->fragments_lost = ef_cursor_varint(&cursor);
    ret_ack->samples_lost = ef_cursor_varint(&cursor);
    ret_ack->batches_duplicate = ef_cursor_varint(&cursor);
    ret_ack->samples_duplicate = ef_cursor_varint(&cursor);
    ret_ack->samples_late = ef_cursor_varint(&cursor);
    ret_ack->updated_ns = ef_cursor_zigzag(&cursor);
    name = read_text(&cursor);
    if (name != NULL && strlen(name) < sizeof(ret_ack->name))
        memcpy(ret_ack->name, name, strlen(name) + 1);
    else
        cursor.failed = true;
    return end_record(&cursor, "ack", err);
}

void
ef_record_write_span(struct ef_buf *out, const struct ef_span *span)
{
    ef_buf_put_u8(out, RECORD_FORMAT);
    ef_buf_put_zigzag(out, span->oldest_ns);
    ef_buf_put_zigzag(out, span->newest_ns);
}

ef_rc
ef_record_read_span(const void *data, size_t len, struct ef_span *ret_span, struct ef_err *err)
{
    struct ef_span span;
    struct ef_cursor cursor;
    ef_rc rc = begin_record(&cursor, data, len, "tier", err);

    if (rc != EF_OK)
        return rc;
    span.oldest_ns = ef_cursor_zigzag(&cursor);
    span.newest_ns = ef_cursor_zigzag(&cursor);
    rc = end_record(&cursor, "tier", err);
    if (rc == EF_OK)
        *ret_span = span;
    return rc;
}

void
ef_record_begin_run(struct ef_buf *out)
{
    ef_buf_put_u8(out, RECORD_FORMAT);
}

void
ef_record_write_function(struct ef_buf *out, uint32_t last_id,
                         const struct ef_store_function *function)
{
    ef_buf_put_varint(out, function->id - last_id);
    ef_buf_put_le64(out, function->hash);
    ef_buf_put_varint(out, function->line);
    write_text(out, function->name);
    write_text(out, function->file);
}

void
ef_record_write_stack(struct ef_buf *out, uint32_t last_id, const struct ef_store_stack *stack)
{
    ef_buf_put_varint(out, stack->id - last_id);
    ef_buf_put_le64(out, stack->hash);
    ef_buf_put_varint(out, stack->id - stack->parent);
    ef_buf_put_varint(out, stack->function);
    ef_buf_put_varint(out, stack->line);
}

ef_rc
ef_run_begin(struct ef_run *run, uint32_t first_id, const void *data, size_t len,
             struct ef_err *err)
{
    run->last_id = first_id;
    run->first = true;
    return begin_record(&run->cursor, data, len, "definition", err);
}

bool
ef_run_more(const struct ef_run *run)
{
    return ef_cursor_left(&run->cursor) > 0;
}

/* The id of the next record: only the first may repeat the id that is in the key. */
static uint32_t
read_run_id(struct ef_run *run)
{
    uint64_t delta = ef_cursor_varint(&run->cursor);

    if ((delta == 0) != run->first || delta > UINT32_MAX - run->last_id)
        run->cursor.failed = true;
    run->first = false;
    run->last_id += (uint32_t)delta;
    return run->last_id;
}

ef_rc
ef_run_function(struct ef_run *run, struct ef_store_function *ret_function, struct ef_err *err)
{
    struct ef_store_function function;

    function.id = read_run_id(run);
    function.hash = ef_cursor_le64(&run->cursor);
    function.line = read_u32(&run->cursor);
    function.name = read_text(&run->cursor);
    function.file = read_text(&run->cursor);
    if (run->cursor.failed)
        return ef_err_set(err, EF_ECORRUPT, "function record is cut short or damaged");
    *ret_function = function;
    return EF_OK;
}

ef_rc
ef_run_stack(struct ef_run *run, struct ef_store_stack *ret_stack, struct ef_err *err)
{
    struct ef_store_stack stack;
    uint32_t up;

    stack.id = read_run_id(run);
    stack.hash = ef_cursor_le64(&run->cursor);
    up = read_u32(&run->cursor);
    stack.function = read_u32(&run->cursor);
    stack.line = read_u32(&run->cursor);
    if (run->cursor.failed || up == 0 || up > stack.id)
        return ef_err_set(err, EF_ECORRUPT, "stack record is cut short or damaged");
    stack.parent = stack.id - up;
    *ret_stack = stack;
    return EF_OK;
}
