/*
 * Decides which seconds are hot, and what the exact CPU of each bucket is. Knows no clock. The
 * thread of its target.
 */
#include "sampler/agent/usage.h"

#include <string.h>

#include "proto/base/time.h"

/* A spell this long is the new normal: the service simply has more load now. Chosen. */
#define HOT_RUN_MAX 300
/* Below this many quiet readings nothing is called hot. Chosen: ten seconds of acquaintance. */
#define QUIET_MIN 10

static double
median(const double *values, unsigned count)
{
    double sorted[EF_HOT_READINGS];

    for (unsigned i = 0; i < count; i++) {
        unsigned at = i;
        for (; at > 0 && sorted[at - 1] > values[i]; at--)
            sorted[at] = sorted[at - 1];
        sorted[at] = values[i];
    }
    return count == 0 ? 0 : sorted[count / 2];
}

bool
ef_hot_add(struct ef_hot *hot, double cores)
{
    unsigned known = hot->quiet_count < EF_HOT_READINGS ? hot->quiet_count : EF_HOT_READINGS;

    /* v8-schedule §6: found 5 of 5 spells of 3 s, both runtimes. */
    hot->hot = known >= QUIET_MIN && cores > 2 * median(hot->quiet, known) + 0.1;
    hot->hot_run = hot->hot ? hot->hot_run + 1 : 0;
    if (hot->hot_run > HOT_RUN_MAX) {
        hot->hot = false;
        hot->hot_run = 0;
        hot->quiet_count = 0;
    }
    if (!hot->hot)
        hot->quiet[hot->quiet_count++ % EF_HOT_READINGS] = cores;
    return hot->hot;
}

static struct ef_usage_bucket *
bucket_for(struct ef_usage_ring *ring, int64_t start_ns)
{
    struct ef_usage_bucket *bucket;

    for (uint64_t n = ring->end; n > ring->first; n--) {
        bucket = &ring->buckets[(n - 1) % EF_USAGE_BUCKETS];
        if (bucket->start_ns == start_ns)
            return bucket;
    }
    /* A clock set back makes a bucket behind newer ones; the order does not matter to anybody. */
    bucket = &ring->buckets[ring->end % EF_USAGE_BUCKETS];
    ring->end++;
    if (ring->end - ring->first > EF_USAGE_BUCKETS)
        ring->first++;
    memset(bucket, 0, sizeof(*bucket));
    bucket->start_ns = start_ns;
    return bucket;
}

void
ef_usage_book(struct ef_usage_ring *ring, int64_t from_ns, int64_t to_ns, int64_t cpu_ns, bool hot)
{
    int64_t left_ns = cpu_ns;
    /* A process that stood still for long (suspend) must not fill the whole ring. */
    if (to_ns <= from_ns || to_ns - from_ns > EF_USAGE_BUCKETS / 2 * EF_USAGE_BUCKET_NS)
        return;
    for (int64_t at = from_ns; at < to_ns;) {
        int64_t start_ns = ef_bucket_start(at, EF_USAGE_BUCKET_NS);
        int64_t stop_ns =
            start_ns + EF_USAGE_BUCKET_NS < to_ns ? start_ns + EF_USAGE_BUCKET_NS : to_ns;
        int64_t part_ns =
            stop_ns == to_ns
                ? left_ns
                : (int64_t)((double)cpu_ns * (double)(stop_ns - at) / (double)(to_ns - from_ns));
        struct ef_usage_bucket *bucket = bucket_for(ring, start_ns);
        if (bucket->span_ns == 0 || at < bucket->from_ns)
            bucket->from_ns = at;
        bucket->span_ns += stop_ns - at;
        bucket->cpu_ns += part_ns;
        if (hot) {
            bucket->hot_span_ns += stop_ns - at;
            bucket->hot_cpu_ns += part_ns;
        }
        left_ns -= part_ns;
        at = stop_ns;
    }
}

const struct ef_usage_bucket *
ef_usage_find(const struct ef_usage_ring *ring, int64_t at_ns)
{
    int64_t start_ns = ef_bucket_start(at_ns, EF_USAGE_BUCKET_NS);

    for (uint64_t n = ring->end; n > ring->first; n--) {
        const struct ef_usage_bucket *bucket = &ring->buckets[(n - 1) % EF_USAGE_BUCKETS];
        if (bucket->start_ns == start_ns)
            return bucket;
    }
    return NULL;
}

bool
ef_usage_is_hot(const struct ef_usage_bucket *bucket)
{
    return bucket != NULL && bucket->hot_span_ns * 2 > bucket->span_ns;
}

int64_t
ef_usage_cpu(const struct ef_usage_ring *ring, int64_t from_ns, int64_t to_ns, int64_t *ret_seen_ns)
{
    double cpu_ns = 0, seen_ns = 0;

    for (uint64_t n = ring->first; n < ring->end; n++) {
        const struct ef_usage_bucket *bucket = &ring->buckets[n % EF_USAGE_BUCKETS];
        int64_t begin_ns = bucket->from_ns > from_ns ? bucket->from_ns : from_ns;
        int64_t end_ns = bucket->from_ns + bucket->span_ns;
        if (end_ns > to_ns)
            end_ns = to_ns;
        if (bucket->span_ns <= 0 || end_ns <= begin_ns)
            continue;
        seen_ns += (double)(end_ns - begin_ns);
        cpu_ns += (double)bucket->cpu_ns * (double)(end_ns - begin_ns) / (double)bucket->span_ns;
    }
    *ret_seen_ns = (int64_t)seen_ns;
    return (int64_t)cpu_ns;
}
