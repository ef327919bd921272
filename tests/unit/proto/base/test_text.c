/*
 * Numbers, words and hexadecimal digits in texts of others.
 */
#include "tests/support/ef_test.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/err.h"
#include "proto/base/text.h"

static void
numbers_are_read_and_what_follows_is_left(void **state)
{
    static const struct {
        const char *text;
        unsigned base;
        uint64_t number;
        const char *rest;
    } cases[] = {{"0", 10, 0, ""},
                 {"007x", 10, 7, "x"},
                 {"18446744073709551615 ", 10, UINT64_MAX, " "},
                 {"1F90:0", 16, 0x1f90, ":0"},
                 {"ffffffffFFFFFFFF", 16, UINT64_MAX, ""},
                 {"12ab", 10, 12, "ab"}};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        const char *at = cases[i].text;
        uint64_t number = 1;
        assert_true(ef_u64_read(&at, cases[i].base, &number));
        assert_int_equal(number, cases[i].number);
        assert_string_equal(at, cases[i].rest);
    }
}

/* Goal: what strtoull would take in silence (blank, sign, too large, nothing) is refused. */
static void
what_is_no_number_changes_nothing(void **state)
{
    static const char *const texts[] = {
        "", " 1", "-1", "+1", "x", "18446744073709551616", "99999999999999999999999", "g"};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(texts); i++) {
        const char *at = texts[i];
        uint64_t number = 42;
        assert_false(ef_u64_read(&at, 10, &number));
        assert_int_equal(number, 42);
        assert_ptr_equal(at, texts[i]);
    }
}

static void
a_hexadecimal_number_of_65_bits_is_refused(void **state)
{
    const char *text = "10000000000000000", *at = text;
    uint64_t number = 42;

    (void)state;
    assert_false(ef_u64_read(&at, 16, &number));
    assert_int_equal(number, 42);
    assert_ptr_equal(at, text);
}

static void
words_are_counted_from_0_and_missing_ones_are_empty(void **state)
{
    (void)state;
    assert_string_equal(ef_word_at("  one two\n", 0), "one two\n");
    assert_string_equal(ef_word_at("  one \t two", 1), "two");
    assert_string_equal(ef_word_at("one two", 2), "");
    assert_string_equal(ef_word_at("", 9), "");
    assert_int_equal(ef_word_at("one two\n", 2)[0], '\n');
}

static void
hexadecimal_comes_back_as_it_was(void **state)
{
    uint8_t data[256], back[256];
    char text[513];

    (void)state;
    for (size_t i = 0; i < sizeof(data); i++)
        data[i] = (uint8_t)i;
    ef_hex_write(text, data, sizeof(data));
    assert_int_equal(strlen(text), 512);
    assert_memory_equal(text, "000102", 6);
    assert_string_equal(text + 508, "feff");
    assert_true(ef_hex_read(text, back, sizeof(back)));
    assert_memory_equal(data, back, sizeof(data));
    assert_true(ef_hex_read("FEfe", back, 2));
    assert_int_equal(back[0], 0xfe);
    assert_int_equal(back[1], 0xfe);
    ef_hex_write(text, data, 0);
    assert_string_equal(text, "");
}

/* Goal: a short text is not read past its end (the sanitizer watches), other signs are refused. */
static void
what_is_not_hexadecimal_is_refused(void **state)
{
    static const char *const texts[] = {"", "0", "00", "000", "0g00", "00 0", "0x12", "-1-1"};
    uint8_t back[2];

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(texts); i++) {
        char *text = strdup(texts[i]);
        bool read = ef_hex_read(text, back, sizeof(back));
        free(text);
        assert_false(read);
    }
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(numbers_are_read_and_what_follows_is_left),
        cmocka_unit_test(what_is_no_number_changes_nothing),
        cmocka_unit_test(a_hexadecimal_number_of_65_bits_is_refused),
        cmocka_unit_test(words_are_counted_from_0_and_missing_ones_are_empty),
        cmocka_unit_test(hexadecimal_comes_back_as_it_was),
        cmocka_unit_test(what_is_not_hexadecimal_is_refused),
    };

    return cmocka_run_group_tests_name("proto.base.text", tests, NULL, NULL);
}
