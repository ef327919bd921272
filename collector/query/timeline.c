/*
 * Decides how totals become points of equal length. Reads no stacks. Runs in the thread that asks.
 */
#include <math.h>
#include <stdlib.h>

#include "collector/query/internal.h"

struct point {
    double value;
    uint64_t samples, cpu_ns;
};

struct build {
    struct ef_plan *plan;
    struct point *points;
    size_t point_count;
    int64_t step_ns;
    /* State types: the present series' snapshots inside one point. */
    size_t series_index, point_index;
    double state_value;
    uint64_t state_snapshots, state_instances;
};

/* A state: the mean of the point's snapshots, times the instances; summed over series. */
static void
end_state(struct build *build)
{
    if (build->state_snapshots > 0)
        build->points[build->point_index].value +=
            build->state_value / (double)build->state_snapshots * (double)build->state_instances;
    build->state_value = 0;
    build->state_snapshots = build->state_instances = 0;
}

static void
add_state(struct build *build, size_t series_index, size_t point_index,
          const struct ef_store_totals *totals)
{
    if (build->series_index != series_index || build->point_index != point_index)
        end_state(build);
    build->series_index = series_index;
    build->point_index = point_index;
    if (totals->samples == 0)
        return;
    build->state_value += (double)totals->value;
    build->state_snapshots += totals->snapshots > 0 ? totals->snapshots : 1;
    if (totals->instances > build->state_instances)
        build->state_instances = totals->instances;
    if (build->state_instances == 0)
        build->state_instances = 1;
}

static ef_rc
take_bucket(void *arg, size_t series_index, int64_t bucket_ns, const struct ef_store_totals *totals)
{
    struct build *build = arg;
    size_t index = (size_t)((bucket_ns - build->plan->head.from_ns) / build->step_ns);
    struct point *point;

    if (index >= build->point_count)
        return EF_OK;
    point = &build->points[index];
    point->samples += totals->samples;
    point->cpu_ns += totals->cpu_ns;
    if (build->plan->head.profile_type == EF_TYPE_INUSE)
        add_state(build, series_index, index, totals);
    else
        point->value += (double)totals->value_weighted;
    return EF_OK;
}

static void
finish(struct build *build, struct ef_timeline *timeline)
{
    const struct ef_plan *plan = build->plan;

    for (size_t i = 0; i < build->point_count; i++) {
        const struct point *point = &build->points[i];
        struct ef_timeline_point *ret = &timeline->points[i];
        ret->from_ns = plan->head.from_ns + (int64_t)i * build->step_ns;
        ret->to_ns = ret->from_ns + build->step_ns;
        ret->samples = point->samples;
        ret->process_cpu_ns = point->cpu_ns;
        ret->value = point->value < 9.2e18 ? (int64_t)llround(point->value) : INT64_MAX;
        ret->coverage = ef_plan_coverage(plan, ret->from_ns, ret->to_ns);
    }
}

static ef_rc
take_points(struct build *build, struct ef_timeline *timeline, struct ef_err *err)
{
    struct ef_plan *plan = build->plan;
    int64_t count = (plan->head.to_ns - plan->head.from_ns) / build->step_ns;
    char step[32];

    if (count > EF_TIMELINE_POINTS_MAX) {
        int64_t smallest = (plan->head.to_ns - plan->head.from_ns) / EF_TIMELINE_POINTS_MAX;
        smallest = ef_bucket_start(smallest, EF_BUCKET_NS) + EF_BUCKET_NS;
        return ef_err_set(
            err, EF_ELIMIT, "the range has more than %d steps: a step of %s or more fits",
            EF_TIMELINE_POINTS_MAX, ef_span_format((ef_span_ns){smallest}, step, sizeof(step)));
    }
    build->point_count = (size_t)count;
    build->points = ef_query_arena_take(plan->arena, build->point_count, sizeof(*build->points));
    timeline->points =
        ef_query_arena_take(plan->arena, build->point_count, sizeof(*timeline->points));
    if (build->points == NULL || timeline->points == NULL)
        return ef_plan_out_of_memory(plan, 0, err);
    timeline->point_count = build->point_count;
    return EF_OK;
}

ef_rc
ef_query_timeline(struct ef_query *query, const struct ef_selector *selector, int64_t step_ns,
                  struct ef_timeline *ret, struct ef_err *err)
{
    struct ef_timeline timeline = {0};
    struct build build = {.step_ns = step_ns};
    struct ef_plan plan;
    ef_rc rc = ef_plan_open(query, selector, step_ns, &plan, err);

    if (rc != EF_OK)
        return rc;
    build.plan = &plan;
    rc = take_points(&build, &timeline, err);
    if (rc == EF_OK && plan.head.empty == EF_EMPTY_NOT)
        rc = ef_plan_totals(&plan, take_bucket, &build, err);
    if (rc == EF_OK) {
        if (plan.head.profile_type == EF_TYPE_INUSE)
            end_state(&build);
        if (timeline.points != NULL)
            finish(&build, &timeline);
    }
    ef_plan_fini(&plan);
    if (rc != EF_OK) {
        ef_query_arena_free(plan.arena);
        return rc;
    }
    timeline.head = plan.head;
    timeline.arena = plan.arena;
    *ret = timeline;
    return EF_OK;
}

void
ef_timeline_fini(struct ef_timeline *timeline)
{
    ef_query_arena_free(timeline->arena);
    *timeline = (struct ef_timeline){0};
}
