/*
 * The exact counters: CPU of a process second by second, which seconds are hot, and the 10 s
 * buckets made of them.
 *
 * Stratum rule: the cut is per 10 s bucket. A bucket is hot when the larger part of its observed
 * time was hot; then its whole CPU and all samples of that slice count as hot, otherwise none. So
 * exact CPU and samples of a stratum always speak of the same time, whatever made us look.
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

struct ef_usage_bucket {
    int64_t start_ns; /* aligned */
    int64_t from_ns;  /* first observed moment */
    int64_t span_ns;  /* observed */
    int64_t cpu_ns;
    int64_t hot_span_ns, hot_cpu_ns;
};

struct ef_usage_ring {
    struct ef_usage_bucket buckets[EF_USAGE_BUCKETS];
    uint64_t first,
        end; /* numbers of the oldest bucket and past the newest; index = number % size */
};

/* Books [from, to) of the wall clock; splits at bucket borders in proportion. Out of order is fine
 * as long as the bucket is kept; older than that is dropped. */
void ef_usage_book(struct ef_usage_ring *ring, int64_t from_ns, int64_t to_ns, int64_t cpu_ns,
                   bool hot);
/* NULL when not kept. */
const struct ef_usage_bucket *ef_usage_find(const struct ef_usage_ring *ring, int64_t at_ns);
bool ef_usage_is_hot(const struct ef_usage_bucket *bucket); /* NULL: false */
/* CPU in [from, to), borders in proportion; *ret_seen_ns = observed part of it. */
int64_t ef_usage_cpu(const struct ef_usage_ring *ring, int64_t from_ns, int64_t to_ns,
                     int64_t *ret_seen_ns);

#endif
