/*
 * Figures of `ef-bench`: each measures one thing and the limit it is held against (what the machine
 * can do, or what is allowed).
 *
 * A file with figures ends with its table, which main.c names once:
 *     const struct ef_bench ef_bench_query[] = {
 *         {"query_24h", "ms", bench_query_24h},
 *         {NULL, NULL, NULL},
 *     };
 * A figure that cannot be measured prints why and exits 1. Each runs in a process of its own, so
 * memory figures do not see what others left.
 */
#ifndef TESTS_BENCH_EF_BENCH_H
#define TESTS_BENCH_EF_BENCH_H

struct ef_bench_result {
    double value;
    double limit; /* 0 = there is none */
    double ratio; /* 0 = value / limit; set it when the ratio is the other way round */
};

struct ef_bench {
    const char *name; /* NULL ends a table */
    const char *unit;
    void (*run)(struct ef_bench_result *ret);
};

extern const struct ef_bench ef_bench_ingest[];
extern const struct ef_bench ef_bench_query[];
extern const struct ef_bench ef_bench_store[];

/* The load side of bench_ingest.c, which needs a process of its own: nng must not be forked.
 * Called by main for `ef-bench --load ...`; gives the exit code. */
int ef_bench_load(int argc, char **argv);

#endif
