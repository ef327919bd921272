/*
 * The decisions of the agent, pure: facts in, plan out. No clock, no input or output, no state but
 * what the caller holds. Reasons and figures: README.md and the comments at the constants.
 *
 * Words: a price is what one action costs; a pause is the time an isolate stands still; a ratio is
 * a part of one core. Any thread.
 */
#ifndef SAMPLER_AGENT_PLAN_H
#define SAMPLER_AGENT_PLAN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Price list of a runtime, before anything was measured on the target itself. */
struct ef_plan_price {
    int64_t tick_busy_ns;       /* one tick on a running isolate */
    int64_t tick_idle_ns;       /* one tick that has to wake a sleeping CPU */
    int64_t start_base_ns;      /* pause of a start on an empty heap */
    int64_t start_ns_per_mib;   /* and what each MiB of small objects adds */
    int64_t heap_fetch_base_ns; /* pause of fetching a heap profile (a full GC) */
    int64_t heap_fetch_ns_per_mib;
};
extern const struct ef_plan_price ef_plan_price_workerd, ef_plan_price_node;

/* What is given up when the budget is too small, in this order. */
enum ef_plan_level {
    EF_LEVEL_FULL,
    EF_LEVEL_NO_FAST_TICKS, /* 50 ms also where an isolate is busy */
    EF_LEVEL_NO_HEAP,
    EF_LEVEL_SLOW_TICKS,    /* 100 ms */
    EF_LEVEL_LONG_ROTATION, /* the cap, 3600 s */
    EF_LEVEL_OFF,           /* not sampled: "over budget" */
    EF_LEVEL_COUNT
};

enum ef_plan_mode {
    EF_MODE_OFF,
    EF_MODE_STEADY, /* full coverage, rotated each rotation_ns */
    EF_MODE_ONCE,   /* the pause is above the limit: started once, rotated only when it must be */
    EF_MODE_BURST   /* DevTools may be attached: bursts, fully stopped in between */
};

#define EF_PLAN_PAUSES 3 /* the last ones count; the largest decides (v8-schedule §1.5) */

struct ef_plan_pauses {
    int64_t ns[EF_PLAN_PAUSES];
    unsigned count; /* ever measured */
};
void ef_plan_add_pause(struct ef_plan_pauses *pauses, int64_t pause_ns);

struct ef_plan_facts {
    const struct ef_plan_price *price;
    bool cpu_wanted, heap_wanted;
    bool overlap;       /* rotates without a pause (Node, evaluate allowed) */
    bool heap_attached; /* heap sampling may stay on (Node); otherwise in windows (workerd) */
    bool devtools;
    bool unguarded; /* its exit may fail while a profile runs (workerd without the guard) */
    uint64_t interval_fixed_ns, rotation_fixed_ns; /* 0 = auto */
    struct ef_plan_pauses starts, fetches;
    uint64_t heap_used_bytes;
    double pause_scale; /* measured ÷ listed pauses on this host; 1 = nothing learned */
    int64_t pause_max_ns;
    double cores;             /* CPU of this isolate; negative = unknown */
    unsigned isolates;        /* in its process */
    uint64_t interval_now_ns; /* of the running profile; 0 = none. Keeps the choice from flapping */
    uint64_t over_limit_ns;   /* mode ONCE: collected this often; 0 = never by the clock */
    uint64_t heap_slot_ns, heap_window_ns, heap_fetch_ns;
    uint64_t burst_ns, burst_slot_ns;
    enum ef_plan_level level;
    uint64_t random; /* 64 random bits */
};

struct ef_plan {
    enum ef_plan_mode mode;
    uint64_t interval_ns;
    uint64_t rotation_ns; /* STEADY: period. ONCE: 0 = only by trigger. BURST: slot */
    uint64_t burst_ns;    /* BURST */
    int64_t pause_ns;     /* expected of the next start */
    bool heap;
    uint64_t heap_period_ns; /* window slot, or time between fetches */
    uint64_t heap_window_ns; /* 0 = stays on */
    int64_t heap_pause_ns;   /* expected of the next fetch */
    const char *reason;      /* why off or less than asked for; "" = nothing given up */
    bool guard_missing;      /* ticks are slow because facts.unguarded */
};

/* The next start's pause: the largest of the last three, or the list price by heap size. */
int64_t ef_plan_start_pause(const struct ef_plan_facts *facts);
int64_t ef_plan_fetch_pause(const struct ef_plan_facts *facts);
/* max(60 s, pause / 0.0005), at most 3600 s. */
uint64_t ef_plan_rotation(int64_t pause_ns);
void ef_plan_make(const struct ef_plan_facts *facts, struct ef_plan *ret_plan);
/* Price of one tick on an isolate that uses so much of a core; negative = unknown. */
int64_t ef_plan_tick_price(const struct ef_plan_price *price, double cores);
/* Predicted cost of the plan, part of one core. */
double ef_plan_cost(const struct ef_plan_facts *facts, const struct ef_plan *plan);

/*
 * Whether a profile that would run on for left_ns should be ended now, because the plan's ticks are
 * slower and save more than the pause costs: a rotation may be an hour away.
 */
bool ef_plan_ends_early(const struct ef_plan_facts *facts, const struct ef_plan *plan,
                        int64_t left_ns);

/*
 * Shares a budget: sets a level for each candidate so that the costs sum to at most the budget.
 * Goes through the levels in order, and inside a level first to where it saves most; the last level
 * (off) first to where the least CPU is seen for the price. `level` of the candidates is the
 * result; candidates keep what they have got as long as it fits (hysteresis is the caller's: call
 * rarely). O(n²) in the worst case per level, n is at most some thousand.
 */
struct ef_plan_candidate {
    double cost[EF_LEVEL_COUNT]; /* not rising with the level; OFF must be 0 */
    double worth;                /* CPU seen, cores; a floor for new ones is the caller's */
    enum ef_plan_level level;    /* result */
};
/* Returns the sum of costs at the levels chosen. */
double ef_plan_share(struct ef_plan_candidate *candidates, size_t count, double budget_ratio);

/*
 * Pause budget of one process: a token bucket of pause time. Planned pauses draw from it at the
 * rate of pause_max per interval; triggers and requests from a reserve of a tenth of that rate. A
 * pause larger than what is left may begin when the bucket is full; the debt is then paid back
 * before the next one, so the long-run rate holds whatever single pauses measure.
 */
struct ef_pause_budget {
    int64_t pause_max_ns, interval_ns;
    double planned_ns, reserve_ns;
    int64_t at_ns; /* monotonic time of the two figures above */
};
void ef_pause_init(struct ef_pause_budget *budget, int64_t pause_max_ns, int64_t interval_ns,
                   int64_t now_ns);
/* Time until a pause of this length may begin; 0 = now. */
int64_t ef_pause_wait(struct ef_pause_budget *budget, int64_t now_ns, int64_t pause_ns,
                      bool reserve);
void ef_pause_spend(struct ef_pause_budget *budget, int64_t now_ns, int64_t pause_ns, bool reserve);

/*
 * Starved: a target confined to one CPU whose sampler does not get that CPU (v8-schedule §1.4).
 * cpu_ns is the process CPU in the span the hits come from. False when fewer than 50 hits were to
 * be expected.
 */
bool ef_plan_starved(uint64_t hits, uint64_t interval_ns, uint64_t cpu_ns, double starved_ratio);

/* Time to wait after the n-th failure in a row (n from 1): 2^n × base up to max, ± 25 %. */
int64_t ef_plan_backoff(unsigned failures, int64_t base_ns, int64_t max_ns, uint64_t random);
/* A number in [0, span_ns), equally likely. */
int64_t ef_plan_phase(uint64_t span_ns, uint64_t random);

#endif
