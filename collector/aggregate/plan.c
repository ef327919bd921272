/*
 * Decides where and when each fragment of a batch goes, and makes room for it there, so that
 * booking cannot fail half way. What cannot be kept is refused here. Runs under the aggregate's
 * lock.
 */
#include "collector/aggregate/internal.h"

#include "proto/base/limit.h"
#include "proto/base/metric.h"

#define PARTS_MAX 65536u      /* buckets that the fragments of one batch may touch together */
#define ENTRIES_MAX 1000000   /* (stack, count) pairs that splitting one batch may make */
#define ENTRY_BYTES 24u       /* the larger form of a booking */
#define PART_BYTES 400u       /* a new bucket with its first log */
#define USAGE_BUCKETS_MAX 361 /* a usage message is about one bucket; an hour is already odd */
#define CORES_MAX 65536u      /* more CPU than these could spend is no measurement */

struct planner {
    struct ef_aggregate *aggregate;
    int64_t now_ns;
    uint64_t entries, new_bytes, usage_buckets; /* of the batch so far */
    struct ef_err *err;
};

bool
ef_plan_span(const struct ef_aggregate *aggregate, int64_t start_ns, uint64_t span_ns, bool at_end,
             int64_t now_ns, struct ef_span *ret_span, bool *ret_corrected)
{
    const struct ef_aggregate_options *options = &aggregate->options;
    int64_t end_ns;

    *ret_corrected = false;
    if (span_ns > (uint64_t)EF_SPAN_MAX_NS)
        return false;
    if (start_ns < EF_CLOCK_MIN_NS || !ef_add_i64(start_ns, (int64_t)span_ns, &end_ns) ||
        end_ns - now_ns > (int64_t)options->clock_error_ms_max * EF_NS_PER_MS) {
        *ret_corrected = true;
        end_ns = now_ns;
        start_ns = now_ns - (int64_t)span_ns;
    }
    if (start_ns < 0 || now_ns - end_ns > (int64_t)options->retention_ms * EF_NS_PER_MS)
        return false;
    *ret_span = at_end ? ef_span_of(end_ns, 0) : ef_span_of(start_ns, span_ns);
    return true;
}

uint64_t
ef_plan_entries(const uint64_t *counts, size_t count, uint32_t bucket_count)
{
    uint64_t entries = 0;

    if (bucket_count == 1)
        return count;
    for (size_t i = 0; i < count; i++)
        entries += counts[i] == 0 ? 1 : counts[i] < bucket_count ? counts[i] : bucket_count;
    return entries;
}

static bool
values_differ(const Everflame__V1__Fragment *fragment)
{
    int64_t value;

    for (size_t i = 0; i < fragment->n_count; i++) {
        if (fragment->count[i] > UINT32_MAX)
            return true;
        if (fragment->n_value > 0 &&
            (__builtin_mul_overflow(fragment->count[i], fragment->interval, &value) ||
             value != fragment->value[i]))
            return true;
    }
    return false;
}

/* Sums a fragment up; false when it is beyond what a bucket can hold. */
static bool
measure(struct ef_plan *plan)
{
    const Everflame__V1__Fragment *fragment = plan->fragment;
    uint64_t weight = fragment->weight_milli == 0 ? 1000 : fragment->weight_milli, value = 0;
    unsigned __int128 weighted;

    plan->samples = 0;
    for (size_t i = 0; i < fragment->n_count; i++)
        plan->samples = ef_sat_add_u64(plan->samples, fragment->count[i]);
    if (plan->samples > EF_COUNT_MAX) {
        plan->samples = 0;
        return false;
    }
    for (size_t i = 0; i < fragment->n_value; i++) {
        int64_t v = fragment->value[i];
        value = ef_sat_add_u64(value, v < 0 ? 0 - (uint64_t)v : (uint64_t)v);
    }
    if (fragment->n_value == 0 && __builtin_mul_overflow(plan->samples, fragment->interval, &value))
        return false;
    weighted = (unsigned __int128)value * weight / 1000 + 1;
    if (value > EF_BUCKET_VALUE_MAX || weighted > EF_BUCKET_VALUE_MAX)
        return false;
    plan->wide = values_differ(fragment);
    plan->magnitude = value + plan->samples;
    plan->magnitude_weighted = (uint64_t)weighted;
    return true;
}

/* ---- splitting, first to count, then to book (book.c) ---- */

static void
count_entry(void *arg, uint32_t index, uint64_t count)
{
    struct ef_part *parts = arg;

    (void)count;
    parts[index].reserved++;
}

void
ef_plan_split(const struct ef_plan *plan, size_t stack, size_t *tick, ef_span_part_fn fn, void *arg)
{
    const Everflame__V1__Fragment *fragment = plan->fragment;
    uint64_t count = fragment->count[stack], run = 0;
    uint32_t run_index = 0;

    if (count == 0) { /* a value without a count cannot be split; imports have some */
        fn(arg, 0, 0);
        return;
    }
    if (fragment->n_tick_ms != plan->samples || plan->samples == 0) {
        ef_span_split(&plan->span, count, (uint32_t)stack, fn, arg);
        return;
    }
    for (uint64_t k = 0; k < count; k++) {
        int64_t at_ns = plan->span.start_ns + fragment->tick_ms[(*tick)++] * EF_NS_PER_MS;
        uint32_t index = ef_span_index(&plan->span, at_ns);
        if (index != run_index && run > 0) {
            fn(arg, run_index, run);
            run = 0;
        }
        run_index = index;
        run++;
    }
    fn(arg, run_index, run);
}

static void
count_entries(const struct ef_plan *plan, struct ef_part *parts)
{
    size_t tick = 0;

    if (plan->span.bucket_count == 1) {
        parts[0].reserved = (uint32_t)plan->fragment->n_stack;
        return;
    }
    for (size_t i = 0; i < plan->fragment->n_stack; i++)
        ef_plan_split(plan, i, &tick, count_entry, parts);
}

/* ---- room ---- */

static void
undo_plan(struct ef_aggregate *aggregate, const struct ef_plan *plan, uint32_t part_count)
{
    struct ef_part *parts = &aggregate->scratch.parts[plan->part_first];

    for (uint32_t i = 0; i < part_count; i++) {
        parts[i].bucket->magnitude -= plan->magnitude;
        parts[i].bucket->magnitude_weighted -= plan->magnitude_weighted;
        if (parts[i].reserved > 0)
            ef_bucket_unreserve(parts[i].bucket, parts[i].section, parts[i].reserved, plan->wide);
    }
}

void
ef_plan_undo(struct ef_aggregate *aggregate, size_t plan_count)
{
    for (size_t i = 0; i < plan_count; i++) {
        const struct ef_plan *plan = &aggregate->scratch.plans[i];
        if (!plan->refused)
            undo_plan(aggregate, plan, plan->span.bucket_count);
    }
}

/* Finds buckets and sections. EF_ELIMIT: a bucket's sums would leave their range. */
static ef_rc
find_parts(struct planner *planner, struct ef_plan *plan, uint32_t series_id, struct ef_part *parts)
{
    const Everflame__V1__Fragment *fragment = plan->fragment;
    struct ef_section_key key = {(uint8_t)fragment->stratum,
                                 fragment->weight_milli == 0 ? 1000 : fragment->weight_milli,
                                 fragment->interval};

    for (uint32_t i = 0; i < plan->span.bucket_count; i++) {
        struct ef_bucket *bucket =
            ef_open_find(planner->aggregate, series_id, plan->span.bucket_ns + i * EF_BUCKET_NS);
        size_t before;
        bool exact = true;
        int section = 0;
        if (bucket == NULL)
            return EF_ENOMEM;
        before = bucket->bytes;
        if (bucket->magnitude + plan->magnitude > EF_BUCKET_VALUE_MAX ||
            bucket->magnitude_weighted + plan->magnitude_weighted > EF_BUCKET_VALUE_MAX)
            return EF_ELIMIT;
        if (fragment->n_stack > 0)
            section = ef_bucket_find_section(bucket, &key, &exact);
        if (section < 0 || !ef_bucket_reserve_instance(bucket))
            return EF_ENOMEM;
        ef_bucket_add_instance(bucket, plan->instance);
        ef_open_account(planner->aggregate, bucket, before);
        plan->wide = plan->wide || !exact;
        parts[i] = (struct ef_part){.bucket = bucket, .section = (uint32_t)section};
    }
    return EF_OK;
}

static ef_rc
reserve_parts(struct planner *planner, struct ef_plan *plan, struct ef_part *parts)
{
    struct ef_aggregate *aggregate = planner->aggregate;

    count_entries(plan, parts);
    for (uint32_t i = 0; i < plan->span.bucket_count; i++) {
        struct ef_bucket *bucket = parts[i].bucket;
        size_t before = bucket->bytes;
        bool good =
            parts[i].reserved == 0 || ef_bucket_reserve(bucket, parts[i].section, parts[i].reserved,
                                                        plan->wide, &aggregate->scratch.merge);
        ef_open_account(aggregate, bucket, before);
        if (!good) {
            undo_plan(aggregate, plan, i);
            return EF_ENOMEM;
        }
        bucket->magnitude += plan->magnitude;
        bucket->magnitude_weighted += plan->magnitude_weighted;
    }
    return EF_OK;
}

/* Whether the parts and entries fit what one batch may make; EF_EBUSY when they fit, but not now.
 */
static ef_rc
check_size(struct planner *planner, const struct ef_plan *plan)
{
    const Everflame__V1__Fragment *fragment = plan->fragment;
    struct ef_aggregate *aggregate = planner->aggregate;
    uint64_t entries = ef_plan_entries(fragment->count, fragment->n_count, plan->span.bucket_count);
    uint64_t bytes = entries * ENTRY_BYTES + plan->span.bucket_count * PART_BYTES;

    if (aggregate->scratch.part_count + plan->span.bucket_count > PARTS_MAX ||
        planner->entries + entries > ENTRIES_MAX ||
        planner->new_bytes + bytes > aggregate->options.memory_bytes_max / 2)
        return EF_ELIMIT;
    planner->entries += entries;
    planner->new_bytes += bytes;
    if (plan->span.bucket_count > 1 && ef_agg_full(aggregate, planner->new_bytes))
        return EF_EBUSY;
    return EF_OK;
}

/* EF_ELIMIT: refused, counted. */
static ef_rc
plan_fragment(struct planner *planner, struct ef_plan *plan, const struct ef_source_ref *source)
{
    const Everflame__V1__Fragment *fragment = plan->fragment;
    struct ef_aggregate *aggregate = planner->aggregate;
    struct ef_scratch *scratch = &aggregate->scratch;
    bool state = fragment->profile_type == EVERFLAME__V1__PROFILE_TYPE__INUSE;
    bool corrected;
    uint32_t series_id;
    void *array = scratch->parts;
    ef_rc rc;

    plan->instance = source->instance;
    if (!measure(plan) || !ef_plan_span(aggregate, fragment->start_ns, fragment->span_ns, state,
                                        planner->now_ns, &plan->span, &corrected)) {
        ef_metric_add(EF_METRIC_ingest_refused_limit_total, 1);
        return EF_ELIMIT;
    }
    series_id = source->place == NULL ? 0
                                      : ef_catalogue_series(aggregate, source->place,
                                                            (uint8_t)fragment->profile_type);
    if (series_id == 0) {
        ef_metric_add(EF_METRIC_limit_series_total, 1);
        return EF_ELIMIT;
    }
    rc = check_size(planner, plan);
    plan->part_first = (uint32_t)scratch->part_count;
    if (rc == EF_OK &&
        !ef_agg_grow(&array, &scratch->part_cap, scratch->part_count + plan->span.bucket_count,
                     sizeof(*scratch->parts)))
        return EF_ENOMEM;
    scratch->parts = array;
    if (rc == EF_OK)
        rc = find_parts(planner, plan, series_id, &scratch->parts[plan->part_first]);
    if (rc == EF_OK)
        rc = reserve_parts(planner, plan, &scratch->parts[plan->part_first]);
    if (rc == EF_ELIMIT)
        ef_metric_add(EF_METRIC_ingest_refused_limit_total, 1);
    if (rc != EF_OK)
        return rc;
    scratch->part_count += plan->span.bucket_count;
    plan->corrected = corrected;
    plan->late = planner->now_ns - (plan->span.start_ns + (int64_t)plan->span.span_ns) >
                 (int64_t)aggregate->options.late_ms * EF_NS_PER_MS;
    return EF_OK;
}

/* Makes the buckets of a usage message, so that booking finds them. */
static ef_rc
plan_usage(struct planner *planner, const Everflame__V1__Usage *usage, struct ef_usage_plan *plan)
{
    struct ef_aggregate *aggregate = planner->aggregate;
    const struct ef_source_ref *source = &aggregate->scratch.sources[usage->source];
    bool corrected;

    *plan = (struct ef_usage_plan){0};
    if (source->place != NULL)
        plan->series_id = ef_catalogue_series(aggregate, source->place, EF_TYPE_CPU);
    if (plan->series_id == 0) {
        ef_metric_add(EF_METRIC_limit_series_total, 1);
        return EF_ELIMIT;
    }
    if (usage->cpu_ns / CORES_MAX > (uint64_t)EF_SPAN_MAX_NS || usage->hot_cpu_ns > usage->cpu_ns ||
        !ef_plan_span(aggregate, usage->start_ns, usage->span_ns, false, planner->now_ns,
                      &plan->span, &corrected) ||
        plan->span.bucket_count > USAGE_BUCKETS_MAX)
        return EF_ELIMIT;
    planner->usage_buckets += plan->span.bucket_count;
    planner->new_bytes += plan->span.bucket_count * PART_BYTES;
    if (planner->usage_buckets > PARTS_MAX ||
        planner->new_bytes > aggregate->options.memory_bytes_max / 2)
        return EF_ELIMIT;
    for (uint32_t i = 0; i < plan->span.bucket_count; i++) {
        struct ef_bucket *bucket =
            ef_open_find(aggregate, plan->series_id, plan->span.bucket_ns + i * EF_BUCKET_NS);
        size_t before = bucket == NULL ? 0 : bucket->bytes;
        if (bucket == NULL || !ef_bucket_reserve_instance(bucket))
            return EF_ENOMEM;
        ef_bucket_add_instance(bucket, source->instance);
        ef_open_account(aggregate, bucket, before);
    }
    plan->good = true;
    return EF_OK;
}

static ef_rc
plan_usages(struct planner *planner, const Everflame__V1__Batch *batch, size_t *refused)
{
    struct ef_scratch *scratch = &planner->aggregate->scratch;
    void *array = scratch->usages;

    if (!ef_agg_grow(&array, &scratch->usage_cap, batch->n_usages, sizeof(*scratch->usages)))
        return EF_ENOMEM;
    scratch->usages = array;
    for (size_t i = 0; i < batch->n_usages; i++) {
        ef_rc rc = plan_usage(planner, batch->usages[i], &scratch->usages[i]);
        if (rc == EF_ENOMEM)
            return rc;
        if (rc == EF_ELIMIT) {
            ef_metric_add(EF_METRIC_ingest_refused_limit_total, 1);
            (*refused)++;
        }
    }
    return EF_OK;
}

ef_rc
ef_plan_batch(struct ef_aggregate *aggregate, const Everflame__V1__Batch *batch, int64_t now_ns,
              size_t *ret_refused, struct ef_err *err)
{
    struct planner planner = {.aggregate = aggregate, .now_ns = now_ns, .err = err};
    struct ef_scratch *scratch = &aggregate->scratch;
    void *array = scratch->plans;
    size_t refused = 0, id_at = 0;

    if (!ef_agg_grow(&array, &scratch->plan_cap, batch->n_fragments, sizeof(*scratch->plans)))
        return ef_err_set(err, EF_ENOMEM, "no memory to plan %zu fragments", batch->n_fragments);
    scratch->plans = array;
    scratch->part_count = 0;
    for (size_t i = 0; i < batch->n_fragments; i++) {
        const Everflame__V1__Fragment *fragment = batch->fragments[i];
        struct ef_plan *plan = &scratch->plans[i];
        ef_rc rc;
        *plan = (struct ef_plan){.fragment = fragment, .ids = scratch->ids + id_at};
        id_at += fragment->n_stack;
        rc = plan_fragment(&planner, plan, &scratch->sources[fragment->source]);
        plan->refused = rc == EF_ELIMIT;
        refused += plan->refused;
        if (rc != EF_OK && rc != EF_ELIMIT) {
            ef_plan_undo(aggregate, i);
            return ef_err_set(err, rc, "no memory for fragment %zu", i);
        }
    }
    if (plan_usages(&planner, batch, &refused) != EF_OK) {
        ef_plan_undo(aggregate, batch->n_fragments);
        return ef_err_set(err, EF_ENOMEM, "no memory for %zu usages", batch->n_usages);
    }
    *ret_refused = refused;
    return EF_OK;
}
