/*
 * Goal: whatever the order, the repetitions and the restarts, the store ends up with exactly the
 * sum of the distinct batches. Method: random batches of several publishers are sent as a lossy
 * network would, with flushes and restarts in between (unflushed state is dropped, everything
 * unacknowledged is sent again), until all is acknowledged; then every sum is compared.
 */
#include "tests/unit/collector/aggregate/fixture.h"

#define PUBLISHERS 4u
#define BATCHES 60u /* of each */
#define VERSIONS 3u
#define PATHS 40u
#define BUCKETS 40u

struct batch {
    struct ef_batch_maker *maker;
    bool acknowledged;
};

struct world {
    struct fixture *f;
    uint64_t seed;
    struct batch batches[PUBLISHERS][BATCHES + 1];
    /* What the store must hold in the end. */
    uint64_t count[VERSIONS][PATHS];
    int64_t value[VERSIONS][PATHS];
    uint64_t samples, refused;
    bool defined[PUBLISHERS][VERSIONS][PATHS];
};

static uint64_t
next(struct world *w, uint64_t below)
{
    w->seed = w->seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return (w->seed >> 33) % below;
}

static void
path_name(char *path, size_t len, uint64_t number)
{
    snprintf(path, len, "main;mid%d;f%d", (int)(number % 7), (int)number);
}

static void
add_fragment(struct world *w, uint32_t publisher, struct ef_batch_maker *maker)
{
    uint32_t version = (uint32_t)next(w, VERSIONS);
    char name[8], instance[8];
    uint32_t source;
    bool valued = next(w, 3) == 0;
    uint64_t stacks = 1 + next(w, 12);

    snprintf(name, sizeof(name), "v%u", version);
    snprintf(instance, sizeof(instance), "i%u", publisher);
    source = ef_make_source(maker, "shop", name, instance, next(w, 2) == 0 ? "fra" : "");
    ef_make_fragment(maker, source, T0 - (int64_t)next(w, BUCKETS * 10) * S - (int64_t)next(w, S),
                     next(w, 35) * (uint64_t)S + next(w, S));
    for (uint64_t i = 0; i < stacks; i++) {
        uint64_t number = (i * 3 + next(w, 3)) % PATHS; /* each at most once */
        uint64_t count = 1 + next(w, 9);
        int64_t value = valued ? (int64_t)next(w, 1000000) : (int64_t)count * 10000000;
        char path[32];
        path_name(path, sizeof(path), number);
        if (!w->defined[publisher][version][number])
            ef_make_definition(maker, source, path, next(w, 2) == 0);
        w->defined[publisher][version][number] = true;
        if (valued)
            ef_make_valued(maker, ef_stack_of(path), count, value);
        else
            ef_make_samples(maker, ef_stack_of(path), count);
        w->count[version][number] += count;
        w->value[version][number] += value;
        w->samples += count;
    }
}

static void
make_batches(struct world *w)
{
    for (uint32_t p = 0; p < PUBLISHERS; p++) {
        for (uint32_t b = 1; b <= BATCHES; b++) {
            uint64_t fragments = 1 + next(w, 4);
            w->batches[p][b].maker = ef_batch_maker_open();
            for (uint64_t i = 0; i < fragments; i++)
                add_fragment(w, p, w->batches[p][b].maker);
        }
    }
}

static void
send(struct world *w, uint32_t publisher, uint32_t number, int64_t now_ns)
{
    uint8_t id[16] = {(uint8_t)publisher};
    ef_rc rc = ef_aggregate_apply(w->f->aggregate, id, 77, number,
                                  ef_make_batch(w->batches[publisher][number].maker), now_ns, NULL);

    w->refused += rc == EF_EBUSY;
    assert_true(rc == EF_OK || rc == EF_EEXIST || rc == EF_ENOTFOUND || rc == EF_EBUSY);
}

/* Asks, and takes acknowledgements and missing ranges as the publisher would. False: all done. */
static bool
sync(struct world *w, uint32_t publisher, int64_t now_ns)
{
    uint8_t id[16] = {(uint8_t)publisher};
    Everflame__V1__SyncRequest request = EVERFLAME__V1__SYNC_REQUEST__INIT;
    Everflame__V1__EpochState epoch = EVERFLAME__V1__EPOCH_STATE__INIT, *epochs[] = {&epoch};
    Everflame__V1__SyncReply reply;
    struct ef_sync_arena *arena = ef_sync_arena_open();
    bool more;

    epoch.epoch = 77;
    epoch.last_sequence = BATCHES;
    for (epoch.first_sequence = 1; epoch.first_sequence <= BATCHES &&
                                   w->batches[publisher][epoch.first_sequence].acknowledged;)
        epoch.first_sequence++;
    request.epochs = epochs;
    request.n_epochs = 1;
    assert_int_equal(ef_aggregate_sync(w->f->aggregate, id, &request, now_ns, arena, &reply, NULL),
                     EF_OK);
    assert_int_equal(reply.n_epochs, 1);
    for (uint64_t b = 1; b <= reply.epochs[0]->acknowledged; b++)
        w->batches[publisher][b].acknowledged = true;
    for (size_t r = 0; r < reply.epochs[0]->n_missing_first; r++) {
        for (uint64_t b = reply.epochs[0]->missing_first[r]; b <= reply.epochs[0]->missing_last[r];
             b++) {
            assert_false(w->batches[publisher][b].acknowledged);
            if (next(w, 3) != 0) /* a third is lost again */
                send(w, publisher, (uint32_t)b, now_ns);
        }
    }
    more = reply.epochs[0]->acknowledged < BATCHES;
    ef_sync_arena_free(arena);
    return more;
}

static void
run(struct world *w)
{
    int64_t now_ns = NOW;
    bool more = true;

    for (int round = 0; more; round++) {
        more = false;
        assert_true(round < 1000);
        for (int i = 0; i < 40; i++)
            send(w, (uint32_t)next(w, PUBLISHERS), 1 + (uint32_t)next(w, BATCHES), now_ns);
        if (next(w, 2) == 0)
            flush_at(w->f, now_ns);
        if (next(w, 4) == 0)
            reopen(w->f);
        now_ns += S;
        for (uint32_t p = 0; p < PUBLISHERS; p++)
            more = sync(w, p, now_ns) || more;
    }
}

struct series_sum {
    struct world *w;
    uint64_t samples;
    int64_t value;
    uint64_t squares_min;
};

static ef_rc
check_series(void *arg, const struct ef_store_series *series)
{
    struct series_sum *sum = arg;
    struct ef_store_totals totals = totals_of(sum->w->f, series->id, 0, INT64_MAX);
    struct read_pair pairs = pairs_of(sum->w->f, series->id, 0, 0, INT64_MAX);

    assert_int_equal(pairs.count, totals.samples);
    assert_int_equal(pairs.value, totals.value);
    sum->samples += totals.samples;
    sum->value += totals.value;
    return EF_OK;
}

struct stack_sum {
    struct world *w;
    uint32_t version_id, id;
    uint64_t count;
    int64_t value;
};

static ef_rc
add_stack(void *arg, const struct ef_store_series *series)
{
    struct stack_sum *sum = arg;
    struct read_pair pair;

    if (series->version_id != sum->version_id)
        return EF_OK;
    pair = pairs_of(sum->w->f, series->id, sum->id, 0, INT64_MAX);
    sum->count += pair.count;
    sum->value += pair.value;
    return EF_OK;
}

struct name_of {
    const char *name;
    uint32_t id;
};

static ef_rc
match_version(void *arg, const struct ef_store_version *version)
{
    struct name_of *wanted = arg;

    if (strcmp(version->version, wanted->name) == 0)
        wanted->id = version->id;
    return EF_OK;
}

static void
check_stacks(struct world *w)
{
    for (uint32_t v = 0; v < VERSIONS; v++) {
        char name[8], path[32];
        struct name_of wanted = {name, 0};
        snprintf(name, sizeof(name), "v%u", v);
        assert_int_equal(ef_store_each_version(w->f->store, match_version, &wanted, NULL), EF_OK);
        for (uint32_t n = 0; n < PATHS; n++) {
            struct stack_sum sum = {.w = w, .version_id = wanted.id};
            path_name(path, sizeof(path), n);
            if (w->count[v][n] == 0)
                continue;
            sum.id = stack_id(w->f, wanted.id, ef_stack_of(path));
            assert_int_not_equal(sum.id, 0);
            assert_int_equal(ef_store_each_series(w->f->store, add_stack, &sum, NULL), EF_OK);
            assert_int_equal(sum.count, w->count[v][n]);
            assert_int_equal(sum.value, w->value[v][n]);
        }
    }
}

/* Gives how often a batch was refused for want of memory. */
static uint64_t
check_world(struct fixture *f)
{
    struct world *w = calloc(1, sizeof(*w));
    struct series_sum sum = {.w = w};
    int64_t value = 0;
    uint64_t refused;

    assert_non_null(w);
    w->f = f;
    w->seed = ef_test_seed();
    make_batches(w);
    run(w);
    assert_int_equal(ef_store_each_series(w->f->store, check_series, &sum, NULL), EF_OK);
    for (uint32_t v = 0; v < VERSIONS; v++) {
        for (uint32_t n = 0; n < PATHS; n++)
            value += w->value[v][n];
    }
    assert_int_equal(sum.samples, w->samples);
    assert_int_equal(sum.value, value);
    check_stacks(w);
    for (uint32_t p = 0; p < PUBLISHERS; p++) {
        for (uint32_t b = 1; b <= BATCHES; b++)
            ef_batch_maker_free(w->batches[p][b].maker);
    }
    refused = w->refused;
    free(w);
    return refused;
}

static void
the_store_holds_exactly_the_distinct_batches(void **state)
{
    assert_int_equal(check_world(*state), 0);
}

/* The same with so little memory that batches are refused until a flush has made room. */
static void
the_sums_are_exact_under_memory_pressure(void **state)
{
    struct fixture *f = *state;

    f->options.memory_bytes_max = 320 << 10;
    reopen(f);
    assert_true(check_world(f) > 0);
}

int
main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(the_store_holds_exactly_the_distinct_batches),
        TEST(the_sums_are_exact_under_memory_pressure),
    };
    return cmocka_run_group_tests_name("aggregate.random", tests, NULL, NULL);
}
