/*
 * The n-th call on a store fails: the front keeps its promises, and the fault store, which other
 * tests rely on, does what its header says.
 */
#include "tests/support/ef_test.h"

#include <string.h>

#include "storage/store.h"
#include "tests/support/fault_store.h"

#define TIER EF_TIER_10S

struct fixture {
    struct ef_fault_store *fault;
    struct ef_store *store;
};

static int
setup(void **state)
{
    static struct fixture f;
    struct ef_store *inner = NULL;

    if (ef_store_open("memory", NULL, NULL, &inner, NULL) != EF_OK)
        return -1;
    f.store = ef_fault_store_open(inner, &f.fault);
    *state = &f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_store_close(f->store);
    return 0;
}

static struct ef_store_batch *
begin(struct fixture *f)
{
    struct ef_store_batch *batch = NULL;

    assert_int_equal(ef_store_batch_open(f->store, &batch, NULL), EF_OK);
    return batch;
}

static ef_rc
count_block(void *arg, int64_t bucket_ns, uint32_t part, const void *block, size_t len)
{
    (void)bucket_ns;
    (void)part;
    (void)block;
    (void)len;
    ++*(int *)arg;
    return EF_OK;
}

static int
count_blocks(struct fixture *f)
{
    int count = 0;

    assert_int_equal(
        ef_store_fold(f->store, TIER, 1, INT64_MIN, INT64_MAX, count_block, &count, NULL), EF_OK);
    return count;
}

static void
a_failed_put_makes_the_batch_unfit(void **state)
{
    struct fixture *f = *state;
    struct ef_store_totals totals = {.samples = 1};
    struct ef_err err = {0};

    for (uint64_t nth = 1; nth <= 3; nth++) {
        struct ef_store_batch *batch = begin(f);
        int failed = 0;
        ef_fault_store_arm(f->fault, EF_FAULT_PUT, nth, 1, EF_ENOMEM);
        failed += ef_store_put_block(batch, TIER, 1, 0, 0, "x", 1, NULL) == EF_ENOMEM;
        failed += ef_store_put_totals(batch, TIER, 1, 0, 0, &totals, NULL) == EF_ENOMEM;
        failed += ef_store_put_meta(batch, "m", "v", 1, NULL) == EF_ENOMEM;
        assert_int_equal(failed, 1);
        assert_int_equal(ef_store_commit(f->store, batch, &err), EF_EINVAL);
        assert_non_null(strstr(err.msg, "incomplete"));
        ef_store_batch_free(batch);
        assert_int_equal(count_blocks(f), 0);
    }
}

static void
a_failed_commit_changes_nothing_and_may_be_tried_again(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    struct ef_store_stat stat;
    struct ef_err err = {0};

    assert_int_equal(ef_store_put_block(batch, TIER, 1, 0, 0, "x", 1, NULL), EF_OK);
    ef_fault_store_arm(f->fault, EF_FAULT_COMMIT, 1, 2, EF_ENOSPC);
    for (int i = 0; i < 2; i++) {
        assert_int_equal(ef_store_commit(f->store, batch, &err), EF_ENOSPC);
        assert_true(ef_rc_retry(err.rc));
        assert_int_equal(count_blocks(f), 0);
    }
    ef_store_get_stat(f->store, &stat);
    assert_int_equal(stat.blocks, 0);
    assert_int_equal(ef_store_commit(f->store, batch, &err), EF_OK);
    assert_int_equal(ef_fault_store_calls(f->fault, EF_FAULT_COMMIT), 3);
    assert_int_equal(count_blocks(f), 1);
    ef_store_get_stat(f->store, &stat);
    assert_int_equal(stat.blocks, 1);
    ef_store_batch_free(batch);
}

/* The answer got lost: the same batch again must neither fail nor count twice. */
static void
a_commit_whose_answer_is_lost_can_be_repeated(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    struct ef_store_stat stat;

    assert_int_equal(ef_store_put_block(batch, TIER, 1, 0, 0, "x", 1, NULL), EF_OK);
    ef_fault_store_arm(f->fault, EF_FAULT_COMMIT_AFTER, 1, 1, EF_EIO);
    assert_int_equal(ef_store_commit(f->store, batch, NULL), EF_EIO);
    assert_int_equal(count_blocks(f), 1);
    assert_int_equal(ef_store_commit(f->store, batch, NULL), EF_OK);
    assert_int_equal(count_blocks(f), 1);
    ef_store_get_stat(f->store, &stat);
    assert_int_equal(stat.blocks, 1);
    ef_store_batch_free(batch);
}

static void
each_other_kind_fails_when_armed_and_not_afterwards(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = NULL;
    int64_t first_ns = 1, last_ns = 2;
    int count = 0;

    ef_fault_store_arm(f->fault, EF_FAULT_BATCH_OPEN, 1, 1, EF_ENOMEM);
    assert_int_equal(ef_store_batch_open(f->store, &batch, NULL), EF_ENOMEM);
    assert_null(batch);
    ef_store_batch_free(begin(f));
    ef_fault_store_arm(f->fault, EF_FAULT_READ, 2, 2, EF_ECORRUPT);
    assert_int_equal(ef_store_fold(f->store, TIER, 1, 0, 1, count_block, &count, NULL), EF_OK);
    assert_int_equal(ef_store_fold(f->store, TIER, 1, 0, 1, count_block, &count, NULL),
                     EF_ECORRUPT);
    assert_int_equal(ef_store_series_span(f->store, TIER, 1, &first_ns, &last_ns, NULL),
                     EF_ECORRUPT);
    assert_int_equal(ef_store_series_span(f->store, TIER, 1, &first_ns, &last_ns, NULL),
                     EF_ENOTFOUND);
    assert_true(first_ns == 1 && last_ns == 2);
    ef_fault_store_arm(f->fault, EF_FAULT_EXPIRE, 1, 1, EF_EIO);
    assert_int_equal(ef_store_expire(f->store, TIER, 0, NULL), EF_EIO);
    assert_int_equal(ef_store_expire_acks(f->store, 0, NULL), EF_OK);
    ef_fault_store_arm(f->fault, EF_FAULT_COMPACT, 1, 1, EF_EIO);
    assert_int_equal(ef_store_compact(f->store, NULL), EF_EIO);
    assert_int_equal(ef_store_compact(f->store, NULL), EF_OK);
}

#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_failed_put_makes_the_batch_unfit),
        TEST(a_failed_commit_changes_nothing_and_may_be_tried_again),
        TEST(a_commit_whose_answer_is_lost_can_be_repeated),
        TEST(each_other_kind_fails_when_armed_and_not_afterwards),
    };

    return cmocka_run_group_tests_name("store with faults", tests, NULL, NULL);
}
