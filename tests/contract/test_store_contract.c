/*
 * What every storage backend must do. The same tests run on each row of storage/backends.def; those
 * about files run where there are files.
 */
#include "tests/support/ef_test.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/base/limit.h"
#include "storage/block.h"
#include "storage/store.h"

#define TIER EF_TIER_10S

struct fixture {
    const char *backend;
    bool on_disk;
    char *folder;
    struct ef_store *store;
};

static void
open_store(struct fixture *f)
{
    struct ef_err err = {0};

    if (ef_store_open(f->backend, f->folder, NULL, &f->store, &err) != EF_OK)
        fail_msg("open: %s", err.msg);
}

static int
setup(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));

    f->backend = *state;
    f->on_disk = strcmp(f->backend, "memory") != 0;
    f->folder = ef_test_tmpdir();
    open_store(f);
    *state = f;
    return 0;
}

static int
teardown(void **state)
{
    struct fixture *f = *state;

    ef_store_close(f->store);
    ef_test_tmpdir_remove(f->folder);
    free(f);
    return 0;
}

/* Closes and opens again where the backend keeps anything; otherwise does nothing. */
static void
reopen(struct fixture *f)
{
    if (!f->on_disk)
        return;
    ef_store_close(f->store);
    f->store = NULL;
    open_store(f);
}

static struct ef_store_batch *
begin(struct fixture *f)
{
    struct ef_store_batch *batch = NULL;

    assert_int_equal(ef_store_batch_open(f->store, &batch, NULL), EF_OK);
    return batch;
}

static void
commit(struct fixture *f, struct ef_store_batch *batch)
{
    struct ef_err err = {0};

    if (ef_store_commit(f->store, batch, &err) != EF_OK)
        fail_msg("commit: %s", err.msg);
    ef_store_batch_free(batch);
}

static void
put_block(struct ef_store_batch *batch, uint32_t series, int64_t bucket_ns, uint32_t part,
          const char *text)
{
    assert_int_equal(
        ef_store_put_block(batch, TIER, series, bucket_ns, part, text, strlen(text), NULL), EF_OK);
}

static void
put_totals(struct ef_store_batch *batch, uint32_t series, int64_t bucket_ns, uint32_t part,
           uint64_t samples)
{
    struct ef_store_totals totals = {.samples = samples, .value = -(int64_t)samples};

    assert_int_equal(ef_store_put_totals(batch, TIER, series, bucket_ns, part, &totals, NULL),
                     EF_OK);
}

/* Both the block and the totals of a bucket, in a batch of their own. */
static void
put_bucket(struct fixture *f, uint32_t series, int64_t bucket_ns, uint32_t part)
{
    struct ef_store_batch *batch = begin(f);

    put_block(batch, series, bucket_ns, part, "block");
    put_totals(batch, series, bucket_ns, part, 1);
    commit(f, batch);
}

/* What iterations saw, as text: one entry per record, compared whole. */
static ef_rc
note_version(void *arg, const struct ef_store_version *version)
{
    ef_buf_printf(arg, "%u %s/%s/%s @%lld\n", version->id, version->account, version->worker,
                  version->version, (long long)version->created_ns);
    return EF_OK;
}

static ef_rc
note_series(void *arg, const struct ef_store_series *series)
{
    ef_buf_printf(arg, "%u version %u type %u '%s'\n", series->id, series->version_id,
                  series->profile_type, series->region);
    return EF_OK;
}

static ef_rc
note_function(void *arg, const struct ef_store_function *function)
{
    ef_buf_printf(arg, "%u %llx '%s' '%s' %u\n", function->id, (unsigned long long)function->hash,
                  function->name, function->file, function->line);
    return EF_OK;
}

static ef_rc
note_stack(void *arg, const struct ef_store_stack *stack)
{
    ef_buf_printf(arg, "%u %llx < %u f%u l%u\n", stack->id, (unsigned long long)stack->hash,
                  stack->parent, stack->function, stack->line);
    return EF_OK;
}

static ef_rc
note_block(void *arg, int64_t bucket_ns, uint32_t part, const void *block, size_t len)
{
    ef_buf_printf(arg, "%lld.%u %.*s\n", (long long)bucket_ns, part, (int)len, (const char *)block);
    return EF_OK;
}

static ef_rc
note_totals(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    ef_buf_printf(arg, "%lld.%u %llu %lld\n", (long long)bucket_ns, part,
                  (unsigned long long)totals->samples, (long long)totals->value);
    return EF_OK;
}

static ef_rc
note_ack(void *arg, const struct ef_store_ack *ack)
{
    ef_buf_printf(arg, "%02x%02x epoch %llu: %llu +%u (%llu) %s @%lld\n", ack->publisher[0],
                  ack->publisher[15], (unsigned long long)ack->epoch,
                  (unsigned long long)ack->contiguous, ack->above_count,
                  (unsigned long long)(ack->above_count > 0 ? ack->above[ack->above_count - 1] : 0),
                  ack->name, (long long)ack->updated_ns);
    return EF_OK;
}

static struct ef_buf
new_notes(void)
{
    struct ef_buf notes;

    ef_buf_init(&notes, 64u << 20);
    return notes;
}

/* Compares and frees the notes. */
static void
assert_notes(struct ef_buf *notes, const char *expected)
{
    ef_buf_put_u8(notes, 0);
    assert_false(notes->failed);
    assert_string_equal((const char *)notes->data, expected);
    ef_buf_fini(notes);
}

static void
assert_fold(struct fixture *f, uint32_t series, int64_t from_ns, int64_t to_ns,
            const char *expected)
{
    struct ef_buf notes = new_notes();

    assert_int_equal(
        ef_store_fold(f->store, TIER, series, from_ns, to_ns, note_block, &notes, NULL), EF_OK);
    assert_notes(&notes, expected);
}

static void
assert_fold_totals(struct fixture *f, uint32_t series, int64_t from_ns, int64_t to_ns,
                   const char *expected)
{
    struct ef_buf notes = new_notes();

    assert_int_equal(
        ef_store_fold_totals(f->store, TIER, series, from_ns, to_ns, note_totals, &notes, NULL),
        EF_OK);
    assert_notes(&notes, expected);
}

static void
a_new_store_is_empty(void **state)
{
    struct fixture *f = *state;
    struct ef_buf notes = new_notes();
    struct ef_store_stat stat;
    int64_t first_ns = 7, last_ns = 8;
    struct ef_err err = {0};

    assert_int_equal(ef_store_each_version(f->store, note_version, &notes, NULL), EF_OK);
    assert_int_equal(ef_store_each_series(f->store, note_series, &notes, NULL), EF_OK);
    assert_int_equal(ef_store_each_ack(f->store, note_ack, &notes, NULL), EF_OK);
    assert_int_equal(ef_store_each_function(f->store, 1, note_function, &notes, NULL), EF_OK);
    assert_int_equal(ef_store_each_stack(f->store, 1, note_stack, &notes, NULL), EF_OK);
    assert_int_equal(ef_store_get_meta(f->store, "flush", &notes, &err), EF_ENOTFOUND);
    assert_non_null(strstr(err.msg, "flush"));
    assert_notes(&notes, "");
    assert_fold(f, 1, INT64_MIN, INT64_MAX, "");
    assert_int_equal(ef_store_series_span(f->store, TIER, 1, &first_ns, &last_ns, &err),
                     EF_ENOTFOUND);
    assert_int_equal(first_ns, 7); /* untouched on failure */
    assert_int_equal(last_ns, 8);
    ef_store_get_stat(f->store, &stat);
    assert_true(stat.oldest_bucket_ns == INT64_MAX && stat.newest_bucket_ns == INT64_MIN);
    assert_int_equal(stat.blocks, 0);
}

static void
versions_and_series_come_back_in_order_of_id(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    const struct ef_store_version versions[] = {{300, "acme", "api", "v2", 1700000000000000000},
                                                {2, "acme", "api", "v1", -5},
                                                {1, "acme", "Ünïcode", "", 0}};
    const struct ef_store_series series[] = {{256, 2, EF_TYPE_ALLOC, "fra"},
                                             {1, 300, EF_TYPE_CPU, ""}};

    for (size_t i = 0; i < EF_COUNT_OF(versions); i++)
        assert_int_equal(ef_store_put_version(batch, &versions[i], NULL), EF_OK);
    for (size_t i = 0; i < EF_COUNT_OF(series); i++)
        assert_int_equal(ef_store_put_series(batch, &series[i], NULL), EF_OK);
    commit(f, batch);
    for (int round = 0; round < 2; round++) {
        struct ef_buf notes = new_notes();
        assert_int_equal(ef_store_each_version(f->store, note_version, &notes, NULL), EF_OK);
        assert_int_equal(ef_store_each_series(f->store, note_series, &notes, NULL), EF_OK);
        assert_notes(&notes, "1 acme/Ünïcode/ @0\n2 acme/api/v1 @-5\n"
                             "300 acme/api/v2 @1700000000000000000\n"
                             "1 version 300 type 1 ''\n256 version 2 type 2 'fra'\n");
        reopen(f);
    }
}

static void
names_of_the_longest_length_are_kept_and_longer_ones_refused(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    struct ef_buf notes = new_notes();
    char name[EF_STORE_NAME_MAX + 2], expected[4 * EF_STORE_NAME_MAX];
    struct ef_store_version version = {1, name, "w", "v", 0};

    memset(name, 'x', sizeof(name));
    name[EF_STORE_NAME_MAX] = '\0';
    assert_int_equal(ef_store_put_version(batch, &version, NULL), EF_OK);
    snprintf(expected, sizeof(expected), "1 %s/w/v @0\n", name);
    name[EF_STORE_NAME_MAX] = 'x';
    name[EF_STORE_NAME_MAX + 1] = '\0';
    assert_int_equal(ef_store_put_version(batch, &version, NULL), EF_EINVAL);
    commit(f, batch); /* a refused argument leaves the batch as it was */
    assert_int_equal(ef_store_each_version(f->store, note_version, &notes, NULL), EF_OK);
    assert_notes(&notes, expected);
}

static void
definitions_of_each_version_come_back_in_order(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    const struct ef_store_function functions[] = {
        {1, 0xa, "main", "a.js", 1}, {2, UINT64_MAX, "", "", 0}, {7, 0xc, "x", "b.js", UINT32_MAX}};
    const struct ef_store_stack stacks[] = {
        {1, 0x1, 0, 1, 10}, {2, 0x2, 1, 2, 0}, {9, 0x3, 1, 7, 5}};
    const struct ef_store_function later = {8, 0xd, "late", "c.js", 3};
    const struct ef_store_stack other = {1, 0x9, 0, 1, 1};

    assert_int_equal(ef_store_put_functions(batch, 1, functions, 3, NULL), EF_OK);
    assert_int_equal(ef_store_put_stacks(batch, 1, stacks, 3, NULL), EF_OK);
    assert_int_equal(ef_store_put_stacks(batch, 2, &other, 1, NULL), EF_OK);
    commit(f, batch);
    batch = begin(f);
    assert_int_equal(ef_store_put_functions(batch, 1, &later, 1, NULL), EF_OK);
    commit(f, batch);
    for (int round = 0; round < 2; round++) {
        struct ef_buf notes = new_notes();
        assert_int_equal(ef_store_each_function(f->store, 1, note_function, &notes, NULL), EF_OK);
        assert_int_equal(ef_store_each_stack(f->store, 1, note_stack, &notes, NULL), EF_OK);
        assert_int_equal(ef_store_each_stack(f->store, 2, note_stack, &notes, NULL), EF_OK);
        assert_int_equal(ef_store_each_function(f->store, 2, note_function, &notes, NULL), EF_OK);
        assert_notes(&notes, "1 a 'main' 'a.js' 1\n2 ffffffffffffffff '' '' 0\n"
                             "7 c 'x' 'b.js' 4294967295\n8 d 'late' 'c.js' 3\n"
                             "1 1 < 0 f1 l10\n2 2 < 1 f2 l0\n9 3 < 1 f7 l5\n1 9 < 0 f1 l1\n");
        reopen(f);
    }
}

struct sum {
    uint64_t count, wrong;
    uint32_t next;
};

static ef_rc
check_many(void *arg, const struct ef_store_stack *stack)
{
    struct sum *sum = arg;

    sum->count++;
    sum->wrong += stack->id != sum->next ||
                  stack->hash != stack->id * UINT64_C(0x9e3779b97f4a7c15) ||
                  stack->parent != stack->id / 2 || stack->function != stack->id % 77 + 1;
    sum->next++;
    return EF_OK;
}

/* Goal: runs are cut into several values and put together again, whatever the size of the puts. */
static void
a_hundred_thousand_stacks_come_back(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    struct sum sum = {.next = 1};
    const uint32_t count = 100000;

    for (uint32_t id = 1; id <= count; id++) {
        struct ef_store_stack stack = {id, id * UINT64_C(0x9e3779b97f4a7c15), id / 2, id % 77 + 1,
                                       id};
        assert_int_equal(ef_store_put_stacks(batch, 3, &stack, 1, NULL), EF_OK);
        if (id == count / 3) {
            commit(f, batch);
            batch = begin(f);
        }
    }
    commit(f, batch);
    reopen(f);
    assert_int_equal(ef_store_each_stack(f->store, 3, check_many, &sum, NULL), EF_OK);
    assert_int_equal(sum.count, count);
    assert_int_equal(sum.wrong, 0);
}

static void
definitions_out_of_order_are_refused(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    const struct ef_store_function twice[] = {{2, 1, "a", "", 0}, {2, 2, "b", "", 0}};
    const struct ef_store_function nameless = {1, 1, NULL, "", 0};
    const struct ef_store_stack own_parent = {4, 1, 4, 1, 0};
    const struct ef_store_stack zero = {0, 1, 0, 1, 0};

    assert_int_equal(ef_store_put_functions(batch, 1, twice, 2, NULL), EF_EINVAL);
    assert_int_equal(ef_store_put_functions(batch, 1, &nameless, 1, NULL), EF_EINVAL);
    assert_int_equal(ef_store_put_functions(batch, 0, twice, 1, NULL), EF_EINVAL);
    assert_int_equal(ef_store_put_stacks(batch, 1, &own_parent, 1, NULL), EF_EINVAL);
    assert_int_equal(ef_store_put_stacks(batch, 1, &zero, 1, NULL), EF_EINVAL);
    ef_store_batch_free(batch);
}

static void
an_uncommitted_batch_is_invisible(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);

    put_block(batch, 1, 0, 1, "kept");
    put_totals(batch, 1, 0, 1, 5);
    assert_fold(f, 1, INT64_MIN, INT64_MAX, "");
    assert_fold_totals(f, 1, INT64_MIN, INT64_MAX, "");
    ef_store_batch_free(batch);
    reopen(f);
    assert_fold(f, 1, INT64_MIN, INT64_MAX, "");
}

static void
a_committed_batch_is_not_taken_again(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    struct ef_err err = {0};

    put_block(batch, 1, 0, 1, "x");
    assert_int_equal(ef_store_commit(f->store, batch, &err), EF_OK);
    assert_int_equal(ef_store_commit(f->store, batch, &err), EF_EINVAL);
    assert_int_equal(ef_store_put_block(batch, TIER, 1, 0, 2, "y", 1, &err), EF_EINVAL);
    ef_store_batch_free(batch);
    assert_fold(f, 1, 0, 1, "0.1 x\n");
}

static void
an_empty_batch_can_be_committed(void **state)
{
    struct fixture *f = *state;

    commit(f, begin(f));
}

static void
a_fold_gives_all_parts_in_order_of_bucket_and_part(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);

    put_block(batch, 7, 20, 300, "d");
    put_block(batch, 7, 10, 2, "b");
    put_block(batch, 8, 10, 1, "other series");
    commit(f, batch);
    batch = begin(f);
    put_block(batch, 7, 10, 1, "a");
    put_block(batch, 7, 20, 4, "c");
    put_block(batch, 6, 10, 1, "other series");
    commit(f, batch);
    for (int round = 0; round < 2; round++) {
        assert_fold(f, 7, 0, 100, "10.1 a\n10.2 b\n20.4 c\n20.300 d\n");
        reopen(f);
    }
}

static void
a_fold_takes_from_and_leaves_to(void **state)
{
    struct fixture *f = *state;

    for (int64_t at = 0; at < 5; at++)
        put_bucket(f, 1, at * 10, 1);
    assert_fold(f, 1, 10, 30, "10.1 block\n20.1 block\n");
    assert_fold(f, 1, 11, 31, "20.1 block\n30.1 block\n");
    assert_fold_totals(f, 1, 10, 30, "10.1 1 -1\n20.1 1 -1\n");
}

static void
empty_and_inverted_ranges_give_nothing(void **state)
{
    struct fixture *f = *state;

    put_bucket(f, 1, 10, 1);
    assert_fold(f, 1, 10, 10, "");
    assert_fold(f, 1, 20, 10, "");
    assert_fold(f, 1, INT64_MAX, INT64_MIN, "");
    assert_fold_totals(f, 1, 10, 10, "");
    assert_fold_totals(f, 1, 11, 10, "");
}

static void
buckets_before_1970_and_at_the_ends_of_time_are_in_order(void **state)
{
    struct fixture *f = *state;
    const int64_t at[] = {0, -10, INT64_MIN, 10, INT64_MAX, -20, INT64_MAX - 1};
    int64_t first_ns, last_ns;
    struct ef_store_stat stat;

    for (size_t i = 0; i < EF_COUNT_OF(at); i++)
        put_bucket(f, UINT32_MAX, at[i], 1);
    reopen(f);
    assert_fold(f, UINT32_MAX, INT64_MIN, INT64_MAX,
                "-9223372036854775808.1 block\n-20.1 block\n-10.1 block\n0.1 block\n10.1 block\n"
                "9223372036854775806.1 block\n");
    assert_fold_totals(f, UINT32_MAX, -20, 1, "-20.1 1 -1\n-10.1 1 -1\n0.1 1 -1\n");
    assert_int_equal(ef_store_series_span(f->store, TIER, UINT32_MAX, &first_ns, &last_ns, NULL),
                     EF_OK);
    assert_true(first_ns == INT64_MIN && last_ns == INT64_MAX);
    ef_store_get_stat(f->store, &stat);
    assert_true(stat.oldest_bucket_ns == INT64_MIN && stat.newest_bucket_ns == INT64_MAX);
}

static void
blocks_of_any_bytes_and_size_come_back_whole(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    struct ef_buf notes = new_notes();
    size_t len = 3u << 20;
    uint8_t *bytes = malloc(len);

    for (size_t i = 0; i < len; i++)
        bytes[i] = (uint8_t)(i * 2654435761u >> 13);
    assert_int_equal(ef_store_put_block(batch, TIER, 1, 0, 1, bytes, len, NULL), EF_OK);
    assert_int_equal(ef_store_put_meta(batch, "big", bytes, len, NULL), EF_OK);
    assert_int_equal(ef_store_put_block(batch, TIER, 1, 0, 2, bytes, 0, NULL), EF_EINVAL);
    commit(f, batch);
    reopen(f);
    assert_int_equal(ef_store_get_meta(f->store, "big", &notes, NULL), EF_OK);
    assert_int_equal(notes.len, len);
    assert_memory_equal(notes.data, bytes, len);
    ef_buf_fini(&notes);
    free(bytes);
}

static ef_rc
take_totals(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    (void)bucket_ns;
    (void)part;
    *(struct ef_store_totals *)arg = *totals;
    return EF_OK;
}

static void
every_field_of_totals_comes_back(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    const struct ef_store_totals put = {1,          INT64_MIN, INT64_MAX, 4,  5,  6,  7,
                                        UINT64_MAX, 9,         10,        11, 12, 13, 14};
    struct ef_store_totals got = {0};

    assert_int_equal(ef_store_put_totals(batch, TIER, 1, 0, 1, &put, NULL), EF_OK);
    commit(f, batch);
    reopen(f);
    assert_int_equal(ef_store_fold_totals(f->store, TIER, 1, 0, 1, take_totals, &got, NULL), EF_OK);
    assert_memory_equal(&got, &put, sizeof(put));
}

static void
the_span_of_a_series_is_its_own(void **state)
{
    struct fixture *f = *state;
    int64_t first_ns, last_ns;

    put_bucket(f, 1, 100, 1);
    put_bucket(f, 2, -30, 1);
    put_bucket(f, 2, 40, 1);
    put_bucket(f, 2, 40, 2);
    put_bucket(f, 3, 0, 1);
    assert_int_equal(ef_store_series_span(f->store, TIER, 2, &first_ns, &last_ns, NULL), EF_OK);
    assert_int_equal(first_ns, -30);
    assert_int_equal(last_ns, 40);
    assert_int_equal(ef_store_series_span(f->store, TIER, 4, &first_ns, &last_ns, NULL),
                     EF_ENOTFOUND);
}

static void
put_ack(struct fixture *f, uint8_t publisher, uint64_t epoch, uint64_t contiguous,
        uint32_t above_count, int64_t updated_ns)
{
    struct ef_store_batch *batch = begin(f);
    struct ef_store_ack *ack = calloc(1, sizeof(*ack));

    ack->publisher[0] = ack->publisher[15] = publisher;
    ack->epoch = epoch;
    ack->contiguous = contiguous;
    ack->above_count = above_count;
    for (uint32_t i = 0; i < above_count; i++)
        ack->above[i] = contiguous + 2 + 2 * (uint64_t)i;
    ack->updated_ns = updated_ns;
    snprintf(ack->name, sizeof(ack->name), "host-%u", publisher);
    assert_int_equal(ef_store_put_ack(batch, ack, NULL), EF_OK);
    free(ack);
    commit(f, batch);
}

static void
an_ack_replaces_the_one_of_its_epoch_only(void **state)
{
    struct fixture *f = *state;

    put_ack(f, 2, 1, 10, EF_ACK_ABOVE_MAX, 100);
    put_ack(f, 2, 2, 5, 0, 110);
    put_ack(f, 255, 1, UINT64_MAX - 1, 0, 120);
    put_ack(f, 2, 1, 2000, 1, 130);
    for (int round = 0; round < 2; round++) {
        struct ef_buf notes = new_notes();
        assert_int_equal(ef_store_each_ack(f->store, note_ack, &notes, NULL), EF_OK);
        assert_notes(&notes, "0202 epoch 1: 2000 +1 (2002) host-2 @130\n"
                             "0202 epoch 2: 5 +0 (0) host-2 @110\n"
                             "ffff epoch 1: 18446744073709551614 +0 (0) host-255 @120\n");
        reopen(f);
    }
}

static ef_rc
take_ack(void *arg, const struct ef_store_ack *ack)
{
    *(struct ef_store_ack *)arg = *ack;
    return EF_OK;
}

static void
every_field_of_an_ack_comes_back(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    struct ef_store_ack put = {.epoch = 3,
                               .contiguous = 4,
                               .above_count = 2,
                               .above = {6, UINT64_MAX},
                               .fragments_stored = 1,
                               .samples_stored = 2,
                               .fragments_lost = 3,
                               .samples_lost = 4,
                               .batches_duplicate = 5,
                               .samples_duplicate = 6,
                               .samples_late = 7,
                               .updated_ns = -8,
                               .name = "host"};
    struct ef_store_ack got = {0};

    assert_int_equal(ef_store_put_ack(batch, &put, NULL), EF_OK);
    commit(f, batch);
    reopen(f);
    assert_int_equal(ef_store_each_ack(f->store, take_ack, &got, NULL), EF_OK);
    assert_memory_equal(&got, &put, sizeof(put));
    batch = begin(f);
    put.above[1] = put.above[0];
    assert_int_equal(ef_store_put_ack(batch, &put, NULL), EF_EINVAL);
    put.above_count = EF_ACK_ABOVE_MAX + 1;
    assert_int_equal(ef_store_put_ack(batch, &put, NULL), EF_EINVAL);
    ef_store_batch_free(batch);
}

static void
acks_not_updated_are_forgotten(void **state)
{
    struct fixture *f = *state;
    struct ef_buf notes = new_notes();

    put_ack(f, 1, 1, 1, 0, 99);
    put_ack(f, 2, 1, 1, 0, 100);
    put_ack(f, 3, 1, 1, 0, -100);
    assert_int_equal(ef_store_expire_acks(f->store, 100, NULL), EF_OK);
    reopen(f);
    assert_int_equal(ef_store_each_ack(f->store, note_ack, &notes, NULL), EF_OK);
    assert_notes(&notes, "0202 epoch 1: 1 +0 (0) host-2 @100\n");
}

static void
a_named_value_is_replaced(void **state)
{
    struct fixture *f = *state;
    const char *name = "0123456789012345678901234567890123456789012345678901234567890123";
    struct ef_store_batch *batch = begin(f);
    struct ef_buf out = new_notes();

    assert_int_equal(ef_store_put_meta(batch, name, "one", 3, NULL), EF_OK);
    assert_int_equal(ef_store_put_meta(batch, "012", "short", 5, NULL), EF_OK);
    assert_int_equal(ef_store_put_meta(batch, "empty", NULL, 0, NULL), EF_OK);
    assert_int_equal(ef_store_put_meta(batch, "", "x", 1, NULL), EF_EINVAL);
    commit(f, batch);
    batch = begin(f);
    assert_int_equal(ef_store_put_meta(batch, name, "two", 3, NULL), EF_OK);
    commit(f, batch);
    reopen(f);
    ef_buf_append_str(&out, "<");
    assert_int_equal(ef_store_get_meta(f->store, name, &out, NULL), EF_OK);
    assert_int_equal(ef_store_get_meta(f->store, "012", &out, NULL), EF_OK);
    assert_int_equal(ef_store_get_meta(f->store, "empty", &out, NULL), EF_OK);
    assert_int_equal(ef_store_get_meta(f->store, "01", &out, NULL), EF_ENOTFOUND);
    assert_notes(&out, "<twoshort");
}

static void
expiry_deletes_what_starts_before_and_nothing_else(void **state)
{
    struct fixture *f = *state;
    struct ef_store_stat stat;

    for (uint32_t series = 1; series <= 3; series++) {
        for (int64_t at = -2; at <= 2; at++)
            put_bucket(f, series, at * 10 + (series == 3 ? 100 : 0), 1);
    }
    put_bucket(f, UINT32_MAX, -50, 1);
    put_ack(f, 1, 1, 1, 0, -1000);
    assert_int_equal(ef_store_expire(f->store, TIER, 0, NULL), EF_OK);
    for (int round = 0; round < 2; round++) {
        assert_fold(f, 1, INT64_MIN, INT64_MAX, "0.1 block\n10.1 block\n20.1 block\n");
        assert_fold_totals(f, 2, INT64_MIN, INT64_MAX, "0.1 1 -1\n10.1 1 -1\n20.1 1 -1\n");
        assert_fold(f, 3, INT64_MIN, 91, "80.1 block\n90.1 block\n");
        assert_fold(f, UINT32_MAX, INT64_MIN, INT64_MAX, "");
        ef_store_get_stat(f->store, &stat);
        assert_int_equal(stat.oldest_bucket_ns, 0);
        assert_int_equal(stat.newest_bucket_ns, 120);
        reopen(f);
    }
    put_bucket(f, 1, -10, 2); /* what comes late is kept */
    assert_fold(f, 1, INT64_MIN, 1, "-10.2 block\n0.1 block\n");
    assert_int_equal(ef_store_expire(f->store, TIER, INT64_MAX, NULL), EF_OK);
    ef_store_get_stat(f->store, &stat);
    assert_true(stat.oldest_bucket_ns == INT64_MAX && stat.newest_bucket_ns == INT64_MIN);
    assert_fold(f, 3, INT64_MIN, INT64_MAX, "");
}

static void
compaction_changes_nothing_that_can_be_read(void **state)
{
    struct fixture *f = *state;

    put_bucket(f, 1, 0, 1);
    put_bucket(f, 1, 10, 1);
    assert_int_equal(ef_store_expire(f->store, TIER, 10, NULL), EF_OK);
    put_bucket(f, 1, 20, 1);
    assert_int_equal(ef_store_compact(f->store, NULL), EF_OK);
    assert_fold(f, 1, INT64_MIN, INT64_MAX, "10.1 block\n20.1 block\n");
    reopen(f);
    assert_fold_totals(f, 1, INT64_MIN, INT64_MAX, "10.1 1 -1\n20.1 1 -1\n");
}

static ef_rc
stop_at_second(void *arg, int64_t bucket_ns, uint32_t part, const void *block, size_t len)
{
    int *calls = arg;

    (void)bucket_ns;
    (void)part;
    (void)block;
    (void)len;
    return ++*calls == 2 ? EF_ERATE : EF_OK;
}

static void
a_callback_stops_its_iteration_with_its_own_code(void **state)
{
    struct fixture *f = *state;
    int calls = 0;

    for (int64_t at = 0; at < 5; at++)
        put_bucket(f, 1, at, 1);
    assert_int_equal(ef_store_fold(f->store, TIER, 1, 0, 5, stop_at_second, &calls, NULL),
                     EF_ERATE);
    assert_int_equal(calls, 2);
    put_bucket(f, 1, 5, 1); /* the store is not left locked */
}

struct nested {
    struct ef_store *store;
    struct ef_buf notes;
};

static ef_rc
read_again(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    struct nested *nested = arg;

    (void)part;
    (void)totals;
    return ef_store_fold(nested->store, TIER, 1, bucket_ns, bucket_ns + 1, note_block,
                         &nested->notes, NULL);
}

static void
a_callback_may_read_the_store(void **state)
{
    struct fixture *f = *state;
    struct nested nested = {f->store, new_notes()};

    put_bucket(f, 1, 1, 1);
    put_bucket(f, 1, 2, 1);
    assert_int_equal(ef_store_fold_totals(f->store, TIER, 1, 0, 5, read_again, &nested, NULL),
                     EF_OK);
    assert_notes(&nested.notes, "1.1 block\n2.1 block\n");
}

static void
the_store_tells_what_it_holds(void **state)
{
    struct fixture *f = *state;
    struct ef_store_stat stat;

    put_bucket(f, 1, 10, 1);
    put_bucket(f, 1, 30, 1);
    ef_store_get_stat(f->store, &stat);
    assert_int_equal(stat.blocks, 2);
    assert_int_equal(stat.samples, 2);
    assert_int_equal(stat.oldest_bucket_ns, 10);
    assert_int_equal(stat.newest_bucket_ns, 30);
    assert_true(stat.memory_bytes > 0);
    assert_int_equal(ef_store_compact(f->store, NULL), EF_OK);
    ef_store_get_stat(f->store, &stat);
    assert_true(stat.block_bytes[TIER] > 0 && stat.totals_bytes > 0);
    assert_true(!f->on_disk || stat.disk_bytes > stat.block_bytes[TIER]);
}

/*
 * Goal: bytes per sample can be told as soon as something was committed, although RocksDB keeps it
 * in memory for long, and do not jump when it goes to disk. Blocks of noise, so that compression
 * does not move the figure.
 */
static void
bytes_are_told_before_they_are_in_a_file(void **state)
{
    enum { BLOCKS = 50, BLOCK_LEN = 2000 };
    struct fixture *f = *state;
    struct ef_store_stat before, after;
    uint8_t block[BLOCK_LEN];
    uint64_t noise = 1;

    for (int i = 0; i < BLOCKS; i++) {
        struct ef_store_batch *batch = begin(f);
        struct ef_store_totals totals = {.samples = 1000};
        for (size_t at = 0; at < sizeof(block); at++) {
            noise = noise * UINT64_C(6364136223846793005) + 1442695040888963407u;
            block[at] = (uint8_t)(noise >> 56);
        }
        assert_int_equal(ef_store_put_block(batch, TIER, 1, i, 1, block, sizeof(block), NULL),
                         EF_OK);
        assert_int_equal(ef_store_put_totals(batch, TIER, 1, i, 1, &totals, NULL), EF_OK);
        commit(f, batch);
        ef_store_get_stat(f->store, &before);
        assert_in_range(before.block_bytes[TIER], (i + 1) * BLOCK_LEN, (i + 1) * (BLOCK_LEN + 64));
    }
    assert_true(before.totals_bytes > 0);
    assert_int_equal(ef_store_compact(f->store, NULL), EF_OK);
    ef_store_get_stat(f->store, &after);
    assert_in_range(after.block_bytes[TIER], before.block_bytes[TIER] * 9 / 10,
                    before.block_bytes[TIER] * 11 / 10);
}

static void
wrong_ids_and_tiers_are_refused(void **state)
{
    struct fixture *f = *state;
    struct ef_store_batch *batch = begin(f);
    struct ef_store_totals totals = {0};
    struct ef_store *other = NULL;
    struct ef_err err = {0};

    assert_int_equal(ef_store_put_block(batch, EF_TIER_COUNT, 1, 0, 0, "x", 1, NULL), EF_EINVAL);
    assert_int_equal(ef_store_put_totals(batch, TIER, 0, 0, 0, &totals, NULL), EF_EINVAL);
    assert_int_equal(ef_store_fold(f->store, EF_TIER_COUNT, 1, 0, 1, note_block, NULL, NULL),
                     EF_EINVAL);
    assert_int_equal(ef_store_expire(f->store, EF_TIER_COUNT, 0, NULL), EF_EINVAL);
    assert_int_equal(ef_store_open("paper", f->folder, NULL, &other, &err), EF_EINVAL);
    assert_non_null(strstr(err.msg, "rocksdb, memory"));
    assert_null(other);
    assert_int_equal(ef_store_open("memory", NULL, NULL, &other, &err), EF_OK);
    assert_int_equal(ef_store_commit(other, batch, &err), EF_EINVAL);
    ef_store_close(other);
    ef_store_batch_free(batch);
}

/*
 * Goal: readers during commits see whole batches only. Method: each commit adds one totals part to
 * each of SERIES series under a new bucket; a reader reads the series in reverse order of nothing
 * in particular: a later read must never show less than an earlier one, and each fold must be an
 * unbroken prefix 0, 1, 2 … of the commits.
 */
#define SERIES 8
#define COMMITS 200
#define READERS 3

struct race {
    struct ef_store *store;
    atomic_int committed; /* batches that commit has answered for */
    atomic_bool done;
    atomic_int failures;
    atomic_int reads;
};

struct prefix {
    int64_t next;
    bool broken;
};

static ef_rc
expect_next(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    struct prefix *prefix = arg;

    (void)part;
    prefix->broken |= bucket_ns != prefix->next || totals->samples != (uint64_t)bucket_ns + 1;
    prefix->next++;
    return EF_OK;
}

static void *
race_reader(void *arg)
{
    struct race *race = arg;

    while (!atomic_load(&race->done)) {
        int before = atomic_load(&race->committed);
        int64_t last = INT64_MAX;
        /* Read from the last series to the first: each holds at least `before`. */
        for (uint32_t series = SERIES; series >= 1; series--) {
            struct prefix prefix = {0};
            if (ef_store_fold_totals(race->store, TIER, series, INT64_MIN, INT64_MAX, expect_next,
                                     &prefix, NULL) != EF_OK ||
                prefix.broken || prefix.next < before || (last != INT64_MAX && prefix.next < last))
                atomic_fetch_add(&race->failures, 1);
            last = prefix.next;
        }
        atomic_fetch_add(&race->reads, 1);
    }
    return NULL;
}

static ef_rc
commit_round(struct ef_store *store, int64_t round)
{
    struct ef_store_totals totals = {.samples = (uint64_t)round + 1};
    struct ef_store_batch *batch = NULL;
    ef_rc rc = ef_store_batch_open(store, &batch, NULL);

    for (uint32_t series = 1; rc == EF_OK && series <= SERIES; series++)
        rc = ef_store_put_totals(batch, TIER, series, round, 0, &totals, NULL);
    if (rc == EF_OK)
        rc = ef_store_commit(store, batch, NULL);
    ef_store_batch_free(batch);
    return rc;
}

static void
readers_during_commits_see_whole_batches(void **state)
{
    struct fixture *f = *state;
    struct race race = {.store = f->store};
    pthread_t readers[READERS];

    for (int i = 0; i < READERS; i++)
        assert_int_equal(pthread_create(&readers[i], NULL, race_reader, &race), 0);
    for (int64_t round = 0; round < COMMITS; round++) {
        if (commit_round(f->store, round) != EF_OK)
            atomic_fetch_add(&race.failures, 1);
        atomic_fetch_add(&race.committed, 1);
    }
    while (atomic_load(&race.reads) < READERS)
        ; /* at least one pass with everything in it */
    atomic_store(&race.done, true);
    for (int i = 0; i < READERS; i++)
        pthread_join(readers[i], NULL);
    assert_int_equal(atomic_load(&race.failures), 0);
}

struct writer {
    struct ef_store *store;
    uint32_t series;
    ef_rc rc;
};

static void *
write_own_series(void *arg)
{
    struct writer *writer = arg;
    struct ef_store_totals totals = {.samples = 1};

    for (int64_t at = 0; writer->rc == EF_OK && at < 200; at++) {
        struct ef_store_batch *batch = NULL;
        writer->rc = ef_store_batch_open(writer->store, &batch, NULL);
        if (writer->rc == EF_OK)
            writer->rc = ef_store_put_totals(batch, TIER, writer->series, at, 0, &totals, NULL);
        if (writer->rc == EF_OK)
            writer->rc = ef_store_commit(writer->store, batch, NULL);
        ef_store_batch_free(batch);
    }
    return NULL;
}

static void
several_threads_may_commit(void **state)
{
    struct fixture *f = *state;
    struct writer writers[4];
    pthread_t threads[4];

    for (uint32_t i = 0; i < 4; i++) {
        writers[i] = (struct writer){f->store, i + 1, EF_OK};
        assert_int_equal(pthread_create(&threads[i], NULL, write_own_series, &writers[i]), 0);
    }
    for (uint32_t i = 0; i < 4; i++)
        pthread_join(threads[i], NULL);
    for (uint32_t i = 0; i < 4; i++) {
        struct prefix prefix = {0};
        assert_int_equal(writers[i].rc, EF_OK);
        EF_IGNORE(ef_store_fold_totals(f->store, TIER, i + 1, 0, 1000, expect_next, &prefix, NULL),
                  "the count tells");
        assert_int_equal(prefix.next, 200);
    }
}

static void
totals_add_up_and_maxima_stay_maxima(void **state)
{
    struct ef_store_totals sum = {1, -2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14};
    const struct ef_store_totals part = {1, 1, INT64_MAX,  1, 1,  1, 1,
                                         1, 1, UINT64_MAX, 1, 20, 2, 20};
    const struct ef_store_totals expected = {2, -1, INT64_MAX,  5,  6,  7,  8,
                                             9, 10, UINT64_MAX, 12, 20, 13, 20};

    (void)state;
    ef_store_totals_add(&sum, &part);
    assert_memory_equal(&sum, &expected, sizeof(sum));
}

/* --- on disk only -------------------------------------------------------------------------- */

static bool
skip_without_disk(const struct fixture *f)
{
    if (!f->on_disk)
        print_message("         (no files: nothing to check)\n");
    return !f->on_disk;
}

static void
a_store_in_use_is_a_conflict_that_names_the_folder(void **state)
{
    struct fixture *f = *state;
    struct ef_store *second = NULL;
    struct ef_err err = {0};

    if (skip_without_disk(f))
        return;
    assert_int_equal(ef_store_open(f->backend, f->folder, NULL, &second, &err), EF_ECONFLICT);
    assert_non_null(strstr(err.msg, f->folder));
    assert_null(second);
    put_bucket(f, 1, 0, 1); /* the first one goes on */
}

/*
 * The child of the crash test: commits batch after batch and says so on stdout after each ack,
 * until it is killed. A batch of number n holds one block and one totals in each of three series,
 * the ack, and meta "last" = n.
 */
static int
crash_child(const char *backend, const char *folder)
{
    struct ef_store *store = NULL;
    struct ef_err err = {0};
    struct ef_buf last;
    uint64_t n = 0;

    ef_buf_init(&last, 64);
    if (ef_store_open(backend, folder, NULL, &store, &err) != EF_OK) {
        fprintf(stderr, "child: %s\n", err.msg);
        return 1;
    }
    if (ef_store_get_meta(store, "last", &last, NULL) == EF_OK) {
        struct ef_cursor cursor = ef_cursor_of(last.data, last.len);
        n = ef_cursor_be64(&cursor);
    }
    for (;;) {
        struct ef_store_batch *batch = NULL;
        struct ef_store_totals totals = {.samples = ++n};
        static struct ef_store_ack ack;
        uint8_t number[8];
        char text[600];
        ef_rc rc = ef_store_batch_open(store, &batch, &err);

        memset(text, 'x', sizeof(text));
        for (int i = 0; i < 8; i++)
            number[i] = (uint8_t)(n >> (8 * (7 - i)));
        for (uint32_t series = 1; rc == EF_OK && series <= 3; series++) {
            rc = ef_store_put_block(batch, TIER, series, (int64_t)n, 0, text, sizeof(text), &err);
            if (rc == EF_OK)
                rc = ef_store_put_totals(batch, TIER, series, (int64_t)n, 0, &totals, &err);
        }
        ack.epoch = 1;
        ack.contiguous = n;
        if (rc == EF_OK)
            rc = ef_store_put_ack(batch, &ack, &err);
        if (rc == EF_OK)
            rc = ef_store_put_meta(batch, "last", number, sizeof(number), &err);
        if (rc == EF_OK)
            rc = ef_store_commit(store, batch, &err);
        ef_store_batch_free(batch);
        if (rc != EF_OK || write(STDOUT_FILENO, number, sizeof(number)) != sizeof(number))
            return 1;
    }
}

static ef_rc
count_block(void *arg, int64_t bucket_ns, uint32_t part, const void *block, size_t len)
{
    struct prefix *prefix = arg;

    (void)part;
    prefix->broken |= bucket_ns != prefix->next + 1 || len != 600 || *(const char *)block != 'x';
    prefix->next++;
    return EF_OK;
}

static ef_rc
count_totals(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    struct prefix *prefix = arg;

    (void)part;
    prefix->broken |= bucket_ns != prefix->next + 1 || totals->samples != (uint64_t)bucket_ns;
    prefix->next++;
    return EF_OK;
}

/* Every acknowledged batch is there, and what is there is whole: all series, acks and meta agree.
 */
static void
check_after_crash(struct fixture *f, uint64_t acknowledged)
{
    static struct ef_store_ack ack;
    struct ef_buf last = new_notes();
    struct ef_cursor cursor;
    uint64_t n;

    open_store(f);
    assert_int_equal(ef_store_get_meta(f->store, "last", &last, NULL), EF_OK);
    cursor = ef_cursor_of(last.data, last.len);
    n = ef_cursor_be64(&cursor);
    ef_buf_fini(&last);
    assert_true(n >= acknowledged);
    for (uint32_t series = 1; series <= 3; series++) {
        struct prefix blocks = {0}, totals = {0};
        assert_int_equal(
            ef_store_fold(f->store, TIER, series, 0, INT64_MAX, count_block, &blocks, NULL), EF_OK);
        assert_int_equal(
            ef_store_fold_totals(f->store, TIER, series, 0, INT64_MAX, count_totals, &totals, NULL),
            EF_OK);
        assert_false(blocks.broken || totals.broken);
        assert_int_equal(blocks.next, n);
        assert_int_equal(totals.next, n);
    }
    assert_int_equal(ef_store_each_ack(f->store, take_ack, &ack, NULL), EF_OK);
    assert_int_equal(ack.contiguous, n);
    ef_store_close(f->store);
    f->store = NULL;
}

/* Starts the child, reads `count` acks, kills it, reads what acks are left; gives the last one. */
static uint64_t
crash_once(struct fixture *f, int count)
{
    uint64_t acknowledged = 0;
    uint8_t number[8];
    int fds[2], status;
    pid_t pid;

    assert_int_equal(pipe(fds), 0);
    pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) { /* a new program: RocksDB's threads do not live through fork */
        dup2(fds[1], STDOUT_FILENO);
        close(fds[0]);
        execl("/proc/self/exe", "child", "--crash-child", f->backend, f->folder, (char *)NULL);
        _exit(127);
    }
    close(fds[1]);
    for (int i = 0; read(fds[0], number, sizeof(number)) == sizeof(number); i++) {
        struct ef_cursor cursor = ef_cursor_of(number, sizeof(number));
        acknowledged = ef_cursor_be64(&cursor);
        if (i == count)
            kill(pid, SIGKILL);
    }
    close(fds[0]);
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_true(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    return acknowledged;
}

static void
every_acknowledged_batch_survives_kill_9(void **state)
{
    struct fixture *f = *state;
    uint64_t before = 0;

    if (skip_without_disk(f))
        return;
    ef_store_close(f->store);
    f->store = NULL;
    for (int round = 0; round < 10; round++) {
        uint64_t acknowledged = crash_once(f, 1 + round * 37);
        assert_true(acknowledged > before);
        check_after_crash(f, acknowledged);
        before = acknowledged;
    }
}

#define TEST(name) cmocka_unit_test_prestate_setup_teardown(name, setup, teardown, backend)

static int
run(char *backend)
{
    const struct CMUnitTest tests[] = {
        TEST(a_new_store_is_empty),
        TEST(versions_and_series_come_back_in_order_of_id),
        TEST(names_of_the_longest_length_are_kept_and_longer_ones_refused),
        TEST(definitions_of_each_version_come_back_in_order),
        TEST(a_hundred_thousand_stacks_come_back),
        TEST(definitions_out_of_order_are_refused),
        TEST(an_uncommitted_batch_is_invisible),
        TEST(a_committed_batch_is_not_taken_again),
        TEST(an_empty_batch_can_be_committed),
        TEST(a_fold_gives_all_parts_in_order_of_bucket_and_part),
        TEST(a_fold_takes_from_and_leaves_to),
        TEST(empty_and_inverted_ranges_give_nothing),
        TEST(buckets_before_1970_and_at_the_ends_of_time_are_in_order),
        TEST(blocks_of_any_bytes_and_size_come_back_whole),
        TEST(every_field_of_totals_comes_back),
        TEST(the_span_of_a_series_is_its_own),
        TEST(an_ack_replaces_the_one_of_its_epoch_only),
        TEST(every_field_of_an_ack_comes_back),
        TEST(acks_not_updated_are_forgotten),
        TEST(a_named_value_is_replaced),
        TEST(expiry_deletes_what_starts_before_and_nothing_else),
        TEST(compaction_changes_nothing_that_can_be_read),
        TEST(a_callback_stops_its_iteration_with_its_own_code),
        TEST(a_callback_may_read_the_store),
        TEST(the_store_tells_what_it_holds),
        TEST(bytes_are_told_before_they_are_in_a_file),
        TEST(wrong_ids_and_tiers_are_refused),
        TEST(readers_during_commits_see_whole_batches),
        TEST(several_threads_may_commit),
        TEST(a_store_in_use_is_a_conflict_that_names_the_folder),
        TEST(every_acknowledged_batch_survives_kill_9),
        cmocka_unit_test(totals_add_up_and_maxima_stay_maxima),
    };
    char group[64];

    snprintf(group, sizeof(group), "store contract: %s", backend);
    return cmocka_run_group_tests_name(group, tests, NULL, NULL);
}

int
main(int argc, char **argv)
{
    static char backends[][16] = {
#define X(name) #name,
#include "storage/backends.def"
#undef X
    };
    int failed = 0;

    if (argc == 4 && strcmp(argv[1], "--crash-child") == 0)
        return crash_child(argv[2], argv[3]);
    for (size_t i = 0; i < EF_COUNT_OF(backends); i++)
        failed += run(backends[i]);
    return failed;
}
