/*
 * Keys sort as what they stand for; values that are cut or damaged are refused.
 */
#include "tests/support/ef_test.h"

#include <stdlib.h>
#include <string.h>

#include "storage/rocksdb/records.h"

static int
compare_keys(const struct ef_key *a, const struct ef_key *b)
{
    size_t len = a->len < b->len ? a->len : b->len;
    int order = memcmp(a->bytes, b->bytes, len);

    if (order != 0)
        return order;
    return a->len < b->len ? -1 : a->len > b->len;
}

static uint64_t
next_random(uint64_t *seed)
{
    *seed = *seed * UINT64_C(6364136223846793005) + 1442695040888963407u;
    return *seed ^ *seed >> 29;
}

static void
bucket_keys_sort_by_series_time_and_part(void **state)
{
    uint64_t seed = ef_test_seed();

    (void)state;
    for (int round = 0; round < 20000; round++) {
        uint32_t series[2], part[2];
        int64_t at[2];
        struct ef_key block[2], totals[2];
        int expected;
        for (int i = 0; i < 2; i++) {
            series[i] = (uint32_t)next_random(&seed) % 3 * 0x7fffffff;
            at[i] = (int64_t)(next_random(&seed) << (next_random(&seed) % 64));
            part[i] = (uint32_t)next_random(&seed);
            if (i == 1 && next_random(&seed) % 2 == 0)
                at[1] = at[0];
            block[i] = ef_key_block(series[i], at[i], part[i]);
            totals[i] = ef_key_totals(EF_TIER_10S, series[i], at[i], part[i]);
        }
        expected = series[0] != series[1] ? (series[0] < series[1] ? -1 : 1)
                   : at[0] != at[1]       ? (at[0] < at[1] ? -1 : 1)
                   : part[0] != part[1]   ? (part[0] < part[1] ? -1 : 1)
                                          : 0;
        assert_true((compare_keys(&block[0], &block[1]) < 0) == (expected < 0));
        assert_true((compare_keys(&totals[0], &totals[1]) > 0) == (expected > 0));
    }
}

static void
the_key_after_a_prefix_is_after_all_that_begin_with_it(void **state)
{
    struct ef_key prefix = ef_key_meta_id(EF_META_SERIES, 0x01ffffff);
    struct ef_key after = ef_key_after(&prefix);
    struct ef_key all_ff = {.bytes = {0xff, 0xff}, .len = 2};
    struct ef_key expected = {.bytes = {EF_META_SERIES, 0x02}, .len = 2};

    (void)state;
    assert_int_equal(compare_keys(&after, &expected), 0);
    assert_true(compare_keys(&prefix, &after) < 0);
    assert_int_equal(ef_key_after(&all_ff).len, 0);
}

static void
keys_of_another_length_are_refused(void **state)
{
    const uint8_t bytes[32] = {0};
    uint32_t id, part;
    int64_t at_ns;

    (void)state;
    for (size_t len = 0; len < sizeof(bytes); len++) {
        assert_true(ef_key_read_id(bytes, len, &id) == (len == 5));
        assert_true(ef_key_read_dict(bytes, len, &id) == (len == 9));
        assert_true(ef_key_read_block(bytes, len, &id, &at_ns, &part) == (len == 16));
        assert_true(ef_key_read_totals(bytes, len, &id, &at_ns, &part) == (len == 17));
    }
}

static ef_rc
read_version(const void *data, size_t len)
{
    struct ef_store_version version;

    return ef_record_read_version(data, len, &version, NULL);
}

static ef_rc
read_series(const void *data, size_t len)
{
    struct ef_store_series series;

    return ef_record_read_series(data, len, &series, NULL);
}

static ef_rc
read_totals(const void *data, size_t len)
{
    struct ef_store_totals totals;

    return ef_record_read_totals(data, len, &totals, NULL);
}

static ef_rc
read_span(const void *data, size_t len)
{
    struct ef_span span;

    return ef_record_read_span(data, len, &span, NULL);
}

static ef_rc
read_ack(const void *data, size_t len)
{
    static const uint8_t key[24];
    static struct ef_store_ack ack;

    return ef_record_read_ack(key, sizeof(key), data, len, &ack, NULL);
}

/* Whole it reads; cut anywhere, of another format, or with a byte too many it does not. */
static void
assert_strict(struct ef_buf *value, ef_rc (*read)(const void *data, size_t len))
{
    assert_int_equal(read(value->data, value->len), EF_OK);
    for (size_t len = 0; len < value->len; len++) {
        uint8_t *exact = malloc(len > 0 ? len : 1);
        memcpy(exact, value->data, len);
        assert_int_equal(read(exact, len), EF_ECORRUPT);
        free(exact);
    }
    ef_buf_put_u8(value, 0);
    assert_int_equal(read(value->data, value->len), EF_ECORRUPT);
    value->data[0] = 2;
    assert_int_equal(read(value->data, value->len - 1), EF_ECORRUPT);
    ef_buf_clear(value);
}

static void
damaged_values_are_refused(void **state)
{
    const struct ef_store_version version = {1, "account", "worker", "version", -12345678};
    const struct ef_store_series series = {1, 70000, EF_TYPE_INUSE, "region"};
    const struct ef_store_totals totals = {1, -2, 300, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14000};
    const struct ef_span span = {-1000, 1000};
    static struct ef_store_ack ack = {.contiguous = 3, .above_count = 2, .above = {5, 900}};
    struct ef_buf value;

    (void)state;
    ef_buf_init(&value, 1u << 20);
    ef_record_write_version(&value, &version);
    assert_strict(&value, read_version);
    ef_record_write_series(&value, &series);
    assert_strict(&value, read_series);
    ef_record_write_totals(&value, &totals);
    assert_strict(&value, read_totals);
    ef_record_write_span(&value, &span);
    assert_strict(&value, read_span);
    ef_record_write_ack(&value, &ack);
    assert_strict(&value, read_ack);
    ef_buf_fini(&value);
}

static void
damaged_runs_are_refused(void **state)
{
    const uint8_t good[] = {1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 1, 1};
    struct ef_store_stack stack = {.id = 99};
    struct ef_run run;
    uint8_t bad[sizeof(good)];
    struct ef_err err = {0};

    (void)state;
    assert_int_equal(ef_run_begin(&run, 9, good, sizeof(good), NULL), EF_OK);
    assert_int_equal(ef_run_stack(&run, &stack, NULL), EF_OK);
    assert_true(stack.id == 9 && stack.parent == 0 && !ef_run_more(&run));
    stack.id = 99;
    memcpy(bad, good, sizeof(bad));
    bad[1] = 1; /* the first record must have the id of the key */
    assert_int_equal(ef_run_begin(&run, 9, bad, sizeof(bad), NULL), EF_OK);
    assert_int_equal(ef_run_stack(&run, &stack, &err), EF_ECORRUPT);
    bad[1] = 0;
    bad[10] = 10; /* a parent before the root */
    assert_int_equal(ef_run_begin(&run, 9, bad, sizeof(bad), NULL), EF_OK);
    assert_int_equal(ef_run_stack(&run, &stack, &err), EF_ECORRUPT);
    assert_int_equal(ef_run_begin(&run, 9, good, sizeof(good) - 1, NULL), EF_OK);
    assert_int_equal(ef_run_stack(&run, &stack, &err), EF_ECORRUPT);
    assert_int_equal(ef_run_begin(&run, 9, good, 0, &err), EF_ECORRUPT);
    assert_int_equal(stack.id, 99); /* untouched on failure */
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(bucket_keys_sort_by_series_time_and_part),
        cmocka_unit_test(the_key_after_a_prefix_is_after_all_that_begin_with_it),
        cmocka_unit_test(keys_of_another_length_are_refused),
        cmocka_unit_test(damaged_values_are_refused),
        cmocka_unit_test(damaged_runs_are_refused),
    };

    return cmocka_run_group_tests_name("records", tests, NULL, NULL);
}
