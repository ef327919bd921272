/*
 * Decides how bytes of a stream become documents, and how waiting and closing are done with nng
 * 1.5.2. Must not know what documents say. receive_done, send_done and leave_done run on nng's
 * threads, the rest on the session's.
 */
#include "sampler/v8/ws.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>

#include <nng/nng.h>

#include "proto/base/buf.h"
#include "proto/base/text.h"

#define WS_MAGIC 0x65667773u /* "efws" */
#define CHUNK_BYTES 65536    /* one receive; chosen: a 5 MB reply needs 80 of them */
#define COMPACT_BYTES ((size_t)1 << 20)
#define HUNG_UP_NS (500 * EF_NS_PER_MS) /* for what nng's threads hold; chosen: a starved host */
#define LOOK_NS (200 * EF_NS_PER_MS)    /* between looks for a close that nng does not tell */

struct ef_ws {
    uint32_t magic;
    nng_stream *stream;
    nng_aio *receive;
    nng_aio *send;
    nng_aio *leave;     /* timer of ef_ws_leave_after */
    int fd;             /* nng's; only looked at, see has_hung_up; -1 = unknown */
    ef_mono_ns hung_up; /* when that was first seen; 0 = not */
    const char *needle; /* set once before use; NULL = none */
    uint64_t grace_ms;
    uint8_t chunk[CHUNK_BYTES]; /* of the outstanding receive */

    pthread_mutex_t lock; /* guards the next block; held for copies only, never while calling nng */
    pthread_cond_t changed;
    struct ef_buf inbox;
    ef_mono_ns arrived;
    bool closing;  /* ours */
    bool closed;   /* no receive is outstanding any more */
    int closed_rv; /* nng's reason */
    bool sending;
    bool leaving;

    struct ef_buf pending; /* of the session's thread: documents being read */
    size_t begin;          /* of the next document */
    size_t scanned;        /* bytes of pending that the frame has seen */
    size_t given;          /* end of the document lent out last; 0 = none */
    struct ef_json_frame frame;
};

static void
start_receive(struct ef_ws *ws)
{
    nng_iov iov = {ws->chunk, sizeof(ws->chunk)};

    nng_aio_set_iov(ws->receive, 1, &iov); /* one vector: cannot fail */
    nng_stream_recv(ws->stream, ws->receive);
}

/* True when the bytes to wait for have just come. Called with the lock. */
static bool
needle_came(struct ef_ws *ws, size_t new_bytes)
{
    size_t needle_len = ws->needle != NULL ? strlen(ws->needle) : 0;
    size_t look = new_bytes + needle_len; /* it may have come in two pieces */

    if (needle_len == 0 || ws->leaving)
        return false;
    if (look > ws->inbox.len)
        look = ws->inbox.len;
    ws->leaving =
        memmem(ws->inbox.data + ws->inbox.len - look, look, ws->needle, needle_len) != NULL;
    return ws->leaving;
}

static void
receive_done(void *arg)
{
    struct ef_ws *ws = arg;
    bool again, leave = false;
    int rv;

    EF_ASSERT(ws->magic == WS_MAGIC);
    rv = nng_aio_result(ws->receive);
    pthread_mutex_lock(&ws->lock);
    if (rv == 0) {
        size_t len = nng_aio_count(ws->receive);
        if (!ef_buf_append(&ws->inbox, ws->chunk, len))
            rv = NNG_EMSGSIZE;
        else
            leave = needle_came(ws, len);
        ws->arrived = ef_mono_now();
    }
    again = rv == 0 && !ws->closing;
    if (!again) {
        ws->closed = true;
        ws->closed_rv = rv;
    }
    pthread_cond_broadcast(&ws->changed);
    pthread_mutex_unlock(&ws->lock);
    if (leave)
        nng_sleep_aio((nng_duration)ws->grace_ms, ws->leave);
    if (again)
        start_receive(ws);
}

static void
send_done(void *arg)
{
    struct ef_ws *ws = arg;

    EF_ASSERT(ws->magic == WS_MAGIC);
    pthread_mutex_lock(&ws->lock);
    ws->sending = false;
    pthread_cond_broadcast(&ws->changed);
    pthread_mutex_unlock(&ws->lock);
}

static void
leave_done(void *arg)
{
    struct ef_ws *ws = arg;

    EF_ASSERT(ws->magic == WS_MAGIC);
    if (nng_aio_result(ws->leave) == 0)
        nng_stream_close(ws->stream);
}

static ef_rc
rc_of_dial(int rv)
{
    switch (rv) {
    case NNG_ETIMEDOUT:
        return EF_ETIMEOUT;
    case NNG_ENOMEM:
        return EF_ENOMEM;
    case NNG_EPROTO:
        return EF_ECORRUPT;
    case NNG_ECLOSED: /* accepted and hung up at once */
    case NNG_ECONNSHUT:
    case NNG_ECONNRESET:
        return EF_ECLOSED;
    default:
        return EF_EUNREACH;
    }
}

/* Text mode and room for large replies: both limits of nng default to 1 MiB, and workerd ignores
 * binary frames. */
static int
set_dialer_options(nng_stream_dialer *dialer)
{
    int rv = nng_stream_dialer_set_bool(dialer, NNG_OPT_WS_SEND_TEXT, true);

    if (rv == 0)
        rv = nng_stream_dialer_set_bool(dialer, NNG_OPT_WS_RECV_TEXT, true);
    if (rv == 0)
        rv = nng_stream_dialer_set_size(dialer, NNG_OPT_WS_RECVMAXFRAME, EF_WS_BYTES_MAX);
    if (rv == 0)
        rv = nng_stream_dialer_set_size(dialer, NNG_OPT_RECVMAXSZ, EF_WS_BYTES_MAX);
    return rv;
}

/*
 * The only place with an aio timeout. nng 1.5.2 can lose a dial that is cancelled in the instant
 * the connection is made; callers have just talked to the port over HTTP, so a dial that takes the
 * whole deadline hangs in the handshake, where cancelling is sound.
 */
static int
dial(const char *url, uint64_t deadline_ms, nng_stream **ret_stream)
{
    nng_stream_dialer *dialer = NULL;
    nng_aio *aio = NULL;
    int rv = nng_stream_dialer_alloc(&dialer, url);

    if (rv == 0)
        rv = set_dialer_options(dialer);
    if (rv == 0)
        rv = nng_aio_alloc(&aio, NULL, NULL);
    if (rv == 0) {
        nng_aio_set_timeout(aio, (nng_duration)deadline_ms);
        nng_stream_dialer_dial(dialer, aio);
        nng_aio_wait(aio);
        rv = nng_aio_result(aio);
    }
    if (rv == 0)
        *ret_stream = nng_aio_get_output(aio, 0);
    if (aio != NULL)
        nng_aio_free(aio);
    if (dialer != NULL)
        nng_stream_dialer_free(dialer); /* a stream made by it lives on its own */
    return rv;
}

static uint16_t
port_of(const struct sockaddr_storage *addr)
{
    if (addr->ss_family == AF_INET)
        return ntohs(((const struct sockaddr_in *)addr)->sin_port);
    if (addr->ss_family == AF_INET6)
        return ntohs(((const struct sockaddr_in6 *)addr)->sin6_port);
    return 0;
}

static uint16_t
nng_port(nng_stream *stream, const char *option)
{
    nng_sockaddr addr;

    if (nng_stream_get_addr(stream, option, &addr) != 0)
        return 0;
    if (addr.s_family == NNG_AF_INET)
        return ntohs(addr.s_in.sa_port);
    return addr.s_family == NNG_AF_INET6 ? ntohs(addr.s_in6.sa_port) : 0;
}

/* The descriptor of nng's connection, by its two ports. */
static int
find_fd(nng_stream *stream)
{
    uint16_t local = nng_port(stream, NNG_OPT_LOCADDR);
    uint16_t remote = nng_port(stream, NNG_OPT_REMADDR);
    DIR *dir = local != 0 && remote != 0 ? opendir("/proc/self/fd") : NULL;
    const struct dirent *entry;
    int found = -1;

    while (dir != NULL && found < 0 && (entry = readdir(dir)) != NULL) {
        struct sockaddr_storage near = {0}, far = {0};
        socklen_t near_len = sizeof(near), far_len = sizeof(far);
        const char *name = entry->d_name;
        uint64_t number;
        int fd = ef_u64_read(&name, 10, &number) && number <= INT_MAX ? (int)number : -1;
        if (fd >= 0 && getsockname(fd, (struct sockaddr *)&near, &near_len) == 0 &&
            getpeername(fd, (struct sockaddr *)&far, &far_len) == 0 && port_of(&near) == local &&
            port_of(&far) == remote)
            found = fd;
    }
    if (dir != NULL)
        closedir(dir);
    return found;
}

/*
 * nng 1.5.2 loses a close that comes while no receive is queued (our callback is just at work): the
 * next receive then waits for ever. So while nothing comes, the kernel is asked. True when the peer
 * has closed, everything is read, and nng has had HUNG_UP_NS to tell. An nng whose receive fails on
 * a closed stream would let us remove this. With the lock.
 */
static bool
has_hung_up(struct ef_ws *ws)
{
    struct pollfd look = {.fd = ws->fd, .events = POLLRDHUP};
    ef_mono_ns now = ef_mono_now();
    int unread = 0;

    if (ws->fd < 0 || poll(&look, 1, 0) <= 0 || ioctl(ws->fd, FIONREAD, &unread) != 0 || unread > 0)
        return false;
    if (ws->hung_up.ns == 0)
        ws->hung_up = now;
    return ef_mono_since(ws->hung_up, now).ns > HUNG_UP_NS &&
           ef_mono_since(ws->arrived, now).ns > HUNG_UP_NS;
}

static void
init_cond(pthread_cond_t *cond)
{
    pthread_condattr_t attr;

    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(cond, &attr);
    pthread_condattr_destroy(&attr);
}

ef_rc
ef_ws_open(const char *url, uint64_t deadline_ms, struct ef_ws **ret_ws, struct ef_err *err)
{
    struct ef_ws *ws = calloc(1, sizeof(*ws));
    int rv;

    if (ws == NULL)
        return ef_err_set(err, EF_ENOMEM, "out of memory");
    ws->magic = WS_MAGIC;
    pthread_mutex_init(&ws->lock, NULL);
    init_cond(&ws->changed);
    ef_buf_init(&ws->inbox, EF_WS_BYTES_MAX);
    ef_buf_init(&ws->pending, EF_WS_BYTES_MAX);
    ws->closed = true; /* until the first receive */
    ws->fd = -1;
    rv = nng_aio_alloc(&ws->receive, receive_done, ws);
    if (rv == 0)
        rv = nng_aio_alloc(&ws->send, send_done, ws);
    if (rv == 0)
        rv = nng_aio_alloc(&ws->leave, leave_done, ws);
    if (rv == 0)
        rv = dial(url, deadline_ms, &ws->stream);
    if (rv != 0) {
        ef_ws_free(ws);
        return ef_err_set(err, rc_of_dial(rv), "cannot connect to %s: %s", url, nng_strerror(rv));
    }
    nng_aio_set_timeout(ws->receive, NNG_DURATION_INFINITE);
    nng_aio_set_timeout(ws->send, NNG_DURATION_INFINITE);
    ws->fd = find_fd(ws->stream);
    ws->closed = false;
    start_receive(ws);
    *ret_ws = ws;
    return EF_OK;
}

static void
stop_aio(nng_aio *aio)
{
    if (aio != NULL)
        nng_aio_stop(aio);
}

static void
free_aio(nng_aio *aio)
{
    if (aio != NULL)
        nng_aio_free(aio);
}

void
ef_ws_free(struct ef_ws *ws)
{
    if (ws == NULL)
        return;
    pthread_mutex_lock(&ws->lock);
    ws->closing = true;
    pthread_mutex_unlock(&ws->lock);
    stop_aio(ws->leave); /* first: its callback uses the stream */
    if (ws->stream != NULL)
        nng_stream_close(ws->stream); /* ends an outstanding receive; sends the close frame */
    stop_aio(ws->receive);
    stop_aio(ws->send);
    if (ws->stream != NULL)
        nng_stream_free(ws->stream);
    free_aio(ws->leave);
    free_aio(ws->receive);
    free_aio(ws->send);
    pthread_cond_destroy(&ws->changed);
    pthread_mutex_destroy(&ws->lock);
    ef_buf_fini(&ws->inbox);
    ef_buf_fini(&ws->pending);
    ws->magic = 0;
    free(ws);
}

uint16_t
ef_ws_local_port(const struct ef_ws *ws)
{
    return nng_port(ws->stream, NNG_OPT_LOCADDR);
}

void
ef_ws_leave_after(struct ef_ws *ws, const char *needle, uint64_t grace_ms)
{
    pthread_mutex_lock(&ws->lock);
    ws->needle = needle;
    ws->grace_ms = grace_ms;
    pthread_mutex_unlock(&ws->lock);
}

/* Waits for a change until the deadline; false when that has passed. With the lock. */
static bool
wait_change(struct ef_ws *ws, ef_mono_ns deadline)
{
    struct timespec at = {.tv_sec = (time_t)(deadline.ns / EF_NS_PER_S),
                          .tv_nsec = (long)(deadline.ns % EF_NS_PER_S)};

    return pthread_cond_timedwait(&ws->changed, &ws->lock, &at) != ETIMEDOUT;
}

ef_rc
ef_ws_send(struct ef_ws *ws, const char *text, size_t len, ef_mono_ns deadline, struct ef_err *err)
{
    nng_iov iov = {(void *)(uintptr_t)text, len}; /* nng only reads it */
    bool sent;
    int rv;

    pthread_mutex_lock(&ws->lock);
    ws->sending = true;
    pthread_mutex_unlock(&ws->lock);
    nng_aio_set_iov(ws->send, 1, &iov);
    nng_stream_send(ws->stream, ws->send);
    pthread_mutex_lock(&ws->lock);
    while (ws->sending && wait_change(ws, deadline))
        continue;
    sent = !ws->sending;
    pthread_mutex_unlock(&ws->lock);
    if (!sent) {
        nng_stream_close(ws->stream); /* ends the send */
        nng_aio_wait(ws->send);
        return ef_err_set(err, EF_ETIMEOUT, "the peer does not take our message");
    }
    rv = nng_aio_result(ws->send);
    if (rv == 0 && nng_aio_count(ws->send) != len)
        rv = NNG_EMSGSIZE; /* the rest would become a second message */
    if (rv != 0)
        return ef_err_set(err, EF_ECLOSED, "the connection is closed: %s", nng_strerror(rv));
    return EF_OK;
}

/* Gives back the room of documents that were read. */
static void
drop_given(struct ef_ws *ws)
{
    struct ef_buf *pending = &ws->pending;

    if (ws->given == 0)
        return;
    ws->begin = ws->given;
    ws->given = 0;
    if (ws->begin < pending->len && ws->begin < COMPACT_BYTES)
        return; /* moving the rest for each of many small documents would be quadratic */
    memmove(pending->data, pending->data + ws->begin, pending->len - ws->begin);
    pending->len -= ws->begin;
    ws->scanned -= ws->begin;
    ws->begin = 0;
}

/* Looks for the end of the next document in what is there. */
static bool
find_document(struct ef_ws *ws, struct ef_json_text *ret_doc)
{
    const char *data = (const char *)ws->pending.data;
    size_t len = 0;

    if (ws->scanned == ws->pending.len)
        return false;
    if (!ef_json_frame_feed(&ws->frame, data + ws->scanned, ws->pending.len - ws->scanned, &len)) {
        ws->scanned = ws->pending.len;
        return false;
    }
    ws->scanned += len;
    ws->given = ws->scanned;
    *ret_doc = (struct ef_json_text){data + ws->begin, ws->given - ws->begin};
    return true;
}

/* Moves what came into pending; false when it does not fit. With the lock. */
static bool
take_inbox(struct ef_ws *ws)
{
    bool fits = true;

    if (ws->pending.len == 0) {
        struct ef_buf empty = ws->pending;
        ws->pending = ws->inbox; /* the usual case: no copy */
        ws->inbox = empty;
    } else {
        fits = ef_buf_append(&ws->pending, ws->inbox.data, ws->inbox.len);
        ef_buf_clear(&ws->inbox);
    }
    return fits;
}

/* Waits until bytes came, the stream is closed, or the deadline. With the lock. */
static void
await_bytes(struct ef_ws *ws, ef_mono_ns deadline)
{
    while (ws->inbox.len == 0 && !ws->closed) {
        ef_mono_ns now = ef_mono_now(), look = {now.ns + LOOK_NS};
        if (has_hung_up(ws)) {
            ws->closed = true;
            ws->closed_rv = NNG_ECONNSHUT;
        } else if (look.ns < deadline.ns) {
            wait_change(ws, look);
        } else if (!wait_change(ws, deadline)) {
            return;
        }
    }
}

/* Waits for bytes and takes them. */
static ef_rc
more_bytes(struct ef_ws *ws, ef_mono_ns deadline, ef_mono_ns *ret_arrived, struct ef_err *err)
{
    bool fits = true, some, closed;
    int rv;

    pthread_mutex_lock(&ws->lock);
    await_bytes(ws, deadline);
    some = ws->inbox.len > 0;
    if (some)
        fits = take_inbox(ws);
    *ret_arrived = ws->arrived;
    closed = ws->closed;
    rv = ws->closed_rv;
    pthread_mutex_unlock(&ws->lock);
    if (!fits || (!some && rv == NNG_EMSGSIZE))
        return ef_err_set(err, EF_ELIMIT, "a message is larger than %zu bytes", EF_WS_BYTES_MAX);
    if (some)
        return EF_OK;
    if (closed)
        return ef_err_set(err, EF_ECLOSED, "the connection is closed: %s", nng_strerror(rv));
    return ef_err_set(err, EF_ETIMEOUT, "no message came in time");
}

ef_rc
ef_ws_next(struct ef_ws *ws, ef_mono_ns deadline, struct ef_json_text *ret_doc,
           ef_mono_ns *ret_arrived, struct ef_err *err)
{
    struct ef_json_text doc;
    ef_mono_ns arrived = ef_mono_now();
    ef_rc rc;

    drop_given(ws);
    while (!find_document(ws, &doc)) {
        if (ws->frame.bad)
            return ef_err_set(err, EF_ECORRUPT, "a message is not a JSON object");
        rc = more_bytes(ws, deadline, &arrived, err);
        if (rc != EF_OK)
            return rc;
    }
    *ret_doc = doc;
    *ret_arrived = arrived;
    return EF_OK;
}
