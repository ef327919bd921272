/*
 * Decides the bytes of a block. Must not know where blocks are kept. Pure; any thread.
 *
 * Decoding is the hot loop of every query (24 h of one series are 8640 blocks), so eight one-byte
 * numbers are taken at a time where a 64-bit word shows that no continuation bit is set.
 */
#include "storage/block.h"

#include <string.h>

#define BLOCK_FORMAT 1
#define FLAG_VALUES 0x01
#define LANES 8          /* numbers looked at together: the bytes of a uint64_t */
#define VARINT32_BYTES 5 /* longest varint of a 32-bit number */
#define EACH_BYTE(b) (UINT64_C(0x0101010101010101) * (b))

/* True when value is not what the interval alone would give, so a value column is needed. */
static bool
needs_value(const struct ef_block_pair *pair, uint64_t interval)
{
    int64_t value;

    return __builtin_mul_overflow(pair->count, interval, &value) || value != pair->value;
}

static bool
section_has_values(const struct ef_block_section *section)
{
    for (size_t i = 0; i < section->pair_count; i++) {
        if (needs_value(&section->pairs[i], section->interval))
            return true;
    }
    return false;
}

static uint64_t
zigzag(int64_t value)
{
    return ((uint64_t)value << 1) ^ (uint64_t)(value >> 63);
}

static size_t
varint_bytes(uint64_t value)
{
    return (size_t)(63 - __builtin_clzll(value | 1)) / 7 + 1;
}

static uint8_t *
write_varint(uint8_t *at, uint64_t value)
{
    while (value >= 0x80) {
        *at++ = (uint8_t)(value | 0x80);
        value >>= 7;
    }
    *at++ = (uint8_t)value;
    return at;
}

static ef_rc
check_section(const struct ef_block_section *section, struct ef_err *err)
{
    uint32_t last = 0;

    if (section->pair_count > EF_BLOCK_PAIRS_MAX)
        return ef_err_set(err, EF_EINVAL, "a block section of %zu pairs; at most %u",
                          section->pair_count, EF_BLOCK_PAIRS_MAX);
    for (size_t i = 0; i < section->pair_count; i++) {
        if (section->pairs[i].stack <= last)
            return ef_err_set(err, EF_EINVAL, "block pair %zu: stack %u after stack %u", i,
                              section->pairs[i].stack, last);
        last = section->pairs[i].stack;
    }
    return EF_OK;
}

static size_t
section_bytes(const struct ef_block_section *section, bool has_values)
{
    size_t bytes = 2 + varint_bytes(section->weight_milli) + varint_bytes(section->interval) +
                   varint_bytes(section->pair_count);
    uint32_t last = 0;

    for (size_t i = 0; i < section->pair_count; i++) {
        const struct ef_block_pair *pair = &section->pairs[i];
        bytes += varint_bytes(pair->stack - last) + varint_bytes(pair->count);
        if (has_values)
            bytes += varint_bytes(zigzag(pair->value));
        last = pair->stack;
    }
    return bytes;
}

static uint8_t *
write_section(uint8_t *at, const struct ef_block_section *section, bool has_values)
{
    uint32_t last = 0;

    *at++ = section->stratum;
    *at++ = has_values ? FLAG_VALUES : 0;
    at = write_varint(at, section->weight_milli);
    at = write_varint(at, section->interval);
    at = write_varint(at, section->pair_count);
    for (size_t i = 0; i < section->pair_count; i++) {
        at = write_varint(at, section->pairs[i].stack - last);
        last = section->pairs[i].stack;
    }
    for (size_t i = 0; i < section->pair_count; i++)
        at = write_varint(at, section->pairs[i].count);
    for (size_t i = 0; has_values && i < section->pair_count; i++)
        at = write_varint(at, zigzag(section->pairs[i].value));
    return at;
}

/* Appends one section; the exact size is reserved first, so `out` grows at most once. */
static ef_rc
append_section(struct ef_buf *out, const struct ef_block_section *section, struct ef_err *err)
{
    bool has_values = section_has_values(section);
    size_t bytes = section_bytes(section, has_values);
    uint8_t *end;

    if (!ef_buf_reserve(out, bytes))
        return ef_buf_check(out, "block", err);
    end = write_section(out->data + out->len, section, has_values);
    EF_ASSERT(end == out->data + out->len + bytes);
    out->len += bytes;
    return EF_OK;
}

ef_rc
ef_block_encode(const struct ef_block_section *sections, size_t section_count, struct ef_buf *out,
                struct ef_err *err)
{
    size_t start = out->len;
    ef_rc rc = EF_OK;

    if (section_count > EF_BLOCK_SECTIONS_MAX)
        return ef_err_set(err, EF_EINVAL, "a block of %zu sections; at most %u", section_count,
                          EF_BLOCK_SECTIONS_MAX);
    for (size_t i = 0; rc == EF_OK && i < section_count; i++)
        rc = check_section(&sections[i], err);
    if (rc != EF_OK)
        return rc;
    ef_buf_put_u8(out, BLOCK_FORMAT);
    ef_buf_put_varint(out, section_count);
    rc = ef_buf_check(out, "block", err);
    for (size_t i = 0; rc == EF_OK && i < section_count; i++)
        rc = append_section(out, &sections[i], err);
    if (rc != EF_OK)
        out->len = start;
    return rc;
}

ef_rc
ef_block_begin(struct ef_block_reader *reader, const void *data, size_t len, struct ef_err *err)
{
    uint8_t format;

    *reader = (struct ef_block_reader){.cursor = ef_cursor_of(data, len)};
    format = ef_cursor_u8(&reader->cursor);
    if (reader->cursor.failed)
        return ef_err_set(err, EF_ECORRUPT, "block of 0 bytes");
    if (format != BLOCK_FORMAT)
        return ef_err_set(err, EF_ECORRUPT, "block of format %u, expected %u", format,
                          BLOCK_FORMAT);
    reader->sections_left = ef_cursor_varint(&reader->cursor);
    if (reader->cursor.failed || reader->sections_left > EF_BLOCK_SECTIONS_MAX) {
        reader->sections_left = 0;
        return ef_err_set(err, EF_ECORRUPT, "block with a damaged section count");
    }
    return EF_OK;
}

/* The check of pair_count against the bytes left bounds what a caller allocates for damaged input.
 */
static ef_rc
read_header(struct ef_block_reader *reader, struct ef_block_section_header *ret_header,
            struct ef_err *err)
{
    struct ef_cursor *cursor = &reader->cursor;
    struct ef_block_section_header header = {0};
    uint64_t pair_count;
    uint8_t flags;

    header.stratum = ef_cursor_u8(cursor);
    flags = ef_cursor_u8(cursor);
    header.weight_milli = ef_cursor_varint(cursor);
    header.interval = ef_cursor_varint(cursor);
    pair_count = ef_cursor_varint(cursor);
    header.has_values = (flags & FLAG_VALUES) != 0;
    if (cursor->failed)
        return ef_err_set(err, EF_ECORRUPT, "block ends inside a section header");
    if ((flags & ~FLAG_VALUES) != 0)
        return ef_err_set(err, EF_ECORRUPT, "block section with unknown flags 0x%02x", flags);
    if (pair_count > EF_BLOCK_PAIRS_MAX ||
        pair_count * (header.has_values ? 3 : 2) > ef_cursor_left(cursor))
        return ef_err_set(err, EF_ECORRUPT, "block section says %llu pairs, but %zu bytes are left",
                          (unsigned long long)pair_count, ef_cursor_left(cursor));
    header.pair_count = (size_t)pair_count;
    *ret_header = header;
    return EF_OK;
}

bool
ef_block_next(struct ef_block_reader *reader, struct ef_block_section_header *ret_header,
              ef_rc *ret_rc, struct ef_err *err)
{
    *ret_rc = EF_OK;
    if (reader->sections_left == 0) {
        if (ef_cursor_left(&reader->cursor) != 0)
            *ret_rc = ef_err_set(err, EF_ECORRUPT, "block with %zu bytes after its last section",
                                 ef_cursor_left(&reader->cursor));
        return false;
    }
    *ret_rc = read_header(reader, ret_header, err);
    if (*ret_rc != EF_OK)
        return false;
    reader->sections_left--;
    return true;
}

/* True when the next LANES numbers are one byte each; *ret_word are those bytes. */
static inline bool
one_byte_lanes(const uint8_t *at, uint64_t *ret_word)
{
    memcpy(ret_word, at, sizeof(*ret_word));
    return (*ret_word & EACH_BYTE(0x80)) == 0;
}

static inline bool
has_zero_byte(uint64_t word)
{
    return ((word - EACH_BYTE(1)) & ~word & EACH_BYTE(0x80)) != 0;
}

/* A varint of at most 32 bits whose VARINT32_BYTES bytes may all be read; UINT64_MAX if longer. */
static inline uint64_t
varint32_unchecked(const uint8_t **at)
{
    const uint8_t *p = *at;
    uint64_t value = p[0] & 0x7f;
    unsigned i = 0;

    while (p[i] >= 0x80) {
        if (++i == VARINT32_BYTES)
            return UINT64_MAX;
        value |= (uint64_t)(p[i] & 0x7f) << (7 * i);
    }
    *at = p + i + 1;
    return value;
}

/* The id column. False when an id does not ascend or leaves 32 bits, or the bytes end. */
static bool
read_ids(struct ef_cursor *cursor, struct ef_block_pair *pairs, size_t count)
{
    const uint8_t *at = cursor->at;
    uint64_t id = 0;
    uint64_t word;
    size_t i = 0;

    /* Sums of at most LANES deltas below 2^35 stay far from wrapping between the checks. */
    while (count - i >= LANES && (size_t)(cursor->end - at) >= LANES * VARINT32_BYTES) {
        bool ok = true;
        if (one_byte_lanes(at, &word)) {
            ok = !has_zero_byte(word);
            for (size_t k = 0; k < LANES; k++) {
                id += at[k];
                pairs[i + k].stack = (uint32_t)id;
            }
            at += LANES;
        } else {
            for (size_t k = 0; k < LANES; k++) {
                uint64_t delta = varint32_unchecked(&at);
                ok &= delta != 0 && delta <= UINT32_MAX;
                id += delta;
                pairs[i + k].stack = (uint32_t)id;
            }
        }
        if (!ok || id > UINT32_MAX)
            return false;
        i += LANES;
    }
    cursor->at = at;
    for (; i < count; i++) {
        uint64_t delta = ef_cursor_varint(cursor);
        if (delta == 0 || delta > UINT32_MAX - id)
            return false;
        id += delta;
        pairs[i].stack = (uint32_t)id;
    }
    return !cursor->failed;
}

/*
 * The count column; value = count × interval, unless a value column follows (interval_of_value is 0
 * then, so that nothing can overflow). False when the bytes end or a value leaves int64.
 */
static bool
read_counts(struct ef_cursor *cursor, uint64_t interval_of_value, struct ef_block_pair *pairs,
            size_t count)
{
    bool small = interval_of_value <= INT64_MAX / 0x7f; /* one-byte counts cannot overflow */
    uint64_t word;
    size_t i = 0;

    while (i < count) {
        if (small && count - i >= LANES && ef_cursor_left(cursor) >= LANES &&
            one_byte_lanes(cursor->at, &word)) {
            for (size_t k = 0; k < LANES; k++) {
                pairs[i + k].count = cursor->at[k];
                pairs[i + k].value = (int64_t)(cursor->at[k] * interval_of_value);
            }
            cursor->at += LANES;
            i += LANES;
            continue;
        }
        pairs[i].count = ef_cursor_varint(cursor);
        if (__builtin_mul_overflow(pairs[i].count, interval_of_value, &pairs[i].value))
            return false;
        i++;
    }
    return !cursor->failed;
}

ef_rc
ef_block_pairs(struct ef_block_reader *reader, const struct ef_block_section_header *header,
               struct ef_block_pair *pairs, struct ef_err *err)
{
    struct ef_cursor *cursor = &reader->cursor;

    if (!read_ids(cursor, pairs, header->pair_count))
        return ef_err_set(err, EF_ECORRUPT, "block with damaged stack ids");
    if (!read_counts(cursor, header->has_values ? 0 : header->interval, pairs, header->pair_count))
        return ef_err_set(err, EF_ECORRUPT, "block with damaged counts");
    for (size_t i = 0; header->has_values && i < header->pair_count; i++)
        pairs[i].value = ef_cursor_zigzag(cursor);
    if (cursor->failed)
        return ef_err_set(err, EF_ECORRUPT, "block with damaged values");
    return EF_OK;
}
