/*
 * The store fails in every way it can: nothing is lost, nothing counts twice, acknowledgements wait
 * for the disk, and reading goes on when it works again.
 */
#include "tests/unit/collector/aggregate/fixture.h"

#include "tests/support/fault_store.h"

struct broken {
    struct fixture f;
    struct ef_fault_store *fault;
};

static int
setup(void **state)
{
    struct broken *b = calloc(1, sizeof(*b));
    struct ef_store *inner;

    assert_non_null(b);
    assert_int_equal(ef_store_open("memory", "", NULL, &inner, NULL), EF_OK);
    b->f.store = ef_fault_store_open(inner, &b->fault);
    b->f.maker = ef_batch_maker_open();
    reopen(&b->f);
    *state = b;
    return 0;
}

static int
teardown(void **state)
{
    struct broken *b = *state;

    ef_aggregate_free(b->f.aggregate);
    ef_store_close(b->f.store);
    ef_batch_maker_free(b->f.maker);
    free(b);
    return 0;
}

static ef_rc
apply_one(struct fixture *f, uint64_t sequence)
{
    uint32_t source = ef_make_source(f->maker, "shop", "v1", "i1", "");
    char path[32];

    snprintf(path, sizeof(path), "main;f%d", (int)sequence);
    ef_make_definition(f->maker, source, path, false);
    ef_make_fragment(f->maker, source, T0, 15 * S);
    ef_make_samples(f->maker, ef_stack_of(path), 10);
    return apply_at(f, sequence, NOW);
}

static uint64_t
acknowledged(struct fixture *f, uint64_t last)
{
    Everflame__V1__SyncRequest request = EVERFLAME__V1__SYNC_REQUEST__INIT;
    Everflame__V1__EpochState epoch = EVERFLAME__V1__EPOCH_STATE__INIT, *epochs[] = {&epoch};
    Everflame__V1__SyncReply reply;
    struct ef_sync_arena *arena = ef_sync_arena_open();
    uint64_t number;

    epoch.epoch = epoch.first_sequence = 1;
    epoch.last_sequence = last;
    request.epochs = epochs;
    request.n_epochs = 1;
    assert_int_equal(
        ef_aggregate_sync(f->aggregate, f->publisher, &request, NOW, arena, &reply, NULL), EF_OK);
    number = reply.epochs[0]->acknowledged;
    ef_sync_arena_free(arena);
    return number;
}

static uint64_t
stored(struct fixture *f)
{
    struct read_pair pairs = pairs_of(f, 1, 0, 0, INT64_MAX);

    assert_int_equal(pairs.count, totals_of(f, 1, 0, INT64_MAX).samples);
    return pairs.count;
}

/* Each kind of call, failing at each of its first calls, for a while. */
static void
a_failing_flush_loses_and_doubles_nothing(void **state)
{
    const enum ef_fault_kind kinds[] = {EF_FAULT_BATCH_OPEN, EF_FAULT_PUT, EF_FAULT_COMMIT,
                                        EF_FAULT_COMMIT_AFTER};
    const ef_rc codes[] = {EF_ENOSPC, EF_EIO, EF_ENOMEM};
    struct broken *b = *state;
    uint64_t sequence = 0;

    for (size_t k = 0; k < EF_COUNT_OF(kinds); k++) {
        for (uint64_t nth = 1; nth <= 12; nth++) {
            int failures = 0;
            uint64_t before = sequence;
            assert_int_equal(apply_one(&b->f, ++sequence), EF_OK);
            ef_fault_store_arm(b->fault, kinds[k], nth, 3, codes[nth % 3]);
            for (int i = 0; i < 8; i++) {
                struct ef_err err = {0};
                ef_rc rc = ef_aggregate_flush(b->f.aggregate, NOW, &err);
                if (rc == EF_OK)
                    break;
                assert_true(err.msg[0] != '\0');
                if (kinds[k] != EF_FAULT_COMMIT_AFTER)
                    assert_int_equal(acknowledged(&b->f, sequence), before);
                if (i == 0) /* life goes on meanwhile */
                    assert_int_equal(apply_one(&b->f, ++sequence), EF_OK);
                failures++;
            }
            ef_fault_store_arm(b->fault, kinds[k], 1, 0, EF_OK);
            flush_at(&b->f, NOW);
            assert_int_equal(stored(&b->f), sequence * 10);
            assert_int_equal(acknowledged(&b->f, sequence), sequence);
            if (nth == 1)
                assert_true(failures > 0);
        }
    }
    /* What was written is complete: a new life reads it and goes on. */
    reopen(&b->f);
    assert_int_equal(apply_one(&b->f, sequence), EF_EEXIST);
    assert_int_equal(apply_one(&b->f, sequence + 1), EF_OK);
    flush_at(&b->f, NOW);
    assert_int_equal(stored(&b->f), (sequence + 1) * 10);
}

/* Goal: with a full disk memory fills up to its cap, then batches are refused, and all is well
 * when there is space again. */
static void
a_full_disk_refuses_batches_and_recovers(void **state)
{
    struct broken *b = *state;
    uint64_t sequence = 0;
    ef_rc rc = EF_OK;

    b->f.options.memory_bytes_max = 1 << 20;
    reopen(&b->f);
    ef_fault_store_arm(b->fault, EF_FAULT_COMMIT, 1, 1000000, EF_ENOSPC);
    for (int i = 0; i < 20000 && rc == EF_OK; i++) {
        rc = apply_one(&b->f, sequence + 1);
        sequence += rc == EF_OK;
        if (i % 50 == 49)
            assert_int_equal(ef_aggregate_flush(b->f.aggregate, NOW, NULL), EF_ENOSPC);
        assert_true(ef_aggregate_bytes(b->f.aggregate) <= 1 << 20);
    }
    assert_int_equal(rc, EF_EBUSY);
    assert_true(sequence > 100);
    ef_fault_store_arm(b->fault, EF_FAULT_COMMIT, 1, 0, EF_OK);
    flush_at(&b->f, NOW);
    flush_at(&b->f, NOW);
    assert_int_equal(apply_one(&b->f, ++sequence), EF_OK);
    flush_at(&b->f, NOW);
    assert_int_equal(stored(&b->f), sequence * 10);
    assert_int_equal(acknowledged(&b->f, sequence), sequence);
}

/* Goal: a table that cannot be read delays a batch, and does not let it in half known. */
static void
a_failing_read_delays_a_batch(void **state)
{
    struct broken *b = *state;

    assert_int_equal(apply_one(&b->f, 1), EF_OK);
    flush_at(&b->f, NOW);
    reopen(&b->f);
    ef_fault_store_arm(b->fault, EF_FAULT_READ, 1, 2, EF_EIO);
    assert_int_equal(apply_one(&b->f, 2), EF_EIO);
    assert_int_equal(apply_one(&b->f, 2), EF_EIO);
    assert_int_equal(apply_one(&b->f, 2), EF_OK);
    flush_at(&b->f, NOW);
    assert_int_equal(stored(&b->f), 20);
}

static void
an_unreadable_store_is_not_opened(void **state)
{
    struct broken *b = *state;

    assert_int_equal(apply_one(&b->f, 1), EF_OK);
    flush_at(&b->f, NOW);
    for (uint64_t nth = 1; nth <= 4; nth++) { /* versions, series, acks, counter */
        struct ef_aggregate *second = NULL;
        struct ef_err err = {0};
        ef_fault_store_arm(b->fault, EF_FAULT_READ, nth, 1, EF_EIO);
        assert_int_equal(ef_aggregate_open(b->f.store, NULL, &second, &err), EF_EIO);
        assert_null(second);
        assert_non_null(strstr(err.msg, "opening the aggregate"));
    }
}

#undef TEST
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(a_failing_flush_loses_and_doubles_nothing),
        TEST(a_full_disk_refuses_batches_and_recovers),
        TEST(a_failing_read_delays_a_batch),
        TEST(an_unreadable_store_is_not_opened),
    };
    return cmocka_run_group_tests_name("fault.aggregate_store", tests, NULL, NULL);
}
