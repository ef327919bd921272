/*
 * A store whose n-th call of a kind fails, for tests of everything that uses a store.
 *
 *     struct ef_store *inner, *store;
 *     struct ef_fault_store *fault;
 *
 *     assert_int_equal(ef_store_open("memory", NULL, NULL, &inner, &err), EF_OK);
 *     store = ef_fault_store_open(inner, &fault);               // takes inner
 *     ef_fault_store_arm(fault, EF_FAULT_COMMIT, 2, 3, EF_ENOSPC); // commits 2, 3 and 4 fail
 *     ... use `store` like any other ...
 *     assert_int_equal(ef_fault_store_calls(fault, EF_FAULT_COMMIT), 5);
 *     ef_store_close(store);                                    // also closes inner, frees fault
 *
 * Invariants: a call that fails by plan does nothing, except EF_FAULT_COMMIT_AFTER, which commits
 * and then says it failed (a crash between the disk and the answer). One plan per kind; arming
 * again replaces the plan and counts calls from 0. Any thread may use the store and arm faults.
 */
#ifndef TESTS_SUPPORT_FAULT_STORE_H
#define TESTS_SUPPORT_FAULT_STORE_H

#include "storage/store.h"

enum ef_fault_kind {
    EF_FAULT_BATCH_OPEN,
    EF_FAULT_PUT, /* every ef_store_put_... call */
    EF_FAULT_COMMIT,
    EF_FAULT_COMMIT_AFTER,
    EF_FAULT_READ,   /* each_..., fold, fold_totals, series_span, get_meta */
    EF_FAULT_EXPIRE, /* expire, expire_acks */
    EF_FAULT_COMPACT,
    EF_FAULT_KINDS
};

struct ef_fault_store;

/* Fails the test when memory runs out. Takes inner; closing the result frees everything. */
struct ef_store *ef_fault_store_open(struct ef_store *inner, struct ef_fault_store **ret_fault);
/* From now on, call number `nth` (1 = the next) and times - 1 calls after it give `rc`. times 0
 * disarms. */
void ef_fault_store_arm(struct ef_fault_store *fault, enum ef_fault_kind kind, uint64_t nth,
                        uint64_t times, ef_rc rc);
/* Calls of the kind since it was armed, or since open. */
uint64_t ef_fault_store_calls(struct ef_fault_store *fault, enum ef_fault_kind kind);

#endif
