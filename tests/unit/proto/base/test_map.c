/*
 * The hash map: growth, removal, limit, iteration.
 */
#include "tests/support/ef_test.h"

#include <stdlib.h>
#include <string.h>

#include "proto/base/map.h"

static void
put(struct ef_map *map, uint64_t key, uint64_t value)
{
    bool is_new;
    uint64_t *at = ef_map_upsert(map, key, &is_new);

    assert_non_null(at);
    *at = value;
}

static void
any_key_is_found_again_zero_too(void **state)
{
    static const uint64_t keys[] = {0, 1, UINT64_MAX, UINT64_C(1) << 32, UINT64_C(1) << 63};
    struct ef_map map;
    bool is_new;

    (void)state;
    ef_map_init(&map, 100);
    assert_null(ef_map_get(&map, 0));
    for (size_t i = 0; i < 5; i++)
        put(&map, keys[i], i + 10);
    for (size_t i = 0; i < 5; i++)
        assert_int_equal(*ef_map_get(&map, keys[i]), i + 10);
    assert_null(ef_map_get(&map, 7));
    assert_int_equal(*ef_map_upsert(&map, 1, &is_new), 11);
    assert_false(is_new);
    assert_int_equal(*ef_map_upsert(&map, 7, &is_new), 0);
    assert_true(is_new);
    assert_int_equal(map.count, 6);
    ef_map_fini(&map);
}

static void
the_maximum_refuses_new_keys_only(void **state)
{
    struct ef_map map;
    bool is_new;

    (void)state;
    ef_map_init(&map, 2);
    put(&map, 1, 1);
    put(&map, 2, 2);
    assert_null(ef_map_upsert(&map, 3, &is_new));
    assert_non_null(ef_map_upsert(&map, 2, &is_new));
    assert_true(ef_map_remove(&map, 1));
    assert_non_null(ef_map_upsert(&map, 3, &is_new));
    ef_map_fini(&map);
}

static void
clear_empties_and_keeps_the_memory(void **state)
{
    struct ef_map map;
    size_t held;

    (void)state;
    ef_map_init(&map, 100);
    put(&map, 5, 6);
    held = ef_map_bytes(&map);
    assert_true(held > 0);
    ef_map_clear(&map);
    assert_null(ef_map_get(&map, 5));
    assert_int_equal(map.count, 0);
    assert_int_equal(ef_map_bytes(&map), held);
    ef_map_fini(&map);
    assert_int_equal(ef_map_bytes(&map), 0);
}

/* Goal: removal moves the members of a run back and loses none. Against an array as the model. */
static void
random_inserts_and_removals_agree_with_an_array(void **state)
{
    enum { KEYS = 512 };
    uint64_t values[KEYS] = {0};
    bool there[KEYS] = {0};
    unsigned seed = (unsigned)ef_test_seed();
    struct ef_map map;
    size_t count = 0;

    (void)state;
    ef_map_init(&map, KEYS);
    assert_false(ef_map_remove(&map, 1));
    for (int step = 0; step < 50000; step++) {
        uint64_t key = (uint64_t)rand_r(&seed) % KEYS;
        if (rand_r(&seed) % 2 == 0) {
            assert_int_equal(ef_map_remove(&map, key << 20), there[key]);
            count -= there[key];
            there[key] = false;
        } else {
            put(&map, key << 20, (uint64_t)step);
            count += !there[key];
            there[key] = true;
            values[key] = (uint64_t)step;
        }
        assert_int_equal(map.count, count);
    }
    for (uint64_t key = 0; key < KEYS; key++) {
        uint64_t *value = ef_map_get(&map, key << 20);
        assert_int_equal(value != NULL, there[key]);
        if (value != NULL)
            assert_int_equal(*value, values[key]);
    }
    ef_map_fini(&map);
}

static void
iteration_gives_every_entry_once(void **state)
{
    struct ef_map map;
    uint64_t key, value, sum = 0;
    size_t count = 0;

    (void)state;
    ef_map_init(&map, 1000);
    for (uint64_t i = 0; i < 300; i++)
        put(&map, i, i * 2);
    for (size_t i = 0; ef_map_next(&map, &i, &key, &value); count++) {
        assert_int_equal(value, key * 2);
        sum += key;
    }
    assert_int_equal(count, 300);
    assert_int_equal(sum, 300 * 299 / 2);
    ef_map_fini(&map);
}

static void
hashes_differ_and_are_never_zero(void **state)
{
    (void)state;
    assert_int_equal(ef_hash("abc", 3), ef_hash("abc", 3));
    assert_int_not_equal(ef_hash("abc", 3), ef_hash("abd", 3));
    assert_int_not_equal(ef_hash("", 0), 0);
    /* Specified: XXH3-64 of "a" with seed 0; stored hashes depend on it. */
    assert_true(ef_hash("a", 1) == UINT64_C(0xe6c632b61e964e1f));
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(any_key_is_found_again_zero_too),
        cmocka_unit_test(the_maximum_refuses_new_keys_only),
        cmocka_unit_test(clear_empties_and_keeps_the_memory),
        cmocka_unit_test(random_inserts_and_removals_agree_with_an_array),
        cmocka_unit_test(iteration_gives_every_entry_once),
        cmocka_unit_test(hashes_differ_and_are_never_zero),
    };

    return cmocka_run_group_tests_name("proto.base.map", tests, NULL, NULL);
}
