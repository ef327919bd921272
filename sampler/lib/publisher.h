/*
 * The publisher: turns fragments into batches, keeps them in a bounded spool until the collector
 * has acknowledged them as on disk, sends them by nng PUB, and checks by REQ/REP what arrived.
 *
 * Invariants: a batch has its number (publisher, epoch, sequence from 1) before it is sent, and
 * with a spool folder it is in the file before that. A batch leaves the spool only when
 * acknowledged, or when the bound forces the oldest out; then it is counted, and reported to the
 * collector until that is acknowledged too. Definitions travel once per epoch and version, and
 * again on request. Guest rule (STYLE §4): no abort, exit, output, signal or atexit; memory stays
 * under the given bounds.
 *
 * Threads: all functions from any thread; ef_publisher_add does not block on the network (it may
 * write to the spool file). One thread of its own does the sync. Not usable in a forked child of
 * the process that opened it (nng).
 */
#ifndef SAMPLER_LIB_PUBLISHER_H
#define SAMPLER_LIB_PUBLISHER_H

#include "proto/base/err.h"
#include "proto/model/profile.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Borrowed texts; "" = unknown. Names 1 to 128 bytes where required (account, worker, version,
 * instance). */
struct ef_source {
    const char *account, *worker, *version, *instance, *host, *region, *runtime;
    const char *label_names[16], *label_values[16];
    size_t label_count;
};

struct ef_fragment_sample {
    uint32_t node; /* of the profile */
    uint64_t count;
    int64_t value; /* CPU: ns; ALLOC, INUSE: bytes */
};

struct ef_fragment {
    struct ef_source source;
    uint8_t profile_type; /* enum values of wire.proto: 1 cpu, 2 alloc, 3 inuse, 4 wall */
    uint8_t stratum;      /* 0 normal, 1 hot */
    int64_t start_ns;     /* wall clock */
    uint64_t span_ns;
    uint64_t interval;                /* planned: ns or bytes */
    uint64_t interval_measured;       /* 0 = not measured */
    uint64_t weight_milli;            /* 0 = 1000 */
    const struct ef_profile *profile; /* tree that holds the stacks */
    const uint64_t *hashes;           /* ef_profile_hashes(profile), made once per profile */
    const struct ef_fragment_sample *samples;
    size_t sample_count;
    const uint32_t
        *tick_ms; /* optional: one per single sample, in order of samples × count; NULL = none */
    size_t tick_count;
    uint64_t heap_used_bytes, heap_limit_bytes, pause_ns; /* gauges; 0 = unknown */
};

struct ef_usage {
    struct ef_source source;
    int64_t start_ns;
    uint64_t span_ns, cpu_ns, hot_span_ns, hot_cpu_ns;
    uint32_t isolates;
};

struct ef_target_status {
    struct ef_source source;
    const char *inspector, *state, *message;
    uint32_t pid;
    double cpu_ratio, pause_ms_max, pause_ratio, process_cpu_ratio;
    uint64_t samples, samples_starved;
    int64_t sampled_until_ns;
};

struct ef_directive {
    int kind;                                    /* enum DirectiveKind of wire.proto */
    const char *id, *account, *worker, *version; /* borrowed during the call */
};

struct ef_publisher_options {
    const char *ingest_url, *sync_url; /* "tcp://127.0.0.1:4681" */
    const char *key_file;              /* NULL or "" = the zero key */
    const char *name;                  /* for people: "host1/everflame-agent" */
    const char *spool_path; /* folder; NULL or "" = memory only. One publisher at a time per folder
                               (locked). */
    uint64_t spool_bytes_max; /* batches held; 0 = 64 MiB. The oldest are forced out above it. */
    uint32_t dictionary_stacks_max; /* definitions kept to answer requests, all versions together; 0
                                       = 262,144 */
    uint32_t batch_fragments_max;   /* 0 = 64 */
    uint64_t batch_bytes_max;       /* estimate before compression; 0 = 256 KiB */
    uint64_t batch_delay_ms;        /* a batch is closed at the latest after this; 0 = 1000 */
    uint64_t sync_interval_ms;      /* 0 = 1000 */
    void (*directive)(
        void *arg, const struct ef_directive *directive); /* in the sync thread; NULL = ignored */
    void *arg;
};

struct ef_publisher_stat {
    uint64_t epoch, sequence;                        /* of the present life */
    uint64_t fragments_published, samples_published; /* given a sequence in this life */
    uint64_t fragments_lost, samples_lost; /* forced out by the bound, all lives still held */
    uint64_t batches_held, bytes_held;
    uint64_t acknowledged; /* contiguous, of the present epoch */
    uint64_t batches_resent, syncs_answered, syncs_failed;
    uint64_t dictionary_stacks, stacks_over_limit;
    uint64_t spool_write_errors; /* records that are only in memory: the disk is full or broken */
    bool connected;              /* the last sync was answered */
};

struct ef_publisher;
/*
 * Opens; connects in the background and for ever. With a spool folder, batches of earlier lives
 * found there are sent too, under their own epochs. EF_ECONFLICT: the folder is in use. EF_ECORRUPT
 * never: a damaged tail of a spool file is cut off and counted as nothing (it was never sent),
 * damage in the middle is skipped and reported as lost.
 */
EF_MUST_USE ef_rc ef_publisher_open(const struct ef_publisher_options *options,
                                    struct ef_publisher **ret_publisher, struct ef_err *err);
/* Copies the fragment into the batch under construction. EF_EINVAL for what the collector would
 * refuse. */
EF_MUST_USE ef_rc ef_publisher_add(struct ef_publisher *publisher,
                                   const struct ef_fragment *fragment, struct ef_err *err);
EF_MUST_USE ef_rc ef_publisher_add_usage(struct ef_publisher *publisher,
                                         const struct ef_usage *usage, struct ef_err *err);
/* Replaces the target list that the next syncs carry. Copies. At most 1024 targets, more are left
 * out and counted by the caller. */
void ef_publisher_set_targets(struct ef_publisher *publisher,
                              const struct ef_target_status *targets, size_t count);
/* Closes the batch under construction now. */
EF_MUST_USE ef_rc ef_publisher_flush(struct ef_publisher *publisher, struct ef_err *err);
/* Flushes, then waits until everything is acknowledged, at most wait_ms. EF_ETIMEOUT says how much
 * is still held. */
EF_MUST_USE ef_rc ef_publisher_drain(struct ef_publisher *publisher, uint64_t wait_ms,
                                     struct ef_err *err);
void ef_publisher_get_stat(struct ef_publisher *publisher, struct ef_publisher_stat *ret_stat);
/* Stops the thread and closes the sockets; what is not acknowledged stays in the spool folder. NULL
 * is fine. */
void ef_publisher_free(struct ef_publisher *publisher);

#endif
