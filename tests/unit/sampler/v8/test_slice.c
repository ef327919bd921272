/*
 * Slices: what goes in as hit counts comes out as hits, whatever the times are.
 */
#include "tests/support/ef_test.h"

#include "sampler/v8/slice.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/buf.h"

#define NODES_MAX 40

static uint64_t seed;

static uint64_t
next_random(void)
{
    seed ^= seed << 13;
    seed ^= seed >> 7;
    seed ^= seed << 17;
    return seed;
}

static uint64_t
below(uint64_t limit)
{
    return next_random() % limit;
}

/* A random profile as V8 writes it, and what must come out. */
struct sample_profile {
    struct ef_buf text;
    uint64_t hits; /* without (root) and (idle) */
    uint64_t hits_of[NODES_MAX];
    int64_t start_us, end_us;
    int node_count;
};

static const char *
name_of(int node, char *text, size_t len)
{
    static const char *const own[] = {"(root)", "(idle)", "(program)", "(garbage collector)"};

    if (node < 4)
        return own[node];
    snprintf(text, len, "f%d", node);
    return text;
}

/* Node i > 3 has a parent among those before it; 1 to 3 hang from the root. */
static void
write_nodes(struct sample_profile *sample)
{
    int parent[NODES_MAX];

    for (int i = 1; i < sample->node_count; i++) {
        parent[i] = i < 5 ? 0 : (int)below((uint64_t)i);
        if (parent[i] > 0 && parent[i] < 4)
            parent[i] = 0;
    }
    for (int i = 0; i < sample->node_count; i++) {
        char name[32];
        bool comma = false;
        sample->hits_of[i] = below(3) == 0 ? 0 : below(60);
        if (i > 1)
            sample->hits += sample->hits_of[i];
        ef_buf_printf(&sample->text,
                      "%s{\"id\":%d,\"callFrame\":{\"functionName\":\"%s\",\"scriptId\":\"%d\","
                      "\"url\":\"%s\",\"lineNumber\":%d,\"columnNumber\":1},\"hitCount\":%d,"
                      "\"children\":[",
                      i > 0 ? "," : "", i + 1, name_of(i, name, sizeof(name)), i < 4 ? 0 : 8,
                      i < 4 ? "" : "a.js", i < 4 ? -1 : i, (int)sample->hits_of[i]);
        for (int child = i + 1; child < sample->node_count; child++) {
            if (parent[child] != i)
                continue;
            ef_buf_printf(&sample->text, "%s%d", comma ? "," : "", child + 1);
            comma = true;
        }
        ef_buf_append_str(&sample->text, "]}");
    }
}

static void
make_sample(struct sample_profile *sample)
{
    size_t ticks = below(400);
    int64_t at = (int64_t)below(1000000000);

    memset(sample, 0, sizeof(*sample));
    ef_buf_init(&sample->text, 1u << 20);
    sample->node_count = 5 + (int)below(NODES_MAX - 5);
    sample->start_us = at;
    ef_buf_append_str(&sample->text, "{\"nodes\":[");
    write_nodes(sample);
    ef_buf_append_str(&sample->text, "],\"samples\":[");
    for (size_t i = 0; i < ticks; i++)
        ef_buf_printf(&sample->text, "%s%d", i > 0 ? "," : "",
                      1 + (int)below((uint64_t)sample->node_count));
    ef_buf_append_str(&sample->text, "],\"timeDeltas\":[");
    for (size_t i = 0; i < ticks; i++) {
        int64_t delta = below(9) == 0 ? -(int64_t)below(90000) : (int64_t)below(200000);
        at += delta;
        ef_buf_printf(&sample->text, "%s%lld", i > 0 ? "," : "", (long long)delta);
    }
    sample->end_us = (at > sample->start_us ? at : sample->start_us) + (int64_t)below(3000000);
    ef_buf_printf(&sample->text, "],\"startTime\":%lld,\"endTime\":%lld}",
                  (long long)sample->start_us, (long long)sample->end_us);
    assert_false(sample->text.failed);
}

static struct ef_v8_clock
clock_at(int64_t mono_us)
{
    return (struct ef_v8_clock){{INT64_C(1796133968123456789)}, {mono_us * 1000}};
}

/* Every slice is well formed and follows the one before without a gap. */
static void
check_slices(const struct ef_cpu_profile *cpu)
{
    int64_t at = cpu->start_ns;

    assert_true(cpu->slice_count > 0);
    for (size_t i = 0; i < cpu->slice_count; i++) {
        const struct ef_slice *slice = &cpu->slices[i];
        size_t tick = 0;
        assert_int_equal(slice->start_ns, at);
        at += (int64_t)slice->span_ns;
        assert_true(slice->span_ns > 0 && slice->span_ns <= EF_SLICE_SPAN_NS);
        if (i > 0)
            assert_int_equal(slice->start_ns % EF_SLICE_SPAN_NS, 0);
        assert_int_equal(ef_bucket_start(slice->start_ns, EF_SLICE_SPAN_NS),
                         ef_bucket_start(at - 1, EF_SLICE_SPAN_NS));
        for (size_t n = 0; n < slice->node_count; n++) {
            assert_true(n == 0 || slice->nodes[n] > slice->nodes[n - 1]);
            assert_true(slice->nodes[n] > 0 && slice->nodes[n] < cpu->profile->node_count);
            assert_true(slice->hits[n] > 0);
            for (uint64_t h = 0; h < slice->hits[n]; h++, tick++) {
                assert_true((int64_t)slice->tick_ms[tick] * EF_NS_PER_MS <=
                            (int64_t)slice->span_ns);
                assert_true(h == 0 || slice->tick_ms[tick] >= slice->tick_ms[tick - 1]);
            }
        }
        assert_int_equal(tick, slice->tick_count);
    }
    assert_int_equal(at, cpu->end_ns);
}

/* Sum of hits of the node with this name over all slices. */
static uint64_t
hits_named(const struct ef_cpu_profile *cpu, const char *name)
{
    uint64_t hits = 0;
    char buf[64];

    for (size_t i = 0; i < cpu->slice_count; i++)
        for (size_t n = 0; n < cpu->slices[i].node_count; n++) {
            uint32_t frame = cpu->profile->nodes[cpu->slices[i].nodes[n]].frame;
            if (strcmp(ef_profile_frame_name(cpu->profile, frame, buf, sizeof(buf)), name) == 0)
                hits += cpu->slices[i].hits[n];
        }
    return hits;
}

static void
read_sample(const char *text, size_t len, struct ef_cpuprofile *ret)
{
    struct ef_err err = {0};

    if (ef_cpuprofile_read_ticks((const uint8_t *)text, len, &ef_profile_limits_default, ret,
                                 &err) != EF_OK)
        fail_msg("%s", err.msg);
}

/* Property: for random profiles, negative deltas included, no hit is lost, made or moved to another
 * function, and slices cover the time exactly. */
static void
hits_of_every_function_are_conserved(void **state)
{
    (void)state;
    seed = ef_test_seed() | 1;
    for (int round = 0; round < 300; round++) {
        struct sample_profile sample;
        struct ef_cpuprofile cpuprofile;
        struct ef_cpu_profile cpu = {0};
        struct ef_v8_clock clock;
        struct ef_err err = {0};
        make_sample(&sample);
        clock = clock_at(sample.end_us + (int64_t)below(100000000));
        read_sample((char *)sample.text.data, sample.text.len, &cpuprofile);
        assert_int_equal(ef_v8_slice(&cpuprofile, &clock, 19300000, &cpu, &err), EF_OK);
        assert_int_equal(cpu.hits, sample.hits);
        assert_int_equal(ef_profile_total(cpu.profile, 0), sample.hits);
        check_slices(&cpu);
        for (int i = 0; i < sample.node_count; i++) {
            char name[32];
            assert_int_equal(hits_named(&cpu, name_of(i, name, sizeof(name))),
                             i < 2 ? 0 : sample.hits_of[i]);
        }
        ef_cpu_profile_fini(&cpu);
        ef_cpuprofile_fini(&cpuprofile);
        ef_buf_fini(&sample.text);
    }
}

#define ONE_NODE(hits, rest)                                                                       \
    "{\"nodes\":[{\"id\":1,\"callFrame\":{\"functionName\":\"hot\",\"scriptId\":\"8\",\"url\":"    \
    "\"a.js\",\"lineNumber\":1,\"columnNumber\":1},\"hitCount\":" hits ",\"children\":[]}]," rest  \
    "}"

static void
slice_text(const char *text, struct ef_v8_clock clock, uint64_t planned_ns,
           struct ef_cpu_profile *ret)
{
    struct ef_cpuprofile cpuprofile;
    struct ef_err err = {0};

    read_sample(text, strlen(text), &cpuprofile);
    if (ef_v8_slice(&cpuprofile, &clock, planned_ns, ret, &err) != EF_OK)
        fail_msg("%s", err.msg);
    ef_cpuprofile_fini(&cpuprofile);
}

/* Goal: a work burst is shown when it was. Wall clock = V8's µs + 100 s. */
static void
hits_stand_in_the_slice_of_their_time(void **state)
{
    struct ef_cpu_profile cpu = {0};
    struct ef_v8_clock clock = {{INT64_C(130000000000)}, {INT64_C(30000000000)}};

    (void)state;
    /* 105 s to 130 s: slices 105-110, 110-120, 120-130; samples at 106, 121.5, 121.75 */
    slice_text(ONE_NODE("3", "\"startTime\":5000000,\"endTime\":30000000,\"samples\":[1,1,1],"
                             "\"timeDeltas\":[1000000,15500000,250000]"),
               clock, 19300000, &cpu);
    assert_int_equal(cpu.slice_count, 3);
    assert_int_equal(cpu.slices[0].start_ns, INT64_C(105000000000));
    assert_int_equal(cpu.slices[0].span_ns, INT64_C(5000000000));
    assert_int_equal(cpu.slices[0].tick_count, 1);
    assert_int_equal(cpu.slices[0].tick_ms[0], 1000);
    assert_int_equal(cpu.slices[1].tick_count, 0); /* covered, and nothing used */
    assert_int_equal(cpu.slices[1].span_ns, INT64_C(10000000000));
    assert_int_equal(cpu.slices[2].tick_count, 2);
    assert_int_equal(cpu.slices[2].node_count, 1);
    assert_int_equal(cpu.slices[2].hits[0], 2);
    assert_int_equal(cpu.slices[2].tick_ms[0], 1500);
    assert_int_equal(cpu.slices[2].tick_ms[1], 1750);
    check_slices(&cpu);
    ef_cpu_profile_fini(&cpu);
}

/* Samples without a hit (deoptimisations) must not pull the hits to their time. */
static void
more_times_than_hits_are_thinned_evenly(void **state)
{
    struct ef_cpu_profile cpu = {0};
    struct ef_v8_clock clock = {{INT64_C(100000000000)}, {INT64_C(10000000000)}};

    (void)state;
    slice_text(ONE_NODE("2", "\"startTime\":0,\"endTime\":9000000,\"samples\":[1,1,1,1,1,1],"
                             "\"timeDeltas\":[1000000,1000000,1000000,1000000,1000000,1000000]"),
               clock, 19300000, &cpu);
    assert_int_equal(cpu.slices[0].tick_count, 2);
    assert_int_equal(cpu.slices[0].tick_ms[0], 2000);
    assert_int_equal(cpu.slices[0].tick_ms[1], 5000);
    ef_cpu_profile_fini(&cpu);
    slice_text(ONE_NODE("4", "\"startTime\":0,\"endTime\":9000000,\"samples\":[1,1],"
                             "\"timeDeltas\":[1000000,1000000]"),
               clock, 19300000, &cpu);
    assert_int_equal(cpu.slices[0].tick_count, 4); /* fewer times: repeated */
    assert_int_equal(cpu.slices[0].tick_ms[1], 1000);
    assert_int_equal(cpu.slices[0].tick_ms[2], 2000);
    ef_cpu_profile_fini(&cpu);
    slice_text(ONE_NODE("3", "\"startTime\":0,\"endTime\":6000000,\"samples\":[],"
                             "\"timeDeltas\":[]"),
               clock, 19300000, &cpu);
    assert_int_equal(cpu.slices[0].tick_count, 3); /* none: spread over the profile */
    assert_int_equal(cpu.slices[0].tick_ms[0], 999);
    assert_int_equal(cpu.slices[0].tick_ms[2], 4999);
    ef_cpu_profile_fini(&cpu);
}

/* Goal: a profile of another clock ends when it came, instead of in another century. */
static void
foreign_clock_ends_at_the_arrival(void **state)
{
    struct ef_cpu_profile cpu = {0};
    struct ef_v8_clock clock = {{INT64_C(1796133968000000000)}, {INT64_C(7000000000000)}};

    (void)state;
    slice_text(ONE_NODE("1", "\"startTime\":1000000,\"endTime\":3000000,\"samples\":[1],"
                             "\"timeDeltas\":[500000]"),
               clock, 19300000, &cpu);
    assert_int_equal(cpu.end_ns, INT64_C(1796133968000000000));
    assert_int_equal(cpu.start_ns, INT64_C(1796133966000000000));
    ef_cpu_profile_fini(&cpu);
}

/* A quiet isolate: ticks of 50 ms while it works, 0.8 s between. The period is still seen. */
static void
orphan_interval_is_the_tick_and_not_the_gap(void **state)
{
    struct ef_cpu_profile cpu = {0};
    struct ef_v8_clock clock = {{INT64_C(100000000000)}, {INT64_C(100000000000)}};
    struct ef_buf text;

    (void)state;
    ef_buf_init(&text, 1u << 16);
    ef_buf_append_str(&text, "\"startTime\":0,\"endTime\":90000000,\"samples\":[1");
    for (int i = 1; i < 100; i++)
        ef_buf_append_str(&text, ",1");
    ef_buf_append_str(&text, "],\"timeDeltas\":[0");
    for (int i = 1; i < 100; i++)
        ef_buf_printf(&text, ",%d", i % 5 < 2 ? 50100 + i : 800000 + i * 3000);
    ef_buf_append(&text, "]", 2);
    char *whole = NULL;
    assert_true(asprintf(&whole,
                         "{\"nodes\":[{\"id\":1,\"callFrame\":{\"functionName\":\"hot\","
                         "\"scriptId\":\"8\",\"url\":\"a.js\",\"lineNumber\":1,"
                         "\"columnNumber\":1},\"hitCount\":100}],%s}",
                         (char *)text.data) > 0);
    slice_text(whole, clock, 0, &cpu);
    assert_true(cpu.orphan);
    assert_in_range(cpu.interval_ns, 50000000, 50300000);
    assert_true(cpu.interval_measured_ns > 700000000); /* the median, as promised */
    ef_cpu_profile_fini(&cpu);
    free(whole);
    ef_buf_fini(&text);
}

static void
impossible_profiles_are_refused(void **state)
{
    static const struct {
        const char *text;
        ef_rc rc;
    } bad[] = {
        {ONE_NODE("1", "\"startTime\":0,\"endTime\":9e15,\"samples\":[1],\"timeDeltas\":[1]"),
         EF_ECORRUPT},
        {ONE_NODE("1000000000", "\"startTime\":0,\"endTime\":90,\"samples\":[1],"
                                "\"timeDeltas\":[1]"),
         EF_ELIMIT},
        {ONE_NODE("-5", "\"startTime\":0,\"endTime\":90,\"samples\":[1],\"timeDeltas\":[1]"),
         EF_ECORRUPT},
    };

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(bad); i++) {
        struct ef_v8_clock clock = clock_at(100);
        struct ef_cpuprofile cpuprofile;
        struct ef_cpu_profile cpu = {.hits = 77};
        struct ef_err err = {0};
        ef_rc rc = ef_cpuprofile_read_ticks((const uint8_t *)bad[i].text, strlen(bad[i].text),
                                            &ef_profile_limits_default, &cpuprofile, &err);
        if (rc == EF_OK) { /* what the reader lets pass stops here */
            rc = ef_v8_slice(&cpuprofile, &clock, 1000000, &cpu, &err);
            ef_cpuprofile_fini(&cpuprofile);
            assert_int_equal(rc, bad[i].rc);
        }
        assert_int_not_equal(rc, EF_OK);
        assert_int_equal(cpu.hits, 77);
    }
}

static void
profile_without_length_has_one_slice(void **state)
{
    struct ef_cpu_profile cpu = {0};

    (void)state;
    slice_text(ONE_NODE("2", "\"startTime\":50,\"endTime\":50,\"samples\":[1],\"timeDeltas\":[0]"),
               clock_at(60), 1000000, &cpu);
    assert_int_equal(cpu.slice_count, 1);
    assert_int_equal(cpu.slices[0].tick_count, 2);
    assert_int_equal(cpu.interval_measured_ns, 0); /* too few */
    ef_cpu_profile_fini(&cpu);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(hits_of_every_function_are_conserved),
        cmocka_unit_test(hits_stand_in_the_slice_of_their_time),
        cmocka_unit_test(more_times_than_hits_are_thinned_evenly),
        cmocka_unit_test(foreign_clock_ends_at_the_arrival),
        cmocka_unit_test(orphan_interval_is_the_tick_and_not_the_gap),
        cmocka_unit_test(impossible_profiles_are_refused),
        cmocka_unit_test(profile_without_length_has_one_slice),
    };
    return cmocka_run_group_tests_name("sampler/v8/slice", tests, NULL, NULL);
}
