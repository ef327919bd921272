/*
 * Answers questions about any past range: which workers and versions there are, what burned CPU,
 * how it went over time, and whole profiles for export.
 *
 * Invariants: ranges are widened to whole buckets and clipped at now; nothing is cut silently;
 * every share lies in its interval, 0 <= low <= share <= high <= 1; a function counts once per
 * stack in totals, however often it recurs. An empty but valid result is no error: `empty` says why
 * it is. A query that needs more than request_bytes_max is refused with EF_ELIMIT and the largest
 * range that fits.
 *
 * Values: `samples` are raw, as sampled. Values are weighted estimates (value × weight), those of
 * state types averaged over time and summed over instances. Shares are of weighted values; where
 * strata were sampled and their exact CPU is known, strata are weighted by their exact CPU.
 *
 * Reads the store alone. Any thread; a query blocks for as long as its reads take.
 */
#ifndef COLLECTOR_QUERY_QUERY_H
#define COLLECTOR_QUERY_QUERY_H

#include "collector/query/interval.h"
#include "proto/model/profile.h"
#include "storage/store.h"

struct ef_query_options {
    uint64_t definitions_bytes_max; /* cache of stacks and functions; 0 = 16 MiB */
    uint64_t request_bytes_max;     /* memory of one query besides its answer; 0 = 32 MiB */
    uint64_t catalogue_age_ms_max;  /* workers and series are read again after it; 0 = 1,000 */
};

struct ef_query;
/* The store is borrowed and must outlive the query. */
EF_MUST_USE ef_rc ef_query_open(struct ef_store *store, const struct ef_query_options *options,
                                struct ef_query **ret_query, struct ef_err *err);
/* No query may be under way. */
void ef_query_free(struct ef_query *query);
/* Something was written: the next query reads the catalogue again. */
void ef_query_invalidate(struct ef_query *query);
/* Memory held between queries: catalogue and definitions. */
uint64_t ef_query_bytes(struct ef_query *query);

/* Why a result is empty. The names are those of the HTTP API. */
enum ef_empty {
    EF_EMPTY_NOT,
    EF_EMPTY_NO_SUCH_WORKER,
    EF_EMPTY_NO_SUCH_VERSION,
    EF_EMPTY_NO_SUCH_TYPE,
    EF_EMPTY_BEFORE_DATA,
    EF_EMPTY_AFTER_DATA,
    EF_EMPTY_NO_SAMPLES
};
const char *ef_empty_name(enum ef_empty empty); /* "no_such_worker"; "" for EF_EMPTY_NOT */

/* "cpu", "alloc" or "heap", "inuse", "wall"; 0 when unknown. */
uint8_t ef_type_find(const char *name);
const char *ef_type_name(uint8_t profile_type);
/* "nanoseconds" or "bytes". */
const char *ef_type_unit(uint8_t profile_type);

#define EF_SELECTOR_NAMES_MAX 64 /* versions, and regions, of one selector */
#define EF_QUERY_NOTES_MAX 8

struct ef_selector {
    const char *worker;
    const char *account; /* NULL = all that have the worker */
    const char *versions[EF_SELECTOR_NAMES_MAX];
    size_t version_count; /* 0 = all */
    const char *regions[EF_SELECTOR_NAMES_MAX];
    size_t region_count; /* 0 = all */
    uint8_t profile_type;
    int64_t from_ns, to_ns; /* equal: the bucket that holds the moment */
    int64_t now_ns;
};

/* What every answer says first. */
struct ef_query_head {
    const char *worker;
    const char *const *versions; /* those with samples in the range, oldest first */
    size_t version_count;
    uint8_t profile_type;
    int64_t from_ns, to_ns; /* as widened */
    enum ef_empty empty;
    char empty_message[256];
    uint64_t samples;
    double coverage; /* part of the instances' time that was sampled, mean of buckets, 0 to 1 */
    uint64_t process_cpu_ns; /* exact, from the OS; 0 = unknown */
    const char *notes[EF_QUERY_NOTES_MAX];
    size_t note_count;
};

struct ef_top_cell {
    uint64_t samples;
    struct ef_share share;
};

struct ef_top_function {
    const char *name, *file;
    uint32_t line;
    struct ef_top_cell self, total;
};

struct ef_top {
    struct ef_query_head head;
    int64_t value; /* weighted estimate; equals the sum of an export's values */
    int64_t low, high;
    int64_t sampled_value;             /* without weights */
    struct ef_top_function *functions; /* by total, then self, then name */
    size_t function_count;
    bool cut; /* `other` holds those beyond the limit */
    struct ef_top_function other;
    struct ef_query_arena *arena; /* owns all of the above */
};

/* limit 0 = all. On success *ret is to be released with ef_top_fini. */
EF_MUST_USE ef_rc ef_query_top(struct ef_query *query, const struct ef_selector *selector,
                               size_t limit, struct ef_top *ret, struct ef_err *err);
void ef_top_fini(struct ef_top *top);

struct ef_timeline_point {
    int64_t from_ns, to_ns;
    uint64_t samples;
    int64_t value;
    double coverage;
    uint64_t process_cpu_ns; /* 0 = unknown */
};

#define EF_TIMELINE_POINTS_MAX 20000

struct ef_timeline {
    struct ef_query_head head;
    struct ef_timeline_point *points; /* one for every step of the range, also empty ones */
    size_t point_count;
    struct ef_query_arena *arena;
};

/*
 * step_ns: a multiple of the bucket, at least one; the range is widened to whole steps counted from
 * 1970, so that a point has the same bounds and value in every range that holds it.
 */
EF_MUST_USE ef_rc ef_query_timeline(struct ef_query *query, const struct ef_selector *selector,
                                    int64_t step_ns, struct ef_timeline *ret, struct ef_err *err);
void ef_timeline_fini(struct ef_timeline *timeline);

struct ef_export {
    struct ef_query_head head;
    struct ef_profile *profile; /* versions merged; NULL when empty; taken by setting it NULL */
    struct ef_query_arena *arena;
};

EF_MUST_USE ef_rc ef_query_export(struct ef_query *query, const struct ef_selector *selector,
                                  struct ef_export *ret, struct ef_err *err);
void ef_export_fini(struct ef_export *ret);

/* One worker, or one version of it (version NULL in the list of workers). Borrowed in the call. */
struct ef_query_entry {
    const char *account, *worker, *version;
    int64_t first_seen_ns, last_seen_ns; /* of data; without any, when the name was first seen */
    uint32_t version_count;
    uint32_t types; /* bit per enum ef_type */
};
typedef ef_rc (*ef_query_entry_fn)(void *arg, const struct ef_query_entry *entry);

/* By account, then worker. */
EF_MUST_USE ef_rc ef_query_workers(struct ef_query *query, int64_t now_ns, ef_query_entry_fn fn,
                                   void *arg, struct ef_err *err);
/* Newest first. account NULL = all. Nothing when there is no such worker. */
EF_MUST_USE ef_rc ef_query_versions(struct ef_query *query, const char *worker, const char *account,
                                    int64_t now_ns, ef_query_entry_fn fn, void *arg,
                                    struct ef_err *err);

#endif
