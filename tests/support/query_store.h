/*
 * Puts a small worker into a store, for tests of what reads it. Test thread only; fails the test
 * when the store refuses.
 */
#ifndef TESTS_SUPPORT_QUERY_STORE_H
#define TESTS_SUPPORT_QUERY_STORE_H

#include "tests/support/ef_test.h"

#include "storage/block.h"
#include "storage/store.h"

/* 2026-12-01T00:00:00Z, the start of a bucket. */
#define EF_TEST_T0 INT64_C(1796083200000000000)

/* Version id: "account"/"worker"/name. Its stacks are `main`, `main;fib`, `main;fib;fib`,
 * `main;leaf`: ids 1 to 4, after `extra` more functions called by main (5 …). */
void ef_test_put_version(struct ef_store *store, uint32_t id, const char *worker, const char *name,
                         uint32_t extra);
enum { EF_TEST_MAIN = 1, EF_TEST_FIB = 2, EF_TEST_FIB_FIB = 3, EF_TEST_LEAF = 4 };
void ef_test_put_series(struct ef_store *store, uint32_t id, uint32_t version_id, uint8_t type,
                        const char *region);
/* One part of a bucket with totals to match; interval 10 ms, or 1 byte for memory types. */
void ef_test_put_bucket(struct ef_store *store, uint32_t series_id, int64_t bucket_ns,
                        uint32_t part, const struct ef_block_pair *pairs, size_t count,
                        const struct ef_store_totals *totals);
/* The same, with sections of the caller; totals are put as they are. */
void ef_test_put_sections(struct ef_store *store, uint32_t series_id, int64_t bucket_ns,
                          uint32_t part, const struct ef_block_section *sections, size_t count,
                          const struct ef_store_totals *totals);

#endif
