/*
 * Decides how counts are split over buckets. Must not know what is counted. Pure.
 */
#include "collector/aggregate/span.h"

#include "proto/base/time.h"

typedef unsigned __int128 u128;

struct ef_span
ef_span_of(int64_t start_ns, uint64_t span_ns)
{
    struct ef_span span = {.start_ns = start_ns, .span_ns = span_ns, .bucket_count = 1};
    int64_t last_ns = span_ns == 0 ? start_ns : start_ns + (int64_t)(span_ns - 1);

    span.bucket_ns = ef_bucket_start(start_ns, EF_BUCKET_NS);
    span.bucket_count +=
        (uint32_t)((ef_bucket_start(last_ns, EF_BUCKET_NS) - span.bucket_ns) / EF_BUCKET_NS);
    return span;
}

/* Length of the span before the end of bucket `index`. */
static uint64_t
length_until(const struct ef_span *span, uint32_t index)
{
    uint64_t head = (uint64_t)(span->bucket_ns + EF_BUCKET_NS - span->start_ns);

    if (index + 1 >= span->bucket_count)
        return span->span_ns;
    return head + (uint64_t)index * EF_BUCKET_NS;
}

uint64_t
ef_span_overlap(const struct ef_span *span, uint32_t index)
{
    return length_until(span, index) - (index == 0 ? 0 : length_until(span, index - 1));
}

uint32_t
ef_span_index(const struct ef_span *span, int64_t at_ns)
{
    int64_t index;

    if (at_ns <= span->start_ns)
        return 0;
    index = (at_ns - span->bucket_ns) / EF_BUCKET_NS;
    return index < span->bucket_count ? (uint32_t)index : span->bucket_count - 1;
}

/* One moment of the grid is 2^-32 of the span. */
static uint64_t
offset_of(const struct ef_span *span, uint32_t nth)
{
    uint32_t phase = UINT32_C(0x80000000) + nth * UINT32_C(0x9e3779b9);

    return (uint64_t)(((u128)span->span_ns * phase) >> 32);
}

/* Few samples, many buckets: finds the bucket of each sample. */
static void
split_by_sample(const struct ef_span *span, uint64_t count, uint64_t offset, ef_span_part_fn fn,
                void *arg)
{
    uint64_t run = 0;
    uint32_t run_index = 0;

    for (uint64_t k = 1; k <= count; k++) {
        /* The smallest length x at which count × x + offset reaches k × span. */
        u128 need = (u128)k * span->span_ns - offset;
        uint64_t length = (uint64_t)((need + count - 1) / count);
        uint32_t index = ef_span_index(span, span->start_ns + (int64_t)length - 1);
        if (index != run_index && run > 0) {
            fn(arg, run_index, run);
            run = 0;
        }
        run_index = index;
        run++;
    }
    if (run > 0)
        fn(arg, run_index, run);
}

static void
split_by_bucket(const struct ef_span *span, uint64_t count, uint64_t offset, ef_span_part_fn fn,
                void *arg)
{
    uint64_t given = 0;

    for (uint32_t i = 0; i < span->bucket_count; i++) {
        u128 reached = (u128)count * length_until(span, i) + offset;
        uint64_t until = (uint64_t)(reached / span->span_ns);
        if (until > given)
            fn(arg, i, until - given);
        given = until;
    }
}

void
ef_span_split(const struct ef_span *span, uint64_t count, uint32_t nth, ef_span_part_fn fn,
              void *arg)
{
    if (count == 0)
        return;
    if (span->bucket_count == 1)
        fn(arg, 0, count);
    else if (count < span->bucket_count)
        split_by_sample(span, count, offset_of(span, nth), fn, arg);
    else
        split_by_bucket(span, count, offset_of(span, nth), fn, arg);
}

int64_t
ef_share_i64(int64_t value, uint64_t part, uint64_t whole)
{
    uint64_t size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    uint64_t share = (uint64_t)((u128)size * part / whole);

    return value < 0 ? (int64_t)(0 - share) : (int64_t)share;
}
