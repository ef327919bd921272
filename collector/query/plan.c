/*
 * Decides which series and which buckets answer a selector, why an answer is empty, how much of the
 * range was sampled, and how buckets are grouped into sampling units. Reads totals, never stacks.
 * Runs in the thread that asks.
 */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "collector/query/internal.h"

/* bucket_samples, bucket_covered, bucket_expected, bucket_group */
#define BUCKET_BYTES (sizeof(uint32_t) + 2 * sizeof(float) + sizeof(uint8_t))

void
ef_plan_note(struct ef_plan *plan, const char *fmt, ...)
{
    char text[256];
    va_list args;

    if (plan->head.note_count == EF_QUERY_NOTES_MAX)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    plan->head.notes[plan->head.note_count] = ef_query_arena_str(plan->arena, text);
    plan->head.note_count += plan->head.notes[plan->head.note_count] != NULL;
}

static void EF_PRINTF(3, 4)
    set_empty(struct ef_plan *plan, enum ef_empty empty, const char *fmt, ...)
{
    va_list args;

    plan->head.empty = empty;
    va_start(args, fmt);
    vsnprintf(plan->head.empty_message, sizeof(plan->head.empty_message), fmt, args);
    va_end(args);
}

ef_rc
ef_plan_out_of_memory(const struct ef_plan *plan, uint64_t range_bytes, struct ef_err *err)
{
    uint64_t bytes_max = plan->query->options.request_bytes_max;
    char span[32];

    if (range_bytes == 0)
        return ef_err_set(err, EF_ELIMIT,
                          "the query needs more than its %" PRIu64
                          " bytes for stacks: name fewer versions, or raise query_memory_max",
                          bytes_max);
    /* Half for the range: stacks need their part too. */
    ef_span_format((ef_span_ns){(int64_t)(bytes_max / 2 / BUCKET_BYTES) * EF_BUCKET_NS}, span,
                   sizeof(span));
    return ef_err_set(err, EF_ELIMIT,
                      "the range needs %" PRIu64 " bytes of at most %" PRIu64
                      ": the largest that fits is %s; ask for less, or raise query_memory_max",
                      range_bytes, bytes_max, span);
}

int64_t
ef_plan_passed(const struct ef_plan *plan, int64_t from_ns, int64_t to_ns)
{
    if (to_ns > plan->now_ns)
        to_ns = plan->now_ns;
    return to_ns > from_ns ? to_ns - from_ns : 0;
}

static bool
in_list(const char *const *names, size_t count, const char *name)
{
    for (size_t i = 0; i < count; i++) {
        if (strcmp(names[i], name) == 0)
            return true;
    }
    return count == 0;
}

static ef_rc
set_range(struct ef_plan *plan, const struct ef_selector *selector, int64_t step_ns,
          struct ef_err *err)
{
    int64_t limit_ns = INT64_MAX / 4; /* 1897: far enough back, and differences cannot overflow */
    char from[32], to[32];

    if (selector->from_ns > selector->to_ns)
        return ef_err_set(err, EF_EINVAL, "'from' (%s) is later than 'to' (%s)",
                          ef_wall_format((ef_wall_ns){selector->from_ns}, from, sizeof(from)),
                          ef_wall_format((ef_wall_ns){selector->to_ns}, to, sizeof(to)));
    if (selector->from_ns < -limit_ns || selector->to_ns > INT64_MAX - step_ns)
        return ef_err_set(err, EF_EINVAL, "the range lies outside of what a clock can show");
    plan->head.from_ns = ef_bucket_start(selector->from_ns, step_ns);
    plan->head.to_ns = ef_bucket_start(selector->to_ns, step_ns);
    if (plan->head.to_ns != selector->to_ns || plan->head.to_ns == plan->head.from_ns)
        plan->head.to_ns += step_ns;
    plan->now_ns = selector->now_ns;
    return EF_OK;
}

struct matches {
    size_t workers, versions, types;
};

static bool
version_matches(const struct ef_catalogue_version *version, const struct ef_selector *selector,
                struct matches *matches)
{
    if (strcmp(version->worker, selector->worker) != 0 ||
        (selector->account != NULL && strcmp(version->account, selector->account) != 0))
        return false;
    matches->workers++;
    if (!in_list(selector->versions, selector->version_count, version->version))
        return false;
    matches->versions++;
    return true;
}

/* Adds the series of one version; the arrays have room. */
static void
add_version(struct ef_plan *plan, const struct ef_catalogue_version *version,
            const struct ef_selector *selector, struct matches *matches)
{
    struct ef_plan_version *planned = &plan->versions[plan->version_count];

    planned->version = version;
    planned->series_first = plan->series_count;
    for (size_t i = 0; i < version->series_count; i++) {
        const struct ef_catalogue_series *series =
            &plan->catalogue->series[version->series_first + i];
        if (series->profile_type != selector->profile_type)
            continue;
        matches->types++;
        if (in_list(selector->regions, selector->region_count, series->region))
            plan->series[plan->series_count++] =
                (struct ef_plan_series){.series = series, .factor = 1};
    }
    planned->series_count = plan->series_count - planned->series_first;
    plan->version_count += planned->series_count > 0;
}

static void
say_no_match(struct ef_plan *plan, const struct ef_selector *selector,
             const struct matches *matches)
{
    if (matches->workers == 0)
        set_empty(plan, EF_EMPTY_NO_SUCH_WORKER, "no worker '%.80s'%s%.80s%s was ever seen",
                  selector->worker, selector->account != NULL ? " of account '" : "",
                  selector->account != NULL ? selector->account : "",
                  selector->account != NULL ? "'" : "");
    else if (matches->versions == 0)
        set_empty(plan, EF_EMPTY_NO_SUCH_VERSION, "worker '%.80s' has no version '%.80s'%s",
                  selector->worker, selector->versions[0],
                  selector->version_count > 1 ? " nor any other that was named" : "");
    else if (matches->types == 0)
        set_empty(plan, EF_EMPTY_NO_SUCH_TYPE, "worker '%.80s' has no profiles of type '%s'",
                  selector->worker, ef_type_name(selector->profile_type));
    else
        set_empty(plan, EF_EMPTY_NO_SAMPLES, "no samples from region '%.80s'",
                  selector->regions[0]);
}

static ef_rc
choose_series(struct ef_plan *plan, const struct ef_selector *selector, struct ef_err *err)
{
    const struct ef_catalogue *catalogue = plan->catalogue;
    size_t series_max = 0, version_max = 0;
    struct matches matches = {0};

    for (size_t i = 0; i < catalogue->version_count; i++) {
        if (version_matches(&catalogue->versions[i], selector, &matches)) {
            series_max += catalogue->versions[i].series_count;
            version_max++;
        }
    }
    plan->series = ef_query_arena_take(plan->arena, series_max + 1, sizeof(*plan->series));
    plan->versions = ef_query_arena_take(plan->arena, version_max + 1, sizeof(*plan->versions));
    if (plan->series == NULL || plan->versions == NULL)
        return ef_plan_out_of_memory(plan, 0, err);
    for (size_t i = 0; i < catalogue->version_count && version_max > 0; i++) {
        struct matches ignored = {0};
        if (version_matches(&catalogue->versions[i], selector, &ignored))
            add_version(plan, &catalogue->versions[i], selector, &matches);
    }
    if (plan->series_count == 0)
        say_no_match(plan, selector, &matches);
    return EF_OK;
}

/* First and last bucket of the chosen series, wherever they are. */
static ef_rc
find_data(struct ef_plan *plan, struct ef_err *err)
{
    plan->first_ns = INT64_MAX;
    plan->last_ns = INT64_MIN;
    for (size_t i = 0; i < plan->series_count; i++) {
        int64_t first, last;
        ef_rc rc = ef_store_series_span(plan->query->store, EF_TIER_10S, plan->series[i].series->id,
                                        &first, &last, err);
        if (rc == EF_ENOTFOUND)
            continue; /* never sampled, or expired */
        if (rc != EF_OK)
            return rc;
        if (first < plan->first_ns)
            plan->first_ns = first;
        if (last > plan->last_ns)
            plan->last_ns = last;
    }
    return EF_OK;
}

static void
compare_with_data(struct ef_plan *plan)
{
    const struct ef_query_head *head = &plan->head;
    char at[32];

    if (plan->first_ns > plan->last_ns)
        set_empty(plan, EF_EMPTY_NO_SAMPLES, "nothing is stored: never sampled, or expired");
    else if (head->to_ns <= plan->first_ns)
        set_empty(plan, EF_EMPTY_BEFORE_DATA, "the range ends before the first data, of %s",
                  ef_wall_format((ef_wall_ns){plan->first_ns}, at, sizeof(at)));
    else if (head->from_ns > plan->last_ns)
        set_empty(plan, EF_EMPTY_AFTER_DATA, "the range begins after the last data, of %s%s",
                  ef_wall_format((ef_wall_ns){plan->last_ns}, at, sizeof(at)),
                  head->from_ns > plan->now_ns ? ", and lies in the future" : "");
}

static ef_rc
take_buckets(struct ef_plan *plan, struct ef_err *err)
{
    int64_t to_ns = plan->head.to_ns;
    uint64_t bytes;

    plan->data_from_ns = plan->head.from_ns > plan->first_ns ? plan->head.from_ns : plan->first_ns;
    if (to_ns > plan->last_ns + EF_BUCKET_NS)
        to_ns = plan->last_ns + EF_BUCKET_NS;
    plan->bucket_count = (size_t)((to_ns - plan->data_from_ns + EF_BUCKET_NS - 1) / EF_BUCKET_NS);
    bytes = plan->bucket_count * BUCKET_BYTES;
    if (bytes > plan->query->options.request_bytes_max / 2)
        return ef_plan_out_of_memory(plan, bytes, err);
    plan->bucket_samples = ef_query_arena_take(plan->arena, plan->bucket_count, sizeof(uint32_t));
    plan->bucket_covered = ef_query_arena_take(plan->arena, plan->bucket_count, sizeof(float));
    plan->bucket_expected = ef_query_arena_take(plan->arena, plan->bucket_count, sizeof(float));
    plan->bucket_group = ef_query_arena_take(plan->arena, plan->bucket_count, 1);
    if (plan->bucket_samples == NULL || plan->bucket_covered == NULL ||
        plan->bucket_expected == NULL || plan->bucket_group == NULL)
        return ef_plan_out_of_memory(plan, bytes, err);
    return EF_OK;
}

ef_rc
ef_plan_open(struct ef_query *query, const struct ef_selector *selector, int64_t step_ns,
             struct ef_plan *ret_plan, struct ef_err *err)
{
    struct ef_plan plan = {.query = query};
    ef_rc rc;

    if (step_ns < EF_BUCKET_NS || step_ns % EF_BUCKET_NS != 0)
        return ef_err_set(err, EF_EINVAL, "the step is not a multiple of %d s",
                          (int)(EF_BUCKET_NS / EF_NS_PER_S));
    plan.arena = ef_query_arena_open(query->options.request_bytes_max);
    if (plan.arena == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a query");
    plan.head.profile_type = selector->profile_type;
    plan.head.worker = ef_query_arena_str(plan.arena, selector->worker);
    rc = plan.head.worker == NULL ? ef_plan_out_of_memory(&plan, 0, err) : EF_OK;
    if (rc == EF_OK)
        rc = set_range(&plan, selector, step_ns, err);
    if (rc == EF_OK)
        rc = ef_query_catalogue(query, &plan.catalogue, err);
    if (rc == EF_OK)
        rc = choose_series(&plan, selector, err);
    if (rc == EF_OK && plan.head.empty == EF_EMPTY_NOT)
        rc = find_data(&plan, err);
    if (rc == EF_OK && plan.head.empty == EF_EMPTY_NOT)
        compare_with_data(&plan);
    if (rc == EF_OK && plan.head.empty == EF_EMPTY_NOT)
        rc = take_buckets(&plan, err);
    if (rc != EF_OK) {
        ef_plan_fini(&plan);
        ef_query_arena_free(plan.arena);
        return rc;
    }
    *ret_plan = plan;
    return EF_OK;
}

void
ef_plan_fini(struct ef_plan *plan)
{
    ef_query_catalogue_unref(plan->catalogue);
    plan->catalogue = NULL;
}

/* Reads the totals of one series; parts of a bucket follow each other. */
struct totals_pass {
    struct ef_plan *plan;
    size_t series_index;
    bool any;
    int64_t bucket_ns;
    struct ef_store_totals bucket;
    ef_plan_bucket_fn fn;
    void *arg;
};

/*
 * Capped at what this series could cover: overlapping fragments of one series do not make up for
 * another that nobody sampled.
 */
static void
book_coverage(struct ef_plan *plan, int64_t bucket_ns, const struct ef_store_totals *totals)
{
    size_t index = (size_t)((bucket_ns - plan->data_from_ns) / EF_BUCKET_NS);
    uint64_t instances = totals->instances > 0 ? totals->instances : 1;
    double covered = (double)totals->covered_ns, expected = (double)totals->expected_ns;

    if (totals->expected_ns == 0)
        expected =
            (double)instances * (double)ef_plan_passed(plan, bucket_ns, bucket_ns + EF_BUCKET_NS);
    plan->bucket_covered[index] += (float)(covered < expected ? covered : expected);
    plan->bucket_expected[index] += (float)expected;
    if (totals->samples > UINT32_MAX - plan->bucket_samples[index])
        plan->bucket_samples[index] = UINT32_MAX;
    else
        plan->bucket_samples[index] += (uint32_t)totals->samples;
}

double
ef_plan_coverage(const struct ef_plan *plan, int64_t from_ns, int64_t to_ns)
{
    int64_t passed = ef_plan_passed(plan, from_ns, to_ns);
    int64_t at = from_ns > plan->data_from_ns ? from_ns : plan->data_from_ns;
    int64_t end = plan->data_from_ns + (int64_t)plan->bucket_count * EF_BUCKET_NS;
    double covered = 0;

    for (; at < to_ns && at < end; at += EF_BUCKET_NS) {
        size_t index = (size_t)((at - plan->data_from_ns) / EF_BUCKET_NS);
        if (plan->bucket_expected[index] > 0)
            covered += (double)ef_plan_passed(plan, at, at + EF_BUCKET_NS) *
                       (double)plan->bucket_covered[index] / (double)plan->bucket_expected[index];
    }
    if (passed == 0)
        return 0;
    return covered < (double)passed ? covered / (double)passed : 1; /* rounding alone is above */
}

static ef_rc
end_bucket(struct totals_pass *pass)
{
    struct ef_plan_series *series = &pass->plan->series[pass->series_index];
    const struct ef_store_totals *totals = &pass->bucket;

    if (!pass->any)
        return EF_OK;
    pass->any = false;
    if (totals->samples > 0) {
        if (series->samples == 0)
            series->first_ns = pass->bucket_ns;
        series->last_ns = pass->bucket_ns;
    }
    series->samples += totals->samples;
    series->value += totals->value;
    series->snapshots += totals->snapshots;
    if (totals->instances > series->instances)
        series->instances = totals->instances;
    book_coverage(pass->plan, pass->bucket_ns, totals);
    ef_store_totals_add(&pass->plan->sums, totals);
    return pass->fn != NULL ? pass->fn(pass->arg, pass->series_index, pass->bucket_ns, totals)
                            : EF_OK;
}

static ef_rc
take_totals(void *arg, int64_t bucket_ns, uint32_t part, const struct ef_store_totals *totals)
{
    struct totals_pass *pass = arg;
    ef_rc rc = EF_OK;

    (void)part;
    if (pass->any && pass->bucket_ns != bucket_ns)
        rc = end_bucket(pass);
    if (rc != EF_OK)
        return rc;
    if (!pass->any) {
        pass->any = true;
        pass->bucket_ns = bucket_ns;
        pass->bucket = *totals;
    } else {
        ef_store_totals_add(&pass->bucket, totals);
    }
    return EF_OK;
}

static ef_rc
set_head(struct ef_plan *plan, struct ef_err *err)
{
    struct ef_query_head *head = &plan->head;
    const char **names = ef_query_arena_take(plan->arena, plan->version_count + 1, sizeof(*names));

    if (names == NULL)
        return ef_plan_out_of_memory(plan, 0, err);
    for (size_t i = 0; i < plan->version_count; i++) {
        struct ef_plan_version *version = &plan->versions[i];
        for (size_t j = 0; j < version->series_count; j++)
            version->samples += plan->series[version->series_first + j].samples;
        if (version->samples == 0)
            continue;
        names[head->version_count] = ef_query_arena_str(plan->arena, version->version->version);
        if (names[head->version_count] == NULL)
            return ef_plan_out_of_memory(plan, 0, err);
        head->version_count++;
    }
    head->versions = names;
    head->samples = plan->sums.samples;
    head->process_cpu_ns = plan->sums.cpu_ns;
    head->coverage = ef_plan_coverage(plan, head->from_ns, head->to_ns);
    if (head->samples == 0)
        set_empty(plan, EF_EMPTY_NO_SAMPLES,
                  "no samples in the range: no traffic, nobody sampled, or the running "
                  "profiles are not collected yet ('everflame collect' asks for them)");
    return EF_OK;
}

ef_rc
ef_plan_totals(struct ef_plan *plan, ef_plan_bucket_fn fn, void *arg, struct ef_err *err)
{
    int64_t to_ns = plan->data_from_ns + (int64_t)plan->bucket_count * EF_BUCKET_NS;

    for (size_t i = 0; i < plan->series_count; i++) {
        struct totals_pass pass = {.plan = plan, .series_index = i, .fn = fn, .arg = arg};
        ef_rc rc = ef_store_fold_totals(plan->query->store, EF_TIER_10S, plan->series[i].series->id,
                                        plan->data_from_ns, to_ns, take_totals, &pass, err);
        if (rc == EF_OK)
            rc = end_bucket(&pass);
        if (rc != EF_OK)
            return rc;
    }
    return set_head(plan, err);
}

static int
span_order(const void *a, const void *b)
{
    const struct ef_plan_series *one = *(struct ef_plan_series *const *)a;
    const struct ef_plan_series *two = *(struct ef_plan_series *const *)b;

    return one->first_ns < two->first_ns ? -1 : one->first_ns > two->first_ns;
}

/*
 * A state is averaged over time and summed over instances: the mean of a series' snapshots, times
 * its instances, times the part of the time in which the series was seen (between its first and
 * last snapshot): two versions that follow each other are not added, two regions at once are.
 */
static ef_rc
set_state_factors(struct ef_plan *plan, struct ef_err *err)
{
    struct ef_plan_series **order =
        ef_query_arena_take(plan->arena, plan->series_count + 1, sizeof(struct ef_plan_series *));
    int64_t seen_ns = 0, end_ns = INT64_MIN;
    size_t count = 0;

    if (order == NULL)
        return ef_plan_out_of_memory(plan, 0, err);
    for (size_t i = 0; i < plan->series_count; i++) {
        if (plan->series[i].samples > 0)
            order[count++] = &plan->series[i];
    }
    if (count == 0)
        return EF_OK;
    qsort(order, count, sizeof(struct ef_plan_series *), span_order);
    for (size_t i = 0; i < count; i++) {
        int64_t first_ns = order[i]->first_ns > end_ns ? order[i]->first_ns : end_ns;
        if (order[i]->last_ns + EF_BUCKET_NS > first_ns) {
            seen_ns += order[i]->last_ns + EF_BUCKET_NS - first_ns;
            end_ns = order[i]->last_ns + EF_BUCKET_NS;
        }
    }
    for (size_t i = 0; i < count; i++) {
        double snapshots = order[i]->snapshots > 0 ? (double)order[i]->snapshots : 1;
        double instances = order[i]->instances > 0 ? (double)order[i]->instances : 1;
        double span_ns = (double)(order[i]->last_ns + EF_BUCKET_NS - order[i]->first_ns);
        order[i]->factor = instances / snapshots * span_ns / (double)seen_ns;
    }
    return EF_OK;
}

ef_rc
ef_plan_groups(struct ef_plan *plan, struct ef_err *err)
{
    size_t filled = 0, at = 0;
    size_t in_group[EF_INTERVAL_UNITS_MAX] = {0};

    for (size_t i = 0; i < plan->bucket_count; i++)
        filled += plan->bucket_samples[i] > 0;
    plan->group_count = (uint32_t)(filled < EF_INTERVAL_UNITS_MAX ? filled : EF_INTERVAL_UNITS_MAX);
    plan->group_rate = ef_query_arena_take(plan->arena, EF_INTERVAL_UNITS_MAX, sizeof(double));
    if (plan->group_rate == NULL)
        return ef_plan_out_of_memory(plan, 0, err);
    for (size_t i = 0; i < plan->bucket_count && filled > 0; i++) {
        size_t group = (at < filled ? at : filled - 1) * plan->group_count / filled;
        plan->bucket_group[i] = (uint8_t)group;
        if (plan->bucket_samples[i] == 0)
            continue;
        plan->group_rate[group] += plan->bucket_samples[i];
        in_group[group]++;
        at++;
    }
    for (uint32_t i = 0; i < plan->group_count; i++)
        plan->group_rate[i] /= (double)in_group[i];
    if (plan->head.profile_type == EF_TYPE_INUSE)
        return set_state_factors(plan, err);
    return EF_OK;
}
