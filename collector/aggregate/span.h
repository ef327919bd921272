/*
 * Where on the bucket grid a span of time lies, and how counts are split over the buckets it
 * touches. Pure functions.
 *
 * A count is split by cumulative rounding: part b gets floor(x(b+1)) - floor(x(b)), where x runs
 * from an offset in [0, 1) to count + offset as time passes. Sums are exact, each part is within
 * one of its share, and the result depends on nothing but its arguments. The offset is 1/2 for the
 * first stack (plain rounding) and moves by the golden ratio from stack to stack: largest
 * remainders taken per stack would put every stack with one sample into the same bucket.
 */
#ifndef COLLECTOR_AGGREGATE_SPAN_H
#define COLLECTOR_AGGREGATE_SPAN_H

#include "storage/store.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ef_span {
    int64_t start_ns;
    uint64_t span_ns;  /* 0 = one moment, in one bucket */
    int64_t bucket_ns; /* start of the first bucket */
    uint32_t bucket_count;
};

/* start_ns >= 0, and start_ns + span_ns is an int64. */
struct ef_span ef_span_of(int64_t start_ns, uint64_t span_ns);
/* Length of the span's part in its bucket `index`. */
uint64_t ef_span_overlap(const struct ef_span *span, uint32_t index);
/* Index of the bucket of a moment, moments outside the span going to its first or last bucket. */
uint32_t ef_span_index(const struct ef_span *span, int64_t at_ns);

typedef void (*ef_span_part_fn)(void *arg, uint32_t index, uint64_t count);
/* Calls fn, in ascending order, for each bucket that gets more than 0 of `count` <= INT64_MAX.
 * `nth` numbers the stacks of a fragment from 0. Costs min(count, buckets). */
void ef_span_split(const struct ef_span *span, uint64_t count, uint32_t nth, ef_span_part_fn fn,
                   void *arg);
/* floor(value × part / whole); 0 <= part <= whole, whole > 0. */
int64_t ef_share_i64(int64_t value, uint64_t part, uint64_t whole);

#endif
