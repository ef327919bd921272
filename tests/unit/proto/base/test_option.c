/*
 * Options: values and their bounds, flags, environment, help.
 */
#include "tests/support/ef_test.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/option.h"

#define OPTIONS(X)                                                                                 \
    X(limit_count, EF_OPT_U64, "", 1, 100, "10", EF_OPT_LIVE, "How many.")                         \
    X(body_bytes_max, EF_OPT_SIZE, "B", 1, 1e9, "4KiB", EF_OPT_LIVE, "How large.")                 \
    X(flush_interval_ms, EF_OPT_SPAN_MS, "ms", 100, 60000, "15s", EF_OPT_RESTART, "How often.")    \
    X(overhead_ratio, EF_OPT_F64, "", 0, 1, "0.01", EF_OPT_LIVE, "How much.")                      \
    X(insecure, EF_OPT_BOOL, "", 0, 0, "false", EF_OPT_RESTART, "Without TLS.")                    \
    X(output, EF_OPT_STR, "", 0, 8, "", EF_OPT_RESTART, "Where to.")

struct options {
#define X EF_OPTION_FIELD
    OPTIONS(X)
#undef X
};
static const struct ef_option table[] = {
#define X(...) EF_OPTION_ROW(struct options, __VA_ARGS__)
    OPTIONS(X)
#undef X
};
#define COUNT EF_COUNT_OF(table)

static struct options
defaults(void)
{
    struct options options;

    memset(&options, 0xee, sizeof(options));
    ef_option_defaults(table, COUNT, &options);
    return options;
}

static void
defaults_come_from_the_table(void **state)
{
    struct options options = defaults();

    (void)state;
    assert_int_equal(options.limit_count, 10);
    assert_int_equal(options.body_bytes_max, 4096);
    assert_int_equal(options.flush_interval_ms, 15000);
    assert_true(options.overhead_ratio == 0.01);
    assert_false(options.insecure);
    assert_string_equal(options.output, "");
}

static void
options_are_found_by_key_and_flag(void **state)
{
    (void)state;
    assert_ptr_equal(ef_option_find(table, COUNT, "flush_interval_ms"), &table[2]);
    assert_ptr_equal(ef_option_find(table, COUNT, "flush-interval-ms"), &table[2]);
    assert_ptr_equal(ef_option_find(table, COUNT, "flush-interval"), &table[2]);
    assert_null(ef_option_find(table, COUNT, "flush"));
}

static void
set_stores_good_values(void **state)
{
    static const struct {
        const char *name, *text;
    } cases[] = {{"limit_count", "100"},    {"body_bytes_max", "1MiB"}, {"flush_interval_ms", "1m"},
                 {"overhead_ratio", "0.5"}, {"insecure", "yes"},        {"output", "12345678"}};
    struct options options = defaults();

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++)
        assert_int_equal(ef_option_set(ef_option_find(table, COUNT, cases[i].name), &options,
                                       cases[i].text, NULL),
                         EF_OK);
    assert_int_equal(options.limit_count, 100);
    assert_int_equal(options.body_bytes_max, 1 << 20);
    assert_int_equal(options.flush_interval_ms, 60000);
    assert_true(options.overhead_ratio == 0.5);
    assert_true(options.insecure);
    assert_string_equal(options.output, "12345678");
}

static void
set_refuses_bad_values_and_changes_nothing(void **state)
{
    static const struct {
        const char *name, *text;
    } cases[] = {{"limit_count", "0"},        {"limit_count", "101"},
                 {"limit_count", "-1"},       {"limit_count", "1x"},
                 {"limit_count", ""},         {"limit_count", "99999999999999999999"},
                 {"body_bytes_max", "1TB"},   {"body_bytes_max", "MiB"},
                 {"body_bytes_max", "2GB"},   {"flush_interval_ms", "1"},
                 {"flush_interval_ms", "2h"}, {"flush_interval_ms", "soon"},
                 {"overhead_ratio", "1.5"},   {"overhead_ratio", "nan"},
                 {"overhead_ratio", ""},      {"insecure", "perhaps"},
                 {"output", "123456789"}};
    struct options options = defaults(), before = options;

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        struct ef_err err = {0};
        if (ef_option_set(ef_option_find(table, COUNT, cases[i].name), &options, cases[i].text,
                          &err) != EF_EINVAL)
            fail_msg("%s = '%s' was accepted", cases[i].name, cases[i].text);
        assert_non_null(strstr(err.msg, cases[i].name));
    }
    assert_memory_equal(&options, &before, sizeof(options));
}

/* Splits a line at spaces and parses it; the words that are left stand in `rest`, joined. */
static ef_rc
parse_line(struct options *options, const char *line, char *rest, struct ef_err *err)
{
    char copy[256], *argv[16], *save = NULL;
    int argc = 0;
    bool help, version;
    ef_rc rc;

    snprintf(copy, sizeof(copy), "%s", line);
    for (char *word = strtok_r(copy, " ", &save); word != NULL; word = strtok_r(NULL, " ", &save))
        argv[argc++] = word;
    argv[argc] = NULL;
    rc = ef_option_parse_argv(table, COUNT, options, &argc, argv, &help, &version, err);
    rest[0] = '\0';
    for (int i = 1; i < argc && rc == EF_OK; i++) {
        strcat(rest, argv[i]);
        strcat(rest, i + 1 < argc ? " " : "");
    }
    if (rc == EF_OK && help)
        strcat(rest, " (help)");
    if (rc == EF_OK && version)
        strcat(rest, " (version)");
    return rc;
}

static void
flags_are_taken_out_and_words_stay(void **state)
{
    struct options options = defaults();
    char rest[256];

    (void)state;
    assert_int_equal(parse_line(&options,
                                "prog one --limit-count=5 --flush-interval 2s two --insecure "
                                "-o file -- --three",
                                rest, NULL),
                     EF_OK);
    assert_string_equal(rest, "one two --three");
    assert_int_equal(options.limit_count, 5);
    assert_int_equal(options.flush_interval_ms, 2000);
    assert_true(options.insecure);
    assert_string_equal(options.output, "file");
    assert_int_equal(parse_line(&options, "prog --no-insecure -oother -", rest, NULL), EF_OK);
    assert_false(options.insecure);
    assert_string_equal(options.output, "other");
    assert_string_equal(rest, "-");
    assert_int_equal(parse_line(&options, "prog --help --version", rest, NULL), EF_OK);
    assert_string_equal(rest, " (help) (version)");
}

static void
wrong_flags_are_usage_errors_with_one_line(void **state)
{
    static const struct {
        const char *line, *words;
    } cases[] = {{"prog --limit-cuont=5", "do you mean '--limit-count'?"},
                 {"prog --something-else", "--help lists them"},
                 {"prog --limit-count", "needs a value"},
                 {"prog --limit-count=0", "outside 1 to 100"},
                 {"prog -x", "no option '-x'"},
                 {"prog --no-limit-count", "no option"},
                 {"prog -o", "needs a file name"}};
    char rest[256];

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        struct options options = defaults();
        struct ef_err err = {0};
        assert_int_equal(parse_line(&options, cases[i].line, rest, &err), EF_EUSAGE);
        if (strstr(err.msg, cases[i].words) == NULL)
            fail_msg("'%s' does not say '%s'", err.msg, cases[i].words);
    }
}

static void
the_environment_is_read_and_checked(void **state)
{
    struct options options = defaults();
    struct ef_err err = {0};

    (void)state;
    setenv("EVERFLAME_LIMIT_COUNT", "42", 1);
    assert_int_equal(ef_option_parse_env(table, COUNT, &options, NULL), EF_OK);
    assert_int_equal(options.limit_count, 42);
    setenv("EVERFLAME_LIMIT_COUNT", "many", 1);
    assert_int_equal(ef_option_parse_env(table, COUNT, &options, &err), EF_EINVAL);
    unsetenv("EVERFLAME_LIMIT_COUNT");
    assert_int_equal(options.limit_count, 42);
}

static void
sizes_are_read_in_both_kinds_of_units(void **state)
{
    uint64_t bytes = 7;

    (void)state;
    assert_int_equal(ef_size_parse("10MiB", &bytes, NULL), EF_OK);
    assert_int_equal(bytes, 10 << 20);
    assert_int_equal(ef_size_parse("4kB", &bytes, NULL), EF_OK);
    assert_int_equal(bytes, 4000);
    assert_int_equal(ef_size_parse("4096", &bytes, NULL), EF_OK);
    assert_int_equal(bytes, 4096);
    assert_int_equal(ef_size_parse("99999999999GiB", &bytes, NULL), EF_EINVAL);
    assert_int_equal(ef_size_parse("-1", &bytes, NULL), EF_EINVAL);
    assert_int_equal(ef_size_parse("", &bytes, NULL), EF_EINVAL);
    assert_int_equal(bytes, 4096);
}

static void
the_nearest_word_is_near(void **state)
{
    static const char *const words[] = {"capture", "diff", "export"};

    (void)state;
    assert_string_equal(ef_nearest_word("captrue", words, 3), "capture");
    assert_string_equal(ef_nearest_word("dif", words, 3), "diff");
    assert_null(ef_nearest_word("something", words, 3));
    assert_null(ef_nearest_word("x", words, 0));
}

static void
help_and_reference_name_every_option(void **state)
{
    struct ef_buf buf;
    char *help = NULL;
    size_t len = 0;
    FILE *stream = open_memstream(&help, &len);

    (void)state;
    ef_option_help(table, COUNT, stream);
    fclose(stream);
    ef_buf_init(&buf, 1u << 16);
    ef_option_reference(table, COUNT, &buf);
    ef_buf_put_u8(&buf, 0);
    for (size_t i = 0; i < COUNT; i++) {
        assert_non_null(strstr(help, table[i].sentence));
        assert_non_null(strstr((char *)buf.data, table[i].name));
    }
    assert_non_null(strstr(help, "--flush-interval"));
    ef_buf_fini(&buf);
    free(help);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(defaults_come_from_the_table),
        cmocka_unit_test(options_are_found_by_key_and_flag),
        cmocka_unit_test(set_stores_good_values),
        cmocka_unit_test(set_refuses_bad_values_and_changes_nothing),
        cmocka_unit_test(flags_are_taken_out_and_words_stay),
        cmocka_unit_test(wrong_flags_are_usage_errors_with_one_line),
        cmocka_unit_test(the_environment_is_read_and_checked),
        cmocka_unit_test(sizes_are_read_in_both_kinds_of_units),
        cmocka_unit_test(the_nearest_word_is_near),
        cmocka_unit_test(help_and_reference_name_every_option),
    };

    return cmocka_run_group_tests_name("proto.base.option", tests, NULL, NULL);
}
