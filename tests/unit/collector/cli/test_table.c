/*
 * Widths, alignment and cutting of tables for people.
 */
#include "tests/support/ef_test.h"

#include <stdlib.h>
#include <string.h>

#include "collector/cli/table.h"

static const struct ef_cli_column columns[] = {
    {"N", true, false}, {"NAME", false, true}, {"PLACE", false, false}};

struct fixture {
    struct ef_cli_table table;
    struct ef_buf out;
};

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    if (f == NULL)
        return -1;
    ef_cli_table_init(&f->table, columns, EF_COUNT_OF(columns));
    ef_buf_init(&f->out, 1 << 20);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_cli_table_fini(&f->table);
    ef_buf_fini(&f->out);
    free(f);
    return 0;
}

static void
add_row(struct fixture *f, const char *number, const char *name, const char *place)
{
    ef_cli_table_add(&f->table, number);
    ef_cli_table_add(&f->table, name);
    ef_cli_table_add(&f->table, place);
}

static const char *
print(struct fixture *f, struct ef_cli_style style)
{
    ef_cli_table_print(&f->table, &style, &f->out);
    ef_buf_put_u8(&f->out, '\0');
    assert_false(f->out.failed);
    return (const char *)f->out.data;
}

static void
numbers_stand_right_and_the_last_column_is_not_padded(void **state)
{
    struct fixture *f = *state;

    add_row(f, "1", "short", "a:1");
    add_row(f, "1,000", "a much longer name", "b:22");
    assert_string_equal(print(f, (struct ef_cli_style){0}), "    N  NAME                PLACE\n"
                                                            "    1  short               a:1\n"
                                                            "1,000  a much longer name  b:22\n");
}

/* Goal: columns are counted as a terminal draws them: é is one, 漢 is two, a combining mark none.
 */
static void
width_counts_columns_not_bytes(void **state)
{
    struct fixture *f = *state;

    assert_int_equal(ef_cli_text_width("é"), 1);
    assert_int_equal(ef_cli_text_width("漢字"), 4);
    assert_int_equal(ef_cli_text_width("e\xcc\x81"), 1);
    add_row(f, "1", "漢字", "x");
    add_row(f, "2", "é", "x");
    assert_string_equal(print(f, (struct ef_cli_style){0}), "N  NAME  PLACE\n"
                                                            "1  漢字  x\n"
                                                            "2  é     x\n");
}

static void
narrow_terminal_cuts_only_flexible_columns_in_the_middle(void **state)
{
    struct fixture *f = *state;
    const char *text;

    add_row(f, "1", "abcdefghijklmnopqrstuvwxyz", "file.js:10");
    text = print(f, (struct ef_cli_style){.tty = true, .utf8 = true, .width = 30});
    assert_non_null(strstr(text, "1  abcdefg…tuvwxyz  file.js:10\n"));
    for (const char *line = text; *line != '\0'; line = strchr(line, '\n') + 1) {
        char copy[128];
        snprintf(copy, sizeof(copy), "%.*s", (int)strcspn(line, "\n"), line);
        assert_true(ef_cli_text_width(copy) <= 30);
    }
}

/* Of a path its end says most. */
static void
places_are_cut_at_their_start(void **state)
{
    struct ef_buf out;

    (void)state;
    for (size_t width = 4; width < 60; width++) {
        const char *text = "https://bundle.example/assets/漢字/index-7f3a.mjs:12";
        size_t full = ef_cli_text_width(text);
        ef_buf_init(&out, 4096);
        ef_cli_cut_start(&out, text, width, true);
        ef_buf_put_u8(&out, '\0');
        if (width >= full)
            assert_string_equal((char *)out.data, text);
        else
            assert_in_range(ef_cli_text_width((char *)out.data), width - 1, width);
        assert_string_equal((char *)out.data + out.len - 4, ":12");
        ef_buf_fini(&out);
    }
}

/* Goal: no line is wider than the terminal, no word and no colour is lost, what fits stays. */
static void
long_lines_are_wrapped_at_blanks(void **state)
{
    const char *text =
        "head stays\n\033[1mshop\033[0m, versions v1, v2, 漢字 and a few words more\n";
    struct ef_cli_style style = {.tty = true, .utf8 = true, .width = 20};
    struct ef_buf out;

    (void)state;
    ef_buf_init(&out, 4096);
    ef_buf_append_str(&out, text);
    ef_cli_wrap(&out, 11, &style, 2);
    ef_buf_put_u8(&out, '\0');
    assert_string_equal((char *)out.data, "head stays\n\033[1mshop\033[0m, versions v1,\n"
                                          "  v2, 漢字 and a few\n"
                                          "  words more\n");
    ef_buf_clear(&out);
    ef_buf_append_str(&out, "averyveryverylongwordthatfitsnowhere and more\n");
    ef_cli_wrap(&out, 0, &style, 2);
    ef_buf_put_u8(&out, '\0');
    assert_string_equal((char *)out.data, "averyveryverylongwordthatfitsnowhere\n  and more\n");
    style.width = 0;
    ef_buf_clear(&out);
    ef_buf_append_str(&out, text);
    ef_cli_wrap(&out, 0, &style, 2);
    ef_buf_put_u8(&out, '\0');
    assert_string_equal((char *)out.data, text);
    ef_buf_fini(&out);
}

static void
without_a_terminal_nothing_is_cut(void **state)
{
    struct fixture *f = *state;
    char name[2001];

    memset(name, 'x', sizeof(name) - 1);
    name[sizeof(name) - 1] = '\0';
    add_row(f, "1", name, "y");
    assert_non_null(strstr(print(f, (struct ef_cli_style){0}), name));
}

static void
cut_keeps_head_tail_and_width_for_every_length(void **state)
{
    static const char *const texts[] = {"handleRequestOfTheCustomer",
                                        "漢字仮名交じり文の長い名前です",
                                        "mixed 漢字 and latin é text"};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(texts); i++) {
        for (size_t width = 4; width < 40; width++) {
            struct ef_buf out;
            size_t full = ef_cli_text_width(texts[i]);
            ef_buf_init(&out, 4096);
            ef_cli_cut_middle(&out, texts[i], width, width % 2 == 0);
            ef_buf_put_u8(&out, '\0');
            assert_true(ef_cli_text_width((char *)out.data) <= width);
            if (full <= width)
                assert_string_equal((char *)out.data, texts[i]);
            else
                /* A wide character may leave one column free at either side. */
                assert_true(ef_cli_text_width((char *)out.data) + 2 >= width);
            assert_null(strchr((char *)out.data, '?'));
            ef_buf_fini(&out);
        }
    }
}

static void
titles_are_bold_only_with_colour(void **state)
{
    struct fixture *f = *state;

    add_row(f, "1", "a", "b");
    assert_string_equal(print(f, (struct ef_cli_style){.tty = true, .colour = true}),
                        "\033[1mN  NAME  PLACE\033[0m\n1  a     b\n");
}

static void
hostile_names_are_cleaned(void **state)
{
    struct fixture *f = *state;

    add_row(f, "1", "a\033[31mb\tc\r\nd\xff\xc0\x80\xed\xa0\x80", "e\xe2\x80\xae");
    assert_non_null(strstr(print(f, (struct ef_cli_style){0}), "1  a?[31mb?c??d??????  e?\n"));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(numbers_stand_right_and_the_last_column_is_not_padded,
                                        setup, teardown),
        cmocka_unit_test_setup_teardown(width_counts_columns_not_bytes, setup, teardown),
        cmocka_unit_test_setup_teardown(narrow_terminal_cuts_only_flexible_columns_in_the_middle,
                                        setup, teardown),
        cmocka_unit_test(places_are_cut_at_their_start),
        cmocka_unit_test(long_lines_are_wrapped_at_blanks),
        cmocka_unit_test_setup_teardown(without_a_terminal_nothing_is_cut, setup, teardown),
        cmocka_unit_test(cut_keeps_head_tail_and_width_for_every_length),
        cmocka_unit_test_setup_teardown(titles_are_bold_only_with_colour, setup, teardown),
        cmocka_unit_test_setup_teardown(hostile_names_are_cleaned, setup, teardown),
    };

    return cmocka_run_group_tests_name("collector/cli/table", tests, NULL, NULL);
}
