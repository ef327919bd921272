/*
 * V8 CPU profiles: what hits and times mean, damaged trees, real captures, ticks.
 */
#include "tests/support/ef_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/formats/formats.h"

struct fixture {
    struct ef_profile *profile;
    struct ef_cpuprofile ticks;
    struct ef_err err;
};

static int
setup(void **state)
{
    *state = calloc(1, sizeof(struct fixture));
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_profile_free(f->profile);
    ef_cpuprofile_fini(&f->ticks);
    free(f);
    return 0;
}

#define FRAME(name, url, line)                                                                     \
    "\"callFrame\":{\"functionName\":\"" name "\",\"scriptId\":\"8\",\"url\":\"" url               \
    "\",\"lineNumber\":" line ",\"columnNumber\":4}"
#define ROOT                                                                                       \
    "\"callFrame\":{\"functionName\":\"(root)\",\"url\":\"\",\"lineNumber\":-1,"                   \
    "\"columnNumber\":-1}"
#define IDLE                                                                                       \
    "\"callFrame\":{\"functionName\":\"(idle)\",\"url\":\"\",\"lineNumber\":-1,"                   \
    "\"columnNumber\":-1}"

static ef_rc
read_text(struct fixture *f, const char *text)
{
    ef_profile_free(f->profile);
    f->profile = NULL;
    return ef_format_find("cpuprofile")
        ->read((const uint8_t *)text, strlen(text), &ef_profile_limits_default, &f->profile,
               &f->err);
}

static void
read_ticks(struct fixture *f, const char *text)
{
    ef_cpuprofile_fini(&f->ticks);
    if (ef_cpuprofile_read_ticks((const uint8_t *)text, strlen(text), &ef_profile_limits_default,
                                 &f->ticks, &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
}

static void
expect_refused(struct fixture *f, const char *text, const char *words)
{
    assert_int_equal(read_text(f, text), EF_ECORRUPT);
    assert_null(f->profile);
    if (strstr(f->err.msg, words) == NULL || strncmp(f->err.msg, "cpuprofile: ", 12) != 0)
        fail_msg("'%s' does not say '%s'", f->err.msg, words);
}

/* Self value of all nodes of a function; -1 when there is none. */
static int64_t
self_of(const struct ef_profile *profile, const char *name, uint32_t type)
{
    int64_t sum = -1;
    char buf[64];

    for (uint32_t i = 1; i < profile->node_count; i++) {
        if (strcmp(ef_profile_frame_name(profile, profile->nodes[i].frame, buf, sizeof(buf)),
                   name) == 0)
            sum = (sum < 0 ? 0 : sum) + profile->values[(size_t)i * profile->type_count + type];
    }
    return sum;
}

static void
hits_times_the_median_interval_are_the_cpu(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(
        read_text(
            f, "{\"nodes\":[{\"id\":1," ROOT ",\"hitCount\":0,\"children\":[2]},"
               "{\"id\":2," FRAME("work", "a.js",
                                  "9") ",\"hitCount\":4}],"
                                       "\"startTime\":1000,\"endTime\":6000,\"samples\":[2,2,2,2],"
                                       "\"timeDeltas\":[50,1100,1100,1500]}"),
        EF_OK);
    assert_int_equal(self_of(f->profile, "work", 0), 4);
    assert_int_equal(self_of(f->profile, "work", 1), 4 * 1100000);
    assert_int_equal(f->profile->period, 1100000);
    assert_int_equal(f->profile->duration_ns, 5000000);
    assert_int_equal(f->profile->time_ns, 0); /* V8's clock is not wall time. */
    assert_int_equal(f->profile->samples, 4);
    assert_int_equal(f->profile->node_count, 2); /* (root) is no frame. */
    assert_int_equal(f->profile->functions[1].start_line, 10);
    assert_int_equal(f->profile->frames[1].column, 5);
}

/* Field fault 46: idle is dropped and its time goes to nobody. */
static void
ninety_five_percent_idle_adds_nothing_to_the_busy_rest(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(
        read_text(f, "{\"nodes\":[{\"id\":1," ROOT ",\"children\":[2,3]},"
                     "{\"id\":2," IDLE ",\"hitCount\":95},"
                     "{\"id\":3," FRAME(
                         "work", "a.js",
                         "9") ",\"hitCount\":5}],"
                              "\"startTime\":0,\"endTime\":100000,\"samples\":[2,2,3,3,2,3],"
                              "\"timeDeltas\":[1000,1000,1000,1000,1000,1000]}"),
        EF_OK);
    assert_int_equal(self_of(f->profile, "(idle)", 0), -1);
    assert_int_equal(self_of(f->profile, "work", 0), 5);
    assert_int_equal(ef_profile_total(f->profile, 1), 5000000);
}

/* Goal: long gaps of a quiet Worker neither weigh samples nor spoil the interval. */
static void
gaps_of_a_quiet_worker_are_not_cpu(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(
        read_text(
            f,
            "{\"nodes\":[{\"id\":1," ROOT ",\"children\":[3]},"
            "{\"id\":3," FRAME(
                "work", "a.js",
                "9") ",\"hitCount\":10}],"
                     "\"startTime\":0,\"endTime\":400000,\"samples\":[3,3,3,3,3,3,3,3,3,3],"
                     "\"timeDeltas\":[50000,1000,50000,1000,50000,1000,50000,50000,50000,50000]}"),
        EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 1), 10 * 1000000);
}

/* The same with a rare run of ticks: nine of ten gaps are pauses, all of different length. */
static void
one_short_gap_in_ten_is_enough_for_the_interval(void **state)
{
    struct fixture *f = *state;
    struct ef_buf text;

    ef_buf_init(&text, 1u << 16);
    ef_buf_printf(&text, "{\"nodes\":[{\"id\":1," ROOT ",\"hitCount\":40}],\"startTime\":0,"
                         "\"endTime\":100000000,\"samples\":[1");
    for (int i = 0; i < 40; i++)
        ef_buf_append_str(&text, ",1");
    ef_buf_append_str(&text, "],\"timeDeltas\":[0");
    for (int i = 0; i < 40; i++)
        ef_buf_printf(&text, ",%d", i < 5 ? 50100 : 400000 + 50000 * i);
    ef_buf_append_str(&text, "]}");
    ef_buf_put_u8(&text, 0);
    assert_int_equal(read_text(f, (const char *)text.data), EF_OK);
    assert_int_equal(f->profile->period, 50100000);
    ef_buf_fini(&text);
}

/* Field fault 43: a negative delta moves one sample; the sum stays end - start. */
static void
a_negative_delta_does_not_drift(void **state)
{
    struct fixture *f = *state;
    const char *text =
        "{\"nodes\":[{\"id\":1," ROOT ",\"children\":[2]},"
        "{\"id\":2," FRAME("work", "a.js",
                           "9") ",\"hitCount\":7}],"
                                "\"startTime\":1000,\"endTime\":7500,\"samples\":[2,2,1,2,2,2,2,2],"
                                "\"timeDeltas\":[1000,1000,-500,1000,1000,1000,1000,1000]}";

    read_ticks(f, text);
    assert_int_equal(f->ticks.tick_count, 8);
    assert_int_equal(f->ticks.ticks[7].time_us, f->ticks.end_us);
    assert_int_equal(f->ticks.ticks[1].time_us, 2500); /* sorted by time: the moved one */
    assert_int_equal(f->ticks.ticks[1].node, 0);
    assert_int_equal(f->ticks.ticks[2].time_us, 3000);
    for (int i = 0; i < 7; i++)
        assert_true(f->ticks.ticks[i].time_us <= f->ticks.ticks[i + 1].time_us);
    assert_int_equal(read_text(f, text), EF_OK);
    assert_int_equal(self_of(f->profile, "work", 1), 7 * 1000000);
}

/* Field fault 44: the first delta is start -> first sample. */
static void
the_first_delta_is_before_the_first_sample(void **state)
{
    struct fixture *f = *state;
    const char *text = "{\"nodes\":[{\"id\":0," ROOT "}],\"startTime\":1000000,"
                       "\"endTime\":2100000,\"samples\":[0,0,0],"
                       "\"timeDeltas\":[200000,400000,500000]}";

    read_ticks(f, text);
    assert_int_equal(f->ticks.tick_count, 3);
    assert_int_equal(f->ticks.ticks[0].time_us, 1200000);
    assert_int_equal(f->ticks.ticks[1].time_us, 1600000);
    assert_int_equal(f->ticks.ticks[2].time_us, 2100000);
    assert_int_equal(f->ticks.ticks[0].node, 0);
    assert_int_equal(read_text(f, text), EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 0), 3); /* no hitCount: the samples count */
    assert_int_equal(f->profile->period, 450000000);
}

static void
without_times_the_interval_is_one_millisecond(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(read_text(f, "{\"nodes\":[{\"id\":1," ROOT ",\"children\":[2]},"
                                  "{\"id\":2," FRAME("work", "a.js", "9") ",\"hitCount\":7}]}"),
                     EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 1), 7000000);
    assert_int_equal(f->profile->samples, 7);
    assert_int_equal(f->profile->duration_ns, 0);
}

static void
the_same_file_is_the_same_with_and_without_file_scheme(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(
        read_text(f, "{\"nodes\":[{\"id\":1," ROOT ",\"children\":[2,3]},"
                     "{\"id\":2," FRAME("work", "file:///app/a.js",
                                        "9") ",\"hitCount\":7},"
                                             "{\"id\":3," FRAME("work", "/app/a.js",
                                                                "9") ",\"hitCount\":1}]}"),
        EF_OK);
    assert_int_equal(f->profile->node_count, 2);
    assert_string_equal(ef_profile_string(f->profile, f->profile->functions[1].file), "/app/a.js");
    assert_int_equal(ef_profile_total(f->profile, 0), 8);
}

static void
program_and_garbage_collector_stay_under_the_root(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(
        read_text(f, "{\"nodes\":[{\"id\":1," ROOT ",\"children\":[2,3,4]},"
                     "{\"id\":2,\"callFrame\":{\"functionName\":\"(program)\"},\"hitCount\":7},"
                     "{\"id\":3,\"callFrame\":{\"functionName\":\"(garbage collector)\"},"
                     "\"hitCount\":2},{\"id\":4," FRAME("", "a.js", "0") ",\"hitCount\":1}]}"),
        EF_OK);
    assert_int_equal(self_of(f->profile, "(program)", 0), 7);
    assert_int_equal(self_of(f->profile, "(garbage collector)", 0), 2);
    assert_int_equal(self_of(f->profile, "(anonymous)", 0), 1);
    assert_int_equal(f->profile->functions[3].name, 0);
    assert_int_equal(f->profile->functions[3].start_line, 1);
    assert_int_equal(f->profile->functions[1].start_line, 0);
}

static void
reads_the_old_nested_form(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(
        read_text(f, "{\"head\":{\"functionName\":\"(root)\",\"url\":\"\",\"lineNumber\":0,"
                     "\"columnNumber\":0,\"hitCount\":0,\"id\":1,\"children\":["
                     "{\"functionName\":\"work\",\"url\":\"a.js\",\"lineNumber\":10,"
                     "\"columnNumber\":5,\"hitCount\":3,\"id\":2,\"children\":[]}]},"
                     "\"startTime\":10.5,\"endTime\":10.504,\"samples\":[2,2,2],"
                     "\"timestamps\":[10501000,10502000,10503000]}"),
        EF_OK);
    assert_int_equal(self_of(f->profile, "work", 1), 3000000);
    assert_int_equal(f->profile->functions[1].start_line, 10); /* 1-based already */
    assert_int_equal(f->profile->duration_ns, 4000000);
}

static void
reads_an_inspectors_reply(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(read_text(f, "{\"id\":3,\"result\":{\"profile\":{\"nodes\":[{\"id\":1," ROOT
                                  ",\"hitCount\":2}]}}}"),
                     EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 0), 2);
}

static void
refuses_trees_that_are_none(void **state)
{
    struct fixture *f = *state;

    expect_refused(f, "{}", "neither 'nodes' nor a 'head'");
    expect_refused(f, "{\"nodes\":[]}", "there are no nodes");
    expect_refused(f, "{\"nodes\":5}", "'nodes' is not a list");
    expect_refused(f, "{\"nodes\":[7]}", "node 0 is not an object");
    expect_refused(f, "{\"nodes\":[{" ROOT "}]}", "node 0 has no id");
    expect_refused(f, "{\"nodes\":[{\"id\":1}]}", "no call frame");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT "},{\"id\":1," ROOT "}]}",
                   "node id 1 occurs twice");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT "},{\"id\":2," ROOT "}]}",
                   "node 2 has no parent");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT ",\"children\":[2]}]}",
                   "child 2 is not among the nodes");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT ",\"children\":[1]}]}", "no root");
    expect_refused(f,
                   "{\"nodes\":[{\"id\":1," ROOT "},{\"id\":2," ROOT ",\"children\":[3]},"
                   "{\"id\":3," ROOT ",\"children\":[2]}]}",
                   "2 nodes are in a circle");
    expect_refused(f,
                   "{\"nodes\":[{\"id\":1," ROOT ",\"children\":[2,3]},"
                   "{\"id\":2," ROOT ",\"children\":[3]},{\"id\":3," ROOT "}]}",
                   "child 3 has two parents");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT ",\"children\":{}}]}",
                   "'children' is not a list");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT ",\"children\":[\"2\"]}]}",
                   "'child id' is not a number");
}

static void
refuses_numbers_that_cannot_be(void **state)
{
    struct fixture *f = *state;

    expect_refused(f, "{\"nodes\":[{\"id\":-4," ROOT "}]}", "'id' is out of range: -4");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT ",\"hitCount\":-1}]}",
                   "'hitCount' is out of range: -1");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT ",\"hitCount\":\"1\"}]}",
                   "'hitCount' is not a number");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT ",\"hitCount\":9223372036854775807}]}",
                   "'hitCount' is out of range");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT ",\"hitCount\":1e300}]}",
                   "'hitCount' is out of range");
    expect_refused(f, "{\"nodes\":[{\"id\":1,\"callFrame\":{\"functionName\":7}}]}",
                   "'functionName' is not a text");
    expect_refused(f,
                   "{\"nodes\":[{\"id\":1,\"callFrame\":{\"functionName\":\"f\","
                   "\"lineNumber\":99999999999}}]}",
                   "'lineNumber' is out of range");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT "}],\"startTime\":9e18}",
                   "'startTime' is out of range");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT "}],\"samples\":[2]}",
                   "sample 0 is of node 2, which is not there");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT "}],\"samples\":[1,1],\"timeDeltas\":[5]}",
                   "2 samples, but 1 times");
    expect_refused(f, "{\"nodes\":[{\"id\":1," ROOT "}],\"samples\":[1],\"timeDeltas\":[null]}",
                   "not a number");
    expect_refused(f,
                   "{\"nodes\":[{\"id\":1," ROOT "}],\"samples\":[1,1],"
                   "\"timeDeltas\":[2000000000000000,2000000000000000]}",
                   "time of sample 1 is out of range");
}

static void
refuses_what_is_not_json_and_says_where(void **state)
{
    struct fixture *f = *state;
    char *deep;

    expect_refused(f, "{\"nodes\":[\n{\"id\":1,]}", "not JSON: line 2");
    expect_refused(f, "[]", "not a JSON object");
    expect_refused(f, "{\"nodes\":[],\"nodes\":[]}", "duplicate");
    deep = malloc(200001);
    memset(deep, '[', 200000);
    deep[200000] = '\0';
    memcpy(deep, "{\"head\":", 8);
    expect_refused(f, deep, "maximum parsing depth");
    free(deep);
}

static void
refuses_stacks_deeper_than_the_limit(void **state)
{
    struct fixture *f = *state;
    size_t len = 0, cap = 400000;
    char *text = malloc(cap);

    len += (size_t)snprintf(text, cap, "{\"nodes\":[");
    for (int i = 1; i <= EF_PROFILE_DEPTH_MAX + 2; i++)
        len += (size_t)snprintf(text + len, cap - len,
                                "%s{\"id\":%d,\"callFrame\":{\"functionName\":\"f\"},"
                                "\"children\":[%d]}",
                                i > 1 ? "," : "", i, i + 1);
    snprintf(text + len, cap - len, ",{\"id\":%d,\"callFrame\":{\"functionName\":\"f\"}}]}",
             EF_PROFILE_DEPTH_MAX + 3);
    assert_int_equal(read_text(f, text), EF_ELIMIT);
    assert_non_null(strstr(f->err.msg, "deeper than 2048"));
    free(text);
}

static void
names_with_nul_and_quotes_survive(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(read_text(f, "{\"nodes\":[{\"id\":1,\"callFrame\":{\"functionName\":"
                                  "\"a\\u0000\\\"b\"},\"hitCount\":1}]}"),
                     EF_OK);
    assert_int_equal(self_of(f->profile, "a?\"b", 0), 1);
}

/* Goal: JSON beyond its limit is refused before it is parsed into many times its size. */
static void
refuses_more_json_than_the_limit(void **state)
{
    struct fixture *f = *state;
    size_t len = ((size_t)32 << 20) + 1;
    uint8_t *zeros = calloc(1, len);

    assert_non_null(zeros);
    assert_int_equal(ef_format_find("cpuprofile")
                         ->read(zeros, len, &ef_profile_limits_default, &f->profile, &f->err),
                     EF_ELIMIT);
    assert_non_null(strstr(f->err.msg, "more than the limit of 33554432"));
    free(zeros);
}

/* Figures of the capture, counted by other means: tests/data/v8/<name>. */
struct capture {
    const char *name;
    int64_t hits, idle_hits, sample_count;
    int64_t interval_min_ns, interval_max_ns;
};
static const struct capture captures[] = {
    {"v8/node-cpu.cpuprofile.json", 1380, 839, 1379, 1100000, 1200000},
    {"v8/node-minified.cpuprofile.json", 3664, 413, 3659, 600000, 700000},
    {"v8/workerd-cpu.cpuprofile.json", 2445, -1, 2446, 1100000, 1200000},
    {"v8/workerd-minified.cpuprofile.json", 2661, -1, 2887, 600000, 700000},
    {"v8/workerd-cpu-cold-deopt.cpuprofile.json", 592, -1, 1924, 450000, 1200000},
};

static void
real_captures_keep_their_hits(void **state)
{
    struct fixture *f = *state;

    for (size_t i = 0; i < EF_COUNT_OF(captures); i++) {
        const struct capture *capture = &captures[i];
        size_t len;
        uint8_t *data = ef_test_read_file(capture->name, &len);
        int64_t idle;
        ef_profile_free(f->profile);
        f->profile = NULL;
        assert_int_equal(
            ef_format_read(NULL, NULL, data, len, &ef_profile_limits_default, &f->profile, &f->err),
            EF_OK);
        assert_int_equal(
            ef_cpuprofile_read_ticks(data, len, &ef_profile_limits_default, &f->ticks, &f->err),
            EF_OK);
        idle = self_of(f->ticks.profile, "(idle)", 0);
        if (capture->idle_hits >= 0)
            assert_int_equal(idle, capture->idle_hits);
        assert_int_equal(ef_profile_total(f->ticks.profile, 0), capture->hits);
        assert_int_equal(ef_profile_total(f->profile, 0), capture->hits - (idle > 0 ? idle : 0));
        assert_int_equal(self_of(f->profile, "(idle)", 0), -1);
        assert_int_equal(f->ticks.tick_count, capture->sample_count);
        assert_in_range(f->profile->period, capture->interval_min_ns, capture->interval_max_ns);
        assert_int_equal(ef_profile_total(f->profile, 1),
                         ef_profile_total(f->profile, 0) * f->profile->period);
        assert_true(f->ticks.ticks[0].time_us >= f->ticks.start_us);
        for (size_t tick = 1; tick < f->ticks.tick_count; tick++)
            assert_true(f->ticks.ticks[tick - 1].time_us <= f->ticks.ticks[tick].time_us);
        ef_cpuprofile_fini(&f->ticks);
        free(data);
    }
}

/* Goal: what a viewer adds up is the profile. The deltas are placed one slot late, on purpose. */
static void
the_written_file_says_the_same_to_a_viewer(void **state)
{
    struct fixture *f = *state;
    struct ef_buf out;
    size_t len;
    uint8_t *data = ef_test_read_file("v8/workerd-cpu.cpuprofile.json", &len);
    int64_t total_ns;

    assert_int_equal(
        ef_format_read(NULL, NULL, data, len, &ef_profile_limits_default, &f->profile, NULL),
        EF_OK);
    total_ns = ef_profile_total(f->profile, 1);
    ef_buf_init(&out, EF_FORMAT_OUTPUT_BYTES_MAX);
    assert_int_equal(ef_format_find("cpuprofile")
                         ->write(f->profile, &(struct ef_format_about){0}, &out, &f->err),
                     EF_OK);
    assert_int_equal(
        ef_cpuprofile_read_ticks(out.data, out.len, &ef_profile_limits_default, &f->ticks, &f->err),
        EF_OK);
    assert_int_equal(f->ticks.end_us - f->ticks.start_us, total_ns / 1000);
    assert_int_equal(f->ticks.ticks[f->ticks.tick_count - 1].node, 0); /* the root ends it */
    /* The gap after a sample is its weight: add them up per node and compare. */
    for (size_t i = 0; i + 1 < f->ticks.tick_count; i++) {
        int64_t gap_us = f->ticks.ticks[i + 1].time_us - f->ticks.ticks[i].time_us;
        uint32_t node = f->ticks.ticks[i].node;
        int64_t hits = f->ticks.profile->values[(size_t)node * f->ticks.profile->type_count];
        int64_t error_us = gap_us - hits * f->profile->period / 1000;
        assert_in_range(error_us + 1, 0, 2);
    }
    ef_buf_fini(&out);
    free(data);
}

static void
the_writer_refuses_bytes_and_negative_values(void **state)
{
    struct fixture *f = *state;
    struct ef_buf out;
    uint32_t frame = 0, node = 0;
    const struct ef_format_ops *format = ef_format_find("cpuprofile");

    ef_buf_init(&out, 1000);
    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &f->profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(f->profile, "alloc_space", "bytes", NULL), EF_OK);
    assert_int_equal(format->write(f->profile, &(struct ef_format_about){0}, &out, &f->err),
                     EF_EUNSUP);
    assert_int_equal(ef_profile_add_type(f->profile, "cpu", "nanoseconds", NULL), EF_OK);
    assert_int_equal(
        ef_profile_add_frame(f->profile, &(struct ef_profile_frame){.address = 1}, &frame, NULL),
        EF_OK);
    assert_int_equal(ef_profile_add_node(f->profile, 0, frame, &node, NULL), EF_OK);
    assert_int_equal(ef_profile_add_value(f->profile, node, 1, -5, NULL), EF_OK);
    assert_int_equal(format->write(f->profile, &(struct ef_format_about){0}, &out, &f->err),
                     EF_EUNSUP);
    assert_int_equal(ef_profile_add_value(f->profile, node, 1, 10, NULL), EF_OK);
    out.bytes_max = 100;
    assert_int_equal(format->write(f->profile, &(struct ef_format_about){0}, &out, &f->err),
                     EF_ELIMIT);
    assert_int_equal(out.len, 0);
    ef_buf_fini(&out);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(hits_times_the_median_interval_are_the_cpu),
        TEST(ninety_five_percent_idle_adds_nothing_to_the_busy_rest),
        TEST(gaps_of_a_quiet_worker_are_not_cpu),
        TEST(one_short_gap_in_ten_is_enough_for_the_interval),
        TEST(a_negative_delta_does_not_drift),
        TEST(the_first_delta_is_before_the_first_sample),
        TEST(without_times_the_interval_is_one_millisecond),
        TEST(the_same_file_is_the_same_with_and_without_file_scheme),
        TEST(program_and_garbage_collector_stay_under_the_root),
        TEST(reads_the_old_nested_form),
        TEST(reads_an_inspectors_reply),
        TEST(refuses_trees_that_are_none),
        TEST(refuses_numbers_that_cannot_be),
        TEST(refuses_what_is_not_json_and_says_where),
        TEST(refuses_stacks_deeper_than_the_limit),
        TEST(names_with_nul_and_quotes_survive),
        TEST(refuses_more_json_than_the_limit),
        TEST(real_captures_keep_their_hits),
        TEST(the_written_file_says_the_same_to_a_viewer),
        TEST(the_writer_refuses_bytes_and_negative_values),
    };

    return cmocka_run_group_tests_name("proto.formats.cpuprofile", tests, NULL, NULL);
}
