/*
 * Every format that is both read and written: stacks and values survive as far as the format can
 * carry them. And the program that pprof files are for reads ours, with equal totals.
 */
#include "tests/support/ef_test.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/formats/formats.h"

/* What a format carries besides names of functions. */
struct carries {
    const char *format;
    bool files;     /* file and first line of a function */
    bool all_types; /* else only the last type */
    bool negative;
    const char *needs_unit; /* NULL = any profile can be written */
};
static const struct carries carries[] = {
    {"pprof", true, true, true, NULL},           {"speedscope", true, true, false, NULL},
    {"folded", false, false, true, NULL},        {"cpuprofile", true, true, false, "nanoseconds"},
    {"heapprofile", true, true, false, "bytes"},
};

static const char *const captures[] = {
    "v8/node-cpu.cpuprofile.json",
    "v8/node-minified.cpuprofile.json",
    "v8/workerd-cpu.cpuprofile.json",
    "v8/workerd-minified.cpuprofile.json",
    "v8/workerd-cpu-cold-deopt.cpuprofile.json",
    "v8/node-heap-512k.heapprofile.json",
    "v8/node-minified.heapprofile.json",
    "v8/workerd-heap-512k.heapprofile.json",
    "v8/workerd-minified.heapprofile.json",
};

static struct ef_profile *
read_capture(const char *name)
{
    struct ef_profile *profile = NULL;
    struct ef_err err = {0};
    size_t len;
    uint8_t *data = ef_test_read_file(name, &len);

    if (ef_format_read(NULL, name, data, len, &ef_profile_limits_default, &profile, &err) != EF_OK)
        fail_msg("%s", err.msg);
    free(data);
    return profile;
}

static bool
has_unit(const struct ef_profile *profile, const char *unit)
{
    for (uint32_t i = 0; i < profile->type_count; i++) {
        if (strcmp(ef_profile_string(profile, profile->types[i].unit), unit) == 0)
            return true;
    }
    return false;
}

/* Rewrites a profile to what the format carries, so that it can be compared as a whole. */
static struct ef_profile *
reduce(const struct ef_profile *profile, const struct carries *carried)
{
    struct ef_profile *reduced = NULL;
    uint32_t *nodes = calloc(profile->node_count, sizeof(*nodes));
    uint32_t first = carried->all_types ? 0 : profile->type_count - 1;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &reduced, NULL), EF_OK);
    for (uint32_t type = first; type < profile->type_count; type++)
        assert_int_equal(
            ef_profile_add_type(reduced, type == first ? "first" : "second", "u", NULL), EF_OK);
    for (uint32_t i = 0; i < profile->node_count; i++) {
        const struct ef_profile_frame *frame = &profile->frames[profile->nodes[i].frame];
        const struct ef_profile_function *from = &profile->functions[frame->function];
        struct ef_profile_function function = {0};
        struct ef_profile_frame made = {0};
        const char *name = ef_profile_string(profile, from->name);
        const char *file = ef_profile_string(profile, from->file);
        uint32_t id;
        if (i > 0) {
            assert_int_equal(
                ef_profile_add_string(reduced, name, strlen(name), &function.name, NULL), EF_OK);
            if (carried->files) {
                assert_int_equal(
                    ef_profile_add_string(reduced, file, strlen(file), &function.file, NULL),
                    EF_OK);
                function.start_line = from->start_line;
                made.line = frame->column; /* Columns tell functions of a one-line bundle apart. */
            }
            assert_int_equal(ef_profile_add_function(reduced, &function, &made.function, NULL),
                             EF_OK);
            assert_int_equal(ef_profile_add_frame(reduced, &made, &id, NULL), EF_OK);
            assert_int_equal(
                ef_profile_add_node(reduced, nodes[profile->nodes[i].parent], id, &nodes[i], NULL),
                EF_OK);
        }
        for (uint32_t type = first; type < profile->type_count; type++)
            assert_int_equal(
                ef_profile_add_value(reduced, nodes[i], type - first,
                                     profile->values[(size_t)i * profile->type_count + type], NULL),
                EF_OK);
    }
    free(nodes);
    return reduced;
}

/* All stacks and values are equal when the difference of the two has no value at all. */
static void
assert_same(const struct ef_profile *expected, const struct ef_profile *actual,
            const struct carries *carried, const char *name)
{
    struct ef_profile *left = reduce(expected, carried);
    struct ef_profile *right = reduce(actual, carried);
    struct ef_err err = {0};

    if (ef_profile_merge(left, right, -1, &err) != EF_OK)
        fail_msg("%s as %s: %s", name, carried->format, err.msg);
    for (size_t i = 0; i < (size_t)left->node_count * left->type_count; i++) {
        if (left->values[i] != 0)
            fail_msg("%s as %s: a value of stack %zu differs by %" PRId64, name, carried->format,
                     i / left->type_count, left->values[i]);
    }
    ef_profile_free(left);
    ef_profile_free(right);
}

static struct ef_profile *
write_and_read(const struct ef_profile *profile, const char *format_name)
{
    const struct ef_format_ops *format = ef_format_find(format_name);
    const struct ef_format_about about = {.name = "n", .build = "v41", .program = "shop"};
    struct ef_profile *again = NULL;
    struct ef_err err = {0};
    struct ef_buf out;

    ef_buf_init(&out, EF_FORMAT_OUTPUT_BYTES_MAX);
    if (format->write(profile, &about, &out, &err) != EF_OK)
        fail_msg("%s", err.msg);
    /* The content alone must tell what it is. */
    assert_ptr_equal(ef_format_guess(NULL, out.data, out.len), format);
    if (ef_format_read(NULL, NULL, out.data, out.len, &ef_profile_limits_default, &again, &err) !=
        EF_OK)
        fail_msg("%s: %s", format_name, err.msg);
    ef_buf_fini(&out);
    return again;
}

static void
captures_survive_every_format(void **state)
{
    (void)state;
    for (size_t capture = 0; capture < EF_COUNT_OF(captures); capture++) {
        struct ef_profile *profile = read_capture(captures[capture]);
        for (size_t i = 0; i < EF_COUNT_OF(carries); i++) {
            struct ef_profile *again;
            if (carries[i].needs_unit != NULL && !has_unit(profile, carries[i].needs_unit))
                continue;
            again = write_and_read(profile, carries[i].format);
            assert_same(profile, again, &carries[i], captures[capture]);
            for (uint32_t type = 0; carries[i].all_types && type < profile->type_count; type++)
                assert_int_equal(ef_profile_total(profile, type), ef_profile_total(again, type));
            ef_profile_free(again);
        }
        ef_profile_free(profile);
    }
}

static void
a_second_round_changes_nothing_more(void **state)
{
    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(carries); i++) {
        bool heap = carries[i].needs_unit != NULL && strcmp(carries[i].needs_unit, "bytes") == 0;
        struct ef_profile *profile = read_capture(heap ? "v8/node-minified.heapprofile.json"
                                                       : "v8/node-minified.cpuprofile.json");
        struct ef_profile *once = write_and_read(profile, carries[i].format);
        struct ef_profile *twice = write_and_read(once, carries[i].format);
        assert_int_equal(once->node_count, twice->node_count);
        assert_int_equal(once->function_count, twice->function_count);
        assert_int_equal(once->type_count, twice->type_count);
        for (uint32_t type = 0; type < once->type_count; type++)
            assert_string_equal(ef_profile_string(once, once->types[type].type),
                                ef_profile_string(twice, twice->types[type].type));
        ef_profile_free(profile);
        ef_profile_free(once);
        ef_profile_free(twice);
    }
}

/* Random trees with recursion, strange names, values that no interval explains. */
static struct ef_profile *
random_profile(unsigned *seed, const char *unit, bool negative)
{
    static const char *const names[] = {"main", "", "say hello", "f\"q\\", "\xc3\xa4\xe2\x82\xac",
                                        "x",    "y"};
    struct ef_profile *profile = NULL;

    assert_int_equal(ef_profile_open(&ef_profile_limits_default, &profile, NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(profile, "n", "count", NULL), EF_OK);
    assert_int_equal(ef_profile_add_type(profile, "v", unit, NULL), EF_OK);
    for (int i = 0; i < 200; i++) {
        uint32_t node = 0, depth = (uint32_t)rand_r(seed) % 12;
        for (uint32_t level = 0; level < depth; level++) {
            uint32_t line = (uint32_t)rand_r(seed) % 3;
            const char *name = names[rand_r(seed) % (int)EF_COUNT_OF(names)];
            struct ef_profile_function function = {.start_line = line};
            struct ef_profile_frame frame = {.line = line};
            uint32_t id;
            assert_int_equal(
                ef_profile_add_string(profile, name, strlen(name), &function.name, NULL), EF_OK);
            assert_int_equal(ef_profile_add_string(profile, "a.js", 4, &function.file, NULL),
                             EF_OK);
            assert_int_equal(ef_profile_add_function(profile, &function, &frame.function, NULL),
                             EF_OK);
            assert_int_equal(ef_profile_add_frame(profile, &frame, &id, NULL), EF_OK);
            assert_int_equal(ef_profile_add_node(profile, node, id, &node, NULL), EF_OK);
        }
        assert_int_equal(ef_profile_add_value(profile, node, 0, rand_r(seed) % 9, NULL), EF_OK);
        assert_int_equal(ef_profile_add_value(profile, node, 1,
                                              (int64_t)rand_r(seed) * 1000003 -
                                                  (negative ? INT64_C(1) << 50 : 0),
                                              NULL),
                         EF_OK);
    }
    return profile;
}

static void
random_profiles_survive_every_format(void **state)
{
    unsigned seed = (unsigned)ef_test_seed();

    (void)state;
    for (int round = 0; round < 20; round++) {
        for (size_t i = 0; i < EF_COUNT_OF(carries); i++) {
            const char *unit = carries[i].needs_unit != NULL ? carries[i].needs_unit : "bytes";
            struct ef_profile *profile = random_profile(&seed, unit, carries[i].negative);
            struct ef_profile *again = write_and_read(profile, carries[i].format);
            assert_same(profile, again, &carries[i], "a random profile");
            ef_profile_free(profile);
            ef_profile_free(again);
        }
    }
}

static void
an_empty_profile_survives_where_types_can_be_said(void **state)
{
    static const char *const names[] = {"pprof", "speedscope"};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(names); i++) {
        struct ef_profile *profile = NULL, *again;
        assert_int_equal(ef_profile_open(&ef_profile_limits_default, &profile, NULL), EF_OK);
        assert_int_equal(ef_profile_add_type(profile, "samples", "count", NULL), EF_OK);
        assert_int_equal(ef_profile_add_type(profile, "cpu", "nanoseconds", NULL), EF_OK);
        again = write_and_read(profile, names[i]);
        assert_int_equal(again->type_count, 2);
        assert_string_equal(ef_profile_string(again, again->types[1].type), "cpu");
        ef_profile_free(profile);
        ef_profile_free(again);
    }
}

static void
every_format_of_the_table_is_tested_here(void **state)
{
    const struct ef_format_ops *format;

    (void)state;
    for (size_t i = 0; (format = ef_format_at(i)) != NULL; i++) {
        bool found = format->read == NULL || format->write == NULL;
        for (size_t row = 0; row < EF_COUNT_OF(carries); row++)
            found |= strcmp(carries[row].format, format->name) == 0;
        if (!found)
            fail_msg("format %s is not in the table of this test", format->name);
    }
}

/* Runs a shell line, gives its output (free()); fails the test when it fails. */
static char *
output_of(const char *line)
{
    struct ef_buf text;
    char part[4096];
    size_t len;
    FILE *pipe = popen(line, "r");

    ef_buf_init(&text, 64u << 20);
    assert_non_null(pipe);
    while ((len = fread(part, 1, sizeof(part), pipe)) > 0)
        ef_buf_append(&text, part, len);
    ef_buf_put_u8(&text, 0);
    if (pclose(pipe) != 0)
        fail_msg("'%s' failed: %s", line, (char *)text.data);
    return (char *)ef_buf_take(&text, &len);
}

/* Sums the first and second number of the "Samples:" lines of `pprof -raw`. */
static void
sum_raw(const char *raw, int64_t *ret_first, int64_t *ret_second)
{
    const char *at = strstr(raw, "Samples:\n"), *stop = strstr(raw, "Locations\n");

    *ret_first = *ret_second = 0;
    assert_non_null(at);
    assert_non_null(stop);
    at = strchr(strchr(at, '\n') + 1, '\n') + 1; /* the line of types */
    while (at < stop) {
        int64_t first, second;
        if (sscanf(at, "%" SCNd64 " %" SCNd64 ":", &first, &second) == 2) {
            *ret_first += first;
            *ret_second += second;
        }
        at = strchr(at, '\n') + 1;
    }
}

static void
write_file(const char *path, const struct ef_profile *profile)
{
    const struct ef_format_about about = {.name = "hello", .build = "v41", .program = "shop"};
    struct ef_buf out;
    FILE *file = fopen(path, "wb");

    ef_buf_init(&out, EF_FORMAT_OUTPUT_BYTES_MAX);
    assert_non_null(file);
    assert_int_equal(ef_format_find("pprof")->write(profile, &about, &out, NULL), EF_OK);
    assert_int_equal(fwrite(out.data, 1, out.len, file), out.len);
    assert_int_equal(fclose(file), 0);
    ef_buf_fini(&out);
}

static void
check_with_go(const char *folder, const struct ef_profile *profile, const char *name)
{
    char line[1024], *raw, *top;
    int64_t first, second;

    snprintf(line, sizeof(line), "%s/p.pprof", folder);
    write_file(line, profile);
    snprintf(line, sizeof(line), "PPROF_TMPDIR=%s go tool pprof -raw %s/p.pprof 2>&1", folder,
             folder);
    raw = output_of(line);
    sum_raw(raw, &first, &second);
    if (first != ef_profile_total(profile, 0) || second != ef_profile_total(profile, 1))
        fail_msg("%s: pprof sums %" PRId64 " and %" PRId64, name, first, second);
    snprintf(line, sizeof(line), "PPROF_TMPDIR=%s go tool pprof -top -nodecount=5 %s/p.pprof 2>&1",
             folder, folder);
    top = output_of(line);
    assert_non_null(strstr(top, "File: shop\n"));
    assert_non_null(strstr(top, "Build ID: v41\n"));
    free(raw);
    free(top);
}

/* Goal: `go tool pprof` accepts what we write and adds up the same. */
static void
go_reads_our_pprof_with_equal_totals(void **state)
{
    char *folder;
    unsigned seed = (unsigned)ef_test_seed();
    struct ef_profile *profile;

    (void)state;
    if (system("go tool pprof -h >/dev/null 2>&1; test $? -le 2 && command -v go >/dev/null") !=
        0) {
        print_message("skipped: there is no program 'go' (Debian: golang-go)\n");
        skip();
    }
    folder = ef_test_tmpdir();
    for (size_t i = 0; i < EF_COUNT_OF(captures); i++) {
        profile = read_capture(captures[i]);
        check_with_go(folder, profile, captures[i]);
        ef_profile_free(profile);
    }
    profile = random_profile(&seed, "nanoseconds", true);
    check_with_go(folder, profile, "a random profile with negative values");
    ef_profile_free(profile);
    ef_test_tmpdir_remove(folder);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(captures_survive_every_format),
        cmocka_unit_test(a_second_round_changes_nothing_more),
        cmocka_unit_test(random_profiles_survive_every_format),
        cmocka_unit_test(an_empty_profile_survives_where_types_can_be_said),
        cmocka_unit_test(every_format_of_the_table_is_tested_here),
        cmocka_unit_test(go_reads_our_pprof_with_equal_totals),
    };

    return cmocka_run_group_tests_name("format_round_trip", tests, NULL, NULL);
}
