/*
 * Where documents and members begin and end, in good and in hostile text.
 */
#include "tests/support/ef_test.h"

#include "sampler/v8/json_text.h"

#include <string.h>

static struct ef_json_text
text(const char *at)
{
    return (struct ef_json_text){at, strlen(at)};
}

static bool
is(struct ef_json_text got, const char *wanted)
{
    return got.at != NULL && got.len == strlen(wanted) && memcmp(got.at, wanted, got.len) == 0;
}

/* Goal: the end is found wherever the stream is cut in two. */
static void
frame_ends_at_the_same_byte_for_every_cut(void **state)
{
    static const char doc[] = " {\"a\":\"}\\\"{\",\"b\":[{},[1,2]],\"c\":{\"d\":\"\\\\\"}}";
    size_t len = sizeof(doc) - 1;

    (void)state;
    for (size_t cut = 0; cut <= len; cut++) {
        struct ef_json_frame frame = {0};
        char two[128];
        size_t end = 0;
        memcpy(two, doc, len);
        memcpy(two + len, "{\"next\":1}", 10);
        if (ef_json_frame_feed(&frame, two, cut, &end)) {
            assert_int_equal(cut, len);
            assert_int_equal(end, len);
            continue;
        }
        assert_false(frame.bad);
        assert_true(ef_json_frame_feed(&frame, two + cut, len + 10 - cut, &end));
        assert_int_equal(cut + end, len);
        assert_int_equal(frame.depth, 0);
    }
}

static void
frame_refuses_what_is_no_object(void **state)
{
    static const char *const bad[] = {"x", "[1]", "\"a\"", "}", " \n1", "null"};

    (void)state;
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ef_json_frame frame = {0};
        size_t end = 0;
        assert_false(ef_json_frame_feed(&frame, bad[i], strlen(bad[i]), &end));
        assert_true(frame.bad);
    }
}

static void
member_gives_values_of_every_kind(void **state)
{
    struct ef_json_text doc = text("{ \"s\" : \"a,}\\\"\" , \"n\":-1.5e3,\"o\":{\"s\":1},\"l\":[1,"
                                   "{\"x\":2}] ,\"t\":true,\"s\":\"second\"}");

    (void)state;
    assert_true(is(ef_json_member(doc, "s"), "\"a,}\\\"\""));
    assert_true(is(ef_json_member(doc, "n"), "-1.5e3"));
    assert_true(is(ef_json_member(doc, "o"), "{\"s\":1}"));
    assert_true(is(ef_json_member(doc, "l"), "[1,{\"x\":2}]"));
    assert_true(is(ef_json_member(doc, "t"), "true"));
    assert_null(ef_json_member(doc, "x").at); /* only at the top */
    assert_null(ef_json_member(doc, "").at);
    assert_null(ef_json_member((struct ef_json_text){NULL, 0}, "s").at);
}

/* Goal: every prefix and some damage of a document is "absent" or a slice inside it. */
static void
member_stays_inside_hostile_text(void **state)
{
    static const char *const hostile[] = {"{\"a\":{\"b\":[1,2,\"x\\u1234\"]},\"id\":1}",
                                          "{\"a\" \"id\":1}",
                                          "{\"id\":}",
                                          "{\"id\"",
                                          "{\"\\\"id\":1}",
                                          "{,}",
                                          "{\"a\":1,}",
                                          "{\"a\":[[[[[[[[[[[[[",
                                          "{\"a\":\"\\",
                                          "{]}}}"};

    (void)state;
    for (size_t i = 0; i < sizeof(hostile) / sizeof(hostile[0]); i++) {
        for (size_t len = 0; len <= strlen(hostile[i]); len++) {
            char *copy = test_malloc(len + 1); /* the exact size, so that a sanitizer sees more */
            struct ef_json_text got;
            memcpy(copy, hostile[i], len);
            got = ef_json_member((struct ef_json_text){copy, len}, "id");
            if (got.at != NULL) {
                assert_true(got.at >= copy);
                assert_true(got.at + got.len <= copy + len);
            }
            test_free(copy);
        }
    }
    assert_null(ef_json_member(text("{\"id\":}"), "id").at);
}

static void
scalars_are_read_exactly_or_not_at_all(void **state)
{
    int64_t number = 7;
    char value[6];

    (void)state;
    assert_true(ef_json_text_int(text("-12"), &number));
    assert_int_equal(number, -12);
    assert_false(ef_json_text_int(text("1e3"), &number));
    assert_false(ef_json_text_int(text("99999999999999999999"), &number));
    assert_false(ef_json_text_int(text("\"1\""), &number));
    assert_int_equal(number, -12);
    assert_true(ef_json_text_str(text("\"a\\u00e4\""), value, sizeof(value)));
    assert_string_equal(value, "aä");
    assert_true(ef_json_text_str(text("\"abcd\\u00e4\""), value, sizeof(value)));
    assert_string_equal(value, "abcd"); /* not half a character */
    assert_false(ef_json_text_str(text("5"), value, sizeof(value)));
    assert_string_equal(value, "");
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(frame_ends_at_the_same_byte_for_every_cut),
        cmocka_unit_test(frame_refuses_what_is_no_object),
        cmocka_unit_test(member_gives_values_of_every_kind),
        cmocka_unit_test(member_stays_inside_hostile_text),
        cmocka_unit_test(scalars_are_read_exactly_or_not_at_all),
    };
    return cmocka_run_group_tests_name("sampler/v8/json_text", tests, NULL, NULL);
}
