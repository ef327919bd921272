/*
 * Decides everything that is particular to nng. Must not know what is sent. Callbacks run in
 * threads of nng, touch only atomics, and wake the publisher's thread, which does the rest.
 */
#include "sampler/lib/link.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <nng/nng.h>
#include <nng/protocol/pubsub0/pub.h>
#include <nng/protocol/reqrep0/req.h>

#include "proto/base/time.h"
#include "proto/wire/wire.h"

#define RECONNECT_MS_MIN 100
#define RECONNECT_MS_MAX 2000
/* nng sends an unanswered request again by itself; the collector may hold a reply back a while. */
#define RESEND_MS 5000
#define QUEUE_BYTES_MAX (16u << 20) /* of PUB's send queue, which nng counts in messages */
#define QUEUE_MESSAGES_MIN 16u
#define QUEUE_MESSAGES_MAX 1024u
/*
 * nng 1.5.2 (Debian 12): closing a REQ socket while its connection is being made or a reply comes
 * in sometimes never returns: nng's reaper waits for an aio that nobody completes (measured: 1 of
 * 300 to 1 of 3,600 closes, 0 of 8,000 when the socket was quiet). So we close when it is quiet,
 * and in a thread that may be left behind. A later nng without the fault would let us close
 * directly.
 */
#define QUIET_NS (20 * EF_NS_PER_MS)
#define QUIET_WAIT_NS (150 * EF_NS_PER_MS)
#define CLOSE_WAIT_NS (500 * EF_NS_PER_MS)

enum request_state { IDLE, SENDING, SENT, RECEIVING, RECEIVED, FAILED };

struct ef_link {
    nng_socket pub, req;
    bool pub_open, req_open;
    nng_aio *send_aio, *receive_aio;
    nng_msg *reply;
    size_t queue_messages;
    _Atomic int state; /* enum request_state; callbacks move it on, the owner takes it back */
    _Atomic int pipes; /* of the sync socket */
    _Atomic int64_t changed_ns; /* monotonic: last event of the sync socket */
    pthread_mutex_t wake_lock;  /* guards the two below; wake is called with it held */
    void (*wake)(void *arg);    /* NULL: the owner is gone */
    void *arg;
    pthread_mutex_t close_lock; /* guards the two below */
    pthread_cond_t close_done;
    bool closed, abandoned;
};

static void
tell_owner(struct ef_link *link)
{
    atomic_store(&link->changed_ns, ef_mono_now().ns);
    pthread_mutex_lock(&link->wake_lock);
    if (link->wake != NULL)
        link->wake(link->arg);
    pthread_mutex_unlock(&link->wake_lock);
}

static ef_rc
failed(struct ef_err *err, ef_rc rc, const char *what, const char *url, int nng_rc)
{
    return ef_err_set(err, rc, "%s '%s': %s", what, url, nng_strerror(nng_rc));
}

static void
sent(void *arg)
{
    struct ef_link *link = arg;

    atomic_store(&link->state, nng_aio_result(link->send_aio) == 0 ? SENT : FAILED);
    tell_owner(link);
}

static void
received(void *arg)
{
    struct ef_link *link = arg;

    atomic_store(&link->state, nng_aio_result(link->receive_aio) == 0 ? RECEIVED : FAILED);
    tell_owner(link);
}

static void
pipe_changed(nng_pipe pipe, nng_pipe_ev event, void *arg)
{
    struct ef_link *link = arg;

    (void)pipe;
    atomic_fetch_add(&link->pipes, event == NNG_PIPE_EV_ADD_POST ? 1 : -1);
    tell_owner(link);
}

static ef_rc
dial(nng_socket socket, const char *url, struct ef_err *err)
{
    nng_dialer dialer;
    int rc = nng_socket_set_ms(socket, NNG_OPT_RECONNMINT, RECONNECT_MS_MIN);

    if (rc == 0)
        rc = nng_socket_set_ms(socket, NNG_OPT_RECONNMAXT, RECONNECT_MS_MAX);
    if (rc == 0)
        rc = nng_socket_set_size(socket, NNG_OPT_RECVMAXSZ, EF_WIRE_BATCH_BYTES_MAX);
    if (rc == 0)
        rc = nng_dialer_create(&dialer, socket, url);
    if (rc == 0)
        rc = nng_dialer_start(dialer, NNG_FLAG_NONBLOCK);
    if (rc == NNG_ENOMEM)
        return failed(err, EF_ENOMEM, "cannot dial", url, rc);
    return rc == 0 ? EF_OK : failed(err, EF_EINVAL, "cannot dial", url, rc);
}

static ef_rc
open_pub(struct ef_link *link, const char *url, struct ef_err *err)
{
    int rc = nng_pub0_open(&link->pub);

    if (rc != 0)
        return failed(err, EF_ENOMEM, "cannot open a socket for", url, rc);
    link->pub_open = true;
    rc = nng_socket_set_int(link->pub, NNG_OPT_SENDBUF, (int)link->queue_messages);
    if (rc != 0)
        return failed(err, EF_EINVAL, "cannot size the queue of", url, rc);
    return dial(link->pub, url, err);
}

static ef_rc
open_req(struct ef_link *link, const char *url, struct ef_err *err)
{
    int rc = nng_req0_open(&link->req);

    if (rc != 0)
        return failed(err, EF_ENOMEM, "cannot open a socket for", url, rc);
    link->req_open = true;
    rc = nng_socket_set_ms(link->req, NNG_OPT_REQ_RESENDTIME, RESEND_MS);
    if (rc == 0)
        rc = nng_pipe_notify(link->req, NNG_PIPE_EV_ADD_POST, pipe_changed, link);
    if (rc == 0)
        rc = nng_pipe_notify(link->req, NNG_PIPE_EV_REM_POST, pipe_changed, link);
    if (rc == 0)
        rc = nng_aio_alloc(&link->send_aio, sent, link);
    if (rc == 0)
        rc = nng_aio_alloc(&link->receive_aio, received, link);
    if (rc != 0)
        return failed(err, EF_ENOMEM, "cannot prepare syncs with", url, rc);
    nng_aio_set_timeout(link->send_aio, NNG_DURATION_INFINITE);
    nng_aio_set_timeout(link->receive_aio, NNG_DURATION_INFINITE);
    return dial(link->req, url, err);
}

static bool
init_locks(struct ef_link *link)
{
    pthread_condattr_t attr;
    bool good;

    if (pthread_condattr_init(&attr) != 0)
        return false;
    good = pthread_condattr_setclock(&attr, CLOCK_MONOTONIC) == 0 &&
           pthread_cond_init(&link->close_done, &attr) == 0 &&
           pthread_mutex_init(&link->wake_lock, NULL) == 0 &&
           pthread_mutex_init(&link->close_lock, NULL) == 0;
    pthread_condattr_destroy(&attr);
    return good;
}

ef_rc
ef_link_open(const char *ingest_url, const char *sync_url, size_t batch_bytes_max,
             void (*wake)(void *arg), void *arg, struct ef_link **ret_link, struct ef_err *err)
{
    struct ef_link *link = calloc(1, sizeof(*link));
    ef_rc rc;

    if (link == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a link");
    if (!init_locks(link)) {
        free(link);
        return ef_err_set(err, EF_ENOMEM, "no lock for a link");
    }
    link->wake = wake;
    link->arg = arg;
    atomic_store(&link->changed_ns, ef_mono_now().ns);
    link->queue_messages = QUEUE_BYTES_MAX / (batch_bytes_max > 0 ? batch_bytes_max : 1);
    if (link->queue_messages < QUEUE_MESSAGES_MIN)
        link->queue_messages = QUEUE_MESSAGES_MIN;
    if (link->queue_messages > QUEUE_MESSAGES_MAX)
        link->queue_messages = QUEUE_MESSAGES_MAX;
    rc = open_pub(link, ingest_url, err);
    if (rc == EF_OK)
        rc = open_req(link, sync_url, err);
    if (rc != EF_OK) {
        ef_link_free(link);
        return rc;
    }
    *ret_link = link;
    return EF_OK;
}

static void
free_memory(struct ef_link *link)
{
    pthread_cond_destroy(&link->close_done);
    pthread_mutex_destroy(&link->close_lock);
    pthread_mutex_destroy(&link->wake_lock);
    free(link);
}

/* May take for ever (above). */
static void
close_sockets(struct ef_link *link)
{
    if (link->pub_open)
        nng_close(link->pub);
    if (link->req_open)
        nng_close(link->req);
    /* Closing ended what was out; this waits for callbacks that still run. */
    if (link->send_aio != NULL) {
        nng_aio_wait(link->send_aio);
        if (nng_aio_result(link->send_aio) != 0 && nng_aio_get_msg(link->send_aio) != NULL)
            nng_msg_free(nng_aio_get_msg(link->send_aio));
        nng_aio_free(link->send_aio);
    }
    if (link->receive_aio != NULL) {
        nng_aio_wait(link->receive_aio);
        if (atomic_load(&link->state) == RECEIVED)
            nng_msg_free(nng_aio_get_msg(link->receive_aio));
        nng_aio_free(link->receive_aio);
    }
    if (link->reply != NULL)
        nng_msg_free(link->reply);
}

static void *
close_in_thread(void *arg)
{
    struct ef_link *link = arg;
    bool abandoned;

    close_sockets(link);
    pthread_mutex_lock(&link->close_lock);
    link->closed = true;
    abandoned = link->abandoned;
    pthread_cond_signal(&link->close_done);
    pthread_mutex_unlock(&link->close_lock);
    if (abandoned)
        free_memory(link);
    return NULL;
}

static void
wait_until_quiet(const struct ef_link *link)
{
    const struct timespec step = {.tv_nsec = 2 * EF_NS_PER_MS};
    int64_t end = ef_mono_now().ns + QUIET_WAIT_NS, now;

    while ((now = ef_mono_now().ns) < end) {
        int state = atomic_load(&link->state);
        bool idle = state != SENT && state != RECEIVING && state != SENDING;
        if (idle && now - atomic_load(&link->changed_ns) >= QUIET_NS)
            return;
        nanosleep(&step, NULL);
    }
}

void
ef_link_free(struct ef_link *link)
{
    pthread_t thread;
    int64_t end;
    bool closed;

    if (link == NULL)
        return;
    pthread_mutex_lock(&link->wake_lock);
    link->wake = NULL;
    pthread_mutex_unlock(&link->wake_lock);
    wait_until_quiet(link);
    if (pthread_create(&thread, NULL, close_in_thread, link) != 0) {
        close_sockets(link);
        free_memory(link);
        return;
    }
    end = ef_mono_now().ns + CLOSE_WAIT_NS;
    pthread_mutex_lock(&link->close_lock);
    while (!link->closed && ef_mono_now().ns < end) {
        struct timespec until = {.tv_sec = end / EF_NS_PER_S, .tv_nsec = end % EF_NS_PER_S};
        pthread_cond_timedwait(&link->close_done, &link->close_lock, &until);
    }
    closed = link->closed;
    link->abandoned = !closed;
    pthread_mutex_unlock(&link->close_lock);
    if (closed) {
        pthread_join(thread, NULL);
        free_memory(link);
    } else {
        pthread_detach(thread);
    }
}

static nng_msg *
message_of(const void *data, size_t len)
{
    nng_msg *message = NULL;

    if (nng_msg_alloc(&message, len) != 0)
        return NULL;
    memcpy(nng_msg_body(message), data, len);
    return message;
}

void
ef_link_publish(struct ef_link *link, const void *data, size_t len)
{
    nng_msg *message = message_of(data, len);

    if (message != NULL && nng_sendmsg(link->pub, message, NNG_FLAG_NONBLOCK) != 0)
        nng_msg_free(message);
}

size_t
ef_link_queue_messages(const struct ef_link *link)
{
    return link->queue_messages;
}

ef_rc
ef_link_request(struct ef_link *link, const void *data, size_t len, struct ef_err *err)
{
    nng_msg *message;

    if (atomic_load(&link->state) != IDLE)
        return ef_err_set(err, EF_EBUSY, "a request is out already");
    message = message_of(data, len);
    if (message == NULL)
        return ef_err_set(err, EF_ENOMEM, "no memory for a sync of %zu bytes", len);
    if (link->reply != NULL)
        nng_msg_free(link->reply);
    link->reply = NULL;
    atomic_store(&link->state, SENDING);
    nng_aio_set_msg(link->send_aio, message);
    nng_send_aio(link->req, link->send_aio);
    return EF_OK;
}

enum ef_link_event
ef_link_poll(struct ef_link *link, const void **ret_data, size_t *ret_len)
{
    switch (atomic_load(&link->state)) {
    case SENT:
        atomic_store(&link->state, RECEIVING);
        nng_recv_aio(link->req, link->receive_aio);
        return EF_LINK_NOTHING;
    case RECEIVED:
        link->reply = nng_aio_get_msg(link->receive_aio);
        nng_aio_set_msg(link->receive_aio, NULL);
        atomic_store(&link->state, IDLE);
        *ret_data = nng_msg_body(link->reply);
        *ret_len = nng_msg_len(link->reply);
        return EF_LINK_REPLY;
    case FAILED:
        if (nng_aio_result(link->send_aio) != 0 && nng_aio_get_msg(link->send_aio) != NULL)
            nng_msg_free(nng_aio_get_msg(link->send_aio));
        nng_aio_set_msg(link->send_aio, NULL);
        atomic_store(&link->state, IDLE);
        return EF_LINK_FAILED;
    default:
        return EF_LINK_NOTHING;
    }
}

bool
ef_link_is_up(const struct ef_link *link)
{
    return atomic_load(&link->pipes) > 0;
}
