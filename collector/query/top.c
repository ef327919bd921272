/*
 * Decides how function sums become shares with intervals, how strata are weighted, and what
 * `other` holds. Runs in the thread that asks.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "collector/query/internal.h"

/* Weight of the hot stratum against the normal one. */
struct strata {
    double hot;
};

/*
 * A hot burst happens because CPU was high, so its samples must not simply be added to the
 * scheduled ones. With exact CPU of both strata: share = Σ C_h × s_h / Σ C_h, which is the pooled
 * ratio after weighting hot values by (C_hot / n_hot) / (C_normal / n_normal).
 */
static struct strata
weigh_strata(struct ef_fold *fold)
{
    const struct ef_store_totals *sums = &fold->plan->sums;
    double hot_cpu = (double)sums->hot_cpu_ns;
    double normal_cpu = (double)sums->cpu_ns - hot_cpu;

    if (sums->hot_cpu_ns > 0 && fold->strata == 1 && fold->samples > 0)
        ef_plan_note(fold->plan, "%.3f s of CPU in hot seconds were not sampled as such",
                     hot_cpu / 1e9);
    if (fold->strata == 1)
        return (struct strata){1};
    if (!(fold->value[0] > 0) || !(fold->value[1] > 0)) {
        ef_plan_note(fold->plan, "only hot seconds were sampled: shares are theirs");
        return (struct strata){1};
    }
    if (!(hot_cpu > 0) || !(normal_cpu > 0)) {
        ef_plan_note(fold->plan, "hot and normal seconds are pooled: their exact CPU is unknown");
        return (struct strata){1};
    }
    return (struct strata){hot_cpu / fold->value[1] / (normal_cpu / fold->value[0])};
}

static double
combine(const double values[EF_STRATA], struct strata strata)
{
    return values[0] + strata.hot * values[1];
}

/* One number of a function in one unit: which 0 self, 1 total. */
static double
unit_of(const struct ef_fold *fold, const struct ef_fold_function *function, uint32_t unit,
        unsigned which, struct strata strata)
{
    size_t groups = fold->plan->group_count;
    double value = function->units[(size_t)unit * 2 + which];

    if (fold->strata > 1)
        value += strata.hot * function->units[(groups + unit) * 2 + which];
    return value;
}

static void
add_unit(struct ef_ratio *ratio, double y, double n)
{
    ratio->yy += y * y;
    ratio->yn += y * n;
    ratio->nn += n * n;
    ratio->units += n > 0;
}

static double
unit_all(const struct ef_fold *fold, uint32_t unit, struct strata strata)
{
    return fold->unit_value[0][unit] + strata.hot * fold->unit_value[1][unit];
}

static struct ef_top_cell
cell_of(const struct ef_fold *fold, const struct ef_fold_function *function, unsigned which,
        struct strata strata)
{
    struct ef_ratio ratio = {0};
    uint64_t samples = which == 0 ? function->self_samples : function->total_samples;

    ratio.y = combine(which == 0 ? function->self : function->total, strata);
    ratio.n = combine(fold->value, strata);
    ratio.hits = (double)samples;
    ratio.samples = (double)fold->samples;
    for (uint32_t i = 0; i < fold->plan->group_count; i++)
        add_unit(&ratio, unit_of(fold, function, i, which, strata), unit_all(fold, i, strata));
    return (struct ef_top_cell){samples, ef_interval_share(&ratio)};
}

struct ranked {
    double total, self;
    struct ef_fold_function *function;
};

static int
rank_order(const void *a, const void *b)
{
    const struct ranked *one = a, *two = b;
    int order;

    if (one->total != two->total)
        return one->total > two->total ? -1 : 1;
    if (one->self != two->self)
        return one->self > two->self ? -1 : 1;
    order = strcmp(one->function->name, two->function->name);
    return order != 0 ? order : strcmp(one->function->file, two->function->file);
}

static ef_rc
rank(const struct ef_fold *fold, struct strata strata, struct ranked **ret_ranked,
     size_t *ret_count, struct ef_err *err)
{
    struct ranked *ranked =
        ef_query_arena_take(fold->plan->arena, (size_t)fold->function_count + 1, sizeof(*ranked));
    size_t count = 0;

    if (ranked == NULL)
        return ef_plan_out_of_memory(fold->plan, 0, err);
    for (uint32_t i = 0; i < fold->function_count; i++) {
        struct ef_fold_function *function = ef_fold_at(fold, i);
        if (function->total_samples == 0)
            continue; /* of the version, but not in this range */
        ranked[count++] = (struct ranked){combine(function->total, strata),
                                          combine(function->self, strata), function};
    }
    qsort(ranked, count, sizeof(*ranked), rank_order);
    *ret_ranked = ranked;
    *ret_count = count;
    return EF_OK;
}

/* Stacks on which any function that was cut occurs, once each. */
static ef_rc
sum_cut_stacks(const struct ef_fold *fold, double ret_value[EF_STRATA], uint64_t *ret_samples,
               struct ef_err *err)
{
    for (size_t i = 0; i < fold->plan->version_count; i++) {
        const struct ef_fold_version *version = &fold->versions[i];
        uint32_t count = version->definitions != NULL ? version->definitions->stack_count : 0;
        uint8_t *cut = ef_query_arena_take(fold->plan->arena, (size_t)count + 1, 1);

        if (cut == NULL)
            return ef_plan_out_of_memory(fold->plan, 0, err);
        for (uint32_t id = 1; id <= count; id++) {
            const struct ef_definition_stack *stack = &version->definitions->stacks[id];
            cut[id] = cut[stack->parent] != 0 ||
                      ef_fold_at(fold, version->functions[stack->function])->cut;
            if (!cut[id])
                continue;
            *ret_samples += version->samples[id];
            for (unsigned stratum = 0; stratum < fold->strata; stratum++)
                ret_value[stratum] += version->value[stratum][id];
        }
    }
    return EF_OK;
}

/*
 * What the limit cut: self adds up; total counts each stack once. The total's variation between
 * units is taken to be that of self, for it is not kept by unit.
 */
static ef_rc
set_other(const struct ef_fold *fold, const struct ranked *cut, size_t cut_count,
          struct strata strata, struct ef_top_function *ret, struct ef_err *err)
{
    struct ef_ratio self = {0}, total;
    double value[EF_STRATA] = {0}, scale;
    uint64_t samples = 0, total_samples = 0;
    ef_rc rc;

    for (size_t i = 0; i < cut_count; i++) {
        cut[i].function->cut = true;
        self.y += cut[i].self;
        samples += cut[i].function->self_samples;
    }
    for (uint32_t unit = 0; unit < fold->plan->group_count; unit++) {
        double y = 0;
        for (size_t i = 0; i < cut_count; i++)
            y += unit_of(fold, cut[i].function, unit, 0, strata);
        add_unit(&self, y, unit_all(fold, unit, strata));
    }
    self.n = combine(fold->value, strata);
    self.hits = (double)samples;
    self.samples = (double)fold->samples;
    rc = sum_cut_stacks(fold, value, &total_samples, err);
    if (rc != EF_OK)
        return rc;
    total = self;
    total.y = combine(value, strata);
    total.hits = (double)total_samples;
    scale = self.y > 0 ? total.y / self.y : 0;
    total.yy *= scale * scale;
    total.yn *= scale;
    *ret = (struct ef_top_function){.name = "other", .file = "", .line = 0};
    ret->self = (struct ef_top_cell){samples, ef_interval_share(&self)};
    ret->total = (struct ef_top_cell){total_samples, ef_interval_share(&total)};
    return EF_OK;
}

static ef_rc
fill(struct ef_fold *fold, size_t limit, struct ef_top *top, struct ef_err *err)
{
    struct strata strata = weigh_strata(fold);
    struct ranked *ranked = NULL;
    size_t count = 0;
    ef_rc rc = rank(fold, strata, &ranked, &count, err);

    if (rc != EF_OK)
        return rc;
    top->function_count = limit > 0 && count > limit ? limit : count;
    top->functions =
        ef_query_arena_take(fold->plan->arena, top->function_count + 1, sizeof(*top->functions));
    if (top->functions == NULL)
        return ef_plan_out_of_memory(fold->plan, 0, err);
    for (size_t i = 0; i < top->function_count; i++) {
        const struct ef_fold_function *function = ranked[i].function;
        top->functions[i] = (struct ef_top_function){.name = function->name,
                                                     .file = function->file,
                                                     .line = function->line,
                                                     .self = cell_of(fold, function, 0, strata),
                                                     .total = cell_of(fold, function, 1, strata)};
    }
    top->cut = top->function_count < count;
    if (!top->cut)
        return EF_OK;
    return set_other(fold, ranked + top->function_count, count - top->function_count, strata,
                     &top->other, err);
}

static int64_t
whole(double value)
{
    return value < 9.2e18 ? (int64_t)llround(value) : INT64_MAX;
}

static void
set_total(const struct ef_fold *fold, struct ef_top *top)
{
    const struct ef_plan *plan = fold->plan;
    double low, high;

    for (size_t i = 0; i < plan->version_count; i++) {
        const struct ef_fold_version *version = &fold->versions[i];
        uint32_t count = version->definitions != NULL ? version->definitions->stack_count : 0;
        for (uint32_t id = 1; id <= count; id++)
            top->value += ef_fold_value(fold, version, id);
    }
    top->sampled_value = fold->sampled_value;
    ef_interval_total(plan->group_rate, plan->group_count, (double)fold->samples,
                      plan->head.coverage, &low, &high);
    top->low = whole((double)top->value * low);
    top->high = whole((double)top->value * high);
}

struct making {
    struct ef_top top;
    size_t limit;
};

static ef_rc
use_fold(void *arg, struct ef_fold *fold, struct ef_err *err)
{
    struct making *making = arg;
    ef_rc rc = fill(fold, making->limit, &making->top, err);

    set_total(fold, &making->top);
    return rc;
}

ef_rc
ef_query_top(struct ef_query *query, const struct ef_selector *selector, size_t limit,
             struct ef_top *ret, struct ef_err *err)
{
    struct making making = {.limit = limit};
    ef_rc rc = ef_fold_select(query, selector, true, use_fold, &making, &making.top.head,
                              &making.top.arena, err);

    if (rc == EF_OK)
        *ret = making.top;
    return rc;
}

void
ef_top_fini(struct ef_top *top)
{
    ef_query_arena_free(top->arena);
    *top = (struct ef_top){0};
}
