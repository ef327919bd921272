/*
 * What a query costs: 24 hours of one worker, against reading the same values and doing nothing;
 * and how many bytes a stored sample takes, against the entropy of what was sampled.
 */
#include <ftw.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "collector/query/query.h"
#include "proto/base/time.h"
#include "proto/model/hash.h"
#include "storage/block.h"
#include "storage/store.h"
#include "tests/bench/ef_bench.h"

#define BUCKETS 8640u /* 24 h of 10 s */
#define SAMPLES 100u  /* per bucket */
#define STACKS 5000u  /* Zipf 1.0, as in research/c-libs §4 */
#define FUNCTIONS 1200u
#define START_NS (INT64_C(1796083200) * EF_NS_PER_S)
#define ROUNDS 9 /* the best one counts: the machine is shared */

struct world {
    char path[64];
    struct ef_store *store;
    double cumulative[STACKS];
    double entropy_bits; /* of one sample */
    uint64_t random;
};

static void
must(ef_rc rc, const struct ef_err *err)
{
    if (rc != EF_OK) {
        fprintf(stderr, "bench_query: %s\n", err->msg);
        exit(1);
    }
}

static double
uniform(struct world *world)
{
    world->random ^= world->random >> 12;
    world->random ^= world->random << 25;
    world->random ^= world->random >> 27;
    return (double)((world->random * UINT64_C(0x2545F4914F6CDD1D)) >> 11) / 9007199254740992.0;
}

/* Ids by rank: hot stacks arrive first. */
static void
make_zipf(struct world *world)
{
    double sum = 0, all = 0;

    for (uint32_t i = 0; i < STACKS; i++)
        all += 1.0 / (i + 1);
    for (uint32_t i = 0; i < STACKS; i++) {
        double p = 1.0 / (i + 1) / all;
        sum += p;
        world->cumulative[i] = sum;
        world->entropy_bits -= p * log2(p);
    }
}

static uint32_t
draw(struct world *world)
{
    double u = uniform(world);
    uint32_t low = 0, high = STACKS - 1;

    while (low < high) {
        uint32_t middle = (low + high) / 2;
        if (world->cumulative[middle] < u)
            low = middle + 1;
        else
            high = middle;
    }
    return low + 1;
}

/* A tree of mean depth about 13. */
static void
put_definitions(struct world *world, struct ef_store_batch *batch, struct ef_err *err)
{
    static struct ef_store_function functions[FUNCTIONS];
    static struct ef_store_stack stacks[STACKS];
    static char names[FUNCTIONS][48];
    static uint32_t depth[STACKS + 1];

    for (uint32_t i = 0; i < FUNCTIONS; i++) {
        snprintf(names[i], sizeof(names[i]), "handleRequestOfModule%u", i);
        functions[i] = (struct ef_store_function){
            i + 1, ef_function_hash(names[i], strlen(names[i]), "worker.js", 9, i + 1), names[i],
            "worker.js", i + 1};
    }
    for (uint32_t i = 0; i < STACKS; i++) {
        uint32_t parent = 0, function = 1 + (uint32_t)(uniform(world) * FUNCTIONS);
        for (int attempt = 0; attempt < 4 && i > 0; attempt++) { /* prefers deep parents */
            uint32_t candidate = 1 + (uint32_t)(uniform(world) * i);
            if (depth[candidate] < 20 && depth[candidate] >= depth[parent])
                parent = candidate;
        }
        depth[i + 1] = depth[parent] + 1;
        stacks[i] = (struct ef_store_stack){i + 1,
                                            ef_stack_hash(parent > 0 ? stacks[parent - 1].hash : 0,
                                                          functions[function - 1].hash, 7),
                                            parent, function, 7};
    }
    must(ef_store_put_functions(batch, 1, functions, FUNCTIONS, err), err);
    must(ef_store_put_stacks(batch, 1, stacks, STACKS, err), err);
}

static void
put_bucket(struct world *world, struct ef_store_batch *batch, uint32_t bucket, struct ef_err *err)
{
    static uint32_t counts[STACKS + 1];
    struct ef_block_pair pairs[SAMPLES];
    struct ef_block_section section = {0, 1000, 10000000, pairs, 0};
    struct ef_store_totals totals = {.samples = SAMPLES,
                                     .value = SAMPLES * INT64_C(10000000),
                                     .value_weighted = SAMPLES * INT64_C(10000000),
                                     .covered_ns = EF_BUCKET_NS,
                                     .expected_ns = EF_BUCKET_NS,
                                     .bursts = 1,
                                     .squares = SAMPLES * SAMPLES,
                                     .cpu_ns = 1200000000,
                                     .instances = 1};
    struct ef_buf block;

    ef_buf_init(&block, 1u << 20);
    for (uint32_t i = 0; i < SAMPLES; i++)
        counts[draw(world)]++;
    for (uint32_t id = 1; id <= STACKS; id++) {
        if (counts[id] > 0)
            pairs[section.pair_count++] =
                (struct ef_block_pair){id, counts[id], (int64_t)counts[id] * INT64_C(10000000)};
        counts[id] = 0;
    }
    must(ef_block_encode(&section, 1, &block, err), err);
    must(ef_store_put_block(batch, EF_TIER_10S, 1, START_NS + bucket * EF_BUCKET_NS, 0, block.data,
                            block.len, err),
         err);
    must(ef_store_put_totals(batch, EF_TIER_10S, 1, START_NS + bucket * EF_BUCKET_NS, 0, &totals,
                             err),
         err);
    ef_buf_fini(&block);
}

static void
fill(struct world *world, struct ef_err *err)
{
    struct ef_store_version version = {1, "bench", "shop", "v1", START_NS};
    struct ef_store_series series = {1, 1, EF_TYPE_CPU, ""};
    struct ef_store_batch *batch;

    must(ef_store_batch_open(world->store, &batch, err), err);
    must(ef_store_put_version(batch, &version, err), err);
    must(ef_store_put_series(batch, &series, err), err);
    put_definitions(world, batch, err);
    for (uint32_t bucket = 0; bucket < BUCKETS; bucket++) {
        put_bucket(world, batch, bucket, err);
        if (bucket % 100 == 99 || bucket + 1 == BUCKETS) {
            must(ef_store_commit(world->store, batch, err), err);
            ef_store_batch_free(batch);
            must(ef_store_batch_open(world->store, &batch, err), err);
        }
    }
    ef_store_batch_free(batch);
    must(ef_store_compact(world->store, err), err);
}

static void
open_store(struct world *world)
{
    struct ef_store_options options = {.cache_bytes = 16u << 20};
    struct ef_err err = {0};

    must(ef_store_open("rocksdb", world->path, &options, &world->store, &err), &err);
}

/*
 * Opened again, so that no block is decompressed yet: a past range that somebody asks for is rarely
 * in the cache. (With a warm cache: reading the blocks 1 ms, the whole query 5 ms.)
 */
static void
cool(struct world *world)
{
    ef_store_close(world->store);
    open_store(world);
}

static struct world *
world_open(void)
{
    struct world *world = calloc(1, sizeof(*world));
    struct ef_err err = {0};
    const char *base = getenv("TMPDIR");

    if (world == NULL)
        exit(1);
    world->random = 42;
    make_zipf(world);
    snprintf(world->path, sizeof(world->path), "%.40s/ef-bench-XXXXXX",
             base != NULL ? base : "/tmp");
    if (mkdtemp(world->path) == NULL)
        exit(1);
    open_store(world);
    fill(world, &err);
    return world;
}

static int
remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
    (void)st;
    (void)type;
    (void)ftw;
    return remove(path);
}

static void
world_free(struct world *world)
{
    ef_store_close(world->store);
    nftw(world->path, remove_one, 16, FTW_DEPTH | FTW_PHYS);
    free(world);
}

static ef_rc
touch(void *arg, int64_t bucket_ns, uint32_t part, const void *block, size_t len)
{
    uint64_t *sum = arg;

    (void)part;
    *sum += (uint64_t)bucket_ns + len + *(const uint8_t *)block;
    return EF_OK;
}

static ef_rc
touch_totals(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    uint64_t *sum = arg;

    (void)part;
    *sum += (uint64_t)bucket_ns + totals->samples;
    return EF_OK;
}

static ef_rc
touch_stack(void *arg, const struct ef_store_stack *stack)
{
    *(uint64_t *)arg += stack->id;
    return EF_OK;
}

static ef_rc
touch_function(void *arg, const struct ef_store_function *function)
{
    *(uint64_t *)arg += function->id;
    return EF_OK;
}

/* CPU time of this thread: the data are in the page cache, and others use the machine too. */
static double
now_ms(void)
{
    struct timespec at;

    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &at);
    return (double)at.tv_sec * 1e3 + (double)at.tv_nsec / 1e6;
}

/* The limit: all values that the query reads, through the store's iterators, nothing done. */
static double
iterate_ms(struct world *world)
{
    double best = INFINITY;
    struct ef_err err = {0};
    uint64_t sum = 0;

    for (int i = 0; i < ROUNDS; i++) {
        double from;
        cool(world);
        from = now_ms();
        must(ef_store_fold(world->store, EF_TIER_10S, 1, START_NS,
                           START_NS + BUCKETS * EF_BUCKET_NS, touch, &sum, &err),
             &err);
        must(ef_store_fold_totals(world->store, EF_TIER_10S, 1, START_NS,
                                  START_NS + BUCKETS * EF_BUCKET_NS, touch_totals, &sum, &err),
             &err);
        must(ef_store_each_stack(world->store, 1, touch_stack, &sum, &err), &err);
        must(ef_store_each_function(world->store, 1, touch_function, &sum, &err), &err);
        best = fmin(best, now_ms() - from);
    }
    return sum > 0 ? best : INFINITY;
}

/* A new query each round: definitions and catalogue are read too. */
static double
query_ms(struct world *world, bool export)
{
    struct ef_selector selector = {.worker = "shop",
                                   .profile_type = EF_TYPE_CPU,
                                   .from_ns = START_NS,
                                   .to_ns = START_NS + BUCKETS * EF_BUCKET_NS,
                                   .now_ns = START_NS + BUCKETS * EF_BUCKET_NS};
    double best = INFINITY;
    struct ef_err err = {0};

    for (int i = 0; i < ROUNDS; i++) {
        struct ef_query *query;
        struct ef_top top = {0};
        struct ef_export tree = {0};
        double from;
        cool(world);
        from = now_ms();
        must(ef_query_open(world->store, NULL, &query, &err), &err);
        if (export)
            must(ef_query_export(query, &selector, &tree, &err), &err);
        else
            must(ef_query_top(query, &selector, 0, &top, &err), &err);
        best = fmin(best, now_ms() - from);
        if ((export ? tree.head.samples : top.head.samples) != (uint64_t)BUCKETS * SAMPLES) {
            fprintf(stderr, "bench_query: wrong number of samples\n");
            exit(1);
        }
        ef_export_fini(&tree);
        ef_top_fini(&top);
        ef_query_free(query);
    }
    return best;
}

static void
bench_query_24h(struct ef_bench_result *ret)
{
    struct world *world = world_open();

    ret->value = query_ms(world, true);
    ret->limit = iterate_ms(world);
    world_free(world);
}

static void
bench_top_24h(struct ef_bench_result *ret)
{
    struct world *world = world_open();

    ret->value = query_ms(world, false);
    ret->limit = iterate_ms(world);
    world_free(world);
}

/*
 * Entropy of what a bucket keeps: n draws without their order, n H - log2 n! + Σ E[log2 c!]; the
 * last term by simulation.
 */
static double
entropy_bytes(struct world *world)
{
    static uint32_t counts[STACKS + 1];
    double bits = 0;
    int rounds = 200;

    for (int round = 0; round < rounds; round++) {
        for (uint32_t i = 0; i < SAMPLES; i++)
            counts[draw(world)]++;
        for (uint32_t id = 1; id <= STACKS; id++) {
            bits += lgamma(counts[id] + 1.0) / M_LN2;
            counts[id] = 0;
        }
    }
    bits = bits / rounds + SAMPLES * world->entropy_bits - lgamma(SAMPLES + 1.0) / M_LN2;
    return bits / 8 / SAMPLES;
}

static void
bench_stored_bytes(struct ef_bench_result *ret)
{
    struct world *world = world_open();
    struct ef_store_stat stat;

    ef_store_get_stat(world->store, &stat);
    ret->value = (double)stat.block_bytes[EF_TIER_10S] / ((double)BUCKETS * SAMPLES);
    ret->limit = entropy_bytes(world);
    world_free(world);
}

const struct ef_bench ef_bench_query[] = {
    {"query_24h", "ms", bench_query_24h},
    {"query_top_24h", "ms", bench_top_24h},
    {"stored_bytes_per_sample", "bytes", bench_stored_bytes},
    {NULL, NULL, NULL},
};
