/*
 * What happens to the fragments of a batch: time, splitting, totals, definitions, limits.
 */
#include "tests/unit/collector/aggregate/fixture.h"

/* Two stacks, ten samples, in one bucket. */
static uint32_t
simple_fragment(struct fixture *f, int64_t start_ns, uint64_t span_ns)
{
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "fra");

    ef_make_definition(f->maker, source, "main;work", false);
    ef_make_definition(f->maker, source, "main;idle", false);
    ef_make_fragment(f->maker, source, start_ns, span_ns);
    ef_make_samples(f->maker, ef_stack_of("main;work"), 7);
    ef_make_samples(f->maker, ef_stack_of("main;idle"), 3);
    return source;
}

static void
a_batch_is_in_the_store_after_a_flush(void **state)
{
    struct fixture *f = *state;
    struct ef_store_totals totals;

    simple_fragment(f, T0, 10 * S);
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    totals = totals_of(f, 1, T0, T0 + 10 * S);
    assert_int_equal(totals.samples, 10);
    assert_int_equal(totals.value, 100000000);
    assert_int_equal(totals.value_weighted, 100000000);
    assert_int_equal(totals.covered_ns, 10 * S);
    assert_int_equal(totals.bursts, 1);
    assert_int_equal(totals.squares, 100);
    assert_int_equal(totals.instances, 1);
    assert_int_equal(totals.hot_samples, 0);
    assert_int_equal(count_of(f, "main;work", T0, T0 + 10 * S), 7);
    assert_int_equal(count_of(f, "main;idle", T0, T0 + 10 * S), 3);
}

static void
equal_stacks_of_many_fragments_are_one_pair(void **state)
{
    struct fixture *f = *state;
    uint32_t source = simple_fragment(f, T0, 10 * S);
    struct read_pair pair;

    for (int i = 0; i < 500; i++) {
        ef_make_fragment(f->maker, source, T0 + i, 1000);
        ef_make_samples(f->maker, ef_stack_of("main;work"), 2);
    }
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    pair = pairs_of(f, 1, stack_id(f, 1, ef_stack_of("main;work")), 0, INT64_MAX);
    assert_int_equal(pair.count, 1007);
    assert_int_equal(pair.value, INT64_C(1007) * 10000000);
    assert_int_equal(pair.sections, 1);
    assert_int_equal(totals_of(f, 1, T0, T0 + 10 * S).bursts, 501);
}

static void
counts_above_32_bits_are_kept(void **state)
{
    struct fixture *f = *state;
    uint32_t source = simple_fragment(f, T0, 10 * S);

    for (int i = 0; i < 3; i++) {
        Everflame__V1__Fragment *fragment = ef_make_fragment(f->maker, source, T0, 10);
        fragment->interval = 3;
        ef_make_samples(f->maker, ef_stack_of("main"),
                        UINT64_C(4000000000) + (uint64_t)i * 1000000000);
    }
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(count_of(f, "main", 0, INT64_MAX), UINT64_C(15000000000));
}

/* Goal: each (stratum, weight, interval) has its own section, and weights count in totals. */
static void
strata_and_weights_are_kept_apart(void **state)
{
    struct fixture *f = *state;
    uint32_t source = simple_fragment(f, T0, 10 * S);
    Everflame__V1__Fragment *fragment = ef_make_fragment(f->maker, source, T0, 10);
    struct ef_store_totals totals;

    fragment->stratum = EVERFLAME__V1__STRATUM__HOT;
    fragment->weight_milli = 2500;
    ef_make_samples(f->maker, ef_stack_of("main"), 4);
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    totals = totals_of(f, 1, T0, T0 + 10 * S);
    assert_int_equal(totals.hot_samples, 4);
    assert_int_equal(totals.value, 140000000);
    assert_int_equal(totals.value_weighted, 200000000);
    assert_int_equal(pairs_of(f, 1, 0, 0, INT64_MAX).sections, 2);
}

/* Goal: however many weights there are, blocks stay bounded and totals exact. */
static void
too_many_weights_share_sections(void **state)
{
    struct fixture *f = *state;
    uint32_t source = simple_fragment(f, T0, 10 * S);
    struct read_pair pairs;
    int64_t weighted = 100000000;

    for (uint64_t i = 0; i < 300; i++) {
        Everflame__V1__Fragment *fragment = ef_make_fragment(f->maker, source, T0, 10);
        fragment->weight_milli = 1001 + i;
        fragment->interval = 1000 + i;
        ef_make_samples(f->maker, ef_stack_of("main"), 1000);
        weighted += (int64_t)((1000 + i) * (1001 + i));
    }
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(totals_of(f, 1, T0, T0 + 10 * S).value_weighted, weighted);
    pairs = pairs_of(f, 1, 0, 0, INT64_MAX);
    assert_in_range(pairs.sections, 2, 128);
    assert_int_equal(pairs.count, 300010);
    assert_int_equal(pairs.value, totals_of(f, 1, T0, T0 + 10 * S).value);
}

static void
given_values_are_kept(void **state)
{
    struct fixture *f = *state;
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "fra");
    Everflame__V1__Fragment *fragment;
    struct read_pair pair;

    ef_make_definition(f->maker, source, "main", false);
    fragment = ef_make_fragment(f->maker, source, T0, 10 * S);
    fragment->profile_type = EVERFLAME__V1__PROFILE_TYPE__ALLOC;
    fragment->interval = 524288;
    ef_make_valued(f->maker, ef_stack_of("main"), 3, 1234567);
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    pair = pairs_of(f, 1, 0, 0, INT64_MAX);
    assert_int_equal(pair.count, 3);
    assert_int_equal(pair.value, 1234567);
    assert_int_equal(totals_of(f, 1, T0, T0 + S).value, 1234567);
}

/* ---- time ---- */

/* Goal: a session of 15 to 25 s does not smear: halves in each bucket, sums to the unit. */
static void
a_fragment_over_two_buckets_is_split_by_overlap(void **state)
{
    struct fixture *f = *state;
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");
    struct ef_store_totals first, second;

    ef_make_definition(f->maker, source, "main;work", false);
    ef_make_definition(f->maker, source, "main;idle", false);
    ef_make_fragment(f->maker, source, T0 + 15 * S, 10 * S);
    ef_make_valued(f->maker, ef_stack_of("main;work"), 7, 1001);
    ef_make_valued(f->maker, ef_stack_of("main;idle"), 4, 77);
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    first = totals_of(f, 1, T0 + 10 * S, T0 + 20 * S);
    second = totals_of(f, 1, T0 + 20 * S, T0 + 30 * S);
    assert_in_range(first.samples, 5, 6);
    assert_int_equal(first.samples + second.samples, 11);
    assert_int_equal(first.value + second.value, 1078);
    assert_int_equal(first.covered_ns, 5 * S);
    assert_int_equal(second.covered_ns, 5 * S);
    assert_int_equal(first.bursts, 1);
    assert_int_equal(second.bursts, 1);
    assert_int_equal(first.squares, first.samples * first.samples);
    assert_int_equal(pairs_of(f, 1, 0, 0, INT64_MAX).value, 1078);
    assert_int_equal(count_of(f, "main;work", 0, INT64_MAX), 7);
}

static void
ticks_decide_the_bucket_exactly(void **state)
{
    struct fixture *f = *state;
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");

    ef_make_definition(f->maker, source, "main;work", false);
    ef_make_definition(f->maker, source, "main;idle", false);
    ef_make_fragment(f->maker, source, T0 + 5 * S, 20 * S);
    ef_make_samples(f->maker, ef_stack_of("main;work"), 3);
    ef_make_samples(f->maker, ef_stack_of("main;idle"), 2);
    ef_make_tick(f->maker, 4999); /* main;work: the last moment of the first bucket */
    ef_make_tick(f->maker, 5000); /* the first of the second */
    ef_make_tick(f->maker, 15000);
    ef_make_tick(f->maker, 0);       /* main;idle */
    ef_make_tick(f->maker, 4000000); /* after the end of the fragment: its last bucket */
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(count_of(f, "main;work", T0, T0 + 10 * S), 1);
    assert_int_equal(count_of(f, "main;work", T0 + 10 * S, T0 + 20 * S), 1);
    assert_int_equal(count_of(f, "main;work", T0 + 20 * S, T0 + 30 * S), 1);
    assert_int_equal(count_of(f, "main;idle", T0, T0 + 10 * S), 1);
    assert_int_equal(count_of(f, "main;idle", T0 + 20 * S, T0 + 30 * S), 1);
}

static void
impossible_times_are_placed_at_the_receive_time(void **state)
{
    struct fixture *f = *state;
    const int64_t starts[] = {0, 12345 * S, NOW + 31 * S};
    uint64_t before = ef_metric_get(EF_METRIC_ingest_clock_corrected_total);

    for (uint64_t i = 0; i < 3; i++) {
        simple_fragment(f, starts[i], 1 * S);
        assert_int_equal(apply_at(f, i + 1, NOW), EF_OK);
    }
    flush_at(f, NOW);
    /* Ends at NOW, the start of a bucket. */
    assert_int_equal(totals_of(f, 1, NOW - 10 * S, NOW).samples, 30);
    assert_int_equal(totals_of(f, 1, 0, INT64_MAX).samples, 30);
    assert_int_equal(ef_metric_get(EF_METRIC_ingest_clock_corrected_total) - before, 3);
}

static void
a_clock_that_is_a_little_ahead_is_believed(void **state)
{
    struct fixture *f = *state;

    simple_fragment(f, NOW + 20 * S, 5 * S);
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(totals_of(f, 1, NOW + 20 * S, NOW + 30 * S).samples, 10);
}

static void
late_samples_are_stored_and_counted(void **state)
{
    struct fixture *f = *state;
    uint64_t before = ef_metric_get(EF_METRIC_ingest_late_samples_total);

    simple_fragment(f, T0 - 7200 * S, S);
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(totals_of(f, 1, T0 - 7200 * S, T0).samples, 10);
    assert_int_equal(ef_metric_get(EF_METRIC_ingest_late_samples_total) - before, 10);
}

static void
what_is_older_than_the_retention_is_refused(void **state)
{
    struct fixture *f = *state;
    uint64_t before = ef_metric_get(EF_METRIC_ingest_refused_limit_total);

    simple_fragment(f, NOW - INT64_C(4) * 86400 * S, S);
    assert_int_equal(apply_at(f, 1, NOW), EF_ELIMIT);
    flush_at(f, NOW);
    assert_int_equal(totals_of(f, 1, 0, INT64_MAX).samples, 0);
    assert_int_equal(ef_metric_get(EF_METRIC_ingest_refused_limit_total) - before, 1);
    simple_fragment(f, T0, S);
    assert_int_equal(apply_at(f, 1, NOW), EF_EEXIST); /* it counts as applied */
}

static void
a_fragment_longer_than_a_day_is_refused(void **state)
{
    struct fixture *f = *state;
    uint32_t source = simple_fragment(f, T0, S);

    ef_make_fragment(f->maker, source, T0 - 86401 * S, (uint64_t)(86401 * S));
    ef_make_samples(f->maker, ef_stack_of("main"), 5);
    assert_int_equal(apply_at(f, 1, NOW), EF_ELIMIT);
    flush_at(f, NOW);
    assert_int_equal(totals_of(f, 1, 0, INT64_MAX).samples, 10);
}

static void
a_snapshot_lies_at_the_end_of_its_span(void **state)
{
    struct fixture *f = *state;
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");
    struct ef_store_totals totals;

    ef_make_definition(f->maker, source, "main", false);
    for (int i = 0; i < 2; i++) {
        Everflame__V1__Fragment *fragment = ef_make_fragment(f->maker, source, T0 + S, 12 * S);
        fragment->profile_type = EVERFLAME__V1__PROFILE_TYPE__INUSE;
        ef_make_valued(f->maker, ef_stack_of("main"), 3, 4096);
    }
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    totals = totals_of(f, 1, T0 + 10 * S, T0 + 20 * S);
    assert_int_equal(totals.snapshots, 2);
    assert_int_equal(totals.samples, 6);
    assert_int_equal(totals.value, 8192);
    assert_int_equal(totals_of(f, 1, T0, T0 + 10 * S).samples, 0);
}

/* ---- usage, gauges, instances ---- */

static void
usage_is_split_over_buckets_and_isolates(void **state)
{
    struct fixture *f = *state;
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "fra");
    Everflame__V1__Usage *usage = ef_make_usage(f->maker, source, T0 + 5 * S, 10 * S, 4000000001);
    struct ef_store_totals first, second;

    usage->isolates = 2;
    usage->hot_cpu_ns = 1000;
    usage->hot_span_ns = 1 * S;
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    first = totals_of(f, 1, T0, T0 + 10 * S);
    second = totals_of(f, 1, T0 + 10 * S, T0 + 20 * S);
    assert_int_equal(first.expected_ns, 5 * S);
    assert_int_equal(second.expected_ns, 5 * S);
    assert_int_equal(first.cpu_ns + second.cpu_ns, 2000000000);
    assert_int_equal(first.cpu_ns, 1000000000);
    assert_int_equal(first.hot_cpu_ns + second.hot_cpu_ns, 500);
    assert_int_equal(first.instances, 1);
    assert_int_equal(first.bursts, 0);
}

static void
instances_are_told_apart_and_gauges_are_maxima(void **state)
{
    struct fixture *f = *state;
    struct ef_store_totals totals;
    char instance[16];

    for (int i = 0; i < 40; i++) {
        Everflame__V1__Fragment *fragment;
        uint32_t source;
        snprintf(instance, sizeof(instance), "i%d", i % 20);
        source = ef_make_source(f->maker, "shop", "v1", instance, "fra");
        if (i == 0)
            ef_make_definition(f->maker, source, "main", false);
        fragment = ef_make_fragment(f->maker, source, T0, S);
        fragment->heap_used_bytes = 1000 + (uint64_t)i;
        fragment->pause_ns = 5000 - (uint64_t)i;
        ef_make_samples(f->maker, ef_stack_of("main"), 1);
    }
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    totals = totals_of(f, 1, T0, T0 + 10 * S);
    assert_int_equal(totals.instances, 20);
    assert_int_equal(totals.heap_used_bytes_max, 1039);
    assert_int_equal(totals.pause_ns_max, 5000);
}

static void
regions_and_types_are_series_of_their_own(void **state)
{
    struct fixture *f = *state;
    const char *regions[] = {"fra", "iad", ""};

    for (uint64_t i = 0; i < 3; i++) {
        uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", regions[i]);
        ef_make_definition(f->maker, source, "main", false);
        ef_make_fragment(f->maker, source, T0, S);
        ef_make_samples(f->maker, ef_stack_of("main"), i + 1);
        ef_make_fragment(f->maker, source, T0, S)->profile_type = EVERFLAME__V1__PROFILE_TYPE__WALL;
        ef_make_samples(f->maker, ef_stack_of("main"), 10);
    }
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    for (uint32_t i = 0; i < 3; i++) {
        assert_int_equal(totals_of(f, 2 * i + 1, T0, T0 + 10 * S).samples, i + 1);
        assert_int_equal(totals_of(f, 2 * i + 2, T0, T0 + 10 * S).samples, 10);
    }
}

/* ---- definitions ---- */

/* Goal: callers may be defined after those they call, in any order. */
static void
definitions_are_taken_in_any_order(void **state)
{
    struct fixture *f = *state;
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");

    ef_make_definition(f->maker, source, "a;b;c;d;e;f;g", true);
    ef_make_definition(f->maker, source, "a;b;x", true);
    ef_make_fragment(f->maker, source, T0, S);
    ef_make_samples(f->maker, ef_stack_of("a;b;c;d;e;f;g"), 5);
    ef_make_samples(f->maker, ef_stack_of("a;b;x"), 6);
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(count_of(f, "a;b;c;d;e;f;g", 0, INT64_MAX), 5);
    assert_int_equal(count_of(f, "a;b;x", 0, INT64_MAX), 6);
}

/* Goal: nobody can give another's stack a name of his choice. */
static void
false_definitions_are_refused(void **state)
{
    struct fixture *f = *state;
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");
    uint64_t before = ef_metric_get(EF_METRIC_ingest_refused_definitions_total);
    uint64_t evil = ef_function_hash("evil", 4, "", 0, 0);
    uint64_t good = ef_function_hash("main", 4, "app.js", 6, 1);

    ef_make_raw_function(f->maker, source, good, "evil", "app.js", 1); /* wrong content */
    ef_make_raw_function(f->maker, source, evil, "evil", "", 0);
    ef_make_raw_stack(f->maker, source, ef_stack_of("main"), 0, evil, 1);       /* wrong hash */
    ef_make_raw_stack(f->maker, source, ef_stack_hash(0, good, 1), 0, good, 1); /* no function */
    ef_make_fragment(f->maker, source, T0, S);
    ef_make_samples(f->maker, ef_stack_of("main"), 5);
    assert_int_equal(apply_at(f, 1, NOW), EF_ENOTFOUND);
    assert_int_equal(ef_metric_get(EF_METRIC_ingest_refused_definitions_total) - before, 3);
    ef_make_definition(f->maker, ef_make_source(f->maker, "shop", "v1", "i1", ""), "main", false);
    assert_int_equal(apply_at(f, 2, NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(count_of(f, "main", 0, INT64_MAX), 5);
}

static void
versions_do_not_share_definitions(void **state)
{
    struct fixture *f = *state;
    uint32_t one, two;

    simple_fragment(f, T0, S);
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    one = ef_make_source(f->maker, "shop", "v1", "i1", "");
    two = ef_make_source(f->maker, "shop", "v2", "i1", "");
    ef_make_fragment(f->maker, one, T0, S);
    ef_make_samples(f->maker, ef_stack_of("main;work"), 5);
    ef_make_fragment(f->maker, two, T0, S);
    ef_make_samples(f->maker, ef_stack_of("main;work"), 5);
    assert_int_equal(apply_at(f, 2, NOW), EF_ENOTFOUND);
}

/* ---- limits ---- */

static void
stacks_above_the_limit_are_booked_on_the_reserved_one(void **state)
{
    struct fixture *f = *state;
    uint64_t before = ef_metric_get(EF_METRIC_limit_stacks_total);
    uint32_t source;
    char path[32];

    f->options.stacks_per_version_max = 10;
    reopen(f);
    source = ef_make_source(f->maker, "shop", "v1", "i1", "");
    for (int i = 0; i < 30; i++) {
        snprintf(path, sizeof(path), "f%d", i);
        ef_make_definition(f->maker, source, path, false);
    }
    ef_make_fragment(f->maker, source, T0, S);
    for (int i = 0; i < 30; i++) {
        snprintf(path, sizeof(path), "f%d", i);
        ef_make_samples(f->maker, ef_stack_of(path), 2);
    }
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(totals_of(f, 1, 0, INT64_MAX).samples, 60);
    assert_int_equal(reserved_count(f, EF_STACK_LIMIT_NAME), 40);
    assert_int_equal(count_of(f, "f9", 0, INT64_MAX), 2);
    assert_int_equal(ef_metric_get(EF_METRIC_limit_stacks_total) - before, 40);
    /* Also after a restart, when the table is read from the store. */
    reopen(f);
    source = ef_make_source(f->maker, "shop", "v1", "i1", "");
    ef_make_fragment(f->maker, source, T0, S);
    ef_make_samples(f->maker, ef_stack_of("f29"), 1);
    assert_int_equal(apply_at(f, 2, NOW), EF_OK);
    flush_at(f, NOW);
    assert_int_equal(reserved_count(f, EF_STACK_LIMIT_NAME), 41);
}

static void
names_beyond_the_limits_are_refused_and_the_rest_applied(void **state)
{
    struct fixture *f = *state;
    uint64_t before = ef_metric_get(EF_METRIC_limit_series_total);
    char version[16];

    f->options.versions_per_worker_max = 3;
    reopen(f);
    for (int i = 0; i < 5; i++) {
        uint32_t source;
        snprintf(version, sizeof(version), "v%d", i);
        source = ef_make_source(f->maker, "shop", version, "i1", "");
        ef_make_definition(f->maker, source, "main", false);
        ef_make_fragment(f->maker, source, T0, S);
        ef_make_samples(f->maker, ef_stack_of("main"), 2);
    }
    assert_int_equal(apply_at(f, 1, NOW), EF_ELIMIT);
    flush_at(f, NOW);
    for (uint32_t series = 1; series <= 3; series++)
        assert_int_equal(totals_of(f, series, 0, INT64_MAX).samples, 2);
    assert_int_equal(totals_of(f, 4, 0, INT64_MAX).samples, 0);
    assert_int_equal(ef_metric_get(EF_METRIC_limit_series_total) - before, 2);
}

static void
workers_and_series_have_limits(void **state)
{
    struct fixture *f = *state;
    uint32_t source;

    f->options.workers_max = 1;
    f->options.series_max = 2;
    reopen(f);
    simple_fragment(f, T0, S);
    assert_int_equal(apply_at(f, 1, NOW), EF_OK);
    source = ef_make_source(f->maker, "bank", "v1", "i1", "");
    ef_make_fragment(f->maker, source, T0, S);
    assert_int_equal(apply_at(f, 2, NOW), EF_ELIMIT);
    simple_fragment(f, T0, S);
    source = ef_make_source(f->maker, "shop", "v1", "i1", "fra");
    ef_make_fragment(f->maker, source, T0, S)->profile_type = EVERFLAME__V1__PROFILE_TYPE__WALL;
    assert_int_equal(apply_at(f, 3, NOW), EF_OK);
    ef_make_fragment(f->maker, ef_make_source(f->maker, "shop", "v1", "i1", "iad"), T0, S);
    assert_int_equal(apply_at(f, 4, NOW), EF_ELIMIT);
}

/* Goal: sums that would leave their range are refused, not wrapped. */
static void
overflowing_values_are_refused(void **state)
{
    struct fixture *f = *state;
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");

    ef_make_definition(f->maker, source, "main", false);
    for (int i = 0; i < 3; i++) {
        Everflame__V1__Fragment *fragment = ef_make_fragment(f->maker, source, T0, S);
        fragment->profile_type = EVERFLAME__V1__PROFILE_TYPE__ALLOC;
        ef_make_valued(f->maker, ef_stack_of("main"), 1, INT64_C(1) << 61);
    }
    ef_make_fragment(f->maker, source, T0, S)->weight_milli = UINT64_MAX;
    ef_make_samples(f->maker, ef_stack_of("main"), 1000);
    assert_int_equal(apply_at(f, 1, NOW), EF_ELIMIT);
    flush_at(f, NOW);
    assert_int_equal(totals_of(f, 1, 0, INT64_MAX).value, INT64_C(1) << 61);
}

/* Goal: one batch cannot make millions of buckets. */
static void
a_batch_cannot_fill_the_memory(void **state)
{
    struct fixture *f = *state;
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");

    ef_make_definition(f->maker, source, "main", false);
    for (int i = 0; i < 100; i++) {
        ef_make_fragment(f->maker, source, NOW - 86000 * S - i, (uint64_t)(86000 * S));
        ef_make_samples(f->maker, ef_stack_of("main"), 1000000);
        ef_make_usage(f->maker, source, NOW - 3000 * S - i, (uint64_t)(3000 * S), 1000);
    }
    assert_int_equal(apply_at(f, 1, NOW), EF_ELIMIT);
    assert_true(ef_aggregate_bytes(f->aggregate) < UINT64_C(48) << 20);
    flush_at(f, NOW);
    assert_true(totals_of(f, 1, 0, INT64_MAX).samples >= 1000000);
    assert_int_equal(totals_of(f, 1, 0, INT64_MAX).samples % 1000000, 0);
}

static void
full_memory_refuses_until_a_flush(void **state)
{
    struct fixture *f = *state;
    uint64_t sequence = 0, refused_at = 0;
    char instance[32], path[32];
    ef_rc rc = EF_OK;

    f->options.memory_bytes_max = 1 << 20;
    reopen(f);
    while (rc == EF_OK && sequence < 5000) {
        uint32_t source;
        snprintf(instance, sizeof(instance), "i%d", (int)sequence);
        source = ef_make_source(f->maker, "shop", "v1", instance, "");
        snprintf(path, sizeof(path), "main;f%d", (int)sequence % 100);
        ef_make_definition(f->maker, source, path, false);
        ef_make_fragment(f->maker, source, T0 + (int64_t)(sequence % 2000) * 10 * S - 20000 * S, S);
        ef_make_samples(f->maker, ef_stack_of(path), 1);
        rc = apply_at(f, ++sequence, NOW);
        assert_true(ef_aggregate_bytes(f->aggregate) <= 1 << 20);
    }
    assert_int_equal(rc, EF_EBUSY);
    refused_at = sequence;
    flush_at(f, NOW);
    ef_make_fragment(f->maker, ef_make_source(f->maker, "shop", "v1", "x", ""), T0, S);
    assert_int_equal(apply_at(f, refused_at, NOW), EF_OK); /* it was not taken for applied */
    flush_at(f, NOW);
    assert_int_equal(totals_of(f, 1, 0, INT64_MAX).samples, refused_at - 1);
}

static void
define_version(struct fixture *f, int version, int stacks)
{
    char name[16], path[32];
    uint32_t source;

    snprintf(name, sizeof(name), "v%d", version);
    source = ef_make_source(f->maker, "shop", name, "i1", "");
    for (int i = 0; i < stacks; i++) {
        snprintf(path, sizeof(path), "f%d", i);
        ef_make_definition(f->maker, source, path, false);
    }
}

static void
use_version(struct fixture *f, int version, const char *path)
{
    char name[16];

    snprintf(name, sizeof(name), "v%d", version);
    ef_make_fragment(f->maker, ef_make_source(f->maker, "shop", name, "i1", ""), T0, S);
    ef_make_samples(f->maker, ef_stack_of(path), 1);
}

/* Goal: tables that are not used leave memory when others need it, and are read again from the
 * store when they are: the cap is kept and no stack is lost or given a second id. */
static void
unused_tables_are_evicted_and_read_again(void **state)
{
    struct fixture *f = *state;
    int64_t now_ns = NOW;
    uint64_t sequence = 0;
    enum { VERSIONS = 60 };

    f->options.memory_bytes_max = 1 << 20;
    reopen(f);
    for (int round = 0; round < 3; round++) {
        for (int v = 0; v < VERSIONS; v++) {
            if (round == 0)
                define_version(f, v, 1000);
            use_version(f, v, "f999");
            assert_int_equal(apply_at(f, ++sequence, now_ns), EF_OK);
            assert_true(ef_aggregate_bytes(f->aggregate) <= 1 << 20);
            flush_at(f, now_ns);
            now_ns += 61 * S;
        }
    }
    for (uint32_t v = 1; v <= VERSIONS; v++) {
        uint32_t id = stack_id(f, v, ef_stack_of("f999"));
        assert_int_equal(id, 1000);
        assert_int_equal(pairs_of(f, v, id, 0, INT64_MAX).count, 3);
    }
}

/* Goal: with more live stacks than memory, new ones are folded; what is in use is not thrown out.
 */
static void
live_tables_are_not_evicted_for_new_stacks(void **state)
{
    struct fixture *f = *state;
    uint64_t before = ef_metric_get(EF_METRIC_limit_stacks_total);
    uint64_t sequence = 0;

    f->options.memory_bytes_max = 1 << 20;
    reopen(f);
    for (int v = 0; v < 60; v++) {
        define_version(f, v, 1000);
        use_version(f, v, "f999");
        assert_int_equal(apply_at(f, ++sequence, NOW + v * S), EF_OK);
        assert_true(ef_aggregate_bytes(f->aggregate) <= 1 << 20);
        flush_at(f, NOW + v * S);
    }
    assert_true(ef_metric_get(EF_METRIC_limit_stacks_total) > before);
    assert_int_equal(pairs_of(f, 1, stack_id(f, 1, ef_stack_of("f999")), 0, INT64_MAX).count, 1);
    for (uint32_t series = 1; series <= 60; series++)
        assert_int_equal(totals_of(f, series, 0, INT64_MAX).samples, 1);
}

static void
bad_indexes_are_refused(void **state)
{
    struct fixture *f = *state;

    simple_fragment(f, T0, S);
    ef_make_fragment(f->maker, 99, T0, S);
    assert_int_equal(apply_at(f, 1, NOW), EF_EINVAL);
    simple_fragment(f, T0, S);
    assert_int_equal(apply_at(f, 0, NOW), EF_EINVAL);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_batch_is_in_the_store_after_a_flush),
        TEST(equal_stacks_of_many_fragments_are_one_pair),
        TEST(counts_above_32_bits_are_kept),
        TEST(strata_and_weights_are_kept_apart),
        TEST(too_many_weights_share_sections),
        TEST(given_values_are_kept),
        TEST(a_fragment_over_two_buckets_is_split_by_overlap),
        TEST(ticks_decide_the_bucket_exactly),
        TEST(impossible_times_are_placed_at_the_receive_time),
        TEST(a_clock_that_is_a_little_ahead_is_believed),
        TEST(late_samples_are_stored_and_counted),
        TEST(what_is_older_than_the_retention_is_refused),
        TEST(a_fragment_longer_than_a_day_is_refused),
        TEST(a_snapshot_lies_at_the_end_of_its_span),
        TEST(usage_is_split_over_buckets_and_isolates),
        TEST(instances_are_told_apart_and_gauges_are_maxima),
        TEST(regions_and_types_are_series_of_their_own),
        TEST(definitions_are_taken_in_any_order),
        TEST(false_definitions_are_refused),
        TEST(versions_do_not_share_definitions),
        TEST(stacks_above_the_limit_are_booked_on_the_reserved_one),
        TEST(names_beyond_the_limits_are_refused_and_the_rest_applied),
        TEST(workers_and_series_have_limits),
        TEST(overflowing_values_are_refused),
        TEST(a_batch_cannot_fill_the_memory),
        TEST(full_memory_refuses_until_a_flush),
        TEST(unused_tables_are_evicted_and_read_again),
        TEST(live_tables_are_not_evicted_for_new_stacks),
        TEST(bad_indexes_are_refused),
    };
    return cmocka_run_group_tests_name("aggregate.apply", tests, NULL, NULL);
}
