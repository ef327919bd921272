/*
 * V8 allocation profiles: bytes, objects, damaged trees, real captures, depth of the writer.
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

#define FRAME(name)                                                                                \
    "\"callFrame\":{\"functionName\":\"" name "\",\"url\":\"a.js\",\"lineNumber\":3}"
#define ROOT "\"callFrame\":{\"functionName\":\"(root)\",\"url\":\"\",\"lineNumber\":-1}"

static ef_rc
read_text(struct fixture *f, const char *text)
{
    ef_profile_free(f->profile);
    f->profile = NULL;
    return ef_format_find("heapprofile")
        ->read((const uint8_t *)text, strlen(text), &ef_profile_limits_default, &f->profile,
               &f->err);
}

static void
expect_refused(struct fixture *f, const char *text, const char *words)
{
    assert_int_equal(read_text(f, text), EF_ECORRUPT);
    assert_null(f->profile);
    if (strstr(f->err.msg, words) == NULL || strncmp(f->err.msg, "heapprofile: ", 13) != 0)
        fail_msg("'%s' does not say '%s'", f->err.msg, words);
}

static void
bytes_are_self_sizes_and_objects_are_samples(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(
        read_text(
            f,
            "{\"head\":{" ROOT ",\"selfSize\":0,\"id\":1,\"children\":["
            "{" FRAME("a") ",\"selfSize\":100,\"id\":2,\"children\":["
                           "{" FRAME("b") ",\"selfSize\":30.6,\"id\":3,\"children\":[]}]}]},"
                                          "\"samples\":[{\"size\":50,\"nodeId\":2,\"ordinal\":1},"
                                          "{\"size\":50,\"nodeId\":2,\"ordinal\":2},"
                                          "{\"size\":31,\"nodeId\":3,\"ordinal\":3},"
                                          "{\"size\":31,\"nodeId\":99,\"ordinal\":4}]}"),
        EF_OK);
    assert_string_equal(ef_profile_string(f->profile, f->profile->types[0].type), "alloc_objects");
    assert_string_equal(ef_profile_string(f->profile, f->profile->types[1].unit), "bytes");
    assert_int_equal(f->profile->values[2], 2);
    assert_int_equal(f->profile->values[3], 100);
    assert_int_equal(f->profile->values[4], 1);
    assert_int_equal(f->profile->values[5], 31);
    assert_int_equal(f->profile->samples, 4);
    assert_string_equal(ef_profile_string(f->profile, f->profile->period_type.type), "space");
}

static void
without_samples_objects_are_unknown(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(read_text(f, "{\"head\":{" ROOT ",\"selfSize\":7,\"id\":1}}"), EF_OK);
    assert_int_equal(ef_profile_total(f->profile, 0), 0);
    assert_int_equal(ef_profile_total(f->profile, 1), 7);
}

static void
refuses_damaged_trees(void **state)
{
    struct fixture *f = *state;

    expect_refused(f, "{}", "there is no 'head'");
    expect_refused(f, "{\"head\":5}", "a node is not an object");
    expect_refused(f, "{\"head\":{" ROOT "}}", "a node has no id");
    expect_refused(f, "{\"head\":{\"id\":1}}", "no call frame");
    expect_refused(f, "{\"head\":{" ROOT ",\"id\":1,\"selfSize\":-1}}", "'selfSize' is out of");
    expect_refused(f, "{\"head\":{" ROOT ",\"id\":1,\"selfSize\":\"7\"}}", "'selfSize' is not a");
    expect_refused(f, "{\"head\":{" ROOT ",\"id\":1,\"children\":7}}", "'children' is not a list");
    expect_refused(f, "{\"head\":{" ROOT ",\"id\":1,\"children\":[{" ROOT ",\"id\":1}]}}",
                   "node id 1 occurs twice");
    expect_refused(f, "{\"head\":{" ROOT ",\"id\":1},\"samples\":{}}", "'samples' is not a list");
    expect_refused(f, "{\"head\":{" ROOT ",\"id\":1}", "not JSON");
}

/* A depth bomb: jansson stops, and says so. */
static void
refuses_nesting_without_end(void **state)
{
    struct fixture *f = *state;
    static const char open_node[] = "{\"id\":1,\"children\":[";
    struct ef_buf text;

    ef_buf_init(&text, 1u << 20);
    ef_buf_append_str(&text, "{\"head\":");
    for (int i = 0; i < 20000; i++)
        ef_buf_append_str(&text, open_node);
    ef_buf_put_u8(&text, 0);
    expect_refused(f, (const char *)text.data, "maximum parsing depth");
    ef_buf_fini(&text);
}

static void
real_captures_keep_their_bytes(void **state)
{
    struct fixture *f = *state;
    /* Sums of selfSize and of samples with a known node, counted by other means. */
    static const struct {
        const char *name;
        int64_t bytes, objects;
    } captures[] = {
        {"v8/node-heap-512k.heapprofile.json", 388231320, 739},
        {"v8/node-minified.heapprofile.json", 228008152, 1736},
        {"v8/workerd-heap-512k.heapprofile.json", 223075616, 425},
        {"v8/workerd-minified.heapprofile.json", 156951288, 1194},
    };

    for (size_t i = 0; i < EF_COUNT_OF(captures); i++) {
        size_t len;
        uint8_t *data = ef_test_read_file(captures[i].name, &len);
        ef_profile_free(f->profile);
        f->profile = NULL;
        assert_int_equal(ef_format_read(NULL, captures[i].name, data, len,
                                        &ef_profile_limits_default, &f->profile, &f->err),
                         EF_OK);
        assert_int_equal(ef_profile_total(f->profile, 1), captures[i].bytes);
        assert_int_equal(ef_profile_total(f->profile, 0), captures[i].objects);
        free(data);
    }
}

/* Field fault 51: the same CommonJS function in both profiles of Node has the same file. */
static void
cpu_and_heap_name_the_same_file(void **state)
{
    struct fixture *f = *state;
    static const char *const names[] = {"v8/node-minified.cpuprofile.json",
                                        "v8/node-minified.heapprofile.json"};

    for (size_t i = 0; i < 2; i++) {
        size_t len;
        uint8_t *data = ef_test_read_file(names[i], &len);
        bool found = false;
        ef_profile_free(f->profile);
        f->profile = NULL;
        assert_int_equal(
            ef_format_read(NULL, NULL, data, len, &ef_profile_limits_default, &f->profile, NULL),
            EF_OK);
        for (uint32_t id = 1; id < f->profile->function_count; id++)
            found |= strcmp(ef_profile_string(f->profile, f->profile->functions[id].file),
                            "/app/sm/dist/nserver.cjs") == 0;
        assert_true(found);
        free(data);
    }
}

/* The writer nests as deep as the stack is; it must not recurse, nor end ef_json's depth. */
static void
the_writer_nests_a_hundred_thousand_frames(void **state)
{
    struct fixture *f = *state;
    uint32_t frame = 0, node = 0;
    size_t opened = 0, closed = 0;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &f->profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(f->profile, "alloc_space", "bytes", NULL), EF_OK);
    assert_int_equal(
        ef_profile_add_frame(f->profile, &(struct ef_profile_frame){.address = 1}, &frame, NULL),
        EF_OK);
    for (int i = 0; i < 100000; i++)
        assert_int_equal(ef_profile_add_node(f->profile, node, frame, &node, NULL), EF_OK);
    assert_int_equal(ef_format_find("heapprofile")
                         ->write(f->profile, &(struct ef_format_about){0}, &f->out, &f->err),
                     EF_OK);
    for (size_t i = 0; i < f->out.len; i++) {
        opened += f->out.data[i] == '{';
        closed += f->out.data[i] == '}';
    }
    assert_int_equal(opened, 2 * 100001 + 1);
    assert_int_equal(opened, closed);
}

static void
the_writer_refuses_time_and_negative_values(void **state)
{
    struct fixture *f = *state;
    const struct ef_format_ops *format = ef_format_find("heapprofile");

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &f->profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(f->profile, "cpu", "nanoseconds", NULL), EF_OK);
    assert_int_equal(format->write(f->profile, &(struct ef_format_about){0}, &f->out, &f->err),
                     EF_EUNSUP);
    assert_int_equal(ef_profile_add_type(f->profile, "alloc_space", "bytes", NULL), EF_OK);
    assert_int_equal(ef_profile_add_value(f->profile, 0, 1, -1, NULL), EF_OK);
    assert_int_equal(format->write(f->profile, &(struct ef_format_about){0}, &f->out, &f->err),
                     EF_EUNSUP);
    assert_int_equal(f->out.len, 0);
    assert_int_equal(ef_profile_add_value(f->profile, 0, 1, 1, NULL), EF_OK);
    f->out.bytes_max = 30;
    assert_int_equal(format->write(f->profile, &(struct ef_format_about){0}, &f->out, &f->err),
                     EF_ELIMIT);
    assert_int_equal(f->out.len, 0);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(bytes_are_self_sizes_and_objects_are_samples),
        TEST(without_samples_objects_are_unknown),
        TEST(refuses_damaged_trees),
        TEST(refuses_nesting_without_end),
        TEST(real_captures_keep_their_bytes),
        TEST(cpu_and_heap_name_the_same_file),
        TEST(the_writer_nests_a_hundred_thousand_frames),
        TEST(the_writer_refuses_time_and_negative_values),
    };

    return cmocka_run_group_tests_name("proto.formats.heapprofile", tests, NULL, NULL);
}
