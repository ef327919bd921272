/*
 * Numbers with their units, as people read them.
 */
#include "tests/support/ef_test.h"

#include <math.h>
#include <string.h>

#include "collector/cli/cli.h"

typedef const char *(*text_fn)(double number, char *buf, size_t len);

struct example {
    double number;
    const char *text;
};

static void
check(text_fn function, const struct example *examples, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        char buf[64];
        assert_string_equal(function(examples[i].number, buf, sizeof(buf)), examples[i].text);
    }
}

static void
counts_have_separators(void **state)
{
    static const struct example examples[] = {{0, "0"},        {999, "999"},
                                              {1000, "1,000"}, {-1234567, "-1,234,567"},
                                              {-0.4, "0"},     {123456789012, "123,456,789,012"},
                                              {1e20, "1e+20"}, {NAN, "-"},
                                              {INFINITY, "-"}};

    (void)state;
    check(ef_cli_count_text, examples, EF_COUNT_OF(examples));
}

static void
bytes_have_binary_units(void **state)
{
    static const struct example examples[] = {{0, "0 B"},         {1023, "1023 B"},
                                              {1536, "1.5 KiB"},  {104857600, "100.0 MiB"},
                                              {NAN, "-"},         {1e30, "888178419700125.2 PiB"},
                                              {-2048, "-2.0 KiB"}};

    (void)state;
    check(ef_cli_bytes_text, examples, EF_COUNT_OF(examples));
}

static void
times_have_the_unit_that_says_most(void **state)
{
    static const struct example examples[] = {
        {0, "0 ns"},        {1500, "1.5 us"},      {12e6, "12.0 ms"},      {90e9, "90.0 s"},
        {150e9, "2.5 min"}, {3 * 3600e9, "3.0 h"}, {3 * 86400e9, "3.0 d"}, {NAN, "-"}};

    (void)state;
    check(ef_cli_ns_text, examples, EF_COUNT_OF(examples));
}

static void
values_follow_their_unit(void **state)
{
    char buf[64];

    (void)state;
    assert_string_equal(ef_cli_value_text(2e9, "nanoseconds", buf, sizeof(buf)), "2.0 s");
    assert_string_equal(ef_cli_value_text(2048, "bytes", buf, sizeof(buf)), "2.0 KiB");
    assert_string_equal(ef_cli_value_text(2048, "count", buf, sizeof(buf)), "2,048 count");
}

/* Goal: an interval that is not symmetric is not shown as if it were. */
static void
share_shows_both_sides_of_its_interval(void **state)
{
    char buf[64];

    (void)state;
    assert_string_equal(ef_cli_share_text(0.5, 0.45, 0.51, buf, sizeof(buf)),
                        " 50.00 %  +1.00  -5.00");
    assert_string_equal(ef_cli_share_text(0.5, 0.3, 0.6, buf, sizeof(buf)),
                        " 50.00 % +10.00 -20.00");
    assert_string_equal(ef_cli_share_text(0.5, NAN, 0.6, buf, sizeof(buf)),
                        " 50.00 %     +?     -?");
    assert_string_equal(ef_cli_share_text(NAN, 0, 1, buf, sizeof(buf)), "-");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_have_separators),
        cmocka_unit_test(bytes_have_binary_units),
        cmocka_unit_test(times_have_the_unit_that_says_most),
        cmocka_unit_test(values_follow_their_unit),
        cmocka_unit_test(share_shows_both_sides_of_its_interval),
    };

    return cmocka_run_group_tests_name("collector/cli/words", tests, NULL, NULL);
}
