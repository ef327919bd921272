/*
 * Decides how blocks become sums by stack, and by function and sampling unit. The hot loop of every
 * query: values go into dense arrays by the version's ids; only when a sampling unit ends (at most
 * 64 times a series) one pass over the tree sums callees into callers. Runs in the thread that
 * asks.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "collector/query/internal.h"
#include "storage/block.h"

#define NO_GROUP UINT32_MAX
#define FUNCTIONS_MAX (1u << 22) /* of one query; its memory bound is reached long before */

/* Reading one series of one version. */
struct pass {
    struct ef_fold *fold;
    struct ef_fold_version *version;
    struct ef_plan_series *series;
    struct ef_block_pair *pairs;
    size_t pair_room;
    double *unit[EF_STRATA]; /* by stack: value in the present unit */
    double *inclusive;
    uint32_t group;
    /* A block named a stack that came after the definitions were read: go on from here. */
    bool grown;
    uint32_t stack_wanted;
    int64_t resume_ns;
    uint32_t resume_part;
    struct ef_err *err;
};

static ef_rc
chunk_add(struct ef_fold *fold, struct ef_err *err)
{
    struct ef_query_arena *arena = fold->plan->arena;
    size_t stride = (size_t)fold->strata * fold->plan->group_count * 2;
    uint32_t chunk = fold->function_count / EF_FOLD_CHUNK;
    float *units = NULL;

    if (chunk == fold->chunk_count_max) {
        uint32_t wanted = chunk == 0 ? 64 : chunk * 2;
        struct ef_fold_function **grown =
            ef_query_arena_take(arena, wanted, sizeof(struct ef_fold_function *));
        if (grown == NULL)
            return ef_plan_out_of_memory(fold->plan, 0, err);
        if (chunk > 0)
            memcpy(grown, fold->functions, chunk * sizeof(struct ef_fold_function *));
        fold->functions = grown;
        fold->chunk_count_max = wanted;
    }
    fold->functions[chunk] =
        ef_query_arena_take(arena, EF_FOLD_CHUNK, sizeof(struct ef_fold_function));
    units = ef_query_arena_take(arena, EF_FOLD_CHUNK * stride + 1, sizeof(float));
    if (fold->functions[chunk] == NULL || units == NULL)
        return ef_plan_out_of_memory(fold->plan, 0, err);
    for (uint32_t i = 0; i < EF_FOLD_CHUNK; i++)
        fold->functions[chunk][i].units = units + i * stride;
    return EF_OK;
}

static ef_rc
add_function(struct ef_fold *fold, const struct ef_definitions *definitions, uint32_t id,
             uint32_t *ret_number, struct ef_err *err)
{
    const struct ef_definition_function *function = &definitions->functions[id];
    const char *text = (const char *)definitions->text.data;
    bool is_new;
    uint64_t *number = ef_map_upsert(&fold->by_hash, function->hash, &is_new);
    struct ef_fold_function *added;
    ef_rc rc;

    if (number == NULL)
        return ef_plan_out_of_memory(fold->plan, 0, err);
    if (is_new) {
        *number = fold->function_count;
        if (fold->function_count % EF_FOLD_CHUNK == 0) {
            rc = chunk_add(fold, err);
            if (rc != EF_OK)
                return rc;
        }
        added = ef_fold_at(fold, fold->function_count);
        added->name = ef_query_arena_str(fold->plan->arena, text + function->name);
        added->file = ef_query_arena_str(fold->plan->arena, text + function->file);
        added->line = function->line;
        if (added->name == NULL || added->file == NULL)
            return ef_plan_out_of_memory(fold->plan, 0, err);
        fold->function_count++;
    }
    *ret_number = (uint32_t)*number;
    return EF_OK;
}

/* An array by stack that keeps what it held. */
static ef_rc
grow(struct ef_fold *fold, void *array_at, uint32_t old_count, size_t size, uint32_t stack_count,
     struct ef_err *err)
{
    void **array = array_at;
    void *grown = ef_query_arena_take(fold->plan->arena, (size_t)stack_count + 1, size);

    if (grown == NULL)
        return ef_plan_out_of_memory(fold->plan, 0, err);
    if (*array != NULL)
        memcpy(grown, *array, ((size_t)old_count + 1) * size);
    *array = grown;
    return EF_OK;
}

static ef_rc
take_arrays(struct pass *pass, uint32_t old_count, struct ef_err *err)
{
    struct ef_fold *fold = pass->fold;
    struct ef_fold_version *version = pass->version;
    uint32_t count = version->definitions->stack_count;
    ef_rc rc = grow(fold, &version->samples, old_count, sizeof(uint64_t), count, err);

    if (rc == EF_OK && fold->plan->head.profile_type == EF_TYPE_INUSE)
        rc = grow(fold, &version->objects, old_count, sizeof(double), count, err);
    if (rc == EF_OK && fold->by_function)
        rc = grow(fold, &pass->inclusive, old_count, sizeof(double), count, err);
    for (unsigned i = 0; i < fold->strata && rc == EF_OK; i++) {
        rc = grow(fold, &version->value[i], old_count, sizeof(double), count, err);
        if (rc == EF_OK && fold->by_function)
            rc = grow(fold, &pass->unit[i], old_count, sizeof(double), count, err);
    }
    return rc;
}

/* Gets definitions that know `stack_wanted`, and arrays for them. */
static ef_rc
load_version(struct pass *pass, uint32_t version_id, struct ef_err *err)
{
    struct ef_fold *fold = pass->fold;
    struct ef_fold_version *version = pass->version;
    struct ef_definitions *definitions;
    uint32_t old_count = version->definitions != NULL ? version->definitions->stack_count : 0;
    ef_rc rc =
        ef_query_definitions(fold->plan->query, version_id, pass->stack_wanted, &definitions, err);

    if (rc != EF_OK)
        return rc;
    ef_query_definitions_unref(version->definitions);
    version->definitions = definitions;
    if (definitions->stack_count < pass->stack_wanted)
        return ef_err_set(err, EF_ECORRUPT, "a block of version %u names stack %u of %u",
                          version_id, pass->stack_wanted, definitions->stack_count);
    rc = take_arrays(pass, old_count, err);
    if (rc != EF_OK || !fold->by_function)
        return rc;
    version->functions = ef_query_arena_take(
        fold->plan->arena, (size_t)definitions->function_count + 1, sizeof(uint32_t));
    if (version->functions == NULL)
        return ef_plan_out_of_memory(fold->plan, 0, err);
    for (uint32_t id = 1; id <= definitions->function_count && rc == EF_OK; id++)
        rc = add_function(fold, definitions, id, &version->functions[id], err);
    return rc;
}

/* Sums the unit's values of one stratum into functions, and clears them. */
static void
end_unit_of(struct pass *pass, unsigned stratum)
{
    struct ef_fold *fold = pass->fold;
    const struct ef_definition_stack *stacks = pass->version->definitions->stacks;
    double *self = pass->unit[stratum], *inclusive = pass->inclusive, sum = 0;
    size_t at = ((size_t)stratum * fold->plan->group_count + pass->group) * 2;

    for (uint32_t id = pass->version->definitions->stack_count; id > 0; id--) {
        double all = inclusive[id] + self[id];
        float *units;
        if (inclusive[id] == 0 && self[id] == 0)
            continue;
        units = ef_fold_at(fold, pass->version->functions[stacks[id].function])->units + at;
        units[0] += (float)self[id];
        units[1] += stacks[id].first ? (float)all : 0;
        inclusive[stacks[id].parent] += all;
        sum += self[id];
        pass->version->value[stratum][id] += self[id];
        inclusive[id] = self[id] = 0;
    }
    inclusive[0] = 0;
    fold->unit_value[stratum][pass->group] += sum;
    fold->value[stratum] += sum;
}

static void
end_unit(struct pass *pass)
{
    if (pass->group == NO_GROUP || !pass->fold->by_function)
        return;
    for (unsigned i = 0; i < pass->fold->strata; i++)
        end_unit_of(pass, i);
    pass->group = NO_GROUP;
}

static ef_rc
pair_room(struct pass *pass, size_t count)
{
    struct ef_block_pair *grown;

    if (count <= pass->pair_room)
        return EF_OK;
    grown = reallocarray(pass->pairs, count * 2, sizeof(*grown));
    if (grown == NULL)
        return ef_err_set(pass->err, EF_ENOMEM, "no memory for a block");
    pass->pairs = grown;
    pass->pair_room = count * 2;
    return EF_OK;
}

static void
note_interval(struct ef_fold *fold, uint64_t interval)
{
    if (!fold->has_interval)
        fold->interval = interval;
    else if (fold->interval != interval)
        fold->interval = 0;
    fold->has_interval = true;
}

static void
add_section(struct pass *pass, const struct ef_block_section_header *header)
{
    struct ef_fold *fold = pass->fold;
    unsigned stratum = header->stratum < fold->strata ? header->stratum : 0;
    double weight = (double)header->weight_milli / 1000 * pass->series->factor;
    double *value = fold->by_function ? pass->unit[stratum] : pass->version->value[stratum];
    uint64_t *samples = pass->version->samples, count = 0;
    int64_t sampled = 0;

    for (size_t i = 0; i < header->pair_count; i++) {
        const struct ef_block_pair *pair = &pass->pairs[i];
        samples[pair->stack] += pair->count;
        value[pair->stack] += (double)pair->value * weight;
        count += pair->count;
        sampled += pair->value;
    }
    if (pass->version->objects != NULL) {
        for (size_t i = 0; i < header->pair_count; i++)
            pass->version->objects[pass->pairs[i].stack] +=
                (double)pass->pairs[i].count * pass->series->factor;
    }
    fold->samples += count;
    fold->samples_stratum[stratum] += count;
    fold->sampled_value += sampled;
    note_interval(fold, header->interval);
}

/* Whether all stacks of the block are known; otherwise nothing of it may be added. */
static ef_rc
largest_stack(struct pass *pass, const void *block, size_t len, uint32_t *ret_stack)
{
    struct ef_block_reader reader;
    struct ef_block_section_header header;
    ef_rc rc = ef_block_begin(&reader, block, len, pass->err), next_rc = EF_OK;

    *ret_stack = 0;
    while (rc == EF_OK && ef_block_next(&reader, &header, &next_rc, pass->err)) {
        rc = pair_room(pass, header.pair_count);
        if (rc == EF_OK)
            rc = ef_block_pairs(&reader, &header, pass->pairs, pass->err);
        if (rc == EF_OK && header.pair_count > 0 &&
            pass->pairs[header.pair_count - 1].stack > *ret_stack)
            *ret_stack = pass->pairs[header.pair_count - 1].stack;
    }
    return rc != EF_OK ? rc : next_rc;
}

static ef_rc
add_block(struct pass *pass, const void *block, size_t len)
{
    struct ef_block_reader reader;
    struct ef_block_section_header header;
    uint64_t sections;
    uint32_t largest;
    ef_rc rc = ef_block_begin(&reader, block, len, pass->err), next_rc = EF_OK;

    if (rc != EF_OK)
        return rc;
    sections = reader.sections_left;
    /* A block of one section, nearly every one, is decoded once: its last pair is the largest. */
    if (sections > 1) {
        rc = largest_stack(pass, block, len, &largest);
        if (rc == EF_OK && largest > pass->version->definitions->stack_count) {
            pass->stack_wanted = largest;
            return EF_OK;
        }
    }
    while (rc == EF_OK && ef_block_next(&reader, &header, &next_rc, pass->err)) {
        rc = pair_room(pass, header.pair_count);
        if (rc == EF_OK)
            rc = ef_block_pairs(&reader, &header, pass->pairs, pass->err);
        if (rc != EF_OK || header.pair_count == 0)
            continue;
        largest = pass->pairs[header.pair_count - 1].stack;
        if (largest > pass->version->definitions->stack_count) {
            pass->stack_wanted = largest;
            return EF_OK;
        }
        add_section(pass, &header);
    }
    return rc != EF_OK ? rc : next_rc;
}

static ef_rc
take_block(void *arg, int64_t bucket_ns, uint32_t part, const void *block, size_t len)
{
    struct pass *pass = arg;
    const struct ef_plan *plan = pass->fold->plan;
    size_t index = (size_t)((bucket_ns - plan->data_from_ns) / EF_BUCKET_NS);
    uint32_t group;
    ef_rc rc;

    if (bucket_ns == pass->resume_ns && part < pass->resume_part)
        return EF_OK; /* added before the definitions grew */
    if (index >= plan->bucket_count)
        return EF_OK;
    group = plan->bucket_group[index];
    if (group != pass->group) {
        end_unit(pass);
        pass->group = group;
    }
    rc = add_block(pass, block, len);
    if (rc == EF_OK && pass->stack_wanted > pass->version->definitions->stack_count) {
        pass->grown = true;
        pass->resume_ns = bucket_ns;
        pass->resume_part = part;
        return EF_EBUSY; /* ends the iteration; taken back in fold_series */
    }
    return rc;
}

static ef_rc
fold_series(struct pass *pass, struct ef_err *err)
{
    const struct ef_plan *plan = pass->fold->plan;
    int64_t to_ns = plan->data_from_ns + (int64_t)plan->bucket_count * EF_BUCKET_NS;
    ef_rc rc;

    pass->group = NO_GROUP;
    pass->resume_ns = plan->data_from_ns;
    pass->resume_part = 0;
    do {
        pass->grown = false;
        rc = ef_store_fold(plan->query->store, EF_TIER_10S, pass->series->series->id,
                           pass->resume_ns, to_ns, take_block, pass, err);
        if (pass->grown)
            rc = load_version(pass, pass->series->series->version_id, err);
    } while (rc == EF_OK && pass->grown);
    end_unit(pass);
    return rc;
}

static ef_rc
fold_version(struct ef_fold *fold, size_t index, struct pass *pass, struct ef_err *err)
{
    const struct ef_plan_version *planned = &fold->plan->versions[index];
    ef_rc rc;

    pass->version = &fold->versions[index];
    pass->stack_wanted = 0;
    pass->inclusive = NULL;
    memset(pass->unit, 0, sizeof(pass->unit));
    rc = load_version(pass, planned->version->id, err);
    for (size_t i = 0; i < planned->series_count && rc == EF_OK; i++) {
        pass->series = &fold->plan->series[planned->series_first + i];
        if (pass->series->samples > 0)
            rc = fold_series(pass, err);
    }
    if (rc != EF_OK)
        ef_err_prefix(err, "version '%s'", planned->version->version);
    return rc;
}

/* One pass over the trees for the sums by function. */
static ef_rc
sum_functions(struct ef_fold *fold, size_t index, struct ef_err *err)
{
    const struct ef_fold_version *version = &fold->versions[index];
    const struct ef_definition_stack *stacks = version->definitions->stacks;
    uint32_t count = version->definitions->stack_count;
    uint64_t *samples = calloc((size_t)count + 1, sizeof(*samples));
    double *value = calloc((size_t)count + 1, sizeof(*value));

    for (unsigned stratum = 0; stratum < fold->strata && samples != NULL && value != NULL;
         stratum++) {
        memset(value, 0, ((size_t)count + 1) * sizeof(*value));
        for (uint32_t id = count; id > 0; id--) {
            struct ef_fold_function *function =
                ef_fold_at(fold, version->functions[stacks[id].function]);
            value[id] += version->value[stratum][id];
            function->self[stratum] += version->value[stratum][id];
            function->total[stratum] += stacks[id].first ? value[id] : 0;
            value[stacks[id].parent] += value[id];
            if (stratum > 0)
                continue;
            samples[id] += version->samples[id];
            function->self_samples += version->samples[id];
            function->total_samples += stacks[id].first ? samples[id] : 0;
            samples[stacks[id].parent] += samples[id];
        }
    }
    free(value);
    free(samples);
    return samples != NULL && value != NULL ? EF_OK
                                            : ef_err_set(err, EF_ENOMEM, "no memory for sums");
}

ef_rc
ef_fold_run(struct ef_plan *plan, bool by_function, struct ef_fold *ret_fold, struct ef_err *err)
{
    struct ef_fold fold = {.plan = plan, .by_function = by_function};
    struct pass pass = {.fold = &fold, .err = err};
    ef_rc rc = EF_OK;

    fold.strata = plan->sums.hot_samples > 0 ? EF_STRATA : 1;
    ef_map_init(&fold.by_hash, FUNCTIONS_MAX);
    fold.versions =
        ef_query_arena_take(plan->arena, plan->version_count + 1, sizeof(*fold.versions));
    if (fold.versions == NULL) {
        ef_map_fini(&fold.by_hash);
        return ef_plan_out_of_memory(plan, 0, err);
    }
    for (size_t i = 0; i < plan->version_count && rc == EF_OK; i++) {
        if (plan->versions[i].samples == 0)
            continue;
        rc = fold_version(&fold, i, &pass, err);
        if (rc == EF_OK && by_function)
            rc = sum_functions(&fold, i, err);
    }
    free(pass.pairs);
    if (rc != EF_OK) {
        ef_fold_fini(&fold);
        return rc;
    }
    plan->head.samples = fold.samples; /* what was written since the totals were read is in */
    *ret_fold = fold;
    return EF_OK;
}

void
ef_fold_fini(struct ef_fold *fold)
{
    for (size_t i = 0; i < fold->plan->version_count && fold->versions != NULL; i++)
        ef_query_definitions_unref(fold->versions[i].definitions);
    ef_map_fini(&fold->by_hash);
}

int64_t
ef_fold_value(const struct ef_fold *fold, const struct ef_fold_version *version, uint32_t stack)
{
    double value = version->value[0][stack];

    if (fold->strata > 1)
        value += version->value[1][stack];
    if (value >= 9.2e18)
        return INT64_MAX;
    return value <= -9.2e18 ? INT64_MIN : (int64_t)llround(value);
}

static ef_rc
fold_plan(struct ef_plan *plan, bool by_function, ef_fold_use_fn use, void *arg, struct ef_err *err)
{
    struct ef_fold fold;
    ef_rc rc = ef_plan_groups(plan, err);

    if (rc == EF_OK)
        rc = ef_fold_run(plan, by_function, &fold, err);
    if (rc != EF_OK)
        return rc;
    rc = use(arg, &fold, err);
    ef_fold_fini(&fold);
    return rc;
}

ef_rc
ef_fold_select(struct ef_query *query, const struct ef_selector *selector, bool by_function,
               ef_fold_use_fn use, void *arg, struct ef_query_head *ret_head,
               struct ef_query_arena **ret_arena, struct ef_err *err)
{
    struct ef_plan plan;
    ef_rc rc = ef_plan_open(query, selector, EF_BUCKET_NS, &plan, err);

    if (rc != EF_OK)
        return rc;
    if (plan.head.empty == EF_EMPTY_NOT)
        rc = ef_plan_totals(&plan, NULL, NULL, err);
    if (rc == EF_OK && plan.head.empty == EF_EMPTY_NOT)
        rc = fold_plan(&plan, by_function, use, arg, err);
    ef_plan_fini(&plan);
    if (rc != EF_OK) {
        ef_query_arena_free(plan.arena);
        return rc;
    }
    *ret_head = plan.head;
    *ret_arena = plan.arena;
    return EF_OK;
}
