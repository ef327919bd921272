/*
 * Decides how often, how fast and whether at all a target is sampled, and how the budget is shared.
 * Must not know of clocks, sockets, threads or names. Any thread.
 */
#include "sampler/agent/plan.h"

#include <string.h>

#include "proto/base/err.h"
#include "proto/base/time.h"

#define MIB 1048576.0
/* v8-schedule §1.5: pauses stay under 0.05 % of the time. */
#define PAUSE_RATIO 0.0005
#define ROTATION_MIN_NS (60 * EF_NS_PER_S)
#define ROTATION_MAX_NS (3600 * EF_NS_PER_S)
/* Rotation without a pause: 10 to 60 s; 30 s keeps fragments few and the data young. Chosen. */
#define OVERLAP_ROTATION_NS (30 * EF_NS_PER_S)
#define STARVED_HITS_MIN 50
/* From this load on a tick finds a CPU that is awake. The busy price was measured at 0.3 core and
 * more, the idle one without any request; the line between is assumed. */
#define BUSY_CORES 0.2

/*
 * Ticks: v8-schedule §1.3 (busy 64 and 28 us; idle 90 to 300 us, 1.7 ms/s at 100 ms = 170 us).
 * Pauses by heap: two machine states gave 1.3 and 4.2 ms per MiB for starts in workerd, 0.7 and 1.7
 * in Node; the geometric means stand here, and every host corrects them by what it measures
 * (pause_scale).
 */
const struct ef_plan_price ef_plan_price_workerd = {
    .tick_busy_ns = 64000,
    .tick_idle_ns = 170000,
    .start_base_ns = 10 * EF_NS_PER_MS,
    .start_ns_per_mib = 2300000,
    .heap_fetch_base_ns = 5 * EF_NS_PER_MS,
    .heap_fetch_ns_per_mib = 1500000,
};
const struct ef_plan_price ef_plan_price_node = {
    .tick_busy_ns = 28000,
    .tick_idle_ns = 170000,
    .start_base_ns = 15 * EF_NS_PER_MS,
    .start_ns_per_mib = 1100000,
    .heap_fetch_base_ns = 5 * EF_NS_PER_MS,
    .heap_fetch_ns_per_mib = 1300000,
};

/*
 * Never round numbers: a periodic load and a periodic sampler beat against each other
 * (v8-schedule §1.4). Few values, because the store keeps one section per interval. Primes in units
 * of 0.1 ms, so that two of them have no short common period.
 */
#define INTERVAL_CHOICES 4
static const uint64_t interval_fast[INTERVAL_CHOICES] = {18100000, 19300000, 21100000, 22300000};
static const uint64_t interval_normal[INTERVAL_CHOICES] = {46700000, 49900000, 52100000, 53900000};
static const uint64_t interval_slow[INTERVAL_CHOICES] = {94700000, 99700000, 103300000, 106900000};
/* sampler/v8/inside/README.md: without the guard a stop fails in 7 ms / interval of the cases, so
 * in 1.4 % of them at 500 ms. */
static const uint64_t interval_unguarded[INTERVAL_CHOICES] = {487000000, 499000000, 509000000,
                                                              521000000};
static const uint64_t interval_burst[INTERVAL_CHOICES] = {8900000, 9700000, 10300000, 10700000};

void
ef_plan_add_pause(struct ef_plan_pauses *pauses, int64_t pause_ns)
{
    pauses->ns[pauses->count % EF_PLAN_PAUSES] = pause_ns;
    pauses->count++;
}

static int64_t
largest(const struct ef_plan_pauses *pauses)
{
    unsigned known = pauses->count < EF_PLAN_PAUSES ? pauses->count : EF_PLAN_PAUSES;
    int64_t max = 0;

    for (unsigned i = 0; i < known; i++) {
        if (pauses->ns[i] > max)
            max = pauses->ns[i];
    }
    return max;
}

static int64_t
list_price(int64_t base_ns, int64_t ns_per_mib, const struct ef_plan_facts *facts)
{
    double pause_ns = (double)base_ns + (double)ns_per_mib * (double)facts->heap_used_bytes / MIB;

    pause_ns *= facts->pause_scale > 0 ? facts->pause_scale : 1;
    return pause_ns < 1e15 ? (int64_t)pause_ns : (int64_t)1e15;
}

int64_t
ef_plan_start_pause(const struct ef_plan_facts *facts)
{
    if (facts->starts.count > 0)
        return largest(&facts->starts);
    return list_price(facts->price->start_base_ns, facts->price->start_ns_per_mib, facts);
}

int64_t
ef_plan_fetch_pause(const struct ef_plan_facts *facts)
{
    if (facts->fetches.count > 0)
        return largest(&facts->fetches);
    return list_price(facts->price->heap_fetch_base_ns, facts->price->heap_fetch_ns_per_mib, facts);
}

uint64_t
ef_plan_rotation(int64_t pause_ns)
{
    double period_ns = (double)pause_ns / PAUSE_RATIO;

    if (period_ns <= (double)ROTATION_MIN_NS)
        return (uint64_t)ROTATION_MIN_NS;
    return period_ns >= (double)ROTATION_MAX_NS ? (uint64_t)ROTATION_MAX_NS : (uint64_t)period_ns;
}

/* The class of interval that runs now, so that a load at a threshold does not flap. */
static const uint64_t *
class_of(uint64_t interval_ns)
{
    static const uint64_t *const classes[] = {interval_fast, interval_normal, interval_slow};

    for (size_t c = 0; c < EF_COUNT_OF(classes); c++) {
        for (size_t i = 0; i < INTERVAL_CHOICES; i++) {
            if (classes[c][i] == interval_ns)
                return classes[c];
        }
    }
    return NULL;
}

/* v8-schedule §1.5 rule 5: 20 ms above 10 % of a core, 100 ms below 2 % or above 10 isolates. */
static uint64_t
choose_interval(const struct ef_plan_facts *facts)
{
    const uint64_t *now = class_of(facts->interval_now_ns);
    double fast_above = now == interval_fast ? 0.08 : 0.10;
    double slow_below = now == interval_slow ? 0.03 : 0.02;
    const uint64_t *choices = interval_normal;

    if (facts->devtools)
        choices = interval_burst; /* 10 s of 600 s: 1.2 % of stops even without the guard */
    else if (facts->unguarded)
        choices = interval_unguarded;
    else if (facts->level >= EF_LEVEL_SLOW_TICKS || facts->isolates > 10 ||
             (facts->cores >= 0 && facts->cores < slow_below))
        choices = interval_slow;
    else if (facts->cores > fast_above && facts->level < EF_LEVEL_NO_FAST_TICKS)
        choices = interval_fast;
    if (facts->interval_fixed_ns > 0 && facts->level < EF_LEVEL_SLOW_TICKS)
        return facts->interval_fixed_ns;
    if (facts->interval_fixed_ns > choices[0])
        return facts->interval_fixed_ns; /* already slower than what the budget asks for */
    return choices[facts->random % INTERVAL_CHOICES];
}

static void
plan_cpu(const struct ef_plan_facts *facts, struct ef_plan *plan)
{
    uint64_t by_pause = ef_plan_rotation(plan->pause_ns);

    plan->interval_ns = choose_interval(facts);
    if (facts->devtools) {
        plan->mode = EF_MODE_BURST;
        plan->burst_ns = facts->burst_ns;
        plan->rotation_ns = facts->burst_slot_ns > by_pause ? facts->burst_slot_ns : by_pause;
        return;
    }
    plan->mode = EF_MODE_STEADY;
    plan->guard_missing = facts->unguarded && facts->interval_fixed_ns == 0;
    if (facts->overlap)
        plan->rotation_ns = OVERLAP_ROTATION_NS;
    else
        plan->rotation_ns = by_pause;
    if (facts->rotation_fixed_ns > 0)
        plan->rotation_ns = facts->rotation_fixed_ns;
    if (facts->level >= EF_LEVEL_LONG_ROTATION)
        plan->rotation_ns = (uint64_t)ROTATION_MAX_NS;
}

static void
plan_heap(const struct ef_plan_facts *facts, struct ef_plan *plan)
{
    uint64_t by_pause;

    plan->heap_pause_ns = ef_plan_fetch_pause(facts);
    if (!facts->heap_wanted || facts->level >= EF_LEVEL_NO_HEAP || plan->mode == EF_MODE_BURST)
        return;
    if (plan->heap_pause_ns > facts->pause_max_ns) {
        plan->reason = "heap off: a fetch would pause longer than allowed";
        return;
    }
    by_pause = ef_plan_rotation(plan->heap_pause_ns);
    plan->heap = true;
    if (facts->heap_attached) {
        plan->heap_period_ns = facts->heap_fetch_ns > by_pause ? facts->heap_fetch_ns : by_pause;
    } else {
        plan->heap_period_ns = facts->heap_slot_ns > by_pause ? facts->heap_slot_ns : by_pause;
        plan->heap_window_ns = facts->heap_window_ns < plan->heap_period_ns ? facts->heap_window_ns
                                                                            : plan->heap_period_ns;
    }
}

void
ef_plan_make(const struct ef_plan_facts *facts, struct ef_plan *ret_plan)
{
    struct ef_plan plan = {.mode = EF_MODE_OFF, .reason = ""};

    plan.pause_ns = ef_plan_start_pause(facts);
    if (facts->level >= EF_LEVEL_OFF) {
        plan.reason = "sampling it would cost more than the budget of this host has left";
        *ret_plan = plan;
        return;
    }
    if (facts->cpu_wanted)
        plan_cpu(facts, &plan);
    /* A start above the limit that nobody has paid yet is not begun at all. */
    if (plan.mode != EF_MODE_OFF && plan.pause_ns > facts->pause_max_ns) {
        if (facts->starts.count == 0 || facts->devtools) {
            plan.mode = EF_MODE_OFF;
            plan.guard_missing = false;
            plan.reason = "a start would pause it longer than allowed";
        } else if (!facts->overlap) {
            plan.mode = EF_MODE_ONCE;
            plan.rotation_ns = facts->over_limit_ns;
            plan.reason = "its pause is above the limit: collected on triggers, requests, hourly";
        }
    }
    plan_heap(facts, &plan);
    if (facts->level > EF_LEVEL_FULL && plan.reason[0] == '\0')
        plan.reason = "reduced to keep the budget of this host";
    *ret_plan = plan;
}

int64_t
ef_plan_tick_price(const struct ef_plan_price *price, double cores)
{
    double busy = cores < 0 || cores > BUSY_CORES ? 1 : cores / BUSY_CORES;

    return (int64_t)(busy * (double)price->tick_busy_ns + (1 - busy) * (double)price->tick_idle_ns);
}

static double
tick_cost(const struct ef_plan_facts *facts, const struct ef_plan *plan)
{
    double cost =
        (double)ef_plan_tick_price(facts->price, facts->cores) / (double)plan->interval_ns;

    /* Ticks are part of the process's own CPU: where that was measured, they cannot cost more. */
    return facts->cores >= 0 && facts->interval_now_ns > 0 && facts->cores < cost ? facts->cores
                                                                                  : cost;
}

double
ef_plan_cost(const struct ef_plan_facts *facts, const struct ef_plan *plan)
{
    double cost = 0;

    switch (plan->mode) {
    case EF_MODE_STEADY:
        cost = tick_cost(facts, plan);
        if (!facts->overlap)
            cost += (double)plan->pause_ns / (double)plan->rotation_ns;
        break;
    case EF_MODE_ONCE:
        cost = tick_cost(facts, plan);
        if (plan->rotation_ns > 0)
            cost += (double)plan->pause_ns / (double)plan->rotation_ns;
        break;
    case EF_MODE_BURST:
        cost = (tick_cost(facts, plan) * (double)plan->burst_ns + (double)plan->pause_ns) /
               (double)plan->rotation_ns;
        break;
    case EF_MODE_OFF:
        break;
    }
    if (plan->heap)
        cost += (double)plan->heap_pause_ns / (double)plan->heap_period_ns;
    return cost;
}

bool
ef_plan_ends_early(const struct ef_plan_facts *facts, const struct ef_plan *plan, int64_t left_ns)
{
    double price = (double)ef_plan_tick_price(facts->price, facts->cores), saving;

    if (plan->mode != EF_MODE_STEADY || facts->interval_now_ns == 0 ||
        plan->interval_ns / 5 * 4 <= facts->interval_now_ns)
        return false; /* the same class of ticks, or faster ones */
    saving = price / (double)facts->interval_now_ns - price / (double)plan->interval_ns;
    return saving * (double)left_ns > (facts->overlap ? 0 : (double)plan->pause_ns);
}

/* Which candidate to take down to `level` next; SIZE_MAX = none left above it. */
static size_t
next_victim(const struct ef_plan_candidate *candidates, size_t count, enum ef_plan_level level)
{
    size_t best = SIZE_MAX;
    double best_rank = 0;

    for (size_t i = 0; i < count; i++) {
        double saving, rank;
        if (candidates[i].level >= level)
            continue;
        saving = candidates[i].cost[candidates[i].level] - candidates[i].cost[level];
        rank = level == EF_LEVEL_OFF ? saving / (candidates[i].worth + 1e-6) : saving;
        if (best == SIZE_MAX || rank > best_rank) {
            best = i;
            best_rank = rank;
        }
    }
    return best;
}

double
ef_plan_share(struct ef_plan_candidate *candidates, size_t count, double budget_ratio)
{
    double sum = 0;

    for (size_t i = 0; i < count; i++) {
        candidates[i].level = EF_LEVEL_FULL;
        sum += candidates[i].cost[EF_LEVEL_FULL];
    }
    for (int level = EF_LEVEL_FULL + 1; level < EF_LEVEL_COUNT && sum > budget_ratio; level++) {
        size_t victim;
        while (sum > budget_ratio &&
               (victim = next_victim(candidates, count, (enum ef_plan_level)level)) != SIZE_MAX) {
            candidates[victim].level = (enum ef_plan_level)level;
            sum = 0; /* Summed anew: differences of many small numbers would drift. */
            for (size_t i = 0; i < count; i++)
                sum += candidates[i].cost[candidates[i].level];
        }
    }
    return sum;
}

void
ef_pause_init(struct ef_pause_budget *budget, int64_t pause_max_ns, int64_t interval_ns,
              int64_t now_ns)
{
    *budget = (struct ef_pause_budget){pause_max_ns, interval_ns, (double)pause_max_ns,
                                       (double)pause_max_ns, now_ns};
}

static void
refill(struct ef_pause_budget *budget, int64_t now_ns)
{
    double rate = (double)budget->pause_max_ns / (double)budget->interval_ns;
    double span_ns = now_ns > budget->at_ns ? (double)(now_ns - budget->at_ns) : 0;

    budget->planned_ns += rate * span_ns;
    budget->reserve_ns += rate * span_ns / 10;
    if (budget->planned_ns > (double)budget->pause_max_ns)
        budget->planned_ns = (double)budget->pause_max_ns;
    if (budget->reserve_ns > (double)budget->pause_max_ns)
        budget->reserve_ns = (double)budget->pause_max_ns;
    budget->at_ns = now_ns;
}

int64_t
ef_pause_wait(struct ef_pause_budget *budget, int64_t now_ns, int64_t pause_ns, bool reserve)
{
    double rate = (double)budget->pause_max_ns / (double)budget->interval_ns / (reserve ? 10 : 1);
    double need, have;

    refill(budget, now_ns);
    need = (double)(pause_ns < budget->pause_max_ns ? pause_ns : budget->pause_max_ns);
    have = reserve ? budget->reserve_ns : budget->planned_ns;
    if (have >= need)
        return 0;
    return (int64_t)((need - have) / rate) + 1;
}

void
ef_pause_spend(struct ef_pause_budget *budget, int64_t now_ns, int64_t pause_ns, bool reserve)
{
    refill(budget, now_ns);
    if (reserve)
        budget->reserve_ns -= (double)pause_ns;
    else
        budget->planned_ns -= (double)pause_ns;
}

bool
ef_plan_starved(uint64_t hits, uint64_t interval_ns, uint64_t cpu_ns, double starved_ratio)
{
    if (interval_ns == 0 || cpu_ns / interval_ns < STARVED_HITS_MIN)
        return false;
    return (double)hits * (double)interval_ns < starved_ratio * (double)cpu_ns;
}

int64_t
ef_plan_phase(uint64_t span_ns, uint64_t random)
{
    return (int64_t)((double)span_ns * ((double)(random >> 11) / 9007199254740992.0));
}

int64_t
ef_plan_backoff(unsigned failures, int64_t base_ns, int64_t max_ns, uint64_t random)
{
    int64_t wait_ns = base_ns;

    for (unsigned i = 1; i < failures && wait_ns < max_ns; i++)
        wait_ns *= 2;
    if (wait_ns > max_ns)
        wait_ns = max_ns;
    return wait_ns - wait_ns / 4 + ef_plan_phase((uint64_t)(wait_ns / 2), random);
}
