/*
 * Choosing a format, and the formats without a test of their own: folded, speedscope, json.
 */
#include "tests/support/ef_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/formats/formats.h"

struct fixture {
    struct ef_profile *profile;
    struct ef_buf out;
    struct ef_err err;
};

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    ef_buf_init(&f->out, EF_FORMAT_OUTPUT_BYTES_MAX);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_profile_free(f->profile);
    ef_buf_fini(&f->out);
    free(f);
    return 0;
}

static ef_rc
read_as(struct fixture *f, const char *format, const char *text)
{
    ef_profile_free(f->profile);
    f->profile = NULL;
    return ef_format_read(ef_format_find(format), NULL, (const uint8_t *)text, strlen(text),
                          &ef_profile_limits_default, &f->profile, &f->err);
}

static void
expect_refused(struct fixture *f, const char *format, const char *text, const char *words)
{
    assert_int_equal(read_as(f, format, text), EF_ECORRUPT);
    assert_null(f->profile);
    if (strstr(f->err.msg, words) == NULL)
        fail_msg("'%s' does not say '%s'", f->err.msg, words);
}

static const char *
written(struct fixture *f, const char *format)
{
    const struct ef_format_about about = {.name = "shop v41", .build = "v41", .program = "shop"};

    ef_buf_clear(&f->out);
    if (ef_format_find(format)->write(f->profile, &about, &f->out, &f->err) != EF_OK)
        fail_msg("%s", f->err.msg);
    ef_buf_put_u8(&f->out, 0);
    return (const char *)f->out.data;
}

static void
the_table_is_whole(void **state)
{
    static const char *const names[] = {"pprof",      "cpuprofile", "heapprofile",
                                        "speedscope", "folded",     "json"};
    size_t count = 0;

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(names); i++)
        assert_non_null(ef_format_find(names[i]));
    for (const struct ef_format_ops *at; (at = ef_format_at(count)) != NULL; count++) {
        assert_ptr_equal(ef_format_find(at->name), at);
        assert_true(at->suffix[0] == '.' && at->content_type[0] != '\0');
        assert_true(at->read == NULL || at->sniff != NULL);
        assert_int_equal(at->sentence[strlen(at->sentence) - 1], '.');
    }
    assert_int_equal(count, EF_COUNT_OF(names));
    assert_null(ef_format_find("flamebearer"));
}

static void
guess_goes_by_name_then_by_content(void **state)
{
    static const struct {
        const char *path, *text, *format;
    } cases[] = {
        {"a.pprof", "", "pprof"},
        {"a.pb.gz", "", "pprof"},
        {"a.cpuprofile", "", "cpuprofile"},
        {"a.cpuprofile.json", "", "cpuprofile"},
        {"a.heapprofile", "", "heapprofile"},
        {"a.speedscope.json", "", "speedscope"},
        {"a.folded", "", "folded"},
        {"a.bin", "\x1f\x8b\x08", "pprof"},
        {NULL, "\n a;b 12\nc 1\n", "folded"},
        {NULL, "{\"nodes\" : [{\"callFrame\":{\"functionName\":\"selfSize\"}}]}", "cpuprofile"},
        {NULL, " {\"head\":{\"functionName\":\"\",\"hitCount\":1}}", "cpuprofile"},
        {NULL, "{\"head\":{\"callFrame\":{\"functionName\":\"x\"},\"selfSize\":1}}", "heapprofile"},
        {"x.json", "{\"shared\":{},\"profiles\":[]}", "speedscope"},
        {NULL, "{\"hello\":1}", NULL},
        {NULL, "hello world", NULL},
        {NULL, "\xff\xfe\x01 12", NULL},
        {"a.txt", "", NULL},
    };

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        const struct ef_format_ops *format =
            ef_format_guess(cases[i].path, (const uint8_t *)cases[i].text, strlen(cases[i].text));
        const char *name = format != NULL ? format->name : "(none)";
        assert_string_equal(name, cases[i].format != NULL ? cases[i].format : "(none)");
    }
}

static void
read_says_why_not(void **state)
{
    struct fixture *f = *state;
    struct ef_profile *none = NULL;

    assert_int_equal(ef_format_read(NULL, "x.bin", (const uint8_t *)"hello", 5,
                                    &ef_profile_limits_default, &none, &f->err),
                     EF_ECORRUPT);
    assert_non_null(strstr(f->err.msg, "'x.bin': not a profile"));
    assert_non_null(strstr(f->err.msg, "tried pprof, speedscope, heapprofile, cpuprofile, folded"));
    assert_int_equal(ef_format_read(NULL, "x.folded", (const uint8_t *)"", 0,
                                    &ef_profile_limits_default, &none, &f->err),
                     EF_ECORRUPT);
    assert_string_equal(f->err.msg, "'x.folded': the file is empty");
    assert_int_equal(ef_format_read(ef_format_find("json"), NULL, (const uint8_t *)"{}", 2,
                                    &ef_profile_limits_default, &none, &f->err),
                     EF_EUNSUP);
    assert_int_equal(ef_format_read(NULL, NULL, (const uint8_t *)"{}",
                                    (size_t)EF_FORMAT_INPUT_BYTES_MAX + 1,
                                    &ef_profile_limits_default, &none, &f->err),
                     EF_ELIMIT);
    assert_null(none);
}

static void
folded_reads_names_with_spaces_and_nets_values(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(read_as(f, "folded",
                             "main;say hello world 100\r\n\nmain;say hello world -150\n"
                             "main;say hello world 200\n 7\nmain;(anonymous) 1"),
                     EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 0), 158);
    assert_string_equal(ef_profile_string(f->profile, f->profile->functions[2].name),
                        "say hello world");
    assert_int_equal(f->profile->values[2], 150);
    assert_int_equal(f->profile->values[0], 7);
    assert_int_equal(f->profile->functions[3].name, 0);
    assert_int_equal(f->profile->samples, 5);
    assert_string_equal(written(f, "folded"), " 7\nmain;say hello world 150\nmain;(anonymous) 1\n");
}

static void
folded_refuses_lines_without_a_count(void **state)
{
    struct fixture *f = *state;

    expect_refused(f, "folded", "main 1\nmain;work\n", "folded: line 2: no whole number");
    expect_refused(f, "folded", "main 1.5\n", "line 1");
    expect_refused(f, "folded", "main -\n", "line 1");
    expect_refused(f, "folded", "main 9223372036854775808\n", "line 1");
    expect_refused(f, "folded", "\n\n", "no line with a stack");
    assert_int_equal(read_as(f, "folded", "main -9223372036854775808\n"), EF_OK);
    assert_int_equal(read_as(f, "folded", "a 9223372036854775807\na 1\n"), EF_ELIMIT);
}

static void
folded_refuses_endless_stacks(void **state)
{
    struct fixture *f = *state;
    char *text = malloc(2 * EF_PROFILE_DEPTH_MAX + 10);

    for (int i = 0; i < EF_PROFILE_DEPTH_MAX + 1; i++)
        memcpy(text + (size_t)2 * i, "a;", 2);
    strcpy(text + 2 * EF_PROFILE_DEPTH_MAX, "a 1");
    assert_int_equal(read_as(f, "folded", text), EF_ELIMIT);
    strcpy(text + 2 * EF_PROFILE_DEPTH_MAX - 2, "a 1");
    assert_int_equal(read_as(f, "folded", text), EF_OK);
    free(text);
}

/* Adds a frame of a function with any name at a line; gives the node under `parent`. */
static uint32_t
add_node(struct ef_profile *profile, uint32_t parent, const char *name, uint32_t line)
{
    struct ef_profile_function function = {.start_line = 1};
    struct ef_profile_frame frame = {.line = line};
    uint32_t id, node = 0;

    assert_int_equal(ef_profile_add_string(profile, name, strlen(name), &function.name, NULL),
                     EF_OK);
    assert_int_equal(ef_profile_add_function(profile, &function, &frame.function, NULL), EF_OK);
    assert_int_equal(ef_profile_add_frame(profile, &frame, &id, NULL), EF_OK);
    assert_int_equal(ef_profile_add_node(profile, parent, id, &node, NULL), EF_OK);
    return node;
}

static void
folded_replaces_what_would_break_a_line_and_joins_equal_stacks(void **state)
{
    struct fixture *f = *state;
    uint32_t node;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &f->profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(f->profile, "n", "count", NULL), EF_OK);
    for (uint32_t line = 1; line <= 2; line++) {
        node = add_node(f->profile, 0, "a;b\nc", line);
        assert_int_equal(ef_profile_add_value(f->profile, node, 0, 5, NULL), EF_OK);
    }
    assert_string_equal(written(f, "folded"), "a:b c 10\n");
}

static void
writers_need_a_type_and_keep_the_buffer_when_it_is_full(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {"folded", "speedscope", "json"};
    uint32_t node;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &f->profile, NULL), EF_OK);
    for (size_t i = 0; i < EF_COUNT_OF(names); i++)
        assert_int_equal(ef_format_find(names[i])->write(f->profile, &(struct ef_format_about){0},
                                                         &f->out, &f->err),
                         EF_EINVAL);
    assert_int_equal(ef_profile_add_type(f->profile, "n", "count", NULL), EF_OK);
    node = add_node(f->profile, 0, "a long name to fill the buffer", 0);
    assert_int_equal(ef_profile_add_value(f->profile, node, 0, 5, NULL), EF_OK);
    f->out.bytes_max = 20;
    for (size_t i = 0; i < EF_COUNT_OF(names); i++) {
        ef_buf_clear(&f->out);
        ef_buf_append_str(&f->out, "before");
        assert_int_equal(ef_format_find(names[i])->write(f->profile, &(struct ef_format_about){0},
                                                         &f->out, &f->err),
                         EF_ELIMIT);
        assert_int_equal(f->out.len, 6);
    }
}

static void
json_sorts_by_total_then_name_and_counts_recursion_once(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(read_as(f, "folded", "main;fib;fib 3\nmain;b 2\nmain;a 2\n"), EF_OK);
    assert_string_equal(
        written(f, "json"),
        "{\"sample_types\":[{\"type\":\"samples\",\"unit\":\"count\"}],\"totals\":[7],"
        "\"samples\":3,\"functions\":["
        "{\"name\":\"main\",\"file\":\"\",\"line\":0,\"self\":[0],\"total\":[7]},"
        "{\"name\":\"fib\",\"file\":\"\",\"line\":0,\"self\":[3],\"total\":[3]},"
        "{\"name\":\"a\",\"file\":\"\",\"line\":0,\"self\":[2],\"total\":[2]},"
        "{\"name\":\"b\",\"file\":\"\",\"line\":0,\"self\":[2],\"total\":[2]}]}\n");
}

static void
json_names_addresses(void **state)
{
    struct fixture *f = *state;
    uint32_t frame, node;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &f->profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(f->profile, "n", "count", NULL), EF_OK);
    for (uint64_t address = 0x10; address <= 0x30; address += 0x10) {
        assert_int_equal(ef_profile_add_frame(f->profile,
                                              &(struct ef_profile_frame){.address = address},
                                              &frame, NULL),
                         EF_OK);
        assert_int_equal(ef_profile_add_node(f->profile, 0, frame, &node, NULL), EF_OK);
        assert_int_equal(ef_profile_add_value(f->profile, node, 0, (int64_t)address, NULL), EF_OK);
    }
    written(f, "json");
    assert_true(strstr((char *)f->out.data, "0x30") < strstr((char *)f->out.data, "0x20"));
    assert_true(strstr((char *)f->out.data, "0x20") < strstr((char *)f->out.data, "0x10"));
}

#define SPEEDSCOPE(profiles)                                                                       \
    "{\"shared\":{\"frames\":[{\"name\":\"main\"},{\"name\":\"work\",\"file\":\"a.js\","           \
    "\"line\":4,\"col\":2}]},\"profiles\":[" profiles "]}"
#define SAMPLED(unit, weights)                                                                     \
    "{\"type\":\"sampled\",\"name\":\"x\",\"unit\":\"" unit "\",\"startValue\":0,"                 \
    "\"endValue\":1,\"samples\":[[0],[0,1]],\"weights\":[" weights "]}"

/* Field fault 52: units that are rare or unknown, several profiles in one file. */
static void
speedscope_reads_all_units(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(read_as(f, "speedscope", SPEEDSCOPE(SAMPLED("seconds", "0.25,1"))), EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 0), 1250000000);
    assert_string_equal(ef_profile_string(f->profile, f->profile->types[0].unit), "nanoseconds");
    assert_int_equal(read_as(f, "speedscope", SPEEDSCOPE(SAMPLED("bytes", "5,6"))), EF_OK);
    assert_string_equal(ef_profile_string(f->profile, f->profile->types[0].unit), "bytes");
    assert_int_equal(read_as(f, "speedscope", SPEEDSCOPE(SAMPLED("none", "5,6"))), EF_OK);
    assert_string_equal(ef_profile_string(f->profile, f->profile->types[0].unit), "count");
    assert_int_equal(read_as(f, "speedscope", SPEEDSCOPE(SAMPLED("foo", "5,6"))), EF_OK);
    assert_string_equal(ef_profile_string(f->profile, f->profile->types[0].unit), "foo");
    assert_int_equal(ef_profile_total(f->profile, 0), 11);
    assert_int_equal(f->profile->functions[2].start_line, 4);
}

static void
speedscope_adds_profiles_of_one_unit_and_keeps_others_apart(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(read_as(f, "speedscope",
                             SPEEDSCOPE(SAMPLED("bytes", "5,6") "," SAMPLED(
                                 "bytes", "1,1") "," SAMPLED("milliseconds", "2,3"))),
                     EF_OK);
    assert_int_equal(f->profile->type_count, 2);
    assert_int_equal(ef_profile_total(f->profile, 0), 13);
    assert_int_equal(ef_profile_total(f->profile, 1), 5000000);
}

static void
speedscope_reads_events(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(
        read_as(f, "speedscope",
                SPEEDSCOPE("{\"type\":\"evented\",\"unit\":\"microseconds\",\"events\":["
                           "{\"type\":\"O\",\"frame\":0,\"at\":10},"
                           "{\"type\":\"O\",\"frame\":1,\"at\":12},"
                           "{\"type\":\"C\",\"frame\":1,\"at\":17},"
                           "{\"type\":\"C\",\"frame\":0,\"at\":18}]}")),
        EF_OK);
    assert_int_equal(f->profile->values[1], 3000);
    assert_int_equal(f->profile->values[2], 5000);
    expect_refused(f, "speedscope",
                   SPEEDSCOPE("{\"type\":\"evented\",\"events\":["
                              "{\"type\":\"C\",\"frame\":0,\"at\":1}]}"),
                   "not open");
    expect_refused(f, "speedscope",
                   SPEEDSCOPE("{\"type\":\"evented\",\"events\":["
                              "{\"type\":\"O\",\"frame\":0,\"at\":1}]}"),
                   "still open");
    expect_refused(f, "speedscope",
                   SPEEDSCOPE("{\"type\":\"evented\",\"events\":["
                              "{\"type\":\"O\",\"frame\":0,\"at\":9},"
                              "{\"type\":\"C\",\"frame\":0,\"at\":1}]}"),
                   "before the one before");
}

static void
speedscope_refuses_what_does_not_fit_together(void **state)
{
    struct fixture *f = *state;

    expect_refused(f, "speedscope", "{\"shared\":{\"frames\":[]},\"profiles\":[]}",
                   "there are no profiles");
    expect_refused(f, "speedscope", "{\"profiles\":[{}]}", "no list of frames");
    expect_refused(f, "speedscope", SPEEDSCOPE(SAMPLED("none", "5")), "equally many");
    expect_refused(f, "speedscope", SPEEDSCOPE(SAMPLED("none", "5,\"6\"")), "not a number");
    expect_refused(f, "speedscope", SPEEDSCOPE(SAMPLED("seconds", "5,9223372036854775807")),
                   "out of range");
    expect_refused(f, "speedscope", SPEEDSCOPE("{\"type\":\"odd\"}"), "neither sampled nor");
    expect_refused(f, "speedscope",
                   SPEEDSCOPE("{\"type\":\"sampled\",\"samples\":[[2]],\"weights\":[1]}"),
                   "'frame' is out of range");
}

/* Two types of one name and units that speedscope does not know must not become one. */
static void
speedscope_keeps_units_of_our_own_files(void **state)
{
    struct fixture *f = *state;
    struct ef_profile *first;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &f->profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(f->profile, "n", "apples", NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(f->profile, "n", "microseconds", NULL), EF_OK);
    assert_int_equal(ef_profile_add_value(f->profile, 0, 0, 3, NULL), EF_OK);
    assert_int_equal(ef_profile_add_value(f->profile, 0, 1, 4, NULL), EF_OK);
    written(f, "speedscope");
    first = f->profile;
    f->profile = NULL;
    assert_int_equal(read_as(f, "speedscope", (const char *)f->out.data), EF_OK);
    assert_int_equal(f->profile->type_count, 2);
    assert_string_equal(ef_profile_string(f->profile, f->profile->types[0].unit), "apples");
    assert_string_equal(ef_profile_string(f->profile, f->profile->types[1].unit), "microseconds");
    assert_int_equal(ef_profile_total(f->profile, 1), 4);
    ef_profile_free(first);
}

static void
speedscope_refuses_to_write_negative_values(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(read_as(f, "folded", "a -5\n"), EF_OK);
    assert_int_equal(ef_format_find("speedscope")
                         ->write(f->profile, &(struct ef_format_about){0}, &f->out, &f->err),
                     EF_EUNSUP);
    assert_int_equal(f->out.len, 0);
}

static void
speedscope_says_that_its_order_is_not_time(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(read_as(f, "folded", "a;b 5\n"), EF_OK);
    assert_non_null(strstr(written(f, "speedscope"),
                           "\"name\":\"shop v41 (summed up, not in order of time)\""));
    assert_non_null(strstr((char *)f->out.data, "\"samples\":[[0,1]],\"weights\":[5]"));
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_table_is_whole),
        TEST(guess_goes_by_name_then_by_content),
        TEST(read_says_why_not),
        TEST(folded_reads_names_with_spaces_and_nets_values),
        TEST(folded_refuses_lines_without_a_count),
        TEST(folded_refuses_endless_stacks),
        TEST(folded_replaces_what_would_break_a_line_and_joins_equal_stacks),
        TEST(writers_need_a_type_and_keep_the_buffer_when_it_is_full),
        TEST(json_sorts_by_total_then_name_and_counts_recursion_once),
        TEST(json_names_addresses),
        TEST(speedscope_reads_all_units),
        TEST(speedscope_adds_profiles_of_one_unit_and_keeps_others_apart),
        TEST(speedscope_reads_events),
        TEST(speedscope_refuses_what_does_not_fit_together),
        TEST(speedscope_keeps_units_of_our_own_files),
        TEST(speedscope_refuses_to_write_negative_values),
        TEST(speedscope_says_that_its_order_is_not_time),
    };

    return cmocka_run_group_tests_name("proto.formats", tests, NULL, NULL);
}
