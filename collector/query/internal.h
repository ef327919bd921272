/*
 * What the files of the query share: the arena of one query, the catalogue, the definitions of a
 * version, the plan and the fold. Not for other folders.
 */
#ifndef COLLECTOR_QUERY_INTERNAL_H
#define COLLECTOR_QUERY_INTERNAL_H

#include <pthread.h>
#include <stdatomic.h>

#include "collector/query/query.h"
#include "proto/base/map.h"
#include "proto/base/time.h"

/* Memory of one query: bump allocation, freed at once, bounded. One thread. */
struct ef_query_arena;
struct ef_query_arena *ef_query_arena_open(uint64_t bytes_max);
void ef_query_arena_free(struct ef_query_arena *arena);
/* Zeroed memory, aligned for any type; NULL when the bound is reached or memory ran out. */
void *ef_query_arena_take(struct ef_query_arena *arena, size_t count, size_t size);
char *ef_query_arena_str(struct ef_query_arena *arena, const char *text);
uint64_t ef_query_arena_left(const struct ef_query_arena *arena);

/* Workers, versions and series, as read from the store at one moment. Immutable. */
struct ef_catalogue_version {
    uint32_t id;
    const char *account, *worker, *version;
    int64_t created_ns;
    size_t series_first, series_count; /* in ef_catalogue.series */
};
struct ef_catalogue_series {
    uint32_t id;
    uint32_t version_id;
    uint8_t profile_type;
    const char *region;
};
struct ef_catalogue {
    atomic_uint refs;
    ef_mono_ns loaded;
    struct ef_catalogue_version *versions; /* ascending ids */
    size_t version_count;
    struct ef_catalogue_series *series; /* by version */
    size_t series_count;
    struct ef_buf text;
};
EF_MUST_USE ef_rc ef_query_catalogue_load(struct ef_store *store,
                                          struct ef_catalogue **ret_catalogue, struct ef_err *err);
void ef_query_catalogue_unref(struct ef_catalogue *catalogue);

/* Stacks and functions of one version, as far as they were known when loaded. Immutable. */
struct ef_definition_function {
    uint64_t hash;
    uint32_t name, file; /* offsets in text */
    uint32_t line;
};
struct ef_definition_stack {
    uint32_t parent;
    uint32_t function : 31;
    uint32_t first : 1; /* no caller has the same function: recursion counts once in totals */
    uint32_t line;
};
struct ef_definitions {
    atomic_uint refs;
    uint32_t version_id;
    struct ef_definition_function *functions; /* [1 … function_count] */
    uint32_t function_count;
    struct ef_definition_stack *stacks; /* [0 … stack_count]; 0 is the root */
    uint32_t stack_count;
    struct ef_buf text;
    uint64_t bytes;
    uint64_t used; /* for the least recently used; guarded by ef_query.lock */
};
EF_MUST_USE ef_rc ef_query_definitions_load(struct ef_store *store, uint32_t version_id,
                                            uint64_t bytes_max,
                                            struct ef_definitions **ret_definitions,
                                            struct ef_err *err);
void ef_query_definitions_unref(struct ef_definitions *definitions);

#define EF_DEFINITIONS_CACHED_MAX 256

struct ef_query {
    struct ef_store *store;
    struct ef_query_options options;
    atomic_bool invalid;
    pthread_mutex_t lock; /* guards what follows; never held during reads of the store */
    struct ef_catalogue *catalogue;
    struct ef_definitions *cached[EF_DEFINITIONS_CACHED_MAX];
    size_t cached_count;
    uint64_t cached_bytes;
    uint64_t used;
};
EF_MUST_USE ef_rc ef_query_catalogue(struct ef_query *query, struct ef_catalogue **ret_catalogue,
                                     struct ef_err *err);
/* Definitions that know at least `stack_count_min` stacks, if the store has them. */
EF_MUST_USE ef_rc ef_query_definitions(struct ef_query *query, uint32_t version_id,
                                       uint32_t stack_count_min,
                                       struct ef_definitions **ret_definitions, struct ef_err *err);

/* What the totals of a range say, and which series a fold has to read. */
struct ef_plan_series {
    const struct ef_catalogue_series *series;
    uint64_t samples;
    int64_t value;
    uint64_t snapshots, instances;
    int64_t first_ns, last_ns; /* buckets with samples in the range */
    double factor;             /* of values; not 1 for state types only */
};
struct ef_plan_version {
    const struct ef_catalogue_version *version;
    size_t series_first, series_count; /* in ef_plan.series */
    uint64_t samples;
};
struct ef_plan {
    struct ef_query *query;
    struct ef_query_arena *arena;
    struct ef_catalogue *catalogue;
    struct ef_query_head head;
    int64_t now_ns;
    int64_t first_ns, last_ns; /* buckets that have data at all, of the selected series */
    int64_t data_from_ns;      /* the range clipped to them: the arrays below */
    size_t bucket_count;
    uint32_t *bucket_samples;
    float *bucket_covered; /* ns, of all series; at most what was expected */
    float *bucket_expected;
    uint8_t *bucket_group; /* sampling unit; valid after ef_plan_groups */
    uint32_t group_count;
    double *group_rate; /* mean samples per bucket of each group */
    struct ef_plan_series *series;
    size_t series_count;
    struct ef_plan_version *versions;
    size_t version_count;
    struct ef_store_totals sums; /* of all series and buckets */
};
/* One bucket of one series, its parts merged; in ascending order inside a series. */
typedef ef_rc (*ef_plan_bucket_fn)(void *arg, size_t series_index, int64_t bucket_ns,
                                   const struct ef_store_totals *totals);
/*
 * Chooses the series and the range (widened to step_ns) and reads no totals yet. With
 * head.empty set there is nothing to read. The plan is to be released on success.
 */
EF_MUST_USE ef_rc ef_plan_open(struct ef_query *query, const struct ef_selector *selector,
                               int64_t step_ns, struct ef_plan *ret_plan, struct ef_err *err);
/* Reads the totals; fn may be NULL. Sets what the head says of the range. */
EF_MUST_USE ef_rc ef_plan_totals(struct ef_plan *plan, ef_plan_bucket_fn fn, void *arg,
                                 struct ef_err *err);
/* Divides the buckets into sampling units, and finds the factors of state types. */
EF_MUST_USE ef_rc ef_plan_groups(struct ef_plan *plan, struct ef_err *err);
/* The arena stays: it moves to the caller. */
void ef_plan_fini(struct ef_plan *plan);
void ef_plan_note(struct ef_plan *plan, const char *fmt, ...) EF_PRINTF(2, 3);
/*
 * Part of the instances' time in [from, to) that was sampled: the mean of its buckets, each at most
 * 1. Buckets without data count as 0, one that is not over by the part that has passed.
 */
double ef_plan_coverage(const struct ef_plan *plan, int64_t from_ns, int64_t to_ns);
/* Time of [from, to) that has passed. */
int64_t ef_plan_passed(const struct ef_plan *plan, int64_t from_ns, int64_t to_ns);
EF_MUST_USE ef_rc ef_plan_out_of_memory(const struct ef_plan *plan, uint64_t range_bytes,
                                        struct ef_err *err);

/* Sums over a range by stack, and by function and sampling unit. */
#define EF_STRATA 2 /* normal, hot */
struct ef_fold_function {
    const char *name, *file;
    uint32_t line;
    double self[EF_STRATA], total[EF_STRATA]; /* weighted values */
    uint64_t self_samples, total_samples;
    float *units; /* [stratum][unit][self, total]; NULL in an export */
    bool cut;
};
struct ef_fold_version {
    struct ef_definitions *definitions;
    uint32_t *functions; /* local id -> number in ef_fold.functions */
    uint64_t *samples;   /* by stack */
    double *objects;     /* by stack: samples × factor; state types only */
    double *value[EF_STRATA];
};
struct ef_fold {
    struct ef_plan *plan;
    bool by_function;
    unsigned strata;
    struct ef_fold_version *versions;
    struct ef_map by_hash;
    struct ef_fold_function **functions; /* chunks of EF_FOLD_CHUNK */
    uint32_t function_count, chunk_count_max;
    double unit_value[EF_STRATA][EF_INTERVAL_UNITS_MAX]; /* n of each unit */
    double value[EF_STRATA];
    uint64_t samples, samples_stratum[EF_STRATA];
    int64_t sampled_value;
    uint64_t interval; /* of all sections; 0 = several */
    bool has_interval;
};
#define EF_FOLD_CHUNK 128u
EF_MUST_USE ef_rc ef_fold_run(struct ef_plan *plan, bool by_function, struct ef_fold *ret_fold,
                              struct ef_err *err);
void ef_fold_fini(struct ef_fold *fold);
/*
 * Plans a selection and folds it. `use` is called with the fold when there is data; what it makes
 * may lie in the arena, which the caller gets with the head.
 */
typedef ef_rc (*ef_fold_use_fn)(void *arg, struct ef_fold *fold, struct ef_err *err);
EF_MUST_USE ef_rc ef_fold_select(struct ef_query *query, const struct ef_selector *selector,
                                 bool by_function, ef_fold_use_fn use, void *arg,
                                 struct ef_query_head *ret_head, struct ef_query_arena **ret_arena,
                                 struct ef_err *err);
static inline struct ef_fold_function *
ef_fold_at(const struct ef_fold *fold, uint32_t number)
{
    return &fold->functions[number / EF_FOLD_CHUNK][number % EF_FOLD_CHUNK];
}
/* Weighted value of a stack, whole as it is shown and exported. */
int64_t ef_fold_value(const struct ef_fold *fold, const struct ef_fold_version *version,
                      uint32_t stack);

#endif
