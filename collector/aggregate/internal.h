/*
 * What the files of this folder share: the aggregate's state and the steps between them.
 *
 * Invariants: everything in struct ef_aggregate is guarded by `lock`, except what says otherwise.
 * The lock is never held while the store is called. Functions here expect the lock to be held
 * unless their comment says "without the lock".
 */
#ifndef COLLECTOR_AGGREGATE_INTERNAL_H
#define COLLECTOR_AGGREGATE_INTERNAL_H

#include "collector/aggregate/aggregate.h"
#include "collector/aggregate/bucket.h"
#include "collector/aggregate/ids.h"
#include "collector/aggregate/span.h"
#include "proto/base/map.h"
#include "proto/base/time.h"

#include <pthread.h>

#define EF_MALLOC_OVERHEAD 16u
#define EF_TYPE_COUNT 5               /* enum ef_type, 0 unused */
#define EF_TEXT_BYTES_MAX (64u << 20) /* names of definitions between two flushes, one version */
#define EF_DIRECTIVES_MAX 64u
#define EF_SPAN_MAX_NS (INT64_C(86400) * EF_NS_PER_S) /* longest fragment: 8,641 buckets */
#define EF_CLOCK_MIN_NS                                                                            \
    (INT64_C(946684800) * EF_NS_PER_S)   /* 2000-01-01: earlier is no wall clock */
#define EF_COUNT_MAX (UINT64_C(1) << 48) /* samples of one fragment; more is no measurement */

/* ---- catalogue ---- */

struct ef_new_function {
    uint64_t hash;
    uint32_t line;
    uint32_t name_at, file_at; /* in text, NUL-terminated */
};
struct ef_new_stack {
    uint64_t hash;
    uint32_t parent, function, line;
};
/* Definitions that are not on disk yet; ids ascend by 1 from *_first. */
struct ef_fresh {
    struct ef_new_function *functions;
    struct ef_new_stack *stacks;
    uint32_t function_first, function_count, function_cap;
    uint32_t stack_first, stack_count, stack_cap;
    struct ef_buf text;
    uint32_t file_last; /* where the last file name stands: neighbours often share it */
};

struct ef_worker {
    char *account, *worker;
    uint32_t version_count;
};

struct ef_version {
    uint32_t id;
    char *account, *worker, *version; /* one piece of memory, never changed */
    int64_t created_ns;
    struct ef_ids stacks, functions;
    bool stacks_loaded, functions_loaded; /* false: to be read from the store before use */
    uint32_t limit_stack, unknown_stack;  /* reserved stacks; 0 = not given an id yet */
    struct ef_fresh fresh;                /* since the last freeze */
    bool frozen;                          /* some definitions are in the frozen batch */
    int64_t used_ns;                      /* wall clock of the last use */
    uint64_t generation;                  /* changes whenever the tables do */
};

/* A version in a region: what a source names. */
struct ef_place {
    uint64_t hash;
    struct ef_version *version;
    char *region;
    uint32_t series[EF_TYPE_COUNT]; /* ids; 0 = none yet */
};

struct ef_series {
    uint32_t version_id;
    uint8_t profile_type;
    const char *region; /* the place's */
};

struct ef_catalogue {
    struct ef_worker *workers;
    struct ef_version **versions; /* [id - 1] */
    struct ef_series *series;     /* [id - 1] */
    struct ef_place **places;
    uint32_t worker_count, worker_cap, version_count, version_cap;
    uint32_t series_count, series_cap, place_count, place_cap;
    uint32_t versions_put, series_put;             /* so many are on disk or in the frozen batch */
    struct ef_map worker_of, version_of, place_of; /* content hash -> index + 1 */
};

/* ---- delivery ---- */

struct ef_publisher_view {
    uint8_t id[16];
    char name[EF_STORE_NAME_MAX];
    int64_t seen_ns, synced_ns; /* wall clock; 0 = not since we started */
    uint64_t spool_bytes, spool_bytes_max;
    uint64_t epoch;   /* newest */
    uint8_t *targets; /* packed SyncRequest that holds nothing else; NULL = none */
    size_t targets_len;
    uint32_t epoch_count;
};

struct ef_epoch {
    struct ef_publisher_view *publisher;
    uint64_t epoch;
    uint64_t contiguous, durable; /* applied up to here; on disk up to here */
    uint64_t *above;              /* ascending */
    uint32_t above_count, above_cap;
    uint32_t parked_count;
    bool dirty, frozen;
    uint64_t fragments_stored, samples_stored, fragments_lost, samples_lost;
    uint64_t batches_duplicate, samples_duplicate, samples_late;
    uint64_t fragments_published, samples_published; /* as the publisher said */
    int64_t updated_ns;
    uint64_t last_reported, last_settled; /* sync.c: newest sequences of this and earlier syncs */
    int64_t reported_ns;
};

struct ef_missing {
    uint32_t version_id;
    uint64_t hash;
};
struct ef_parked {
    struct ef_parked *next;
    struct ef_epoch *epoch;
    uint64_t sequence;
    int64_t since_ns;
    uint8_t *packed; /* the Batch, packed again: independent of keys and compression */
    size_t packed_len, bytes;
    struct ef_missing *missing;         /* up to EF_PARKED_MISSING_MAX of its unknown stacks */
    uint32_t missing_count, missing_at; /* those before missing_at have come */
    int64_t again_ns;                   /* not tried before */
    bool taken;                         /* being tried again without the lock */
};
#define EF_PARKED_MISSING_MAX 4096u

struct ef_delivery {
    struct ef_epoch **epochs;
    struct ef_publisher_view **publishers;
    uint32_t epoch_count, epoch_cap, publisher_count, publisher_cap;
    struct ef_map epoch_of, publisher_of; /* hash -> pointer */
    bool forgotten; /* some acks are in the store only: unknown epochs are looked up there */
    struct ef_parked *parked; /* oldest first */
    struct ef_parked **parked_tail;
    uint32_t parked_count;
    uint64_t parked_bytes;
    bool parked_ready; /* a parked batch may have all it needs */
};

struct ef_collect {
    char id[40], account[EF_STORE_NAME_MAX + 1], worker[EF_STORE_NAME_MAX + 1],
        version[EF_STORE_NAME_MAX + 1];
    int64_t created_ns;
};

/* ---- one flush ---- */

struct ef_frozen_definitions {
    struct ef_version *version;
    struct ef_fresh fresh;
};
struct ef_frozen_ack {
    struct ef_epoch *epoch; /* for afterwards */
    struct ef_epoch copy;   /* as it was at the freeze, with an `above` of its own */
    uint8_t publisher[16];
    char name[EF_STORE_NAME_MAX];
};
struct ef_frozen {
    struct ef_bucket *buckets;
    struct ef_frozen_definitions *definitions;
    size_t definitions_count;
    struct ef_version **versions;
    size_t version_count;
    struct ef_series *series;
    uint32_t series_first, series_count;
    struct ef_frozen_ack *acks;
    size_t ack_count;
    uint32_t part;
    uint64_t bytes;
    struct ef_store_batch *batch; /* NULL until encoded; then it holds all of the above */
};

/* ---- one batch ---- */

struct ef_source_ref {
    struct ef_place *place; /* NULL: beyond the limits */
    uint64_t instance;
};
struct ef_part {
    struct ef_bucket *bucket;
    uint32_t section;
    uint32_t reserved; /* bookings */
    uint64_t count;
    int64_t value;
};
struct ef_plan {
    const Everflame__V1__Fragment *fragment;
    const uint32_t *ids;
    struct ef_span span;
    uint64_t samples;
    uint64_t instance;
    uint64_t magnitude, magnitude_weighted; /* as in struct ef_bucket */
    uint32_t part_first;                    /* span.bucket_count parts */
    bool wide;                              /* values are not count × interval */
    bool late, corrected, refused;
};
struct ef_usage_plan {
    struct ef_span span;
    uint32_t series_id;
    bool good; /* false: refused */
};
struct ef_scratch {
    struct ef_source_ref *sources;
    uint32_t *ids;
    struct ef_plan *plans;
    struct ef_part *parts;
    struct ef_usage_plan *usages;
    size_t source_cap, id_cap, plan_cap, part_cap, usage_cap, part_count;
    struct ef_merge merge;
};

struct ef_aggregate {
    struct ef_store *store;
    struct ef_aggregate_options options;
    pthread_mutex_t lock;
    pthread_mutex_t flush_lock; /* one flush at a time; taken before `lock`; guards `flush_merge` */
    struct ef_merge flush_merge;
    struct ef_catalogue catalogue;
    struct ef_delivery delivery;
    struct ef_map open_of; /* series << 32 | bucket number -> struct ef_bucket * */
    struct ef_bucket *open;
    uint32_t open_count;
    struct ef_frozen *frozen; /* not committed yet; touched by the flush only, once it is there */
    bool flush_failed;
    uint32_t flush_count; /* "flush" in the store's meta */
    struct ef_scratch scratch;
    struct ef_collect collects[EF_DIRECTIVES_MAX];
    uint32_t collect_count;
    uint64_t collect_serial;
    uint64_t definitions_refused;
    int64_t evicted_ns; /* wall clock of the last search for tables to forget that found too few */
    /* Memory by use, bytes. */
    uint64_t catalogue_bytes, dictionary_bytes, fresh_bytes, open_bytes, frozen_bytes,
        delivery_bytes;
};

/* True when new data must be refused until a flush has made room. */
bool ef_agg_full(const struct ef_aggregate *aggregate, uint64_t more_bytes);
uint64_t ef_agg_bytes(const struct ef_aggregate *aggregate);
/* Grows an array of items to at least `count`; false = no memory. */
bool ef_agg_grow(void **array, size_t *cap, size_t count, size_t item_bytes);
bool ef_agg_grow_u32(void **array, uint32_t *cap, uint32_t count, size_t item_bytes);

/* catalogue.c */
ef_rc ef_catalogue_load(struct ef_aggregate *aggregate, struct ef_err *err);
void ef_catalogue_fini(struct ef_catalogue *catalogue);
/*
 * The place of a source, made when absent. EF_ELIMIT (counted by the caller), EF_ENOMEM.
 */
ef_rc ef_catalogue_place(struct ef_aggregate *aggregate, const char *account, const char *worker,
                         const char *version, const char *region, int64_t now_ns,
                         struct ef_place **ret_place, struct ef_err *err);
/* Series id, made when absent; 0 = beyond the limit or no memory. */
uint32_t ef_catalogue_series(struct ef_aggregate *aggregate, struct ef_place *place, uint8_t type);

/* dictionary.c */
enum ef_dictionary_part { EF_DICTIONARY_STACKS = 1, EF_DICTIONARY_FUNCTIONS = 2 };
/* Reads tables of the version from the store. Without the lock. */
ef_rc ef_dictionary_load(struct ef_aggregate *aggregate, struct ef_version *version, unsigned parts,
                         struct ef_err *err);
static inline bool
ef_dictionary_loaded(const struct ef_version *version, unsigned parts)
{
    return ((parts & EF_DICTIONARY_STACKS) == 0 || version->stacks_loaded) &&
           ((parts & EF_DICTIONARY_FUNCTIONS) == 0 || version->functions_loaded);
}
/* Forgets tables that are on disk, least recently used first, until the budget is kept. */
void ef_dictionary_evict(struct ef_aggregate *aggregate, int64_t idle_ns, int64_t now_ns);
bool ef_dictionary_over(const struct ef_aggregate *aggregate);
/* Ids of new definitions; 0 = no memory. Names are copied. Both tables are loaded. */
uint32_t ef_dictionary_add_function(struct ef_aggregate *aggregate, struct ef_version *version,
                                    uint64_t hash, const char *name, const char *file,
                                    uint32_t line);
uint32_t ef_dictionary_add_stack(struct ef_aggregate *aggregate, struct ef_version *version,
                                 uint64_t hash, uint32_t parent, uint32_t function, uint32_t line);
/* Whether another definition may be added to each of these tables. */
bool ef_dictionary_room(struct ef_aggregate *aggregate, struct ef_version *version, unsigned parts,
                        int64_t now_ns);
/* Id of a reserved stack (EF_STACK_LIMIT_NAME, EF_STACK_UNKNOWN_NAME); both tables are loaded
 * unless it is known. 0 = no memory. */
uint32_t ef_dictionary_reserved(struct ef_aggregate *aggregate, struct ef_version *version,
                                const char *name);
void ef_fresh_fini(struct ef_fresh *fresh);
size_t ef_fresh_bytes(const struct ef_fresh *fresh);
void ef_version_free(struct ef_version *version);

/* definitions.c */
/* Takes what a batch defines. EF_EBUSY / EF_ENOMEM: what was taken so far stays, which is harmless.
 */
ef_rc ef_definitions_accept(struct ef_aggregate *aggregate, const Everflame__V1__Batch *batch,
                            int64_t now_ns, bool *ret_added, struct ef_err *err);

/* flush.c */
void ef_frozen_free(struct ef_frozen *frozen);

/* open.c */
/* The open bucket, made when absent; NULL = no memory. */
struct ef_bucket *ef_open_find(struct ef_aggregate *aggregate, uint32_t series_id,
                               int64_t bucket_ns);
void ef_open_account(struct ef_aggregate *aggregate, struct ef_bucket *bucket, size_t bytes_before);
void ef_bucket_list_free(struct ef_bucket *bucket);

/* plan.c */
/*
 * Finds place in time, buckets and room for all fragments; refuses those that cannot be kept.
 * Failure (EF_ENOMEM, EF_EBUSY) leaves nothing reserved.
 */
ef_rc ef_plan_batch(struct ef_aggregate *aggregate, const Everflame__V1__Batch *batch,
                    int64_t now_ns, size_t *ret_refused, struct ef_err *err);
void ef_plan_undo(struct ef_aggregate *aggregate, size_t plan_count);
/* Where a span from outside is placed. False: older than the retention, or too long. */
bool ef_plan_span(const struct ef_aggregate *aggregate, int64_t start_ns, uint64_t span_ns,
                  bool at_end, int64_t now_ns, struct ef_span *ret_span, bool *ret_corrected);
/* Splits one stack of a planned fragment; *tick runs over the fragment's tick column. */
void ef_plan_split(const struct ef_plan *plan, size_t stack, size_t *tick, ef_span_part_fn fn,
                   void *arg);
/* Entries that splitting these counts makes, at most. */
uint64_t ef_plan_entries(const uint64_t *counts, size_t count, uint32_t bucket_count);

/* book.c */
/* Books what was planned; cannot fail. */
void ef_book_batch(struct ef_aggregate *aggregate, const Everflame__V1__Batch *batch,
                   struct ef_epoch *epoch);

/* apply.c */
/* Tries parked batches again that have what they need or waited long enough. Without the lock. */
void ef_apply_parked(struct ef_aggregate *aggregate, int64_t now_ns);
/* Applies a batch that belongs to no publisher, whole (EF_ELIMIT: nothing was). Unknown stacks are
 * booked as such. Without the lock. */
ef_rc ef_apply_unnumbered(struct ef_aggregate *aggregate, const Everflame__V1__Batch *batch,
                          int64_t now_ns, struct ef_err *err);

/* delivery.c */
ef_rc ef_delivery_load(struct ef_aggregate *aggregate, struct ef_err *err);
void ef_delivery_fini(struct ef_delivery *delivery);
struct ef_epoch *ef_delivery_find(const struct ef_aggregate *aggregate, const uint8_t publisher[16],
                                  uint64_t epoch);
/*
 * Finds or makes the epoch. EF_ENOTFOUND: look it up in the store first (ef_delivery_recall,
 * without the lock) and call again with `recalled`. EF_EBUSY: too many. EF_ENOMEM.
 */
ef_rc ef_delivery_epoch(struct ef_aggregate *aggregate, const uint8_t publisher[16], uint64_t epoch,
                        bool recalled, int64_t now_ns, struct ef_epoch **ret_epoch,
                        struct ef_err *err);
ef_rc ef_delivery_recall(struct ef_aggregate *aggregate, const uint8_t publisher[16],
                         uint64_t epoch, int64_t now_ns, struct ef_err *err);
struct ef_publisher_view *ef_delivery_publisher(struct ef_aggregate *aggregate,
                                                const uint8_t publisher[16], int64_t now_ns);
bool ef_epoch_has(const struct ef_epoch *epoch, uint64_t sequence);
/* Whether the sequence can be marked; makes room for it. */
bool ef_epoch_can_mark(struct ef_aggregate *aggregate, struct ef_epoch *epoch, uint64_t sequence);
void ef_epoch_mark(struct ef_epoch *epoch, uint64_t sequence);
/* All up to here are applied or gone for ever. */
void ef_epoch_advance(struct ef_epoch *epoch, uint64_t contiguous);
bool ef_delivery_is_parked(const struct ef_aggregate *aggregate, const struct ef_epoch *epoch,
                           uint64_t sequence);

#endif
