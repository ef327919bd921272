/*
 * Decides when each hit happened and which slice it belongs to. A profile has samples (times) and
 * hit counts (weights), and they disagree: samples without a hit are recorded at deoptimisations,
 * and hits of a whole process run to thousands where the gaps between samples read 28 times too
 * much CPU. So counts say how many, times only say when. Must not know how profiles are fetched.
 */
#include "sampler/v8/slice.h"

#include <stdlib.h>
#include <string.h>

/* 16 M hits are 4.6 h of a saturated isolate at 1 ms; each costs 4 bytes here. */
#define HITS_MAX (UINT64_C(16) << 20)
/* An orphan may be as old as the agent was down; a profile of 11 days is a damaged clock. */
#define SPAN_US_MAX (INT64_C(11) * 86400 * 1000000)
#define TIME_US_MAX (INT64_MAX / 4000)
/* Beyond this the profile's clock is not this host's: a time namespace, or a suspended machine. */
#define CLOCK_SKEW_US_MAX (INT64_C(60) * 1000000)
#define INTERVAL_TICKS_MIN 10 /* fewer deltas than this have no meaningful median */

/* One profile on its way. Nodes are those of the new tree. */
struct slicing {
    const struct ef_cpuprofile *source;
    struct ef_profile *profile;
    uint32_t *node_of; /* source node -> node; 0 = left out */
    uint64_t *hits;    /* by node */
    size_t *first;     /* by node: index of its first time in times; node_count + 1 entries */
    int64_t *times;    /* µs of V8's clock, by node, ascending */
    uint64_t hits_total;
    int64_t start_us, end_us;
    int64_t offset_ns; /* wall = µs × 1000 + offset */
    struct ef_slice *slices;
    size_t slice_count;
    size_t *node_fill, *tick_fill; /* by slice */
};

void
ef_cpu_profile_fini(struct ef_cpu_profile *cpu)
{
    for (size_t i = 0; i < cpu->slice_count; i++) {
        free(cpu->slices[i].nodes);
        free(cpu->slices[i].hits);
        free(cpu->slices[i].tick_ms);
    }
    free(cpu->slices);
    ef_profile_free(cpu->profile);
    *cpu = (struct ef_cpu_profile){0};
}

/* V8's own frame: one of its names, no file. A program may call a function "(idle)", but not
 * without a file. */
static bool
is_synthetic(const struct ef_profile *profile, uint32_t frame, const char *name)
{
    const struct ef_profile_function *function =
        &profile->functions[profile->frames[frame].function];

    return function->file == 0 && strcmp(ef_profile_string(profile, function->name), name) == 0;
}

static ef_rc
copy_string(struct slicing *slicing, uint32_t from, uint32_t *ret, struct ef_err *err)
{
    const char *text = ef_profile_string(slicing->source->profile, from);

    return ef_profile_add_string(slicing->profile, text, strlen(text), ret, err);
}

static ef_rc
copy_frame(struct slicing *slicing, uint32_t from, uint32_t *ret, struct ef_err *err)
{
    const struct ef_profile *source = slicing->source->profile;
    struct ef_profile_frame frame = source->frames[from];
    struct ef_profile_function function = source->functions[frame.function];
    ef_rc rc = copy_string(slicing, function.name, &function.name, err);

    if (rc == EF_OK)
        rc = copy_string(slicing, function.system_name, &function.system_name, err);
    if (rc == EF_OK)
        rc = copy_string(slicing, function.file, &function.file, err);
    if (rc == EF_OK)
        rc = ef_profile_add_function(slicing->profile, &function, &frame.function, err);
    frame.mapping = 0; /* V8 has none */
    if (rc == EF_OK)
        rc = ef_profile_add_frame(slicing->profile, &frame, ret, err);
    return rc;
}

/* Copies the tree without (root) and (idle); their children hang from the parent. */
static ef_rc
copy_tree(struct slicing *slicing, struct ef_err *err)
{
    const struct ef_profile *source = slicing->source->profile;
    ef_rc rc = ef_profile_open(&ef_profile_limits_default, &slicing->profile, err);

    if (rc == EF_OK)
        rc = ef_profile_add_type(slicing->profile, "samples", "count", err);
    for (uint32_t i = 1; rc == EF_OK && i < source->node_count; i++) {
        const struct ef_profile_node *node = &source->nodes[i];
        uint32_t parent = slicing->node_of[node->parent];
        uint32_t frame;
        if (parent == 0 && (is_synthetic(source, node->frame, "(root)") ||
                            is_synthetic(source, node->frame, "(idle)")))
            continue;
        rc = copy_frame(slicing, node->frame, &frame, err);
        if (rc == EF_OK)
            rc = ef_profile_add_node(slicing->profile, parent, frame, &slicing->node_of[i], err);
    }
    return rc;
}

/* Sums hit counts by node, into the tree as well. */
static ef_rc
copy_hits(struct slicing *slicing, struct ef_err *err)
{
    const struct ef_profile *source = slicing->source->profile;

    slicing->hits = calloc(slicing->profile->node_count, sizeof(*slicing->hits));
    if (slicing->hits == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory");
    for (uint32_t i = 1; i < source->node_count; i++) {
        int64_t hits = source->values[(size_t)i * source->type_count];
        uint32_t node = slicing->node_of[i];
        ef_rc rc;
        if (hits < 0)
            return ef_err_set(err, EF_ECORRUPT, "a node has a negative hit count");
        if (node == 0 || hits == 0)
            continue;
        if ((uint64_t)hits > HITS_MAX - slicing->hits_total)
            return ef_err_set(err, EF_ELIMIT, "the profile has more than %llu hits",
                              (unsigned long long)HITS_MAX);
        slicing->hits_total += (uint64_t)hits;
        slicing->hits[node] += (uint64_t)hits;
        rc = ef_profile_add_value(slicing->profile, node, 0, hits, err);
        if (rc != EF_OK)
            return rc;
    }
    return EF_OK;
}

static int64_t
clamp(int64_t value, int64_t low, int64_t high)
{
    return value < low ? low : value > high ? high : value;
}

/* Sorts the times of samples by node; they come sorted by time, so each node's are too. */
static ef_rc
sort_times(struct slicing *slicing, struct ef_err *err)
{
    const struct ef_cpuprofile *source = slicing->source;
    uint32_t node_count = slicing->profile->node_count;
    size_t *fill = calloc((size_t)node_count + 1, sizeof(*fill));

    slicing->first = calloc((size_t)node_count + 1, sizeof(*slicing->first));
    slicing->times = calloc(source->tick_count + 1, sizeof(*slicing->times));
    if (fill == NULL || slicing->first == NULL || slicing->times == NULL) {
        free(fill);
        return ef_err_set(err, EF_ENOMEM, "out of memory");
    }
    for (size_t i = 0; i < source->tick_count; i++)
        slicing->first[slicing->node_of[source->ticks[i].node] + 1]++;
    for (uint32_t node = 0; node < node_count; node++)
        slicing->first[node + 1] += slicing->first[node];
    memcpy(fill, slicing->first, node_count * sizeof(*fill));
    for (size_t i = 0; i < source->tick_count; i++) {
        uint32_t node = slicing->node_of[source->ticks[i].node];
        /* The last microsecond belongs to the next profile. */
        slicing->times[fill[node]++] =
            clamp(source->ticks[i].time_us, slicing->start_us, slicing->end_us - 1);
    }
    free(fill);
    return EF_OK;
}

/*
 * Time of the index-th of a node's hits: as many times as hits give one each, more times than hits
 * are thinned evenly, fewer are repeated. Hits of a node without any time are spread evenly.
 */
static int64_t
hit_time(const struct slicing *slicing, uint32_t node, uint64_t index)
{
    uint64_t hits = slicing->hits[node];
    size_t first = slicing->first[node];
    uint64_t count = slicing->first[node + 1] - first;

    if (count == 0)
        return slicing->start_us + (int64_t)((double)(slicing->end_us - 1 - slicing->start_us) *
                                             ((double)index + 0.5) / (double)hits);
    if (count >= hits)
        return slicing->times[first + (2 * index + 1) * count / (2 * hits)];
    return slicing->times[first + index * count / hits];
}

static int64_t
wall_of(const struct slicing *slicing, int64_t time_us)
{
    return time_us * EF_NS_PER_US + slicing->offset_ns;
}

static size_t
slice_of(const struct slicing *slicing, int64_t wall_ns)
{
    return (
        size_t)((wall_ns - ef_bucket_start(wall_of(slicing, slicing->start_us), EF_SLICE_SPAN_NS)) /
                EF_SLICE_SPAN_NS);
}

static ef_rc
check_times(struct slicing *slicing, const struct ef_v8_clock *clock, struct ef_err *err)
{
    int64_t start = slicing->source->start_us, end = slicing->source->end_us;
    int64_t now_us = clock->mono.ns / EF_NS_PER_US;

    if (start < -TIME_US_MAX || end > TIME_US_MAX || end < start || end - start > SPAN_US_MAX)
        return ef_err_set(err, EF_ECORRUPT,
                          "the profile's times (%lld to %lld us) are not those of a profile",
                          (long long)start, (long long)end);
    slicing->start_us = start;
    slicing->end_us = end > start ? end : start + 1;
    if (llabs(end - now_us) > CLOCK_SKEW_US_MAX)
        slicing->offset_ns = clock->wall.ns - end * EF_NS_PER_US;
    else
        slicing->offset_ns = clock->wall.ns - clock->mono.ns;
    return EF_OK;
}

static ef_rc
make_slices(struct slicing *slicing, struct ef_err *err)
{
    int64_t start_ns = wall_of(slicing, slicing->start_us);
    int64_t end_ns = wall_of(slicing, slicing->end_us);
    int64_t bucket_ns = ef_bucket_start(start_ns, EF_SLICE_SPAN_NS);

    slicing->slice_count = slice_of(slicing, end_ns - 1) + 1;
    slicing->slices = calloc(slicing->slice_count, sizeof(*slicing->slices));
    slicing->node_fill = calloc(slicing->slice_count, sizeof(*slicing->node_fill));
    slicing->tick_fill = calloc(slicing->slice_count, sizeof(*slicing->tick_fill));
    if (slicing->slices == NULL || slicing->node_fill == NULL || slicing->tick_fill == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory");
    for (size_t i = 0; i < slicing->slice_count; i++) {
        int64_t from = bucket_ns + (int64_t)i * EF_SLICE_SPAN_NS;
        int64_t to = from + EF_SLICE_SPAN_NS;
        slicing->slices[i].start_ns = from > start_ns ? from : start_ns;
        slicing->slices[i].span_ns =
            (uint64_t)((to < end_ns ? to : end_ns) - slicing->slices[i].start_ns);
    }
    return EF_OK;
}

/* Calls for each hit, nodes ascending, times ascending within a node. */
static void
each_hit(struct slicing *slicing,
         void (*visit)(struct slicing *, size_t slice, uint32_t node, int64_t wall_ns, bool first))
{
    for (uint32_t node = 1; node < slicing->profile->node_count; node++) {
        size_t last = SIZE_MAX;
        for (uint64_t i = 0; i < slicing->hits[node]; i++) {
            int64_t wall_ns = wall_of(slicing, hit_time(slicing, node, i));
            size_t slice = slice_of(slicing, wall_ns);
            visit(slicing, slice, node, wall_ns, slice != last);
            last = slice;
        }
    }
}

static void
count_hit(struct slicing *slicing, size_t slice, uint32_t node, int64_t wall_ns, bool first)
{
    (void)node;
    (void)wall_ns;
    slicing->slices[slice].tick_count++;
    if (first)
        slicing->slices[slice].node_count++;
}

static void
store_hit(struct slicing *slicing, size_t index, uint32_t node, int64_t wall_ns, bool first)
{
    struct ef_slice *slice = &slicing->slices[index];

    if (first)
        slice->nodes[slicing->node_fill[index]++] = node;
    slice->hits[slicing->node_fill[index] - 1]++;
    slice->tick_ms[slicing->tick_fill[index]++] =
        (uint32_t)((wall_ns - slice->start_ns) / EF_NS_PER_MS);
}

static ef_rc
fill_slices(struct slicing *slicing, struct ef_err *err)
{
    each_hit(slicing, count_hit);
    for (size_t i = 0; i < slicing->slice_count; i++) {
        struct ef_slice *slice = &slicing->slices[i];
        if (slice->tick_count == 0)
            continue;
        slice->nodes = calloc(slice->node_count, sizeof(*slice->nodes));
        slice->hits = calloc(slice->node_count, sizeof(*slice->hits));
        slice->tick_ms = calloc(slice->tick_count, sizeof(*slice->tick_ms));
        if (slice->nodes == NULL || slice->hits == NULL || slice->tick_ms == NULL)
            return ef_err_set(err, EF_ENOMEM, "out of memory");
    }
    each_hit(slicing, store_hit);
    return EF_OK;
}

static int
compare_i64(const void *a, const void *b)
{
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;

    return x < y ? -1 : x > y;
}

/*
 * The sampler's period where it is not known is the densest group of deltas. The median is no use
 * for it, because workerd only samples at work (median 852 ms for a nominal 50 ms, with p10 at
 * 50.1), and neither is the smallest one (stacks recorded at deoptimisations).
 */
static ef_rc
measure_interval(const struct ef_cpuprofile *source, uint64_t *ret_median_ns,
                 uint64_t *ret_period_ns, struct ef_err *err)
{
    int64_t *deltas = calloc(source->tick_count + 1, sizeof(*deltas));
    size_t count = 0;

    if (deltas == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory");
    for (size_t i = 1; i < source->tick_count; i++) {
        int64_t delta = source->ticks[i].time_us - source->ticks[i - 1].time_us;
        if (delta > 0 && delta <= SPAN_US_MAX)
            deltas[count++] = delta;
    }
    *ret_median_ns = *ret_period_ns = 0;
    if (count >= INTERVAL_TICKS_MIN) {
        qsort(deltas, count, sizeof(*deltas), compare_i64);
        *ret_median_ns = (uint64_t)(deltas[count / 2] * EF_NS_PER_US);
        *ret_period_ns = (uint64_t)(ef_cpuprofile_densest(deltas, count) * EF_NS_PER_US);
    }
    free(deltas);
    return EF_OK;
}

/* Moves what was made into *ret. */
static void
give(struct slicing *slicing, struct ef_cpu_profile *ret)
{
    ret->profile = slicing->profile;
    ret->slices = slicing->slices;
    ret->slice_count = slicing->slice_count;
    ret->hits = slicing->hits_total;
    ret->start_ns = wall_of(slicing, slicing->start_us);
    ret->end_ns = wall_of(slicing, slicing->end_us);
    ret->profile->time_ns = ret->start_ns;
    ret->profile->duration_ns = ret->end_ns - ret->start_ns;
    ret->profile->samples = slicing->hits_total;
    slicing->profile = NULL;
    slicing->slices = NULL;
    slicing->slice_count = 0;
}

static void
fini(struct slicing *slicing)
{
    struct ef_cpu_profile rest = {.profile = slicing->profile,
                                  .slices = slicing->slices,
                                  .slice_count = slicing->slice_count};

    if (rest.slices == NULL)
        rest.slice_count = 0;
    ef_cpu_profile_fini(&rest);
    free(slicing->node_of);
    free(slicing->hits);
    free(slicing->first);
    free(slicing->times);
    free(slicing->node_fill);
    free(slicing->tick_fill);
}

ef_rc
ef_v8_slice(const struct ef_cpuprofile *cpuprofile, const struct ef_v8_clock *clock,
            uint64_t planned_interval_ns, struct ef_cpu_profile *ret, struct ef_err *err)
{
    struct slicing slicing = {.source = cpuprofile};
    struct ef_cpu_profile cpu = {0};
    uint64_t period_ns = 0;
    ef_rc rc = check_times(&slicing, clock, err);

    slicing.node_of = calloc(cpuprofile->profile->node_count, sizeof(*slicing.node_of));
    if (rc == EF_OK && slicing.node_of == NULL)
        rc = ef_err_set(err, EF_ENOMEM, "out of memory");
    if (rc == EF_OK)
        rc = copy_tree(&slicing, err);
    if (rc == EF_OK)
        rc = copy_hits(&slicing, err);
    if (rc == EF_OK)
        rc = sort_times(&slicing, err);
    if (rc == EF_OK)
        rc = make_slices(&slicing, err);
    if (rc == EF_OK)
        rc = fill_slices(&slicing, err);
    if (rc == EF_OK)
        rc = measure_interval(cpuprofile, &cpu.interval_measured_ns, &period_ns, err);
    if (rc == EF_OK) {
        cpu.orphan = planned_interval_ns == 0;
        cpu.interval_ns = cpu.orphan ? period_ns : planned_interval_ns;
        give(&slicing, &cpu);
        *ret = cpu;
    }
    fini(&slicing);
    return rc;
}
