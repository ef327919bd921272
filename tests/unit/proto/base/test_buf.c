/*
 * Buffers with a maximum, and the reader that stops at the end.
 */
#include "tests/support/ef_test.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/buf.h"

static void
appends_grow_up_to_the_maximum(void **state)
{
    struct ef_buf buf;
    struct ef_err err = {0};

    (void)state;
    ef_buf_init(&buf, 100);
    assert_null(buf.data);
    for (int i = 0; i < 10; i++)
        assert_true(ef_buf_append(&buf, "0123456789", 10));
    assert_int_equal(buf.len, 100);
    assert_int_equal(ef_buf_check(&buf, "text", &err), EF_OK);
    assert_false(ef_buf_put_u8(&buf, 1));
    assert_int_equal(buf.len, 100);
    assert_memory_equal(buf.data + 90, "0123456789", 10);
    assert_int_equal(ef_buf_check(&buf, "text", &err), EF_ELIMIT);
    assert_non_null(strstr(err.msg, "text is larger than its limit of 100 bytes"));
    ef_buf_fini(&buf);
}

static void
a_failed_append_stays_failed_until_cleared(void **state)
{
    struct ef_buf buf;

    (void)state;
    ef_buf_init(&buf, 8);
    assert_false(ef_buf_append_str(&buf, "too long for it"));
    assert_true(ef_buf_append_str(&buf, "fits"));
    assert_true(buf.failed);
    ef_buf_clear(&buf);
    assert_false(buf.failed);
    assert_int_equal(buf.len, 0);
    assert_false(ef_buf_reserve(&buf, SIZE_MAX));
    ef_buf_fini(&buf);
}

static void
printf_appends_and_keeps_to_the_maximum(void **state)
{
    struct ef_buf buf;

    (void)state;
    ef_buf_init(&buf, 16);
    assert_true(ef_buf_printf(&buf, "%d-%s", 42, "abc"));
    assert_int_equal(buf.len, 6);
    assert_memory_equal(buf.data, "42-abc", 6);
    assert_false(ef_buf_printf(&buf, "%050d", 1));
    assert_int_equal(buf.len, 6);
    ef_buf_fini(&buf);
}

static void
take_gives_the_bytes_away(void **state)
{
    struct ef_buf buf;
    uint8_t *data;
    size_t len;

    (void)state;
    ef_buf_init(&buf, 16);
    ef_buf_append_str(&buf, "abc");
    data = ef_buf_take(&buf, &len);
    assert_int_equal(len, 3);
    assert_memory_equal(data, "abc", 3);
    assert_int_equal(buf.len, 0);
    assert_true(ef_buf_append_str(&buf, "again"));
    free(data);
    ef_buf_fini(&buf);
}

static const uint64_t numbers[] = {
    0, 1, 127, 128, 300, UINT32_MAX, UINT64_C(1) << 56, INT64_MAX, UINT64_C(1) << 63, UINT64_MAX};

static void
numbers_are_read_as_they_were_written(void **state)
{
    struct ef_buf buf;
    struct ef_cursor cursor;

    (void)state;
    ef_buf_init(&buf, 4096);
    for (size_t i = 0; i < EF_COUNT_OF(numbers); i++) {
        ef_buf_put_varint(&buf, numbers[i]);
        ef_buf_put_zigzag(&buf, (int64_t)numbers[i]);
        ef_buf_put_le32(&buf, (uint32_t)numbers[i]);
        ef_buf_put_be32(&buf, (uint32_t)numbers[i]);
        ef_buf_put_le64(&buf, numbers[i]);
        ef_buf_put_be64(&buf, numbers[i]);
    }
    cursor = ef_cursor_of(buf.data, buf.len);
    for (size_t i = 0; i < EF_COUNT_OF(numbers); i++) {
        assert_int_equal(ef_cursor_varint(&cursor), numbers[i]);
        assert_int_equal(ef_cursor_zigzag(&cursor), (int64_t)numbers[i]);
        assert_int_equal(ef_cursor_le32(&cursor), (uint32_t)numbers[i]);
        assert_int_equal(ef_cursor_be32(&cursor), (uint32_t)numbers[i]);
        assert_int_equal(ef_cursor_le64(&cursor), numbers[i]);
        assert_int_equal(ef_cursor_be64(&cursor), numbers[i]);
    }
    assert_int_equal(ef_cursor_left(&cursor), 0);
    assert_false(cursor.failed);
    ef_buf_fini(&buf);
}

static void
byte_order_is_as_the_name_says(void **state)
{
    struct ef_buf buf;

    (void)state;
    ef_buf_init(&buf, 64);
    ef_buf_put_le32(&buf, 0x01020304);
    ef_buf_put_be32(&buf, 0x01020304);
    ef_buf_put_varint(&buf, 300);
    assert_memory_equal(buf.data, "\x04\x03\x02\x01\x01\x02\x03\x04\xac\x02", 10);
    ef_buf_fini(&buf);
}

static void
a_read_past_the_end_fails_and_all_after_it(void **state)
{
    struct ef_cursor cursor = ef_cursor_of("\x05\x06", 2);

    (void)state;
    assert_int_equal(ef_cursor_u8(&cursor), 5);
    assert_int_equal(ef_cursor_le32(&cursor), 0);
    assert_true(cursor.failed);
    assert_int_equal(ef_cursor_u8(&cursor), 0);
    assert_null(ef_cursor_bytes(&cursor, 0));
    cursor = ef_cursor_of(NULL, 0);
    assert_int_equal(ef_cursor_varint(&cursor), 0);
    assert_true(cursor.failed);
}

static void
varints_that_are_cut_or_too_long_are_refused(void **state)
{
    static const char too_long[] = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01";
    static const char too_large[] = "\xff\xff\xff\xff\xff\xff\xff\xff\xff\x02";
    struct ef_cursor cursor = ef_cursor_of("\x80\x80", 2);

    (void)state;
    ef_cursor_varint(&cursor);
    assert_true(cursor.failed);
    cursor = ef_cursor_of(too_long, sizeof(too_long) - 1);
    ef_cursor_varint(&cursor);
    assert_true(cursor.failed);
    cursor = ef_cursor_of(too_large, sizeof(too_large) - 1);
    ef_cursor_varint(&cursor);
    assert_true(cursor.failed);
}

static void
bytes_are_borrowed_from_the_input(void **state)
{
    static const char text[] = "abcdef";
    struct ef_cursor cursor = ef_cursor_of(text, 6);

    (void)state;
    assert_ptr_equal(ef_cursor_bytes(&cursor, 4), text);
    assert_null(ef_cursor_bytes(&cursor, SIZE_MAX));
    assert_true(cursor.failed);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(appends_grow_up_to_the_maximum),
        cmocka_unit_test(a_failed_append_stays_failed_until_cleared),
        cmocka_unit_test(printf_appends_and_keeps_to_the_maximum),
        cmocka_unit_test(take_gives_the_bytes_away),
        cmocka_unit_test(numbers_are_read_as_they_were_written),
        cmocka_unit_test(byte_order_is_as_the_name_says),
        cmocka_unit_test(a_read_past_the_end_fails_and_all_after_it),
        cmocka_unit_test(varints_that_are_cut_or_too_long_are_refused),
        cmocka_unit_test(bytes_are_borrowed_from_the_input),
    };

    return cmocka_run_group_tests_name("proto.base.buf", tests, NULL, NULL);
}
