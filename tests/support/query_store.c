/*
 * Puts a small worker into a store, for tests of what reads it. Test thread only.
 */
#include "tests/support/query_store.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "proto/model/hash.h"

static struct ef_store_batch *
begin(struct ef_store *store)
{
    struct ef_store_batch *batch = NULL;

    assert_int_equal(ef_store_batch_open(store, &batch, NULL), EF_OK);
    return batch;
}

static void
commit(struct ef_store *store, struct ef_store_batch *batch)
{
    struct ef_err err = {0};

    if (ef_store_commit(store, batch, &err) != EF_OK)
        fail_msg("commit: %s", err.msg);
    ef_store_batch_free(batch);
}

static struct ef_store_function
function_of(uint32_t id, const char *name)
{
    return (struct ef_store_function){id, ef_function_hash(name, strlen(name), "shop.js", 7, id),
                                      name, "shop.js", id};
}

void
ef_test_put_version(struct ef_store *store, uint32_t id, const char *worker, const char *name,
                    uint32_t extra)
{
    struct ef_store_batch *batch = begin(store);
    struct ef_store_version version = {id, "account", worker, name, EF_TEST_T0 + id};
    struct ef_store_function *functions = calloc(3 + extra, sizeof(*functions));
    struct ef_store_stack *stacks = calloc(4 + extra, sizeof(*stacks));
    char(*names)[32] = calloc(extra + 1, sizeof(*names));

    functions[0] = function_of(1, "main");
    functions[1] = function_of(2, "fib");
    functions[2] = function_of(3, "leaf");
    stacks[0] = (struct ef_store_stack){1, ef_stack_hash(0, functions[0].hash, 1), 0, 1, 1};
    stacks[1] =
        (struct ef_store_stack){2, ef_stack_hash(stacks[0].hash, functions[1].hash, 2), 1, 2, 2};
    stacks[2] =
        (struct ef_store_stack){3, ef_stack_hash(stacks[1].hash, functions[1].hash, 2), 2, 2, 2};
    stacks[3] =
        (struct ef_store_stack){4, ef_stack_hash(stacks[0].hash, functions[2].hash, 3), 1, 3, 3};
    for (uint32_t i = 0; i < extra; i++) {
        snprintf(names[i], sizeof(names[i]), "extra%u", i);
        functions[3 + i] = function_of(4 + i, names[i]);
        stacks[4 + i] = (struct ef_store_stack){
            5 + i, ef_stack_hash(stacks[0].hash, functions[3 + i].hash, 1), 1, 4 + i, 1};
    }
    assert_int_equal(ef_store_put_version(batch, &version, NULL), EF_OK);
    assert_int_equal(ef_store_put_functions(batch, id, functions, 3 + extra, NULL), EF_OK);
    assert_int_equal(ef_store_put_stacks(batch, id, stacks, 4 + extra, NULL), EF_OK);
    commit(store, batch);
    free(functions);
    free(stacks);
    free(names);
}

void
ef_test_put_series(struct ef_store *store, uint32_t id, uint32_t version_id, uint8_t type,
                   const char *region)
{
    struct ef_store_batch *batch = begin(store);
    struct ef_store_series series = {id, version_id, type, region};

    assert_int_equal(ef_store_put_series(batch, &series, NULL), EF_OK);
    commit(store, batch);
}

void
ef_test_put_sections(struct ef_store *store, uint32_t series_id, int64_t bucket_ns, uint32_t part,
                     const struct ef_block_section *sections, size_t count,
                     const struct ef_store_totals *totals)
{
    struct ef_store_batch *batch = begin(store);
    struct ef_buf block;

    ef_buf_init(&block, 1u << 20);
    assert_int_equal(ef_block_encode(sections, count, &block, NULL), EF_OK);
    assert_int_equal(ef_store_put_block(batch, EF_TIER_10S, series_id, bucket_ns, part, block.data,
                                        block.len, NULL),
                     EF_OK);
    assert_int_equal(
        ef_store_put_totals(batch, EF_TIER_10S, series_id, bucket_ns, part, totals, NULL), EF_OK);
    commit(store, batch);
    ef_buf_fini(&block);
}

void
ef_test_put_bucket(struct ef_store *store, uint32_t series_id, int64_t bucket_ns, uint32_t part,
                   const struct ef_block_pair *pairs, size_t count,
                   const struct ef_store_totals *totals)
{
    struct ef_store_totals sums = *totals;
    struct ef_block_section section = {0, 1000, 10000000, pairs, count};

    for (size_t i = 0; i < count; i++) {
        sums.samples += pairs[i].count;
        sums.value += pairs[i].value;
        sums.value_weighted += pairs[i].value;
    }
    ef_test_put_sections(store, series_id, bucket_ns, part, &section, 1, &sums);
}
