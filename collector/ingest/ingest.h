/*
 * The collector's ear: receives batches on a SUB socket and answers sync requests on a REP socket.
 *
 * Invariants: what cannot be decoded, or is not authentic, is refused and counted and disturbs
 * nobody else. What is received and not yet applied is bounded in bytes: above that the newest
 * batch is dropped (it is not acknowledged, so it comes again). No operation of a socket has a
 * timeout or is cancelled (nng 1.5.2 crashes then); it ends by closing the socket, which nng 1.5.2
 * does not always survive either (closer.h): what hangs is left behind. A listener that no longer
 * accepts connections (nng 1.5.2, fixed in 1.6.0) is found by a probe and opened anew.
 *
 * Threads: three of its own (apply, sync, probe), and nng's. Functions below from any thread; open
 * and free once each. Not usable in a forked child of the process that opened it.
 */
#ifndef COLLECTOR_INGEST_INGEST_H
#define COLLECTOR_INGEST_INGEST_H

#include "collector/aggregate/aggregate.h"
#include "proto/base/err.h"
#include "proto/wire/wire.h"

#define EF_INGEST_URL_MAX 256

struct ef_ingest_options {
    const char *ingest_url, *sync_url; /* "tcp://127.0.0.1:4681"; port 0 = any free one; copied */
    const struct ef_wire_keys *keys;   /* borrowed, must outlive */
    uint64_t queue_bytes_max;          /* batches received, not yet applied; 0 = 16 MiB */
    uint32_t queue_messages_max;       /* the same as messages; 0 = 8,192 */
    uint32_t receive_messages_max;     /* inside nng, while our thread is away; 0 = 512, at most
                                          8,192 */
    uint64_t probe_interval_ms;        /* 0 = 5,000 */
    /* A listener was found dead, and is open again (rc EF_OK) or not yet (tried again at the next
     * probe). Called in the probe thread, without locks; NULL = nobody. */
    void (*listener_dead)(void *arg, const char *url, ef_rc rc);
    /* The first refusal of a kind within 10 s, with a sentence and how many there were since the
     * last call. Called in the apply or sync thread; NULL = nobody. */
    void (*refused)(void *arg, const struct ef_err *reason, uint64_t count);
    /* Whether the process is so short of memory that batches are refused with EF_EBUSY. Asked in
     * the apply thread for each batch; NULL = never. */
    bool (*is_scarce)(void *arg);
    void *arg;
};

struct ef_ingest_stat {
    uint64_t messages, bytes;            /* received */
    uint64_t applied, duplicate, parked; /* batches */
    uint64_t refused_malformed, refused_auth, refused_oversize, refused_limit, refused_busy;
    uint64_t dropped; /* the queue was full */
    uint64_t syncs, syncs_refused;
    uint64_t listeners_restarted;
    uint64_t queue_bytes, queue_messages; /* now */
};

struct ef_ingest;
/* Listens and starts the threads. The aggregate is borrowed and must outlive. EF_ECONFLICT: an
 * address is in use; EF_EINVAL: not a tcp:// URL. */
EF_MUST_USE ef_rc ef_ingest_open(const struct ef_ingest_options *options,
                                 struct ef_aggregate *aggregate, struct ef_ingest **ret_ingest,
                                 struct ef_err *err);
/* The addresses as they are, with the port that was chosen. */
const char *ef_ingest_url(const struct ef_ingest *ingest);
const char *ef_ingest_sync_url(const struct ef_ingest *ingest);
void ef_ingest_get_stat(struct ef_ingest *ingest, struct ef_ingest_stat *ret_stat);
/* Receives, applies and answers nothing more. May be called twice; does not wait. */
void ef_ingest_close(struct ef_ingest *ingest);
/* Waits for the threads; the batch and the request under way are finished. Closes if nobody did.
 * Takes 50 ms, or 450 when nng hangs. One thread. */
void ef_ingest_stop(struct ef_ingest *ingest);
/* Stops if nobody did. NULL is fine. */
void ef_ingest_free(struct ef_ingest *ingest);

#endif
