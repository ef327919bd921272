/*
 * Times and spans: reading, writing, buckets.
 */
#include "tests/support/ef_test.h"

#include <string.h>

#include "proto/base/time.h"

static const ef_wall_ns now = {INT64_C(1796000000) * EF_NS_PER_S};

static void
buckets_start_at_the_floor_also_before_1970(void **state)
{
    (void)state;
    assert_int_equal(ef_bucket_start(0, 10), 0);
    assert_int_equal(ef_bucket_start(19, 10), 10);
    assert_int_equal(ef_bucket_start(20, 10), 20);
    assert_int_equal(ef_bucket_start(-1, 10), -10);
    assert_int_equal(ef_bucket_start(-10, 10), -10);
}

static void
spans_are_read_in_all_units(void **state)
{
    static const struct {
        const char *text;
        int64_t ns;
    } cases[] = {{"90s", 90 * EF_NS_PER_S},
                 {"15m", 900 * EF_NS_PER_S},
                 {"250ms", 250 * EF_NS_PER_MS},
                 {"3us", 3000},
                 {"7ns", 7},
                 {"2h", 7200 * EF_NS_PER_S},
                 {"1d", 86400 * EF_NS_PER_S},
                 {"1w", 7 * 86400 * EF_NS_PER_S},
                 {"1h30m", 5400 * EF_NS_PER_S},
                 {"1500", 1500 * EF_NS_PER_MS},
                 {"0", 0}};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        ef_span_ns span = {-1};
        assert_int_equal(ef_span_parse(cases[i].text, &span, NULL), EF_OK);
        assert_int_equal(span.ns, cases[i].ns);
    }
}

static void
spans_that_are_none_are_refused(void **state)
{
    static const char *const texts[] = {"",
                                        "s",
                                        "-5s",
                                        "5 s",
                                        "5x",
                                        "1.5s",
                                        "5s5",
                                        "99999999999999999999s",
                                        "9223372036854775807s",
                                        "300w300000w",
                                        "5mss"};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(texts); i++) {
        ef_span_ns span = {-1};
        struct ef_err err = {0};
        if (ef_span_parse(texts[i], &span, &err) != EF_EINVAL)
            fail_msg("'%s' was read", texts[i]);
        assert_int_equal(span.ns, -1);
        assert_non_null(strstr(err.msg, "length of time"));
    }
}

static void
spans_are_written_as_they_are_read(void **state)
{
    static const int64_t spans[] = {
        0, 7, 1500, 250 * EF_NS_PER_MS, 90 * EF_NS_PER_S, 5400 * EF_NS_PER_S, 86400 * EF_NS_PER_S};
    char buf[32];

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(spans); i++) {
        ef_span_ns again = {-1};
        ef_span_format((ef_span_ns){spans[i]}, buf, sizeof(buf));
        assert_int_equal(ef_span_parse(buf, &again, NULL), EF_OK);
        assert_int_equal(again.ns, spans[i]);
    }
    assert_string_equal(ef_span_format((ef_span_ns){5400 * EF_NS_PER_S}, buf, 32), "1h30m");
    assert_string_equal(ef_span_format((ef_span_ns){-5}, buf, 32), "0s");
}

static void
times_are_read_in_all_forms(void **state)
{
    static const struct {
        const char *text;
        int64_t ns;
    } cases[] = {{"1796000000", INT64_C(1796000000) * EF_NS_PER_S},
                 {"1796000000.25", INT64_C(1796000000) * EF_NS_PER_S + 250 * EF_NS_PER_MS},
                 {"1796000000250", INT64_C(1796000000250) * EF_NS_PER_MS},
                 {"1970-01-01T00:00:00Z", 0},
                 {"1970-01-01T00:00Z", 0},
                 {"1970-01-02 00:00:00.5", 86400 * EF_NS_PER_S + EF_NS_PER_S / 2},
                 {"1970-01-01T01:00:00+01:00", 0},
                 {"1969-12-31T23:00:00-01:00", -1},
                 {"2024-02-29T00:00:00z", INT64_C(1709164800) * EF_NS_PER_S},
                 {"now", INT64_C(1796000000) * EF_NS_PER_S},
                 {"now-15m", INT64_C(1795999100) * EF_NS_PER_S},
                 {"now+5s", INT64_C(1796000005) * EF_NS_PER_S}};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        ef_wall_ns at = {-1};
        ef_rc rc = ef_wall_parse(cases[i].text, now, &at, NULL);
        /* Years before 1970 are refused: no profile is that old. */
        assert_int_equal(rc, cases[i].ns == -1 ? EF_EINVAL : EF_OK);
        assert_int_equal(at.ns, cases[i].ns);
    }
}

static void
times_that_are_none_are_refused(void **state)
{
    static const char *const texts[] = {"",
                                        "yesterday",
                                        "now-",
                                        "now 5s",
                                        "now--5s",
                                        "2026-13-01T00:00:00Z",
                                        "2026-02-30T00:00:00Z",
                                        "2026-01-01T25:00:00Z",
                                        "2026-01-01",
                                        "2026-01-01T00:00:00+1",
                                        "2026-01-01T00:00:00Zx",
                                        "2026-01-01T00:00:00.Z",
                                        "123456789012345",
                                        "-5",
                                        "99999999999",
                                        "1796000000."};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(texts); i++) {
        ef_wall_ns at = {-1};
        struct ef_err err = {0};
        if (ef_wall_parse(texts[i], now, &at, &err) != EF_EINVAL)
            fail_msg("'%s' was read", texts[i]);
        assert_int_equal(at.ns, -1);
        assert_non_null(strstr(err.msg, "is not a time"));
    }
}

static void
times_are_written_in_utc(void **state)
{
    char buf[32];
    ef_wall_ns again = {0};

    (void)state;
    assert_string_equal(ef_wall_format((ef_wall_ns){0}, buf, 32), "1970-01-01T00:00:00Z");
    assert_string_equal(ef_wall_format((ef_wall_ns){250 * EF_NS_PER_MS}, buf, 32),
                        "1970-01-01T00:00:00.250Z");
    assert_string_equal(ef_wall_format((ef_wall_ns){-EF_NS_PER_MS}, buf, 32),
                        "1969-12-31T23:59:59.999Z");
    ef_wall_format(now, buf, sizeof(buf));
    assert_int_equal(ef_wall_parse(buf, (ef_wall_ns){0}, &again, NULL), EF_OK);
    assert_int_equal(again.ns, now.ns);
}

static void
clocks_go_forward(void **state)
{
    ef_mono_ns before = ef_mono_now();

    (void)state;
    assert_true(ef_mono_since(before, ef_mono_now()).ns >= 0);
    assert_true(ef_wall_now().ns > INT64_C(1600000000) * EF_NS_PER_S);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(buckets_start_at_the_floor_also_before_1970),
        cmocka_unit_test(spans_are_read_in_all_units),
        cmocka_unit_test(spans_that_are_none_are_refused),
        cmocka_unit_test(spans_are_written_as_they_are_read),
        cmocka_unit_test(times_are_read_in_all_forms),
        cmocka_unit_test(times_that_are_none_are_refused),
        cmocka_unit_test(times_are_written_in_utc),
        cmocka_unit_test(clocks_go_forward),
    };

    return cmocka_run_group_tests_name("proto.base.time", tests, NULL, NULL);
}
