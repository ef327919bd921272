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
/* Finer would be noise: a bucket has 20 to 500 ticks. Chosen. */
#define RUN_STEPS 16

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

static const struct ef_thread_time *
find_thread(const struct ef_contention *contention, int tid)
{
    for (size_t i = 0; i < contention->count; i++) {
        if (contention->before[i].tid == tid)
            return &contention->before[i];
    }
    return NULL;
}

void
ef_contention_add(struct ef_contention *contention, const struct ef_thread_time *threads,
                  size_t count, int64_t *ret_run_ns, int64_t *ret_wait_ns)
{
    int64_t run_ns = 0, wait_ns = 0;

    for (size_t i = 0; i < count; i++) {
        const struct ef_thread_time *before = find_thread(contention, threads[i].tid);
        /* Smaller than before: another thread has got the number. */
        if (before == NULL || threads[i].wait_ns < before->wait_ns ||
            threads[i].run_ns - before->run_ns <= run_ns)
            continue;
        run_ns = threads[i].run_ns - before->run_ns;
        wait_ns = threads[i].wait_ns - before->wait_ns;
    }
    contention->count = count < EF_THREADS_MAX ? count : EF_THREADS_MAX;
    memcpy(contention->before, threads, contention->count * sizeof(*threads));
    *ret_run_ns = run_ns;
    *ret_wait_ns = wait_ns;
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

/* What of a whole falls on its next `part` of `left` (spans); takes it out of *value. The last part
 * takes the rest, so that nothing is lost by rounding. */
static int64_t
take_part(int64_t *value, int64_t part_ns, int64_t left_ns)
{
    int64_t taken =
        part_ns == left_ns ? *value : (int64_t)((double)*value * (double)part_ns / (double)left_ns);

    *value -= taken;
    return taken;
}

static void
book_part(struct ef_usage_bucket *bucket, struct ef_usage_reading *left, int64_t part_ns)
{
    int64_t left_ns = left->to_ns - left->from_ns;
    int64_t cpu_ns = take_part(&left->cpu_ns, part_ns, left_ns);

    if (bucket->span_ns == 0 || left->from_ns < bucket->from_ns)
        bucket->from_ns = left->from_ns;
    bucket->span_ns += part_ns;
    bucket->cpu_ns += cpu_ns;
    if (left->hot) {
        bucket->hot_span_ns += part_ns;
        bucket->hot_cpu_ns += cpu_ns;
    }
    bucket->run_ns += take_part(&left->run_ns, part_ns, left_ns);
    bucket->wait_ns += take_part(&left->wait_ns, part_ns, left_ns);
    left->from_ns += part_ns;
}

void
ef_usage_book(struct ef_usage_ring *ring, const struct ef_usage_reading *reading)
{
    struct ef_usage_reading left = *reading;

    /* A process that stood still for long (suspend) must not fill the whole ring. */
    if (left.to_ns - left.from_ns > EF_USAGE_BUCKETS / 2 * EF_USAGE_BUCKET_NS)
        return;
    while (left.from_ns < left.to_ns) {
        int64_t start_ns = ef_bucket_start(left.from_ns, EF_USAGE_BUCKET_NS);
        int64_t end_ns = start_ns + EF_USAGE_BUCKET_NS;
        book_part(bucket_for(ring, start_ns), &left,
                  (end_ns < left.to_ns ? end_ns : left.to_ns) - left.from_ns);
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

uint64_t
ef_usage_run_milli(const struct ef_usage_bucket *bucket)
{
    uint64_t steps;

    if (bucket == NULL || bucket->run_ns <= 0)
        return 1000;
    steps =
        (uint64_t)(RUN_STEPS * (double)bucket->run_ns / (double)(bucket->run_ns + bucket->wait_ns) +
                   0.5);
    steps = steps > 0 ? steps : 1;
    return (steps * 1000 + RUN_STEPS / 2) / RUN_STEPS;
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
