/*
 * A growing byte buffer with a maximum given at birth, and a reader that never runs past its end.
 *
 * Invariants: len <= cap <= bytes_max; data is NULL only while cap is 0. A failed append leaves the
 * buffer as it was and sets `failed`, which stays set: a writer may append many times and check
 * once. Not thread-safe.
 */
#ifndef PROTO_BASE_BUF_H
#define PROTO_BASE_BUF_H

#include "proto/base/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ef_buf {
    uint8_t *data;
    size_t len;
    size_t cap;
    size_t bytes_max;
    bool failed; /* An append did not fit or memory ran out. */
};

void ef_buf_init(struct ef_buf *buf, size_t bytes_max);
void ef_buf_fini(struct ef_buf *buf);
void ef_buf_clear(struct ef_buf *buf); /* len 0, failed false; keeps the memory */
bool ef_buf_reserve(struct ef_buf *buf, size_t more);
bool ef_buf_append(struct ef_buf *buf, const void *data, size_t len);
bool ef_buf_append_str(struct ef_buf *buf, const char *text);
bool ef_buf_printf(struct ef_buf *buf, const char *fmt, ...) EF_PRINTF(2, 3);
bool ef_buf_put_u8(struct ef_buf *buf, uint8_t value);
bool ef_buf_put_varint(struct ef_buf *buf, uint64_t value); /* LEB128, 1 to 10 bytes */
bool ef_buf_put_zigzag(struct ef_buf *buf, int64_t value);
bool ef_buf_put_le32(struct ef_buf *buf, uint32_t value);
bool ef_buf_put_le64(struct ef_buf *buf, uint64_t value);
bool ef_buf_put_be32(struct ef_buf *buf, uint32_t value);
bool ef_buf_put_be64(struct ef_buf *buf, uint64_t value);
/* Gives the bytes to the caller (free()); the buffer is empty afterwards. */
uint8_t *ef_buf_take(struct ef_buf *buf, size_t *ret_len);
/* EF_OK, or EF_ENOMEM / EF_ELIMIT with text when an append failed. `what` names the content. */
EF_MUST_USE ef_rc ef_buf_check(const struct ef_buf *buf, const char *what, struct ef_err *err);

/* Little-endian numbers in place; len is 1 to 8. */
void ef_put_le(uint8_t *bytes, uint64_t value, size_t len);
uint64_t ef_get_le(const uint8_t *bytes, size_t len);

/* Reader: after the first read that does not fit, `failed` is set and every read gives 0. */
struct ef_cursor {
    const uint8_t *at;
    const uint8_t *end;
    bool failed;
};

static inline struct ef_cursor
ef_cursor_of(const void *data, size_t len)
{
    const uint8_t *at = (const uint8_t *)data;

    return (struct ef_cursor){at, len > 0 ? at + len : at, false};
}

static inline size_t
ef_cursor_left(const struct ef_cursor *cursor)
{
    return (size_t)(cursor->end - cursor->at);
}

uint8_t ef_cursor_u8(struct ef_cursor *cursor);
uint64_t ef_cursor_varint_slow(struct ef_cursor *cursor);
int64_t ef_cursor_zigzag(struct ef_cursor *cursor);
uint32_t ef_cursor_le32(struct ef_cursor *cursor);
uint64_t ef_cursor_le64(struct ef_cursor *cursor);
uint32_t ef_cursor_be32(struct ef_cursor *cursor);
uint64_t ef_cursor_be64(struct ef_cursor *cursor);
/* Borrows len bytes of the input; NULL (and failed) when fewer are left. */
const uint8_t *ef_cursor_bytes(struct ef_cursor *cursor, size_t len);

/* Single-byte values are the common case of our blocks, so they are read without a call. */
static inline uint64_t
ef_cursor_varint(struct ef_cursor *cursor)
{
    if (cursor->at < cursor->end && *cursor->at < 0x80)
        return *cursor->at++;
    return ef_cursor_varint_slow(cursor);
}

#endif
