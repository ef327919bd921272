/*
 * A scripted inspector on 127.0.0.1: target list over HTTP, commands over a hand-made WebSocket. It
 * keeps the names of all commands in the order they came, over all connections. Threads: one to
 * accept, one per connection; the test thread reads the log when they are quiet.
 */
#ifndef TESTS_UNIT_SAMPLER_V8_FAKE_INSPECTOR_H
#define TESTS_UNIT_SAMPLER_V8_FAKE_INSPECTOR_H

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "sampler/v8/json_text.h"

#define FAKE_CONNECTIONS_MAX 1024
#define FAKE_LOG_MAX 8192

enum fake_act {
    FAKE_ANSWER,  /* `text`, or {"id":N,"result":{}} when NULL */
    FAKE_SILENT,  /* no answer */
    FAKE_LAST,    /* answers like FAKE_ANSWER, and closes at once */
    FAKE_HANG_UP, /* closes without a close frame: 1006 */
};

/* What to do on a command. `$` in texts stands for its id. */
struct fake_rule {
    const char *method;
    enum fake_act act;
    const char *text;
    const char *before;    /* a message sent before the answer */
    size_t fragment_bytes; /* 0 = one frame */
    int times;             /* uses left; 0 = for ever */
};

struct fake {
    int listener;
    int port;
    char address[32];
    const char *browser;  /* "workerd" */
    const char *list;     /* body of GET /json; NULL: one entry "alpha" */
    const char *greeting; /* a message sent right after the handshake */
    bool mute_handshake;  /* takes the connection and says nothing */
    struct fake_rule rules[16];
    int rule_count;
    pthread_t acceptor;
    pthread_mutex_t lock; /* guards the rest */
    pthread_cond_t changed;
    pthread_t threads[FAKE_CONNECTIONS_MAX];
    int fds[FAKE_CONNECTIONS_MAX];
    int thread_count;
    int sockets_open; /* WebSocket connections */
    int sockets_ever;
    char *log[FAKE_LOG_MAX]; /* "Method" or "Method {params}" */
    int log_count;
};

static uint32_t
fake_rotate(uint32_t value, int bits)
{
    return value << bits | value >> (32 - bits);
}

/* SHA-1 of at most 119 bytes, for the handshake. */
static void
fake_sha1(const uint8_t *data, size_t len, uint8_t out[20])
{
    uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    uint8_t block[128] = {0};
    size_t blocks = len < 56 ? 1 : 2;

    memcpy(block, data, len);
    block[len] = 0x80;
    for (int i = 0; i < 8; i++)
        block[blocks * 64 - 1 - (size_t)i] = (uint8_t)((uint64_t)len * 8 >> (8 * i));
    for (size_t b = 0; b < blocks; b++) {
        uint32_t w[80], v[5];
        memcpy(v, h, sizeof(v));
        for (int i = 0; i < 16; i++)
            w[i] = (uint32_t)block[b * 64 + (size_t)i * 4] << 24 |
                   (uint32_t)block[b * 64 + (size_t)i * 4 + 1] << 16 |
                   (uint32_t)block[b * 64 + (size_t)i * 4 + 2] << 8 |
                   block[b * 64 + (size_t)i * 4 + 3];
        for (int i = 16; i < 80; i++)
            w[i] = fake_rotate(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
        for (int i = 0; i < 80; i++) {
            uint32_t f = i < 20   ? ((v[1] & v[2]) | (~v[1] & v[3])) + 0x5a827999
                         : i < 40 ? (v[1] ^ v[2] ^ v[3]) + 0x6ed9eba1
                         : i < 60 ? ((v[1] & v[2]) | (v[1] & v[3]) | (v[2] & v[3])) + 0x8f1bbcdc
                                  : (v[1] ^ v[2] ^ v[3]) + 0xca62c1d6;
            uint32_t t = fake_rotate(v[0], 5) + f + v[4] + w[i];
            v[4] = v[3];
            v[3] = v[2];
            v[2] = fake_rotate(v[1], 30);
            v[1] = v[0];
            v[0] = t;
        }
        for (int i = 0; i < 5; i++)
            h[i] += v[i];
    }
    for (int i = 0; i < 20; i++)
        out[i] = (uint8_t)(h[i / 4] >> (24 - 8 * (i % 4)));
}

static void
fake_accept_key(const char *key, char out[29])
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    char text[64];
    uint8_t sum[21] = {0};

    snprintf(text, sizeof(text), "%.24s258EAFA5-E914-47DA-95CA-C5AB0DC85B11", key);
    fake_sha1((uint8_t *)text, strlen(text), sum);
    for (int i = 0; i < 28; i++) {
        int bit = i * 6;
        uint32_t pair = (uint32_t)sum[bit / 8] << 8 | sum[bit / 8 + 1 > 20 ? 20 : bit / 8 + 1];
        out[i] = digits[pair >> (10 - bit % 8) & 63];
    }
    out[27] = '=';
    out[28] = '\0';
}

static bool
fake_write(int fd, const void *data, size_t len)
{
    for (size_t sent = 0; sent < len;) {
        ssize_t n = send(fd, (const char *)data + sent, len - sent, MSG_NOSIGNAL);
        if (n <= 0)
            return false;
        sent += (size_t)n;
    }
    return true;
}

static bool
fake_read(int fd, void *data, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = recv(fd, (char *)data + got, len - got, 0);
        if (n <= 0)
            return false;
        got += (size_t)n;
    }
    return true;
}

/* One text message, in frames of at most fragment bytes. */
static bool
fake_send(int fd, const char *text, size_t len, size_t fragment)
{
    size_t sent = 0;

    do {
        size_t part = fragment != 0 && len - sent > fragment ? fragment : len - sent;
        uint8_t head[10] = {sent == 0 ? 0x01 : 0x00};
        size_t head_len = 2;
        if (sent + part == len)
            head[0] |= 0x80;
        if (part < 126) {
            head[1] = (uint8_t)part;
        } else if (part < 65536) {
            head[1] = 126;
            head[2] = (uint8_t)(part >> 8);
            head[3] = (uint8_t)part;
            head_len = 4;
        } else {
            head[1] = 127;
            for (int i = 0; i < 8; i++)
                head[2 + i] = (uint8_t)((uint64_t)part >> (56 - 8 * i));
            head_len = 10;
        }
        if (!fake_write(fd, head, head_len) || !fake_write(fd, text + sent, part))
            return false;
        sent += part;
    } while (sent < len);
    return true;
}

/* The payload of the next client frame; false at a close frame or the end. */
static bool
fake_receive(int fd, char *text, size_t size)
{
    uint8_t head[4], mask[4];
    size_t len;

    if (!fake_read(fd, head, 2) || (head[0] & 0x0f) != 1)
        return false;
    len = head[1] & 0x7f;
    if (len == 126) {
        if (!fake_read(fd, head + 2, 2))
            return false;
        len = (size_t)head[2] << 8 | head[3];
    }
    if (len >= size || !fake_read(fd, mask, 4) || !fake_read(fd, text, len))
        return false;
    for (size_t i = 0; i < len; i++)
        text[i] ^= (char)mask[i % 4];
    text[len] = '\0';
    return true;
}

/* Sends a template; `$` becomes the id. */
static bool
fake_send_text(int fd, const char *text, long long id, size_t fragment)
{
    size_t len = strlen(text), out_len = 0;
    char *out = malloc(len + 4096 * 20);
    bool ok;

    for (size_t i = 0; i < len; i++) {
        if (text[i] == '$')
            out_len += (size_t)sprintf(out + out_len, "%lld", id);
        else
            out[out_len++] = text[i];
    }
    ok = fake_send(fd, out, out_len, fragment);
    free(out);
    return ok;
}

static struct fake_rule
fake_rule_for(struct fake *fake, const char *method)
{
    struct fake_rule found = {.act = FAKE_ANSWER};

    pthread_mutex_lock(&fake->lock);
    for (int i = 0; i < fake->rule_count; i++) {
        struct fake_rule *rule = &fake->rules[i];
        if (strcmp(rule->method, method) != 0 || rule->times < 0)
            continue;
        found = *rule;
        if (rule->times > 0 && --rule->times == 0)
            rule->times = -1; /* used up */
        break;
    }
    pthread_mutex_unlock(&fake->lock);
    return found;
}

static void
fake_log(struct fake *fake, const char *method, struct ef_json_text params)
{
    char *line = NULL;

    if (asprintf(&line, "%s%s%.*s", method, params.at != NULL ? " " : "", (int)params.len,
                 params.at != NULL ? params.at : "") < 0)
        abort();
    pthread_mutex_lock(&fake->lock);
    if (fake->log_count < FAKE_LOG_MAX)
        fake->log[fake->log_count++] = line;
    else
        free(line);
    pthread_cond_broadcast(&fake->changed);
    pthread_mutex_unlock(&fake->lock);
}

static void
fake_serve_socket(struct fake *fake, int fd)
{
    char text[8192], method[128];

    if (fake->greeting != NULL)
        fake_send(fd, fake->greeting, strlen(fake->greeting), 0);
    while (fake_receive(fd, text, sizeof(text))) {
        struct ef_json_text doc = {text, strlen(text)};
        struct fake_rule rule;
        int64_t id = 0;
        ef_json_text_int(ef_json_member(doc, "id"), &id);
        ef_json_text_str(ef_json_member(doc, "method"), method, sizeof(method));
        fake_log(fake, method, ef_json_member(doc, "params"));
        rule = fake_rule_for(fake, method);
        if (rule.act == FAKE_HANG_UP)
            return;
        if (rule.before != NULL)
            fake_send_text(fd, rule.before, id, 0);
        if (rule.act == FAKE_ANSWER || rule.act == FAKE_LAST)
            fake_send_text(fd, rule.text != NULL ? rule.text : "{\"id\":$,\"result\":{}}", id,
                           rule.fragment_bytes);
        if (rule.act == FAKE_LAST)
            return;
    }
}

static void
fake_count_socket(struct fake *fake, int change)
{
    pthread_mutex_lock(&fake->lock);
    fake->sockets_open += change;
    fake->sockets_ever += change > 0;
    pthread_cond_broadcast(&fake->changed);
    pthread_mutex_unlock(&fake->lock);
}

static void
fake_upgrade(struct fake *fake, int fd, const char *request)
{
    const char *key = strcasestr(request, "sec-websocket-key: ");
    char reply[256], accept[29];

    if (key == NULL)
        return;
    fake_count_socket(fake, 1);
    if (fake->mute_handshake) {
        char c;
        while (recv(fd, &c, 1, 0) == 1)
            continue;
    } else {
        fake_accept_key(key + strlen("sec-websocket-key: "), accept);
        snprintf(reply, sizeof(reply),
                 "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                 "Connection: Upgrade\r\nSec-WebSocket-Accept: %s\r\n\r\n",
                 accept);
        fake_write(fd, reply, strlen(reply));
        fake_serve_socket(fake, fd);
    }
    fake_count_socket(fake, -1);
}

static void
fake_http(struct fake *fake, int fd, const char *request)
{
    static const char one[] =
        "[{\"id\":\"alpha\",\"title\":\"worker alpha\",\"url\":\"file:///a.js\"}]";
    char version[128], head[128];
    const char *body = fake->list != NULL ? fake->list : one;

    if (strncmp(request, "GET /json/version ", 18) == 0) {
        snprintf(version, sizeof(version), "{\"Browser\": \"%s\"}", fake->browser);
        body = version;
    }
    snprintf(head, sizeof(head), "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\n\r\n", strlen(body));
    if (fake_write(fd, head, strlen(head)))
        fake_write(fd, body, strlen(body));
}

struct fake_connection {
    struct fake *fake;
    int fd;
    int index;
};

static void *
fake_connection_run(void *arg)
{
    struct fake_connection *connection = arg;
    struct fake *fake = connection->fake;
    char request[8192];
    size_t len = 0;

    while (len < sizeof(request) - 1 && recv(connection->fd, request + len, 1, 0) == 1) {
        request[++len] = '\0';
        if (len >= 4 && memcmp(request + len - 4, "\r\n\r\n", 4) == 0)
            break;
    }
    if (len > 0 && strcasestr(request, "upgrade: websocket") != NULL)
        fake_upgrade(fake, connection->fd, request);
    else if (len > 0)
        fake_http(fake, connection->fd, request);
    pthread_mutex_lock(&fake->lock);
    close(connection->fd);
    fake->fds[connection->index] = -1;
    pthread_mutex_unlock(&fake->lock);
    free(connection);
    return NULL;
}

static void *
fake_accept_run(void *arg)
{
    struct fake *fake = arg;
    int fd, one = 1;

    while ((fd = accept(fake->listener, NULL, NULL)) >= 0) {
        struct fake_connection *connection = malloc(sizeof(*connection));
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
        pthread_mutex_lock(&fake->lock);
        *connection = (struct fake_connection){fake, fd, fake->thread_count};
        if (fake->thread_count == FAKE_CONNECTIONS_MAX)
            abort();
        fake->fds[fake->thread_count] = fd;
        pthread_create(&fake->threads[fake->thread_count], NULL, fake_connection_run, connection);
        fake->thread_count++;
        pthread_mutex_unlock(&fake->lock);
    }
    return NULL;
}

static struct fake *
fake_open(const char *browser)
{
    struct fake *fake = calloc(1, sizeof(*fake));
    struct sockaddr_in addr = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(addr);

    fake->browser = browser;
    pthread_mutex_init(&fake->lock, NULL);
    pthread_cond_init(&fake->changed, NULL);
    fake->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (bind(fake->listener, (struct sockaddr *)&addr, sizeof(addr)) != 0 ||
        listen(fake->listener, 64) != 0 ||
        getsockname(fake->listener, (struct sockaddr *)&addr, &len) != 0)
        abort();
    fake->port = ntohs(addr.sin_port);
    snprintf(fake->address, sizeof(fake->address), "127.0.0.1:%d", fake->port);
    return fake;
}

/* Begins to answer; the script must be set before. */
static void
fake_start(struct fake *fake)
{
    pthread_create(&fake->acceptor, NULL, fake_accept_run, fake);
}

static void
fake_rule(struct fake *fake, struct fake_rule rule)
{
    pthread_mutex_lock(&fake->lock);
    fake->rules[fake->rule_count++] = rule;
    pthread_mutex_unlock(&fake->lock);
}

static void
fake_free(struct fake *fake)
{
    shutdown(fake->listener, SHUT_RDWR);
    if (fake->acceptor != 0)
        pthread_join(fake->acceptor, NULL);
    close(fake->listener);
    pthread_mutex_lock(&fake->lock);
    for (int i = 0; i < fake->thread_count; i++)
        if (fake->fds[i] >= 0)
            shutdown(fake->fds[i], SHUT_RDWR);
    pthread_mutex_unlock(&fake->lock);
    for (int i = 0; i < fake->thread_count; i++)
        pthread_join(fake->threads[i], NULL);
    for (int i = 0; i < fake->log_count; i++)
        free(fake->log[i]);
    pthread_mutex_destroy(&fake->lock);
    pthread_cond_destroy(&fake->changed);
    free(fake);
}

/* Waits until no WebSocket is open. */
static void
fake_await_quiet(struct fake *fake)
{
    pthread_mutex_lock(&fake->lock);
    while (fake->sockets_open > 0)
        pthread_cond_wait(&fake->changed, &fake->lock);
    pthread_mutex_unlock(&fake->lock);
}

static int
fake_sockets_open(struct fake *fake)
{
    int open;

    pthread_mutex_lock(&fake->lock);
    open = fake->sockets_open;
    pthread_mutex_unlock(&fake->lock);
    return open;
}

/* WebSocket connections since the start. */
static int
fake_sockets_ever(struct fake *fake)
{
    int ever;

    pthread_mutex_lock(&fake->lock);
    ever = fake->sockets_ever;
    pthread_mutex_unlock(&fake->lock);
    return ever;
}

/* The method names so far, one space after each, parameters left out; then forgets them. */
static void
fake_take_log(struct fake *fake, char *text, size_t size)
{
    size_t len = 0;

    pthread_mutex_lock(&fake->lock);
    text[0] = '\0';
    for (int i = 0; i < fake->log_count; i++) {
        len += (size_t)snprintf(text + len, size - len, "%.*s ", (int)strcspn(fake->log[i], " "),
                                fake->log[i]);
        free(fake->log[i]);
    }
    fake->log_count = 0;
    pthread_mutex_unlock(&fake->lock);
}

/* Whether a command with these words was sent. */
static bool
fake_saw(struct fake *fake, const char *words)
{
    bool saw = false;

    pthread_mutex_lock(&fake->lock);
    for (int i = 0; i < fake->log_count; i++)
        saw = saw || strstr(fake->log[i], words) != NULL;
    pthread_mutex_unlock(&fake->lock);
    return saw;
}

#endif
