/*
 * Decides whether a listener is alive. Runs in the thread that opens, and in the probe thread.
 */
#include "collector/ingest/listener.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#define PROBE_WAIT_MS 1000
#define HELLO_BYTES 8 /* "\0SP\0", protocol (2, big-endian), reserved (2): the SP TCP mapping */

static ef_rc
from_nng(int error, const char *what, const char *url, struct ef_err *err)
{
    ef_rc rc = EF_EIO;

    if (error == NNG_EADDRINUSE)
        rc = EF_ECONFLICT;
    else if (error == NNG_EADDRINVAL || error == NNG_ENOTSUP)
        rc = EF_EINVAL;
    else if (error == NNG_ENOMEM)
        rc = EF_ENOMEM;
    return ef_err_set(err, rc, "%s '%s': %s", what, url, nng_strerror(error));
}

/* Where a peer on this host would connect; an address for all interfaces stands for loopback. */
static ef_rc
learn_address(struct ef_listener *listener, struct ef_err *err)
{
    struct sockaddr_in *v4 = (struct sockaddr_in *)(void *)listener->address;
    struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)(void *)listener->address;
    char host[INET6_ADDRSTRLEN];
    nng_sockaddr real;
    int error = nng_listener_get_addr(listener->listener, NNG_OPT_LOCADDR, &real);

    if (error != 0)
        return from_nng(error, "address of", listener->url, err);
    memset(listener->address, 0, sizeof(*listener->address));
    if (real.s_family == NNG_AF_INET) {
        v4->sin_family = AF_INET;
        v4->sin_port = real.s_in.sa_port;
        v4->sin_addr.s_addr = real.s_in.sa_addr;
        inet_ntop(AF_INET, &v4->sin_addr, host, sizeof(host));
        snprintf(listener->url, sizeof(listener->url), "tcp://%s:%u", host, ntohs(v4->sin_port));
        if (v4->sin_addr.s_addr == htonl(INADDR_ANY))
            v4->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        listener->address_len = sizeof(*v4);
        return EF_OK;
    }
    if (real.s_family != NNG_AF_INET6)
        return ef_err_set(err, EF_EINVAL, "'%s' is no internet address", listener->url);
    v6->sin6_family = AF_INET6;
    v6->sin6_port = real.s_in6.sa_port;
    memcpy(&v6->sin6_addr, real.s_in6.sa_addr, sizeof(v6->sin6_addr));
    inet_ntop(AF_INET6, &v6->sin6_addr, host, sizeof(host));
    snprintf(listener->url, sizeof(listener->url), "tcp://[%s]:%u", host, ntohs(v6->sin6_port));
    if (IN6_IS_ADDR_UNSPECIFIED(&v6->sin6_addr))
        v6->sin6_addr = in6addr_loopback;
    listener->address_len = sizeof(*v6);
    return EF_OK;
}

ef_rc
ef_listener_open(struct ef_listener *listener, nng_socket socket, uint16_t protocol,
                 uint16_t peer_protocol, const char *url, struct ef_err *err)
{
    ef_rc rc = EF_OK;
    int error;

    *listener = (struct ef_listener){
        .socket = socket, .open = true, .protocol = protocol, .peer_protocol = peer_protocol};
    pthread_mutex_init(&listener->lock, NULL);
    listener->address = calloc(1, sizeof(*listener->address));
    if (listener->address == NULL)
        rc = ef_err_set(err, EF_ENOMEM, "no memory for a listener");
    else if (strncmp(url, "tcp://", 6) != 0 || strlen(url) >= sizeof(listener->url))
        rc = ef_err_set(err, EF_EINVAL, "'%s' is not of the form tcp://address:port", url);
    if (rc == EF_OK) {
        snprintf(listener->url, sizeof(listener->url), "%s", url);
        error = nng_listen(socket, url, &listener->listener, 0);
        if (error != 0)
            rc = from_nng(error, "cannot listen on", url, err);
    }
    if (rc == EF_OK)
        rc = learn_address(listener, err);
    if (rc != EF_OK)
        ef_listener_fini(listener);
    else
        listener->listening = true;
    return rc;
}

void
ef_listener_close(struct ef_listener *listener)
{
    pthread_mutex_lock(&listener->lock);
    if (listener->open)
        nng_close(listener->socket);
    listener->open = listener->listening = false;
    pthread_mutex_unlock(&listener->lock);
}

void
ef_listener_fini(struct ef_listener *listener)
{
    ef_listener_close(listener);
    free(listener->address);
    listener->address = NULL;
    pthread_mutex_destroy(&listener->lock);
}

ef_rc
ef_listener_renew(struct ef_listener *listener, struct ef_err *err)
{
    ef_rc rc = EF_OK;
    int error;

    pthread_mutex_lock(&listener->lock);
    if (!listener->open) {
        rc = ef_err_set(err, EF_ECLOSED, "closed");
        goto out;
    }
    if (listener->listening)
        nng_listener_close(listener->listener);
    listener->listening = false;
    error = nng_listen(listener->socket, listener->url, &listener->listener, 0);
    if (error != 0)
        rc = from_nng(error, "cannot listen again on", listener->url, err);
    else
        listener->listening = true;
out:
    pthread_mutex_unlock(&listener->lock);
    return rc;
}

/* ---- probe ---- */

static bool
wait_for(int fd, short events)
{
    struct pollfd poll_fd = {fd, events, 0};
    int rc;

    do
        rc = poll(&poll_fd, 1, PROBE_WAIT_MS);
    while (rc < 0 && errno == EINTR);
    return rc == 1 && (poll_fd.revents & events) != 0;
}

static bool
connected(int fd, const struct ef_listener *listener)
{
    int error = 0;
    socklen_t len = sizeof(error);

    if (connect(fd, (const struct sockaddr *)listener->address, listener->address_len) == 0)
        return true;
    if (errno != EINPROGRESS || !wait_for(fd, POLLOUT))
        return false;
    return getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &len) == 0 && error == 0;
}

/* The whole handshake: a peer that leaves in the middle of it is what hurts nng 1.5.2. */
static bool
shakes_hands(int fd, const struct ef_listener *listener)
{
    const uint8_t hello[HELLO_BYTES] = {
        0, 'S', 'P', 0, (uint8_t)(listener->peer_protocol >> 8), (uint8_t)listener->peer_protocol,
        0, 0};
    const uint8_t expected[HELLO_BYTES] = {
        0, 'S', 'P', 0, (uint8_t)(listener->protocol >> 8), (uint8_t)listener->protocol, 0, 0};
    uint8_t answer[HELLO_BYTES];
    size_t len = 0;

    if (send(fd, hello, sizeof(hello), MSG_NOSIGNAL) != (ssize_t)sizeof(hello))
        return false;
    while (len < sizeof(answer)) {
        ssize_t got;
        if (!wait_for(fd, POLLIN))
            return false;
        got = recv(fd, answer + len, sizeof(answer) - len, 0);
        if (got <= 0)
            return false;
        len += (size_t)got;
    }
    return memcmp(answer, expected, sizeof(answer)) == 0;
}

bool
ef_listener_alive(const struct ef_listener *listener)
{
    int fd = socket(((const struct sockaddr *)listener->address)->sa_family,
                    SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    bool alive;

    if (fd < 0)
        return true; /* no descriptors: that says nothing about the listener */
    alive = connected(fd, listener) && shakes_hands(fd, listener);
    close(fd);
    return alive;
}
