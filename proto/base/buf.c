/*
 * Decides growth (doubling, up to the maximum) and the byte forms. Any thread, one at a time per
 * buffer.
 */
#include "proto/base/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void
ef_buf_init(struct ef_buf *buf, size_t bytes_max)
{
    *buf = (struct ef_buf){.bytes_max = bytes_max};
}

void
ef_buf_fini(struct ef_buf *buf)
{
    free(buf->data);
    *buf = (struct ef_buf){.bytes_max = buf->bytes_max};
}

void
ef_buf_clear(struct ef_buf *buf)
{
    buf->len = 0;
    buf->failed = false;
}

bool
ef_buf_reserve(struct ef_buf *buf, size_t more)
{
    size_t cap = buf->cap;
    uint8_t *data;

    if (more <= buf->cap - buf->len)
        return true;
    if (more > buf->bytes_max - buf->len) {
        buf->failed = true;
        return false;
    }
    while (cap - buf->len < more)
        cap = cap < 64 ? 64 : cap * 2;
    if (cap > buf->bytes_max)
        cap = buf->bytes_max;
    data = realloc(buf->data, cap);
    if (data == NULL) {
        buf->failed = true;
        return false;
    }
    buf->data = data;
    buf->cap = cap;
    return true;
}

bool
ef_buf_append(struct ef_buf *buf, const void *data, size_t len)
{
    if (!ef_buf_reserve(buf, len))
        return false;
    if (len > 0)
        memcpy(buf->data + buf->len, data, len);
    buf->len += len;
    return true;
}

bool
ef_buf_append_str(struct ef_buf *buf, const char *text)
{
    return ef_buf_append(buf, text, strlen(text));
}

bool
ef_buf_printf(struct ef_buf *buf, const char *fmt, ...)
{
    va_list args, again;
    int len;
    bool ok;

    va_start(args, fmt);
    va_copy(again, args);
    len = vsnprintf(NULL, 0, fmt, args);
    va_end(args);
    ok = len >= 0 && ef_buf_reserve(buf, (size_t)len + 1);
    if (ok) {
        vsnprintf((char *)buf->data + buf->len, (size_t)len + 1, fmt, again);
        buf->len += (size_t)len;
    }
    va_end(again);
    return ok;
}

bool
ef_buf_put_u8(struct ef_buf *buf, uint8_t value)
{
    return ef_buf_append(buf, &value, 1);
}

bool
ef_buf_put_varint(struct ef_buf *buf, uint64_t value)
{
    uint8_t bytes[10];
    size_t len = 0;

    do {
        bytes[len] = (uint8_t)(value & 0x7f);
        value >>= 7;
        if (value != 0)
            bytes[len] |= 0x80;
        len++;
    } while (value != 0);
    return ef_buf_append(buf, bytes, len);
}

bool
ef_buf_put_zigzag(struct ef_buf *buf, int64_t value)
{
    return ef_buf_put_varint(buf, ((uint64_t)value << 1) ^ (uint64_t)(value >> 63));
}

void
ef_put_le(uint8_t *bytes, uint64_t value, size_t len)
{
    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(value >> (8 * i));
}

uint64_t
ef_get_le(const uint8_t *bytes, size_t len)
{
    uint64_t value = 0;

    for (size_t i = 0; i < len; i++)
        value |= (uint64_t)bytes[i] << (8 * i);
    return value;
}

static void
store_be(uint8_t *bytes, uint64_t value, size_t len)
{
    for (size_t i = 0; i < len; i++)
        bytes[len - 1 - i] = (uint8_t)(value >> (8 * i));
}

bool
ef_buf_put_le32(struct ef_buf *buf, uint32_t value)
{
    uint8_t bytes[4];

    ef_put_le(bytes, value, 4);
    return ef_buf_append(buf, bytes, 4);
}

bool
ef_buf_put_le64(struct ef_buf *buf, uint64_t value)
{
    uint8_t bytes[8];

    ef_put_le(bytes, value, 8);
    return ef_buf_append(buf, bytes, 8);
}

bool
ef_buf_put_be32(struct ef_buf *buf, uint32_t value)
{
    uint8_t bytes[4];

    store_be(bytes, value, 4);
    return ef_buf_append(buf, bytes, 4);
}

bool
ef_buf_put_be64(struct ef_buf *buf, uint64_t value)
{
    uint8_t bytes[8];

    store_be(bytes, value, 8);
    return ef_buf_append(buf, bytes, 8);
}

uint8_t *
ef_buf_take(struct ef_buf *buf, size_t *ret_len)
{
    uint8_t *data = buf->data;

    *ret_len = buf->len;
    buf->data = NULL;
    buf->len = buf->cap = 0;
    return data;
}

ef_rc
ef_buf_check(const struct ef_buf *buf, const char *what, struct ef_err *err)
{
    if (!buf->failed)
        return EF_OK;
    return ef_err_set(err, EF_ELIMIT, "%s is larger than its limit of %zu bytes, or memory ran out",
                      what, buf->bytes_max);
}

const uint8_t *
ef_cursor_bytes(struct ef_cursor *cursor, size_t len)
{
    const uint8_t *at = cursor->at;

    if (cursor->failed || len > ef_cursor_left(cursor)) {
        cursor->failed = true;
        cursor->at = cursor->end;
        return NULL;
    }
    cursor->at += len;
    return at;
}

uint8_t
ef_cursor_u8(struct ef_cursor *cursor)
{
    const uint8_t *at = ef_cursor_bytes(cursor, 1);

    return at != NULL ? *at : 0;
}

uint64_t
ef_cursor_varint_slow(struct ef_cursor *cursor)
{
    uint64_t value = 0;

    for (unsigned shift = 0; shift < 64; shift += 7) {
        const uint8_t *at = ef_cursor_bytes(cursor, 1);
        if (at == NULL)
            return 0;
        if (shift == 63 && *at > 1)
            break;
        value |= (uint64_t)(*at & 0x7f) << shift;
        if (*at < 0x80)
            return value;
    }
    cursor->failed = true;
    cursor->at = cursor->end;
    return 0;
}

int64_t
ef_cursor_zigzag(struct ef_cursor *cursor)
{
    uint64_t value = ef_cursor_varint(cursor);

    return (int64_t)(value >> 1) ^ -(int64_t)(value & 1);
}

static uint64_t
load(struct ef_cursor *cursor, size_t len, bool big)
{
    const uint8_t *at = ef_cursor_bytes(cursor, len);
    uint64_t value = 0;

    for (size_t i = 0; at != NULL && i < len; i++)
        value |= (uint64_t)at[i] << (8 * (big ? len - 1 - i : i));
    return value;
}

uint32_t
ef_cursor_le32(struct ef_cursor *cursor)
{
    return (uint32_t)load(cursor, 4, false);
}

uint64_t
ef_cursor_le64(struct ef_cursor *cursor)
{
    return load(cursor, 8, false);
}

uint32_t
ef_cursor_be32(struct ef_cursor *cursor)
{
    return (uint32_t)load(cursor, 4, true);
}

uint64_t
ef_cursor_be64(struct ef_cursor *cursor)
{
    return load(cursor, 8, true);
}
