/*
 * Puts planned fragments and usage into their buckets. Cannot fail: plan.c made the room. Runs
 * under the aggregate's lock.
 */
#include "collector/aggregate/internal.h"

#include "proto/base/limit.h"
#include "proto/base/metric.h"

/* value × weight / 1000, to the nearest; the plan has checked that it fits. */
static int64_t
weighted(int64_t value, uint64_t weight_milli)
{
    unsigned __int128 size = value < 0 ? 0 - (uint64_t)value : (uint64_t)value;
    int64_t sum;

    if (weight_milli == 0 || weight_milli == 1000)
        return value;
    sum = (int64_t)((size * weight_milli + 500) / 1000);
    return value < 0 ? -sum : sum;
}

static uint64_t
square(uint64_t samples)
{
    uint64_t product;

    return __builtin_mul_overflow(samples, samples, &product) ? UINT64_MAX : product;
}

/* ---- pairs ---- */

/* One stack of a fragment on its way into several buckets. */
struct spread {
    const struct ef_plan *plan;
    struct ef_part *parts;
    uint32_t id;
    uint64_t count, given;      /* of the stack: all, booked so far */
    int64_t value, value_given; /* only for wide plans */
};

static void
book_part(void *arg, uint32_t index, uint64_t count)
{
    struct spread *spread = arg;
    struct ef_part *part = &spread->parts[index];
    struct ef_section_log *section = ef_bucket_section(part->bucket, part->section);

    spread->given += count;
    part->count += count;
    if (spread->plan->wide) {
        int64_t until = spread->count == 0
                            ? spread->value
                            : ef_share_i64(spread->value, spread->given, spread->count);
        ef_section_book_wide(section, spread->id, count, until - spread->value_given);
        part->value += until - spread->value_given;
        spread->value_given = until;
    } else {
        ef_section_book(section, spread->id, (uint32_t)count);
        part->value += (int64_t)(count * spread->plan->fragment->interval);
    }
}

static int64_t
value_of(const Everflame__V1__Fragment *fragment, size_t i)
{
    return fragment->n_value > 0 ? fragment->value[i]
                                 : (int64_t)(fragment->count[i] * fragment->interval);
}

static void
book_spread(const struct ef_plan *plan, struct ef_part *parts)
{
    size_t tick = 0;

    for (size_t i = 0; i < plan->fragment->n_stack; i++) {
        struct spread spread = {.plan = plan,
                                .parts = parts,
                                .id = plan->ids[i],
                                .count = plan->fragment->count[i],
                                .value = value_of(plan->fragment, i)};
        ef_plan_split(plan, i, &tick, book_part, &spread);
    }
}

/* The common case: one bucket, value = count × interval. */
static void
book_whole(const struct ef_plan *plan, struct ef_part *part)
{
    const Everflame__V1__Fragment *fragment = plan->fragment;
    struct ef_section_log *section;

    if (fragment->n_stack == 0)
        return;
    section = ef_bucket_section(part->bucket, part->section);
    part->count = plan->samples;
    if (!plan->wide) {
        for (size_t i = 0; i < fragment->n_stack; i++)
            ef_section_book(section, plan->ids[i], (uint32_t)fragment->count[i]);
        part->value = (int64_t)(plan->samples * fragment->interval);
        return;
    }
    for (size_t i = 0; i < fragment->n_stack; i++) {
        int64_t value = value_of(fragment, i);
        ef_section_book_wide(section, plan->ids[i], fragment->count[i], value);
        part->value += value;
    }
}

/* ---- totals ---- */

static void
book_totals(const struct ef_plan *plan, const struct ef_part *part, uint64_t covered_ns)
{
    const Everflame__V1__Fragment *fragment = plan->fragment;
    struct ef_store_totals *totals = &part->bucket->totals;

    totals->samples += part->count;
    totals->value += part->value;
    totals->value_weighted += weighted(part->value, fragment->weight_milli);
    totals->covered_ns = ef_sat_add_u64(totals->covered_ns, covered_ns);
    totals->bursts++;
    part->bucket->used = true;
    totals->squares = ef_sat_add_u64(totals->squares, square(part->count));
    if (fragment->stratum == EVERFLAME__V1__STRATUM__HOT)
        totals->hot_samples += part->count;
    if (fragment->profile_type == EVERFLAME__V1__PROFILE_TYPE__INUSE)
        totals->snapshots++;
    if (fragment->heap_used_bytes > totals->heap_used_bytes_max)
        totals->heap_used_bytes_max = fragment->heap_used_bytes;
    if (fragment->pause_ns > totals->pause_ns_max)
        totals->pause_ns_max = fragment->pause_ns;
}

static void
book_fragment(struct ef_aggregate *aggregate, const struct ef_plan *plan)
{
    struct ef_part *parts = &aggregate->scratch.parts[plan->part_first];
    uint32_t part_count = plan->span.bucket_count;

    if (part_count == 1)
        book_whole(plan, parts);
    else
        book_spread(plan, parts);
    for (uint32_t i = 0; i < part_count; i++) {
        /* A state type's fragment lies in one bucket, with all of its span. */
        uint64_t covered_ns =
            part_count == 1 ? plan->fragment->span_ns : ef_span_overlap(&plan->span, i);
        book_totals(plan, &parts[i], covered_ns);
        if (parts[i].reserved > 0)
            ef_bucket_unreserve(parts[i].bucket, parts[i].section, parts[i].reserved, plan->wide);
    }
}

/* ---- usage ---- */

static int64_t
share_between(uint64_t value, uint64_t from, uint64_t until, uint64_t whole)
{
    return ef_share_i64((int64_t)value, until, whole) - ef_share_i64((int64_t)value, from, whole);
}

static void
book_usage(struct ef_aggregate *aggregate, const Everflame__V1__Usage *usage,
           const struct ef_usage_plan *plan)
{
    uint32_t isolates = usage->isolates == 0 ? 1 : usage->isolates;
    uint64_t span_ns = plan->span.span_ns, from = 0;

    for (uint32_t i = 0; i < plan->span.bucket_count; i++) {
        int64_t bucket_ns = plan->span.bucket_ns + i * EF_BUCKET_NS;
        struct ef_bucket *bucket = ef_open_find(aggregate, plan->series_id, bucket_ns);
        uint64_t until = from + ef_span_overlap(&plan->span, i);
        /* A moment's CPU goes to its bucket whole. */
        uint64_t shown = span_ns == 0 ? 1 : until, whole = span_ns == 0 ? 1 : span_ns;
        EF_ASSERT(bucket != NULL); /* made by the plan */
        bucket->totals.expected_ns = ef_sat_add_u64(bucket->totals.expected_ns, until - from);
        bucket->totals.cpu_ns =
            ef_sat_add_u64(bucket->totals.cpu_ns,
                           (uint64_t)share_between(usage->cpu_ns / isolates, from, shown, whole));
        bucket->totals.hot_cpu_ns = ef_sat_add_u64(
            bucket->totals.hot_cpu_ns,
            (uint64_t)share_between(usage->hot_cpu_ns / isolates, from, shown, whole));
        bucket->used = true;
        from = until;
    }
}

/* ---- a batch ---- */

void
ef_book_batch(struct ef_aggregate *aggregate, const Everflame__V1__Batch *batch,
              struct ef_epoch *epoch)
{
    uint64_t fragments = 0, samples = 0, late = 0, corrected = 0;

    for (size_t i = 0; i < batch->n_fragments; i++) {
        const struct ef_plan *plan = &aggregate->scratch.plans[i];
        if (plan->refused) {
            /* Not kept, so it is lost, and said to be. */
            epoch->fragments_lost++;
            epoch->samples_lost = ef_sat_add_u64(epoch->samples_lost, plan->samples);
            continue;
        }
        book_fragment(aggregate, plan);
        fragments++;
        samples += plan->samples;
        corrected += plan->corrected;
        if (plan->late)
            late += plan->samples;
    }
    for (size_t i = 0; i < batch->n_usages; i++) {
        if (aggregate->scratch.usages[i].good)
            book_usage(aggregate, batch->usages[i], &aggregate->scratch.usages[i]);
    }
    epoch->fragments_stored += fragments;
    epoch->samples_stored = ef_sat_add_u64(epoch->samples_stored, samples);
    epoch->samples_late = ef_sat_add_u64(epoch->samples_late, late);
    ef_metric_add(EF_METRIC_ingest_fragments_total, fragments);
    ef_metric_add(EF_METRIC_ingest_samples_total, samples);
    if (corrected > 0)
        ef_metric_add(EF_METRIC_ingest_clock_corrected_total, corrected);
    if (late > 0)
        ef_metric_add(EF_METRIC_ingest_late_samples_total, late);
}
