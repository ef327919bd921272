/*
 * The exact counters: CPU of a process second by second, which seconds are hot, and the 10 s
 * buckets made of them.
 *
 * Stratum rule: the cut is per 10 s bucket. A bucket is hot when the larger part of its observed
 * time was hot; then its whole CPU and all samples of that slice count as hot, otherwise none. So
 * exact CPU and samples of a stratum always speak of the same time, whatever made us look.
 * Contention: V8 ticks count wall time under the isolate's lock, so a thread that waits for a CPU
 * is sampled as if it ran. How much of its runnable time the busiest thread of each second (the one
 * that runs JavaScript) did run is kept per bucket.
 * Pure; not thread-safe.
 */
#ifndef SAMPLER_AGENT_USAGE_H
#define SAMPLER_AGENT_USAGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define EF_USAGE_BUCKET_NS INT64_C(10000000000)
#define EF_USAGE_BUCKETS 512 /* 85 min: longer than the longest rotation */
#define EF_HOT_READINGS 60   /* quiet readings the median is taken of */

struct ef_hot {
    double quiet[EF_HOT_READINGS]; /* cores */
    unsigned quiet_count;          /* ever */
    unsigned hot_run;              /* readings of the present spell */
    bool hot;
};
/* One reading of about a second. Returns whether it is hot: above 2 × median + 0.1 core. */
bool ef_hot_add(struct ef_hot *hot, double cores);

#define EF_THREADS_MAX 64 /* threads beyond are not looked at: workerd has 6, Node 11 */

/* Since its start, from the scheduler. */
struct ef_thread_time {
    int tid;
    int64_t run_ns, wait_ns; /* on a CPU; runnable, but waiting for one */
};
struct ef_contention {
    struct ef_thread_time before[EF_THREADS_MAX];
    size_t count;
};
/* Compares with the reading before. *ret_run_ns and *ret_wait_ns are of the thread that ran most;
 * 0 and 0 when there is nothing to compare. */
void ef_contention_add(struct ef_contention *contention, const struct ef_thread_time *threads,
                       size_t count, int64_t *ret_run_ns, int64_t *ret_wait_ns);

struct ef_usage_bucket {
    int64_t start_ns; /* aligned */
    int64_t from_ns;  /* first observed moment */
    int64_t span_ns;  /* observed */
    int64_t cpu_ns;
    int64_t hot_span_ns, hot_cpu_ns;
    int64_t run_ns, wait_ns; /* of the busiest threads */
};
/* One reading of a process. */
struct ef_usage_reading {
    int64_t from_ns, to_ns; /* wall clock */
    int64_t cpu_ns, run_ns, wait_ns;
    bool hot;
};

struct ef_usage_ring {
    struct ef_usage_bucket buckets[EF_USAGE_BUCKETS];
    uint64_t first,
        end; /* numbers of the oldest bucket and past the newest; index = number % size */
};

/* Books the reading; splits at bucket borders in proportion. Out of order is fine
 * as long as the bucket is kept; older than that is dropped. */
void ef_usage_book(struct ef_usage_ring *ring, const struct ef_usage_reading *reading);
/* NULL when not kept. */
const struct ef_usage_bucket *ef_usage_find(const struct ef_usage_ring *ring, int64_t at_ns);
bool ef_usage_is_hot(const struct ef_usage_bucket *bucket); /* NULL: false */
/* Part of a tick that was CPU time, in thousandths: run / (run + wait), in steps of 1/16 so that
 * the store keeps few sections, never 0. NULL or nothing read: 1000. */
uint64_t ef_usage_run_milli(const struct ef_usage_bucket *bucket);
/* CPU in [from, to), borders in proportion; *ret_seen_ns = observed part of it. */
int64_t ef_usage_cpu(const struct ef_usage_ring *ring, int64_t from_ns, int64_t to_ns,
                     int64_t *ret_seen_ns);

#endif
