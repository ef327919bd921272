/*
 * Decides how a list of writes lies in memory: kind, family, key length, value length (le32 each),
 * key, value. Must not know RocksDB. One thread at a time.
 */
#include "storage/rocksdb/writes.h"

#include "storage/store_ops.h"

#define HEAD_BYTES 10 /* kind 1, family 1, two le32 */

void
ef_writes_init(struct ef_writes *writes)
{
    ef_buf_init(&writes->bytes, EF_STORE_BATCH_BYTES_MAX);
}

void
ef_writes_fini(struct ef_writes *writes)
{
    ef_buf_fini(&writes->bytes);
}

void
ef_writes_add(struct ef_writes *writes, enum ef_write_kind kind, enum ef_family family,
              const struct ef_key *key, const void *value, size_t value_len)
{
    struct ef_buf *bytes = &writes->bytes;

    if (value_len > EF_STORE_BATCH_BYTES_MAX ||
        !ef_buf_reserve(bytes, HEAD_BYTES + key->len + value_len)) {
        bytes->failed = true;
        return;
    }
    ef_buf_put_u8(bytes, (uint8_t)kind);
    ef_buf_put_u8(bytes, (uint8_t)family);
    ef_buf_put_le32(bytes, (uint32_t)key->len);
    ef_buf_put_le32(bytes, (uint32_t)value_len);
    ef_buf_append(bytes, key->bytes, key->len);
    ef_buf_append(bytes, value, value_len);
}

void
ef_writes_put(struct ef_writes *writes, enum ef_family family, const struct ef_key *key,
              const struct ef_buf *value)
{
    if (value->failed)
        writes->bytes.failed = true;
    else
        ef_writes_add(writes, EF_WRITE_PUT, family, key, value->data, value->len);
}

ef_rc
ef_writes_check(const struct ef_writes *writes, struct ef_err *err)
{
    return ef_buf_check(&writes->bytes, "batch", err);
}

bool
ef_writes_next(const struct ef_writes *writes, size_t *at, struct ef_write *ret_write)
{
    struct ef_cursor cursor;

    if (*at >= writes->bytes.len)
        return false;
    cursor = ef_cursor_of(writes->bytes.data + *at, writes->bytes.len - *at);
    ret_write->kind = (enum ef_write_kind)ef_cursor_u8(&cursor);
    ret_write->family = (enum ef_family)ef_cursor_u8(&cursor);
    ret_write->key_len = ef_cursor_le32(&cursor);
    ret_write->value_len = ef_cursor_le32(&cursor);
    ret_write->key = ef_cursor_bytes(&cursor, ret_write->key_len);
    ret_write->value = ef_cursor_bytes(&cursor, ret_write->value_len);
    EF_ASSERT(!cursor.failed); /* we wrote these bytes */
    *at = writes->bytes.len - ef_cursor_left(&cursor);
    return true;
}
