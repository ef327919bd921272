/*
 * The JSON writer: commas, escapes, numbers.
 */
#include "tests/support/ef_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "proto/base/json.h"

struct fixture {
    struct ef_buf buf;
    struct ef_json json;
};

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    ef_buf_init(&f->buf, 1u << 20);
    ef_json_init(&f->json, &f->buf);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_buf_fini(&f->buf);
    free(f);
    return 0;
}

static const char *
text_of(struct fixture *f)
{
    ef_buf_put_u8(&f->buf, 0);
    return (const char *)f->buf.data;
}

static void
commas_stand_between_members(void **state)
{
    struct fixture *f = *state;

    ef_json_object(&f->json);
    ef_json_kstr(&f->json, "a", "x");
    ef_json_ki64(&f->json, "b", -5);
    ef_json_key(&f->json, "c");
    ef_json_array(&f->json);
    ef_json_u64(&f->json, UINT64_MAX);
    ef_json_array(&f->json);
    ef_json_array_end(&f->json);
    ef_json_object(&f->json);
    ef_json_object_end(&f->json);
    ef_json_null(&f->json);
    ef_json_array_end(&f->json);
    ef_json_kbool(&f->json, "d", true);
    ef_json_kf64(&f->json, "e", 0.5);
    ef_json_ku64(&f->json, "f", 7);
    ef_json_object_end(&f->json);
    assert_string_equal(text_of(f), "{\"a\":\"x\",\"b\":-5,\"c\":[18446744073709551615,[],{},null],"
                                    "\"d\":true,\"e\":0.5,\"f\":7}");
}

static void
text_is_escaped(void **state)
{
    struct fixture *f = *state;

    ef_json_strn(&f->json, "a\"\\\n\t\x01\x7f\xc3\xa4\0z", 11);
    assert_string_equal(text_of(f), "\"a\\\"\\\\\\n\\t\\u0001\\u007f\xc3\xa4\\u0000z\"");
}

static void
bad_utf8_becomes_the_replacement_character(void **state)
{
    struct fixture *f = *state;

    ef_json_str(&f->json, "a\xff\xc3z\xe2\x82");
    assert_string_equal(text_of(f), "\"a\xef\xbf\xbd\xef\xbf\xbdz\xef\xbf\xbd\xef\xbf\xbd\"");
}

static void
numbers_read_back_the_same_and_others_are_null(void **state)
{
    struct fixture *f = *state;
    static const double numbers[] = {0.1, 1.0 / 3, 1e300, -5e-324, 123456789.25};

    for (size_t i = 0; i < EF_COUNT_OF(numbers); i++) {
        ef_buf_clear(&f->buf);
        ef_json_init(&f->json, &f->buf);
        ef_json_f64(&f->json, numbers[i]);
        assert_true(strtod(text_of(f), NULL) == numbers[i]);
    }
    ef_buf_clear(&f->buf);
    ef_json_init(&f->json, &f->buf);
    ef_json_array(&f->json);
    ef_json_f64(&f->json, NAN);
    ef_json_f64(&f->json, INFINITY);
    ef_json_f64(&f->json, 0.1);
    ef_json_bool(&f->json, false);
    ef_json_array_end(&f->json);
    assert_string_equal(text_of(f), "[null,null,0.1,false]");
}

static void
a_full_buffer_is_seen_at_the_end(void **state)
{
    struct fixture *f = *state;

    f->buf.bytes_max = 5;
    ef_json_str(&f->json, "too long");
    assert_int_equal(ef_buf_check(&f->buf, "JSON", NULL), EF_ELIMIT);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(commas_stand_between_members),
        TEST(text_is_escaped),
        TEST(bad_utf8_becomes_the_replacement_character),
        TEST(numbers_read_back_the_same_and_others_are_null),
        TEST(a_full_buffer_is_seen_at_the_end),
    };

    return cmocka_run_group_tests_name("proto.base.json", tests, NULL, NULL);
}
