/*
 * The value of one (series, bucket, part): which stacks were seen, how often, with what value.
 * Independent of the backend.
 *
 * Bytes (FORMAT.md has a worked example): format byte 1, varint section count, then per section:
 * stratum byte, flags byte (bit 0: values present), varint weight_milli, varint interval, varint
 * pair count n, n varint id deltas (ids ascending, the first from 0), n varint counts, and when
 * present n zigzag values. Without the value column value = count × interval. One section per
 * (stratum, weight, interval); nearly always one. Any thread.
 */
#ifndef STORAGE_BLOCK_H
#define STORAGE_BLOCK_H

#include "proto/base/buf.h"
#include "proto/base/err.h"

#define EF_BLOCK_PAIRS_MAX (1u << 20)
#define EF_BLOCK_SECTIONS_MAX 256

struct ef_block_pair {
    uint32_t stack; /* dense id of the worker version's stack; 0 = root, not used */
    uint64_t count;
    int64_t value;
};

struct ef_block_section {
    uint8_t stratum;                   /* 0 normal, 1 hot */
    uint64_t weight_milli;             /* 1000 = one sample stands for itself */
    uint64_t interval;                 /* ns or bytes */
    const struct ef_block_pair *pairs; /* ids strictly ascending */
    size_t pair_count;
};

/* Appends to `out`. EF_EINVAL when ids do not ascend or a limit is passed (our bug, but checked).
 */
EF_MUST_USE ef_rc ef_block_encode(const struct ef_block_section *sections, size_t section_count,
                                  struct ef_buf *out, struct ef_err *err);

/* Decoding: begin, then one section header at a time, then its pairs into the caller's array.
 * Damaged input gives EF_ECORRUPT. */
struct ef_block_reader {
    struct ef_cursor cursor;
    uint64_t sections_left;
};
struct ef_block_section_header {
    uint8_t stratum;
    bool has_values;
    uint64_t weight_milli;
    uint64_t interval;
    size_t pair_count;
};
EF_MUST_USE ef_rc ef_block_begin(struct ef_block_reader *reader, const void *data, size_t len,
                                 struct ef_err *err);
/* False when there is no further section. *ret_rc is EF_OK or EF_ECORRUPT. */
bool ef_block_next(struct ef_block_reader *reader, struct ef_block_section_header *ret_header,
                   ef_rc *ret_rc, struct ef_err *err);
/* Reads the pairs of the section that ef_block_next announced; `pairs` has room for
 * header->pair_count. */
EF_MUST_USE ef_rc ef_block_pairs(struct ef_block_reader *reader,
                                 const struct ef_block_section_header *header,
                                 struct ef_block_pair *pairs, struct ef_err *err);

#endif
