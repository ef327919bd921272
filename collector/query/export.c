/*
 * Decides how a fold becomes a profile: versions are merged by the content of their stacks, types
 * carry pprof's names. Runs in the thread that asks.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "collector/query/internal.h"

static const struct {
    uint8_t profile_type;
    const char *count_type, *value_type, *unit, *period_type, *period_unit;
} names[] = {
    {EF_TYPE_CPU, "samples", "cpu", "nanoseconds", "cpu", "nanoseconds"},
    {EF_TYPE_WALL, "samples", "wall", "nanoseconds", "wall", "nanoseconds"},
    {EF_TYPE_ALLOC, "alloc_objects", "alloc_space", "bytes", "space", "bytes"},
    {EF_TYPE_INUSE, "inuse_objects", "inuse_space", "bytes", "space", "bytes"},
};

static ef_rc
add_types(struct ef_profile *profile, const struct ef_fold *fold, struct ef_err *err)
{
    uint32_t type = 0, unit = 0;
    size_t i = 0;
    ef_rc rc;

    while (i + 1 < EF_COUNT_OF(names) && names[i].profile_type != fold->plan->head.profile_type)
        i++;
    rc = ef_profile_add_type(profile, names[i].count_type, "count", err);
    if (rc == EF_OK)
        rc = ef_profile_add_type(profile, names[i].value_type, names[i].unit, err);
    if (rc == EF_OK)
        rc = ef_profile_add_string(profile, names[i].period_type, strlen(names[i].period_type),
                                   &type, err);
    if (rc == EF_OK)
        rc = ef_profile_add_string(profile, names[i].period_unit, strlen(names[i].period_unit),
                                   &unit, err);
    profile->period_type = (struct ef_profile_type){type, unit};
    profile->period = fold->interval <= INT64_MAX ? (int64_t)fold->interval : 0;
    return rc;
}

struct merge {
    struct ef_profile *profile;
    const struct ef_definitions *definitions;
    uint32_t *functions; /* local id -> profile's, + 1; 0 = not yet */
    uint32_t *nodes;
};

static ef_rc
function_of(struct merge *merge, uint32_t id, uint32_t *ret_function, struct ef_err *err)
{
    const struct ef_definition_function *function = &merge->definitions->functions[id];
    const char *text = (const char *)merge->definitions->text.data;
    struct ef_profile_function added = {.start_line = function->line};
    const char *name = text + function->name, *file = text + function->file;
    ef_rc rc = EF_OK;

    if (merge->functions[id] == 0) {
        rc = ef_profile_add_string(merge->profile, name, strlen(name), &added.name, err);
        if (rc == EF_OK)
            rc = ef_profile_add_string(merge->profile, file, strlen(file), &added.file, err);
        if (rc == EF_OK)
            rc = ef_profile_add_function(merge->profile, &added, &merge->functions[id], err);
    }
    if (rc == EF_OK)
        *ret_function = merge->functions[id];
    return rc;
}

static ef_rc
add_stack(struct merge *merge, uint32_t id, struct ef_err *err)
{
    const struct ef_definition_stack *stack = &merge->definitions->stacks[id];
    struct ef_profile_frame frame = {.line = stack->line};
    uint32_t number = 0;
    ef_rc rc = function_of(merge, stack->function, &frame.function, err);

    if (rc == EF_OK)
        rc = ef_profile_add_frame(merge->profile, &frame, &number, err);
    if (rc == EF_OK)
        rc = ef_profile_add_node(merge->profile, merge->nodes[stack->parent], number,
                                 &merge->nodes[id], err);
    return rc;
}

static int64_t
count_of(const struct ef_fold_version *version, uint32_t id)
{
    if (version->objects != NULL)
        return (int64_t)llround(version->objects[id]);
    return version->samples[id] <= INT64_MAX ? (int64_t)version->samples[id] : INT64_MAX;
}

/* Stacks with values, and all their callers; callers have smaller ids. */
static ef_rc
merge_version(const struct ef_fold *fold, const struct ef_fold_version *version,
              struct ef_profile *profile, struct ef_err *err)
{
    const struct ef_definitions *definitions = version->definitions;
    struct ef_query_arena *arena = fold->plan->arena;
    uint32_t count = definitions->stack_count;
    uint8_t *wanted = ef_query_arena_take(arena, (size_t)count + 1, 1);
    struct merge merge = {
        profile, definitions,
        ef_query_arena_take(arena, (size_t)definitions->function_count + 1, sizeof(uint32_t)),
        ef_query_arena_take(arena, (size_t)count + 1, sizeof(uint32_t))};
    ef_rc rc = EF_OK;

    if (wanted == NULL || merge.functions == NULL || merge.nodes == NULL)
        return ef_plan_out_of_memory(fold->plan, 0, err);
    for (uint32_t id = count; id > 0; id--) {
        if (version->samples[id] != 0 || ef_fold_value(fold, version, id) != 0)
            wanted[id] = 1;
        if (wanted[id])
            wanted[definitions->stacks[id].parent] = 1;
    }
    for (uint32_t id = 1; id <= count && rc == EF_OK; id++) {
        if (!wanted[id])
            continue;
        rc = add_stack(&merge, id, err);
        if (rc == EF_OK && version->samples[id] > 0)
            rc = ef_profile_add_value(profile, merge.nodes[id], 0, count_of(version, id), err);
        if (rc == EF_OK && version->samples[id] > 0)
            rc = ef_profile_add_value(profile, merge.nodes[id], 1, ef_fold_value(fold, version, id),
                                      err);
    }
    return rc;
}

static ef_rc
build(const struct ef_fold *fold, struct ef_profile **ret_profile, struct ef_err *err)
{
    const struct ef_plan *plan = fold->plan;
    uint64_t bytes_max = plan->query->options.request_bytes_max;
    /* Measured (ef_profile_bytes, two types): a node takes 40 to 70 bytes, a function with its
     * frame and their hashes 120 to 160. All together at most one and a half times bytes_max. */
    struct ef_profile_limits limits = {.nodes_max = (uint32_t)(bytes_max / 64),
                                       .functions_max = (uint32_t)(bytes_max / 4 / 150),
                                       .string_bytes_max = bytes_max / 4};
    struct ef_profile *profile = NULL;
    ef_rc rc = ef_profile_open(&limits, &profile, err);

    if (rc == EF_OK)
        rc = add_types(profile, fold, err);
    for (size_t i = 0; i < plan->version_count && rc == EF_OK; i++) {
        if (fold->versions[i].definitions != NULL)
            rc = merge_version(fold, &fold->versions[i], profile, err);
    }
    if (rc != EF_OK) {
        ef_profile_free(profile);
        return rc;
    }
    profile->time_ns = plan->head.from_ns;
    profile->duration_ns = plan->head.to_ns - plan->head.from_ns;
    profile->samples = fold->samples;
    *ret_profile = profile;
    return EF_OK;
}

static ef_rc
use_fold(void *arg, struct ef_fold *fold, struct ef_err *err)
{
    struct ef_export *export = arg;

    return build(fold, &export->profile, err);
}

ef_rc
ef_query_export(struct ef_query *query, const struct ef_selector *selector, struct ef_export *ret,
                struct ef_err *err)
{
    struct ef_export export = {0};
    ef_rc rc =
        ef_fold_select(query, selector, false, use_fold, &export, &export.head, &export.arena, err);

    if (rc == EF_OK)
        *ret = export;
    return rc;
}

void
ef_export_fini(struct ef_export *ret)
{
    ef_profile_free(ret->profile);
    ef_query_arena_free(ret->arena);
    *ret = (struct ef_export){0};
}
