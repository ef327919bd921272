/*
 * Result codes and messages.
 */
#include "tests/support/ef_test.h"

#include <errno.h>
#include <string.h>

#include "proto/base/err.h"

static void
set_gives_code_and_text(void **state)
{
    struct ef_err err = {0};

    (void)state;
    assert_int_equal(ef_err_set(&err, EF_ELIMIT, "more than %d", 7), EF_ELIMIT);
    assert_int_equal(err.rc, EF_ELIMIT);
    assert_string_equal(err.msg, "more than 7");
    assert_int_equal(ef_err_set(NULL, EF_EIO, "nobody listens"), EF_EIO);
}

static void
prefix_comes_first_and_keeps_the_code(void **state)
{
    struct ef_err err = {0};

    (void)state;
    ef_err_set(&err, EF_ECORRUPT, "checksum differs");
    ef_err_prefix(&err, "chunk %d", 9);
    ef_err_prefix(&err, "worker '%s'", "shop");
    assert_string_equal(err.msg, "worker 'shop': chunk 9: checksum differs");
    assert_int_equal(err.rc, EF_ECORRUPT);
    ef_err_prefix(NULL, "nothing");
}

/* Goal: no length of text or prefix leaves the array or its final NUL. */
static void
long_texts_are_cut_at_the_end(void **state)
{
    struct ef_err err = {0};
    char text[2 * EF_ERR_TEXT_MAX];

    (void)state;
    memset(text, 'x', sizeof(text) - 1);
    text[sizeof(text) - 1] = '\0';
    ef_err_set(&err, EF_EIO, "%s", text);
    assert_int_equal(strlen(err.msg), EF_ERR_TEXT_MAX - 1);
    ef_err_prefix(&err, "first");
    assert_int_equal(strlen(err.msg), EF_ERR_TEXT_MAX - 1);
    assert_int_equal(strncmp(err.msg, "first: xxx", 10), 0);
    ef_err_prefix(&err, "%s", text);
    assert_true(strlen(err.msg) < EF_ERR_TEXT_MAX);
    assert_int_equal(err.msg[0], 'x');
}

static void
errno_becomes_the_code_it_means(void **state)
{
    static const struct {
        int number;
        ef_rc rc;
    } cases[] = {{ENOSPC, EF_ENOSPC},    {EDQUOT, EF_ENOSPC}, {ENOMEM, EF_ENOMEM},
                 {ENOENT, EF_ENOTFOUND}, {EACCES, EF_EIO},    {EIO, EF_EIO}};

    (void)state;
    for (size_t i = 0; i < EF_COUNT_OF(cases); i++) {
        struct ef_err err = {0};
        errno = cases[i].number;
        assert_int_equal(ef_err_errno(&err, "open '%s'", "x"), cases[i].rc);
        assert_int_equal(strncmp(err.msg, "open 'x': ", 10), 0);
        assert_true(strlen(err.msg) > 10);
    }
}

static void
every_code_has_name_sentence_status_and_exit(void **state)
{
    (void)state;
    assert_string_equal(ef_rc_name(EF_ELIMIT), "EF_ELIMIT");
    assert_string_equal(ef_rc_sentence(EF_ELIMIT), "a limit is reached");
    assert_true(ef_rc_retry(EF_EBUSY));
    assert_false(ef_rc_retry(EF_ECORRUPT));
    assert_int_equal(ef_rc_http(EF_ENOTFOUND), 404);
    assert_int_equal(ef_rc_exit(EF_EUSAGE), 2);
    assert_int_equal(ef_rc_exit(EF_OK), 0);
    for (ef_rc rc = EF_ECONFLICT; rc <= EF_OK; rc++) {
        assert_string_not_equal(ef_rc_name(rc), "EF_UNKNOWN");
        assert_true(strlen(ef_rc_sentence(rc)) > 0);
        assert_in_range(ef_rc_http(rc), 200, 599);
    }
}

static void
a_number_that_is_no_code_is_unknown(void **state)
{
    (void)state;
    assert_string_equal(ef_rc_name(-9999), "EF_UNKNOWN");
    assert_int_equal(ef_rc_http(5), 500);
    assert_int_equal(ef_rc_exit(5), 1);
    assert_false(ef_rc_retry(5));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(set_gives_code_and_text),
        cmocka_unit_test(prefix_comes_first_and_keeps_the_code),
        cmocka_unit_test(long_texts_are_cut_at_the_end),
        cmocka_unit_test(errno_becomes_the_code_it_means),
        cmocka_unit_test(every_code_has_name_sentence_status_and_exit),
        cmocka_unit_test(a_number_that_is_no_code_is_unknown),
    };

    return cmocka_run_group_tests_name("proto.base.err", tests, NULL, NULL);
}
