/*
 * Decides which thread does what: a callback in nng's threads puts messages into the queue, one
 * thread decodes and applies them, one answers sync requests, one probes the listeners. No thread
 * of ours ever waits inside nng.
 */
#include "collector/ingest/ingest.h"

#include "collector/ingest/closer.h"
#include "collector/ingest/listener.h"
#include "collector/ingest/queue.h"
#include "collector/ingest/receiver.h"
#include "collector/ingest/replier.h"
#include "proto/base/metric.h"
#include "proto/base/time.h"

#include <nng/protocol/pubsub0/sub.h>
#include <nng/protocol/reqrep0/rep.h>

#include <errno.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define QUEUE_BYTES (UINT64_C(16) << 20)
#define QUEUE_MESSAGES 8192u
#define RECEIVE_MESSAGES 512u      /* one from each of 500 publishers */
#define RECEIVE_MESSAGES_MAX 8192u /* nng's own limit */
#define PROBE_MS 5000u
#define REFUSED_SAY_NS (INT64_C(10) * EF_NS_PER_S)
#define PRESSURE_NS                                                                                \
    (INT64_C(1) * EF_NS_PER_S) /* between flushes of our own when memory is full                   \
                                */
#define QUIET_MS 50 /* see closer.h: peers have one request under way, which is not answered */
#define CLOSE_WAIT_MS 400
#define PROBE_END_S 3 /* two probes of a second each may be under way */
/* SP protocol numbers (nng/protocol.h of the peers): PUB 2.0, SUB 2.1, REQ 3.0, REP 3.1. */
#define SP_PUB 0x20
#define SP_SUB 0x21
#define SP_REQ 0x30
#define SP_REP 0x31

struct refusals {
    int64_t said_ns; /* of the apply and of the sync thread each their own */
    uint64_t count;
};

struct ef_ingest {
    struct ef_ingest_options options;
    struct ef_aggregate *aggregate;
    struct ef_listener sub, rep;
    struct ef_queue queue;
    struct ef_wire_reader *batch_reader, *sync_reader;
    struct ef_buf reply;          /* sync thread */
    struct ef_receiver *requests; /* sync thread */
    struct ef_replier *replier;   /* sync thread */
    nng_aio *batches;             /* the receive under way on the SUB socket */
    pthread_t apply_thread, sync_thread, probe_thread;
    bool applying, syncing, probing; /* threads that were started */
    bool sub_open, rep_open, queue_open;
    pthread_mutex_t lock; /* guards closing, probe_ended */
    pthread_cond_t closed;
    bool closing, probe_ended;
    bool hung; /* nng did not let go of the sockets: our memory must stay */
    struct refusals apply_refusals, sync_refusals;
    int64_t pressure_ns; /* apply thread: last flush for want of memory */
    _Atomic uint64_t messages, bytes, applied, duplicate, parked;
    _Atomic uint64_t refused_malformed, refused_auth, refused_oversize, refused_limit, refused_busy;
    _Atomic uint64_t dropped, syncs, syncs_refused, listeners_restarted;
};

static void
count(_Atomic uint64_t *counter)
{
    atomic_fetch_add_explicit(counter, 1, memory_order_relaxed);
}

/* ---- refusals ---- */

static void
say_refused(struct ef_ingest *ingest, struct refusals *refusals, const struct ef_err *reason)
{
    int64_t now_ns = ef_mono_now().ns;

    refusals->count++;
    if (ingest->options.refused == NULL ||
        (refusals->said_ns != 0 && now_ns - refusals->said_ns < REFUSED_SAY_NS))
        return;
    refusals->said_ns = now_ns;
    ingest->options.refused(ingest->options.arg, reason, refusals->count);
    refusals->count = 0;
}

static void
refuse_batch(struct ef_ingest *ingest, const struct ef_err *reason)
{
    switch (reason->rc) {
    case EF_EAUTH:
        count(&ingest->refused_auth);
        ef_metric_add(EF_METRIC_ingest_refused_auth_total, 1);
        break;
    case EF_ELIMIT:
        count(&ingest->refused_oversize);
        ef_metric_add(EF_METRIC_ingest_refused_oversize_total, 1);
        break;
    default:
        count(&ingest->refused_malformed);
        ef_metric_add(EF_METRIC_ingest_refused_malformed_total, 1);
        break;
    }
    say_refused(ingest, &ingest->apply_refusals, reason);
}

/* ---- batches ---- */

static ef_rc
apply(struct ef_ingest *ingest, const struct ef_wire_header *header,
      const Everflame__V1__Batch *batch, struct ef_err *err)
{
    if (ingest->options.is_scarce != NULL && ingest->options.is_scarce(ingest->options.arg))
        return ef_err_set(err, EF_EBUSY, "memory of the process is scarce");
    return ef_aggregate_apply(ingest->aggregate, header->publisher, header->epoch, header->sequence,
                              batch, ef_wall_now().ns, err);
}

/* Memory is full: makes room by a flush of our own, at most once a second, and tries again. While
 * the disk is slow we wait for it here, and PUB's queues fill: there is no better place. */
static ef_rc
apply_under_pressure(struct ef_ingest *ingest, const struct ef_wire_header *header,
                     const Everflame__V1__Batch *batch, struct ef_err *err)
{
    int64_t now_ns = ef_mono_now().ns;

    if (ingest->pressure_ns != 0 && now_ns - ingest->pressure_ns < PRESSURE_NS)
        return EF_EBUSY;
    ingest->pressure_ns = now_ns;
    if (ef_aggregate_flush(ingest->aggregate, ef_wall_now().ns, err) != EF_OK)
        return EF_EBUSY;
    return apply(ingest, header, batch, err);
}

static void
count_applied(struct ef_ingest *ingest, ef_rc rc, const struct ef_err *err)
{
    switch (rc) {
    case EF_OK:
        count(&ingest->applied);
        break;
    case EF_EEXIST:
        count(&ingest->duplicate);
        break;
    case EF_ENOTFOUND:
        count(&ingest->parked);
        break;
    case EF_ELIMIT: /* applied as far as it could be */
        count(&ingest->refused_limit);
        say_refused(ingest, &ingest->apply_refusals, err);
        break;
    case EF_EINVAL:
        refuse_batch(ingest, err);
        break;
    default: /* it comes again */
        count(&ingest->refused_busy);
        say_refused(ingest, &ingest->apply_refusals, err);
        break;
    }
}

static void
handle_batch(struct ef_ingest *ingest, nng_msg *message)
{
    struct ef_err err = {0};
    struct ef_wire_header header;
    const ProtobufCMessage *decoded = NULL;
    ef_rc rc = ef_wire_decode(ingest->batch_reader, EF_WIRE_BATCH, nng_msg_body(message),
                              nng_msg_len(message), &header, &decoded, &err);

    if (rc != EF_OK) {
        refuse_batch(ingest, &err);
        return;
    }
    rc = apply(ingest, &header, (const Everflame__V1__Batch *)decoded, &err);
    if (rc == EF_EBUSY)
        rc = apply_under_pressure(ingest, &header, (const Everflame__V1__Batch *)decoded, &err);
    count_applied(ingest, rc, &err);
}

static void *
apply_main(void *arg)
{
    struct ef_ingest *ingest = arg;
    nng_msg *message;

    while ((message = ef_queue_get(&ingest->queue)) != NULL) {
        handle_batch(ingest, message);
        nng_msg_free(message);
    }
    return NULL;
}

/* In a thread of nng: a batch has come. Takes it and begins the next receive. */
static void
on_batch(void *arg)
{
    struct ef_ingest *ingest = arg;
    int error = nng_aio_result(ingest->batches);
    nng_msg *message;

    if (error == NNG_ECLOSED || error == NNG_ECANCELED)
        return;
    if (error == 0) { /* other errors are of one message, or of memory: we go on */
        message = nng_aio_get_msg(ingest->batches);
        count(&ingest->messages);
        atomic_fetch_add_explicit(&ingest->bytes, nng_msg_len(message), memory_order_relaxed);
        ef_metric_add(EF_METRIC_ingest_messages_total, 1);
        ef_metric_add(EF_METRIC_ingest_bytes_total, nng_msg_len(message));
        if (!ef_queue_put(&ingest->queue, message)) {
            count(&ingest->dropped);
            ef_metric_add(EF_METRIC_ingest_refused_busy_total, 1);
        }
    }
    nng_recv_aio(ingest->sub.socket, ingest->batches);
}

/* ---- sync ---- */

/* Fills ingest->reply. A request that cannot be answered gets an empty reply, or its sender would
 * wait for one (REQ asks again after a minute only). */
static ef_rc
answer(struct ef_ingest *ingest, const nng_msg *request, struct ef_err *err)
{
    Everflame__V1__SyncReply reply = EVERFLAME__V1__SYNC_REPLY__INIT;
    struct ef_sync_arena *arena = ef_sync_arena_open();
    struct ef_wire_header header = {0};
    const ProtobufCMessage *decoded = NULL;
    struct ef_err ignored;
    ef_rc rc, encoded;

    if (arena == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a reply");
    rc = ef_wire_decode(ingest->sync_reader, EF_WIRE_SYNC_REQUEST,
                        nng_msg_body((nng_msg *)(uintptr_t)request), nng_msg_len(request), &header,
                        &decoded, err);
    if (rc == EF_OK)
        rc = ef_aggregate_sync(ingest->aggregate, header.publisher,
                               (const Everflame__V1__SyncRequest *)decoded, ef_wall_now().ns, arena,
                               &reply, err);
    if (rc != EF_OK)
        everflame__v1__sync_reply__init(&reply);
    header.kind = EF_WIRE_SYNC_REPLY;
    encoded = ef_wire_encode(ingest->options.keys, &header, &reply.base, &ingest->reply, &ignored);
    if (encoded != EF_OK && rc == EF_OK) {
        /* Too much for one message: what is acknowledged must not be kept back by the rest. */
        reply.n_wanted = 0;
        rc = ef_wire_encode(ingest->options.keys, &header, &reply.base, &ingest->reply, err);
    }
    ef_sync_arena_free(arena);
    return rc;
}

static void
handle_request(struct ef_ingest *ingest, nng_msg *message)
{
    struct ef_err err = {0};
    ef_rc rc = answer(ingest, message, &err);

    if (rc == EF_OK) {
        count(&ingest->syncs);
        ef_metric_add(EF_METRIC_sync_requests_total, 1);
    } else {
        count(&ingest->syncs_refused);
        ef_metric_add(EF_METRIC_sync_refused_total, 1);
        say_refused(ingest, &ingest->sync_refusals, &err);
    }
    nng_msg_clear(message);
    if (nng_msg_append(message, ingest->reply.data, ingest->reply.len) == 0)
        ef_replier_send(ingest->replier, ingest->rep.socket, message);
    else
        nng_msg_free(message); /* no memory: REQ asks again */
}

static void *
sync_main(void *arg)
{
    struct ef_ingest *ingest = arg;
    nng_msg *message;

    while ((message = ef_receiver_get(ingest->requests)) != NULL)
        handle_request(ingest, message);
    return NULL;
}

/* ---- probe ---- */

static void
probe(struct ef_ingest *ingest, struct ef_listener *listener)
{
    ef_rc rc;

    if (ef_listener_alive(listener))
        return;
    rc = ef_listener_renew(listener, NULL);
    if (rc == EF_ECLOSED)
        return;
    if (rc == EF_OK)
        count(&ingest->listeners_restarted);
    if (ingest->options.listener_dead != NULL)
        ingest->options.listener_dead(ingest->options.arg, listener->url, rc);
}

/* False when it is time to end. */
static bool
wait_for_next_probe(struct ef_ingest *ingest)
{
    struct timespec until;
    bool closing;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)(ingest->options.probe_interval_ms / 1000);
    until.tv_nsec += (long)(ingest->options.probe_interval_ms % 1000) * 1000000;
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&ingest->lock);
    while (!ingest->closing &&
           pthread_cond_timedwait(&ingest->closed, &ingest->lock, &until) != ETIMEDOUT)
        ;
    closing = ingest->closing;
    pthread_mutex_unlock(&ingest->lock);
    return !closing;
}

static void *
probe_main(void *arg)
{
    struct ef_ingest *ingest = arg;

    while (wait_for_next_probe(ingest)) {
        probe(ingest, &ingest->sub);
        probe(ingest, &ingest->rep);
    }
    pthread_mutex_lock(&ingest->lock);
    ingest->probe_ended = true;
    pthread_cond_broadcast(&ingest->closed);
    pthread_mutex_unlock(&ingest->lock);
    return NULL;
}

/* ---- life ---- */

static ef_rc
nng_failed(int error, const char *what, struct ef_err *err)
{
    return ef_err_set(err, error == NNG_ENOMEM ? EF_ENOMEM : EF_EIO, "%s: %s", what,
                      nng_strerror(error));
}

static ef_rc
open_sub(struct ef_ingest *ingest, struct ef_err *err)
{
    nng_socket socket;
    int error = nng_sub0_open(&socket);
    ef_rc rc;

    if (error != 0)
        return nng_failed(error, "cannot open the ingest socket", err);
    error = nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, EF_WIRE_BATCH_BYTES_MAX);
    if (error == 0)
        error =
            nng_socket_set_int(socket, NNG_OPT_RECVBUF, (int)ingest->options.receive_messages_max);
    if (error == 0)
        error = nng_socket_set(socket, NNG_OPT_SUB_SUBSCRIBE, "", 0);
    if (error != 0) {
        nng_close(socket);
        return nng_failed(error, "cannot set up the ingest socket", err);
    }
    rc = ef_listener_open(&ingest->sub, socket, SP_SUB, SP_PUB, ingest->options.ingest_url, err);
    ingest->sub_open = rc == EF_OK;
    if (rc != EF_OK)
        return rc;
    error = nng_aio_alloc(&ingest->batches, on_batch, ingest);
    if (error != 0)
        return nng_failed(error, "cannot receive batches", err);
    nng_aio_set_timeout(ingest->batches, NNG_DURATION_INFINITE);
    return EF_OK;
}

static ef_rc
open_rep(struct ef_ingest *ingest, struct ef_err *err)
{
    nng_socket socket;
    int error = nng_rep0_open(&socket);
    ef_rc rc;

    if (error != 0)
        return nng_failed(error, "cannot open the sync socket", err);
    error = nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, EF_WIRE_BATCH_BYTES_MAX);
    if (error != 0) {
        nng_close(socket);
        return nng_failed(error, "cannot set up the sync socket", err);
    }
    rc = ef_listener_open(&ingest->rep, socket, SP_REP, SP_REQ, ingest->options.sync_url, err);
    ingest->rep_open = rc == EF_OK;
    if (rc != EF_OK)
        return rc;
    ingest->requests = ef_receiver_open(socket);
    return ingest->requests != NULL ? EF_OK : ef_err_set(err, EF_ENOMEM, "no memory for requests");
}

static bool
start(pthread_t *thread, bool *started, void *(*main)(void *), struct ef_ingest *ingest)
{
    *started = pthread_create(thread, NULL, main, ingest) == 0;
    return *started;
}

static ef_rc
start_threads(struct ef_ingest *ingest, struct ef_err *err)
{
    if (start(&ingest->apply_thread, &ingest->applying, apply_main, ingest) &&
        start(&ingest->sync_thread, &ingest->syncing, sync_main, ingest) &&
        start(&ingest->probe_thread, &ingest->probing, probe_main, ingest))
        return EF_OK;
    return ef_err_set(err, EF_ENOMEM, "cannot start the threads of ingest");
}

static void
set_defaults(struct ef_ingest_options *options)
{
    if (options->queue_bytes_max == 0)
        options->queue_bytes_max = QUEUE_BYTES;
    if (options->queue_messages_max == 0)
        options->queue_messages_max = QUEUE_MESSAGES;
    if (options->receive_messages_max == 0)
        options->receive_messages_max = RECEIVE_MESSAGES;
    if (options->receive_messages_max > RECEIVE_MESSAGES_MAX)
        options->receive_messages_max = RECEIVE_MESSAGES_MAX;
    if (options->probe_interval_ms == 0)
        options->probe_interval_ms = PROBE_MS;
}

static void
init_lock(struct ef_ingest *ingest)
{
    pthread_condattr_t attributes;

    pthread_mutex_init(&ingest->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&ingest->closed, &attributes);
    pthread_condattr_destroy(&attributes);
}

ef_rc
ef_ingest_open(const struct ef_ingest_options *options, struct ef_aggregate *aggregate,
               struct ef_ingest **ret_ingest, struct ef_err *err)
{
    struct ef_ingest *ingest = calloc(1, sizeof(*ingest));
    ef_rc rc = EF_OK;

    if (ingest == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for ingest");
    ingest->options = *options;
    ingest->aggregate = aggregate;
    set_defaults(&ingest->options);
    init_lock(ingest);
    ef_buf_init(&ingest->reply, EF_WIRE_RAW_BYTES_MAX + EF_WIRE_HEADER_BYTES);
    ingest->queue_open = ef_queue_init(&ingest->queue, ingest->options.queue_messages_max,
                                       ingest->options.queue_bytes_max);
    if (!ingest->queue_open)
        rc = ef_err_set(err, EF_ENOMEM, "no memory for the queue of batches");
    if (rc == EF_OK)
        rc = ef_wire_reader_open(options->keys, &ingest->batch_reader, err);
    if (rc == EF_OK)
        rc = ef_wire_reader_open(options->keys, &ingest->sync_reader, err);
    if (rc == EF_OK && (ingest->replier = ef_replier_open()) == NULL)
        rc = ef_err_set(err, EF_ENOMEM, "no memory for replies");
    if (rc == EF_OK)
        rc = open_sub(ingest, err);
    if (rc == EF_OK)
        rc = open_rep(ingest, err);
    if (rc == EF_OK)
        rc = start_threads(ingest, err);
    if (rc != EF_OK) {
        ef_ingest_free(ingest);
        return rc;
    }
    nng_recv_aio(ingest->sub.socket, ingest->batches);
    *ret_ingest = ingest;
    return EF_OK;
}

const char *
ef_ingest_url(const struct ef_ingest *ingest)
{
    return ingest->sub.url;
}

const char *
ef_ingest_sync_url(const struct ef_ingest *ingest)
{
    return ingest->rep.url;
}

void
ef_ingest_get_stat(struct ef_ingest *ingest, struct ef_ingest_stat *ret_stat)
{
    *ret_stat = (struct ef_ingest_stat){
        .messages = ingest->messages,
        .bytes = ingest->bytes,
        .applied = ingest->applied,
        .duplicate = ingest->duplicate,
        .parked = ingest->parked,
        .refused_malformed = ingest->refused_malformed,
        .refused_auth = ingest->refused_auth,
        .refused_oversize = ingest->refused_oversize,
        .refused_limit = ingest->refused_limit,
        .refused_busy = ingest->refused_busy,
        .dropped = ingest->dropped,
        .syncs = ingest->syncs,
        .syncs_refused = ingest->syncs_refused,
        .listeners_restarted = ingest->listeners_restarted,
    };
    ef_queue_get_stat(&ingest->queue, &ret_stat->queue_messages, &ret_stat->queue_bytes);
}

void
ef_ingest_close(struct ef_ingest *ingest)
{
    pthread_mutex_lock(&ingest->lock);
    ingest->closing = true;
    pthread_mutex_unlock(&ingest->lock);
    pthread_cond_broadcast(&ingest->closed);
    if (ingest->queue_open)
        ef_queue_close(&ingest->queue);
    if (ingest->requests != NULL)
        ef_receiver_close(ingest->requests);
}

/* After the threads that use the sockets have ended. */
static void
close_sockets(struct ef_ingest *ingest)
{
    const struct timespec pause = {0, QUIET_MS * 1000000L};
    struct ef_listener *listeners[2];
    size_t open = 0;

    if (ingest->sub_open && ingest->sub.open)
        listeners[open++] = &ingest->sub;
    if (ingest->rep_open && ingest->rep.open)
        listeners[open++] = &ingest->rep;
    if (open == 0 || ingest->hung)
        return;
    nanosleep(&pause, NULL);
    ingest->hung = !ef_close_listeners(listeners, open, CLOSE_WAIT_MS);
}

static void
join(pthread_t thread, bool *started)
{
    if (*started)
        pthread_join(thread, NULL);
    *started = false;
}

/* Waits until the probe thread says that it ends. False: it has not within PROBE_END_S. */
static bool
wait_probe_ended(struct ef_ingest *ingest)
{
    struct timespec until;
    bool ended;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += PROBE_END_S;
    pthread_mutex_lock(&ingest->lock);
    while (!ingest->probe_ended &&
           pthread_cond_timedwait(&ingest->closed, &ingest->lock, &until) != ETIMEDOUT)
        ;
    ended = ingest->probe_ended;
    pthread_mutex_unlock(&ingest->lock);
    return ended;
}

/* It may be closing a listener, which hangs as closing a socket does. */
static void
join_probe(struct ef_ingest *ingest)
{
    if (ingest->probing && !wait_probe_ended(ingest)) {
        pthread_detach(ingest->probe_thread);
        ingest->probing = false;
        ingest->hung = true;
    }
    join(ingest->probe_thread, &ingest->probing);
}

void
ef_ingest_stop(struct ef_ingest *ingest)
{
    ef_ingest_close(ingest);
    join(ingest->apply_thread, &ingest->applying);
    join(ingest->sync_thread, &ingest->syncing);
    join_probe(ingest);
    close_sockets(ingest);
}

void
ef_ingest_free(struct ef_ingest *ingest)
{
    if (ingest == NULL)
        return;
    ef_ingest_stop(ingest);
    if (ingest->hung)
        return; /* nng may still call back: all of it stays until the process ends */
    if (ingest->batches != NULL)
        nng_aio_free(ingest->batches);
    ef_receiver_free(ingest->requests);
    if (ingest->sub_open)
        ef_listener_fini(&ingest->sub);
    if (ingest->rep_open)
        ef_listener_fini(&ingest->rep);
    if (ingest->queue_open)
        ef_queue_fini(&ingest->queue);
    ef_wire_reader_free(ingest->batch_reader);
    ef_wire_reader_free(ingest->sync_reader);
    ef_replier_free(ingest->replier);
    ef_buf_fini(&ingest->reply);
    pthread_cond_destroy(&ingest->closed);
    pthread_mutex_destroy(&ingest->lock);
    free(ingest);
}
