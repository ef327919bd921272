/*
 * The batches that are not acknowledged yet, of this life and of earlier ones, and the losses that
 * the collector has not acknowledged either.
 *
 * Invariants: sequences of an epoch begin at 1 and are given without gap; a batch is held until
 * acknowledged or forced out by the bound, and what is forced out (or damaged, or asked for and
 * gone) is in the list of losses until acknowledged. bytes_held <= bytes_max, but the newest batch
 * is always kept. Losses are bounded: above EF_SPOOL_LOST_MAX the two oldest are merged into one
 * entry that carries the sum under the newer number. Not thread-safe: the publisher's lock guards
 * it.
 */
#ifndef SAMPLER_LIB_SPOOL_H
#define SAMPLER_LIB_SPOOL_H

#include "proto/base/time.h"
#include "sampler/lib/folder.h"

#define EF_SPOOL_LOST_MAX 16384u  /* entries, all epochs together */
#define EF_SPOOL_EPOCHS_MAX 1024u /* loaded at once; more wait in the folder for the next life */

struct ef_spool_batch {
    uint64_t sequence;
    uint8_t *data;
    size_t len;
    uint32_t fragments;
    uint64_t samples;
    ef_mono_ns sent; /* last time in this life; 0 = never */
    bool to_send;
    bool resent; /* sent again because it was missing */
};

/* Columns, as the wire has them; `head` entries at the front are gone. */
struct ef_spool_lost {
    uint64_t *sequence;
    uint32_t *fragments;
    uint64_t *samples;
    size_t head, count, cap; /* count: without those before head */
    uint64_t merged_below;   /* entries up to here may stand for several sequences */
    size_t file_records;     /* in the loss file, merged ones still apart */
};

struct ef_spool_epoch {
    uint64_t epoch;
    uint64_t last_sequence;
    uint64_t acknowledged;
    uint64_t fragments_published, samples_published;
    struct ef_spool_batch *batches; /* sorted; those before head are gone */
    size_t head, count, cap;
    size_t to_send_count, to_send_from; /* no batch before this index (from head) is to be sent */
    struct ef_spool_lost lost;
};

struct ef_spool {
    struct ef_spool_folder *folder; /* NULL = memory only */
    uint8_t publisher[EF_WIRE_PUBLISHER_BYTES];
    struct ef_spool_epoch *epochs; /* oldest first; the last one is this life */
    size_t epoch_count, epoch_cap;
    uint64_t bytes_held, bytes_max, batches_held;
    size_t lost_count;
    uint64_t fragments_lost, samples_lost; /* forced out, of all lives still held */
    uint64_t write_errors;                 /* records that are only in memory */
    const struct ef_wire_keys *keys;       /* borrowed */
};

/* Loads what earlier lives left and begins a new epoch: later than all of them, about now. */
EF_MUST_USE ef_rc ef_spool_open(struct ef_spool *spool, const char *path, uint64_t bytes_max,
                                const struct ef_wire_keys *keys, struct ef_err *err);
/* Leaves what is held in the folder; an epoch that holds nothing leaves no file. */
void ef_spool_close(struct ef_spool *spool);

static inline struct ef_spool_epoch *
ef_spool_present(const struct ef_spool *spool)
{
    return &spool->epochs[spool->epoch_count - 1];
}

/*
 * Takes an encoded batch, which carries the number last_sequence + 1 of the present epoch, and
 * marks it to be sent. A full or broken disk is counted, not fatal: the batch is held in memory.
 * EF_ENOMEM: nothing happened, the number is still free.
 */
EF_MUST_USE ef_rc ef_spool_add(struct ef_spool *spool, uint8_t *data, size_t len,
                               uint32_t fragments, uint64_t samples, struct ef_err *err);
/* The next batch to send, oldest first; it counts as sent at `now`. NULL = none. Borrowed. */
const struct ef_spool_batch *ef_spool_next_to_send(struct ef_spool *spool, ef_mono_ns now);

/* How much a reply may make us send again, and what it led to. */
struct ef_spool_resend {
    uint64_t bytes_left;
    size_t batches_left;
    ef_mono_ns sent_before; /* what was sent later than this may still be on its way */
    size_t marked;          /* to be sent again now */
    size_t again;           /* of all missing: those that had been sent again before */
    bool more;              /* some are missing, but did not fit */
};
/*
 * Applies what the collector said about one epoch; unknown epochs and absurd numbers do no harm.
 * Ranges are [first, last].
 */
void ef_spool_apply(struct ef_spool *spool, uint64_t epoch, uint64_t acknowledged,
                    const uint64_t *missing_first, const uint64_t *missing_last,
                    size_t missing_count, struct ef_spool_resend *resend);

/* Oldest sequence still held; last_sequence + 1 = none. */
uint64_t ef_spool_first(const struct ef_spool_epoch *epoch);

#endif
