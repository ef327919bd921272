/*
 * An aggregate on a memory store, and reading back what it wrote. Test thread only.
 */
#ifndef TESTS_UNIT_COLLECTOR_AGGREGATE_FIXTURE_H
#define TESTS_UNIT_COLLECTOR_AGGREGATE_FIXTURE_H

#include "tests/support/ef_test.h"

#include "collector/aggregate/aggregate.h"
#include "proto/base/metric.h"
#include "proto/base/time.h"
#include "proto/model/hash.h"
#include "storage/block.h"
#include "tests/support/batch_maker.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define T0 (INT64_C(1796083200) * EF_NS_PER_S) /* 2026-12-01T00:00:00Z, start of a bucket */
#define NOW (T0 + INT64_C(60) * EF_NS_PER_S)
#define S EF_NS_PER_S

struct fixture {
    struct ef_store *store;
    struct ef_aggregate *aggregate;
    struct ef_aggregate_options options;
    struct ef_batch_maker *maker;
    uint8_t publisher[16];
};

static inline void
reopen(struct fixture *f)
{
    struct ef_err err = {0};

    ef_aggregate_free(f->aggregate);
    f->aggregate = NULL;
    if (ef_aggregate_open(f->store, &f->options, &f->aggregate, &err) != EF_OK)
        fail_msg("%s", err.msg);
}

static inline int
fixture_setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct ef_err err = {0};

    assert_non_null(f);
    assert_int_equal(ef_store_open("memory", "", NULL, &f->store, &err), EF_OK);
    f->maker = ef_batch_maker_open();
    f->publisher[0] = 7;
    reopen(f);
    *state = f;
    return 0;
}

static inline int
fixture_teardown(void **state)
{
    struct fixture *f = *state;

    ef_aggregate_free(f->aggregate);
    ef_store_close(f->store);
    ef_batch_maker_free(f->maker);
    free(f);
    return 0;
}

/* Applies what the maker holds as batch `sequence` of epoch 1, and empties the maker. */
static inline ef_rc
apply_at(struct fixture *f, uint64_t sequence, int64_t now_ns)
{
    struct ef_err err = {0};
    ef_rc rc = ef_aggregate_apply(f->aggregate, f->publisher, 1, sequence, ef_make_batch(f->maker),
                                  now_ns, &err);

    if (rc != EF_OK)
        assert_true(err.msg[0] != '\0');
    ef_batch_maker_clear(f->maker);
    return rc;
}

static inline void
flush_at(struct fixture *f, int64_t now_ns)
{
    struct ef_err err = {0};

    if (ef_aggregate_flush(f->aggregate, now_ns, &err) != EF_OK)
        fail_msg("%s", err.msg);
}

/* ---- reading back ---- */

struct read_totals {
    struct ef_store_totals sum;
    uint64_t parts;
};

static inline ef_rc
add_totals(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    struct read_totals *read = arg;

    (void)bucket_ns;
    (void)part;
    ef_store_totals_add(&read->sum, totals);
    read->parts++;
    return EF_OK;
}

/* Totals of a series in [from, to), all parts. */
static inline struct ef_store_totals
totals_of(struct fixture *f, uint32_t series_id, int64_t from_ns, int64_t to_ns)
{
    struct read_totals read = {0};

    assert_int_equal(ef_store_fold_totals(f->store, EF_TIER_10S, series_id, from_ns, to_ns,
                                          add_totals, &read, NULL),
                     EF_OK);
    return read.sum;
}

struct read_stack {
    uint64_t hash;
    uint32_t id;
};

static inline ef_rc
match_stack(void *arg, const struct ef_store_stack *stack)
{
    struct read_stack *wanted = arg;

    assert_true(stack->parent < stack->id);
    if (stack->hash == wanted->hash)
        wanted->id = stack->id;
    return EF_OK;
}

static inline uint32_t
stack_id(struct fixture *f, uint32_t version_id, uint64_t hash)
{
    struct read_stack wanted = {hash, 0};

    assert_int_equal(ef_store_each_stack(f->store, version_id, match_stack, &wanted, NULL), EF_OK);
    return wanted.id;
}

struct read_pair {
    uint32_t id;
    uint64_t count;
    int64_t value;
    uint64_t sections;
};

static inline ef_rc
add_block(void *arg, int64_t bucket_ns, uint32_t part, const void *block, size_t len)
{
    struct read_pair *sum = arg;
    struct ef_block_reader reader;
    struct ef_block_section_header header;
    ef_rc rc;

    (void)bucket_ns;
    (void)part;
    assert_int_equal(ef_block_begin(&reader, block, len, NULL), EF_OK);
    while (ef_block_next(&reader, &header, &rc, NULL)) {
        struct ef_block_pair *pairs = calloc(header.pair_count + 1, sizeof(*pairs));
        assert_non_null(pairs);
        assert_int_equal(ef_block_pairs(&reader, &header, pairs, NULL), EF_OK);
        sum->sections++;
        for (size_t i = 0; i < header.pair_count; i++) {
            if (sum->id != 0 && pairs[i].stack != sum->id)
                continue;
            sum->count += pairs[i].count;
            sum->value += pairs[i].value;
        }
        free(pairs);
    }
    assert_int_equal(rc, EF_OK);
    return EF_OK;
}

/* Sum of one stack (0 = all) over [from, to). */
static inline struct read_pair
pairs_of(struct fixture *f, uint32_t series_id, uint32_t id, int64_t from_ns, int64_t to_ns)
{
    struct read_pair sum = {.id = id};

    assert_int_equal(
        ef_store_fold(f->store, EF_TIER_10S, series_id, from_ns, to_ns, add_block, &sum, NULL),
        EF_OK);
    return sum;
}

/* Samples of a stack, by its path, in series 1 of version 1. */
static inline uint64_t
count_of(struct fixture *f, const char *path, int64_t from_ns, int64_t to_ns)
{
    uint32_t id = stack_id(f, 1, ef_stack_of(path));

    return id == 0 ? 0 : pairs_of(f, 1, id, from_ns, to_ns).count;
}

/* Samples booked on a reserved stack of version 1. */
static inline uint64_t
reserved_count(struct fixture *f, const char *name)
{
    uint64_t function = ef_function_hash(name, strlen(name), "", 0, 0);
    uint32_t id = stack_id(f, 1, ef_stack_hash(0, function, 0));

    return id == 0 ? 0 : pairs_of(f, 1, id, 0, INT64_MAX).count;
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, fixture_setup, fixture_teardown)

#endif
