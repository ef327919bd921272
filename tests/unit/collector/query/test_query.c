/*
 * Queries over a small worker whose true answers are known by hand.
 */
#include "tests/support/ef_test.h"

#include "collector/query/query.h"
#include "proto/base/time.h"
#include "tests/support/query_store.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TICK INT64_C(10000000) /* 10 ms: the value of one sample */
#define BUCKET(n) (EF_TEST_T0 + (n)*EF_BUCKET_NS)

struct fixture {
    struct ef_store *store;
    struct ef_query *query;
    struct ef_selector selector;
    struct ef_err err;
};

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct ef_query_options options = {.request_bytes_max = 4u << 20};

    assert_int_equal(ef_store_open("memory", NULL, NULL, &f->store, &f->err), EF_OK);
    assert_int_equal(ef_query_open(f->store, &options, &f->query, &f->err), EF_OK);
    ef_test_put_version(f->store, 1, "shop", "v1", 0);
    ef_test_put_series(f->store, 1, 1, EF_TYPE_CPU, "fra");
    f->selector = (struct ef_selector){.worker = "shop",
                                       .profile_type = EF_TYPE_CPU,
                                       .from_ns = BUCKET(0),
                                       .to_ns = BUCKET(100),
                                       .now_ns = BUCKET(100)};
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_query_free(f->query);
    ef_store_close(f->store);
    free(f);
    return 0;
}

/* main 1, main;fib 2, main;fib;fib 4, main;leaf 3 samples. */
static void
put_ten(struct fixture *f, uint32_t series, int64_t bucket_ns, uint32_t part)
{
    struct ef_block_pair pairs[] = {{EF_TEST_MAIN, 1, TICK},
                                    {EF_TEST_FIB, 2, 2 * TICK},
                                    {EF_TEST_FIB_FIB, 4, 4 * TICK},
                                    {EF_TEST_LEAF, 3, 3 * TICK}};
    struct ef_store_totals totals = {
        .covered_ns = (uint64_t)EF_BUCKET_NS, .instances = 1, .bursts = 1};

    ef_test_put_bucket(f->store, series, bucket_ns, part, pairs, EF_COUNT_OF(pairs), &totals);
}

static struct ef_top
top(struct fixture *f, size_t limit)
{
    struct ef_top ret;

    ef_query_invalidate(f->query);
    if (ef_query_top(f->query, &f->selector, limit, &ret, &f->err) != EF_OK)
        fail_msg("top: %s", f->err.msg);
    return ret;
}

static const struct ef_top_function *
find(const struct ef_top *top, const char *name)
{
    for (size_t i = 0; i < top->function_count; i++) {
        if (strcmp(top->functions[i].name, name) == 0)
            return &top->functions[i];
    }
    fail_msg("no function '%s'", name);
    return NULL;
}

static struct ef_timeline
timeline(struct fixture *f, int64_t step_ns)
{
    struct ef_timeline ret;

    ef_query_invalidate(f->query);
    if (ef_query_timeline(f->query, &f->selector, step_ns, &ret, &f->err) != EF_OK)
        fail_msg("timeline: %s", f->err.msg);
    return ret;
}

/* Field faults c34, c35: fib calls itself, main has time of its own beside its callees. */
static void
top_counts_recursion_once_and_keeps_self_of_callers(void **state)
{
    struct fixture *f = *state;
    struct ef_top t;

    put_ten(f, 1, BUCKET(3), 0);
    t = top(f, 0);
    assert_int_equal(t.head.empty, EF_EMPTY_NOT);
    assert_int_equal(t.head.samples, 10);
    assert_int_equal(t.value, 10 * TICK);
    assert_int_equal(t.function_count, 3);
    assert_string_equal(t.functions[0].name, "main");
    assert_int_equal(find(&t, "main")->total.samples, 10);
    assert_int_equal(find(&t, "main")->self.samples, 1);
    assert_int_equal(find(&t, "fib")->total.samples, 6);
    assert_int_equal(find(&t, "fib")->self.samples, 6);
    assert_int_equal(find(&t, "leaf")->total.samples, 3);
    assert_true(fabs(find(&t, "main")->total.share.share - 1) < 1e-12);
    assert_true(fabs(find(&t, "fib")->total.share.share - 0.6) < 1e-12);
    assert_int_equal(find(&t, "leaf")->line, 3);
    ef_top_fini(&t);
}

/* Self shares add up to 1; every share lies in its interval. */
static void
top_shares_add_up_and_lie_in_their_intervals(void **state)
{
    struct fixture *f = *state;
    struct ef_top t;
    double sum = 0;

    for (int i = 0; i < 90; i++)
        put_ten(f, 1, BUCKET(i), 0);
    t = top(f, 0);
    for (size_t i = 0; i < t.function_count; i++) {
        const struct ef_top_cell *cells[] = {&t.functions[i].self, &t.functions[i].total};
        sum += t.functions[i].self.share.share;
        for (size_t j = 0; j < 2; j++) {
            assert_true(cells[j]->share.low >= 0 && cells[j]->share.high <= 1);
            assert_true(cells[j]->share.low <= cells[j]->share.share);
            assert_true(cells[j]->share.share <= cells[j]->share.high);
        }
    }
    assert_true(fabs(sum - 1) < 1e-9);
    assert_true(t.low < t.value && t.value < t.high);
    assert_true(find(&t, "fib")->total.share.low > 0.55);
    assert_true(find(&t, "fib")->total.share.high < 0.65);
    ef_top_fini(&t);
}

static void
top_says_what_the_limit_cut(void **state)
{
    struct fixture *f = *state;
    struct ef_top t;

    put_ten(f, 1, BUCKET(3), 0);
    t = top(f, 1);
    assert_int_equal(t.function_count, 1);
    assert_true(t.cut);
    assert_int_equal(t.other.self.samples, 9);
    assert_int_equal(t.other.total.samples, 9); /* fib and leaf; main's own sample is not theirs */
    assert_true(fabs(t.other.total.share.share - 0.9) < 1e-12);
    ef_top_fini(&t);
    t = top(f, 3);
    assert_false(t.cut);
    ef_top_fini(&t);
}

static void
top_adds_parts_of_a_bucket_and_series_of_all_regions(void **state)
{
    struct fixture *f = *state;
    struct ef_top t;

    ef_test_put_series(f->store, 2, 1, EF_TYPE_CPU, "sin");
    put_ten(f, 1, BUCKET(3), 0);
    put_ten(f, 1, BUCKET(3), 1);
    put_ten(f, 2, BUCKET(4), 2);
    t = top(f, 0);
    assert_int_equal(t.head.samples, 30);
    ef_top_fini(&t);
    f->selector.regions[0] = "sin";
    f->selector.region_count = 1;
    t = top(f, 0);
    assert_int_equal(t.head.samples, 10);
    ef_top_fini(&t);
}

/* Versions have ids of their own; functions and stacks are merged by content. */
static void
export_merges_versions_by_content(void **state)
{
    struct fixture *f = *state;
    struct ef_export e;
    struct ef_top t;

    ef_test_put_version(f->store, 2, "shop", "v2", 5);
    ef_test_put_series(f->store, 2, 2, EF_TYPE_CPU, "fra");
    put_ten(f, 1, BUCKET(3), 0);
    put_ten(f, 2, BUCKET(3), 1);
    ef_query_invalidate(f->query);
    assert_int_equal(ef_query_export(f->query, &f->selector, &e, &f->err), EF_OK);
    assert_int_equal(e.head.version_count, 2);
    assert_string_equal(e.head.versions[0], "v1");
    assert_int_equal(e.profile->node_count, 5);
    assert_int_equal(ef_profile_total(e.profile, 0), 20);
    assert_int_equal(ef_profile_total(e.profile, 1), 20 * TICK);
    assert_string_equal(ef_profile_string(e.profile, e.profile->types[1].type), "cpu");
    assert_string_equal(ef_profile_string(e.profile, e.profile->types[1].unit), "nanoseconds");
    assert_int_equal(e.profile->period, TICK);
    assert_int_equal(e.profile->functions[1].start_line, 1);
    t = top(f, 0);
    assert_int_equal(t.function_count, 3);
    assert_int_equal(t.value, ef_profile_total(e.profile, 1));
    ef_top_fini(&t);
    ef_export_fini(&e);
    f->selector.versions[0] = "v2";
    f->selector.version_count = 1;
    t = top(f, 0);
    assert_int_equal(t.head.samples, 10);
    assert_int_equal(t.head.version_count, 1);
    ef_top_fini(&t);
}

/* A version grows while its definitions are cached: they are read again. */
static void
top_reads_definitions_again_when_they_grew(void **state)
{
    struct fixture *f = *state;
    struct ef_block_pair pair = {7, 5, 5 * TICK};
    struct ef_store_totals totals = {.covered_ns = (uint64_t)EF_BUCKET_NS, .instances = 1};
    struct ef_top t;

    put_ten(f, 1, BUCKET(3), 0);
    t = top(f, 0);
    ef_top_fini(&t);
    ef_test_put_version(f->store, 1, "shop", "v1", 5);
    ef_test_put_bucket(f->store, 1, BUCKET(3), 1, &pair, 1, &totals);
    put_ten(f, 1, BUCKET(4), 2);
    t = top(f, 0);
    assert_int_equal(t.head.samples, 25);
    assert_int_equal(find(&t, "extra2")->self.samples, 5);
    assert_int_equal(find(&t, "main")->total.samples, 25);
    ef_top_fini(&t);
}

static void
top_refuses_a_block_that_names_a_stack_nobody_defined(void **state)
{
    struct fixture *f = *state;
    struct ef_block_pair pair = {77, 5, 5 * TICK};
    struct ef_store_totals totals = {0};
    struct ef_top t = {0};

    ef_test_put_bucket(f->store, 1, BUCKET(3), 1, &pair, 1, &totals);
    ef_query_invalidate(f->query);
    assert_int_equal(ef_query_top(f->query, &f->selector, 0, &t, &f->err), EF_ECORRUPT);
    assert_non_null(strstr(f->err.msg, "stack 77"));
    assert_null(t.arena);
}

/* A sample of weight 3 stands for three; shares are of what samples stand for. */
static void
top_weights_values_but_not_samples(void **state)
{
    struct fixture *f = *state;
    struct ef_block_pair one = {EF_TEST_MAIN, 30, 30 * TICK}, two = {EF_TEST_LEAF, 10, 10 * TICK};
    struct ef_block_section sections[] = {{0, 1000, TICK, &one, 1}, {0, 3000, TICK, &two, 1}};
    struct ef_store_totals totals = {
        .samples = 40, .value = 40 * TICK, .value_weighted = 60 * TICK};
    struct ef_top t;

    ef_test_put_sections(f->store, 1, BUCKET(2), 0, sections, 2, &totals);
    t = top(f, 0);
    assert_int_equal(t.head.samples, 40);
    assert_int_equal(t.value, 60 * TICK);
    assert_int_equal(t.sampled_value, 40 * TICK);
    assert_int_equal(find(&t, "leaf")->self.samples, 10);
    assert_true(fabs(find(&t, "leaf")->self.share.share - 0.5) < 1e-12);
    ef_top_fini(&t);
}

/*
 * Goal: a triggered burst does not distort shares. Half of the hot samples are in leaf, none of the
 * normal ones; hot seconds are 10 % of the CPU but 90 % of the samples: leaf's share is 5 %.
 */
static void
top_weighs_strata_by_their_exact_cpu(void **state)
{
    struct fixture *f = *state;
    struct ef_block_pair normal = {EF_TEST_MAIN, 10, 10 * TICK};
    struct ef_block_pair hot[] = {{EF_TEST_MAIN, 45, 45 * TICK}, {EF_TEST_LEAF, 45, 45 * TICK}};
    struct ef_block_section sections[] = {{0, 1000, TICK, &normal, 1}, {1, 1000, TICK, hot, 2}};
    struct ef_store_totals totals = {.samples = 100,
                                     .hot_samples = 90,
                                     .value = 100 * TICK,
                                     .value_weighted = 100 * TICK,
                                     .cpu_ns = 10000000000,
                                     .hot_cpu_ns = 1000000000};
    struct ef_top t;

    ef_test_put_sections(f->store, 1, BUCKET(2), 0, sections, 2, &totals);
    t = top(f, 0);
    assert_true(fabs(find(&t, "leaf")->total.share.share - 0.05) < 1e-9);
    assert_true(fabs(find(&t, "main")->total.share.share - 1) < 1e-9);
    assert_int_equal(t.head.process_cpu_ns, 10000000000);
    ef_top_fini(&t);
}

/* Two instances, six snapshots each, 100 bytes alive in each: 200 bytes, not 1,200. */
static void
inuse_is_averaged_over_time_and_summed_over_instances(void **state)
{
    struct fixture *f = *state;
    struct ef_block_pair pairs[] = {{EF_TEST_MAIN, 2, 40}, {EF_TEST_LEAF, 2, 160}};
    struct ef_store_totals totals = {
        .covered_ns = 2 * (uint64_t)EF_BUCKET_NS, .instances = 2, .snapshots = 2};
    struct ef_timeline line;
    struct ef_export e;
    struct ef_top t;

    ef_test_put_series(f->store, 2, 1, EF_TYPE_INUSE, "fra");
    for (int i = 0; i < 6; i++)
        ef_test_put_bucket(f->store, 2, BUCKET(i), 0, pairs, 2, &totals);
    f->selector.profile_type = EF_TYPE_INUSE;
    t = top(f, 0);
    assert_int_equal(t.value, 200);
    assert_true(fabs(find(&t, "leaf")->self.share.share - 0.8) < 1e-9);
    ef_top_fini(&t);
    assert_int_equal(ef_query_export(f->query, &f->selector, &e, &f->err), EF_OK);
    assert_int_equal(ef_profile_total(e.profile, 0), 4);
    assert_int_equal(ef_profile_total(e.profile, 1), 200);
    assert_string_equal(ef_profile_string(e.profile, e.profile->types[1].type), "inuse_space");
    ef_export_fini(&e);
    line = timeline(f, 6 * EF_BUCKET_NS);
    assert_int_equal(line.points[0].value, 200);
    ef_timeline_fini(&line);
}

/* Versions that follow each other are not added up. */
static void
inuse_of_two_versions_in_turn_is_that_of_one(void **state)
{
    struct fixture *f = *state;
    struct ef_block_pair pair = {EF_TEST_MAIN, 1, 100};
    struct ef_store_totals totals = {.instances = 1, .snapshots = 1};
    struct ef_top t;

    ef_test_put_version(f->store, 2, "shop", "v2", 0);
    ef_test_put_series(f->store, 2, 1, EF_TYPE_INUSE, "fra");
    ef_test_put_series(f->store, 3, 2, EF_TYPE_INUSE, "fra");
    for (int i = 0; i < 10; i++)
        ef_test_put_bucket(f->store, i < 5 ? 2 : 3, BUCKET(i), 0, &pair, 1, &totals);
    f->selector.profile_type = EF_TYPE_INUSE;
    t = top(f, 0);
    assert_int_equal(t.value, 100);
    ef_top_fini(&t);
}

/* Half of an instance's time in one of four buckets that have passed: an eighth. */
static void
coverage_counts_empty_buckets_and_stops_at_now(void **state)
{
    struct fixture *f = *state;
    struct ef_block_pair pair = {EF_TEST_MAIN, 1, TICK};
    struct ef_store_totals totals = {.covered_ns = (uint64_t)EF_BUCKET_NS / 2, .instances = 1};
    struct ef_top t;

    ef_test_put_bucket(f->store, 1, BUCKET(0), 0, &pair, 1, &totals);
    f->selector.to_ns = BUCKET(50);
    f->selector.now_ns = BUCKET(4);
    t = top(f, 0);
    assert_true(fabs(t.head.coverage - 0.125) < 1e-9);
    ef_top_fini(&t);
    /* The usage says that there were two instances. */
    totals.expected_ns = 2 * (uint64_t)EF_BUCKET_NS;
    ef_test_put_bucket(f->store, 1, BUCKET(1), 0, &pair, 1, &totals);
    f->selector.from_ns = BUCKET(1);
    f->selector.to_ns = BUCKET(2);
    t = top(f, 0);
    assert_true(fabs(t.head.coverage - 0.25) < 1e-9);
    ef_top_fini(&t);
}

/*
 * Many short profiles of the same moments, as somebody imports them, cover two buckets of 31 and no
 * more; the bucket that is not over counts by the 4 s that have passed.
 */
static void
coverage_of_overlapping_fragments_is_capped_in_each_bucket(void **state)
{
    struct fixture *f = *state;
    struct ef_block_pair pair = {EF_TEST_MAIN, 1, TICK};
    struct ef_store_totals totals = {.covered_ns = 20 * (uint64_t)EF_BUCKET_NS, .instances = 1};
    struct ef_timeline line;
    struct ef_top t;

    ef_test_put_bucket(f->store, 1, BUCKET(3), 0, &pair, 1, &totals);
    ef_test_put_bucket(f->store, 1, BUCKET(20), 0, &pair, 1, &totals);
    f->selector.to_ns = BUCKET(31);
    f->selector.now_ns = BUCKET(30) + 4 * EF_NS_PER_S;
    t = top(f, 0);
    assert_true(fabs(t.head.coverage - 2 / 30.4) < 1e-9);
    ef_top_fini(&t);
    f->selector.to_ns = BUCKET(30);
    line = timeline(f, 5 * EF_BUCKET_NS);
    assert_true(fabs(line.head.coverage - 2 / 30.0) < 1e-9);
    for (size_t i = 0; i < line.point_count; i++)
        assert_true(fabs(line.points[i].coverage - (i == 0 || i == 4 ? 0.2 : 0)) < 1e-9);
    ef_timeline_fini(&line);
}

/* Goal: what one region covers twice does not hide that another is sampled by half. */
static void
coverage_of_one_series_does_not_fill_another(void **state)
{
    struct fixture *f = *state;
    struct ef_block_pair pair = {EF_TEST_MAIN, 1, TICK};
    struct ef_store_totals twice = {.covered_ns = 2 * (uint64_t)EF_BUCKET_NS, .instances = 1};
    struct ef_store_totals half = {.covered_ns = (uint64_t)EF_BUCKET_NS / 2, .instances = 1};
    struct ef_top t;

    ef_test_put_series(f->store, 2, 1, EF_TYPE_CPU, "sin");
    ef_test_put_bucket(f->store, 1, BUCKET(0), 0, &pair, 1, &twice);
    ef_test_put_bucket(f->store, 2, BUCKET(0), 1, &pair, 1, &half);
    f->selector.to_ns = BUCKET(1);
    t = top(f, 0);
    assert_true(fabs(t.head.coverage - 0.75) < 1e-6); /* kept as float */
    ef_top_fini(&t);
}

/* A bucket begun 4 s ago and sampled since then is covered whole; one from the future counts not at
 * all. */
static void
coverage_of_an_open_bucket_is_that_of_its_past(void **state)
{
    struct fixture *f = *state;
    struct ef_block_pair pair = {EF_TEST_MAIN, 1, TICK};
    struct ef_store_totals totals = {.covered_ns = 4 * (uint64_t)EF_NS_PER_S, .instances = 1};
    struct ef_top t;

    ef_test_put_bucket(f->store, 1, BUCKET(0), 0, &pair, 1, &totals);
    ef_test_put_bucket(f->store, 1, BUCKET(5), 0, &pair, 1, &totals);
    f->selector.now_ns = BUCKET(0) + 4 * EF_NS_PER_S;
    t = top(f, 0);
    assert_true(fabs(t.head.coverage - 1) < 1e-9);
    ef_top_fini(&t);
    f->selector.from_ns = BUCKET(5);
    f->selector.to_ns = BUCKET(6);
    t = top(f, 0);
    assert_true(t.head.coverage == 0);
    ef_top_fini(&t);
}

/* Field faults e55, e58: a point for each step, the last bucket of the range in, the next out. */
static void
timeline_has_a_point_for_every_step(void **state)
{
    struct fixture *f = *state;
    struct ef_timeline line;

    put_ten(f, 1, BUCKET(0), 0);
    put_ten(f, 1, BUCKET(4), 0);
    put_ten(f, 1, BUCKET(5), 0);
    f->selector.to_ns = BUCKET(5);
    line = timeline(f, EF_BUCKET_NS);
    assert_int_equal(line.point_count, 5);
    assert_int_equal(line.points[0].samples, 10);
    assert_int_equal(line.points[1].samples, 0);
    assert_int_equal(line.points[4].samples, 10);
    assert_int_equal(line.points[4].value, 10 * TICK);
    assert_true(fabs(line.points[0].coverage - 1) < 1e-9);
    assert_true(line.points[1].coverage == 0);
    ef_timeline_fini(&line);
    line = timeline(f, 2 * EF_BUCKET_NS);
    assert_int_equal(line.points[0].from_ns % (2 * EF_BUCKET_NS), 0);
    ef_timeline_fini(&line);
}

/* Field fault e56: the same point has the same value in each range that holds it. */
static void
timeline_of_a_moving_range_is_stable(void **state)
{
    struct fixture *f = *state;
    int64_t step = 3 * EF_BUCKET_NS;

    for (int i = 0; i < 60; i++) {
        if (i % 7 != 3)
            put_ten(f, 1, BUCKET(i), 0);
    }
    f->selector.now_ns = BUCKET(60);
    for (int64_t shift = 0; shift < 2 * step; shift += EF_NS_PER_S) {
        struct ef_timeline line;
        f->selector.from_ns = BUCKET(10) + shift;
        f->selector.to_ns = BUCKET(40) + shift;
        line = timeline(f, step);
        for (size_t i = 0; i < line.point_count; i++) {
            uint64_t expected = 0;
            for (int64_t at = line.points[i].from_ns; at < line.points[i].to_ns;
                 at += EF_BUCKET_NS) {
                int64_t bucket = (at - EF_TEST_T0) / EF_BUCKET_NS;
                expected += bucket < 60 && bucket % 7 != 3 ? 10 : 0;
            }
            assert_int_equal(line.points[i].from_ns % step, 0);
            assert_int_equal(line.points[i].samples, expected);
        }
        ef_timeline_fini(&line);
    }
}

/* Field fault e63, and ranges that hold nothing. */
static void
ranges_get_clear_answers(void **state)
{
    struct fixture *f = *state;
    struct ef_top t = {0};

    put_ten(f, 1, BUCKET(3), 0);
    put_ten(f, 1, BUCKET(9), 0);
    f->selector.from_ns = BUCKET(5);
    f->selector.to_ns = BUCKET(4);
    assert_int_equal(ef_query_top(f->query, &f->selector, 0, &t, &f->err), EF_EINVAL);
    assert_non_null(strstr(f->err.msg, "later than"));
    f->selector.from_ns = f->selector.to_ns = BUCKET(3) + 5;
    t = top(f, 0);
    assert_int_equal(t.head.samples, 10);
    assert_int_equal(t.head.from_ns, BUCKET(3));
    assert_int_equal(t.head.to_ns, BUCKET(4));
    ef_top_fini(&t);
    f->selector.from_ns = f->selector.to_ns = BUCKET(3); /* on the border */
    t = top(f, 0);
    assert_int_equal(t.head.samples, 10);
    ef_top_fini(&t);
    f->selector.from_ns = BUCKET(-20);
    f->selector.to_ns = BUCKET(3);
    t = top(f, 0);
    assert_int_equal(t.head.empty, EF_EMPTY_BEFORE_DATA);
    ef_top_fini(&t);
    f->selector.from_ns = BUCKET(500);
    f->selector.to_ns = BUCKET(600);
    t = top(f, 0);
    assert_int_equal(t.head.empty, EF_EMPTY_AFTER_DATA);
    assert_non_null(strstr(t.head.empty_message, "future"));
    ef_top_fini(&t);
    f->selector.from_ns = BUCKET(5);
    f->selector.to_ns = BUCKET(7);
    t = top(f, 0);
    assert_int_equal(t.head.empty, EF_EMPTY_NO_SAMPLES);
    ef_top_fini(&t);
    /* From the beginning of time: only what holds data costs memory. */
    f->selector.from_ns = 0;
    f->selector.to_ns = BUCKET(100);
    t = top(f, 0);
    assert_int_equal(t.head.samples, 20);
    ef_top_fini(&t);
}

static void
names_that_are_not_there_are_named(void **state)
{
    struct fixture *f = *state;
    struct ef_top t;

    put_ten(f, 1, BUCKET(3), 0);
    f->selector.profile_type = EF_TYPE_WALL;
    t = top(f, 0);
    assert_int_equal(t.head.empty, EF_EMPTY_NO_SUCH_TYPE);
    ef_top_fini(&t);
    f->selector.versions[0] = "v9";
    f->selector.version_count = 1;
    t = top(f, 0);
    assert_int_equal(t.head.empty, EF_EMPTY_NO_SUCH_VERSION);
    assert_non_null(strstr(t.head.empty_message, "v9"));
    ef_top_fini(&t);
    f->selector.worker = "nobody";
    t = top(f, 0);
    assert_int_equal(t.head.empty, EF_EMPTY_NO_SUCH_WORKER);
    ef_top_fini(&t);
}

/* Memory of a query is bounded: the answer names the largest range that fits. */
static void
range_that_needs_too_much_memory_is_refused(void **state)
{
    struct fixture *f = *state;
    struct ef_top t = {0};

    put_ten(f, 1, BUCKET(0), 0);
    put_ten(f, 1, BUCKET(400000), 0);
    f->selector.to_ns = f->selector.now_ns = BUCKET(500000);
    ef_query_invalidate(f->query);
    assert_int_equal(ef_query_top(f->query, &f->selector, 0, &t, &f->err), EF_ELIMIT);
    assert_non_null(strstr(f->err.msg, "largest that fits"));
    f->selector.to_ns = BUCKET(100000);
    t = top(f, 0);
    assert_int_equal(t.head.samples, 10);
    ef_top_fini(&t);
}

static void
timeline_refuses_too_many_steps_and_odd_steps(void **state)
{
    struct fixture *f = *state;
    struct ef_timeline line;

    put_ten(f, 1, BUCKET(0), 0);
    f->selector.to_ns = BUCKET(EF_TIMELINE_POINTS_MAX + 1);
    assert_int_equal(ef_query_timeline(f->query, &f->selector, EF_BUCKET_NS, &line, &f->err),
                     EF_ELIMIT);
    assert_non_null(strstr(f->err.msg, "20s"));
    assert_int_equal(ef_query_timeline(f->query, &f->selector, EF_NS_PER_S, &line, &f->err),
                     EF_EINVAL);
}

struct seen {
    int count;
    struct ef_query_entry last;
    char versions[8][16];
};

static ef_rc
see(void *arg, const struct ef_query_entry *entry)
{
    struct seen *seen = arg;

    if (entry->version != NULL)
        snprintf(seen->versions[seen->count], sizeof(seen->versions[0]), "%s", entry->version);
    seen->last = *entry;
    seen->count++;
    return EF_OK;
}

static void
lists_hold_workers_and_versions(void **state)
{
    struct fixture *f = *state;
    struct seen seen = {0};

    ef_test_put_version(f->store, 2, "shop", "v2", 0);
    ef_test_put_series(f->store, 2, 2, EF_TYPE_CPU, "fra");
    ef_test_put_series(f->store, 3, 2, EF_TYPE_ALLOC, "fra");
    put_ten(f, 1, BUCKET(3), 0);
    put_ten(f, 2, BUCKET(8), 0);
    assert_int_equal(ef_query_workers(f->query, BUCKET(50), see, &seen, &f->err), EF_OK);
    assert_int_equal(seen.count, 1);
    assert_int_equal(seen.last.version_count, 2);
    assert_int_equal(seen.last.first_seen_ns, BUCKET(3));
    assert_int_equal(seen.last.last_seen_ns, BUCKET(9));
    assert_int_equal(seen.last.types, 1u << EF_TYPE_CPU | 1u << EF_TYPE_ALLOC);
    seen.count = 0;
    assert_int_equal(ef_query_versions(f->query, "shop", NULL, BUCKET(50), see, &seen, &f->err),
                     EF_OK);
    assert_int_equal(seen.count, 2);
    assert_string_equal(seen.versions[0], "v2");
    seen.count = 0;
    assert_int_equal(ef_query_versions(f->query, "shop", "other", BUCKET(50), see, &seen, &f->err),
                     EF_OK);
    assert_int_equal(seen.count, 0);
}

int
main(void)
{
#define T(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
    const struct CMUnitTest tests[] = {
        T(top_counts_recursion_once_and_keeps_self_of_callers),
        T(top_shares_add_up_and_lie_in_their_intervals),
        T(top_says_what_the_limit_cut),
        T(top_adds_parts_of_a_bucket_and_series_of_all_regions),
        T(export_merges_versions_by_content),
        T(top_reads_definitions_again_when_they_grew),
        T(top_refuses_a_block_that_names_a_stack_nobody_defined),
        T(top_weights_values_but_not_samples),
        T(top_weighs_strata_by_their_exact_cpu),
        T(inuse_is_averaged_over_time_and_summed_over_instances),
        T(inuse_of_two_versions_in_turn_is_that_of_one),
        T(coverage_counts_empty_buckets_and_stops_at_now),
        T(coverage_of_overlapping_fragments_is_capped_in_each_bucket),
        T(coverage_of_one_series_does_not_fill_another),
        T(coverage_of_an_open_bucket_is_that_of_its_past),
        T(timeline_has_a_point_for_every_step),
        T(timeline_of_a_moving_range_is_stable),
        T(ranges_get_clear_answers),
        T(names_that_are_not_there_are_named),
        T(range_that_needs_too_much_memory_is_refused),
        T(timeline_refuses_too_many_steps_and_odd_steps),
        T(lists_hold_workers_and_versions),
    };

    return cmocka_run_group_tests_name("query", tests, NULL, NULL);
}
