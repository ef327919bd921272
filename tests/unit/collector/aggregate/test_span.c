/*
 * Splitting over buckets: sums are exact whatever the numbers, shares are within one.
 */
#include "tests/support/ef_test.h"

#include "collector/aggregate/span.h"
#include "proto/base/time.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define S EF_NS_PER_S
#define T0 (INT64_C(1796083200) * S)

struct parts {
    uint64_t count[10000];
    uint32_t last;
    bool ordered;
};

static void
add(void *arg, uint32_t index, uint64_t count)
{
    struct parts *parts = arg;

    parts->ordered = parts->ordered && index >= parts->last;
    parts->last = index;
    parts->count[index] += count;
}

static struct parts *
split(const struct ef_span *span, uint64_t count, uint32_t nth)
{
    static struct parts parts;

    memset(&parts, 0, sizeof(parts));
    parts.ordered = true;
    ef_span_split(span, count, nth, add, &parts);
    return &parts;
}

static void
a_span_inside_a_bucket_is_not_split(void **state)
{
    struct ef_span span = ef_span_of(T0, 10 * S);

    (void)state;
    assert_int_equal(span.bucket_count, 1);
    assert_int_equal(span.bucket_ns, T0);
    assert_int_equal(ef_span_overlap(&span, 0), 10 * S);
    assert_int_equal(split(&span, 17, 3)->count[0], 17);
}

static void
a_moment_lies_in_one_bucket(void **state)
{
    struct ef_span span = ef_span_of(T0 + 10 * S, 0);

    (void)state;
    assert_int_equal(span.bucket_count, 1);
    assert_int_equal(span.bucket_ns, T0 + 10 * S);
}

/* A session from 15 s to 25 s, in buckets of 10 s. */
static void
an_unaligned_session_is_split_in_halves(void **state)
{
    struct ef_span span = ef_span_of(T0 + 15 * S, 10 * S);
    struct parts *parts = split(&span, 10, 0);

    (void)state;
    assert_int_equal(span.bucket_count, 2);
    assert_int_equal(ef_span_overlap(&span, 0), 5 * S);
    assert_int_equal(ef_span_overlap(&span, 1), 5 * S);
    assert_int_equal(parts->count[0], 5);
    assert_int_equal(parts->count[1], 5);
}

/* Goal: many stacks with one sample each do not all land in the same bucket. */
static void
single_samples_spread_over_the_buckets(void **state)
{
    struct ef_span span = ef_span_of(T0 + 3 * S, 40 * S);
    uint64_t sums[5] = {0};

    (void)state;
    for (uint32_t nth = 0; nth < 1000; nth++) {
        struct parts *parts = split(&span, 1, nth);
        for (int b = 0; b < 5; b++)
            sums[b] += parts->count[b];
    }
    assert_in_range(sums[0], 170, 180); /* 7 of 40 s */
    for (int b = 1; b < 4; b++)
        assert_in_range(sums[b], 245, 255);
    assert_in_range(sums[4], 70, 80);
}

static uint64_t
next(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 16;
}

/* Goal: for any span and count, the sum is exact, each part within one of its share, and the order
 * ascending. */
static void
sums_are_exact_for_random_spans(void **state)
{
    uint64_t seed = ef_test_seed();

    (void)state;
    for (int round = 0; round < 5000; round++) {
        uint64_t length = next(&seed) % (uint64_t)(500 * S) + 1;
        struct ef_span span = ef_span_of(T0 + (int64_t)(next(&seed) % (uint64_t)(20 * S)), length);
        uint64_t count = next(&seed) % (round % 2 == 0 ? 100 : UINT64_C(1) << 40);
        struct parts *parts = split(&span, count, (uint32_t)next(&seed));
        uint64_t sum = 0, overlap = 0;
        assert_true(parts->ordered);
        for (uint32_t b = 0; b < span.bucket_count; b++) {
            double share = (double)count * (double)ef_span_overlap(&span, b) / (double)length;
            assert_true((double)parts->count[b] >= share - 1.01);
            assert_true((double)parts->count[b] <= share + 1.01);
            sum += parts->count[b];
            overlap += ef_span_overlap(&span, b);
        }
        assert_int_equal(sum, count);
        assert_int_equal(overlap, length);
    }
}

static void
both_ways_of_splitting_agree(void **state)
{
    (void)state;
    /* Fewer samples than buckets, and as many: the border between the two loops. */
    for (uint64_t count = 95; count <= 105; count++) {
        struct ef_span longer = ef_span_of(T0 + 1, 1000 * S); /* 101 buckets */
        struct parts *parts = split(&longer, count, 5);
        uint64_t sum = 0;
        for (uint32_t b = 0; b < longer.bucket_count; b++) {
            assert_true(parts->count[b] <= 3);
            sum += parts->count[b];
        }
        assert_int_equal(sum, count);
    }
}

static void
shares_of_values_are_exact_at_the_ends(void **state)
{
    (void)state;
    assert_int_equal(ef_share_i64(INT64_MAX, 0, 7), 0);
    assert_int_equal(ef_share_i64(INT64_MAX, 7, 7), INT64_MAX);
    assert_int_equal(ef_share_i64(-100, 1, 3), -33);
    assert_int_equal(ef_share_i64(-100, 3, 3), -100);
    assert_int_equal(ef_share_i64(INT64_MIN, UINT64_MAX, UINT64_MAX), INT64_MIN);
}

static void
a_moment_outside_goes_to_the_nearest_end(void **state)
{
    struct ef_span span = ef_span_of(T0 + 5 * S, 20 * S);

    (void)state;
    assert_int_equal(span.bucket_count, 3);
    assert_int_equal(ef_span_index(&span, T0 - 100 * S), 0);
    assert_int_equal(ef_span_index(&span, T0 + 9 * S), 0);
    assert_int_equal(ef_span_index(&span, T0 + 10 * S), 1);
    assert_int_equal(ef_span_index(&span, T0 + 24 * S), 2);
    assert_int_equal(ef_span_index(&span, T0 + 999 * S), 2);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_span_inside_a_bucket_is_not_split),
        cmocka_unit_test(a_moment_lies_in_one_bucket),
        cmocka_unit_test(an_unaligned_session_is_split_in_halves),
        cmocka_unit_test(single_samples_spread_over_the_buckets),
        cmocka_unit_test(sums_are_exact_for_random_spans),
        cmocka_unit_test(both_ways_of_splitting_agree),
        cmocka_unit_test(shares_of_values_are_exact_at_the_ends),
        cmocka_unit_test(a_moment_outside_goes_to_the_nearest_end),
    };
    return cmocka_run_group_tests_name("aggregate.span", tests, NULL, NULL);
}
