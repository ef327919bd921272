/*
 * What counts as text and as a name.
 */
#include "tests/support/ef_test.h"

#include <string.h>

#include "proto/base/err.h"
#include "proto/base/utf8.h"

static void
valid_text_is_accepted(void **state)
{
    static const char *const texts[] = {"",
                                        "plain",
                                        "\x7f",
                                        "\xc2\x80",
                                        "\xdf\xbf",
                                        "\xe0\xa0\x80",
                                        "\xed\x9f\xbf",
                                        "\xee\x80\x80",
                                        "\xef\xbf\xbf",
                                        "\xf0\x90\x80\x80",
                                        "\xf4\x8f\xbf\xbf"};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(texts); i++)
        assert_true(ef_utf8_valid(texts[i], strlen(texts[i])));
    assert_true(ef_utf8_valid(NULL, 0));
}

/* Stray, cut, overlong, surrogates, beyond U+10FFFF, NUL. */
static void
invalid_text_is_refused(void **state)
{
    static const char *const texts[] = {"\x80",
                                        "\xbf",
                                        "\xc0\x80",
                                        "\xc1\xbf",
                                        "\xc2",
                                        "\xc2g",
                                        "\xe0\x80\x80",
                                        "\xe0\x9f\xbf",
                                        "\xe2\x82",
                                        "\xed\xa0\x80",
                                        "\xed\xbf\xbf",
                                        "\xf0\x80\x80\x80",
                                        "\xf0\x8f\xbf\xbf",
                                        "\xf4\x90\x80\x80",
                                        "\xf5\x80\x80\x80",
                                        "\xff",
                                        "ok\xfe"};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(texts); i++) {
        if (ef_utf8_valid(texts[i], strlen(texts[i])))
            fail_msg("text %zu was accepted", i);
    }
    assert_false(ef_utf8_valid("a\0b", 3));
}

static void
names_have_length_and_no_control_characters(void **state)
{
    (void)state;
    assert_true(ef_name_valid("shop", 4, 4));
    assert_true(ef_name_valid("\xc3\xa4 b", 4, 10));
    assert_false(ef_name_valid("", 0, 10));
    assert_false(ef_name_valid("shop", 4, 3));
    assert_false(ef_name_valid("a\nb", 3, 10));
    assert_false(ef_name_valid("a\x7f", 2, 10));
    assert_false(ef_name_valid("a\xff", 2, 10));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(valid_text_is_accepted),
        cmocka_unit_test(invalid_text_is_refused),
        cmocka_unit_test(names_have_length_and_no_control_characters),
    };

    return cmocka_run_group_tests_name("proto.base.utf8", tests, NULL, NULL);
}
