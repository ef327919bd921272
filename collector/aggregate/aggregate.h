/*
 * Buckets in memory, by series, and their way to the store; the delivery state of publishers.
 *
 * Invariants: a batch is applied whole or not at all, once (publisher, epoch, sequence). What is
 * acknowledged is on disk: acks are written in the same store batch as the data they cover, and
 * only then reported. Totals are conserved: what cannot be kept under its own stack is booked on a
 * named one, "(limit reached)" or "(unknown stack)", and counted. Memory stays under
 * memory_bytes_max: when full, new batches are refused with EF_EBUSY (not acknowledged, so
 * publishers send them again).
 *
 * Threads: all functions from any thread. apply takes microseconds and does not wait for the disk;
 * flush does.
 */
#ifndef COLLECTOR_AGGREGATE_AGGREGATE_H
#define COLLECTOR_AGGREGATE_AGGREGATE_H

#include "proto/base/buf.h"
#include "proto/base/err.h"
#include "proto/model/profile.h"
#include "storage/store.h"

#include "proto/everflame/v1/wire.pb-c.h"

struct ef_aggregate_options {
    uint64_t
        memory_bytes_max; /* id maps, open buckets, parked batches, delivery state; 0 = 48 MiB */
    uint32_t stacks_per_version_max;  /* 0 = 65,536 */
    uint32_t versions_per_worker_max; /* 0 = 1,024 */
    uint32_t series_max;              /* all accounts; 0 = 100,000 */
    uint32_t workers_max;             /* 0 = 10,000 */
    uint32_t publishers_max;          /* epochs with delivery state in memory; 0 = 10,000 */
    uint64_t parked_bytes_max;        /* batches that wait for definitions; 0 = 8 MiB */
    uint64_t
        parked_wait_ms; /* then their unknown stacks are booked on "(unknown stack)"; 0 = 60,000 */
    uint64_t clock_error_ms_max; /* a fragment that ends later than this in the future is placed at
                                    the receive time; 0 = 30,000 */
    uint64_t late_ms;      /* later than this counts as late; stored all the same; 0 = 3,600,000 */
    uint64_t retention_ms; /* older than this is refused as out of range and counted; 0 = 3 days
                              (life of the 10 s tier) */
};

struct ef_aggregate;
/* Reads versions, series and acks from the store (borrowed, must outlive the aggregate). */
EF_MUST_USE ef_rc ef_aggregate_open(struct ef_store *store,
                                    const struct ef_aggregate_options *options,
                                    struct ef_aggregate **ret_aggregate, struct ef_err *err);
/* What is not flushed is dropped (it was never acknowledged). */
void ef_aggregate_free(struct ef_aggregate *aggregate);

/*
 * Applies a decoded, validated batch. Borrows it. EF_OK: applied; EF_EEXIST: applied before,
 * counted as duplicate; EF_ENOTFOUND: definitions are missing: parked (a copy of the batch)
 * until they come or parked_wait_ms is over; EF_EBUSY: memory is full, or too far
 * above the contiguous sequence (EF_ACK_ABOVE_MAX); EF_ELIMIT: names or series beyond the limits:
 * the batch counts as applied (it would be refused for ever), what could not be kept is counted as
 * refused and, in the publisher's samples, as lost. EF_EINVAL: no such batch can be; EF_EIO and
 * EF_ENOMEM: not applied, it will come again.
 */
EF_MUST_USE ef_rc ef_aggregate_apply(struct ef_aggregate *aggregate, const uint8_t publisher[16],
                                     uint64_t epoch, uint64_t sequence,
                                     const Everflame__V1__Batch *batch, int64_t now_ns,
                                     struct ef_err *err);

/*
 * Takes a sync request's view of an epoch into account (lost sequences count as applied) and fills
 * the reply; decides what is missing. The reply's memory belongs to `arena` below. now_ns: wall
 * clock.
 */
struct ef_sync_arena; /* memory of one reply, freed at once */
struct ef_sync_arena *ef_sync_arena_open(void);
void ef_sync_arena_free(struct ef_sync_arena *arena);
EF_MUST_USE ef_rc ef_aggregate_sync(struct ef_aggregate *aggregate, const uint8_t publisher[16],
                                    const Everflame__V1__SyncRequest *request, int64_t now_ns,
                                    struct ef_sync_arena *arena,
                                    Everflame__V1__SyncReply *ret_reply, struct ef_err *err);

/* Asks agents to end the running profile of these instances now; delivered with the next syncs. ""
 * = any. */
EF_MUST_USE ef_rc ef_aggregate_request_collect(struct ef_aggregate *aggregate, const char *account,
                                               const char *worker, const char *version,
                                               int64_t now_ns, struct ef_err *err);

/*
 * Who would hear such a request ("" = any). Not every publisher names targets: with `target` false
 * and `publisher` true somebody may still hear it.
 */
struct ef_reach {
    bool version;   /* a version of this name has sent or was imported */
    bool target;    /* an agent named such a target within the last minute */
    bool publisher; /* any publisher is connected */
};
void ef_aggregate_reach(struct ef_aggregate *aggregate, const char *account, const char *worker,
                        const char *version, int64_t now_ns, struct ef_reach *ret_reach);

/*
 * Writes what was gathered as parts of its buckets, in one store batch with definitions and acks.
 * Other threads go on applying. On failure everything stays in memory and is tried again at the
 * next flush. EF_OK also when there was nothing.
 */
EF_MUST_USE ef_rc ef_aggregate_flush(struct ef_aggregate *aggregate, int64_t now_ns,
                                     struct ef_err *err);

/*
 * Books a whole profile (an imported file) on [start, start + duration): split over the buckets by
 * overlap, sums conserved to the unit (largest remainder). type_count and type_value: indexes of
 * the profile's sample types, -1 = none. Flush afterwards makes it durable.
 */
struct ef_import {
    const char *account, *worker, *version, *region;
    uint8_t profile_type;
    int64_t start_ns, duration_ns; /* duration 0 = one moment */
    uint64_t interval;             /* period; 0 = 1 */
    int type_count, type_value;
};
EF_MUST_USE ef_rc ef_aggregate_import(struct ef_aggregate *aggregate,
                                      const struct ef_profile *profile,
                                      const struct ef_import *import, int64_t now_ns,
                                      struct ef_err *err);

/* Catalogue of what is known, from memory: for queries and lists. Callbacks as in store.h; they run
 * under a lock: be quick, call nothing of this module. */
EF_MUST_USE ef_rc ef_aggregate_each_version(struct ef_aggregate *aggregate, ef_store_version_fn fn,
                                            void *arg, struct ef_err *err);
EF_MUST_USE ef_rc ef_aggregate_each_series(struct ef_aggregate *aggregate, ef_store_series_fn fn,
                                           void *arg, struct ef_err *err);

/* Writes the "samples", "publishers", "targets", "sampling_cost" and "aggregate" members of GET
 * /api/v1/status into an open JSON object. */
struct ef_json;
void ef_aggregate_status(struct ef_aggregate *aggregate, int64_t now_ns, struct ef_json *json);
uint64_t ef_aggregate_bytes(struct ef_aggregate *aggregate);

#endif
